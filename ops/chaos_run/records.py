"""What a run wrote down, read back: the stand-in provider's transcript, the receiver's file, the tools' ledger.

What belongs here: lines to values. What must not be known here: what is right, Redis.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from ops.chaos_run.said import Answer, turns_of

TRANSCRIPT, RECEIVED, LEDGER, STRIKES = "transcript.jsonl", "received.jsonl", "ledger.jsonl", "strikes.jsonl"
READINGS = "readings.jsonl"


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request, the `n`-th, and its answer. `message`, `call`: which of the run's messages, which of its calls.

    `came`: seconds of the run's clock. `is_complete`: the provider sent all of it. `history`: the answers that the
    request shows behind its message. `earlier`: those of the session's turns before it. `tools`: name of each tool call
    that was sent, by its id.
    """

    n: int
    message: int
    call: int
    process: str
    came: float
    text: str
    is_complete: bool
    tools: dict[str, str]
    history: tuple[Answer, ...]
    earlier: tuple[tuple[Answer, ...], ...]


@dataclass(frozen=True, slots=True)
class Post:
    """One POST to the receiver. `message` None: it carried no label of this run. Times: seconds of the run's clock."""

    identity: str
    message: int | None
    turn: str
    outcome: str
    text: str
    process: str
    came: float
    ended: float
    is_signed: bool
    is_acknowledged: bool


@dataclass(frozen=True, slots=True)
class Run:
    """A line of the tools' ledger. `at`: seconds of the run's clock."""

    event: str
    key: str
    tool: str
    process: str
    at: float


@dataclass(frozen=True, slots=True)
class Strike:
    """What was done to a process. `kind`: kill, freeze or drain. `until`: when a frozen one went on; else `at`."""

    kind: str
    process: str
    at: float
    until: float
    mid_stream: bool


@dataclass(frozen=True, slots=True)
class Reading:
    """What a live reader was left with at the end of a turn."""

    message: int
    text: str
    staged: str
    gaps: int


@dataclass(frozen=True, slots=True)
class Records:
    """All of a run. `messages`: how many were submitted, and numbered from 0. `sessions`: their numbers, in order.

    `read`: the messages whose turns had a live reader. `lease_s`: how long a turn's lease lasts.
    """

    messages: int
    sessions: tuple[tuple[int, ...], ...]
    exchanges: tuple[Exchange, ...]
    posts: tuple[Post, ...]
    runs: tuple[Run, ...]
    strikes: tuple[Strike, ...]
    lease_s: float
    read: frozenset[int] = frozenset()
    readings: tuple[Reading, ...] = ()


@dataclass(frozen=True, slots=True)
class Course:
    """What was planned, as `Records` has it. `began`: when the run's clock did."""

    messages: int
    sessions: tuple[tuple[int, ...], ...]
    read: frozenset[int]
    lease_s: float
    began: datetime


def read_records(folder: Path, course: Course) -> Records:
    """The records of a run that is over."""
    came = {line["n"]: _at(line, course.began) for line in _lines(folder / TRANSCRIPT) if line["event"] == "started"}
    return Records(
        course.messages,
        course.sessions,
        tuple(
            _exchange(line, came[line["n"]])
            for line in _lines(folder / TRANSCRIPT)
            if line["event"] == "ended" and line["call"] is not None
        ),
        tuple(_post(line) for line in _lines(folder / RECEIVED)),
        tuple(_run(line, course.began) for line in _lines(folder / LEDGER)),
        tuple(Strike(**line) for line in _lines(folder / STRIKES)),
        course.lease_s,
        course.read,
        tuple(Reading(**line) for line in _lines(folder / READINGS)),
    )


def _at(line: dict[str, Any], began: datetime) -> float:
    """When a line was written, in seconds of the run's clock: the machine's own must not be set during a run."""
    return (datetime.fromisoformat(line["at"]) - began).total_seconds()


def _exchange(line: dict[str, Any], came: float) -> Exchange:
    """One line `ended` of the transcript."""
    sent, request = line["sent"], line["request"]
    turns = turns_of(line["wire"], request)
    return Exchange(
        n=line["n"],
        message=int(line["conversation"]),
        call=line["call"],
        process=request["headers"].get("x-chaos-process", ""),
        came=came,
        text=sent["text"],
        # A client that has read the finish reason may leave before the last bytes are out.
        is_complete=line["ended"] == "complete" or sent["finish_reason"] is not None,
        tools={call["id"]: call["name"] for call in sent["tool_calls"]},
        history=tuple(turns[-1]),
        earlier=tuple(tuple(turn) for turn in turns[1:-1]),
    )


def _run(line: dict[str, Any], began: datetime) -> Run:
    return Run(line["event"], line["key"], line["tool"], line["process"], _at(line, began))


def _post(line: dict[str, Any]) -> Post:
    data = line["body"]["data"]
    message = data["labels"].get("message")
    return Post(
        identity=line["id"],
        message=None if message is None else int(message),
        turn=data["turn"],
        outcome=data["outcome"],
        text=data["text"],
        process=line["process"],
        came=line["came"],
        ended=line["ended"],
        is_signed=line["verified"],
        is_acknowledged=line["acknowledged"],
    )


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    if path.exists():
        with path.open(encoding="utf-8") as file:
            yield from map(json.loads, file)
