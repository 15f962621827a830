"""Whatever a tool does, its run ends in a result that the model can read."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from worker.codecs.messages import ToolSpec
from worker.tools import Tool, ToolRefusal, ToolResult, run_tool

LONG_S = 30.0
SHORT_S = 0.02


def tool(run: Callable[[Mapping[str, object], str], Awaitable[Any]]) -> Tool:
    return Tool(ToolSpec("odd", "Does odd things.", {"type": "object"}), run)


async def result_of(
    run: Callable[[Mapping[str, object], str], Awaitable[Any]], timeout_s: float = LONG_S
) -> ToolResult:
    return await asyncio.wait_for(run_tool(tool(run), {}, "key", timeout_s, grace_s=SHORT_S), 10)


@pytest.mark.requirement("tools:result:text")
@pytest.mark.parametrize(
    ("returned", "told"),
    [
        ("12:00", "12:00"),
        ("", ""),
        (None, "null"),
        (7, "7"),
        ({"größe": [1, True, None]}, '{"größe": [1, true, null]}'),
        ({"at": datetime(2026, 1, 2, tzinfo=UTC)}, '{"at": "2026-01-02 00:00:00+00:00"}'),
        (b"raw", "\"b'raw'\""),
        ("half \ud83d", "half \ufffd"),
        (["half \udcfc"], '["half \ufffd"]'),
        ("\ud83d\ude42", "🙂"),
    ],
)
async def test_whatever_a_tool_returns_is_told_as_text_that_can_be_stored(returned: object, told: str) -> None:
    async def run(_arguments: Mapping[str, object], _key: str) -> object:
        return returned

    result = await result_of(run)
    assert result == ToolResult(told)
    assert type(result.text) is str
    result.text.encode()


@pytest.mark.requirement("tools:result:text")
async def test_a_result_that_is_no_text_and_no_json_is_a_failure() -> None:
    circle: list[object] = []
    circle.append(circle)

    async def run(_arguments: Mapping[str, object], _key: str) -> object:
        return circle

    assert await result_of(run) == ToolResult("Error: the tool failed", "failed")


@pytest.mark.requirement("tools:result:text")
async def test_the_words_of_a_refusal_are_told_as_text_that_can_be_stored() -> None:
    async def run(_arguments: Mapping[str, object], _key: str) -> str:
        raise ToolRefusal("no zone \udcfc")

    assert await result_of(run) == ToolResult("Error: no zone \ufffd", "refused")


@pytest.mark.requirement("tools:result:never-raises")
@pytest.mark.parametrize(
    "error",
    [ValueError("x"), TimeoutError(), asyncio.CancelledError(), SystemExit(3), GeneratorExit(), BaseException()],
)
async def test_whatever_a_tool_raises_is_a_result(error: BaseException) -> None:
    async def run(_arguments: Mapping[str, object], _key: str) -> str:
        raise error

    assert await result_of(run) == ToolResult("Error: the tool failed", "failed")


@pytest.mark.requirement("tools:result:never-raises")
async def test_a_tool_that_cancels_itself_is_a_result() -> None:
    async def run(_arguments: Mapping[str, object], _key: str) -> str:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.Event().wait()
        return "never"

    assert await result_of(run) == ToolResult("Error: the tool failed", "failed")


@pytest.mark.requirement("tools:result:never-raises")
async def test_a_tool_that_is_no_coroutine_is_a_result() -> None:
    def run(_arguments: Mapping[str, object], _key: str) -> Any:
        return "at once"

    assert await result_of(run) == ToolResult("Error: the tool failed", "failed")


@pytest.mark.requirement("tools:timeout:ends")
async def test_a_tool_that_takes_too_long_is_cancelled_and_said_to_be_late() -> None:
    cancelled = asyncio.Event()

    async def run(_arguments: Mapping[str, object], _key: str) -> str:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return "never"

    assert await result_of(run, SHORT_S) == ToolResult("Error: the tool did not answer within 0.02 s", "timeout")
    assert cancelled.is_set()


@pytest.mark.requirement("tools:timeout:ends")
async def test_a_tool_that_swallows_its_cancellation_is_left_behind() -> None:
    let_go, ended = asyncio.Event(), asyncio.Event()

    async def run(_arguments: Mapping[str, object], _key: str) -> str:
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue
        ended.set()
        return "late"

    result = await result_of(run, SHORT_S)
    assert result == ToolResult("Error: the tool did not answer within 0.02 s", "timeout")
    assert not ended.is_set()
    let_go.set()
    await asyncio.wait_for(ended.wait(), 10)


@pytest.mark.requirement("tools:timeout:turn-ends-first")
async def test_when_the_turn_ends_first_the_tool_is_cancelled_and_so_is_its_run() -> None:
    begun, cancelled = asyncio.Event(), asyncio.Event()

    async def run(_arguments: Mapping[str, object], _key: str) -> str:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return "never"

    running = asyncio.ensure_future(run_tool(tool(run), {}, "key", LONG_S))
    await asyncio.wait_for(begun.wait(), 10)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert cancelled.is_set()


@pytest.mark.requirement("tools:timeout:turn-ends-first")
async def test_when_the_turn_ends_first_a_tool_that_goes_on_is_not_waited_for() -> None:
    begun, let_go = asyncio.Event(), asyncio.Event()

    async def run(_arguments: Mapping[str, object], _key: str) -> str:
        begun.set()
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue
        return "late"

    running = asyncio.ensure_future(run_tool(tool(run), {}, "key", LONG_S, grace_s=SHORT_S))
    await asyncio.wait_for(begun.wait(), 10)
    running.cancel()
    await asyncio.wait([running], timeout=10)
    assert running.cancelled()
    let_go.set()


async def test_a_tool_gets_its_arguments_and_its_key() -> None:
    async def run(arguments: Mapping[str, object], key: str) -> str:
        return json.dumps([dict(arguments), key])

    assert await run_tool(tool(run), {"a": 1}, "turn:1:0", LONG_S) == ToolResult('[{"a": 1}, "turn:1:0"]')
