import json
import re
import shlex
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from channels.console import exits
from channels.console.cli import app
from worker.ids import partition_of

Lastword = Callable[..., Any]

COMMANDS = (
    "up",
    "web",
    "token create",
    "token list",
    "token revoke",
    "token scopes",
    "run",
    "submit",
    "status",
    "turns list",
    "turns show",
    "turns cancel",
    "turns replay",
    "deliveries list",
    "deliveries show",
    "deliveries replay",
    "deliveries cancel",
    "deliveries export",
    *(f"deliveries replays {one}" for one in ("list", "show", "pause", "resume", "cancel")),
    "hooks list",
    "hooks sign",
    *(f"endpoints {one}" for one in ("create", "list", "show", "update", "delete", "rotate", "secret")),
    *(f"endpoints {one}" for one in ("pause", "resume", "enable", "disable", "test")),
    "approvals list",
    "approvals grant",
    "approvals deny",
    "tools list",
    "providers list",
    "doctor",
    "decode",
    "webhook schema",
    "provider",
    "settings",
    "version",
    "webhook verify",
    "webhook secret",
    "vault key",
    "vault reseal",
)
STREAM = (
    b'data: {"choices":[{"index":0,"delta":{"content":"Hel"}}]}\n\n'
    b'data: {"choices":[{"index":0,"delta":{"content":"lo"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
)


@pytest.mark.requirement("console:help:example")
@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(lastword: Lastword, command: str) -> None:
    ran = lastword(*command.split(), "--help")
    assert ran.code == exits.OK
    assert re.search(rf"Example: lastword {command}\b", ran.out)


@pytest.mark.requirement("console:help:example")
def test_no_command_lacks_a_test_of_its_help(lastword: Lastword) -> None:
    groups = {"token", "turns", "deliveries", "deliveries replays", "endpoints", "approvals", "tools", "providers"}
    groups |= {"webhook", "vault", "hooks"}
    for group in ("", *groups):
        listed = re.findall(r"^│ (\w+)  ", lastword(*group.split(), "--help").out, re.MULTILINE)
        for name in listed:
            full = f"{group} {name}".strip()
            assert full in COMMANDS or full in groups


@pytest.mark.requirement("console:help:example")
@pytest.mark.parametrize("command", COMMANDS)
def test_the_example_of_every_help_is_taken_by_the_parser(command: str) -> None:
    found: Any = get_command(app)
    for name in command.split():
        found = found.commands[name]
    line = found.epilog.removeprefix("Example: lastword ").split(" > ")[0]
    words = shlex.split(line)[len(command.split()) :]
    given = found.make_context(command, words).params
    for name in ("turn", "delivery"):
        assert given.get(name) is None or partition_of(given[name]) is not None


@pytest.mark.requirement("console:help:example")
def test_help_shows_the_brackets_of_a_settings_name(lastword: Lastword) -> None:
    for command in ("run", "submit"):
        assert "[agents.NAME]" in lastword(command, "--help").out


DATA_COMMANDS = ("run hello", "submit hello", "up", "turns show turn_00" + "0" * 20, "deliveries list")


