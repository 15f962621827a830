"""Public bug reports on redelivery, zombies and recovery, as cases: whoever wakes a turn, one owner drives it."""

import asyncio
from typing import Any

import pytest

from tests.store.lossy import Lossy, dump
from tests.store.turns import (
    commit,
    discard,
    driven,
    driver_of,
    granted,
    outputs_of,
    seal,
    snapshot_of,
    taken,
)
from tests.survive.judging import check_outputs
from tests.survive.mortal import Asked, Drains, Fate, Silence, Step
from tests.survive.scenarios import ANY_SCENARIO, Scenario, says
from tests.survive.stores import NewStore
from tests.survive.story import MOST_LIVES, Story
from worker.codecs.events import TextDelta
from worker.codecs.messages import AssistantMessage
from worker.errors import Fenced
from worker.output.events import TextDeltaOutput
from worker.store import keys, lease
from worker.store.log import read_log
from worker.store.ops import STAGE
from worker.store.tick import StagingTick
from worker.turn.facts import ToolEnded

PATIENCE_S = 20


class Held(Fate):
    """A process that stands still in mid-stream, until it may end."""

    def __init__(self) -> None:
        super().__init__()
        self.streams = asyncio.Event()
        self.may_end = asyncio.Event()

    async def passes(self, what: str) -> None:
        await super().passes(what)
        if what == "after StageText":
            self.streams.set()
            await self.may_end.wait()


@pytest.mark.requirement("cases:t14:redelivery-while-alive")
async def test_a_second_wake_up_of_a_living_turn_finds_its_lease_and_leaves(new_store: NewStore) -> None:
    story = Story(new_store(), ANY_SCENARIO["plain"], [])
    held = Held()
    (turn,) = await story.begun()
    driving = asyncio.ensure_future(story.process(held).run(story.session))
    await asyncio.wait_for(held.streams.wait(), PATIENCE_S)
    before = await dump(story.client)
    for _ in range(3):
        assert not await story.process(Fate()).run(story.session)
    assert await dump(story.client) == before
    held.may_end.set()
    assert not await asyncio.wait_for(driving, PATIENCE_S)
    ending = await story.ended([turn])
    assert ending.turns[0].text == "The tide is low at four."
    assert len(ending.asked) == 1
    assert ending.turns[0].record.discards == 0


@pytest.mark.requirement("cases:bug:finished-is-not-run-again")
async def test_a_wake_up_of_a_finished_turn_changes_nothing(new_store: NewStore) -> None:
    story = Story(new_store(), ANY_SCENARIO["tools"], [])
    (turn,) = await story.begun()
    await story.driven([turn])
    before = await dump(story.client)
    for _ in range(2):
        assert not await story.process(Fate()).run(story.session)
    assert await dump(story.client) == before
    ending = await story.ended([turn])
    assert len(ending.asked) == 3
    assert len(ending.sent) == 1


@pytest.mark.requirement("cases:t15:refused")
async def test_an_owner_that_slept_past_its_lease_is_refused_in_everything(new_store: NewStore) -> None:
    """Both owners are of the same process: what is fenced is the acquisition, not a name."""
    store = new_store()
    client = store.connect()
    grant = await granted(client, watch_s=60)
    zombie = driver_of(client, grant)
    await zombie.open_call(1, 1, 0, True)
    zombie.stage_text("old")
    tick = StagingTick(client)
    tick.add(zombie)
    await tick.flush()
    zombie.stage_text(" and older")
    await client.hset(keys.turn_record(zombie.turn), "lease_ms", 1)
    owner = driver_of(client, await taken(client))
    await discard(owner, 1, 1)
    await owner.open_call(1, 2, 0, False)
    before = await dump(client)
    await tick.flush()
    (renewal,) = lease.renew(store.sync, 0, [(zombie.turn, grant.nonce)], 8)
    assert not renewal.held
    for late in (
        zombie.release,
        lambda: commit(zombie, 1, 1, "old"),
        lambda: discard(zombie, 1, 1),
        lambda: zombie.record(ToolEnded(1, 0, "old", None), []),
        lambda: seal(zombie),
    ):
        with pytest.raises(Fenced):
            await late()
    assert await dump(client) == before
    await commit(owner, 1, 2, "new")
    await seal(owner)
    assert (await snapshot_of(client, owner.turn)).text == "new"
    told = [output for output in await outputs_of(client, owner.turn) if isinstance(output, TextDeltaOutput)]
    assert [(output.attempt, output.text) for output in told] == [(1, "old")]
    assert [entry.kind for entry in await read_log(client, 0, "0-0", 10, 0)] == ["discard", "commit", "seal"]  # type: ignore[union-attr]
    await client.aclose()


