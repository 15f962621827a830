"""Coroutines on the loop of a process without a thread each: so many at a time, and none is forgotten."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor

import pytest

from worker.engine.loop import LoopThread
from worker.engine.seats import Seats

WITHIN_S = 10.0


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    thread = LoopThread("seats-test")
    thread.start()
    yield thread
    thread.stop()


async def until(event: threading.Event) -> None:
    await asyncio.to_thread(event.wait, WITHIN_S)


@pytest.mark.requirement("engine:seats:bound")
def test_who_hands_over_one_too_many_waits_until_a_seat_is_free(loop: LoopThread) -> None:
    seats, goes = Seats(loop, 2), threading.Event()
    ran: list[int] = []

    async def work(number: int) -> None:
        ran.append(number)
        await until(goes)

    with ThreadPoolExecutor() as pool:
        for number in range(2):
            seats.take(lambda number=number: work(number), lambda _: None)  # type: ignore[misc]
        assert seats.free == 0
        third = pool.submit(seats.take, lambda: work(2), lambda _: None)
        with pytest.raises(TimeoutError):
            third.result(0.2)
        assert sorted(ran) == [0, 1]
        goes.set()
        third.result(WITHIN_S)
        seats.wait()
    assert sorted(ran) == [0, 1, 2]
    assert seats.free == 2


@pytest.mark.requirement("engine:seats:end")
def test_every_end_is_told_once_and_frees_its_seat(loop: LoopThread) -> None:
    seats = Seats(loop, 3)
    told: list[BaseException | None] = []

    async def returns() -> None:
        pass

    async def raises() -> None:
        raise LookupError

    async def is_cancelled() -> None:
        raise asyncio.CancelledError

    for work in (returns, raises, is_cancelled):
        seats.take(work, told.append)
    seats.wait()
    assert seats.free == 3
    assert {type(error) for error in told} == {type(None), LookupError, CancelledError}
    assert len(told) == 3
