"""Connections on which a verb is sent once, and only its owner repeats it."""

import asyncio

import pytest
import redis
import redis.asyncio

from worker.store import connect


class HangsUp:
    """A server that takes a command, counts it, and closes the connection without an answer."""

    def __init__(self) -> None:
        self.scripts = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            if b"EVALSHA" in data:
                self.scripts += 1
                break
            writer.write(b"+PONG\r\n" if b"PING" in data else b"+OK\r\n" * data.count(b"*"))
        writer.close()


@pytest.mark.requirement("store:connect:no-retries")
async def test_a_command_whose_reply_was_lost_is_not_sent_again_by_the_client() -> None:
    hangs_up = HangsUp()
    server = await asyncio.start_server(hangs_up.serve, "127.0.0.1", 0)
    url = f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0"
    client = connect.open_redis(url)
    with pytest.raises(redis.ConnectionError):
        await client.evalsha("0" * 40, 0)
    pipeline = client.pipeline(transaction=False)
    pipeline.evalsha("0" * 40, 0)
    with pytest.raises(redis.ConnectionError):
        await pipeline.execute(raise_on_error=False)
    blocking = connect.open_redis_sync(url)
    with pytest.raises(redis.ConnectionError):
        await asyncio.to_thread(blocking.evalsha, "0" * 40, 0)
    assert hangs_up.scripts == 3
    blocking.close()
    await client.aclose()
    server.close()
    await server.wait_closed()


@pytest.mark.requirement("store:connect:pool")
async def test_more_calls_than_connections_wait_for_their_turn(real_url: str) -> None:
    client = connect.open_redis(real_url)
    answers = await asyncio.gather(*(client.incr("calls") for _ in range(300)))
    assert sorted(answers) == list(range(1, 301))
    clients = (await client.info("clients"))["connected_clients"]
    assert clients < 100
    await client.aclose()


@pytest.mark.requirement("store:connect:shapes")
async def test_replies_are_bytes_in_the_shapes_of_the_pinned_protocol(real_url: str) -> None:
    client = connect.open_redis(real_url, block_s=1)
    entry = await client.xadd("stream", {"field": "value"})
    assert await client.xread({"stream": "0-0"}) == [[b"stream", [(entry, {b"field": b"value"})]]]
    await client.aclose()
    blocking = connect.open_redis_sync(real_url)
    assert blocking.xrange("stream") == [(entry, {b"field": b"value"})]
    blocking.close()
