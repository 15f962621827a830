"""`lastword run` as a program: what a pipe gets, what `--json` prints, what a terminal shows, and the exit codes."""

import asyncio
import contextlib
import json
import os
import pty
import re
import signal
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from channels.console.run import to_its_end
from tests.support.stack import eventually, stand_in

SCRIPT = """
[[calls]]
steps = [ { text = "I will look. " }, { tool = "clock" } ]
usage = { prompt_tokens = 11, completion_tokens = 3 }

[[calls]]
steps = [ { text = "Half a sentence that", pieces = 4, every_s = 0.1 }, { stall = true } ]

[[calls]]
steps = [ { text = "A whole answer." } ]
usage = { prompt_tokens = 20, completion_tokens = 4 }
"""
FAILING = "[[calls]]\nstatus = 401\n"
CUT = '[[calls]]\nsteps = [ { text = "An answer that is cut" }, { finish = "length" } ]\n'
WITHIN_S = 30.0


def environment(base_url: str, folder: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LASTWORD_")}
    config = folder / "lastword.toml"
    config.write_text(
        f'data_dir = "{folder / "data"}"\n[providers.main]\nbase_url = "{base_url}"\nmodel = "stand-in"\n'
        'stall_timeout_s = 0.5\n[agents.default]\ntools = ["clock"]\n[turns]\nresume_backoff_s = 0.05\n',
        encoding="utf-8",
    )
    return {**kept, "LASTWORD_CONFIG": str(config), "TERM": "xterm", "COLUMNS": "100"}


async def run(script: str, folder: Path, *arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of `lastword run` with a pipe at its output."""
    async with stand_in(script, folder) as provider:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "channels", "run", "What time is it?", *arguments),
            env=environment(provider.base_url, folder),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await asyncio.wait_for(process.communicate(), WITHIN_S)
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


@pytest.mark.requirement("console:run:pipe")
async def test_a_pipe_gets_the_text_of_completed_calls_and_nothing_else(tmp_path: Path) -> None:
    code, out, err = await run(SCRIPT, tmp_path)
    assert (code, out, err) == (0, "I will look. A whole answer.\n", "")


@pytest.mark.requirement("console:run:json")
async def test_json_is_one_object_with_the_text_the_usage_and_what_was_discarded(tmp_path: Path) -> None:
    code, out, _ = await run(SCRIPT, tmp_path, "--json")
    said = json.loads(out)
    assert code == 0
    assert out.count("\n") == 1
    assert (said["outcome"], said["text"], said["error"]) == ("completed", "I will look. A whole answer.", None)
    assert [tool["name"] for tool in said["tool_calls"]] == ["clock"]
    assert said["usage"] == {
        "input_tokens": 31,
        "output_tokens": 7,
        "discarded_resume_attempts": 1,
        "discarded_resume_estimated_input_tokens": 11,
    }


async def test_without_a_resume_the_usage_has_no_word_of_discards(tmp_path: Path) -> None:
    """Design I11: the two fields are left out of a console line when nothing was resumed."""
    _, out, _ = await run('[[calls]]\nsteps = [ { text = "Here." } ]\n', tmp_path, "--json")
    assert not [name for name in json.loads(out)["usage"] if name.startswith("discarded")]


@pytest.mark.requirement("console:run:exit-codes")
@pytest.mark.parametrize(
    ("script", "code", "said"),
    [(FAILING, 1, "providers.main.api_key"), (CUT, 3, "")],
    ids=["failed", "incomplete"],
)
async def test_the_exit_code_tells_how_the_turn_ended(tmp_path: Path, script: str, code: int, said: str) -> None:
    ended, _, err = await run(script, tmp_path)
    assert ended == code
    assert said in err


@pytest.mark.requirement("console:run:terminal")
async def test_a_terminal_shows_the_half_sentence_and_says_that_it_is_void(tmp_path: Path) -> None:
    async with stand_in(SCRIPT, tmp_path) as provider:
        ours, theirs = pty.openpty()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "channels", "run", "What time is it?"),
            env=environment(provider.base_url, tmp_path),
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        shown = await asyncio.wait_for(asyncio.to_thread(_read_all, ours), WITHIN_S)
        assert await process.wait() == 0
    half, void, whole = shown.find("Half a sentence that"), shown.find("void"), shown.find("A whole answer.")
    assert 0 <= shown.find("I will look. ") < half < void < whole
    assert shown.count("I will look. ") == shown.count("A whole answer.") == 1


SLOW = '[[calls]]\nsteps = [ { text = "Slowly", pieces = 6, every_s = 0.1 }, { stall = true } ]\n'
WAITING = '[[calls]]\nsteps = [ { text = "First" }, { pause_s = 3 }, { text = " answer." } ]\n'
GATED = """
[[conversations]]
match = "first"
calls = [ { steps = [ { tool = "gate" } ] }, { steps = [ { text = "First answer." } ] } ]

[[conversations]]
match = "second"
calls = [ { steps = [ { tool = "gate" } ] }, { steps = [ { text = "Second answer." } ] } ]
"""
INSTALLED = Path(__file__).parents[1] / "process" / "installed"


@contextlib.asynccontextmanager
async def running(base_url: str, folder: Path, prompt: str, **more: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """`lastword run` with pipes, ended whatever becomes of it."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "channels", "run", prompt),
        env=environment(base_url, folder) | {"LASTWORD_PROVIDERS__MAIN__STALL_TIMEOUT_S": "30"} | more,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def said(process: asyncio.subprocess.Process) -> tuple[int | None, str, str]:
    """Exit code, standard output and standard error, once it has ended."""
    out, err = await asyncio.wait_for(process.communicate(), WITHIN_S)
    return process.returncode, out.decode(), err.decode()


async def asked(folder: Path, words: str) -> None:
    """Wait until the provider was asked for an answer to `words`."""

    async def look() -> bool:
        return words in (folder / "transcript.jsonl").read_text(encoding="utf-8")

    await eventually(look, bool, f"{words!r} to reach the provider")


def address(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "data" / "server.json").read_text(encoding="utf-8"))
    return found


@pytest.mark.requirement("console:run:side-by-side")
async def test_a_run_that_joined_another_ones_server_completes_after_it(tmp_path: Path) -> None:
    """Each waits in a tool, until it is let through: the first one ends while the second uses its server."""
    gates = {name: tmp_path / f"{name} may go on" for name in ("first", "second")}

    def gated(base_url: str, name: str) -> contextlib.AbstractAsyncContextManager[asyncio.subprocess.Process]:
        more = {
            "GATE": str(gates[name]),
            "LASTWORD_AGENTS__DEFAULT__TOOLS": '["gate"]',
            "PYTHONPATH": os.pathsep.join((str(INSTALLED.parents[2]), str(INSTALLED))),
        }
        return running(base_url, tmp_path, name, **more)

    async with stand_in(GATED, tmp_path) as provider, gated(provider.base_url, "first") as first:
        await asked(tmp_path, "first")
        async with gated(provider.base_url, "second") as second:
            await asked(tmp_path, "second")
            gates["first"].touch()
            assert first.stderr is not None
            note = await asyncio.wait_for(first.stderr.readline(), WITHIN_S)
            gates["second"].touch()
            ends = await asyncio.gather(said(first), said(second))
    assert [(code, out) for code, out, _ in ends] == [(0, "First answer.\n"), (0, "Second answer.\n")]
    assert "another Lastword command uses the server" in note.decode()
    assert ends[1][2] == ""


@pytest.mark.requirement("console:run:lost-redis")
async def test_a_run_whose_redis_dies_ends_with_4_and_says_what_becomes_of_the_turn(tmp_path: Path) -> None:
    async with stand_in(SLOW, tmp_path) as provider, running(provider.base_url, tmp_path, "hello") as process:
        await asked(tmp_path, "hello")
        os.kill(address(tmp_path)["pid"], signal.SIGKILL)
        code, out, err = await said(process)
    assert (code, out) == (4, "")
    assert re.search(r"turn_[0-9a-f]{22} is kept", err)
    assert "Redis" in err
    assert "Traceback" not in err


@pytest.mark.requirement("console:run:interrupted")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
async def test_a_signal_hands_the_turn_over_and_says_so(tmp_path: Path, number: signal.Signals, code: int) -> None:
    async with stand_in(SLOW, tmp_path) as provider, running(provider.base_url, tmp_path, "hello") as process:
        await asked(tmp_path, "hello")
        process.send_signal(number)
        ended, out, err = await said(process)
    assert (ended, out) == (code, "")
    kept = re.search(r"(turn_[0-9a-f]{22}) is kept: the next turns process goes on with it", err)
    assert kept
    shown = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "channels", "turns", "show", kept[1], "--json"),
        env=environment("http://127.0.0.1:1/v1", tmp_path),
        stdout=asyncio.subprocess.PIPE,
    )
    told = json.loads((await shown.communicate())[0])
    assert (told["state"], told["outcome"]) == ("queued", None)
    assert "handoff" in json.dumps(told["outputs"]) or told["discards"] == 1


