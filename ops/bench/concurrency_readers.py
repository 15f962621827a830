"""The readers of the concurrency benchmark: they follow turns as live readers do and take the age of each delta.

What belongs here: attaching, reading on, ages. What must not be known here: who streams, what ages are good.

Runs in a process of its own. Reads `begin`, which forgets the load before; the ids of turns, one a line; `measure`,
from which on ages are counted; and `report`: it answers with a line of JSON. After `web URL TOKEN` turns are read over
HTTP, as the product's readers do; before it straight from the server. Readers run until their turns have ended. Ends
with its standard input.
"""

import asyncio
import contextlib
import json
import re
import sys
from array import array
from dataclasses import dataclass
from time import monotonic_ns
from typing import Any

import aiohttp
import uvloop

from worker.codecs.sse import SseDecoder, SseEvent
from worker.output.events import Output, TextDeltaOutput, TextStreamDiscardedOutput, TurnCompletedOutput, decode
from worker.output.snapshot import Snapshot
from worker.store import connect
from worker.store.outputs import attach, outputs_after, watch

WATCH_S = 30.0
_BLOCK_S = 5.0
_AGAIN_S = 0.05
_STAMP = re.compile(r"@(\d{15}) ")


class Readers:
    """All readers of the process. Ages are nanoseconds."""

    def __init__(self, url: str) -> None:
        self._redis = connect.open_redis(url, block_s=_BLOCK_S, connections=1000)
        self._web: tuple[aiohttp.ClientSession, str] | None = None
        self._following: set[asyncio.Task[None]] = set()
        self.begin()

    def begin(self) -> None:
        """Count from nothing: the turns of the load before have ended."""
        self._following.clear()
        self._counts = False
        self.ages = array("q")
        self.ends = array("q")
        """From a turn's last delta to its end."""
        self.batches = 0
        self.discards = 0
        self.attached = 0
        self.resets = 0
        """How often a reader was given a snapshot in place of outputs, but for the first."""
        self.again = 0
        """How often one asked again, since its connection had ended before its turn."""

    def follow(self, turn: str) -> None:
        """Read a turn to its end."""
        read = self._read if self._web is None else self._read_web
        self._following.add(asyncio.get_running_loop().create_task(read(turn)))

    async def ask_web(self, url: str, token: str) -> None:
        """Follow over HTTP from now on."""
        if self._web is not None:
            await self._web[0].close()
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            headers={"Authorization": f"Bearer {token}"},
            timeout=aiohttp.ClientTimeout(total=None, sock_read=60),
        )
        self._web = (session, url)

    async def close(self) -> None:
        """Read no more."""
        for task in self._following:
            task.cancel()
        if self._web is not None:
            await self._web[0].close()
        await self._redis.aclose()

    def measure(self) -> None:
        """Count ages from now on."""
        self._counts = True
        self.ages, self.batches = array("q"), 0

    def pause(self) -> None:
        """Count no more ages."""
        self._counts = False

    def report(self) -> dict[str, Any]:
        """What was seen."""
        return {
            "attached": self.attached,
            "following": sum(not task.done() for task in self._following),
            "failed": sum(task.done() and task.exception() is not None for task in self._following),
            "batches": self.batches,
            "discards": self.discards,
            "resets": self.resets,
            "again": self.again,
            "ages_ms": [round(age / 1e6, 2) for age in self.ages],
            "ends_ms": [round(age / 1e6, 2) for age in self.ends],
        }

    async def _read(self, turn: str) -> None:
        snapshot = await attach(self._redis, turn, WATCH_S)
        assert snapshot is not None, f"{turn} is not there"
        self.attached += 1
        last_id, watched_at, sent_last = snapshot.last_id, monotonic_ns(), 0
        while True:
            if monotonic_ns() - watched_at > WATCH_S / 3 * 1e9:
                watched_at = monotonic_ns()
                await watch(self._redis, turn, WATCH_S)
            read = await outputs_after(self._redis, turn, last_id, round(_BLOCK_S * 1000))
            now = monotonic_ns()
            self.batches += 1
            for last_id, output in read:  # noqa: B007 - the last one is where reading goes on
                sent_last = self._take(output, now, sent_last)
                if isinstance(output, TurnCompletedOutput):
                    return

    async def _read_web(self, turn: str) -> None:
        """Follow the server-sent events of a turn, and ask again where a connection ends before the turn."""
        reading = _Reading()
        while True:
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                await self._read_on(turn, reading)
            if reading.has_ended:
                return
            self.again += 1
            await asyncio.sleep(_AGAIN_S)

    async def _read_on(self, turn: str, reading: "_Reading") -> None:
        """One connection, from the last id on."""
        assert self._web is not None
        session, url = self._web
        headers = {"Last-Event-ID": reading.last_id} if reading.last_id else {}
        async with session.get(f"{url}/v1/turns/{turn}/events", headers=headers) as answer:
            assert answer.status == 200, f"{turn}: the web process answered {answer.status}"
            decoder = SseDecoder()
            async for data in answer.content.iter_any():
                now = monotonic_ns()
                self.batches += 1
                for event in decoder.feed(data):
                    if isinstance(event, SseEvent):
                        self._take_event(event, now, reading)
                if reading.has_ended:
                    return

    def _take_event(self, event: SseEvent, now: int, reading: "_Reading") -> None:
        reading.last_id = event.last_id or reading.last_id
        if event.name in {"snapshot", "reset"}:
            self.resets += reading.is_attached
            self.attached += not reading.is_attached
            reading.is_attached = True
            reading.has_ended = Snapshot.model_validate_json(event.data).state == "sealed"
            return
        output = decode(event.data)
        reading.sent_last = self._take(output, now, reading.sent_last)
        reading.has_ended = isinstance(output, TurnCompletedOutput)

    def _take(self, output: Output | None, now: int, sent_last: int) -> int:
        """Count an output; gives when the last delta was sent."""
        if isinstance(output, TextDeltaOutput):
            stamps = [int(stamp) for stamp in _STAMP.findall(output.text)]
            if self._counts:
                self.ages.extend(now - stamp for stamp in stamps)
            return stamps[-1] if stamps else sent_last
        if isinstance(output, TextStreamDiscardedOutput):
            self.discards += 1
        elif isinstance(output, TurnCompletedOutput):
            self.ends.append(now - sent_last)
        return sent_last


@dataclass(slots=True)
class _Reading:
    """How far a reader has come. `sent_last`: when the last delta was sent that it has."""

    last_id: str = ""
    sent_last: int = 0
    is_attached: bool = False
    has_ended: bool = False


async def main(url: str) -> None:
    """Do as the lines say."""
    readers = Readers(url)
    print("ready", flush=True)
    while line := (await asyncio.to_thread(sys.stdin.readline)).strip():
        if line.startswith("turn_"):
            readers.follow(line)
            continue
        if line == "begin":
            readers.begin()
        elif line.startswith("web "):
            await readers.ask_web(*line.split()[1:])
        elif line == "measure":
            readers.measure()
        elif line == "pause":
            readers.pause()
        print(json.dumps(readers.report() if line == "report" else {"attached": readers.attached}), flush=True)


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1]))
