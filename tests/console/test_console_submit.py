import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from channels.console import exits
from channels.console.run import FOLLOW_BLOCK_S
from channels.console.submit import labels_of
from channels.settings import Settings
from tests.support.stack import stand_in
from worker import api
from worker.errors import ConfigurationError
from worker.store import connect
from worker.wiring import TurnProcess

Lastword = Callable[..., Any]
pytestmark = pytest.mark.usefixtures("provider")


@pytest.fixture
def store(real_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("LASTWORD_REDIS_URL", real_url)
    return real_url


@pytest.mark.requirement("console:submit:durable")
def test_a_submitted_turn_can_be_shown_and_wakes_a_worker(lastword: Lastword, store: str) -> None:
    ran = lastword("submit", "hello", "--to", "https://example.com/hook", "--label", "job=42", "--json")
    assert ran.code == exits.OK
    told = json.loads(ran.out)
    shown = lastword("turns", "show", told["turn"], "--json")
    assert shown.code == exits.UNDECIDED
    head = json.loads(shown.out)
    assert (head["state"], head["labels"], head["destinations"]) == (
        "queued",
        {"job": "42"},
        ["https://example.com/hook"],
    )
    with redis.Redis.from_url(store) as client:
        assert client.llen("turns") == 1


def test_without_json_the_answer_is_the_id_alone(lastword: Lastword, store: str) -> None:
    ran = lastword("submit", "hello")
    assert lastword("turns", "show", ran.out.strip()).code == exits.UNDECIDED
    assert store


@pytest.mark.requirement("console:submit:idempotent")
def test_the_same_key_gives_the_same_turn_and_another_message_is_refused(lastword: Lastword, store: str) -> None:
    first, again = (json.loads(lastword("submit", "a", "--idempotency-key", "k", "--json").out) for _ in range(2))
    assert (first["duplicate"], again["duplicate"]) == (False, True)
    assert first["turn"] == again["turn"]
    other = lastword("submit", "b", "--idempotency-key", "k")
    assert other.code == exits.USAGE
    assert first["turn"] in other.err
    assert store


def test_a_wait_that_is_over_ends_with_5(lastword: Lastword, store: str) -> None:
    ran = lastword("submit", "hello", "--wait", "0.05", "--json")
    assert ran.code == exits.UNDECIDED
    assert json.loads(ran.out)["outcome"] is None
    assert store


def test_without_a_server_the_turn_is_stored_and_says_that_it_waits(lastword: Lastword) -> None:
    ran = lastword("submit", "hello")
    assert ran.code == exits.OK
    assert "no `lastword up` runs" in ran.err
    assert lastword("turns", "show", ran.out.strip()).code == exits.UNDECIDED


@pytest.mark.requirement("console:submit:bad-input")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["hello", "--agent", "clerk"], "agents.clerk is not set"),
        (["hello", "--to", "ops"], "neither a URL nor an endpoint"),
        (["hello", "--to", "ftp://x/y"], "ftp"),
        (["hello", "--label", "job"], "--label 'job' has no '='"),
        (["hello", "--session", "a b"], "session"),
        ([" "], "prompt is empty"),
    ],
)
def test_a_wrong_argument_is_named_before_anything_is_stored(
    lastword: Lastword, store: str, arguments: list[str], words: str
) -> None:
    ran = lastword("submit", *arguments)
    assert ran.code == exits.USAGE
    assert words in ran.err
    with redis.Redis.from_url(store) as client:
        assert not [key for key in client.scan_iter() if b":turn:" in key]


def test_a_label_is_split_at_its_first_equals_sign() -> None:
    assert labels_of(["a=b=c", "d="]) == {"a": "b=c", "d": ""}
    with pytest.raises(ConfigurationError, match="given twice"):
        labels_of(["a=1", "a=2"])


def test_a_turn_that_nobody_knows_is_named(lastword: Lastword, store: str) -> None:
    ran = lastword("turns", "show", "turn_00" + "0" * 20)
    assert ran.code == exits.USAGE
    assert "is not known" in ran.err
    assert lastword("turns", "show", "42").code == exits.USAGE
    assert store


FAILED = "[[calls]]\nstatus = 401\n"


async def _failed_turn(url: str, folder: Path) -> str:
    """Submit with a key, and have the turn fail."""
    async with stand_in(FAILED, folder) as provider:
        settings = Settings.model_validate(
            {"redis_url": url, "providers": {"main": {"base_url": provider.base_url, "model": "m"}}}
        )
        client = connect.open_redis(url, block_s=FOLLOW_BLOCK_S)
        process = TurnProcess(settings)
        await process.start()
        submitted = await api.submit(
            settings, client, prompt="hello", source="cli", wake=lambda _: None, idempotency_key="k"
        )
        await process.run_session(submitted.session)
        await process.stop()
        await client.aclose()
        return submitted.turn


@pytest.mark.requirement("console:submit:failed")
def test_a_turn_that_failed_tells_its_error(lastword: Lastword, store: str, tmp_path: Path) -> None:
    turn = asyncio.run(_failed_turn(store, tmp_path))
    ran = lastword("submit", "hello", "--idempotency-key", "k", "--wait", "5")
    assert ran.code == exits.FAILED
    assert ran.out == f"{turn} failed\n"
    assert re.search(r"^error: .*providers.main.api_key.* \[\w+, reference [0-9a-f]{8}\]$", ran.err, re.MULTILINE)
    told = json.loads(lastword("submit", "hello", "--idempotency-key", "k", "--wait", "5", "--json").out)
    assert told["outcome"] == "failed"
    assert set(told["error"]) == {"category", "code", "message", "correlation_id"}
    assert "providers.main.api_key" in told["error"]["message"]
