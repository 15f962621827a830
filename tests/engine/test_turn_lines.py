"""What a turn leaves in logs, figures and reports: one line for each end, and no word of anybody."""

import asyncio
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sentry_sdk

from tests.engine.test_reports import Intake
from tests.store.turns import driven, driver_of, taken
from tests.support.packages import Site
from tests.support.stack import eventually, stand_in
from tests.support.whole_turns import WholeTurn, settings_of, whole_turn
from worker import api, metrics, observability
from worker.engine.heartbeat import Heartbeat, HeartbeatLimits
from worker.errors import Fenced
from worker.store import connect, keys
from worker.wiring import TurnProcess

CANARY = "canary"
"""In every text of others below. It must be found nowhere but in the turn."""

TOOLS = '''
    from worker.tools.decorator import tool

    @tool
    def echo(word: str) -> str:
        """Says it again."""
        return f"{word} and {word}"

    @tool
    def fails(word: str) -> str:
        """Fails with words."""
        raise RuntimeError(word)
'''
SCRIPT = """
[[calls]]
usage = { prompt_tokens = 4, completion_tokens = 2, total_tokens = 6 }
steps = [
  { text = "canary-first " },
  { tool = "echo", arguments = { word = "canary-argument" } },
  { tool = "fails", arguments = { word = "canary-argument" } },
]

[[calls]]
steps = [ { text = "canary-half ", pieces = 2, every_s = 0.12 }, { truncate = true } ]

[[calls]]
usage = { prompt_tokens = 11, completion_tokens = 7, total_tokens = 18 }
steps = [ { text = "canary-whole." } ]
"""
FAILING = """
[[calls]]
steps = [ { text = "canary-half" }, { error = { message = "canary-error", type = "server_error" } } ]

[[calls]]
status = 500
body = { error = { message = "canary-refusal", code = "canary-code" } }
"""


@pytest.fixture
def intake() -> Iterator[Intake]:
    intake = Intake()
    yield intake
    sentry_sdk.get_client().close()
    sentry_sdk.init(dsn=None, default_integrations=False)  # none that would stay in the libraries of later tests
    intake.close()


