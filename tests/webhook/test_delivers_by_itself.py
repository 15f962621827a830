"""A delivery process whose broker takes a wake-up and never answers: it delivers by itself what it can tell nobody."""

import threading
from pathlib import Path

import pytest
import redis.asyncio

from channels.wiring import DeliveryProcess
from tests.support.receiver import Receiver
from tests.webhook.test_delivery_process import answered, settings_of

WITHIN_S = 30.0


@pytest.mark.requirement("faults:broker:silent")
async def test_what_is_due_is_delivered_while_a_wake_up_hangs(
    real_redis: redis.asyncio.Redis, real_url: str, tmp_path: Path
) -> None:
    """The first is given up as late; the second comes while that hangs still, and waits for no wake-up of its own."""
    hangs, goes = threading.Event(), threading.Event()
    wakes: list[None] = []

    def wake() -> None:
        wakes.append(None)
        hangs.set()
        goes.wait()

    async with Receiver() as receiver:
        process = DeliveryProcess(settings_of(real_url, tmp_path, receiver.url), wake)
        await process.start()
        process.begin()
        try:
            first = await answered(real_redis, "crm")
            sent = [await receiver.nth(1, within_s=WITHIN_S)]
            second = await answered(real_redis, "crm")
            sent.append(await receiver.nth(2, within_s=WITHIN_S))
            assert hangs.is_set()
            assert len(wakes) == 1
        finally:
            goes.set()
            process.drain()
            await process.stop()
    bodies = [each.body.decode() for each in sent]
    assert [turn in body for turn, body in zip((first, second), bodies, strict=True)] == [True, True]
