"""A process that is told to stop ends in time, whatever its turns are doing, and no turn is the worse for it."""

import asyncio
import signal
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest

from tests.support.forwarder import Forwarder
from tests.support.receiver import Hang, Receiver
from tests.support.stack import SECRET, Process, Stack, eventually, stand_in
from worker.engine.shutdown import OUT_OF_TIME
from worker.output.events import (
    ApprovalRequestOutput,
    ErrorOutput,
    Output,
    TextDeltaOutput,
    TextOutput,
    TextStreamDiscardedOutput,
    ToolCallOutput,
    ToolResultOutput,
    TurnCompletedOutput,
)
from worker.store.records import TurnRecord, read_turn

pytestmark = [pytest.mark.process, pytest.mark.timeout(150)]

SCRIPT = """
after_last = "last"

[[conversations]]
match = "<stall>"
calls = [
  { steps = [ { text = "I will look. " }, { tool = "clock" } ] },
  { steps = [ { text = "The invoice was paid on" }, { stall = true } ] },
  { steps = [ { text = "The invoice" }, { truncate = true } ] },
  { steps = [ { text = "Your invoice was paid on Friday." } ] },
]

[[conversations]]
match = "<slow>"
calls = [ { steps = [ { text = "An answer that takes its time.", pieces = 30, every_s = 0.25 } ] } ]

[[conversations]]
match = "<hang>"
calls = [ { steps = [ { text = "I try. " }, { tool = "hang" } ] }, { steps = [ { text = "It went wrong." } ] } ]

[[conversations]]
match = "<block>"
calls = [ { steps = [ { text = "I try. " }, { tool = "block" } ] }, { steps = [ { text = "It went wrong." } ] } ]

[[conversations]]
match = "<litter>"
calls = [ { steps = [ { text = "I try. " }, { tool = "litter" } ] }, { steps = [ { text = "It went well." } ] } ]

[[conversations]]
match = "<freeze>"
calls = [ { steps = [ { text = "I try. " }, { tool = "freeze" } ] }, { steps = [ { text = "It went wrong." } ] } ]

[[conversations]]
match = "<ask>"
calls = [ { steps = [ { tool = "note" } ] } ]
"""
DRAIN_S = 5.0
ENDS_S = 60.0
"""So long a machine under load may take. Exit code 0 says that `processes.drain_s` was kept: else it is 75."""


def settings(base_url: str, more: str = "") -> str:
    return f"""
[providers.main]
base_url = "{base_url}"
model = "stand-in"

[agents.default]
tools = ["clock", "hang", "block", "litter", "freeze", "note"]

[tools.note]
approval = "ask"

[lease]
ttl_s = 2
renew_s = 0.4
sweep_s = 0.2

[processes]
drain_s = {DRAIN_S:g}
{more}
"""


def text_of(outputs: list[Output]) -> str:
    return "".join(output.text for output in outputs if isinstance(output, TextOutput) and output.is_call_boundary)


async def record_of(stack: Stack, turn: str) -> TurnRecord:
    record = await read_turn(stack.client, turn)
    assert record is not None
    return record


async def ended(process: Process) -> int:
    """The exit code of a process; the loop goes on meanwhile, with the receivers and providers on it."""

    async def look() -> int | None:
        return process.returncode

    code = await eventually(look, lambda seen: seen is not None, f"the end of {process.name}", ENDS_S)
    assert code is not None
    return code


def drained_for_s(process: Process, last: str) -> float:
    """How long after the first word a process logged its last line."""
    [told] = [line["at"] for line in process.lines() if line["event"] == "shutting_down"]
    [end] = [line["at"] for line in process.lines() if line["event"] == last]
    return (datetime.fromisoformat(end) - datetime.fromisoformat(told)).total_seconds()


