"""What the driver of a turn does around the machine: time, the lease, and what it leaves behind."""

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from channels.embedded import EmbeddedServer
from tests.store.turns import Redis, granted, outputs_of, record_of
from tests.support.turns import CLOCK, completed, machine, text, tool_call
from worker.codecs.messages import Request, ToolSpec
from worker.engine import driver as driver_module
from worker.engine import timer
from worker.engine.driver import TurnDriver
from worker.engine.health import ProviderHealth
from worker.engine.toolbox import Toolbox
from worker.errors import Fenced
from worker.output.events import Output
from worker.store.accumulator import ExecutionOutputAccumulator
from worker.store.connect import open_redis
from worker.store.health import Counts, HealthRules
from worker.store.lease import Grant
from worker.store.records import read_text
from worker.tools.tool import Arguments, ToolContext
from worker.turn.events import Died, Event, NotAnswered

PATIENCE_S = 5.0
STALL_S = 45
TURN_S = 7200


class Diary:
    """What happened, in order."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self._news = asyncio.Event()

    def note(self, word: str) -> None:
        self.words.append(word)
        self._news.set()

    async def until(self, word: str, times: int = 1) -> None:
        # The loop's own clock may be put forward meanwhile, so the end is told by the clock of the machine.
        end = time.monotonic() + PATIENCE_S
        while self.words.count(word) < times:
            left = end - time.monotonic()
            assert left > 0, f"waited {PATIENCE_S:g} s for {word!r} ({times} times), and saw {self.words}"
            self._news.clear()
            await asyncio.wait([asyncio.ensure_future(self._news.wait())], timeout=left)


class Clock:
    """The monotonic clock, which can be put forward."""

    def __init__(self) -> None:
        self._ahead = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self._ahead

    def forward(self, seconds: float) -> None:
        self._ahead += seconds


class Provider:
    """Answers as it is told, and holds each connection until its reader leaves."""

    def __init__(self, diary: Diary) -> None:
        self._diary = diary
        self._said: dict[tuple[int, int], asyncio.Queue[list[Event]]] = defaultdict(asyncio.Queue)

    def say(self, call: int, attempt: int, *events: Event) -> None:
        self._said[call, attempt].put_nowait(list(events))

    async def attempt(self, _provider: str, _request: Request, call: int, attempt: int) -> AsyncIterator[list[Event]]:
        self._diary.note(f"asked {call}.{attempt}")
        try:
            while True:
                yield await self._said[call, attempt].get()
        finally:
            self._diary.note(f"left {call}.{attempt}")


class Lease:
    """Valid until it is said not to be."""

    def __init__(self, diary: Diary) -> None:
        self.valid = True
        self._diary = diary

    def is_valid(self) -> bool:
        self._diary.note("valid" if self.valid else "not valid")
        return self.valid


class Accumulator(ExecutionOutputAccumulator):
    """The real one, which tells what it stages."""

    on_text: Callable[[str], None]
    on_tool_start: Callable[[str], None]

    async def tool_start(self, call: int, index: int, outputs: Sequence[Output]) -> None:
        self.on_tool_start("tool start asked")
        await super().tool_start(call, index, outputs)
        self.on_tool_start("tool start stored")

    def stage_text(self, text: str) -> None:
        super().stage_text(text)
        self.on_text(text)


@dataclass(frozen=True)
class _Clock:
    """The tool of these scenes."""

    action: Callable[[], Awaitable[str]]
    spec: ToolSpec = CLOCK
    retry_safe: bool = False
    approval: Literal["never", "ask"] = "never"
    timeout_s: float | None = None

    async def run(self, arguments: Arguments, context: ToolContext) -> object:
        del arguments, context
        return await self.action()


class Scene:
    """A driver with a real store and a real machine, and all that a test does to them."""

    running: asyncio.Task[None]

    def __init__(self, redis: Redis, grant: Grant, clock: Clock, **changes: Any) -> None:
        self.diary = Diary()
        self.clock = clock
        self.provider = Provider(self.diary)
        self.lease = Lease(self.diary)
        self.accumulator = Accumulator(redis, grant, lambda: True)
        self.accumulator.on_text = lambda text: self.diary.note(f"staged {text}")
        self.accumulator.on_tool_start = self.diary.note
        self.tool_may_end = asyncio.Event()
        self.health = ProviderHealth("here", HealthRules(5, 60, 60), watching=True)
        self.turn = grant.turn
        self.driver = TurnDriver(
            grant,
            machine(deadline=clock() + TURN_S, jitter=self._jitter, **changes),
            self.accumulator,
            self.provider.attempt,
            Toolbox({"clock": _Clock(self._tool)}, 2 * TURN_S, result_chars=1000, approvals_expire_s=60),
            self.health,
            self.lease.is_valid,
        )

    def _jitter(self) -> float:
        self.diary.note("wait chosen")
        return 0.5

    async def _tool(self) -> str:
        self.diary.note("tool started")
        try:
            await self.tool_may_end.wait()
        except asyncio.CancelledError:
            self.diary.note("tool cancelled")
            raise
        return "noon"

    async def until_tool_runs(self) -> None:
        """Call 1 completes with a tool call, which then runs until it may end."""
        await self.diary.until("asked 1.1")
        self.provider.say(1, 1, completed(1, 1, "tool_calls", tool_call()))
        await self.diary.until("tool started")

    async def _run(self) -> None:
        try:
            await self.driver.run()
        except Fenced:
            self.diary.note("fenced")
        else:
            self.diary.note("ended")


@asynccontextmanager
async def driving(redis: Redis, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> AsyncIterator[Scene]:
    """A turn that is being driven, by a clock that is the event loop's too. `changes`: as of `machine`."""
    grant = await granted(redis)
    clock = Clock()
    with monkeypatch.context() as patch:
        patch.setattr(driver_module, "monotonic", clock)
        patch.setattr(timer, "monotonic", clock)
        patch.setattr(asyncio.get_running_loop(), "time", clock)
        scene = Scene(redis, grant, clock, **changes)
        scene.running = asyncio.ensure_future(scene._run())
        try:
            yield scene
        finally:
            scene.running.cancel()
            await asyncio.wait([scene.running])


