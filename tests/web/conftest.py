"""What every test of the web process may ask for."""

from collections.abc import AsyncIterator

import pytest

from tests.support.web import Served, serving, web_settings


@pytest.fixture
async def web(real_url: str) -> AsyncIterator[Served]:
    """A web process of its own, on an empty store."""
    async with serving(web_settings(real_url)) as served:
        yield served
