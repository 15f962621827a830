"""What the readers of a process together keep it holding: queues, and what they catch up with."""

import asyncio
import gc
import tracemalloc
from collections.abc import AsyncGenerator, Iterable
from typing import Any

import pytest

from channels.web import live, tail
from channels.web.event_stream import EventStream
from channels.web.reader import KEEPALIVE, Reader
from channels.web.tail import LITTLE_BYTES, Frame, Held, Tail
from tests.store.turns import Redis
from tests.support.stack import eventually
from tests.support.web import EventSource, Fold, Served, read_along
from tests.support.written_turn import WrittenTurn
from tests.web.test_live_readers import SCOPE, deltas, take
from worker.output.events import TextDeltaOutput
from worker.output.filters import OutputFilter
from worker.output.snapshot import Place, parse_place
from worker.store import keys

PLENTY = 10**9


def queue_of(held: Held) -> Tail:
    return Tail("turn_1", held, admission="one", deltas=True)


def frame(seq: int, size: int = 10) -> Frame:
    text = TextDeltaOutput(turn="turn_1", seq=seq, at_ms=1, call=1, attempt=1, text="x" * size)
    return Frame((1, seq), text)


@pytest.mark.requirement("readers:held:once")
def test_what_waits_for_several_readers_counts_once_until_the_last_of_them_has_passed_it_on() -> None:
    held = Held(PLENTY)
    queues = [queue_of(held) for _ in range(3)]
    one, two = frame(1), frame(2, 200)
    for each in queues:
        each.offer(one)
        each.offer(two)
    assert held.total == one.size + two.size > 0
    first, second, third = queues
    assert first.take() == [one, two]
    first.passed_on()
    second.take()
    assert held.total == one.size + two.size, "it is still being passed on by one, and waits for another"
    third.take()
    third.offer(three := frame(3, 50))
    assert held.total == one.size + two.size + three.size
    second.passed_on()
    assert held.total == one.size + two.size + three.size
    third.take()
    assert held.total == three.size, "what was taken before is let go when something is taken again"
    third.passed_on()
    assert held.total == 0


@pytest.mark.requirement("readers:held:once")
def test_who_goes_or_loses_his_place_holds_nothing() -> None:
    held = Held(PLENTY)
    gone, lost, anew = (queue_of(held) for _ in range(3))
    gone.offer(taken := frame(1))
    gone.take()
    gone.offer(waiting := frame(2))
    assert held.total == taken.size + waiting.size
    gone.close()
    assert held.total == 0
    lost.offer(frame(1))
    lost.lose("rewound")
    assert (held.total, lost.missed) == (0, "rewound")
    lost.offer(frame(2))
    assert held.total == 0, "until it starts afresh nothing is kept for it"
    anew.offer(frame(1))
    anew.begin()
    assert held.total == 0


@pytest.mark.requirement("readers:held")
def test_where_all_hold_too_much_a_long_queue_is_lost_and_a_short_one_is_kept() -> None:
    held = Held(3 * LITTLE_BYTES)
    long, short = queue_of(held), queue_of(held)
    for seq in range(1, 4):
        long.offer(frame(seq, LITTLE_BYTES - 1_000))
    short.offer(frame(9, 1_000))
    assert (long.missed, short.missed, held.is_full) == (None, None, False)
    short.offer(frame(10, 10_000))
    assert held.is_full
    assert (long.missed, short.missed) == (None, None), "nothing came for the long one"
    long.offer(frame(4))
    assert (long.missed, short.missed, held.is_full) == ("missed", None, False)
    assert [each.place[1] for each in short.take()] == [9, 10]


@pytest.mark.requirement("readers:slow")
@pytest.mark.parametrize("bound", ["_MOST_FRAMES", "_MOST_BYTES"])
def test_a_queue_beyond_its_own_bounds_is_lost(monkeypatch: pytest.MonkeyPatch, bound: str) -> None:
    held, full = Held(PLENTY), 5 if bound == "_MOST_FRAMES" else 5 * frame(1).size
    monkeypatch.setattr(tail, bound, full)
    queue = queue_of(held)
    for seq in range(1, 6):
        queue.offer(frame(seq))
    assert len(queue._frames) == 5
    queue.offer(frame(6))
    assert queue.missed == "missed"
    assert not queue.take()
    assert held.total == 0


@pytest.mark.requirement("readers:held:once")
async def test_readers_that_have_taken_everything_hold_nothing_though_nothing_more_comes(web: Served) -> None:
    written, folds = await WrittenTurn.begun(web.redis), [Fold() for _ in range(3)]
    held = web.process._live.held
    async with await web.client(SCOPE) as client:
        streams = [read_along(client, written.turn, fold) for fold in folds]
        for stream in streams:
            await take(stream, 1)
        await deltas(written, 1)
        await written.complete("p" * 600_000)
        for stream in streams:
            await take(stream, 3)

        async def total() -> int:
            return held.total

        assert web.settings.web.keepalive_s >= 10
        await eventually(total, lambda count: count == 0, "nothing to be held any more", 5)
        for stream in streams:
            await stream.aclose()
    assert [fold.names for fold in folds] == [["snapshot", "text_delta", "text", "call_completed"]] * 3


async def all_count(admissions: Iterable[str]) -> set[str]:
    return set(admissions)


def traced() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


