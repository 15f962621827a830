"""Whatever a tool does, its run ends in a result that the model can read."""

import asyncio
import json
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from time import monotonic
from typing import Any

import pytest
from pydantic import BaseModel

from tests.support.tool_runs import CONTEXT, LONG_S, PATIENCE_S, SHORT_S, OddTool, result_of, until
from worker.tools.decorator import tool
from worker.tools.running import ToolResult, run_tool
from worker.tools.tool import ToolContext, ToolFailed, ToolRefusal

Given = Mapping[str, object]

TOO_LATE = ToolResult("Error: the tool gave no sign of life for 0.02 s and was stopped", "timeout")
FAILED = ToolResult("Error: the tool failed", "failed")


class Order(BaseModel):
    number: int
    at: datetime


@dataclass
class Point:
    x: int


class Odd:
    def __str__(self) -> str:
        return "an odd thing"


@pytest.mark.requirement("tools:result:text")
@pytest.mark.parametrize(
    ("returned", "told"),
    [
        ("12:00", "12:00"),
        ("", ""),
        (None, "null"),
        (7, "7"),
        ({"größe": [1, True, None]}, '{"größe": [1, true, null]}'),
        ({"at": datetime(2026, 1, 2, tzinfo=UTC)}, '{"at": "2026-01-02T00:00:00Z"}'),
        (Order(number=7, at=datetime(2026, 1, 2, tzinfo=UTC)), '{"number": 7, "at": "2026-01-02T00:00:00Z"}'),
        ([Point(1)], '[{"x": 1}]'),
        ({"tags": {"a"}}, '{"tags": ["a"]}'),
        (b"raw", '"cmF3"'),
        (Odd(), '"an odd thing"'),
        ("half \ud83d", "half \ufffd"),
        (["half \udcfc"], '["half \ufffd"]'),
        ("\ud83d\ude42", "🙂"),
    ],
)
async def test_whatever_a_tool_returns_is_told_as_text_that_can_be_stored(returned: object, told: str) -> None:
    async def run(_arguments: Given, _context: ToolContext) -> object:
        return returned

    result = await result_of(OddTool(run))
    assert result == ToolResult(told)
    assert type(result.text) is str
    result.text.encode()


@pytest.mark.requirement("tools:result:text")
async def test_a_result_that_is_no_text_and_no_json_is_a_failure() -> None:
    circle: list[object] = []
    circle.append(circle)

    async def run(_arguments: Given, _context: ToolContext) -> object:
        return circle

    assert await result_of(OddTool(run)) == FAILED


@pytest.mark.requirement("tools:result:clamped")
async def test_a_long_result_keeps_both_ends_and_says_what_is_missing() -> None:
    async def run(_arguments: Given, _context: ToolContext) -> str:
        return "<" + "x" * 5000 + ">"

    told = (await result_of(OddTool(run), result_chars=300)).text
    assert len(told) <= 300
    assert told.startswith("<xxx")
    assert told.endswith("xxx>")
    assert "characters left out" in told


@pytest.mark.requirement("tools:result:clamped")
async def test_the_words_of_a_failure_are_clamped_too() -> None:
    async def run(_arguments: Given, _context: ToolContext) -> str:
        raise ToolRefusal("no " * 5000)

    result = await result_of(OddTool(run), result_chars=300)
    assert len(result.text) <= 300
    assert result.text.startswith("Error: no no")


@pytest.mark.requirement("tools:result:error-form")
@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ToolRefusal("no zone \udcfc"), ToolResult("Error: no zone \ufffd", "refused")),
        (ToolFailed("the drawer is stuck"), ToolResult("Error: the drawer is stuck", "failed")),
    ],
)
async def test_what_a_tool_says_no_with_is_told_in_one_form(error: Exception, told: ToolResult) -> None:
    async def run(_arguments: Given, _context: ToolContext) -> str:
        raise error

    assert await result_of(OddTool(run)) == told


