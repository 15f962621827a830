"""Rewinding a server under living processes: it is killed, its file loses its end, and it is started again.

What belongs here: which steps of Lastword a file holds, and where it may be cut. What must not be known here: what must
be true afterwards.
"""

import asyncio
import random
from collections.abc import Callable

from tests.support.stack import eventually
from tests.support.valkey import Step, Valkey

Kind = Callable[[Step], bool]


def _settles(step: Step) -> bool:
    """Whether a delivery was settled: its record begins with a line that says by which step, and a claim keeps that."""
    records = [words[2] for words in step.commands if words[0].upper() == b"SET" and b":dlv:" in words[1]]
    return any(record.split(b" ")[1] != b"-" for record in records) and not step.wrote(b"RPUSH", b":claim:")


KINDS: dict[str, Kind] = {
    "submit": lambda step: step.wrote(b"HSET", b":turn:", b"created_ms"),
    "claim": lambda step: step.wrote(b"HSET", b"epoch", b"running"),
    "open_call": lambda step: step.wrote(b"HSET", b"open_call"),
    "commit": lambda step: step.wrote(b"RPUSH", b":journal:", b'"committed"'),
    "tool_start": lambda step: step.wrote(b"RPUSH", b":journal:", b'"tool_started"'),
    "tool_end": lambda step: step.wrote(b"RPUSH", b":journal:", b'"tool_ended"'),
    "seal": lambda step: step.wrote(b"HSET", b":turn:", b"sealed_ms"),
    "relay": lambda step: step.wrote(b"HSET", b":relay", b"inserted") and step.wrote(b"SET", b":dlv:"),
    "delivery": lambda step: step.wrote(b"RPUSH", b":claim:"),
    "settle": _settles,
}
_DURABLE = ("submit", "tool_start", "delivery")
"""What Lastword does not act upon before it is on disk: a file that has lost one of these has lost what it promised."""


def durable_until(steps: list[Step]) -> int:
    """The byte behind the last step that is promised to be kept, and 0 when there is none."""
    return max((step.end for step in steps if any(KINDS[kind](step) for kind in _DURABLE)), default=0)


def submitted_in(steps: list[Step]) -> set[str]:
    """The turns whose submit a file holds."""
    words = [words for step in steps if KINDS["submit"](step) for words in step.commands if b"created_ms" in words]
    return {found[found.index(b"turn") + 1].decode() for found in words}


def awaited(server: Valkey, kind: str) -> int:
    """How many steps of this kind the file holds after the next one. What was just submitted is in it already."""
    return sum(map(KINDS[kind], server.steps())) + (kind != "submit")


async def killed_after(server: Valkey, kind: str, number: int) -> list[Step]:
    """Kill the server as soon as its file holds `number` steps of this kind; the steps that it holds then."""

    async def look() -> int:
        return sum(map(KINDS[kind], server.steps()))

    await eventually(look, lambda seen: seen >= number, f"{number} times {kind} in the server's file")
    server.kill()
    return server.steps()


def rewound(server: Valkey, steps: list[Step], kind: str, least: int, chance: random.Random) -> None:
    """Cut the killed server's file behind a step, and start it again.

    Half of the time that is the last step of this kind, if it ends at the byte `least` or later; else any that does.
    """
    allowed = [step for step in steps if step.end >= least]
    wanted = [step for step in allowed if KINDS[kind](step)]
    chosen = wanted[-1] if wanted and chance.random() < 0.5 else chance.choice(allowed)
    server.cut(chosen.end)
    server.start()


async def settled(look: Callable[[], bool], awaited: str, within_s: float) -> None:
    """Wait until this is true."""

    async def seen() -> bool:
        await asyncio.sleep(0)
        return look()

    await eventually(seen, bool, awaited, within_s)
