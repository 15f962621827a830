"""A loop that was busy past a deadline: what waits in the socket is heard first, on both kinds of loop."""

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import fakeredis
import pytest
import uvloop

from tests.store.turns import granted, outputs_of
from tests.support.chat_stream import DONE, chunk, text
from tests.support.egress import guard
from tests.support.turns import machine
from worker.codecs.messages import Request
from worker.codecs.openai_chat import ChatCodec
from worker.engine.driver import TurnDriver
from worker.engine.health import ProviderHealth
from worker.engine.stream import Endpoint, attempt_events
from worker.http import open_client
from worker.output.events import TextDeltaOutput, TextOutput, TextStreamDiscardedOutput
from worker.store.accumulator import ExecutionOutputAccumulator
from worker.store.health import HealthRules
from worker.turn.events import Event
from worker.turn.watchdog import WatchdogLimits

STALL_S = 0.4
PIECES = 60
EVERY_S = 0.04
LIMITS = WatchdogLimits(prefill_s=30, inter_delta_s=30, progress_s=30, stall_s=STALL_S)


@contextmanager
def provider() -> Iterator[str]:
    """Streams to each who asks, in a thread: no loop that is busy holds it up."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=_serve, args=(server,), daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}/v1"
        server.shutdown(socket.SHUT_RDWR)


def _serve(server: socket.socket) -> None:
    with server:
        while True:
            try:
                peer, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=_answer, args=(peer,), daemon=True).start()


def _answer(peer: socket.socket) -> None:
    with peer:
        peer.recv(65536)
        peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
        for number in range(PIECES):
            peer.sendall(text(f"{number} "))
            time.sleep(EVERY_S)
        peer.sendall(chunk(finish="stop") + DONE)


class Accumulator(ExecutionOutputAccumulator):
    """The real one, which keeps its process busy once text has come: the loop has just looked at its sockets then."""

    is_busy = False

    def stage_text(self, piece: str) -> None:
        super().stage_text(piece)
        if not self.is_busy:
            self.is_busy = True
            self._ours, theirs = socket.socketpair()
            asyncio.get_running_loop().add_reader(self._ours, self._be_busy)
            theirs.close()

    def _be_busy(self) -> None:
        asyncio.get_running_loop().remove_reader(self._ours)
        self._ours.close()
        time.sleep(3 * STALL_S)


async def driven(url: str) -> list[Any]:
    """The outputs of a turn whose loop is busy for three stall limits in mid-stream."""
    redis = fakeredis.FakeAsyncRedis(server=fakeredis.FakeServer(version=(7,)))
    grant = await granted(redis)
    accumulator = Accumulator(redis, grant, lambda: True)
    client, codec = open_client(connect_timeout_s=10, guard=guard()), ChatCodec()
    endpoint = Endpoint("main", url, None, {}, connect_timeout_s=10, finish_grace_s=1)

    def attempt(_provider: str, request: Request, call: int, number: int) -> AsyncIterator[list[Event]]:
        return attempt_events(client, endpoint, codec, request, call, number)

    driver = TurnDriver(
        grant,
        machine(deadline=time.monotonic() + 60, watchdog=LIMITS),
        accumulator,
        attempt,
        None,  # type: ignore[arg-type]  # no tools
        ProviderHealth("here", HealthRules(0, 60, 60), watching=False),
        lambda: True,
    )
    try:
        await driver.run()
        assert accumulator.is_busy
        return await outputs_of(redis, grant.turn)
    finally:
        await client.aclose()
        await redis.aclose()


@pytest.mark.requirement("watchdog:sockets-first")
@pytest.mark.timeout(30)
@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_a_stream_that_went_on_while_the_loop_was_busy_is_not_dead(
    loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    with provider() as url, asyncio.Runner(loop_factory=loop) as runner:
        outputs = runner.run(driven(url))
    assert [output.text for output in outputs if isinstance(output, TextOutput)] == [
        "".join(f"{number} " for number in range(PIECES))
    ]
    assert not [output for output in outputs if isinstance(output, TextStreamDiscardedOutput | TextDeltaOutput)]