@pytest.mark.requirement("tools:result:never-raises")
@pytest.mark.parametrize(
    "error",
    [
        ValueError("a secret"),
        TimeoutError(),
        SystemExit(3),
        GeneratorExit(),
        BaseException(),
        StopIteration(1),
        KeyboardInterrupt(),
    ],
)
async def test_whatever_a_tool_raises_is_a_result_without_its_words(error: BaseException) -> None:
    async def run(_arguments: Given, _context: ToolContext) -> str:
        raise error

    @tool
    def odd() -> str:
        """Raises in its thread."""
        raise error

    assert await result_of(OddTool(run)) == FAILED
    assert await result_of(odd) == FAILED


@pytest.mark.requirement("tools:result:never-raises")
async def test_a_refusal_that_cannot_be_read_is_a_result() -> None:
    class Unreadable(ToolRefusal):
        def __str__(self) -> str:
            raise ValueError("no words")

    async def run(_arguments: Given, _context: ToolContext) -> str:
        raise Unreadable

    assert await result_of(OddTool(run)) == FAILED


@pytest.mark.requirement("tools:result:never-raises")
async def test_a_tool_that_raises_when_it_is_cancelled_is_late_and_nothing_else() -> None:
    async def run(_arguments: Given, _context: ToolContext) -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None
        return "never"

    assert await result_of(OddTool(run), timeout_s=SHORT_S) == TOO_LATE


@pytest.mark.requirement("tools:result:never-raises")
async def test_a_tool_that_cancels_itself_is_a_result() -> None:
    async def run(_arguments: Given, _context: ToolContext) -> str:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.Event().wait()
        return "never"

    async def raises(_arguments: Given, _context: ToolContext) -> str:
        raise asyncio.CancelledError

    for odd in (run, raises):
        assert await result_of(OddTool(odd)) == ToolResult("Error: the tool was cancelled", "cancelled")


@pytest.mark.requirement("tools:result:never-raises")
async def test_a_tool_that_is_no_coroutine_is_a_result() -> None:
    def run(_arguments: Given, _context: ToolContext) -> Any:
        return "at once"

    assert await result_of(OddTool(run)) == FAILED


@pytest.mark.requirement("tools:timeout:ends")
async def test_a_tool_that_takes_too_long_is_cancelled_and_said_to_be_late() -> None:
    cancelled = asyncio.Event()

    async def run(_arguments: Given, _context: ToolContext) -> str:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return "never"

    assert await result_of(OddTool(run), timeout_s=SHORT_S) == TOO_LATE
    assert cancelled.is_set()


@pytest.mark.requirement("tools:timeout:ends")
async def test_a_tool_that_swallows_its_cancellation_is_left_behind() -> None:
    let_go, ended = asyncio.Event(), asyncio.Event()

    async def run(_arguments: Given, _context: ToolContext) -> str:
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue
        ended.set()
        return "late"

    assert await result_of(OddTool(run), timeout_s=SHORT_S) == TOO_LATE
    assert not ended.is_set()
    let_go.set()
    await asyncio.wait_for(ended.wait(), PATIENCE_S)


@pytest.mark.requirement("tools:timeout:ends")
async def test_a_time_of_its_own_outranks_that_of_the_installation() -> None:
    async def run(_arguments: Given, _context: ToolContext) -> str:
        await asyncio.Event().wait()
        return "never"

    assert await result_of(OddTool(run, timeout_s=SHORT_S), timeout_s=LONG_S) == TOO_LATE


@pytest.mark.requirement("tools:timeout:alive")
async def test_a_tool_that_says_it_is_alive_may_take_longer_than_its_time() -> None:
    limit_s = 0.5
    began = monotonic()

    async def run(_arguments: Given, context: ToolContext) -> str:
        while monotonic() < began + 2 * limit_s:
            context.alive()
            await asyncio.sleep(0)
        return "done"

    assert await result_of(OddTool(run), timeout_s=limit_s) == ToolResult("done")


@pytest.mark.requirement("tools:timeout:alive")
async def test_a_sign_of_life_from_a_thread_counts() -> None:
    limit_s = 0.5
    began = monotonic()

    @tool
    def slow(context: ToolContext) -> str:
        """Takes its time."""
        while monotonic() < began + 2 * limit_s:
            context.alive()
        return "done"

    assert await result_of(slow, timeout_s=limit_s) == ToolResult("done")


