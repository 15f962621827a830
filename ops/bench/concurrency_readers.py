"""The readers of the concurrency benchmark: they follow turns as live readers do and take the age of each delta.

What belongs here: attaching, reading on, ages. What must not be known here: who streams, what ages are good.

Runs in a process of its own. Reads the ids of turns, one a line; then `measure`, from which on ages are counted, and
`report`: it answers with a line of JSON. After `web URL TOKEN` turns are read over HTTP, as the product's readers do;
before it straight from the server. Readers run until their turns have ended. Ends with its standard input.
"""

import asyncio
import json
import re
import sys
from array import array
from time import monotonic_ns
from typing import Any

import aiohttp
import uvloop

from worker.output.events import Output, TextDeltaOutput, TextStreamDiscardedOutput, TurnCompletedOutput, decode
from worker.store import connect
from worker.store.outputs import attach, outputs_after, watch

WATCH_S = 30.0
_BLOCK_S = 5.0
_STAMP = re.compile(r"@(\d{15}) ")


class Readers:
    """All readers of the process. Ages are nanoseconds."""

    def __init__(self, url: str) -> None:
        self._redis = connect.open_redis(url, block_s=_BLOCK_S, connections=1000)
        self._web: tuple[aiohttp.ClientSession, str] | None = None
        self._following: set[asyncio.Task[None]] = set()
        self._counts = False
        self.ages = array("q")
        self.ends = array("q")
        """From a turn's last delta to its end."""
        self.batches = 0
        self.discards = 0
        self.attached = 0

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
        assert self._web is not None
        session, url = self._web
        last_id, sent_last = "", 0
        while True:
            headers = {"Last-Event-ID": last_id} if last_id else {}
            async with session.get(f"{url}/v1/turns/{turn}/events", headers=headers) as answer:
                assert answer.status == 200, f"{turn}: the web process answered {answer.status}"
                self.attached += not last_id
                rest = b""
                async for data in answer.content.iter_any():
                    now = monotonic_ns()
                    self.batches += 1
                    *blocks, rest = (rest + data).split(b"\n\n")
                    for block in blocks:
                        fields = dict(line.split(": ", 1) for line in block.decode().split("\n") if ": " in line)
                        last_id = fields.get("id", last_id)
                        if "data" not in fields or fields["event"] in {"snapshot", "reset"}:
                            continue
                        output = decode(fields["data"])
                        sent_last = self._take(output, now, sent_last)
                        if isinstance(output, TurnCompletedOutput):
                            return

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


async def main(url: str) -> None:
    """Do as the lines say."""
    readers = Readers(url)
    print("ready", flush=True)
    while line := (await asyncio.to_thread(sys.stdin.readline)).strip():
        if line.startswith("turn_"):
            readers.follow(line)
            continue
        if line.startswith("web "):
            await readers.ask_web(*line.split()[1:])
        elif line == "measure":
            readers.measure()
        elif line == "pause":
            readers.pause()
        print(json.dumps(readers.report() if line == "report" else {"attached": readers.attached}), flush=True)


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1]))
