"""What an endpoint held while it was paused is sent once it is resumed, whatever becomes of who resumes it."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
import redis

from channels import endpoint_desk
from channels.delivery import model
from channels.delivery.lane import Lane
from channels.delivery.replay import Bounds
from channels.endpoint_desk import EndpointDesk
from channels.outbox import keys, lanes, owing, reading
from channels.outbox.stored import LANE_VERSION, encode_lane
from channels.replays import stored
from channels.replays.starting import release
from tests.delivery.outboxes import box, inserted, known
from tests.endpoints.test_deleted_endpoints import CRM, settings_of
from worker.errors import NewerRecord
from worker.store import clock

Step = Callable[..., Awaitable[Any]]


def broken_off(step: Step, *, behind: bool) -> Step:
    """A step before which, or behind which, the connection breaks."""

    async def broken(*arguments: Any, **named: Any) -> None:
        if behind:
            await step(*arguments, **named)
        raise redis.ConnectionError

    return broken


async def holding(client: Any, folder: Path) -> EndpointDesk:
    """A desk at which `crm` was made, paused, and holds something."""
    desk = EndpointDesk(settings_of(folder), client)
    await desk.create("crm", CRM)
    await desk.pause("crm", "for now")
    await inserted(client, "evt_1", "evt_2")
    await box(client).claim("holds what is due", 10)
    assert await reading.held_count(client, "crm") == 2
    return desk


BREAKS = [
    pytest.param(where, name, behind, id=f"{'behind' if behind else 'before'} {name}")
    for where, name in ((lanes, "resume"), (endpoint_desk, "release"))
    for behind in (False, True)
]


@pytest.mark.requirement("operating:held:repeated")
@pytest.mark.parametrize(("where", "name", "behind"), BREAKS)
async def test_a_resume_that_was_broken_off_is_repeated(
    any_redis: Any, tmp_path: Path, where: Any, name: str, behind: bool
) -> None:
    desk = await holding(any_redis, tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(where, name, broken_off(getattr(where, name), behind=behind))
        with pytest.raises(redis.ConnectionError):
            await desk.resume("crm", "me")
    again = await desk.resume("crm", "me")
    assert again.lane.standing == "active"
    assert again.replay in [job.id for job in await stored.listed(any_redis, 10)]
    assert (await desk.resume("crm", "me")).replay == "", "nothing is owed any more"


@pytest.mark.requirement("operating:held:repeated")
async def test_an_enable_that_is_repeated_sends_nothing_of_what_was_held(any_redis: Any, tmp_path: Path) -> None:
    desk = await holding(any_redis, tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lanes, "resume", broken_off(lanes.resume, behind=False))
        with pytest.raises(redis.ConnectionError):
            await desk.resume("crm", "me")
    await desk.disable("crm", "by hand")
    for _ in range(2):
        assert ((await desk.resume("crm", "me")).held, await stored.listed(any_redis, 10)) == (2, [])
    assert (await desk.resume("crm", "me", replay=True)).replay


@pytest.mark.requirement("operating:held:newer")
async def test_a_held_one_of_a_newer_release_keeps_none_of_the_others_held(any_redis: Any) -> None:
    first, *_ = await inserted(any_redis, "evt_1", "evt_2", "evt_3")
    await known(any_redis, first)
    await lanes.pause(any_redis, "crm", "for now")
    await box(any_redis).claim("holds what is due", 10)
    oldest = (await any_redis.zrange(keys.held("crm"), 0, 0))[0].decode()
    line, _, record = (await any_redis.get(keys.record(oldest))).partition(b"\n")
    newer = [model.RECORD_VERSION + 1, *orjson.loads(record)[1:]]
    await any_redis.set(keys.record(oldest), line + b"\n" + orjson.dumps(newer))
    await lanes.resume(any_redis, "crm")
    job = await release(any_redis, "crm", await clock.now_ms(any_redis), by="me", bounds=Bounds())
    assert job is not None


async def with_a_newer_lane(client: Any, folder: Path) -> EndpointDesk:
    """A desk at which `crm` was made, of which a newer release wrote what is known of it."""
    desk = EndpointDesk(settings_of(folder), client)
    await desk.create("crm", CRM)
    record = orjson.dumps([LANE_VERSION + 1, *orjson.loads(encode_lane(Lane(3)))[1:]])
    await client.hset(keys.lane("crm"), mapping={"mark": "3:abcd", "record": record})
    return desk


@pytest.mark.requirement("outbox:left-alone")
async def test_a_resume_that_is_refused_leaves_nothing_behind(any_redis: Any, tmp_path: Path) -> None:
    desk = await with_a_newer_lane(any_redis, tmp_path)
    before = await any_redis.hgetall(keys.lane("crm"))
    with pytest.raises(NewerRecord):
        await desk.resume("crm", "me")
    assert await any_redis.hgetall(keys.lane("crm")) == before


@pytest.mark.requirement("outbox:left-alone")
async def test_an_update_is_stored_and_told_so_also_where_the_lane_is_left_alone(
    any_redis: Any, tmp_path: Path
) -> None:
    desk = await with_a_newer_lane(any_redis, tmp_path)
    await desk.update("crm", {"timeout_s": 7.0})
    assert (await desk.show("crm")).definition.timeout_s == 7.0


@pytest.mark.requirement("operating:held:repeated")
async def test_what_is_owed_beside_no_lane_does_not_stay_for_ever(any_redis: Any) -> None:
    await owing.owe(any_redis, "crm", owes=True)
    assert await any_redis.pttl(keys.lane("crm")) > 0
