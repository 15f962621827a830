"""Many turns in one process: waiting is cheap, a full process leaves work to others, its own sleep kills nobody."""

import signal
from pathlib import Path

import pytest

from tests.support.stack import Process, Stack, eventually, stand_in
from worker.app import make_app, wake_session
from worker.ids import new_session
from worker.output.events import TextDeltaOutput, TextStreamDiscardedOutput

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

STALL_S = 0.5
STREAM = f"""
[[calls]]
steps = [ {{ text = "{"An answer that goes on while nobody reads it. " * 4}", pieces = 90, every_s = 0.05 }} ]
"""
WAITING = """
[[calls]]
steps = [ { text = "An answer." } ]

[[conversations]]
match = "wait"
calls = [ { steps = [ { stall = true } ] } ]
"""


def settings(base_url: str, more: str) -> str:
    return f'{more}\n[providers.main]\nbase_url = "{base_url}"\nmodel = "stand-in"\nstall_timeout_s = {STALL_S}\n'


def threads(process: Process) -> int:
    status = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii")
    return int(status.partition("Threads:")[2].split()[0])


@pytest.mark.requirement("watchdog:own-sleep")
async def test_a_process_that_slept_reads_what_came_meanwhile_before_it_calls_a_stream_dead(
    tmp_path: Path, real_url: str
) -> None:
    """Frozen for several times the stall limit, shorter than its lease; the provider has gone on all the while."""
    async with stand_in(STREAM, tmp_path) as provider, Stack(tmp_path, real_url) as stack:
        stack.configure(settings(provider.base_url, "lease.ttl_s = 30\nlease.renew_s = 2"))
        process = stack.start("turns")
        turn = await stack.submit("Say something.", watch_s=60)
        await stack.until(turn, lambda output: isinstance(output, TextDeltaOutput))
        exchange = provider.transcript.exchanges[0]
        process.send(signal.SIGSTOP)
        sent = len(exchange.sent.text)

        async def sent_since() -> int:
            return len(exchange.sent.text) - sent

        pieces = 5 * STALL_S / 0.05
        await eventually(sent_since, lambda count: count >= 2 * pieces, "the provider to go on for 5 stall limits")
        process.send(signal.SIGCONT)
        outputs = await stack.ended(turn)
    assert [each.ended for each in provider.transcript.exchanges] == ["complete"]
    assert not [output for output in outputs if isinstance(output, TextStreamDiscardedOutput)]


@pytest.mark.requirement("engine:seats:no-thread")
async def test_turns_that_wait_hold_no_threads(tmp_path: Path, real_url: str) -> None:
    async with stand_in(WAITING, tmp_path) as provider, Stack(tmp_path, real_url) as stack:
        stack.configure(settings(provider.base_url, ""))
        process = stack.start("turns")
        for number in range(120):
            await stack.submit(f"wait {number}")
        await provider.transcript.wait_for_request(120, 60)
        assert threads(process) < 60


@pytest.mark.requirement("engine:seats:full")
async def test_a_process_that_is_full_takes_no_message_that_another_has_room_for(tmp_path: Path, real_url: str) -> None:
    """No process sweeps here in time, so a message in the wrong hands would be a turn that does not begin."""
    async with stand_in(WAITING, tmp_path) as provider, Stack(tmp_path, real_url) as stack:
        stack.configure(settings(provider.base_url, "processes.turns_concurrency = 2\nlease.sweep_s = 60"))
        app = make_app(stack.settings, concurrency=1)
        await stack.logged(stack.start("turns"), "turns_process_started")
        for number in range(2):
            session = new_session()
            await stack.submit(f"wait {number}", session=session)
            wake_session(app, session)
        await provider.transcript.wait_for_request(2, 30)
        free = stack.start("turns")
        await stack.logged(free, "turns_process_started")
        turns = []
        for number in range(6):
            session = new_session()
            turns.append(await stack.submit(f"answer {number}", session=session, watch_s=60))
            wake_session(app, session)
        for turn in turns:
            await stack.ended(turn)

        async def told() -> set[str]:
            return {line["turn"] for line in free.lines() if line["event"] == "turn_sealed"}

        await eventually(told, lambda ended: ended == set(turns), "each turn in the free log")