# The lease: nothing is done outside the store while it may be another's.


@pytest.mark.requirement("engine:driver:no-request-without-lease")
async def test_no_request_is_sent_until_a_lease_in_doubt_is_renewed(
    fake_redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with driving(fake_redis, monkeypatch) as scene:
        scene.lease.valid = False
        await scene.diary.until("not valid")
        scene.driver.renewed(watched=False)
        await scene.diary.until("not valid", times=2)
        assert "asked 1.1" not in scene.diary.words
        scene.lease.valid = True
        scene.driver.renewed(watched=False)
        await scene.diary.until("asked 1.1")


@pytest.mark.requirement("engine:driver:no-request-without-lease")
async def test_no_request_is_sent_when_a_lease_in_doubt_proves_lost(
    fake_redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with driving(fake_redis, monkeypatch) as scene:
        scene.lease.valid = False
        await scene.diary.until("not valid")
        scene.driver.lost()
        await scene.diary.until("fenced")
        assert "asked 1.1" not in scene.diary.words


@pytest.mark.requirement("engine:driver:no-tool-without-lease")
async def test_no_tool_starts_until_a_lease_in_doubt_is_renewed(
    fake_redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with driving(fake_redis, monkeypatch) as scene:
        await scene.diary.until("asked 1.1")
        scene.lease.valid = False
        scene.provider.say(1, 1, completed(1, 1, "tool_calls", tool_call()))
        await scene.diary.until("not valid")
        scene.driver.renewed(watched=False)
        await scene.diary.until("not valid", times=2)
        assert "tool started" not in scene.diary.words
        scene.lease.valid = True
        scene.driver.renewed(watched=False)
        await scene.diary.until("tool started")


@pytest.mark.requirement("engine:driver:no-tool-without-lease")
async def test_no_tool_starts_when_a_lease_in_doubt_proves_lost(
    fake_redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with driving(fake_redis, monkeypatch) as scene:
        await scene.diary.until("asked 1.1")
        scene.lease.valid = False
        scene.provider.say(1, 1, completed(1, 1, "tool_calls", tool_call()))
        await scene.diary.until("not valid")
        scene.driver.lost()
        await scene.diary.until("fenced")
        assert "tool started" not in scene.diary.words


@pytest.mark.requirement("engine:driver:lost-ends-at-once")
async def test_a_driver_that_waits_for_its_timer_alone_ends_at_once_when_its_lease_is_lost(
    fake_redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with driving(fake_redis, monkeypatch, transport_backoff_s=600) as scene:
        await scene.diary.until("asked 1.1")
        scene.provider.say(1, 1, NotAnswered(1, 1, 503, True, "overloaded", "busy"))
        await scene.diary.until("wait chosen")
        scene.driver.lost()
        await scene.diary.until("fenced")


# Time: what arrived is judged by when it arrived.


@pytest.mark.requirement("engine:driver:arrived-before-silence")
async def test_what_waits_to_be_heard_is_heard_before_a_silence_is_judged(
    fake_redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with driving(fake_redis, monkeypatch) as scene:
        await scene.diary.until("asked 1.1")
        scene.provider.say(1, 1, text(1, 1, "a"))
        await scene.diary.until("staged a")
        scene.clock.forward(STALL_S + 1)
        # In the pass of the loop in which the timer fires: its tick comes first into the queue, the text second.
        asyncio.get_running_loop().call_soon(scene.provider.say, 1, 1, text(1, 1, "b"))
        await scene.diary.until("staged b")
        scene.provider.say(1, 1, completed(1, 1))
        await scene.diary.until("ended")
        assert "asked 1.2" not in scene.diary.words
        assert (await record_of(fake_redis, scene.turn)).outcome == "completed"
        assert await read_text(fake_redis, scene.turn) == "ab"


@pytest.mark.requirement("engine:driver:arrival-time")
async def test_a_silence_begins_when_the_last_word_arrived_however_late_it_was_handled(
    fake_redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with driving(fake_redis, monkeypatch) as scene:

        def slow_at_first(text: str) -> None:
            if text == "a":
                scene.clock.forward(STALL_S - 15)
            scene.diary.note(f"staged {text}")

        scene.accumulator.on_text = slow_at_first
        await scene.diary.until("asked 1.1")
        scene.provider.say(1, 1, text(1, 1, "a"), text(1, 1, "b"))
        await scene.diary.until("staged b")
        scene.clock.forward(16)
        await scene.diary.until("asked 1.2")


# What is left behind: nothing that reads or runs.


@pytest.mark.requirement("engine:driver:dead-attempt-closed")
async def test_the_connection_of_a_dead_attempt_is_dropped_before_the_next_request(
    fake_redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with driving(fake_redis, monkeypatch) as scene:
        await scene.diary.until("asked 1.1")
        scene.provider.say(1, 1, text(1, 1, "a"))
        await scene.diary.until("staged a")
        scene.clock.forward(STALL_S + 1)
        await scene.diary.until("asked 1.2")
        told = [word for word in scene.diary.words if word.startswith(("asked", "left"))]
        assert told == ["asked 1.1", "left 1.1", "asked 1.2"]


@pytest.mark.requirement("engine:driver:nothing-left-behind")
async def test_a_seal_drops_a_connection_that_the_provider_holds_open(
    fake_redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with driving(fake_redis, monkeypatch) as scene:
        await scene.diary.until("asked 1.1")
        scene.provider.say(1, 1, text(1, 1, "a"), completed(1, 1))
        await scene.diary.until("ended")
        assert scene.diary.words[-2:] == ["left 1.1", "ended"]


@pytest.mark.requirement("engine:driver:nothing-left-behind")
async def test_a_seal_cancels_the_tool_that_runs(fake_redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    async with driving(fake_redis, monkeypatch) as scene:
        await scene.until_tool_runs()
        scene.clock.forward(TURN_S + 1)
        await scene.diary.until("ended")
        assert set(scene.diary.words[-3:-1]) == {"left 1.1", "tool cancelled"}
        assert (await outputs_of(fake_redis, scene.turn))[-1].outcome == "failed"


@pytest.mark.requirement("engine:driver:nothing-left-behind")
async def test_a_hand_off_drops_a_connection_that_the_provider_holds_open(
    fake_redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with driving(fake_redis, monkeypatch, on_drain="handoff") as scene:
        await scene.until_tool_runs()
        scene.driver.drain()
        scene.tool_may_end.set()
        await scene.diary.until("ended")
        assert scene.diary.words[-2:] == ["left 1.1", "ended"]
        assert (await record_of(fake_redis, scene.turn)).outcome is None


@pytest.mark.requirement("engine:driver:nothing-left-behind")
async def test_a_lost_lease_drops_the_connection_and_cancels_the_tool(
    fake_redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with driving(fake_redis, monkeypatch) as scene:
        await scene.until_tool_runs()
        scene.driver.lost()
        await scene.diary.until("fenced")
        assert set(scene.diary.words[-3:-1]) == {"left 1.1", "tool cancelled"}


@pytest.mark.requirement("engine:driver:no-tool-once-cancelled")
async def test_a_driver_that_is_cancelled_as_it_records_the_start_of_a_tool_does_not_start_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = EmbeddedServer(tmp_path)
    server.start()
    try:
        async with open_redis(server.url) as redis:
            for steps in range(15):
                await redis.flushall()
                async with driving(redis, monkeypatch) as scene:
                    await scene.diary.until("asked 1.1")
                    scene.provider.say(1, 1, completed(1, 1, "tool_calls", tool_call()))
                    await scene.diary.until("tool start asked")
                    await cancelled_after(steps, scene)
    finally:
        server.stop()


async def cancelled_after(steps: int, scene: Scene) -> None:
    """Cancel the driver after so many steps of the loop; it ends, and starts no tool unless its start was stored."""
    for _ in range(steps):
        await asyncio.sleep(0)
    was_stored = "tool start stored" in scene.diary.words
    scene.running.cancel()
    ended, _ = await asyncio.wait([scene.running], timeout=PATIENCE_S)
    assert was_stored or "tool started" not in scene.diary.words, f"cancelled after {steps} steps"
    assert ended, f"cancelled after {steps} steps, and has not ended after {PATIENCE_S:g} s"


@pytest.mark.requirement("engine:driver:one-look-at-the-clock")
async def test_a_deadline_that_passes_while_the_store_is_slow_ends_the_turn_and_not_the_process(
    fake_redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two looks at the clock in the queue put each other back for ever, and nothing else ran in the process."""
    async with driving(fake_redis, monkeypatch) as scene:
        may_record = asyncio.Event()
        record = scene.accumulator.record

        async def slow(*arguments: Any, **more: Any) -> None:
            scene.diary.note("recording")
            await may_record.wait()
            await record(*arguments, **more)

        monkeypatch.setattr(scene.accumulator, "record", slow)
        await scene.diary.until("asked 1.1")
        tools = (tool_call(id="t1"), tool_call(arguments={"timezone": "Asia/Tokyo"}, id="t2"))
        scene.provider.say(1, 1, completed(1, 1, "tool_calls", *tools))
        await scene.diary.until("tool started", times=2)
        scene.tool_may_end.set()
        await scene.diary.until("recording")
        scene.clock.forward(TURN_S + 1)
        passed = asyncio.Event()
        asyncio.get_running_loop().call_later(0.05, passed.set)  # after the timer that is due now
        await passed.wait()
        may_record.set()
        await scene.diary.until("ended")
        record_of_turn = await record_of(fake_redis, scene.turn)
        assert record_of_turn.failure is not None
        assert record_of_turn.failure.code == "turn_deadline"


@pytest.mark.requirement("engine:driver:drain-with-a-lease-in-doubt")
async def test_a_process_that_must_end_does_not_wait_for_a_lease_in_doubt(
    fake_redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with driving(fake_redis, monkeypatch) as scene:
        scene.lease.valid = False
        await scene.diary.until("not valid")
        scene.driver.drain()
        scene.driver.cut_off()
        await scene.diary.until("fenced")
        assert "asked 1.1" not in scene.diary.words


@pytest.mark.requirement("engine:driver:health")
async def test_the_health_of_providers_is_told_deaths_and_completions_alone(
    fake_redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with driving(fake_redis, monkeypatch) as scene:
        await scene.diary.until("asked 1.1")
        scene.provider.say(1, 1, Died(1, 1, "reset", ""))
        await scene.diary.until("asked 1.2")
        scene.provider.say(1, 2, text(1, 2, "a"), completed(1, 2))
        await scene.diary.until("ended")
        report = scene.health.take()
        assert report is not None
        assert report.counts == {"main": Counts(deaths=1, completions=1)}
    async with driving(fake_redis, monkeypatch) as scene:
        await scene.diary.until("asked 1.1")
        scene.provider.say(1, 1, NotAnswered(1, 1, 400, False, "refused", "No."))
        await scene.diary.until("ended")
        report = scene.health.take()
        assert report is not None
        assert report.counts == {}
