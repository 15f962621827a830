"""Processes of suspects that come up late, or never, beside a turns process that is less patient than the product."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from time import monotonic

import pytest

from tests.process.scene import gone, record_of
from tests.process.scene import settings as settings_text
from tests.support.stack import Stack, eventually, stand_in
from worker import ids
from worker.engine import suspects
from worker.process_sections import ProcessSettings
from worker.store import keys, lease
from worker.store.lease import claim
from worker.wiring import TurnProcess

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]

BOOT = Path(__file__).parent / "slow_boot"
SCRIPT = """
after_last = "last"

[[calls]]
steps = [ { text = "Here." } ]
"""
RESERVED_S = 0.6
"""How long a suspect is reserved here; the product has 15 s."""

ENDED_S = 60.0


class House:
    """A turns process in this one, and the processes that it starts."""

    def __init__(self, stack: Stack, folder: Path) -> None:
        self.stack = stack
        self.gate, self._boots = folder / "gate", folder / "boots"
        self._boots.touch()

    async def suspect(self, session: str) -> str:
        """A turn of which two drivers have vanished: in its record, which is all that is known of them."""
        submitted = await self.stack.submit("Look.", session=session)
        grant = await claim(self.stack.client, session, ids.new_nonce(), 2.0, 1)
        assert grant is not None
        await self.stack.client.hset(keys.turn_record(submitted), mapping={"crashes": 1, "lease_ms": 1})
        await self.stack.client.zadd(keys.due(0), {keys.DUE_LEASE + session: 1})
        return submitted

    async def booted(self) -> list[int]:
        """The processes that have begun to come up, by number."""
        return [int(line) for line in self._boots.read_text(encoding="utf-8").split()]

    async def boot(self, number: int) -> int:
        """The so-many-th process that begins to come up."""
        seen = await eventually(self.booted, lambda pids: len(pids) >= number, f"the start of process {number}")
        return seen[number - 1]

    async def sealed(self, turn: str) -> None:
        async def look() -> str:
            return (await record_of(self.stack, turn)).state

        await eventually(look, lambda state: state == "sealed", f"the end of {turn}", ENDED_S)


@pytest.fixture
async def house(tmp_path: Path, real_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[House]:
    async with stand_in(SCRIPT, tmp_path) as provider, Stack(tmp_path, real_url) as stack:
        stack.configure(settings_text(provider.base_url))
        house = House(stack, tmp_path)
        environment = {"PYTHONPATH": os.pathsep.join([str(BOOT), stack.environment["PYTHONPATH"]])}
        environment |= {"GATE": str(house.gate), "BOOTS": str(tmp_path / "boots")}
        for name, value in ({**stack.environment, **environment}).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(lease, "RESERVE_MS", round(RESERVED_S * 1000))
        monkeypatch.setattr(suspects, "_RESERVE_AGAIN_S", RESERVED_S / 4)
        yield house


@contextlib.asynccontextmanager
async def running(house: House, room: int = 1) -> AsyncIterator[TurnProcess]:
    settings = house.stack.settings.model_copy(update={"processes": ProcessSettings(suspects=room)})
    loop = asyncio.get_running_loop()
    looking: set[asyncio.Task[None]] = set()

    def look(session: str) -> None:
        looking.add(loop.create_task(process.run_session(session)))

    def wake(session: str) -> None:
        loop.call_soon_threadsafe(look, session)

    process = TurnProcess(settings, wake)
    await process.start()
    try:
        yield process
    finally:
        await process.stop()
        await asyncio.gather(*looking)


@pytest.mark.requirement("survive:suspect:slow")
@pytest.mark.parametrize("where", ["before its first line", "on its loop"])
async def test_a_process_that_is_slow_to_come_up_is_started_once_and_has_its_turn(
    house: House, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """It takes several times as long as the turn is reserved at a time, and on its loop longer than a lease."""
    if where == "on its loop":
        monkeypatch.setenv("ON_LOOP", "1")
    turn = await house.suspect("room/1")
    async with running(house) as process:
        await house.boot(1)
        began = monotonic()

        async def look() -> float:
            return monotonic() - began

        await eventually(look, lambda passed_s: passed_s > 7 * RESERVED_S, "the time of seven reservations")
        house.gate.touch()
        await house.sealed(turn)
        assert len(await house.booted()) == 1
        record = await record_of(house.stack, turn)
        assert (record.outcome, record.crashes, record.suspect_crashes) == ("completed", 2, 0)
        await eventually(lambda: _count(process), lambda turns: turns == 0, "the end of the process")


@pytest.mark.requirement("survive:suspect:slow")
@pytest.mark.parametrize("room", [1, 2])
async def test_a_slow_process_is_not_killed_though_its_turn_is_said_to_be_a_suspect_again(
    house: House, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, room: int
) -> None:
    """As after an outage in which the turn could not be kept for it."""
    monkeypatch.setattr(suspects, "_RESERVE_AGAIN_S", 60.0)
    turn = await house.suspect("room/1")
    async with running(house, room):
        await house.boot(1)

        async def told_again() -> bool:
            """With room the claim reserves it, without it waits."""
            if room == 1:
                return caplog.messages.count("turn_suspected") > 1
            return int(await house.stack.client.hget(keys.turn_record(turn), "reserved_ms") or 0) > first_ms

        first_ms = int(await house.stack.client.hget(keys.turn_record(turn), "reserved_ms") or 0)
        await eventually(told_again, bool, "the turn to be a suspect again")
        house.gate.touch()
        await house.sealed(turn)
        assert len(await house.booted()) == 1
    assert (await record_of(house.stack, turn)).suspect_crashes == 0


@pytest.mark.requirement("survive:suspect:never-up")
@pytest.mark.parametrize("is_stopped", [False, True])
async def test_a_process_that_never_comes_up_is_ended_and_leaves_its_room(
    house: House, monkeypatch: pytest.MonkeyPatch, is_stopped: bool
) -> None:
    monkeypatch.setattr(suspects, "COMES_UP_WITHIN_S", 2.0)
    monkeypatch.setattr(suspects, "_TERM_S", 0.5)
    turns = [await house.suspect(session) for session in ("room/1", "room/2")]
    async with running(house):
        first = await house.boot(1)
        if is_stopped:
            os.kill(first, signal.SIGSTOP)
        await gone(first)
        await house.boot(2)
        monkeypatch.setattr(suspects, "COMES_UP_WITHIN_S", 60.0)
        house.gate.touch()
        for turn in turns:
            await house.sealed(turn)
    records = [await record_of(house.stack, turn) for turn in turns]
    assert [(record.outcome, record.suspect_crashes) for record in records] == [("completed", 0)] * 2


async def _count(process: TurnProcess) -> int:
    return process.turns
