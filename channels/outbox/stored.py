"""How deliveries, lanes and evidence are stored, and how scripts take them.

What belongs here: forms and lifetimes. What must not be known here: Redis, what is decided.
"""

import base64
import secrets
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass, field, fields
from typing import Any

import orjson

from channels.delivery import model
from channels.delivery.lane import Lane
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


@dataclass(frozen=True, slots=True)
class SeenLane:
    """A lane as it was read. `mark`, `cap` and `free`: what its script compares; empty where nothing is stored."""

    name: str
    mark: str
    lane: Lane
    cap: str = ""
    free: str = ""


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
    """A stored lane; one that cannot be read, or is not there, is a lane of which nothing is known.

    Of a newer version with more fields the known ones are read.
    """
    try:
        values = orjson.loads(data)[1:]
        return Lane(*values[: len(fields(Lane))])
    except (orjson.JSONDecodeError, TypeError):
        return Lane()


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
