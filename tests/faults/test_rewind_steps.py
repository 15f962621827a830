"""One turn, cut back to every step that its server has taken, at every step that its driver has come to.

The driver learns of it by REWOUND or FENCED, and whoever goes on ends the turn with its text, once. The server is a
real one, killed, robbed of the end of its file, and started again.
"""

from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.faults.rewinding import KINDS
from tests.store.turns import Redis, discard, outputs_of, seal
from tests.support.stack import eventually
from tests.support.valkey import Valkey
from worker import ids
from worker.codecs.events import ToolCall
from worker.errors import Fenced, Rewound
from worker.store import connect, keys
from worker.store.accumulator import ExecutionOutputAccumulator
from worker.store.inbox import NewTurn, submit
from worker.store.lease import Grant, claim
from worker.store.log import LogEntry, read_log
from worker.store.records import read_turn
from worker.turn.facts import Committed, ToolEnded, ToolStarted
from worker.turn.usage import NO_USAGE

TTL_S = 0.3
TEXTS = {1: "I look. ", 2: "It is noon."}
Verb = Callable[[], Awaitable[None]]


def left_of(grant: Grant, accumulator: ExecutionOutputAccumulator) -> Iterator[Verb]:
    """The verbs with which a driver ends a turn of two calls and a tool, from where its journal stands.

    The first attempt of all dies.
    """
    whole = [fact for fact in grant.facts if isinstance(fact, Committed)]
    tools = [type(fact) for fact in grant.facts if isinstance(fact, ToolStarted | ToolEnded)]
    progress = grant.progress
    if progress.is_open:
        yield lambda: discard(accumulator, progress.call, progress.attempt)
    for call in range(len(whole) + 1, 3):
        if call == 2:
            if ToolStarted not in tools:
                yield lambda: accumulator.tool_start(1, 0, [])
            if ToolEnded not in tools:
                yield lambda: accumulator.record(ToolEnded(1, 0, "noon", None), [])
        attempt = progress.attempt + 1 if progress.call == call else 1
        yield partial(accumulator.open_call, call, attempt, 0, attempt == 1)
        if (call, attempt) == (1, 1):
            yield lambda: discard(accumulator, 1, 1)
            yield lambda: accumulator.open_call(1, 2, 1, False)
            attempt = 2
        yield partial(commit, accumulator, call, attempt)
    yield lambda: seal(accumulator)


async def commit(accumulator: ExecutionOutputAccumulator, call: int, attempt: int) -> None:
    tool_calls = (ToolCall("id", "clock", "{}", {}),) if call == 1 else ()
    fact = Committed(call, attempt, TEXTS[call], tool_calls, "tool_calls" if tool_calls else "stop", None)
    await accumulator.commit(fact, NO_USAGE, [])


async def granted(client: Redis, session: str, nonce: str) -> Grant:
    """The turn, once it may be had: a driver that has gone holds its lease until that ends."""

    async def look() -> Grant | None:
        return await claim(client, session, nonce, TTL_S, 1)

    found = await eventually(look, lambda grant: grant is not None, f"a grant of {session}")
    assert found is not None
    return found


async def gone_on(client: Redis, session: str, nonce: str) -> None:
    """Claim the session and drive its turn to the end."""
    grant = await granted(client, session, nonce)
    accumulator = ExecutionOutputAccumulator(client, grant, lambda: True)
    for verb in left_of(grant, accumulator):
        await verb()


@pytest.mark.requirement("faults:rewind:every-step")
@pytest.mark.timeout(120)
async def test_a_turn_cut_back_to_any_step_is_ended_by_who_finds_it_with_its_text_once(tmp_path: Path) -> None:
    told: set[str] = set()
    with Valkey(tmp_path / "valkey", "appendfsync always") as server:
        for taken in range(1, 10):
            for kept in range(taken + 1):
                told.add(await cut_back(server, taken, kept))
    assert told == {"went on", "rewound", "fenced", "had ended"}


async def cut_back(server: Valkey, taken: int, kept: int) -> str:
    """Drive a turn for `taken` verbs; cut the file behind its claim and `kept` of them (0: before the claim); go on.

    Tells how the driver's next verb was answered.
    """
    client = connect.open_redis(server.url)
    session, nonce = ids.new_session(), ids.new_nonce()
    turn = ids.new_turn(0)
    await submit(client, NewTurn(turn, session, "When?", "default", "test", {}, (), None, 7200), 1)
    grant = await granted(client, session, nonce)
    accumulator = ExecutionOutputAccumulator(client, grant, lambda: True)
    verbs = list(left_of(grant, accumulator))
    for verb in verbs[:taken]:
        await verb()
    server.kill()
    steps = server.steps()
    claims = [at for at, step in enumerate(steps) if KINDS["claim"](step)]
    server.cut(steps[claims[-1] + kept].end if kept else steps[claims[-1] - 1].end)
    server.start()
    driver, client = client, connect.open_redis(server.url)
    told = "had ended"
    if taken < len(verbs):
        try:
            await verbs[taken]()
            told = "went on"
            for verb in verbs[taken + 1 :]:
                await verb()
        except Rewound:  # the store knows this driver by its nonce
            told = "rewound"
            await gone_on(client, session, nonce)
        except Fenced:
            told = "fenced"
    record = await read_turn(client, turn)
    assert record is not None
    if record.outcome is None:
        await gone_on(client, session, ids.new_nonce())
    await whole(client, turn)
    await client.aclose()
    await driver.aclose()
    return told


async def whole(client: Redis, turn: str) -> None:
    """The turn has ended as an undisturbed one does, but for attempts that died."""
    assert await client.get(keys.text(turn)) == "".join(TEXTS.values()).encode()
    record = await read_turn(client, turn)
    assert record is not None
    assert record.outcome == "completed"
    outputs = await outputs_of(client, turn)
    assert [output.seq for output in outputs] == list(range(1, len(outputs) + 1))
    log = await read_log(client, 0, "0-0", 1000, 0)
    entries = [entry for entry in log if isinstance(entry, LogEntry) and entry.turn == turn]
    assert [entry.kind for entry in entries if entry.kind != "discard"] == ["commit", "commit", "seal"]
    assert len({entry.event_id for entry in entries}) == len(entries)
