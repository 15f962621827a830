"""How deliveries, lanes and evidence are stored, and how scripts take them.

What belongs here: forms and lifetimes. What must not be known here: Redis, what is decided.

A newer release may add fields to a lane behind those that are there, and raises `LANE_VERSION` for whatever else it
changes in the record; as it may with a delivery (`channels.delivery.model`). What scripts go by is the same in all
releases: the other fields of a lane's hash, and the line before a delivery. A record that is not wholly as this release
knows it is left alone, in its place, and never overwritten.
"""

import base64
import secrets
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass, field, fields
from typing import Any, get_args

import orjson

from channels.delivery import model
from channels.delivery.lane import Lane, Standing
from channels.delivery.model import Delivery, Evidence
from worker.store.script import Argument

KEEP_S = 7 * 86400.0
KEEP_DEAD_S = 30 * 86400.0
KEEP_CONTENT_S = 61 * 86400.0
"""From the event on, longer than a delivery of it is kept: that may be attempted for 30 days, die then, and be replayed
as long as it is kept dead."""

UNBOUNDED = 1_000_000_000
"""The cap of a lane that lets nothing through: whatever is due there is looked at, and held. lua/put.lua knows it."""

LANE_VERSION = 1

UNREADABLE = Lane(standing="paused", why="a newer release wrote what is known of it, or it is damaged: left alone")
"""A lane that this release cannot read. Whoever asks is told that nothing goes through: here nothing does."""

_LANE_TYPES = tuple(one.type if one.type in {int, float, bool} else str for one in fields(Lane))
_RATE = [one.name for one in fields(Lane)].index("rate_ms")
_FEWEST = 17
"""Fields of the first lanes that were stored."""


@dataclass(frozen=True, slots=True)
class SeenLane:
    """A lane as it was read. `mark`, `cap` and `free`: what its script compares; empty where nothing is stored."""

    name: str
    mark: str
    lane: Lane
    cap: str = ""
    free: str = ""

    @property
    def is_readable(self) -> bool:
        """Whether this release may decide anything of it."""
        return self.lane is not UNREADABLE


@dataclass(frozen=True, slots=True)
class Change:
    """A delivery as it was read, None where it is new, and as it is to be stored."""

    old: Delivery | None
    new: Delivery


@dataclass(frozen=True, slots=True)
class Told:
    """An entry for the log of a partition: its words, as XADD takes them."""

    log: str
    words: Sequence[str | bytes]


@dataclass(frozen=True, slots=True)
class LaneStep:
    """What is to be stored of one lane. `lane`: as it is to be, None: as it is.

    `cap` and `free_ms`: below how many in flight and when someone must look at it; None: at once. `most`: how many may
    be in flight. `lease_ms`: its longest lease, None: as it is. `later`: what is looked at again only then (ms).
    `fault`: why nothing could be decided of it.
    """

    seen: SeenLane
    changes: Sequence[Change]
    lane: Lane | None = None
    cap: int | None = None
    free_ms: int = 0
    most: int = UNBOUNDED
    lease_ms: int | None = None
    told: Sequence[Told] = ()
    later: dict[str, int] = field(default_factory=dict)
    fault: Exception | None = None


def settle_words(steps: Sequence[LaneStep], now_ms: int, evidence: Sequence[Argument] = (0,)) -> list[Argument]:
    """Steps as lua/settle.lua takes them."""
    words = [word for step in steps for word in words_of(step, now_ms)]
    return [secrets.token_hex(4), now_ms, len(steps), *words, *evidence]


def words_of(step: LaneStep, now_ms: int) -> list[Argument]:
    """A step as lua/lane.lua takes it."""
    mark = "" if step.lane is None else f"{step.lane.version}:{secrets.token_hex(4)}"
    words: list[Argument] = [
        step.seen.name,
        step.seen.mark,
        step.seen.cap,
        step.seen.free,
        mark,
        "" if step.lane is None else encode_lane(step.lane),
        "" if step.cap is None else step.cap,
        step.free_ms,
        now_ms,
        step.most,
        "" if step.lease_ms is None else step.lease_ms,
        len(step.told),
    ]
    for told in step.told:
        words += [told.log, len(told.words), *told.words]
    words.append(len(step.later))
    for delivery, at_ms in step.later.items():
        words += [delivery, at_ms]
    words.append(len(step.changes))
    for change in step.changes:
        words += delivery_words(change.old, change.new)
    return words


def mark_of(delivery: Delivery) -> str:
    """What is equal only while nobody has changed a stored delivery."""
    return f"{delivery.version}:{delivery.token}"


def delivery_words(old: Delivery | None, new: Delivery) -> list[Argument]:
    """A delivery as lua/put.lua takes it."""
    forget: Argument = ""
    if new.ended_ms:
        keep_s = KEEP_DEAD_S if new.state == "dead" else KEEP_S
        forget = new.ended_ms + round(keep_s * 1000)
    return [
        "" if old is None else mark_of(old),
        "" if old is None else old.state,
        new.id,
        mark_of(new),
        new.state,
        new.lane,
        new.mailbox,
        new.due_ms or "",
        new.created_ms,
        new.ended_ms if new.state == "dead" else "",
        forget,
        model.encode(new),
    ]


def decode(value: bytes | None) -> Delivery | None:
    """A stored delivery; None when it is not there, or of a newer version."""
    if value is None:
        return None
    return model.decode(value.partition(b"\n")[2])


def encode_lane(lane: Lane) -> bytes:
    """The stored form of a lane: a JSON array of its version and the fields in their order."""
    return model.json_bytes([LANE_VERSION, *astuple(lane)])


def decode_lane(data: bytes) -> Lane:
    """A stored lane; one that is not there is a lane of which nothing is known. `UNREADABLE`: it is left alone."""
    if not data:
        return Lane()
    try:
        version, *values = orjson.loads(data)
        if version != LANE_VERSION or len(values) < _FEWEST:
            return UNREADABLE
        if type(values[_RATE]) is int:  # as a number is written that has no fraction
            values[_RATE] = float(values[_RATE])
        lane = Lane(*values)
    except (TypeError, ValueError):
        return UNREADABLE
    is_known = tuple(map(type, values)) == _LANE_TYPES[: len(values)] and lane.standing in get_args(Standing)
    return lane if is_known else UNREADABLE


def encode_evidence(evidence: Evidence) -> bytes:
    """JSON of what is known, whatever it holds; the body as text where it is UTF-8, else in base64."""
    told: dict[str, Any] = {
        name: value
        for name, value in asdict(evidence).items()
        if value is not None and value is not False and value != ""
    }
    body = told.pop("body")
    if body:
        try:
            told["text"] = body.decode()
        except UnicodeDecodeError:
            told["base64"] = base64.b64encode(body).decode()
    return model.json_bytes(told)


def decode_evidence(data: bytes) -> Evidence:
    """What `encode_evidence` made. Fields that this version does not know are left out."""
    told = orjson.loads(data)
    body = base64.b64decode(told.get("base64", "")) or told.get("text", "").encode()
    known = {each.name for each in fields(Evidence)} - {"body", "status"}
    return Evidence(told.get("status"), body=body, **{name: told[name] for name in known & told.keys()})
