"""Loops that outlive what their steps raise."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from channels.loops import keep_going


async def test_the_wait_after_a_fault_grows_to_2_s_and_starts_anew_after_a_success(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[float] = []
    stop = asyncio.Event()
    steps = iter(["fails"] * 7 + ["succeeds", "fails", "stops"])

    async def step() -> float:
        match next(steps):
            case "fails":
                raise ValueError("a bug")
            case "stops":
                stop.set()
        return 0.0

    async def pass_at_once(waiting: Coroutine[Any, Any, None], limit_s: float) -> None:
        waiting.close()
        waits.append(limit_s)
        raise TimeoutError

    monkeypatch.setattr(asyncio, "wait_for", pass_at_once)
    await keep_going("loop", step, stop)
    assert waits == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 0.1]
