"""What watched turns have streamed goes to Redis in one pipeline per tick, and only what someone waits for."""

import asyncio

import pytest

from tests.store.lossy import Lossy, dump
from tests.store.turns import Redis, commit, discard, driven, outputs_of, seal
from worker.output.events import TextDeltaOutput, ThinkingDeltaOutput
from worker.store import keys
from worker.store.accumulator import ExecutionOutputAccumulator
from worker.store.outputs import outputs_after
from worker.store.staged import MAX_FLUSH_BYTES
from worker.store.tick import StagingTick


async def streaming(
    client: Redis, tick: StagingTick, *, session: str = "chat/1", watched: bool = True
) -> ExecutionOutputAccumulator:
    accumulator = await driven(client, session=session)
    accumulator.watched = watched
    await accumulator.open_call(1, 1, 0, True)
    tick.add(accumulator)
    return accumulator


async def open_text(client: Redis, accumulator: ExecutionOutputAccumulator) -> str:
    return (await client.get(keys.open_text(accumulator.turn)) or b"").decode()


@pytest.mark.requirement("store:stage:unwatched")
async def test_an_unwatched_turn_stages_nothing(any_redis: Redis) -> None:
    tick = StagingTick(any_redis)
    accumulator = await streaming(any_redis, tick, watched=False)
    before = await dump(any_redis)
    accumulator.stage_text("hello")
    accumulator.stage_thinking("hm")
    lossy = Lossy(any_redis)
    await tick.flush()
    assert (lossy.pipelines, lossy.sent) == (0, [])
    assert await dump(any_redis) == before


@pytest.mark.requirement("store:stage:first-flush")
async def test_the_first_flush_sends_the_open_text_from_its_start(any_redis: Redis) -> None:
    tick = StagingTick(any_redis)
    accumulator = await streaming(any_redis, tick, watched=False)
    accumulator.stage_text("before anyone ")
    await tick.flush()
    accumulator.watched = True
    accumulator.stage_text("watched")
    await tick.flush()
    assert await open_text(any_redis, accumulator) == "before anyone watched"


@pytest.mark.requirement("store:stage:first-flush")
async def test_a_reader_that_goes_and_comes_again_misses_nothing(any_redis: Redis) -> None:
    tick = StagingTick(any_redis)
    accumulator = await streaming(any_redis, tick)
    for text, watched in (("one ", True), ("two ", False), ("three", True)):
        accumulator.watched = watched
        accumulator.stage_text(text)
        await tick.flush()
    assert await open_text(any_redis, accumulator) == "one two three"


@pytest.mark.requirement("store:stage:one-pipeline")
async def test_all_turns_of_a_process_share_one_pipeline_per_tick(any_redis: Redis) -> None:
    tick = StagingTick(any_redis)
    turns = [await streaming(any_redis, tick, session=f"chat/{number}") for number in range(5)]
    lossy = Lossy(any_redis)
    for round_ in range(3):
        for accumulator in turns:
            for _ in range(10):
                accumulator.stage_text(f"{round_}")
        await tick.flush()
    assert [await open_text(any_redis, accumulator) for accumulator in turns] == ["0" * 10 + "1" * 10 + "2" * 10] * 5
    assert lossy.pipelines == 4  # one more, because the server had to learn the script


@pytest.mark.requirement("store:stage:order")
async def test_text_and_thinking_keep_their_order(any_redis: Redis) -> None:
    tick = StagingTick(any_redis)
    accumulator = await streaming(any_redis, tick)
    for stage, text in (
        (accumulator.stage_thinking, "let me "),
        (accumulator.stage_thinking, "see"),
        (accumulator.stage_text, "it "),
        (accumulator.stage_text, "is"),
        (accumulator.stage_thinking, "?"),
    ):
        stage(text)
    await tick.flush()
    told = [
        (type(output), output.text, output.call, output.attempt)
        for output in await outputs_of(any_redis, accumulator.turn)
    ]
    assert told == [
        (ThinkingDeltaOutput, "let me see", 1, 1),
        (TextDeltaOutput, "it is", 1, 1),
        (ThinkingDeltaOutput, "?", 1, 1),
    ]
    assert await open_text(any_redis, accumulator) == "it is"


