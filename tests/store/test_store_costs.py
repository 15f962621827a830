"""What text costs: memory linear in it, a flush independent of it, a discard independent of what is committed."""

import pytest

from tests.store.turns import Redis, commit, discard, driven, outputs_of
from worker.store import keys
from worker.store.accumulator import ExecutionOutputAccumulator
from worker.store.tick import StagingTick

PIECE = "thirty-two bytes of an answer. \n"
MAX_BYTES_PER_BYTE = 3
FIXED_BYTES = 12_000


async def stored_bytes(client: Redis) -> int:
    total = 0
    async for key in client.scan_iter("*"):
        total += await client.memory_usage(key, samples=0)
    return total


async def streaming(client: Redis, pieces: int, *, watched: bool) -> tuple[ExecutionOutputAccumulator, StagingTick]:
    accumulator = await driven(client, watch_s=60)
    accumulator.watched = watched
    tick = StagingTick(client)
    tick.add(accumulator)
    await accumulator.open_call(1, 1, 0, True)
    for _ in range(pieces):
        accumulator.stage_text(PIECE)
        await tick.flush()
    return accumulator, tick


@pytest.mark.requirement("store:cost:memory")
@pytest.mark.parametrize("watched", [True, False], ids=["watched", "unwatched"])
@pytest.mark.parametrize("pieces", [300, 2_600])
async def test_text_takes_at_most_three_bytes_a_byte(real_redis: Redis, pieces: int, watched: bool) -> None:
    accumulator, _ = await streaming(real_redis, pieces, watched=watched)
    limit = FIXED_BYTES + MAX_BYTES_PER_BYTE * pieces * len(PIECE)
    assert await stored_bytes(real_redis) <= limit
    await commit(accumulator, 1, 1, PIECE * pieces)
    assert await stored_bytes(real_redis) <= limit


@pytest.mark.requirement("store:cost:memory")
async def test_a_discard_gives_back_the_open_text(real_redis: Redis) -> None:
    accumulator, tick = await streaming(real_redis, 0, watched=True)
    before = await stored_bytes(real_redis)
    accumulator.stage_text("x" * 60_000)
    await tick.flush()
    await discard(accumulator, 1, 1)
    assert await stored_bytes(real_redis) < before + 60_000 + FIXED_BYTES


class Meter:
    """Bytes that a server was sent and commands that it ran, scripts' commands included."""

    def __init__(self, client: Redis) -> None:
        self._client = client

    async def read(self) -> tuple[int, int]:
        info = await self._client.info("all")
        calls = sum(value["calls"] for name, value in info.items() if name.startswith("cmdstat_"))
        return info["total_net_input_bytes"], calls


@pytest.mark.requirement("store:cost:flush")
async def test_a_flush_costs_what_it_brings_however_much_text_there_is(real_redis: Redis) -> None:
    accumulator, tick = await streaming(real_redis, 1, watched=True)
    meter = Meter(real_redis)

    async def flush() -> tuple[int, int]:
        before = await meter.read()
        accumulator.stage_text(PIECE)
        await tick.flush()
        after = await meter.read()
        return after[0] - before[0], after[1] - before[1]

    early = await flush()
    accumulator.stage_text("x" * 2_000_000)
    while accumulator._staged:
        await tick.flush()
    late = await flush()
    assert late[1] <= early[1] + 2  # the oldest deltas are looked up and deleted
    assert late[0] - early[0] < 64  # more digits in the counters


@pytest.mark.requirement("store:cost:deltas")
@pytest.mark.parametrize("piece", [PIECE, "x" * 40_000], ids=["short", "long"])
async def test_what_a_turn_streams_takes_no_more_room_however_often_it_dies(real_redis: Redis, piece: str) -> None:
    accumulator, tick = await streaming(real_redis, 1, watched=True)
    attempts, total = 1, 0
    while total < (400_000 if piece == PIECE else 3_000_000):
        for _ in range(20 if piece != PIECE else 400):
            accumulator.stage_text(piece)
            total += len(piece)
            await tick.flush()
        await discard(accumulator, 1, attempts)
        attempts += 1
        await accumulator.open_call(1, attempts, attempts, False)
    assert await real_redis.memory_usage(keys.out(accumulator.turn), samples=0) < 262_144
    seqs = [output.seq for output in await outputs_of(real_redis, accumulator.turn) if output.type == "text_delta"]
    assert seqs == sorted(seqs)
    discards = [output for output in await outputs_of(real_redis, accumulator.turn) if output.type != "text_delta"]
    assert len(discards) == attempts - 1  # nothing but deltas goes
    kept = [output for output in await outputs_of(real_redis, accumulator.turn) if output.type == "text_delta"]
    each = len(piece) + 48
    assert 131_072 - each < each * len(kept) <= 131_072  # and no more of them than must


@pytest.mark.requirement("store:cost:deltas")
async def test_deltas_in_front_of_which_much_else_was_said_are_trimmed_too(real_redis: Redis) -> None:
    accumulator, tick = await streaming(real_redis, 0, watched=True)
    for attempt in range(2, 302):
        await discard(accumulator, 1, attempt - 1)
        await accumulator.open_call(1, attempt, attempt, False)
    for _ in range(8):
        accumulator.stage_text("x" * 60_000)
        await tick.flush()
    for _ in range(60):  # catches up a few outputs a flush
        accumulator.stage_text("y")
        await tick.flush()
    kept = [output for output in await outputs_of(real_redis, accumulator.turn) if output.type == "text_delta"]
    assert sum(len(output.text) for output in kept) <= 131_072


@pytest.mark.requirement("store:cost:discard")
async def test_a_discard_costs_nothing_of_what_is_committed(real_redis: Redis) -> None:
    accumulator = await driven(real_redis)
    meter = Meter(real_redis)

    async def die(call: int) -> tuple[int, int]:
        await accumulator.open_call(call, 1, 0, True)
        before = await meter.read()
        await discard(accumulator, call, 1)
        after = await meter.read()
        return after[0] - before[0], after[1] - before[1]

    await die(1)
    early = await die(2)
    await accumulator.open_call(3, 1, 0, True)
    await commit(accumulator, 3, 1, "x" * 2_000_000)
    late = await die(4)
    assert late[1] == early[1]
    assert late[0] - early[0] < 64
