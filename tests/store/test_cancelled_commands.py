"""A cancel that meets a command of Redis: it is kept, and nothing of the command is left behind."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis

from channels.embedded import EmbeddedServer
from tests.support.forwarder import Forwarder
from worker.engine.loop import new_event_loop
from worker.store import connect

PATIENCE_S = 10.0
CERTIFICATE = Path(__file__).parents[1] / "http" / "loopback.pem"
LOOPS = {"asyncio": asyncio.new_event_loop, "as in a process": new_event_loop}
LARGE = b"x" * 3_000_000

Client = Any
Ask = Callable[[Client], Awaitable[object]]


@asynccontextmanager
async def address(server: EmbeddedServer, socket: str) -> AsyncIterator[str]:
    """The URL of the server by that kind of socket."""
    if socket == "tcp":
        yield server.url
    else:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(CERTIFICATE)
        port = urlsplit(server.url).port
        assert port is not None
        async with Forwarder(port, tls=context) as forwarder:
            at = f"rediss://:{urlsplit(server.url).password}@127.0.0.1:{forwarder.port}/0"
            yield f"{at}?ssl_cert_reqs=none&ssl_check_hostname=false"


async def cancelled_after(steps: int, command: Awaitable[object]) -> bool:
    """Cancel a command after so many steps of the loop, and see it end so. False: it had ended before."""
    task = asyncio.ensure_future(command)
    for _ in range(steps):
        await asyncio.sleep(0)
    if task.done():
        await task
        return False
    task.cancel()
    await asyncio.wait({task}, timeout=PATIENCE_S)
    assert task.cancelled(), f"cancelled after step {steps}, and the command went on: {task}"
    return True


async def pipelined(client: Client) -> object:
    pipeline = client.pipeline(transaction=False)
    return await pipeline.incr("a").incr("b").execute()


@pytest.mark.requirement("store:connect:keeps-cancels")
@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("socket", ["tcp", "tls"])
@pytest.mark.parametrize("ask", [lambda client: client.get("x"), pipelined], ids=["command", "pipeline"])
def test_a_command_is_cancelled_at_whatever_step_it_is(
    server: EmbeddedServer, loop: str, socket: str, ask: Ask
) -> None:
    async def see() -> None:
        async with address(server, socket) as url, connect.open_redis(url, connections=1) as client:
            steps = 0
            while await cancelled_after(steps, ask(client)):
                await client.ping()  # so that the next has its connection
                steps += 1
            assert steps > 1

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(see())


@pytest.mark.requirement("store:connect:keeps-cancels")
@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("socket", ["tcp", "tls"])
def test_a_command_is_cancelled_at_whatever_step_of_connecting_it_is(
    server: EmbeddedServer, loop: str, socket: str
) -> None:
    async def see() -> None:
        async with address(server, socket) as url, connect.open_redis(url, connections=1) as client:
            steps = 0
            while await cancelled_after(steps, client.get("x")):
                await client.connection_pool.disconnect()
                steps += 1
            assert steps > 3

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(see())


@pytest.mark.requirement("store:connect:keeps-cancels")
async def test_a_server_that_takes_no_command_any_more_is_given_up_or_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def take_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while b"xxx" not in (data := await reader.read(1000)):  # the handshake
            writer.write(b"+PONG\r\n" if b"PING" in data else b"+OK\r\n" * data.count(b"*"))
        await may_end.wait()
        writer.transport.abort()

    may_end = asyncio.Event()
    monkeypatch.setattr(connect, "REPLY_TIMEOUT_S", 0.5)
    server = await asyncio.start_server(take_nothing, "127.0.0.1", 0, limit=1000)
    url = f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0"
    client = connect.open_redis(url, connections=1)
    try:
        with pytest.raises(redis.TimeoutError, match="writing"):
            await client.set("x", LARGE * 10)
        assert await cancelled_after(1000, client.set("x", LARGE * 10))
    finally:
        may_end.set()
        await client.aclose()
        server.close()
        await server.wait_closed()


@pytest.mark.requirement("store:connect:own-replies")
@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("socket", ["tcp", "tls"])
def test_no_command_gets_the_reply_to_one_that_was_cancelled(server: EmbeddedServer, loop: str, socket: str) -> None:
    async def see() -> None:
        async with address(server, socket) as url, connect.open_redis(url, connections=1) as client:
            await client.set("large", LARGE)
            steps = 0
            while await cancelled_after(steps, client.get("large")):
                assert await client.echo(f"after {steps}") == b"after %d" % steps
                steps += 1
            assert steps > 1

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(see())


@pytest.mark.requirement("store:connect:next-is-woken")
async def test_a_caller_that_is_cancelled_as_its_connection_comes_leaves_it_to_the_next(real_url: str) -> None:
    client: Client = connect.open_redis(real_url, connections=1)
    pool = client.connection_pool
    busy = await pool.get_connection()
    first, second = asyncio.ensure_future(client.get("x")), asyncio.ensure_future(client.get("x"))
    for _ in range(10):
        await asyncio.sleep(0)
    await pool.release(busy)  # wakes the first
    first.cancel()
    async with asyncio.timeout(PATIENCE_S):
        await second
    assert first.cancelled()
    await client.aclose()