@pytest.mark.requirement("store:stage:limit")
@pytest.mark.parametrize(
    "piece", ["x" * 300_000, "日" * 100_000, "🙂" * 70_000], ids=["ascii", "three bytes", "four bytes"]
)
async def test_a_flush_takes_at_most_64_kb_of_a_turn_and_cuts_no_character(any_redis: Redis, piece: str) -> None:
    tick = StagingTick(any_redis)
    accumulator = await streaming(any_redis, tick)
    accumulator.stage_text(piece)
    sizes = []
    while accumulator._staged:
        await tick.flush()
        sizes.append(int(await any_redis.hget(keys.turn_record(accumulator.turn), "open_bytes")))
    steps = [after - before for before, after in zip([0, *sizes], sizes, strict=False)]
    assert max(steps) <= MAX_FLUSH_BYTES
    assert len(steps) <= len(piece.encode()) // (MAX_FLUSH_BYTES // 2) + 1
    assert await open_text(any_redis, accumulator) == piece
    latest = "".join(output.text for output in await outputs_of(any_redis, accumulator.turn))
    assert piece.endswith(latest)
    assert len(latest.encode()) >= MAX_FLUSH_BYTES


@pytest.mark.requirement("store:stage:verb-goes-first")
@pytest.mark.parametrize("unanswered", [False, True], ids=["with deltas", "with an unanswered flush"])
async def test_a_turn_whose_verb_is_under_way_is_passed_over(any_redis: Redis, unanswered: bool) -> None:
    tick = StagingTick(any_redis)
    accumulator = await streaming(any_redis, tick)
    lossy = Lossy(any_redis)
    accumulator.stage_text("one ")
    if unanswered:
        lossy.faults.append("request lost")
        await tick.flush()
    sent = lossy.pipelines
    discarding = asyncio.ensure_future(discard(accumulator, 1, 1))
    await asyncio.sleep(0)
    await tick.flush()
    assert lossy.pipelines == sent
    await discarding
    told = [
        output.text for output in await outputs_of(any_redis, accumulator.turn) if isinstance(output, TextDeltaOutput)
    ]
    assert told == (["one "] if unanswered else [])


@pytest.mark.requirement("store:stage:offset")
async def test_a_piece_that_does_not_continue_the_open_text_changes_nothing(any_redis: Redis) -> None:
    tick = StagingTick(any_redis)
    accumulator = await streaming(any_redis, tick)
    accumulator.stage_text("one ")
    await tick.flush()
    accumulator._sent_bytes = 3
    accumulator.stage_text("two")
    before = await dump(any_redis)
    await tick.flush()
    assert await dump(any_redis) == before


class HeldLine:
    """Holds back a client's pipelines until told: a flight under way."""

    def __init__(self, client: Redis) -> None:
        self.flying = asyncio.Event()
        self.may_land = asyncio.Event()
        open_pipeline = client.pipeline

        def pipeline(*args: object, **options: object) -> object:
            opened = open_pipeline(*args, **options)
            execute = opened.execute

            async def held_execute(*args: object, **options: object) -> object:
                answers = await execute(*args, **options)
                self.flying.set()
                await self.may_land.wait()
                return answers

            opened.execute = held_execute
            return opened

        client.pipeline = pipeline


@pytest.mark.requirement("store:stage:one-in-flight")
async def test_a_verb_waits_for_a_flight_under_way(any_redis: Redis) -> None:
    tick = StagingTick(any_redis)
    accumulator = await streaming(any_redis, tick)
    accumulator.stage_text("warm-up ")
    await tick.flush()
    line = HeldLine(any_redis)
    accumulator.stage_text("in the air")
    flushing = asyncio.ensure_future(tick.flush())
    await asyncio.wait_for(line.flying.wait(), 5)
    committing = asyncio.ensure_future(commit(accumulator, 1, 1, "landed"))
    for _ in range(20):
        await asyncio.sleep(0)
    assert await any_redis.hget(keys.turn_record(accumulator.turn), "marker") == b"0"
    assert not committing.done()
    line.may_land.set()
    await asyncio.wait_for(asyncio.gather(flushing, committing), 5)
    assert await any_redis.get(keys.text(accumulator.turn)) == b"landed"


