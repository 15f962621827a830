"""Ends turns for the webhook benchmark, by the verbs of the product and without a model.

What belongs here: submitting, claiming, committing and sealing turns, all at once or at a pace. What must not be known
here: deliveries.

It does what a line on its standard input says. `fill COUNT ENDPOINTS`: so many turns at once, to the endpoints in turn.
`pace RATE SECONDS ENDPOINTS`: so many a second. The answer is {"sealed", "took_s"}.
"""

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

from worker import ids
from worker.output.events import CallCompletedOutput, TextOutput, TurnCompletedOutput
from worker.store import connect
from worker.store.accumulator import ExecutionOutputAccumulator
from worker.store.inbox import NewTurn, submit
from worker.store.lease import claim
from worker.turn.facts import Committed
from worker.turn.usage import NO_USAGE

TEXT = "An answer of some eighty characters, as often as it takes to fill half a kB. " * 7
_AT_ONCE = 16


class Filler:
    """Ends turns in a store. `turns`: all that it has ended; each has its id as the label `message`."""

    def __init__(self, url: str) -> None:
        self.turns: list[str] = []
        self._client = connect.open_redis(url)

    async def fill(self, turns: int, destinations: Sequence[str]) -> int:
        """So many turns, as fast as it goes, each for the next of the destinations."""
        left = iter(range(turns))

        async def some() -> None:
            for number in left:
                await self._turn(destinations[number % len(destinations)])

        await asyncio.gather(*(some() for _ in range(_AT_ONCE)))
        return turns

    async def pace(self, rate: float, seconds: float, destinations: Sequence[str]) -> int:
        """So many turns a second, each for the next of the destinations."""
        began = time.monotonic()
        turns = round(rate * seconds)
        async with asyncio.TaskGroup() as group:
            for number in range(turns):
                await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))
                group.create_task(self._turn(destinations[number % len(destinations)]))
        return turns

    async def close(self) -> None:
        """Close its connections."""
        await self._client.aclose()

    async def _turn(self, destination: str) -> None:
        session, name = ids.new_session(), ids.new_turn(0)
        new = NewTurn(name, session, "go", "default", "bench", {"message": name}, (destination,), None, 7200, 7200)
        await submit(self._client, new, 1)
        grant = await claim(self._client, session, ids.new_nonce(), 600, 1)
        assert grant is not None
        turn = ExecutionOutputAccumulator(self._client, grant, lambda: True)
        await turn.open_call(1, 1, 0, True)
        outputs = [TextOutput(call=1, attempt=1, text=TEXT), CallCompletedOutput(call=1, attempt=1)]
        await turn.commit(Committed(1, 1, TEXT, (), "stop", None), NO_USAGE, outputs)
        await turn.seal("completed", None, None, "", NO_USAGE, [TurnCompletedOutput(outcome="completed")])
        self.turns.append(name)


def _names(endpoints: str) -> list[str]:
    return [f"e{number}" for number in range(int(endpoints))]


async def main(url: str) -> None:
    """Do what is said until the standard input ends."""
    filler = Filler(url)
    loop = asyncio.get_running_loop()
    print("ready", flush=True)
    while line := (await loop.run_in_executor(None, sys.stdin.readline)).split():
        began = time.monotonic()
        words: Any = line
        if words[0] == "fill":
            sealed = await filler.fill(int(words[1]), _names(words[2]))
        else:
            sealed = await filler.pace(float(words[1]), float(words[2]), _names(words[3]))
        print(json.dumps({"sealed": sealed, "took_s": round(time.monotonic() - began, 3)}), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