@pytest.mark.requirement("readers:held:released")
async def test_a_snapshot_that_waits_to_be_taken_is_kept_once_and_one_that_was_taken_not_at_all(
    real_redis: Redis,
) -> None:
    written, size, count = await WrittenTurn.begun(real_redis), 2_000_000, 10
    await written.complete("z" * size)
    outputs = live.LiveOutputs(real_redis, real_redis, Held(PLENTY), all_count)
    readers = [
        Reader(real_redis, outputs, Tail(written.turn, outputs.held, admission="one", deltas=True), OutputFilter.FULL)
        for _ in range(count)
    ]
    streams = [reader.events(None, is_anew=True, keepalive_s=300) for reader in readers]
    tracemalloc.start()
    try:
        for stream in streams:
            await anext(stream)
        assert size < traced() < 4 * size, "of which what Redis sent last is a part"
        assert size < outputs.held.total < 2 * size
        async with asyncio.TaskGroup() as group:
            waiting = [group.create_task(next_of(stream)) for stream in streams]

            async def joined() -> int:
                return len(outputs._turns[written.turn].tails) if outputs.turns else 0

            await eventually(joined, lambda seen: seen == count, "readers that have joined")

            async def kept() -> int:
                return traced()

            await eventually(kept, lambda seen: seen < size // 2, "the snapshot to be let go", 10)
            assert outputs.held.total == 0
            await deltas(written, 1)
            await outputs.read_once()
        assert all(b"text_delta" in one.result() for one in waiting)
    finally:
        tracemalloc.stop()
    for stream in streams:
        await stream.aclose()


async def next_of(stream: AsyncGenerator[bytes, None]) -> bytes:
    return await anext(stream)


@pytest.mark.requirement("readers:held:released")
async def test_a_long_event_that_was_taken_is_kept_no_more_while_the_next_one_is_waited_for() -> None:
    size, taken, gone = 5_000_000, 0, asyncio.Event()

    async def events() -> AsyncGenerator[bytes, None]:
        yield b"x" * size
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        nonlocal taken
        taken += len(message.get("body", b""))

    async def receive() -> Any:
        await gone.wait()
        return {"type": "http.disconnect"}

    async def left() -> int:
        return traced() if taken == size else size

    tracemalloc.start()
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(EventStream(events(), 5, lambda: None)({"type": "http"}, receive, send))
            await eventually(left, lambda seen: seen < size // 2, "an event that was taken to be let go", 10)
            gone.set()
    finally:
        tracemalloc.stop()


def come_back(client: Redis, written: WrittenTurn, held: Held, place: Place) -> AsyncGenerator[bytes, None]:
    outputs = live.LiveOutputs(client, client, held, all_count)
    queue = Tail(written.turn, held, admission="one", deltas=True)
    return Reader(client, outputs, queue, OutputFilter.FULL).events(place, is_anew=False, keepalive_s=0)


async def first_place(written: WrittenTurn) -> Place:
    entries = await written.client.xrange(keys.out(written.turn), count=1)
    place = parse_place(entries[0][0].decode())
    assert place is not None
    return place


@pytest.mark.requirement("readers:held:catching-up")
@pytest.mark.parametrize("size", [60_000, 200_000])
async def test_who_comes_back_and_takes_nothing_holds_little_of_what_came_meanwhile(
    real_redis: Redis, size: int
) -> None:
    """Twenty readers that missed 2 MB, and take one event each."""
    written, held, count = await WrittenTurn.begun(real_redis), Held(PLENTY), 20
    await deltas(written, 1)
    place = await first_place(written)
    for _ in range(2_000_000 // size):
        await written.complete("z" * size)
    tracemalloc.start()
    try:
        streams = [come_back(real_redis, written, held, place) for _ in range(count)]
        for stream in streams:
            await anext(stream)
        kept = traced()
    finally:
        tracemalloc.stop()
    assert size < held.total <= count * LITTLE_BYTES + (2_100_000 if size > LITTLE_BYTES else 0)
    assert kept < 20_000_000, "with all that they missed: 40 MB"
    for stream in streams:
        await stream.aclose()

    async def total() -> int:
        return held.total

    await eventually(total, lambda left: left == 0, "what was being caught up with to be let go")


@pytest.mark.requirement("readers:held:catching-up")
@pytest.mark.parametrize(
    ("size", "names"),
    [(50_000, ["text_delta"] * 2 + ["text", "call_completed"] * 4), (300_000, ["text_delta"] * 2 + ["reset"])],
)
async def test_who_comes_back_gets_what_came_meanwhile_or_in_place_of_a_long_text_what_stands(
    real_redis: Redis, size: int, names: list[str]
) -> None:
    written, held, fold, source = await WrittenTurn.begun(real_redis), Held(PLENTY), Fold(), EventSource()
    await deltas(written, 3)
    place = await first_place(written)
    for _ in range(4):
        await written.complete("z" * size)
    events = come_back(real_redis, written, held, place)
    async for data in events:
        if data == KEEPALIVE:
            break
        for event in source.feed(data):
            fold.take(event)
    await events.aclose()
    assert fold.names == names
    assert fold.buffer.committed.endswith(written.committed[-4 * size :])
    assert fold.last_id == (await real_redis.xrevrange(keys.out(written.turn), count=1))[0][0].decode()
