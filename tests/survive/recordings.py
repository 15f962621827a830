"""What a store holds of turns in every state, as a file: written by one release, taken up by the next.

What belongs here: the states, everything in a store as JSON, and back into another store at another time. What must
not be known here: what becomes of the turns.

A recording is moved in time as it is loaded: whatever is a time of the server moves, as if the next release had been
started half an hour after the last one was stopped. Stream ids stay: they only have to rise.
"""

import json
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from channels.delivery.model import Failed, Hopeless
from channels.outbox import reading
from tests.store.turns import Redis
from tests.survive.mortal import Place
from tests.survive.outside import Outside
from tests.survive.scenarios import ANY_SCENARIO
from tests.survive.stores import Store
from tests.survive.story import Story
from worker import ids
from worker.store.lease import SUSPECT_AFTER, Suspected, claim_among_others
from worker.store.records import RECORD_VERSION

RECORDED = Path(__file__).parent / "recorded"
STOPPED_MS = 30 * 60 * 1000
_LEAST_TIME_MS = 10**12
"""What is larger is a time in milliseconds since 1970, in everything that is stored of a turn."""

_TIMES = ("_ms", ":expires")
_OF_LANES = ("free", "served")


@dataclass(frozen=True, slots=True)
class State:
    """A scenario, stopped where its last process dies (or not at all), and what then happens outside."""

    name: str
    scenario: str
    deaths: tuple[Place | None, ...] = ()
    outside: Callable[[Story, list[str]], Awaitable[None]] | None = None


@dataclass(frozen=True, slots=True)
class Recording:
    """`turns`: with the outcome and text that each must come to. `tool_runs`: what tools had done, as in `Ending`.
    `dead`: turns whose delivery is a dead letter; no other delivery had been made. `now_ms`: the server's time.
    """

    state: str
    scenario: str
    version: int
    now_ms: int
    turns: list[dict[str, str]]
    tool_runs: list[list[str]]
    dead: list[str]
    keys: dict[str, Any]


async def _decided(story: Story, turns: list[str]) -> None:
    del turns
    await story.decide()


async def _relayed(story: Story, turns: list[str]) -> None:
    del turns
    await Outside(story.client).relayed()


async def _in_flight(story: Story, turns: list[str]) -> None:
    """Of three deliveries the first is in flight, the second waits for its next attempt, the third is dead."""
    del turns
    outside = Outside(story.client, wait_s=300)
    await outside.relayed()
    await outside.outbox.claim("one", 1)
    (second,) = await outside.outbox.claim("two", 1)
    await outside.outbox.settle([(second, Failed("transient", "http_503", "busy", "yes"))])
    (third,) = await outside.outbox.claim("three", 1)
    await outside.outbox.settle([(third, Hopeless("body_gone", "what it was to tell was lost"))])


async def _reserved(story: Story, turns: list[str]) -> None:
    """A process that drives other turns has found the suspect, and starts one of its own for it."""
    await story.lapse(turns)
    terms = (story.session, ids.new_nonce(), 8, 1, SUSPECT_AFTER)
    suspected = await claim_among_others(story.client, *terms, may_start_one=True)
    assert isinstance(suspected, Suspected)
    assert suspected.reserved


STATES = (
    State("queued", "plain", (("claim: not sent", 1),)),
    State("claimed", "plain", (("claim: unheard", 1),)),
    State("in mid-stream", "plain", (("stage: unheard", 3),)),
    State("before a commit was heard", "tools", (("commit: unheard", 1),)),
    State("tools started", "tools", (("charge 5: has run", 1),)),
    State("tools ended", "tools", (("after RecordToolResult", 2),)),
    State("a resume decided", "a stream that breaks", (("after DiscardCall", 1),)),
    State("asked and driven", "granted", (("before Park", 1),)),
    State("parked", "granted", (("after Park", 1),)),
    State("decided while parked", "granted", (("after Park", 1),), _decided),
    State("parked until it expires", "expired", (("after Park", 1),)),
    State("handed off", "a drain", (None, ("claim: not sent", 1))),
    State("compacted", "compaction", (("after RecordCompaction", 1),)),
    State("an empty answer", "an empty answer", (("after CommitCall", 1),)),
    State("sealed history", "an earlier turn", (("claim: not sent", 1),)),
    State("two queued, one in mid-stream", "two queued turns", (("stage: unheard", 1),)),
    State("relay in the middle of the log", "two queued turns", (("after Seal", 1),), _relayed),
    State("relay behind the log", "two queued turns"),
    State("deliveries under way", "three queued turns", (), _in_flight),
    State("deliveries in lanes", "three queued turns", (), _in_flight),
    State("messages carried in mid-call", "joins", (("stage: unheard", 2),)),
    State("merged", "joins", (("after CommitCall", 2),)),
    State("cancelled with a dead driver", "cancelled before a commit", (("before CommitCall", 2),)),
    State("a suspect in mid-stream", "plain", (("stage: unheard", 3),) * (SUSPECT_AFTER + 1)),
    State("a suspect that is reserved", "plain", (("stage: unheard", 3),) * SUSPECT_AFTER, _reserved),
)


