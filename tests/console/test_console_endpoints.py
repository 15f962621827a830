"""`lastword endpoints`."""

import asyncio
import getpass
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
from standardwebhooks import Webhook

from channels.console import exits
from channels.console.durations import seconds_of
from channels.console.terminal import time_of
from channels.delivery.lane import OPEN_AFTER
from channels.delivery.model import Failed, Outcome
from tests.console.conftest import Lastword
from tests.delivery.outboxes import BUSY, insert, made, tried
from worker.store import keys

URL = "https://hooks.example/hush/path?token=hush"


pytestmark = pytest.mark.usefixtures("provider")


@pytest.fixture(autouse=True)
def _on_the_server(monkeypatch: pytest.MonkeyPatch, real_url: str) -> None:
    monkeypatch.setenv("LASTWORD_REDIS_URL", real_url)
    monkeypatch.setenv("LASTWORD_ENDPOINTS__OPS__URL", "https://ops.example/hush")


def shown(lastword: Lastword, name: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(lastword("endpoints", "show", name, "--json").out)
    return told


@pytest.mark.requirement("endpoints:console:create")
def test_an_endpoint_is_made_and_its_secret_printed_alone(lastword: Lastword, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("Bearer hush\n")
    ran = lastword(
        *("endpoints", "create", "crm", "--url", URL, "--event", "turn.*", "--event", "call.completed"),
        *("--source", "crm/*", "--label", "team=ops", "--header", "Authorization=@token"),
        *("--set", "timeout_s=7", "--set", "retry_waits_s=[1, 2]", "--set", "order=session", "--set", "ca_file=ca.pem"),
    )
    assert ran.code == exits.OK
    secret = ran.out.strip()
    Webhook(secret)
    seen = shown(lastword, "crm")
    assert (seen["url"], seen["events"], seen["source"]) == (
        "https://hooks.example/...",
        ["turn.*", "call.completed"],
        ["crm/*"],
    )
    assert (seen["labels"], seen["headers"]) == ({"team": "ops"}, ["Authorization"])
    assert (seen["timeout_s"], seen["retry_waits_s"], seen["order"]) == (7, [1, 2], "session")
    assert seen["ca_file"] == str(tmp_path / "ca.pem")
    assert lastword("endpoints", "secret", "crm").out.strip() == secret
    for told in (ran.out + ran.err, *[lastword("endpoints", *words).out for words in (["list"], ["show", "crm"])]):
        assert "hush" not in told
    assert secret not in lastword("endpoints", "list", "--json").out + lastword("endpoints", "show", "crm").out


@pytest.mark.requirement("endpoints:console:create")
def test_a_secret_of_ones_own_is_read_from_a_file(lastword: Lastword, tmp_path: Path) -> None:
    made = json.loads(lastword("endpoints", "create", "a", "--url", URL, "--scheme", "v1a", "--json").out)
    assert made["public_key"].startswith("whpk_")
    (tmp_path / "own").write_text(made["secret"] + "\n")
    ran = lastword("endpoints", "create", "b", "--url", URL, "--secret-file", "own")
    assert ran.out.strip() == made["secret"]
    assert made["public_key"] in ran.err


@pytest.mark.requirement("endpoints:console:refused")
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["create", "Crm", "--url", URL], "name 'Crm'"),
        (["create", "ops", "--url", URL], "in the settings; take another"),
        (["create", "crm", "--url", "ftp://host/hush"], "url"),
        (["create", "crm", "--url", URL, "--event", "turn.complete"], "did you mean 'turn.completed'"),
        (["create", "crm", "--url", URL, "--set", "timout_s=hush"], "did you mean 'timeout_s'"),
        (
            ["update", "ops", "--unset", "timout_s"],
            "--unset 'timout_s': there is no such field; did you mean 'timeout_s'",
        ),
        (["create", "crm", "--url", URL, "--set", "timeout_s=hush"], "timeout_s: Input should be a valid number"),
        (["create", "crm", "--url", URL, "--set", "proxy=http://u:hush@p:1"], "proxy: it names a user or a password"),
        (["create", "crm", "--url", URL, "--set", "burst=2"], "burst is set, but there is no rate"),
        (["create", "crm", "--url", URL, "--header", "webhook-id=hush"], "webhook-id is set by the signature"),
        (["create", "crm", "--url", URL, "--header", "X-Team"], "--header 'X-Team' has no '='"),
        (["create", "crm", "--url", URL, "--header", "X-Team=@nowhere"], "'nowhere' cannot be read"),
        (["create", "crm", "--url", URL, "--secret-file", "nowhere"], "--secret-file: 'nowhere' cannot be read"),
        (["update", "ops", "--url", URL], "change [endpoints.ops] of lastword.toml"),
        (["rotate", "ops"], "stands in the settings"),
        (["secret", "ops"], "stands in the settings"),
        (["delete", "ops"], "stands in the settings"),
        (["show", "crm"], "name 'crm': there is no endpoint of that name"),
        (["pause", "crm"], "name 'crm': there is no endpoint of that name"),
        (["test", "crm"], "name 'crm': there is no endpoint of that name"),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_fix_and_nothing_secret(
    lastword: Lastword, words: list[str], told: str
) -> None:
    ran = lastword("endpoints", *words)
    assert ran.code == exits.USAGE
    assert told in ran.err
    assert "hush" not in ran.out + ran.err


@pytest.mark.requirement("endpoints:console:update")
def test_a_change_leaves_what_is_not_given(lastword: Lastword) -> None:
    lastword("endpoints", "create", "crm", "--url", URL, "--event", "turn.*", "--set", "timeout_s=7")
    before = shown(lastword, "crm")
    ran = lastword("endpoints", "update", "crm", "--url", "https://new.example", "--unset", "timeout_s", "--json")
    assert ran.code == exits.OK
    after = shown(lastword, "crm")
    assert (after["url"], after["timeout_s"], after["events"]) == ("https://new.example", None, ["turn.*"])
    stale = lastword("endpoints", "update", "crm", "--set", "payload=thin", "--version", str(before["version"]))
    assert (stale.code, "it was changed since" in stale.err) == (exits.USAGE, True)
    assert lastword("endpoints", "delete", "crm", "--version", str(after["version"])).code == exits.OK
    assert lastword("endpoints", "show", "crm").code == exits.USAGE


@pytest.mark.requirement("endpoints:console:update")
def test_headers_are_taken_back(lastword: Lastword) -> None:
    lastword("endpoints", "create", "crm", "--url", URL, "--header", "Authorization=Bearer hush")
    refused = lastword("endpoints", "update", "crm", "--url", "https://new.example")
    assert (refused.code, "give those for https://new.example with it" in refused.err) == (exits.USAGE, True)
    moved = ("--url", "https://new.example", "--unset", "headers")
    assert lastword("endpoints", "update", "crm", *moved).code == exits.OK
    assert shown(lastword, "crm")["headers"] == []


@pytest.mark.requirement("endpoints:console:rotate")
def test_a_rotation_prints_the_new_secret_and_the_old_one_signs_on(lastword: Lastword) -> None:
    old = lastword("endpoints", "create", "crm", "--url", URL).out.strip()
    new = lastword("endpoints", "rotate", "crm", "--overlap", "3600").out.strip()
    told = lastword("endpoints", "secret", "crm")
    assert told.out == f"{new}\n{old}\n"
    assert "number 2 signs until 20" in told.err
    assert old not in told.err
    last = json.loads(lastword("endpoints", "rotate", "crm", "--overlap", "0", "--json").out)
    assert [key["until_ms"] for key in last["keys"]] == [None]
    assert lastword("endpoints", "secret", "crm").out.strip() == last["secret"]


@pytest.mark.requirement("endpoints:console:rotate")
def test_the_secrets_of_an_endpoint_are_what_webhook_verify_reads(lastword: Lastword, tmp_path: Path) -> None:
    old = lastword("endpoints", "create", "crm", "--url", URL).out.strip()
    lastword("endpoints", "rotate", "crm", "--overlap", "3600")
    secrets, body, headers = (tmp_path / name for name in ("secrets", "body", "headers"))
    secrets.write_text(lastword("endpoints", "secret", "crm").out)
    body.write_bytes(b"{}")
    now = datetime.now(UTC)  # noqa: TID251 - the command compares it with its own clock
    signature = Webhook(old).sign("msg_1", now, "{}")
    headers.write_text(
        f"webhook-id: msg_1\nwebhook-timestamp: {int(now.timestamp())}\nwebhook-signature: {signature}\n"
    )
    ran = lastword("webhook", "verify", str(body), "--headers", str(headers), "--secret-file", str(secrets))
    assert (ran.code, "of the secrets number 2" in ran.out) == (exits.OK, True), ran.err


@pytest.mark.requirement("endpoints:console:overlap")
@pytest.mark.parametrize(
    ("written", "seconds"),
    [("0", 0), ("3600", 3600), ("90s", 90), ("30m", 1800), ("2h", 7200), ("2d", 172_800), ("7d", 604_800)],
)
def test_a_time_to_overlap_is_written_with_its_unit_or_in_seconds(written: str, seconds: int) -> None:
    assert seconds_of("--overlap", written, most_s=604_800) == seconds


@pytest.mark.requirement("endpoints:console:overlap")
@pytest.mark.parametrize("written", ["", "d", "-1", "1.5h", "2w", "2 d", "2D", "8d", "604801", "\u0661d", "9" * 10])
def test_a_time_that_is_none_or_too_long_is_refused_with_its_form(lastword: Lastword, written: str) -> None:
    old = lastword("endpoints", "create", "crm", "--url", URL).out.strip()
    ran = lastword("endpoints", "rotate", "crm", f"--overlap={written}")
    assert ran.code == exits.USAGE
    assert "--overlap" in ran.err
    assert ("7d at most" if written in ("8d", "604801") else "as in 90s or 2d") in ran.err
    assert lastword("endpoints", "secret", "crm").out.strip() == old


@pytest.mark.requirement("endpoints:console:overlap")
def test_the_old_secret_signs_for_as_long_as_was_written(lastword: Lastword) -> None:
    lastword("endpoints", "create", "crm", "--url", URL)
    ends = []
    for written in ("2d", "1d"):
        last = json.loads(lastword("endpoints", "rotate", "crm", "--overlap", written, "--json").out)
        ends.append(last["keys"][1]["until_ms"])
    assert abs(ends[0] - ends[1] - 86_400_000) < 60_000


@pytest.mark.requirement("endpoints:console:standing")
@pytest.mark.parametrize("name", ["crm", "ops"])
def test_an_endpoint_is_paused_disabled_and_sent_to_again(lastword: Lastword, name: str) -> None:
    lastword("endpoints", "create", "crm", "--url", URL)
    assert lastword("endpoints", "pause", name, "--why", "it moves house").out == f"{name} paused\n"
    assert shown(lastword, name)["standing"]["why"] == "it moves house"
    assert "it moves house" in lastword("endpoints", "show", name).out
    assert lastword("endpoints", "resume", name).out == f"{name} active\n"
    assert lastword("endpoints", "disable", name).out == f"{name} disabled\n"
    assert shown(lastword, name)["standing"]["why"].startswith("disabled by ")
    listed = [json.loads(line) for line in lastword("endpoints", "list", "--json").out.splitlines()]
    assert {one["name"]: one["standing"]["state"] for one in listed}[name] == "disabled"
    assert lastword("endpoints", "enable", name).out == f"{name} active\n"


@pytest.mark.requirement("endpoints:console:test")
def test_a_test_event_is_put_on_its_way(lastword: Lastword, real_url: str) -> None:
    event = json.loads(lastword("endpoints", "test", "ops", "--json").out)["event"]
    with redis.Redis.from_url(real_url) as client:
        entries: Any = client.xrange(keys.log(0))
    assert [(entry[b"event"].decode(), entry[b"to"]) for _, entry in entries] == [(event, b"ops")]


@pytest.mark.requirement("endpoints:console:list")
def test_endpoints_of_the_settings_and_of_the_store_are_one_list(lastword: Lastword) -> None:
    for name in ("zz", "aa"):
        lastword("endpoints", "create", name, "--url", URL)
    rows = [line.split()[:2] for line in lastword("endpoints", "list").out.splitlines()[1:]]
    assert rows == [
        ["aa", "store"],
        ["ops", "settings"],
        ["zz", "store"],
    ]


@pytest.mark.requirement("endpoints:console:reseal")
def test_stored_secrets_are_brought_under_the_first_master_key(
    lastword: Lastword, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    old, new = (lastword("vault", "key").out.strip() for _ in range(2))
    ring = tmp_path / "keys"
    monkeypatch.setenv("LASTWORD_VAULT__KEYS_FILE", str(ring))
    ring.write_text(old)
    secret = lastword("endpoints", "create", "crm", "--url", URL).out.strip()
    ring.write_text(f"{new}\n{old}\n")
    told = json.loads(lastword("vault", "reseal", "--json").out)
    assert told == {
        "key": new.partition(":")[0],
        "changed": 2,
        "total": 2,
        "left": 0,
        "idle_keys": [old.partition(":")[0]],
    }
    ring.write_text(new)
    assert lastword("endpoints", "secret", "crm").out.strip() == secret
    ring.write_text(old)
    ran = lastword("endpoints", "secret", "crm")
    assert (ran.code, "which is not in vault.keys_file" in ran.err) == (exits.USAGE, True)


@pytest.mark.requirement("endpoints:console:standing")
def test_who_has_a_user_id_without_a_name_pauses_and_resumes_too(
    lastword: Lastword, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container."""

    def nameless() -> str:
        raise KeyError("getpwuid(): uid not found: 1000")

    monkeypatch.setattr(getpass, "getuser", nameless)
    assert lastword("endpoints", "pause", "ops").out == "ops paused\n"
    assert json.loads(lastword("endpoints", "show", "ops", "--json").out)["standing"]["why"] == "paused by cli"
    assert lastword("endpoints", "resume", "ops").out == "ops active\n"


@pytest.mark.requirement("operating:release")
def test_a_resumed_endpoint_gets_what_it_held_and_an_enabled_one_if_it_is_asked_for(
    lastword: Lastword, real_url: str
) -> None:
    async def hold() -> None:
        client = redis.asyncio.Redis.from_url(real_url)
        await insert(client, [made(f"evt_{number}", "ops", state="held", due_ms=0) for number in range(3)])
        await client.aclose()

    asyncio.run(hold())
    lastword("endpoints", "pause", "ops")
    resumed = lastword("endpoints", "resume", "ops")
    assert "3 held deliveries are sent now: `lastword deliveries replays show rpl_" in resumed.err
    [job] = lastword("deliveries", "replays", "list", "--json").out.splitlines()
    assert (json.loads(job)["filters"]["destination"], json.loads(job)["filters"]["states"]) == ("ops", ["held"])
    lastword("endpoints", "disable", "ops")
    enabled = lastword("endpoints", "enable", "ops")
    assert "3 deliveries stay held: `lastword endpoints enable ops --replay` sends them, too" in enabled.err
    assert len(lastword("deliveries", "replays", "list", "--json").out.splitlines()) == 1
    assert "3 held deliveries are sent now" in lastword("endpoints", "enable", "ops", "--replay").err
    assert len(lastword("deliveries", "replays", "list", "--json").out.splitlines()) == 2


@pytest.mark.requirement("operating:failing")
def test_an_endpoint_that_fails_tells_since_when_and_when_it_is_tried_next(lastword: Lastword, real_url: str) -> None:
    asyncio.run(try_at(real_url, *[BUSY] * OPEN_AFTER))
    standing = shown(lastword, "ops")["standing"]
    assert (standing["state"], standing["failed"], standing["not_before_ms"]) == ("active", OPEN_AFTER, None)
    assert 0 < standing["failing_since_ms"] < standing["open_until_ms"]
    since, due = (time_of(standing[name]) for name in ("failing_since_ms", "open_until_ms"))
    words = f"active; failing since {since} ({OPEN_AFTER} attempts); next attempt due at {due}"
    for ran in (lastword("endpoints", "show", "ops"), lastword("endpoints", "list")):
        assert words in " ".join(ran.out.split())
    assert json.loads(lastword("endpoints", "list", "--json").out)["standing"] == standing
    lastword("endpoints", "pause", "ops", "--why", "it moves house")
    assert f": it moves house; failing since {since}" in lastword("endpoints", "show", "ops").out
    assert "next attempt" not in lastword("endpoints", "show", "ops").out


@pytest.mark.requirement("operating:failing")
def test_an_endpoint_that_asked_to_be_left_alone_tells_until_when(lastword: Lastword, real_url: str) -> None:
    asyncio.run(try_at(real_url, Failed("throttled", "http_429", "too many", "yes", retry_after=600.0)))
    until_ms = shown(lastword, "ops")["standing"]["not_before_ms"]
    words = f"active; its receiver asked to wait until {time_of(until_ms)}"
    for ran in (lastword("endpoints", "show", "ops"), lastword("endpoints", "list")):
        assert words in " ".join(ran.out.split())


async def try_at(url: str, *outcomes: Outcome) -> None:
    """Let attempts to `ops` end so."""
    client = redis.asyncio.Redis.from_url(url)
    await tried(client, *outcomes, destination="ops")
    await client.aclose()