async def insisted(process: Process, number: signal.Signals) -> int:
    """The exit code of a process that is sent a signal until it ends: what comes too soon is the first one again."""

    async def look() -> int | None:
        process.send(number)
        return process.returncode

    code = await eventually(look, lambda seen: seen is not None, f"the end of {process.name}", ENDS_S)
    assert code is not None
    return code


def of_call(number: int) -> Callable[[Output], bool]:
    return lambda output: isinstance(output, TextDeltaOutput) and output.call == number


@pytest.mark.requirement("drain:handoff:stall")
async def test_a_stalled_turn_goes_on_in_another_process_and_spends_nothing(tmp_path: Path, real_url: str) -> None:
    """One resume is allowed, and the next process needs it: had the hand-over spent one, the turn would end there."""
    async with stand_in(SCRIPT, tmp_path) as provider, Stack(tmp_path, real_url) as stack:
        stack.configure(settings(provider.base_url, "[turns]\ntimeout_resume_retry_budget = 1"))
        first = stack.start("turns")
        turn = await stack.submit("<stall>", watch_s=120)
        await stack.until(turn, of_call(2))
        second = stack.start("turns")
        await stack.logged(second, "turns_process_started")
        first.send(signal.SIGTERM)
        assert await ended(first) == 0
        outputs = await stack.ended(turn)
        record = await record_of(stack, turn)
        [resumed] = [line for line in second.lines() if line["event"] == "turn_resumed"]
        assert len(provider.transcript.exchanges) == 4
    assert text_of(outputs) == "I will look. Your invoice was paid on Friday."
    reasons = [each.reason for each in outputs if isinstance(each, TextStreamDiscardedOutput)]
    assert reasons == ["drain", "end_of_stream"]
    assert (record.outcome, record.crashes, record.totals.discarded_resume_attempts) == ("completed", 0, 2)
    assert (resumed["turn"], resumed["call"], resumed["crashes"]) == (turn, 2, 0)


@pytest.mark.requirement("drain:fail:stall")
async def test_a_stalled_turn_that_is_not_handed_over_fails_with_what_stands(tmp_path: Path, real_url: str) -> None:
    async with stand_in(SCRIPT, tmp_path) as provider, Stack(tmp_path, real_url) as stack:
        stack.configure(settings(provider.base_url, '[turns]\non_drain = "fail"'))
        first = stack.start("turns")
        turn = await stack.submit("<stall>", watch_s=120)
        await stack.until(turn, of_call(2))
        await stack.logged(stack.start("turns"), "turns_process_started")
        first.send(signal.SIGTERM)
        assert await ended(first) == 0
        outputs = await stack.ended(turn)
        assert len(provider.transcript.exchanges) == 2
    assert isinstance(outputs[-1], TurnCompletedOutput)
    error = next(output for output in outputs if isinstance(output, ErrorOutput))
    assert (outputs[-1].outcome, error.code) == ("failed", "drained")
    assert "turns.on_drain" in error.message
    assert text_of(outputs) == "I will look. "


@pytest.mark.requirement("drain:limit:tools")
@pytest.mark.requirement("tuning:processes:drain-s")
@pytest.mark.parametrize("tool", ["hang", "block"])
async def test_a_tool_that_does_not_end_is_cut_off_and_the_model_is_told(
    tool: str, tmp_path: Path, real_url: str
) -> None:
    """One can be cancelled, the other blocks a thread for ten minutes."""
    async with stand_in(SCRIPT, tmp_path) as provider, Stack(tmp_path, real_url) as stack:
        stack.configure(settings(provider.base_url))
        first = stack.start("turns")
        turn = await stack.submit(f"<{tool}>", watch_s=120)
        await stack.until(turn, lambda output: isinstance(output, ToolCallOutput))
        await stack.logged(stack.start("turns"), "turns_process_started")
        first.send(signal.SIGTERM)
        assert await ended(first) == 0
        assert drained_for_s(first, "turns_process_stopped") > DRAIN_S / 2, "it had its time"
        outputs = await stack.ended(turn)
        record = await record_of(stack, turn)
    results = [(output.name, output.failure) for output in outputs if isinstance(output, ToolResultOutput)]
    assert results == [(tool, "outcome_unknown")]
    assert text_of(outputs) == "I try. It went wrong."
    assert (record.outcome, record.crashes) == ("completed", 0)


