"""Loops that outlive what their steps raise."""

import asyncio

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

    timeout = asyncio.timeout

    def pass_at_once(limit_s: float) -> asyncio.Timeout:
        waits.append(limit_s)
        return timeout(0)

    monkeypatch.setattr(asyncio, "timeout", pass_at_once)
    await keep_going("loop", step, stop)
    assert waits == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 0.1]
