"""The readers of the concurrency benchmark: they follow turns as live readers do and take the age of each delta.

What belongs here: attaching, reading on, ages. What must not be known here: who streams, what ages are good.

Runs in a process of its own. Reads the ids of turns, one a line; then `measure`, from which on ages are counted, and
`report`: it answers with a line of JSON. Readers run until their turns have ended. Ends with its standard input.
"""

import asyncio
import json
import re
import sys
from array import array
from time import monotonic_ns
from typing import Any

import uvloop

from worker.output.events import TextDeltaOutput, TextStreamDiscardedOutput, TurnCompletedOutput
from worker.store import connect
from worker.store.outputs import attach, outputs_after, watch

WATCH_S = 30.0
_BLOCK_S = 5.0
_STAMP = re.compile(r"@(\d{15}) ")


class Readers:
    """All readers of the process. Ages are nanoseconds."""

    def __init__(self, url: str) -> None:
        self._redis = connect.open_redis(url, block_s=_BLOCK_S, connections=1000)
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
        self._following.add(asyncio.get_running_loop().create_task(self._read(turn)))

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
                if isinstance(output, TextDeltaOutput):
                    stamps = [int(stamp) for stamp in _STAMP.findall(output.text)]
                    sent_last = stamps[-1] if stamps else sent_last
                    if self._counts:
                        self.ages.extend(now - stamp for stamp in stamps)
                elif isinstance(output, TextStreamDiscardedOutput):
                    self.discards += 1
                elif isinstance(output, TurnCompletedOutput):
                    self.ends.append(now - sent_last)
                    return


async def main(url: str) -> None:
    """Do as the lines say."""
    readers = Readers(url)
    print("ready", flush=True)
    while line := (await asyncio.to_thread(sys.stdin.readline)).strip():
        if line.startswith("turn_"):
            readers.follow(line)
            continue
        if line == "measure":
            readers.measure()
        elif line == "pause":
            readers.pause()
        print(json.dumps(readers.report() if line == "report" else {"attached": readers.attached}), flush=True)


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1]))
