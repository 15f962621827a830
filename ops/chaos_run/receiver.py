"""The webhook receiver of a chaos run: it fails now and then, and writes down all that it got.

What belongs here: one line a POST, when it has been answered or could not be. What must not be known here: who sends.

A line: {"n", "came", "ended", "id", "process", "verified", "body", "status", "acknowledged"}. Times are seconds of the
run's clock. `process`: which process says that it sent it. `acknowledged`: the whole of an answer 204 was handed to the
network; whether the sender read it, only the sender knows.
"""

import asyncio
import contextlib
import json
import random
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from aiohttp import web
from standardwebhooks import Webhook, WebhookVerificationError

_FAULTY_POSTS = 2
_FAULTS = ("503", "hang", "drop")
_FAULT_SHARE = 0.12


class Receiver:
    """Listens on the loopback within `running`. `hang_s`: longer than a sender may wait for an answer.

    `open`: the process of every POST that is not answered yet, by number. `acknowledged`: the messages whose end was.
    """

    def __init__(self, seed: int, secret: str, path: Path, clock: Callable[[], float], hang_s: float) -> None:
        self.url = ""
        self.open: dict[int, str] = {}
        self.acknowledged: set[str] = set()
        self.last_at = clock()
        self._seed = seed
        self._webhook = Webhook(secret)
        self._path = path
        self._clock = clock
        self._hang_s = hang_s
        self._posts = 0
        self._seen: Counter[str] = Counter()
        self._ends: deque[tuple[float, str]] = deque(maxlen=10_000)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Listen on a free port."""
        app = web.Application(client_max_size=16 * 1024**2)
        app.router.add_post("/hook", self._hook)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}/hook"
        try:
            yield
        finally:
            await runner.cleanup()

    def lately(self, process: str, within_s: float) -> int:
        """How many POSTs of a process are open, or have ended within so many seconds."""
        since = self._clock() - within_s
        ended = sum(by == process and at >= since for at, by in self._ends)
        return ended + sum(by == process for by in self.open.values())

    async def _hook(self, request: web.Request) -> web.StreamResponse:
        self._posts += 1
        number, came = self._posts, self._clock()
        process = self.open[number] = request.headers.get("x-chaos-process", "")
        identity = request.headers.get("webhook-id", "")
        self._seen[identity] += 1
        line: dict[str, Any] = {"n": number, "came": came, "id": identity, "process": process, "status": 0}
        try:
            body = await request.text()
            line |= {"verified": self._is_signed(request, body), "body": json.loads(body)}
            return await self._answer(request, line, self._seen[identity])
        finally:
            del self.open[number]
            self.last_at = self._clock()
            self._ends.append((self.last_at, process))
            line["acknowledged"] = line["status"] == 204
            if line["acknowledged"]:
                self.acknowledged.add(line["body"]["data"]["labels"].get("message", ""))
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({**line, "ended": self.last_at}, ensure_ascii=False) + "\n")

    async def _answer(self, request: web.Request, line: dict[str, Any], times: int) -> web.StreamResponse:
        chance = random.Random(f"{self._seed}/{line['body']['data'].get('labels')}/{times}")
        await asyncio.sleep(chance.uniform(0.02, 0.4))
        fault = chance.choice(_FAULTS) if times <= _FAULTY_POSTS and chance.random() < _FAULT_SHARE else None
        if fault == "hang":
            await asyncio.sleep(self._hang_s)
        if fault == "drop":
            assert request.transport is not None
            request.transport.abort()
            await asyncio.Event().wait()  # until aiohttp sees that the connection is gone, and cancels this
        response = web.Response(status=503 if fault == "503" else 204)
        await response.prepare(request)
        await response.write_eof()
        line["status"] = response.status
        return response

    def _is_signed(self, request: web.Request, body: str) -> bool:
        try:
            self._webhook.verify(body, {name.lower(): value for name, value in request.headers.items()})
        except WebhookVerificationError:
            return False
        return True
