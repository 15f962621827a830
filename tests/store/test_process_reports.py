"""What processes tell of themselves, and for how long it counts."""

from typing import Any

import pytest
import redis

from tests.store.turns import Redis
from tests.support.stack import eventually
from worker.store import keys
from worker.store.processes import Told, figures, living, report

TOLD = Told("turns", "turns@here:1:aa", "here", 1, "0.1", 3, draining=False, stopped=False, loop_lag_s=0.01)


@pytest.fixture
def blocking(request: pytest.FixtureRequest, any_redis: Redis) -> Any:
    """A blocking client of the same server."""
    if "fake" in request.node.callspec.id:
        import fakeredis  # noqa: PLC0415 - the real server needs none

        return fakeredis.FakeRedis(server=any_redis.connection_pool.connection_kwargs["server"])
    return redis.Redis.from_url(request.getfixturevalue("real_url"))


@pytest.mark.requirement("status:shows:all")
async def test_who_has_told_of_itself_lately_lives(any_redis: Redis, blocking: Any) -> None:
    report(blocking, "one", TOLD, b"x 1\n", 60)
    report(blocking, "two", TOLD, b"y 2\n", 60)
    report(blocking, "one", TOLD, b"x 2\n", 60)
    one, two = await living(any_redis)
    assert (one.id, two.id, one.told) == ("one", "two", TOLD)
    assert one.since_ms <= one.seen_ms
    assert await figures(any_redis) == {"one": ("turns", b"x 2\n"), "two": ("turns", b"y 2\n")}
    assert 0 < await any_redis.pttl(keys.process("one")) <= 180_000


@pytest.mark.requirement("metrics:scrape:gone")
async def test_who_misses_three_reports_is_gone_and_leaves_nothing(any_redis: Redis, blocking: Any) -> None:
    report(blocking, "one", TOLD, b"x 1\n", 0.05)
    await eventually(lambda: living(any_redis), lambda seen: not seen, "the end of a process that tells nothing", 10)
    assert await figures(any_redis) == {}
    report(blocking, "two", TOLD, b"x 1\n", 60)
    assert await any_redis.zrange(keys.PROCESSES, 0, -1) == [b"two"]
    assert await any_redis.exists(keys.process("one")) == 0


@pytest.mark.requirement("metrics:scrape:broken")
async def test_a_report_of_a_newer_version_is_passed_over(any_redis: Redis, blocking: Any) -> None:
    report(blocking, "one", TOLD, b"x 1\n", 60)
    await any_redis.hset(keys.process("one"), "v", 2)
    assert await living(any_redis) == []
    assert await figures(any_redis) == {}