class Lines(logging.Handler):
    """Keeps the lines as they would be written."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(observability._JsonLine())
        self.lines: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(json.loads(self.format(record)))


@pytest.fixture
def lines() -> Lines:
    ours, lines = logging.getLogger("lastword"), Lines()
    ours.addHandler(lines)
    ours.setLevel("DEBUG")
    return lines


def figure(name: str, **labels: str) -> float:
    """The value of a figure of this process."""
    return metrics.REGISTRY.get_sample_value(f"lastword_{name}", labels) or 0.0


def events(logged: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [line for line in logged if line["event"] == name]


async def told(url: str, folder: Path, script: str) -> WholeTurn:
    return await whole_turn(
        url,
        folder,
        script,
        prompt="canary-prompt",
        api_key="canary-key",
        agents={"default": {"tools": ["echo", "fails"], "instructions": "canary-instructions"}},
        turns={"timeout_resume_retry_budget": 1},
        lease={"ttl_s": 0.8, "renew_s": 0.1},
        transport_retries=0,
        stall_timeout_s=4,
    )


@pytest.mark.requirement("seeing:lines:no-words")
async def test_no_line_no_figure_and_no_report_of_a_whole_turn_holds_a_word_of_anybody(
    real_url: str,
    tmp_path: Path,
    intake: Intake,
    monkeypatch: pytest.MonkeyPatch,
    lines: Lines,
) -> None:
    Site(tmp_path, monkeypatch).package("canaries", TOOLS, "echo = echo", "fails = fails")
    observability.configure_sentry(intake.dsn)
    done = await told(real_url, tmp_path, SCRIPT)
    failed = await told(real_url, tmp_path, FAILING)
    sentry_sdk.flush(5)
    assert (done.record.outcome, done.text) == ("completed", "canary-first canary-whole.")
    assert "canary-argument and canary-argument" in [result.result for result in done.tool_results]
    assert failed.record.outcome == "failed"
    assert CANARY in (failed.record.failure.message if failed.record.failure else "")
    logged = lines.lines
    assert {line["event"] for line in logged} >= {"call_completed", "call_discarded", "turn_sealed", "tool_failed"}
    assert CANARY not in json.dumps(logged)
    assert CANARY not in metrics.text().decode()
    reports = b"".join(intake.bodies).decode()
    assert "RuntimeError" in reports
    assert CANARY not in reports


@pytest.mark.requirement("seeing:lines:one-an-end")
async def test_each_call_each_attempt_and_the_turn_leave_one_line_with_ids_counts_and_times(
    real_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: Lines
) -> None:
    Site(tmp_path, monkeypatch).package("canaries", TOOLS, "echo = echo", "fails = fails")
    turn = (await told(real_url, tmp_path, SCRIPT)).record
    logged = lines.lines
    first, second = events(logged, "call_completed")
    assert [(line["call"], line["attempt"], line["characters"]) for line in (first, second)] == [(1, 1, 13), (2, 2, 13)]
    assert (first["tool_calls"], second["input_tokens"], second["output_tokens"]) == (2, 11, 7)
    for line in (first, second):
        assert (line["turn"], line["session"], line["provider"]) == (turn.turn, turn.session, "main")
        assert 0 <= line["first_content_s"] <= line["took_s"]
        assert line["commit_s"] >= 0
    [discard] = events(logged, "call_discarded")
    assert (discard["call"], discard["attempt"], discard["reason"]) == (2, 1, "end_of_stream")
    assert (discard["bytes"], discard["resumes_spent"]) == (12, 1)
    assert 0.08 <= discard["longest_gap_s"] <= discard["took_s"]
    [seal] = events(logged, "turn_sealed")
    assert (seal["turn"], seal["outcome"], seal["code"]) == (turn.turn, "completed", None)
    assert (seal["calls"], seal["attempts"], seal["crashes"], seal["epoch"]) == (2, 3, 0, 1)
    assert (seal["agent"], seal["source"], seal["provider"]) == ("default", "test", "main")
    assert turn.sealed_ms is not None
    assert seal["duration_s"] == pytest.approx((turn.sealed_ms - turn.created_ms) / 1000, abs=0.5)


def documented() -> dict[str, set[str]]:
    """The fields of each event that the runbook lists."""
    text = (Path(__file__).resolve().parents[2] / "ops" / "runbooks" / "log-lines.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| .+ \| (.+) \|$", text, re.MULTILINE)
    return {event: set(re.findall(r"`(\w+)`", fields)) for event, fields in rows}


@pytest.mark.requirement("seeing:lines:documented")
async def test_the_runbook_tells_the_fields_of_each_line(
    real_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: Lines
) -> None:
    Site(tmp_path, monkeypatch).package("canaries", TOOLS, "echo = echo", "fails = fails")
    await told(real_url, tmp_path, SCRIPT)
    for event in ("turn_sealed", "call_completed", "call_discarded"):
        for line in events(lines.lines, event):
            assert line.keys() - {"at", "level", "event"} == documented()[event]


@pytest.mark.requirement("seeing:lines:one-an-end")
async def test_a_turn_that_fails_leaves_the_lines_of_its_attempts_and_one_of_its_end(
    real_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: Lines
) -> None:
    Site(tmp_path, monkeypatch).package("canaries", TOOLS, "echo = echo", "fails = fails")
    await told(real_url, tmp_path, FAILING)
    logged = lines.lines
    assert [(line["attempt"], line["reason"]) for line in events(logged, "call_discarded")] == [
        (1, "provider_error"),
        (2, "not_answered"),
    ]
    assert events(logged, "call_completed") == []
    [seal] = events(logged, "turn_sealed")
    assert (seal["outcome"], seal["code"], seal["calls"], seal["attempts"]) == ("failed", "provider_error", 0, 2)


@pytest.mark.requirement("metrics:turns:counted")
async def test_a_turn_is_counted_by_what_happened_in_it(
    real_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Site(tmp_path, monkeypatch).package("canaries", TOOLS, "echo = echo", "fails = fails")
    watched = {
        "turns_sealed_total": {"outcome": "completed", "code": "", "agent": "default"},
        "turn_duration_seconds_count": {"outcome": "completed"},
        "turns_claimed_total": {"came": "first"},
        "calls_completed_total": {"provider": "main"},
        "call_duration_seconds_count": {"provider": "main"},
        "first_content_seconds_count": {"provider": "main"},
        "attempt_longest_gap_seconds_count": {"provider": "main"},
        "attempts_discarded_total": {"provider": "main", "reason": "end_of_stream"},
        "resumes_total": {"provider": "main"},
        "tool_runs_total": {"outcome": "ok"},
        "commit_seconds_count": {},
        "staging_flushed_turns_total": {},
        "heartbeat_renew_seconds_count": {},
    }
    of_tokens = {kind: {"provider": "main", "kind": kind} for kind in ("input", "output")}
    before = {name: figure(name, **labels) for name, labels in watched.items()}
    tokens = {kind: figure("tokens_total", **labels) for kind, labels in of_tokens.items()}
    failed_tools = figure("tool_runs_total", outcome="failed")
    await told(real_url, tmp_path, SCRIPT)
    more = {name: figure(name, **labels) - before[name] for name, labels in watched.items()}
    assert more["staging_flushed_turns_total"] >= 1
    assert more["heartbeat_renew_seconds_count"] >= 1
    exact = {name: count for name, count in more.items() if not name.startswith(("staging", "heartbeat"))}
    twice = (
        "calls_completed_total",
        "call_duration_seconds_count",
        "first_content_seconds_count",
        "commit_seconds_count",
    )
    assert exact == dict.fromkeys(exact, 1) | dict.fromkeys(twice, 2) | {"attempt_longest_gap_seconds_count": 3}
    assert figure("tool_runs_total", outcome="failed") - failed_tools == 1
    assert {kind: figure("tokens_total", **labels) - tokens[kind] for kind, labels in of_tokens.items()} == {
        "input": 15,
        "output": 9,
    }


@pytest.mark.requirement("metrics:labels:bounded")
def test_a_label_takes_a_hundred_words_and_nothing_that_is_no_word() -> None:
    words = [metrics.bounded("test", f"word_{number}") for number in range(150)]
    assert words[:100] == [f"word_{number}" for number in range(100)]
    assert set(words[100:]) == {"other"}
    assert metrics.bounded("test", "word_7") == "word_7"
    assert metrics.bounded("other-test", "what a person said") == "other"
    assert metrics.bounded("other-test", "") == ""


SLOW = """
[[calls]]
steps = [ { text = "canary-slow ", pieces = 2, every_s = 0.05 }, { stall = true } ]

