"""What every test of the web process may ask for."""

import socket
from collections.abc import AsyncIterator

import pytest

from tests.support.web import Served, serving, web_settings


@pytest.fixture
async def web(real_url: str) -> AsyncIterator[Served]:
    """A web process of its own, on an empty store."""
    async with serving(web_settings(real_url)) as served:
        yield served


@pytest.fixture
def unused_port() -> int:
    """A port of the loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
