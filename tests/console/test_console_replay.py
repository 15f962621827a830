"""`lastword turns replay`."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
import redis
import redis.asyncio

from channels.console import exits
from worker import ids
from worker.settings import WorkerSettings
from worker.store.accumulator import ExecutionOutputAccumulator
from worker.store.inbox import NewTurn, ensure_meta, submit
from worker.store.lease import claim
from worker.turn.commands import Failure
from worker.turn.usage import NO_USAGE

Lastword = Callable[..., Any]


async def _prepare(url: str, destination: str) -> str:
    assert WorkerSettings().partitions == 1
    client = redis.asyncio.Redis.from_url(url)
    await ensure_meta(client, 1)
    turn = ids.new_turn(0)
    new = NewTurn(turn, "chat/1", "Who is due?", "default", "cli", {}, (destination,), None, deadline_s=60)
    await submit(client, new, 1)
    grant = await claim(client, "chat/1", ids.new_nonce(), 8, 1)
    assert grant is not None
    accumulator = ExecutionOutputAccumulator(client, grant, lambda: True)
    await accumulator.seal("dead", None, Failure("internal", "crash_cap", "It died."), "c", NO_USAGE, [])
    await client.aclose()
    return turn


@pytest.fixture
def dead(real_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The id of a dead turn."""
    monkeypatch.setenv("LASTWORD_REDIS_URL", real_url)
    return asyncio.run(_prepare(real_url, "https://example.com/hook"))


@pytest.mark.usefixtures("provider")
@pytest.mark.requirement("console:turns:replay")
def test_a_dead_turn_is_asked_anew_once_and_its_replay_says_of_which(
    lastword: Lastword, dead: str, real_url: str
) -> None:
    ran = lastword("turns", "replay", dead)
    assert ran.code == exits.OK
    fresh = ran.out.strip()
    with redis.Redis.from_url(real_url) as client:
        assert client.llen("turns") == 1, "a turns process is woken"
    again = lastword("turns", "replay", dead, "--json")
    assert json.loads(again.out) == {"replay_of": dead, "turn": fresh, "session": "chat/1", "duplicate": True}
    assert "was replayed before" in lastword("turns", "replay", dead).err
    shown = json.loads(lastword("turns", "show", fresh, "--json").out)
    assert (shown["state"], shown["replay_of"]) == ("queued", dead)
    refused = lastword("turns", "replay", fresh)
    assert refused.code == exits.USAGE
    assert "only a turn that has ended can be replayed" in refused.err


@pytest.mark.usefixtures("provider")
@pytest.mark.requirement("console:turns:replay")
def test_a_turn_whose_receiver_is_no_longer_known_is_not_asked_anew(
    lastword: Lastword, real_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LASTWORD_REDIS_URL", real_url)
    turn = asyncio.run(_prepare(real_url, "billing"))
    ran = lastword("turns", "replay", turn)
    assert ran.code == exits.USAGE
    assert "billing" in ran.err
