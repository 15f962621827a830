"""What a newer release has written is left to that release, and everything else goes on: a deploy half done."""

import json
from typing import Any

import pytest

from channels.delivery import model
from channels.outbox import reading
from tests.store.lossy import dump
from tests.store.turns import Redis
from tests.survive.mortal import Fate
from tests.survive.outside import Outside
from tests.survive.scenarios import ANY_SCENARIO
from tests.survive.stores import NewStore, Store
from tests.survive.story import Story
from worker.store import approvals, keys, log, pending
from worker.store.records import RECORD_VERSION

APPROVALS_VERSION = 1


async def stored(client: Redis, turn: str, session: str) -> dict[str, Any]:
    """All keys of one turn and of its session."""
    everything = await dump(client)
    return {name: content for name, content in everything.items() if name.endswith((f":{turn}", f":{session}"))}


async def begun(store: Store, session: str, scenario: str = "plain") -> tuple[Story, str]:
    story = Story(store, ANY_SCENARIO[scenario], [("after Park", 1)] if scenario == "granted" else [], session)
    (turn,) = await story.begun()
    return story, turn


@pytest.mark.requirement("survive:newer:turn")
@pytest.mark.parametrize("where", ["turn", "session"])
async def test_a_turn_of_a_newer_release_is_not_driven_and_others_are(new_store: NewStore, where: str) -> None:
    store = new_store()
    newer, theirs = await begun(store, "chat/newer")
    record = keys.turn_record(theirs) if where == "turn" else keys.session_record(0, newer.session)
    await newer.client.hset(record, "v", RECORD_VERSION + 1)
    before = await stored(newer.client, theirs, newer.session)
    assert not await newer.process(Fate()).run(newer.session)
    ours, turn = await begun(store, "chat/1")
    await ours.driven([turn])
    ended = await ours.ended([turn])
    assert ended.turns[0].text == "The tide is low at four."
    assert [each[0] for each in ended.sent] == [turn]
    assert await stored(newer.client, theirs, newer.session) == before
    assert await newer.client.zscore(keys.due(0), keys.DUE_LEASE + newer.session) is not None
    await newer.client.hset(record, "v", RECORD_VERSION)
    await newer.driven([theirs])
    assert (await newer.ended([theirs])).turns[0].text == "The tide is low at four."


@pytest.mark.requirement("survive:newer:approvals")
async def test_approvals_of_a_newer_release_are_neither_decided_nor_expired_and_others_are(
    new_store: NewStore,
) -> None:
    store = new_store()
    newer, theirs = await begun(store, "chat/newer", "granted")
    await newer.driven([theirs], to_the_last_death=True)
    (waiting,) = await pending.find_all(newer.client, 1)
    await newer.client.hset(keys.approvals(theirs), mapping={"v": APPROVALS_VERSION + 1, "1_0:expires": 1})
    await newer.client.zadd(keys.due(0), {keys.DUE_APPROVAL + theirs: 1})
    before = await stored(newer.client, theirs, newer.session)
    ours, turn = await begun(store, "chat/1", "granted")
    await ours.driven([turn], to_the_last_death=True)
    assert await approvals.resolve(newer.client, waiting.approval, "approve_once", "ana") == "persist_failed"
    approvals.expire_due(store.sync, 0)
    (mine,) = [each for each in await pending.find_all(ours.client, 1) if each.turn == turn]
    assert not isinstance(await approvals.resolve(ours.client, mine.approval, "approve_once", "ana"), str)
    await ours.driven([turn])
    assert (await ours.ended([turn])).turns[0].text == "May I? That is that."
    assert await stored(newer.client, theirs, newer.session) == before
    await newer.client.aclose()


@pytest.mark.requirement("survive:newer:log")
async def test_a_log_entry_of_a_newer_release_is_kept_for_it_and_those_behind_it_are_delivered(
    new_store: NewStore,
) -> None:
    story, turn = await begun(new_store(), "chat/1")
    newer, theirs = await begun(story.store, "chat/newer")
    await newer.client.aclose()
    entry = {"v": log.LOG_VERSION + 1, "kind": "seal", "event": "evt_1", "turn": theirs, "call": 1, "new": "word"}
    place = await story.client.xadd(keys.log(0), {**entry, "outcome": "completed"})
    await story.driven([turn])
    assert story.unreadable == {place.decode()}
    outside = Outside(story.client)
    await outside.relayed()
    assert [each[0] for each in await outside.delivered()] == [turn]
    assert (await reading.listed(story.client, 10, state="dead")).deliveries == []
    await story.client.delete(keys.log(0))  # trimmed long ago
    with pytest.MonkeyPatch.context() as newer_release:
        newer_release.setattr(log, "LOG_VERSION", log.LOG_VERSION + 1)
        await outside.relayed()
    assert [each[0] for each in await outside.delivered()] == [theirs]
    await story.client.aclose()


@pytest.mark.requirement("survive:newer:delivery")
async def test_a_delivery_of_a_newer_release_is_left_alone_and_others_are_sent(new_store: NewStore) -> None:
    story = Story(new_store(), ANY_SCENARIO["three queued turns"], [])
    turns = await story.begun()
    await story.driven(turns)
    outside = Outside(story.client)
    await outside.relayed()
    listed = (await reading.listed(story.client, 10)).deliveries
    (first,) = [each for each in listed if each.turn == turns[0]]
    record = f"lw:{{p00}}:dlv:{first.id}"
    line, _, written = (await story.client.get(record)).partition(b"\n")
    newer = [model.RECORD_VERSION + 1, *json.loads(written)[1:], {"channel": "of tomorrow"}]
    before = line + b"\n" + json.dumps(newer).encode()
    await story.client.set(record, before)
    assert [each[0] for each in await outside.delivered()] == turns[1:]
    assert await story.client.get(record) == before
    assert await story.client.zscore(f"lw:{{dlv}}:due:{first.lane}", first.id) is not None
    await story.client.aclose()
