"""What tests of survival may ask for: stores, the fake and the real."""

from collections.abc import Iterator
from functools import partial

import pytest
import redis

from channels.embedded import EmbeddedServer
from tests.survive.stores import NewStore, fake_store, real_store

pytest.register_assert_rewrite("tests.survive.judging")


@pytest.fixture(scope="session")
def sure_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """One embedded server as `lastword up` starts it: each write is on its disk at once."""
    server = EmbeddedServer(tmp_path_factory.mktemp("sure-valkey"))
    server.start()
    yield server
    server.stop()


@pytest.fixture(params=["fake", "real"])
def new_store(request: pytest.FixtureRequest) -> Iterator[NewStore]:
    """Gives an empty store: the fake, then the real."""
    if request.param == "fake":
        yield NewStore("fake", fake_store)
        return
    server: EmbeddedServer = request.getfixturevalue("sure_server")
    with redis.Redis.from_url(server.url) as client:
        yield NewStore("real", partial(real_store, server.url, client))