@pytest.mark.requirement("drain:limit:stuck")
async def test_a_process_whose_loop_is_stuck_ends_in_time_all_the_same(tmp_path: Path, real_url: str) -> None:
    """Its lease has run out by then, and the turn has gone on elsewhere, as after a crash."""
    async with stand_in(SCRIPT, tmp_path) as provider, Stack(tmp_path, real_url) as stack:
        stack.configure(settings(provider.base_url))
        first = stack.start("turns")
        turn = await stack.submit("<freeze>", watch_s=120)
        await stack.until(turn, lambda output: isinstance(output, ToolCallOutput))
        stack.start("turns")
        first.send(signal.SIGTERM)
        assert await ended(first) == OUT_OF_TIME
        outputs = await stack.ended(turn)
        record = await record_of(stack, turn)
        [cut_off] = [line for line in first.lines() if line["event"] == "process_cut_off"]
    assert cut_off["why"] == "no_time_left"
    assert text_of(outputs) == "I try. It went wrong."
    assert (record.outcome, record.crashes) == ("completed", 1)


@pytest.mark.requirement("drain:limit:parked")
async def test_a_turn_that_waits_for_a_person_holds_up_no_drain(tmp_path: Path, real_url: str) -> None:
    async with stand_in(SCRIPT, tmp_path) as provider, Stack(tmp_path, real_url) as stack:
        stack.configure(settings(provider.base_url))
        first = stack.start("turns")
        turn = await stack.submit("<ask>", watch_s=120)
        await stack.until(turn, lambda output: isinstance(output, ApprovalRequestOutput))
        await stack.logged(first, "turn_parked")
        first.send(signal.SIGTERM)
        assert await ended(first) == 0
        record = await record_of(stack, turn)
    assert (record.state, record.crashes) == ("parked", 0)


@pytest.mark.requirement("drain:end:left-behind")
async def test_what_a_tool_has_left_behind_keeps_no_process(tmp_path: Path, real_url: str) -> None:
    """A thread, for which Python would wait ten minutes."""
    async with stand_in(SCRIPT, tmp_path) as provider, Stack(tmp_path, real_url) as stack:
        stack.configure(settings(provider.base_url))
        first = stack.start("turns")
        outputs = await stack.ended(await stack.submit("<litter>", watch_s=120))
        first.send(signal.SIGTERM)
        assert await ended(first) == 0
    assert text_of(outputs) == "I try. It went well."
    assert first.lines()[-1]["event"] == "turns_process_stopped"


@pytest.mark.requirement("drain:signals:first")
@pytest.mark.parametrize("kind", ["turns", "delivery"])
async def test_a_process_that_says_that_it_has_started_hears_every_signal(
    kind: str, tmp_path: Path, real_url: str
) -> None:
    async with Stack(tmp_path, real_url) as stack:
        stack.configure(settings("http://127.0.0.1:9/v1"))
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            process = stack.start(kind)
            await stack.logged(process, f"{kind}_process_started")
            process.send(number)
            assert await ended(process) == 0
            assert "shutting_down" in [line["event"] for line in process.lines()]