@pytest.mark.requirement("cases:t16:flush-twice")
async def test_a_flush_that_was_applied_and_is_sent_again_is_appended_once(new_store: NewStore) -> None:
    client = new_store().connect()
    accumulator = await driven(client, watch_s=60)
    lossy = Lossy(client)
    await accumulator.open_call(1, 1, 0, True)
    tick = StagingTick(client)
    tick.add(accumulator)
    accumulator.stage_text("one ")
    await tick.flush()
    accumulator.stage_text("two ")
    lossy.faults.append("reply lost")
    await tick.flush()
    assert not lossy.faults
    accumulator.stage_text("three")
    for _ in range(2):
        await tick.flush()
    assert (await snapshot_of(client, accumulator.turn)).open_text == "one two three"
    deltas = [each.text for each in await outputs_of(client, accumulator.turn) if isinstance(each, TextDeltaOutput)]
    assert deltas == ["one ", "two ", "three"]
    await client.aclose()


@pytest.mark.requirement("cases:t16:flush-too-early")
async def test_a_flush_that_comes_before_the_one_ahead_of_it_is_an_error_and_not_appended(new_store: NewStore) -> None:
    client = new_store().connect()
    grant = await granted(client, watch_s=60)
    accumulator = driver_of(client, grant)
    await accumulator.open_call(1, 1, 0, True)
    accumulator.stage_text("one ")
    flight = accumulator.take_off()
    assert flight is not None
    accumulator.land(None)  # nothing was sent
    before = await dump(client)
    early: list[Any] = accumulator.stage_args(flight)
    early[4] = flight.op + 1
    assert await STAGE(client, flight.keys, early) == [b"REWOUND", b"%d" % (flight.op - 1)]
    assert await dump(client) == before
    tick = StagingTick(client)
    tick.add(accumulator)
    await tick.flush()
    assert (await snapshot_of(client, accumulator.turn)).open_text == "one "
    await client.aclose()


@pytest.mark.requirement("cases:bug:cap-outlives-owners")
async def test_a_turn_that_takes_every_owner_down_is_given_up_whoever_wakes_it(new_store: NewStore) -> None:
    """What counts is kept with the turn: no id of a message or a process begins it afresh."""
    story = Story(new_store(), ANY_SCENARIO["plain"], [("after StageText", 1)] * MOST_LIVES)
    (turn,) = await story.begun()
    await story.driven([turn])
    ending = await story.ended([turn])
    cap = story.settings.turns.crash_cap
    record = ending.turns[0].record
    assert (record.outcome, record.failure and record.failure.code) == ("dead", "crash_cap")
    assert record.suspect_crashes == cap + 1
    assert record.crashes == story.settings.turns.suspect_after + cap + 1
    assert ending.sent == ((turn, "turn.dead", ""),)


@pytest.mark.requirement("cancel:takeover:answer-stands")
async def test_a_cancel_of_a_turn_whose_driver_died_behind_its_whole_answer_finds_the_answer_standing(
    new_store: NewStore,
) -> None:
    story = Story(new_store(), ANY_SCENARIO["plain"], [("after CommitCall", 1)])
    (turn,) = await story.begun()
    await story.driven([turn], to_the_last_death=True)
    await story.cancel(turn)
    await story.lapse([turn])
    await story.driven([turn])
    ending = await story.ended([turn])
    assert (ending.turns[0].record.outcome, ending.turns[0].text) == ("completed", "The tide is low at four.")
    assert ending.sent == ((turn, "turn.completed", "The tide is low at four."),)
    assert len(ending.asked) == 1


def _drains_often(asked: Asked) -> list[Step]:
    if asked.nth <= 6:
        return [TextDelta("Half a sen"), Drains(), Silence()]
    return says("The whole sentence.")


@pytest.mark.requirement("cases:bug:age-is-no-crash")
async def test_a_turn_that_was_handed_on_again_and_again_is_not_given_up(new_store: NewStore) -> None:
    story = Story(new_store(), Scenario("drains", _drains_often), [])
    (turn,) = await story.begun()
    await story.driven([turn])
    ending = await story.ended([turn])
    record = ending.turns[0].record
    assert (record.outcome, ending.turns[0].text) == ("completed", "The whole sentence.")
    assert (record.crashes, record.discards, record.totals.discarded_resume_attempts) == (0, 6, 6)
    check_outputs(ending.turns[0])


@pytest.mark.requirement("cases:bug:orphan-stays-apart")
async def test_what_a_dead_owner_had_streamed_never_joins_the_answer_before_it(new_store: NewStore) -> None:
    story = Story(new_store(), ANY_SCENARIO["an earlier turn"], [("stage: unheard", 1)])
    (turn,) = await story.begun()
    await story.driven([turn])
    ending = await story.ended([turn])
    assert ending.turns[0].text == "So: And now? After 7 messages."
    last = ending.asked[-1].request.messages
    answers = [message.text for message in last if isinstance(message, AssistantMessage)]
    assert answers == ["So: First this. ", "After 3 messages.", "So: And now? "]
