"""A server that has lost its last writes, as after a failover or a crash of its machine: nothing that has left the
system is contradicted, and nothing hangs. All processes live through it."""

import random
from collections import Counter
from pathlib import Path

import pytest

from tests.faults.rewinding import KINDS, awaited, durable_until, killed_after, rewound, settled, submitted_in
from tests.faults.scene import faults_of, settings, told
from tests.support.receiver import Receiver
from tests.support.stack import Stack, eventually, stand_in
from tests.support.valkey import Valkey
from worker.store.records import read_text, read_turn

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]

ANSWERS = "".join(
    f'\n[[calls]]\nsteps = [ {{ text = "Answer number {number}.", pieces = 3, every_s = 0.05 }} ]\n'
    for number in range(30)
)
SAYINGS = ", ".join(
    f'{{ steps = [ {{ text = "Saying number {number}.", pieces = 5, every_s = 0.1 }} ] }}' for number in range(30)
)
SCRIPT = f"""
[[conversations]]
match = "Say"
calls = [ {SAYINGS} ]

[[calls]]
steps = [ {{ text = "First I look. " }}, {{ tool = "note" }} ]

[[calls]]
steps = [ {{ text = "Then again. " }}, {{ tool = "note" }} ]
{ANSWERS}
"""
"""Whoever is asked again answers otherwise, so that what was said twice is seen."""


@pytest.mark.requirement("faults:rewind:nothing-contradicted")
@pytest.mark.parametrize("seed", range(3))
async def test_a_server_that_lost_what_was_not_promised_contradicts_nothing(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    with Valkey(tmp_path / "valkey") as server:
        async with stand_in(SCRIPT, tmp_path) as provider, Receiver() as receiver, Stack(tmp_path, server.url) as stack:
            stack.configure(settings(provider.base_url, receiver.url, "[turns]\ncrash_cap = 20"))
            runs = {"TOOL_RUNS": str(tmp_path / "runs")}
            processes = [
                stack.start("delivery"),
                stack.start("turns", environment=runs),
                stack.start("turns", environment=runs),
            ]
            turns = [await stack.submit("Look 0.", destinations=("receiver",))]
            for kind in chance.sample(sorted(KINDS), len(KINDS)):
                # With tools, or with nothing that is promised to be kept.
                what = "Look" if kind.startswith("tool") else chance.choice(("Look", "Say"))
                turns.append(await stack.submit(f"{what} {len(turns)}.", destinations=("receiver",)))
                steps = await killed_after(server, kind, awaited(server, kind))
                rewound(server, steps, kind, durable_until(steps), chance)
                await stack.reconnect()
            await settled(lambda: told(receiver).keys() == set(turns), "a message of each turn", 60)
            stored = {
                turn: (await read_turn(stack.client, turn), await read_text(stack.client, turn)) for turn in turns
            }
            found = faults_of(processes)
    for turn, said in told(receiver).items():
        record, text = stored[turn]
        assert record is not None
        assert [(outcome, words) for _, outcome, words in said] == [(record.outcome, text)]
        assert record.outcome == "completed"
    keys = Counter((tmp_path / "runs").read_text(encoding="utf-8").splitlines())
    assert {key: number for key, number in keys.items() if number > 1} == {}
    assert found == []


@pytest.mark.requirement("faults:rewind:beyond")
@pytest.mark.parametrize("seed", range(3))
async def test_a_server_that_lost_what_was_promised_says_nothing_twice_and_ends_what_it_still_knows(
    tmp_path: Path, seed: int
) -> None:
    """More than Lastword may be asked to survive: what a receiver was told stands, and no turn hangs."""
    chance = random.Random(seed)
    with Valkey(tmp_path / "valkey") as server:
        async with stand_in(SCRIPT, tmp_path) as provider, Receiver() as receiver, Stack(tmp_path, server.url) as stack:
            stack.configure(settings(provider.base_url, receiver.url, "[turns]\ncrash_cap = 20"))
            runs = {"TOOL_RUNS": str(tmp_path / "runs")}
            processes = [stack.start("delivery"), stack.start("turns", environment=runs)]
            known: set[str] = set()
            for kind in chance.sample(sorted(KINDS), 6):
                for number in range(2):
                    await stack.submit(f"Look {kind} {number}.", destinations=("receiver",))
                steps = await killed_after(server, kind, awaited(server, kind))
                rewound(server, steps, kind, steps[len(steps) // 2].end, chance)
                await stack.reconnect()
                known = submitted_in(server.steps())
            await settled(lambda: told(receiver).keys() >= known, "a message of each turn", 60)

            async def outcomes() -> set[str | None]:
                records = [await read_turn(stack.client, turn) for turn in known]
                return {record.outcome if record else "gone" for record in records}

            # One that was told may go on: the server has lost its end since.
            await eventually(outcomes, lambda seen: seen <= {"completed"}, "the end of each turn", 60)
            found = faults_of(processes)
    assert [said for said in told(receiver).values() if len(said) > 1] == []
    assert found == []