@pytest.mark.requirement("console:embedded:any-folder")
@pytest.mark.usefixtures("provider")
@pytest.mark.parametrize("command", DATA_COMMANDS)
def test_a_data_folder_that_cannot_be_used_ends_with_2_and_is_named(
    lastword: Lastword, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.delenv("LASTWORD_DATA_DIR")
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setenv("HOME", "/dev/null")
    ran = lastword(*command.split())
    assert ran.code == exits.USAGE
    assert "data_dir '/dev/null/.local/share/lastword' cannot be used" in ran.err
    assert "LASTWORD_DATA_DIR" in ran.err


@pytest.mark.requirement("console:embedded:any-folder")
def test_a_data_folder_may_be_relative(lastword: Lastword, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LASTWORD_DATA_DIR", "rel")
    assert lastword("deliveries", "list").code == exits.OK
    assert (tmp_path / "rel" / "server.log").is_file()


@pytest.mark.requirement("console:exits:documented")
def test_the_help_tells_what_each_exit_code_means(lastword: Lastword) -> None:
    out = " ".join(lastword("--help").out.split())
    for code, meaning in exits.MEANING.items():
        assert f"{code}: {meaning}" in out


@pytest.mark.requirement("console:exits:documented")
@pytest.mark.parametrize(
    ("outcome", "code"),
    [("completed", 0), ("merged", 0), ("incomplete", 3), ("failed", 1), ("dead", 1), ("cancelled", 6), (None, 5)],
)
def test_an_outcome_has_its_exit_code(outcome: str | None, code: int) -> None:
    assert exits.of_outcome(outcome) == code


@pytest.mark.requirement("console:exits:wrong-setting")
def test_a_wrong_setting_ends_with_2_and_names_it(lastword: Lastword, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LASTWORD_TURNS__MAX_CALLS", "none")
    ran = lastword("settings")
    assert ran.code == exits.USAGE
    assert "turns.max_calls = 'none' (environment LASTWORD_TURNS__MAX_CALLS)" in ran.err


def test_an_unknown_command_ends_with_2(lastword: Lastword) -> None:
    assert lastword("dance").code == exits.USAGE


@pytest.mark.requirement("console:exits:unreachable")
@pytest.mark.usefixtures("provider")
@pytest.mark.parametrize("command", ["submit hello", "turns show turn_00" + "0" * 20, "deliveries list"])
def test_a_redis_that_is_away_ends_with_4(
    lastword: Lastword, monkeypatch: pytest.MonkeyPatch, unused_port: int, command: str
) -> None:
    monkeypatch.setenv("LASTWORD_REDIS_URL", f"redis://127.0.0.1:{unused_port}/0")
    ran = lastword(*command.split())
    assert ran.code == exits.UNREACHABLE
    assert "Redis" in ran.err


def test_the_version_is_that_of_the_package(lastword: Lastword) -> None:
    assert lastword("version").out.strip() == version("lastword")


def test_settings_are_listed_for_people_and_for_programs(lastword: Lastword) -> None:
    rows = json.loads(lastword("settings", "--json").out)
    assert {
        "name": "turns.max_calls",
        "value": 100,
        "unit": "calls",
        "limits": "1 to 10000 calls",
        "source": "default",
    } in rows
    listing = lastword("settings").out
    assert re.search(r"turns\.max_calls +100 +1 to 10000 calls +default", listing)


def test_the_schema_is_printed(lastword: Lastword) -> None:
    assert json.loads(lastword("settings", "--schema").out)["additionalProperties"] is False


@pytest.mark.requirement("console:decode:one-object-a-line")
@pytest.mark.parametrize("chunk", [None, 1, 7])
def test_decode_prints_one_object_a_file_however_it_is_cut(
    lastword: Lastword, tmp_path: Path, chunk: int | None
) -> None:
    whole, cut = tmp_path / "whole.sse", tmp_path / "cut.sse"
    whole.write_bytes(STREAM)
    cut.write_bytes(STREAM[:70])
    ran = lastword("decode", "--wire", "chat", *(["--chunk", str(chunk)] if chunk else []), str(whole), str(cut))
    first, second = map(json.loads, ran.out.splitlines())
    assert ran.code == exits.OK
    assert (first["file"], first["text"], first["complete"]) == (str(whole), "Hello", True)
    assert (second["file"], second["text"], second["complete"]) == (str(cut), "Hel", False)


@pytest.mark.requirement("console:decode:wires")
def test_decode_reads_the_wire_format_and_keeps_to_the_profile_that_it_is_told(
    lastword: Lastword, tmp_path: Path
) -> None:
    capture = tmp_path / "capture.sse"
    events: list[dict[str, object]] = [
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "Hello"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}},
        {"type": "message_stop"},
    ]
    capture.write_text("".join(f"data: {json.dumps(event)}\n\n" for event in events))
    answers = [
        json.loads(lastword("decode", "--wire", "anthropic", *profile, str(capture)).out)
        for profile in ([], ["--profile", "compat"], ["--profile", "strict"])
    ]
    assert [(answer["text"], answer["finish_reason"], answer["complete"]) for answer in answers] == [
        ("Hello", "end_turn", True),
        ("Hello", "end_turn", True),
        ("", None, False),
    ]
    assert json.loads(lastword("decode", str(capture)).out)["text"] == ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["no/such.sse"], "No such file"),
        (["--wire", "morse", "x"], "--wire 'morse' is not known: use chat, responses or anthropic"),
        (["--profile", "lax", "x"], "--profile 'lax' is not known: use compat or strict"),
    ],
)
def test_decode_names_what_it_cannot_read(lastword: Lastword, arguments: list[str], words: str) -> None:
    ran = lastword("decode", *arguments)
    assert ran.code == exits.USAGE
    assert words in ran.err
