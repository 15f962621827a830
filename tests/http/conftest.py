"""What the tests of requests share."""

from collections.abc import AsyncIterator

import httpx
import pytest

from tests.support.egress import guard
from worker.http import open_client


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with open_client(connect_timeout_s=2, guard=guard()) as client:
        yield client
