"""What every test may ask for: a Redis (fake or real), and nothing that reaches beyond the loopback."""

import logging
import signal
from collections.abc import AsyncIterator, Iterator

import fakeredis
import pytest
import redis
import redis.asyncio
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings

from channels.embedded import EmbeddedServer
from tests.support.ports import free_port

# How long an example takes says something of the machine, and nothing of the code.
hypothesis_settings.register_profile("lastword", deadline=None, suppress_health_check=[HealthCheck.too_slow])
hypothesis_settings.load_profile("lastword")

# Processes that tests start would inherit what `nohup`, or a shell's `&`, makes this one ignore.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """A test that configures logging writes to its own standard error, which no later test has."""
    ours = logging.getLogger("lastword")
    handlers, level = ours.handlers[:], ours.level
    yield
    ours.handlers[:] = handlers
    ours.setLevel(level)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def unused_port() -> int:
    """A port of the loopback that nobody listens on."""
    return free_port()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """One embedded server for the whole run."""
    server = EmbeddedServer(tmp_path_factory.mktemp("valkey"), fsync="everysec")
    server.start()
    yield server
    server.stop()


@pytest.fixture
def real_url(server: EmbeddedServer) -> str:
    """The URL of the real server, emptied."""
    with redis.Redis.from_url(server.url) as client:
        client.flushall()
        client.script_flush()
    return server.url


@pytest.fixture
async def real_redis(real_url: str) -> AsyncIterator[redis.asyncio.Redis]:
    """A client of the real server, emptied."""
    client = redis.asyncio.Redis.from_url(real_url)
    yield client
    await client.aclose()


@pytest.fixture
async def fake_redis() -> AsyncIterator[redis.asyncio.Redis]:
    """A client of a fake server of its own."""
    client = fakeredis.FakeAsyncRedis(server=fakeredis.FakeServer(version=(7,)))
    yield client
    await client.aclose()


@pytest.fixture(params=["fake", "real"])
def any_redis(request: pytest.FixtureRequest) -> redis.asyncio.Redis:
    """The fake, then the real: what both must do alike."""
    client: redis.asyncio.Redis = request.getfixturevalue(f"{request.param}_redis")
    return client
