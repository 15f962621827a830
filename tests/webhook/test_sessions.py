"""Sessions: how long one lives, and what an attempt that is cut off leaves behind."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trustme

from channels.endpoints.model import Tls
from channels.webhook.sessions import Sessions
from tests.support.certificates import ca_file
from tests.support.posting import Opened, trusting_nobody

AUTHORITY = trustme.CA()


@asynccontextmanager
async def sessions_of(opened: Opened, most: int = 64) -> AsyncIterator[Sessions]:
    sessions = Sessions(direct=opened, proxied=opened, context=trusting_nobody, most=most)
    try:
        yield sessions
    finally:
        await sessions.close()
    assert opened.still_open == []


def tls_of(folder: Path, count: int) -> list[Tls]:
    return [Tls(ca_file(AUTHORITY, folder, f"{number}.pem")) for number in range(count)]


@pytest.mark.requirement("hostile:cut-off")
async def test_an_attempt_that_is_cut_off_while_an_old_session_closes_leaves_none_open_or_in_use(
    tmp_path: Path,
) -> None:
    opened, closing, close_it = Opened(), asyncio.Event(), asyncio.Event()
    async with sessions_of(opened) as sessions:
        tls = Tls(ca_file(AUTHORITY, tmp_path))
        first = await sessions.take(tls, proxied=False)
        await sessions.give_back(first)
        close = first.session.close

        async def slowly() -> None:
            closing.set()
            await close_it.wait()
            await close()

        first.session.close = slowly  # type: ignore[method-assign]
        ca_file(trustme.CA(), tmp_path)
        cut_off = asyncio.get_running_loop().create_task(sessions.take(tls, proxied=False))
        await closing.wait()
        cut_off.cancel()
        await asyncio.wait([cut_off])
        assert cut_off.cancelled()
        close_it.set()
        second = await sessions.take(tls, proxied=False)
        assert (second.users, second.session is opened.sessions[1]) == (1, True)
        await sessions.give_back(second)


@pytest.mark.requirement("hostile:sessions-kept")
async def test_of_too_many_sessions_those_unused_for_longest_are_closed(tmp_path: Path) -> None:
    opened = Opened()
    first, second, third = tls_of(tmp_path, 3)
    async with sessions_of(opened, most=2) as sessions:
        for tls in (first, second, first, third):
            await sessions.give_back(await sessions.take(tls, proxied=False))
        assert [session.closed for session in opened.sessions] == [False, True, False]


@pytest.mark.requirement("hostile:sessions-kept")
async def test_a_session_that_was_replaced_is_closed_when_the_last_attempt_on_it_is_over(tmp_path: Path) -> None:
    opened = Opened()
    tls = Tls(ca_file(AUTHORITY, tmp_path))
    async with sessions_of(opened) as sessions:
        one, other = [await sessions.take(tls, proxied=False) for _ in range(2)]
        assert one is other
        ca_file(trustme.CA(), tmp_path)
        await sessions.give_back(await sessions.take(tls, proxied=False))
        closed = [one.session.closed]
        for _ in range(2):
            await sessions.give_back(one)
            closed.append(one.session.closed)
        assert closed == [False, False, True]