@pytest.mark.requirement("drain:limit:listing")
async def test_a_tool_server_that_does_not_answer_holds_up_no_drain(tmp_path: Path, real_url: str) -> None:
    async with stand_in(SCRIPT, tmp_path) as provider, Receiver(Hang()) as silent, Stack(tmp_path, real_url) as stack:
        mcp = f'[mcp.silent]\nurl = "{silent.url}"\nconnect_timeout_s = 100\n[turns]\ntool_timeout_s = 100\n'
        text = settings(provider.base_url, mcp).replace('"note"]', '"note", "mcp:silent"]')
        stack.configure(text)
        first = stack.start("turns")
        turn = await stack.submit("<slow>")

        async def look() -> int:
            return len(silent.requests)

        await eventually(look, bool, "the tool server to be asked")
        first.send(signal.SIGTERM)
        assert await ended(first) == 0
        record = await record_of(stack, turn)
    assert (record.state, record.crashes) == ("queued", 0)


@pytest.mark.requirement("drain:limit:redis-away")
async def test_a_drain_while_redis_is_away_ends_in_time_and_the_turn_goes_on(tmp_path: Path, real_url: str) -> None:
    port = int(real_url.rsplit(":", 1)[1].split("/", maxsplit=1)[0])
    async with (
        stand_in(SCRIPT, tmp_path) as provider,
        Forwarder(port) as network,
        Stack(tmp_path, real_url) as stack,
    ):
        stack.configure(settings(provider.base_url))
        through = {"LASTWORD_REDIS_URL": real_url.replace(f":{port}", f":{network.port}")}
        first = stack.start("turns", environment=through)
        turn = await stack.submit("<slow>", watch_s=120)
        await stack.until(turn, of_call(1))
        async with network.away():
            first.send(signal.SIGTERM)
            assert await ended(first) in {0, OUT_OF_TIME}
        stack.start("turns")
        outputs = await stack.ended(turn)
    assert text_of(outputs) == "An answer that takes its time."


@pytest.mark.requirement("drain:limit:redis-back")
async def test_a_turn_is_handed_over_once_redis_is_back_within_the_drain(tmp_path: Path, real_url: str) -> None:
    """Longer away than a lease; nobody has claimed the turn meanwhile, so no crash is counted."""
    port = int(real_url.rsplit(":", 1)[1].split("/", maxsplit=1)[0])
    async with (
        stand_in(SCRIPT, tmp_path) as provider,
        Forwarder(port) as network,
        Stack(tmp_path, real_url) as stack,
    ):
        stack.configure(settings(provider.base_url).replace(f"drain_s = {DRAIN_S:g}", "drain_s = 25"))
        through = {"LASTWORD_REDIS_URL": real_url.replace(f":{port}", f":{network.port}")}
        first = stack.start("turns", environment=through)
        turn = await stack.submit("<slow>", watch_s=120)
        await stack.until(turn, of_call(1))
        async with network.away():
            first.send(signal.SIGTERM)
            await asyncio.sleep(4)
        assert await ended(first) in {0, OUT_OF_TIME}
        record = await record_of(stack, turn)
        assert (record.state, record.crashes) == ("queued", 0)
        stack.start("turns")
        outputs = await stack.ended(turn)
    assert text_of(outputs) == "An answer that takes its time."


@pytest.mark.requirement("drain:signals:echo")
@pytest.mark.parametrize("numbers", [("SIGTERM", "SIGTERM"), ("SIGHUP",), ("SIGTERM", "SIGHUP")])
async def test_a_signal_that_comes_twice_at_once_is_a_drain(
    numbers: tuple[str, ...], tmp_path: Path, real_url: str
) -> None:
    """As from a supervisor that signals every process of a unit, where another of them passes it on."""
    async with stand_in(SCRIPT, tmp_path) as provider, Stack(tmp_path, real_url) as stack:
        stack.configure(settings(provider.base_url))
        first = stack.start("turns", "hears_echoes_for_long")
        turn = await stack.submit("<block>", watch_s=120)
        await stack.until(turn, lambda output: isinstance(output, ToolCallOutput))
        first.send(signal.Signals[numbers[0]])
        await stack.logged(first, "shutting_down")
        for number in numbers[1:]:
            first.send(signal.Signals[number])
        assert await ended(first) in {0, OUT_OF_TIME}
        stack.start("turns")
        outputs = await stack.ended(turn)
        record = await record_of(stack, turn)
    assert text_of(outputs) == "I try. It went wrong."
    assert (record.outcome, record.crashes) == ("completed", 0)