@pytest.mark.requirement("console:run:interrupted")
async def test_a_turn_that_is_not_to_be_handed_over_may_end_after_a_signal(tmp_path: Path) -> None:
    async with (
        stand_in(WAITING, tmp_path) as provider,
        running(provider.base_url, tmp_path, "first", LASTWORD_TURNS__ON_DRAIN="fail") as process,
    ):
        await asked(tmp_path, "first")
        process.send_signal(signal.SIGINT)
        code, out, err = await said(process)
    assert (code, out, err) == (0, "First answer.\n", "")


@pytest.mark.requirement("console:terminal:no-control")
@pytest.mark.parametrize("kind", ["terminal", "pipe"])
async def test_control_characters_of_a_model_reach_a_pipe_but_no_terminal(tmp_path: Path, kind: str) -> None:
    evil = "[[calls]]\nsteps = [ { text = 'A\\u001b[2JB\\u009bC\\rD\\tE\\nF\\u0007' } ]\n".replace("'", '"').replace(
        "\\\\", "\\"
    )
    if kind == "pipe":
        code, out, _ = await run(evil, tmp_path)
        assert (code, out) == (0, "A\x1b[2JB\x9bC\rD\tE\nF\x07\n")
        return
    async with stand_in(evil, tmp_path) as provider:
        ours, theirs = pty.openpty()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "channels", "run", "hello"),
            env=environment(provider.base_url, tmp_path),
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        shown = await asyncio.wait_for(asyncio.to_thread(_read_all, ours), WITHIN_S)
        await process.wait()
    assert "A␛[2JB\ufffdC␍D" in shown
    assert "E\r\nF␇" in shown
    assert "\x1b[2J" not in shown


def _read_all(terminal: int) -> str:
    data = b""
    try:
        while piece := os.read(terminal, 65536):
            data += piece
    except OSError:  # the other side is closed
        pass
    finally:
        os.close(terminal)
    return data.decode()


@pytest.mark.requirement("console:run:always-ends")
def test_what_does_not_let_itself_be_cancelled_is_left_behind() -> None:
    """A tool may swallow its cancellation; the command ends all the same."""
    may_end = threading.Event()

    async def stubborn() -> None:
        while not may_end.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)

    kept: list[asyncio.Task[None]] = []

    async def turn() -> int:
        kept.append(asyncio.ensure_future(stubborn()))
        await asyncio.sleep(0)
        return 3

    assert to_its_end(turn()) == (3, True)
    loop = kept[0].get_loop()
    may_end.set()
    loop.run_until_complete(asyncio.wait(kept))
    loop.close()

    async def plain() -> int:
        return 0

    assert to_its_end(plain()) == (0, False)