@pytest.mark.requirement("tools:timeout:alive")
async def test_a_tool_that_falls_silent_after_a_sign_of_life_is_late() -> None:
    async def run(_arguments: Given, context: ToolContext) -> str:
        context.alive()
        await asyncio.Event().wait()
        return "never"

    assert await result_of(OddTool(run), timeout_s=SHORT_S) == TOO_LATE


@pytest.mark.requirement("tools:thread:apart")
async def test_a_plain_function_that_blocks_holds_up_neither_the_loop_nor_other_tools() -> None:
    let_go, begun = threading.Event(), threading.Event()

    @tool
    def blocks() -> str:
        """Blocks."""
        begun.set()
        let_go.wait(PATIENCE_S)
        return "late"

    @tool
    def quick() -> str:
        """Does not."""
        return "quick"

    stuck = [asyncio.ensure_future(result_of(blocks)) for _ in range(50)]  # more than any pool has threads
    await until(begun.is_set)
    assert await result_of(quick) == ToolResult("quick")
    assert not any(one.done() for one in stuck)
    let_go.set()
    assert {(await one).text for one in stuck} == {"late"}


@pytest.mark.requirement("tools:thread:apart")
async def test_a_plain_function_that_never_ends_is_late_and_left_behind() -> None:
    let_go = threading.Event()

    @tool
    def blocks() -> str:
        """Blocks."""
        let_go.wait(PATIENCE_S)
        return "late"

    assert await result_of(blocks, timeout_s=SHORT_S) == TOO_LATE
    let_go.set()


@pytest.mark.requirement("tools:thread:generator-closed")
async def test_a_generator_that_nobody_waits_for_is_closed_at_its_next_item() -> None:
    begun, closed = threading.Event(), threading.Event()

    @tool
    def spins() -> Iterator[str]:
        """Never ends."""
        try:
            while True:
                begun.set()
                yield "more"
        finally:
            closed.set()

    running = asyncio.ensure_future(result_of(spins))
    await until(begun.is_set)
    assert not closed.is_set()
    running.cancel()
    await until(closed.is_set)


@pytest.mark.requirement("tools:thread:apart")
def test_a_plain_function_that_never_ends_does_not_hold_up_the_end_of_the_process() -> None:
    program = textwrap.dedent("""
        import asyncio, threading
        from tests.support.tool_runs import CONTEXT
        from worker.tools.decorator import tool
        from worker.tools.running import run_tool

        @tool
        def blocks() -> str:
            "Blocks for ever."
            threading.Event().wait()
            return "never"

        print(asyncio.run(run_tool(blocks, {}, CONTEXT, 0.02, 1000)).failure)
    """)
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=50, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "timeout\n", "")


@pytest.mark.requirement("tools:timeout:turn-ends-first")
async def test_when_the_turn_ends_first_the_tool_is_cancelled_and_so_is_its_run() -> None:
    begun, cancelled = asyncio.Event(), asyncio.Event()

    async def run(_arguments: Given, _context: ToolContext) -> str:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return "never"

    running = asyncio.ensure_future(run_tool(OddTool(run), {}, CONTEXT, LONG_S, 1000))
    await asyncio.wait_for(begun.wait(), PATIENCE_S)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert cancelled.is_set()


@pytest.mark.requirement("tools:timeout:turn-ends-first")
async def test_when_the_turn_ends_first_a_tool_that_goes_on_is_not_waited_for() -> None:
    begun, let_go = asyncio.Event(), asyncio.Event()

    async def run(_arguments: Given, _context: ToolContext) -> str:
        begun.set()
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue
        return "late"

    running = asyncio.ensure_future(run_tool(OddTool(run), {}, CONTEXT, LONG_S, 1000, grace_s=SHORT_S))
    await asyncio.wait_for(begun.wait(), PATIENCE_S)
    running.cancel()
    await asyncio.wait([running], timeout=PATIENCE_S)
    assert running.cancelled()
    let_go.set()


@pytest.mark.requirement("tools:context:given")
async def test_a_tool_gets_its_arguments_and_what_it_may_know_of_its_turn() -> None:
    async def run(arguments: Given, context: ToolContext) -> str:
        return json.dumps([dict(arguments), context.key, context.turn, context.session, context.agent])

    told = await result_of(OddTool(run), {"a": 1})
    assert told == ToolResult('[{"a": 1}, "turn_1:1:0", "turn_1", "s", "default"]')