@pytest.mark.requirement("store:stage:one-verdict")
async def test_one_turn_that_was_lost_does_not_hold_up_the_others(any_redis: Redis) -> None:
    tick = StagingTick(any_redis)
    lost = await streaming(any_redis, tick, session="chat/lost")
    kept = await streaming(any_redis, tick, session="chat/kept")
    await any_redis.hset(keys.turn_record(lost.turn), "nonce", "of another driver")
    for accumulator in (lost, kept):
        accumulator.stage_text("text")
    await tick.flush()
    assert await open_text(any_redis, lost) == ""
    assert await open_text(any_redis, kept) == "text"
    kept.stage_text(" goes on")
    await tick.flush()
    assert await open_text(any_redis, kept) == "text goes on"


@pytest.mark.requirement("store:stage:outage")
async def test_what_could_not_be_sent_during_an_outage_is_sent_after_it(any_redis: Redis) -> None:
    tick = StagingTick(any_redis)
    accumulator = await streaming(any_redis, tick)
    lossy = Lossy(any_redis)
    lossy.faults.extend(["request lost", "reply lost", "request lost"])
    for piece in ("one ", "two ", "three ", "four ", "five"):
        accumulator.stage_text(piece)
        await tick.flush()
    await tick.flush()
    assert await open_text(any_redis, accumulator) == "one two three four five"
    seqs = [output.seq for output in await outputs_of(any_redis, accumulator.turn)]
    assert seqs == list(range(1, len(seqs) + 1))


@pytest.mark.requirement("store:noscript")
async def test_a_server_that_has_forgotten_its_scripts_learns_them_again(any_redis: Redis) -> None:
    tick = StagingTick(any_redis)
    accumulator = await streaming(any_redis, tick)
    for _ in range(2):
        await any_redis.script_flush()
        accumulator.stage_text("text")
        await tick.flush()
    assert await open_text(any_redis, accumulator) == "texttext"
    await any_redis.script_flush()
    await discard(accumulator, 1, 1)
    await any_redis.script_flush()
    await accumulator.tool_start(1, 0, [])
    await any_redis.script_flush()
    await seal(accumulator)
    assert await any_redis.hget(keys.turn_record(accumulator.turn), "state") == b"sealed"


@pytest.mark.requirement("store:stage:tick")
async def test_the_tick_runs_until_it_is_cancelled(fake_redis: Redis) -> None:
    tick = StagingTick(fake_redis, 0.001)
    running = asyncio.ensure_future(tick.run())
    accumulator = await streaming(fake_redis, tick)
    accumulator.stage_text("text")
    assert await outputs_after(fake_redis, accumulator.turn, "0-0", 5_000), "waited 5 s for a flush"
    assert await open_text(fake_redis, accumulator) == "text"
    tick.remove(accumulator)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


@pytest.mark.requirement("store:stage:cancelled")
async def test_a_tick_cancelled_in_mid_flight_leaves_no_verb_waiting(any_redis: Redis) -> None:
    tick = StagingTick(any_redis)
    accumulator = await streaming(any_redis, tick)
    accumulator.stage_text("warm-up ")
    await tick.flush()
    line = HeldLine(any_redis)
    accumulator.stage_text("in the air")
    flushing = asyncio.ensure_future(tick.flush())
    await asyncio.wait_for(line.flying.wait(), 5)
    flushing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await flushing
    line.may_land.set()
    await asyncio.wait_for(discard(accumulator, 1, 1), 5)
    told = "".join(
        output.text for output in await outputs_of(any_redis, accumulator.turn) if isinstance(output, TextDeltaOutput)
    )
    assert told == "warm-up in the air"
