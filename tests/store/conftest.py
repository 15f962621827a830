"""What tests of the store may ask for beside any Redis."""

from collections.abc import Iterator

import fakeredis
import pytest
import redis

from tests.store.turns import Redis


@pytest.fixture
def blocking(request: pytest.FixtureRequest, any_redis: Redis) -> Iterator[redis.Redis]:
    """A blocking client of the same server as `any_redis`."""
    if isinstance(any_redis, fakeredis.FakeAsyncRedis):
        client: redis.Redis = fakeredis.FakeRedis(server=any_redis.connection_pool.connection_kwargs["server"])
    else:
        client = redis.Redis.from_url(request.getfixturevalue("real_url"))
    yield client
    client.close()