[[calls]]
steps = [ { text = "canary-whole." } ]
"""


@pytest.mark.requirement("seeing:lines:one-an-end")
async def test_a_turn_that_changes_its_process_leaves_a_line_of_the_hand_off_and_one_of_its_end(
    real_url: str, real_redis: Any, tmp_path: Path, lines: Lines
) -> None:
    async with stand_in(SLOW, tmp_path) as provider:
        settings = settings_of(real_url, provider.base_url, stall_timeout_s=0)
        submitted = await api.submit(settings, real_redis, prompt="canary", source="test", wake=lambda _: None)
        first, second = TurnProcess(settings), TurnProcess(settings)
        await first.start()
        async with asyncio.timeout(30), asyncio.TaskGroup() as group:
            group.create_task(first.run_session(submitted.session))
            await provider.transcript.wait_for_request(1)
            first.drain()
        await first.stop()
        await second.start()
        async with asyncio.timeout(30):
            await second.run_session(submitted.session)
        await second.stop()
    [discard] = events(lines.lines, "call_discarded")
    assert (discard["turn"], discard["call"], discard["reason"]) == (submitted.turn, 1, "drain")
    [handed_off] = events(lines.lines, "turn_handed_off")
    assert handed_off.keys() - {"at", "level", "event"} == documented()["turn_handed_off"]
    assert (handed_off["calls"], handed_off["attempts"], handed_off["epoch"]) == (0, 1, 1)
    [seal] = events(lines.lines, "turn_sealed")
    assert (seal["outcome"], seal["calls"], seal["attempts"], seal["epoch"]) == ("completed", 1, 2, 2)
    assert seal["duration_s"] >= handed_off["duration_s"]
    assert CANARY not in json.dumps(lines.lines)


@pytest.mark.requirement("seeing:lines:one-an-end")
async def test_what_another_driver_had_left_open_leaves_a_line_without_times(
    real_url: str, real_redis: Any, tmp_path: Path, lines: Lines
) -> None:
    async with stand_in(SLOW, tmp_path) as provider:
        settings = settings_of(real_url, provider.base_url, stall_timeout_s=0.2)
        submitted = await api.submit(settings, real_redis, prompt="canary", source="test", wake=lambda _: None)
        vanished = driver_of(real_redis, await taken(real_redis, submitted.session))
        await vanished.open_call(1, 1, 0, True, "main")
        await real_redis.hset(keys.turn_record(submitted.turn), "lease_ms", 0)
        process = TurnProcess(settings)
        await process.start()
        async with asyncio.timeout(30):
            await process.run_session(submitted.session)
        await process.stop()
    first, second = events(lines.lines, "call_discarded")
    assert (first["attempt"], first["reason"], first["took_s"], first["longest_gap_s"]) == (1, "takeover", None, None)
    assert first["provider"] == "main"
    assert (second["attempt"], second["reason"]) == (2, "stall")
    [seal] = events(lines.lines, "turn_sealed")
    assert (seal["calls"], seal["attempts"], seal["crashes"]) == (1, 3, 1)


@pytest.mark.requirement("metrics:turns:counted")
async def test_a_write_of_a_driver_that_has_lost_its_turn_is_counted(fake_redis: Any) -> None:
    driver = await driven(fake_redis)
    await fake_redis.hset(keys.turn_record(driver.turn), "lease_ms", 0)
    await taken(fake_redis)
    before = figure("verbs_refused_total", why="fenced")
    with pytest.raises(Fenced):
        await driver.open_call(1, 1, 0, True)
    assert figure("verbs_refused_total", why="fenced") - before == 1


@pytest.mark.requirement("metrics:turns:counted")
async def test_a_heartbeat_that_does_not_reach_redis_is_counted(unused_port: int) -> None:
    before = figure("heartbeats_missed_total", why="redis")
    client = connect.open_redis_sync(f"redis://127.0.0.1:{unused_port}/0")
    heartbeat = Heartbeat(client, HeartbeatLimits(ttl_s=1, renew_s=0.1, sweep_s=0.05), 1, None, lambda: 1)
    heartbeat.start(asyncio.get_running_loop())

    async def missed() -> float:
        return figure("heartbeats_missed_total", why="redis") - before

    await eventually(missed, lambda count: count >= 1, "a round of the heartbeat that fails", 10)
    await asyncio.to_thread(heartbeat.stop)
