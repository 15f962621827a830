"""A bulk replay by real delivery processes, against a receiver that comes back after an outage."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from channels.delivery.model import Delivery
from channels.delivery.replay import Bounds, Filters, Job
from channels.replays import starting
from channels.replays import stored as replays
from tests.delivery.outboxes import insert, made
from tests.support.receiver import Receiver
from tests.support.stack import SECRET, Stack, eventually, stand_in
from worker.store import clock

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

COUNT = 120
IN_FLIGHT = 10
SCRIPT = '[[calls]]\nsteps = [ { text = "Fine." } ]\n'


def settings(base_url: str, hook: str) -> str:
    return f"""
[providers.main]
base_url = "{base_url}"
model = "stand-in"

[endpoints.receiver]
url = "{hook}"
secret = "{SECRET}"
"""


async def died(stack: Stack, turn: str) -> list[Delivery]:
    """An outage a minute ago: what was given up then, of a turn that is stored."""
    at_ms = await clock.now_ms(stack.client) - 60_000
    end: dict[str, Any] = {"turn": turn, "state": "dead", "due_ms": 0, "created_ms": at_ms, "ended_ms": at_ms + 1}
    return await insert(stack.client, [made(f"evt_{number:024}", "receiver", **end) for number in range(COUNT)])


@pytest.mark.requirement("operating:replays:processes")
async def test_a_bulk_replay_goes_on_in_the_next_process_after_one_was_killed(tmp_path: Path, real_url: str) -> None:
    async with (
        stand_in(SCRIPT, tmp_path) as provider,
        Receiver() as receiver,
        Stack(tmp_path, real_url) as stack,
    ):
        stack.configure(settings(provider.base_url, receiver.url))
        stack.start("turns")
        turn = await stack.submit("Hello?", watch_s=60)
        await stack.ended(turn)
        there = await died(stack, turn)
        first = stack.start("delivery")
        now_ms = await clock.now_ms(stack.client)
        filters = Filters(("dead",), 0, 0, "receiver")
        job = await starting.start(stack.client, filters, 30, now_ms, by="anna", bounds=Bounds())
        await receiver.nth(COUNT // 3, within_s=30)
        first.kill()
        killed_at = await replays.show(stack.client, job.id)
        stack.start("delivery")

        async def progress() -> Job:
            return await replays.show(stack.client, job.id)

        ended = await eventually(progress, lambda one: one.state == "done", "the end of the replay", 90)
        await stack.deliveries(lambda one: one.state == "delivered", COUNT, within_s=90)
    assert killed_at.state == "running"
    assert killed_at.replayed < COUNT
    assert (ended.found, ended.replayed, ended.skipped) == (COUNT, COUNT, 0)
    came = Counter(request.headers["webhook-id"] for request in receiver.requests)
    assert set(came) == {one.id for one in there}
    assert came.total() - COUNT <= IN_FLIGHT  # of those that were under way at the kill, perhaps
