"""A reader while its Redis is started again at the same address, with the same file and another run id."""

import subprocess
from pathlib import Path

import pytest
import redis
import redis.asyncio

from channels.embedded import find_binary
from channels.web import live
from tests.support.stack import eventually
from tests.support.web import Fold, read_along, serving, web_settings
from tests.support.written_turn import WrittenTurn


class Server:
    """A server that can be started again where it was."""

    def __init__(self, folder: Path, port: int) -> None:
        self.url = f"redis://127.0.0.1:{port}/0"
        self._line = [
            find_binary(),
            *("--bind", "127.0.0.1", "--port", str(port), "--dir", str(folder)),
            *("--appendonly", "yes", "--appendfsync", "always", "--save", ""),
        ]
        self._process: subprocess.Popen[bytes]

    def launch(self) -> None:
        self._process = subprocess.Popen(self._line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    async def start(self) -> None:
        self.launch()

        async def answers() -> bool:
            try:
                async with redis.asyncio.Redis.from_url(self.url) as client:
                    return bool(await client.ping())
            except redis.RedisError:
                return False

        await eventually(answers, bool, "an answer of the server")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.mark.requirement("readers:restart")
async def test_a_server_that_was_started_again_starts_its_readers_afresh(
    tmp_path: Path, unused_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "REFRESH_S", 0.1)
    server = Server(tmp_path, unused_port)
    await server.start()
    try:
        async with serving(web_settings(server.url)) as web, await web.client("events:read") as client:
            written = await WrittenTurn.begun(web.redis)
            fold = Fold()
            events = read_along(client, written.turn, fold)
            await anext(events)
            await written.say(2)
            while fold.names.count("thinking_delta") < 2:
                await anext(events)

            async def seen() -> str:
                return web.process._live._run_id

            await eventually(seen, bool, "a look at who the server is")
            server.kill()
            await server.start()
            event = await anext(events)
            assert (event.name, event.data["reason"]) == ("reset", "rewound")
            assert fold.buffer.staged == written.open_text
            await written.be_taken_over()
            await written.say(1)
            await written.complete()
            await written.end()
            async for _ in events:
                pass
            assert fold.buffer.committed == written.committed
            assert fold.names[-1] == "turn_completed"
    finally:
        server.kill()
