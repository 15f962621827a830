"""How soon a dead process is missed, and that a store which was away kills nobody. Leases are those of the default."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from time import monotonic

import pytest

from channels.embedded import EmbeddedServer
from tests.support.forwarder import Forwarder
from tests.support.stack import Process, Stack, eventually, stand_in
from worker import ids
from worker.app import make_app, wake_session
from worker.output.events import TextDeltaOutput, TextStreamDiscardedOutput
from worker.store import connect, lease
from worker.store.records import read_turn

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]

SOON_S = 15.0
OUTAGE_S = 10.0
"""Longer than a lease, shorter than two."""

SCRIPT = """
after_last = "last"

[[calls]]
steps = [ { text = "An answer that takes its time, so that much can happen meanwhile.", pieces = 66, every_s = 0.4 } ]
"""


def settings(base_url: str) -> str:
    return f'[providers.main]\nbase_url = "{base_url}"\nmodel = "stand-in"\n'


async def driver_of(workers: list[Process], turn: str) -> Process:
    """The one whose death the turn would feel: it has said so, or else it is the only one."""

    async def look() -> list[Process]:
        return [each for each in workers if any(line.get("turn") == turn for line in each.lines())]

    return (await eventually(look, bool, f"a worker that drives {turn}"))[0]


@pytest.mark.requirement("survive:kill:soon")
@pytest.mark.parametrize("who", ["a neighbour", "its successor"])
async def test_a_reader_sees_text_again_within_15_s_of_a_kill(tmp_path: Path, real_url: str, who: str) -> None:
    """The turn goes on in a process that was there before, or in the one that a supervisor starts in its place."""
    async with stand_in(SCRIPT, tmp_path) as provider, Stack(tmp_path, real_url) as stack:
        stack.configure(settings(provider.base_url))
        stack.start("delivery")
        dying = stack.start("turns")
        turn = await stack.submit("When?", watch_s=120)
        await stack.until(turn, lambda output: isinstance(output, TextDeltaOutput))
        if who == "a neighbour":
            await stack.logged(stack.start("turns"), "turns_process_started")
        dying.kill()
        killed = monotonic()
        if who == "its successor":
            stack.start("turns")
        discarded = False
        async for output in stack.outputs(turn):
            discarded = discarded or isinstance(output, TextStreamDiscardedOutput)
            if discarded and isinstance(output, TextDeltaOutput):
                break
        took_s = monotonic() - killed
        record = await read_turn(stack.client, turn)
        assert record is not None
    assert took_s < SOON_S
    assert record.crashes == 1


@contextlib.asynccontextmanager
async def frozen(server: EmbeddedServer) -> AsyncIterator[None]:
    """The server stands still, and what it is sent waits for it."""
    os.kill(server_pid(server), signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server_pid(server), signal.SIGCONT)


def server_pid(server: EmbeddedServer) -> int:
    assert server._process is not None
    return server._process.pid


TURNS = 12


@pytest.mark.requirement("survive:redis:no-takeover")
async def test_a_store_that_stood_still_for_longer_than_a_lease_takes_no_turn_from_anybody(tmp_path: Path) -> None:
    """Renewals, wake-ups and claims of someone who knows of no outage wait in its sockets, and race when it goes on."""
    server = EmbeddedServer(tmp_path / "valkey", fsync="everysec")
    server.start()
    try:
        async with stand_in(SCRIPT, tmp_path) as provider, Stack(tmp_path, server.url) as stack:
            stack.configure(settings(provider.base_url))
            workers = [stack.start("turns") for _ in range(2)]
            for worker in workers:
                await stack.logged(worker, "turns_process_started")
            await provoked(stack, provider.transcript.wait_for_request, lambda: frozen(server))
            assert len(provider.transcript.exchanges) == TURNS
    finally:
        server.stop()


@pytest.mark.requirement("survive:redis:no-takeover")
async def test_a_store_that_was_cut_off_for_longer_than_a_lease_takes_no_turn_from_anybody(
    tmp_path: Path, real_url: str
) -> None:
    port = int(real_url.rsplit(":", 1)[1].split("/", maxsplit=1)[0])
    async with stand_in(SCRIPT, tmp_path) as provider, Forwarder(port) as network:
        through = real_url.replace(f":{port}", f":{network.port}")
        async with Stack(tmp_path, real_url) as stack:
            stack.configure(settings(provider.base_url))
            workers = [stack.start("turns", environment={"LASTWORD_REDIS_URL": through}) for _ in range(2)]
            for worker in workers:
                await stack.logged(worker, "turns_process_started")
            await provoked(stack, provider.transcript.wait_for_request, network.away, through)
            assert len(provider.transcript.exchanges) == TURNS


async def provoked(
    stack: Stack,
    request: Callable[[int, float], Awaitable[object]],
    outage: Callable[[], contextlib.AbstractAsyncContextManager[None]],
    through: str | None = None,
) -> None:
    """Let many turns run through an outage, and everybody who might take them try to; nobody must."""
    sessions = [ids.new_session() for _ in range(TURNS)]
    turns = [await stack.submit(f"When? {session}", session=session) for session in sessions]
    await request(TURNS, 30)
    app = make_app(stack.settings, concurrency=1)
    patient = connect.open_redis(through or stack.url, block_s=60)
    claims: list[asyncio.Task[lease.Grant | None]] = []
    for session in sessions:
        wake_session(app, session)
    async with outage():
        started = monotonic()
        fresh = stack.start("turns", environment={"LASTWORD_REDIS_URL": through} if through else None)
        if through is None:
            loop = asyncio.get_running_loop()
            claims = [
                loop.create_task(lease.claim(patient, session, ids.new_nonce(), stack.settings.lease.ttl_s, 1))
                for session in sessions
            ]
        await asyncio.sleep(max(0.0, OUTAGE_S - (monotonic() - started)))
    assert await asyncio.gather(*claims) == [None] * len(claims)
    for session in sessions:
        wake_session(app, session)
    for turn in turns:
        await stack.ended(turn, within_s=90)
        record = await read_turn(stack.client, turn)
        assert record is not None
        assert (record.outcome, record.crashes, record.discards) == ("completed", 0, 0)
    await stack.logged(fresh, "turns_process_started")
    assert not [
        line
        for process in stack.processes
        for line in process.lines()
        if line["event"] in ("turn_taken_over", "turn_lost")
    ]
    await patient.aclose()