@pytest.mark.requirement("drain:crash:signals")
@pytest.mark.parametrize("signals", [("SIGTERM", "SIGTERM"), ("SIGQUIT",), ("SIGTERM", "SIGQUIT"), ("SIGKILL",)])
async def test_what_is_harder_than_sigterm_ends_the_process_at_once_and_loses_nothing(
    signals: tuple[str, ...], tmp_path: Path, real_url: str
) -> None:
    """Turns are not handed over here, so that one SIGTERM alone would wait for the answer to end."""
    async with stand_in(SCRIPT, tmp_path) as provider, Stack(tmp_path, real_url) as stack:
        stack.configure(settings(provider.base_url, '[turns]\non_drain = "fail"'))
        first = stack.start("turns")
        turn = await stack.submit("<slow>", watch_s=120)
        await stack.until(turn, of_call(1))
        second = stack.start("turns")
        await stack.logged(second, "turns_process_started")
        first.send(signal.Signals[signals[0]])
        if len(signals) > 1:
            await stack.logged(first, "shutting_down")
        code = await insisted(first, signal.Signals[signals[-1]])
        outputs = await stack.ended(turn)
        record = await record_of(stack, turn)
    number = signal.Signals[signals[-1]].value
    assert code == (-number if signals == ("SIGKILL",) else 128 + number)
    assert text_of(outputs) == "An answer that takes its time."
    assert (record.outcome, record.crashes) == ("completed", 1)


@pytest.mark.requirement("drain:signals:early")
@pytest.mark.parametrize("kind", ["turns", "delivery"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGQUIT, 128 + signal.SIGQUIT), (signal.SIGHUP, 0)])
async def test_a_process_that_still_waits_for_its_broker_hears_the_same_signals(
    number: signal.Signals, code: int, kind: str, tmp_path: Path, real_url: str, unused_port: int
) -> None:
    async with Stack(tmp_path, real_url) as stack:
        stack.configure(settings("http://127.0.0.1:9/v1"))
        environment = {"LASTWORD_BROKER_URL": f"redis://127.0.0.1:{unused_port}/0"}
        process = stack.start(kind, environment=environment)

        async def look() -> str:
            return process.tail()

        await eventually(look, lambda log: "Cannot connect" in log, "a look for the broker", 60)
        process.send(number)
        assert await ended(process) == code


@pytest.mark.requirement("drain:crash:delivery")
@pytest.mark.parametrize("signals", [("SIGQUIT",), ("SIGTERM", "SIGTERM")])
async def test_a_delivery_process_ends_at_once_too_and_its_delivery_is_made_by_another(
    signals: tuple[str, ...], tmp_path: Path, real_url: str
) -> None:
    async with (
        stand_in(SCRIPT, tmp_path) as provider,
        Receiver(Hang()) as receiver,
        Stack(tmp_path, real_url) as stack,
    ):
        endpoint = f'[endpoints.receiver]\nurl = "{receiver.url}"\nsecret = "{SECRET}"\n[delivery]\ntimeout_s = 8'
        stack.configure(settings(provider.base_url, endpoint))
        first = stack.start("delivery")
        stack.start("turns")
        await stack.submit("<slow>", destinations=("receiver",))
        sent = await receiver.nth(1, within_s=40)
        first.send(signal.Signals[signals[0]])
        if len(signals) > 1:
            await stack.logged(first, "shutting_down")
        assert await insisted(first, signal.Signals[signals[-1]]) == 128 + signal.Signals[signals[-1]].value
        stack.start("delivery")
        again = await receiver.nth(2, within_s=40)
    assert again.headers["webhook-id"] == sent.headers["webhook-id"]
