"""A wake-up that is delivered again while its turn is driven, to both of two workers, again and again."""

import asyncio
from pathlib import Path

import pytest

from tests.support.stack import Stack, eventually, stand_in
from worker import ids
from worker.app import make_app, wake_session
from worker.output.events import TextOutput
from worker.store.records import read_turn

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

SCRIPT = """
after_last = "last"

[[calls]]
steps = [ { text = "I will look. " }, { tool = "note" } ]

[[calls]]
steps = [ { text = "An answer that takes its time.", pieces = 30, every_s = 0.1 } ]
"""
ROUNDS = 25


@pytest.mark.requirement("cases:t14:redelivery-while-alive")
async def test_a_wake_up_that_comes_again_while_the_turn_is_driven_starts_nothing(
    tmp_path: Path, real_url: str
) -> None:
    """Streams 2.2 T14. Each redelivery meets a living lease; the provider sees one request for each call."""
    runs = tmp_path / "runs"
    async with stand_in(SCRIPT, tmp_path) as provider, Stack(tmp_path, real_url) as stack:
        stack.configure(
            f'[providers.main]\nbase_url = "{provider.base_url}"\nmodel = "stand-in"\n'
            '[agents.default]\ntools = ["note"]\n[lease]\nttl_s = 2\nrenew_s = 0.4\nsweep_s = 0.1\n'
        )
        workers = [stack.start("turns", environment={"TOOL_RUNS": str(runs)}) for _ in range(2)]
        for worker in workers:
            await stack.logged(worker, "turns_process_started")
        app = make_app(stack.settings, concurrency=1)
        session = ids.new_session()
        turn = await stack.submit("When?", session=session)
        sent = 0
        for _ in range(ROUNDS):
            for _ in range(4):
                wake_session(app, session)
                sent += 1
            await asyncio.sleep(0.1)

        async def look() -> int:
            return int(await stack.client.llen("turns"))

        await eventually(look, lambda waiting: waiting == 0, "every wake-up to be taken")
        outputs = await stack.ended(turn)
        record = await read_turn(stack.client, turn)
        assert record is not None
        exchanges = [(each.call, each.ended) for each in provider.transcript.exchanges]
    assert sent == 4 * ROUNDS
    assert exchanges == [(1, "complete"), (2, "complete")]
    assert runs.read_text(encoding="utf-8") == f"{turn}:1:0\n"
    assert (record.outcome, record.crashes, record.discards) == ("completed", 0, 0)
    assert "".join(each.text for each in outputs if isinstance(each, TextOutput)) == (
        "I will look. An answer that takes its time."
    )
    assert not [line for worker in workers for line in worker.lines() if line["event"] == "turn_taken_over"]