async def record(new_store: Callable[[], Store], state: State) -> Recording:
    """Play the state, and tell what the store holds then."""
    scenario = ANY_SCENARIO[state.scenario]
    calm = await Story(new_store(), scenario, []).told()
    story = Story(new_store(), scenario, list(state.deaths), relays=False)
    turns = await story.begun()
    await story.driven(turns, to_the_last_death=True)
    if state.outside is not None:
        await state.outside(story, turns)
    seconds, microseconds = await story.client.time()
    dead = (await reading.listed(story.client, 100, state="dead")).deliveries
    recording = Recording(
        state=state.name,
        scenario=state.scenario,
        version=RECORD_VERSION,
        now_ms=seconds * 1000 + microseconds // 1000,
        turns=[
            {"turn": turn, "outcome": end.record.outcome or "", "text": end.text}
            for turn, end in zip(turns, calm.turns, strict=True)
        ],
        tool_runs=[list(run) for run in story.tool_runs],
        dead=[delivery.turn for delivery in dead],
        keys=await dumped(story.client),
    )
    await story.client.aclose()
    return recording


def file_of(folder: Path, state: str) -> Path:
    """Where the recording of a state is kept."""
    return folder / f"{state.replace(',', '').replace(' ', '-')}.json"


def write(recording: Recording, folder: Path) -> None:
    """Write it to its file in `folder`."""
    text = json.dumps(asdict(recording), ensure_ascii=False, indent=1, sort_keys=True)
    file_of(folder, recording.state).write_text(text + "\n", encoding="utf-8")


def read(file: Path) -> Recording:
    """Read it from its file."""
    return Recording(**json.loads(file.read_text(encoding="utf-8")))


async def dumped(client: Redis) -> dict[str, Any]:
    """Every key: type, content, and ms until it expires or -1. All that is stored of a turn is text."""
    found: dict[str, Any] = {}
    for key in sorted([key async for key in client.scan_iter("*")]):
        kind = (await client.type(key)).decode()
        content: Any
        match kind:
            case "hash":
                content = _text(await client.hgetall(key))
            case "list":
                content = _text(await client.lrange(key, 0, -1))
            case "string":
                content = (await client.get(key)).decode()
            case "zset":
                content = {member.decode(): score for member, score in await client.zrange(key, 0, -1, withscores=True)}
            case "stream":
                content = [[place.decode(), _text(fields)] for place, fields in await client.xrange(key)]
            case _:
                raise AssertionError(f"{key!r} is a {kind}, and no recording can hold one yet")
        found[key.decode()] = {"type": kind, "expires_ms": await client.pttl(key), "content": content}
    return found


def _text(content: Any) -> Any:
    if isinstance(content, dict):
        return {name.decode(): value.decode() for name, value in content.items()}
    return [each.decode() for each in content]


async def load(client: Redis, recording: Recording) -> None:
    """Put all of it into an empty store, moved to half an hour before its time."""
    assert await client.dbsize() == 0
    seconds, microseconds = await client.time()
    later_ms = seconds * 1000 + microseconds // 1000 - recording.now_ms - STOPPED_MS
    for name, stored in recording.keys.items():
        content = stored["content"]
        match stored["type"]:
            case "hash":
                moved = {field: _moved(field, value, later_ms) for field, value in content.items()}
                await client.hset(name, mapping=moved)
            case "list":
                await client.rpush(name, *content)
            case "string":
                await client.set(name, _moved_delivery(content, later_ms) if ":dlv:" in name else content)
            case "zset":
                scores = {member: _later(score, later_ms) for member, score in content.items()}
                await client.zadd(name, scores)
            case "stream":
                for place, fields in content:
                    await client.xadd(name, fields, id=place)
            case kind:
                raise AssertionError(kind)
        if stored["expires_ms"] > 0:
            await client.pexpire(name, stored["expires_ms"])


def _moved(field: str, value: str, later_ms: int) -> str:
    """A field of a hash: a time, or a record as JSON that holds times, or something else."""
    if field == "record":
        stored = json.loads(value)
        if isinstance(stored, list):
            return json.dumps([_later(each, later_ms) if isinstance(each, int | float) else each for each in stored])
        delivery = stored["delivery"]
        delivery |= {name: _later(delivery[name], later_ms) for name in delivery if name.endswith("_ms")}
        return json.dumps(stored)
    return str(_later(int(value), later_ms)) if value and (field.endswith(_TIMES) or field in _OF_LANES) else value


def _moved_delivery(stored: str, later_ms: int) -> str:
    """A delivery: a line of words, then the record; numbers in both that are large enough are times."""
    line, record = stored.split("\n")
    words = [str(_later(int(word), later_ms)) if word.isdigit() else word for word in line.split()]
    values = [_later(value, later_ms) if isinstance(value, int) else value for value in json.loads(record)]
    return " ".join(words) + "\n" + json.dumps(values)


def _later(time: float, later_ms: int) -> int | float:
    return time + later_ms if time >= _LEAST_TIME_MS else time
