"""Messages that wait for a busy session are in no process's memory: none is lost, and they are taken in their order."""

import signal
from functools import partial
from pathlib import Path

import pytest
import redis
import redis.asyncio

from channels.embedded import EmbeddedServer
from tests.survive.mortal import Asked, Drains, Place, Silence, Step
from tests.survive.scenarios import Scenario, says
from tests.survive.stores import Store
from tests.survive.story import Story
from worker.codecs.events import TextDelta
from worker.store import keys

MESSAGES = ("First.", "Second.", "Third.")
CRASH: list[Place | None] = [("after StageText", 1)]


def _answers(asked: Asked, *, drains: bool) -> list[Step]:
    if drains and asked.message == MESSAGES[0] and asked.nth == 1:
        return [TextDelta("Half a sen"), Drains(), Silence()]
    return says(f"To this: {asked.message}")


@pytest.mark.process
@pytest.mark.requirement("turn:trap-t13:durable-inbox")
@pytest.mark.parametrize("end", ["crash", "drain"])
async def test_messages_to_a_busy_session_outlive_its_process_and_the_server(tmp_path: Path, end: str) -> None:
    """The server is killed the moment the last message is acknowledged and its process is gone."""
    scenario = Scenario("busy", partial(_answers, drains=end == "drain"), MESSAGES)
    server = EmbeddedServer(tmp_path / "data")
    server.start()
    try:
        with redis.Redis.from_url(server.url) as client:
            busy = Story(Store(partial(redis.asyncio.Redis.from_url, server.url), client), scenario, [])
            turns = await busy.begun()
            busy.deaths = CRASH if end == "crash" else [None, ("claim: not sent", 1)]
            await busy.driven(turns, to_the_last_death=True)
            assert [await busy.client.hget(keys.turn_record(turn), "state") for turn in turns] == [
                b"running" if end == "crash" else b"queued",
                b"queued",
                b"queued",
            ]
            await busy.client.aclose()
        assert server._process is not None
        server._process.send_signal(signal.SIGKILL)
        server.stop()
        server = EmbeddedServer(tmp_path / "data")
        server.start()
        with redis.Redis.from_url(server.url) as client:
            later = Story(Store(partial(redis.asyncio.Redis.from_url, server.url), client), scenario, [])
            later.provider = busy.provider
            await later.lapse(turns)
            await later.driven(turns)
            sealed = await later.client.lrange(keys.history(0, later.session), 0, -1)
            ending = await later.ended(turns)
    finally:
        server.stop()
    assert [turn.text for turn in ending.turns] == [f"To this: {message}" for message in MESSAGES]
    assert [turn.decode() for turn in sealed] == turns
    assert sorted(turn for turn, _, _ in ending.sent) == sorted(turns)
    answered = [asked.message for asked in ending.asked]
    assert sorted(set(answered), key=answered.index) == list(MESSAGES)
