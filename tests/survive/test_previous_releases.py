"""What an earlier release has stored is taken up by this one, and driven to the end that it would have had."""

from pathlib import Path

import pytest

from channels.outbox import reading, replaying, upkeep
from tests.survive.judging import check_outputs
from tests.survive.recordings import RECORDED, STATES, Recording, file_of, load, read
from tests.survive.scenarios import ANY_SCENARIO
from tests.survive.stores import NewStore
from tests.survive.story import Ending, Story
from worker.store.records import RECORD_VERSION

FILES = sorted(RECORDED.glob("v*/*.json"))


def ids(file: Path) -> str:
    return f"{file.parent.name}-{file.stem}"


async def taken_up(story: Story, recording: Recording) -> Ending:
    """The recorded turns, driven to their ends by what this release is."""
    await load(story.client, recording)
    story.tool_runs += [(name, key) for name, key in recording.tool_runs]
    turns = [turn["turn"] for turn in recording.turns]
    await story.driven(turns)
    return await story.ended(turns)


@pytest.mark.requirement("survive:previous-release")
@pytest.mark.parametrize("file", FILES, ids=ids)
async def test_a_turn_that_an_earlier_release_left_behind_comes_to_its_end(new_store: NewStore, file: Path) -> None:
    recording = read(file)
    story = Story(new_store(), ANY_SCENARIO[recording.scenario], [])
    ending = await taken_up(story, recording)
    found = [{"turn": end.record.turn, "outcome": end.record.outcome, "text": end.text} for end in ending.turns]
    assert found == recording.turns
    for end in ending.turns:
        check_outputs(end)
        assert end.record.marker == len(end.text.encode())
    assert sorted(ending.sent) == sorted(
        (turn["turn"], f"turn.{turn['outcome']}", turn["text"])
        for turn in recording.turns
        if turn["turn"] not in recording.dead and turn["outcome"] != "merged"
    )
    once = [key for name, key in ending.tool_runs if not name.startswith("look")]
    assert len(once) == len(set(once))


@pytest.mark.requirement("survive:previous-release:dead-letters")
async def test_a_dead_letter_of_an_earlier_release_can_be_replayed(new_store: NewStore) -> None:
    for file in FILES:
        recording = read(file)
        if not recording.dead:
            continue
        store = new_store()
        client = store.connect()
        await load(client, recording)
        await upkeep.adopt(client, 0)
        dead = (await reading.listed(client, 10, state="dead")).deliveries
        assert [delivery.turn for delivery in dead] == recording.dead
        for delivery in dead:
            await replaying.replay(client, delivery.id)
        again = (await reading.listed(client, 10)).deliveries
        assert {delivery.turn for delivery in again if delivery.state == "queued"} == set(recording.dead)
        await client.aclose()


@pytest.mark.requirement("survive:previous-release:idempotency")
@pytest.mark.parametrize("file", FILES, ids=ids)
async def test_a_message_that_an_earlier_release_has_taken_is_not_taken_again(new_store: NewStore, file: Path) -> None:
    recording = read(file)
    story = Story(new_store(), ANY_SCENARIO[recording.scenario], [])
    await load(story.client, recording)
    before = await story.client.dbsize()
    again = [await story.submit(message) for message in story.scenario.messages]
    assert again == [turn["turn"] for turn in recording.turns]
    assert await story.client.dbsize() == before
    await story.client.aclose()


@pytest.mark.requirement("survive:previous-release:recorded")
def test_every_state_is_recorded_for_the_release_after_this_one() -> None:
    """A new state, or a new record version, is recorded with `python -m tests.survive.record_states`."""
    folder = RECORDED / f"v{RECORD_VERSION}"
    assert [state.name for state in STATES if not file_of(folder, state.name).exists()] == []
