"""What an operator sees of Celery processes while turns run, wait, are parked and are dead, and after a SIGKILL."""

import asyncio
import itertools
import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from channels import exposition
from channels.embedded import EmbeddedServer
from channels.rehearsal.server import StandIn
from tests.store.test_turn_listing import ended
from tests.support.ports import free_port
from tests.support.receiver import Answer, Receiver
from tests.support.stack import SECRET, Process, Stack, database, eventually, stand_in
from worker.output.events import ApprovalRequestOutput, TextDeltaOutput
from worker.store.processes import LivingProcess, living

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

CANARY = "canary"
SCRIPT = """
after_last = "last"

[[conversations]]
match = "<slow> canary-prompt"
calls = [ { steps = [ { text = "canary-slow " }, { stall = true } ] } ]

[[conversations]]
match = "<ask> canary-prompt"
calls = [ { steps = [ { tool = "note", arguments = {} } ] } ]

[[conversations]]
match = "<cut> canary-prompt"
calls = [ { steps = [ { text = "canary-half " }, { truncate = true } ] }, { steps = [ { text = "canary-whole" } ] } ]
"""
DEFAULT_REPORT_MS = 5000
SETTINGS = f"""
[metrics]
report_s = 1

[lease]
ttl_s = 5
renew_s = 0.3
sweep_s = 0.1

[turns]
resume_backoff_s = 0.05

[processes]
turns_concurrency = 1

[agents.default]
tools = ["note"]
instructions = "canary-instructions"

[tools.note]
approval = "ask"

[endpoints.receiver]
url = "RECEIVER"
secret = "{SECRET}"
headers = {{ x-token = "canary-token" }}

[endpoints.gone]
url = "GONE"
secret = "{SECRET}"
"""


def settings(receiver: str, gone: str) -> str:
    """All sections but the provider's; the URLs of a receiver and of one that is gone."""
    return SETTINGS.replace("RECEIVER", receiver).replace("GONE", gone)


@dataclass(frozen=True)
class Seen:
    """A turns worker with room for one turn, a delivery worker, and what runs on them."""

    stack: Stack
    turns: Process
    delivery: Process
    port: int
    ids: dict[str, str]

    def lastword(self, *arguments: str) -> tuple[int, str]:
        """Run the program as an operator would; its exit code and what it printed."""
        command = [sys.executable, "-m", "channels", *arguments]
        environment = {**self.stack.environment, "COLUMNS": "200"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert done.stderr == ""
        return done.returncode, done.stdout

    async def status(self) -> dict[str, Any]:
        told: dict[str, Any] = json.loads((await asyncio.to_thread(self.lastword, "status", "--json"))[1])
        return told

    async def processes(self) -> list[LivingProcess]:
        return await living(self.stack.client)

    async def scraped(self) -> str:
        return (await exposition.render(self.stack.client, self.stack.settings)).decode()


def samples(text: str, name: str, **labels: str) -> dict[str, float]:
    """The values of a figure with these labels, by the role of the process."""
    return {
        each.labels.get("role", ""): each.value
        for family in text_string_to_metric_families(text)
        for each in family.samples
        if each.name == f"lastword_{name}" and labels.items() <= each.labels.items()
    }


def answered(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.fixture(scope="module")
async def seen(tmp_path_factory: pytest.TempPathFactory, server: EmbeddedServer) -> AsyncIterator[Seen]:
    folder, port = tmp_path_factory.mktemp("seen"), free_port()
    async with (
        stand_in(SCRIPT, folder) as provider,
        Receiver() as receiver,
        Receiver(Answer(410)) as gone,
        Stack(folder, database(server, 13)) as stack,
    ):
        stack.configure(provider_section(provider) + settings(f"{receiver.url}?canary-url", gone.url))
        turns = {"dead": await ended(stack.client, "died", "dead", destinations=("gone",))}
        worker = stack.start("turns", environment={"LASTWORD_METRICS__PORT": str(port), "TOOL_RUNS": os.devnull})
        delivery = stack.start("delivery")
        turns["cut"] = await stack.submit("<cut> canary-prompt", destinations=("receiver",), watch_s=60)
        await stack.ended(turns["cut"])
        await receiver.nth(1)
        turns["parked"] = await stack.submit("<ask> canary-prompt", watch_s=60)
        await stack.until(turns["parked"], lambda output: isinstance(output, ApprovalRequestOutput))
        turns["running"] = await stack.submit("<slow> canary-prompt", watch_s=60, session="slow")
        await stack.until(turns["running"], lambda output: isinstance(output, TextDeltaOutput))
        turns["queued"] = await stack.submit("<cut> canary-prompt", labels={"team": "ops"})
        yield Seen(stack, worker, delivery, port, turns)


def provider_section(provider: StandIn) -> str:
    """A stream that stalls does so for as long as the tests last."""
    return (
        f'[providers.main]\nbase_url = "{provider.base_url}"\nmodel = "stand-in"\napi_key = "canary-key"\n'
        "stall_timeout_s = 0\n"
    )


@pytest.mark.requirement("status:shows:all")
async def test_status_of_a_stack_with_one_turn_of_each_kind(seen: Seen) -> None:
    """The dead turn had a destination that is gone: a dead letter."""

    async def pictured() -> dict[str, Any]:
        told = await seen.status()
        [partition] = told["partitions"]
        return {
            "turns": told["turns"],
            "ended": {name: count for name, count in told["ended_within_a_day"].items() if count},
            "needs_a_person": [fault["code"] for fault in told["needs_a_person"]],
            "partition": (partition["turns"]["waiting"], partition["turns"]["approvals"]),
            "waits": partition["turns"]["waiting_oldest_s"] > 0,
            "processes": sorted((each["role"], each["pid"], each["turns"]) for each in told["processes"]),
            "draining": [each["role"] for each in told["processes"] if each["draining"]],
            "seen_before": [each["role"] for each in told["processes"] if each["seen_ms"] < each["since_ms"]],
            "broker": sorted(told["broker"]),
            "has_memory": told["redis"]["memory_bytes"] > 0,
        }

    wanted = {
        "turns": {"queued": 1, "running": 1, "parked": 1},
        "ended": {"completed": 1, "dead": 1},
        "needs_a_person": ["dead_turns", "dead_letters"],
        "partition": (1, 1),
        "waits": True,
        "processes": [("delivery", seen.delivery.pid, 0), ("turns", seen.turns.pid, 1)],
        "draining": [],
        "seen_before": [],
        "broker": ["delivery", "turns"],
        "has_memory": True,
    }
    await eventually(pictured, lambda told: told == wanted, f"this status: {wanted}")
    code, shown = await asyncio.to_thread(seen.lastword, "status")
    assert code == 1
    assert "1 running, 1 queued, 1 parked" in shown


@pytest.mark.requirement("status:list:filters")
async def test_turns_list_of_such_a_stack(seen: Seen) -> None:
    def listed(*options: str) -> list[str]:
        code, out = seen.lastword("turns", "list", "--json", *options)
        assert code == 0
        return [json.loads(line)["turn"] for line in out.splitlines()]

    for state in ("parked", "running", "queued", "dead"):
        assert await asyncio.to_thread(listed, "--state", state) == [seen.ids[state]]
    assert await asyncio.to_thread(listed, "--state", "completed", "--since", "10m") == [seen.ids["cut"]]
    assert await asyncio.to_thread(listed, "--state", "sealed") == [seen.ids["cut"], seen.ids["dead"]]
    assert await asyncio.to_thread(listed, "--state", "all", "--label", "team=ops") == [seen.ids["queued"]]


@pytest.mark.requirement("tuning:metrics:report-s")
async def test_a_process_tells_of_itself_as_often_as_it_is_set(seen: Seen) -> None:
    """Each second; by default it would be five."""

    async def told() -> int:
        return next((each.seen_ms for each in await seen.processes() if each.told.role == "turns"), 0)

    at = [await eventually(told, bool, "a report")]
    for number in range(4):
        at.append(await eventually(told, lambda seen_ms: seen_ms > at[-1], f"report {number + 2}"))
    assert min(after - before for before, after in itertools.pairwise(at)) < DEFAULT_REPORT_MS / 2


@pytest.mark.requirement("metrics:scrape:all-processes")
async def test_one_scrape_holds_the_figures_of_both_celery_processes(seen: Seen) -> None:
    wanted = {
        "driven": {"turns": 1, "delivery": 0},
        "settled": {"delivery": 1},
        "sealed": {"turns": 1},
        "discarded": {"turns": 1},
        "resumes": {"turns": 1},
        "asked": 1,
        "parked": 1,
        "relayed": {"delivery": 2},
        "waiting": {"": 1},
        "dead": {"": 1},
        "processes": {"turns": 1},
        "beside": [True, True, True, True],
    }

    async def figures() -> dict[str, Any]:
        text = await seen.scraped()
        return {
            "driven": samples(text, "turns_driven"),
            "settled": samples(text, "deliveries_settled_total", state="delivered"),
            "sealed": samples(text, "turns_sealed_total", outcome="completed"),
            "discarded": samples(text, "attempts_discarded_total", reason="end_of_stream", provider="main"),
            "resumes": samples(text, "resumes_total"),
            "asked": samples(text, "approvals_asked_total").get("turns"),
            "parked": samples(text, "turns_parked_total").get("turns"),
            "relayed": samples(text, "log_entries_relayed_total", kind="seal"),
            "waiting": samples(text, "turns_waiting"),
            "dead": samples(text, "turns_kept", outcome="dead"),
            "processes": samples(text, "processes", role="turns"),
            "beside": [
                samples(text, "heartbeat_renew_seconds_count").get("turns", 0) > 0,
                samples(text, "event_loop_lag_seconds_count").get("turns", 0) > 0,
                samples(text, "event_loop_lag_seconds_count").get("delivery", 0) > 0,
                samples(text, "process_resident_memory_bytes").get("turns", 0) > 1e6,
            ],
        }

    await eventually(figures, lambda told: told == wanted, f"these figures: {wanted}")


@pytest.mark.requirement("tuning:metrics:port")
@pytest.mark.requirement("tuning:metrics:host")
async def test_a_process_with_a_port_answers_for_itself_there(seen: Seen) -> None:
    assert await asyncio.to_thread(answered, seen.port, "/livez") == (200, "live\n")
    assert await asyncio.to_thread(answered, seen.port, "/readyz") == (200, "ready\n")

    async def measured() -> tuple[int, bool]:
        status, text = await asyncio.to_thread(answered, seen.port, "/metrics")
        return status, "lastword_turns_driven 1.0" in text

    # A figure is as old as the last report, and one of a busy machine may be of before the turn.
    await eventually(measured, lambda found: found == (200, True), "the turn that it drives")


@pytest.mark.requirement("seeing:lines:processes")
async def test_no_line_and_no_figure_of_celery_processes_holds_a_word_of_anybody(seen: Seen) -> None:
    written = seen.turns.tail() + seen.delivery.tail() + await seen.scraped()
    assert "call_discarded" in written
    assert "delivery_settled" in written
    for word in (CANARY, SECRET):
        assert word not in written
    for turn in seen.ids.values():
        assert turn not in await seen.scraped()


@pytest.mark.requirement("tuning:metrics:host")
async def test_a_process_listens_on_the_address_that_is_set_and_on_no_port_of_another(
    tmp_path: Path, server: EmbeddedServer
) -> None:
    port = free_port()
    async with stand_in(SCRIPT, tmp_path) as provider, Stack(tmp_path, database(server, 14)) as stack:
        stack.configure(provider_section(provider) + f'[metrics]\nhost = "::1"\nport = {port}\n')
        first = stack.start("delivery")
        await stack.logged(first, "delivery_process_started")

        def live() -> int:
            with urllib.request.urlopen(f"http://[::1]:{port}/livez", timeout=5) as answer:
                return int(answer.status)

        assert await asyncio.to_thread(live) == 200
        second = stack.start("delivery")
        assert second.exit_code() != 0
        assert f"metrics.port = {port} of metrics.host '::1' cannot be listened on" in second.tail()
        assert first.end() == 0


@pytest.mark.requirement("metrics:scrape:gone")
async def test_a_process_that_was_killed_is_gone_after_three_reports(tmp_path: Path, server: EmbeddedServer) -> None:
    async with stand_in(SCRIPT, tmp_path) as provider, Stack(tmp_path, database(server, 15)) as stack:
        stack.configure(provider_section(provider) + settings("http://127.0.0.1:1/", "http://127.0.0.1:1/"))
        environment = {"TOOL_RUNS": os.devnull}
        turns, delivery = stack.start("turns", environment=environment), stack.start("delivery")
        seen = Seen(stack, turns, delivery, 0, {})
        turn = await stack.submit("<slow> canary-prompt", watch_s=60)
        await stack.until(turn, lambda output: isinstance(output, TextDeltaOutput))
        await stack.logged(delivery, "delivery_process_started")
        await eventually(
            seen.scraped,
            lambda text: samples(text, "turns_driven") == {"turns": 1, "delivery": 0},
            "the figures of both processes",
        )
        turns.kill()
        text = await eventually(
            seen.scraped,
            lambda text: samples(text, "turns_driven") == {"delivery": 0},
            "the end of the killed process's figures",
        )
        assert samples(text, "processes", role="turns") == {"turns": 0}
        assert [each.told.role for each in await seen.processes()] == ["delivery"]
        told = await eventually(
            seen.status,
            lambda told: told["partitions"][0]["turns"]["waiting"] == 1,
            "the turn of the killed process to wait for another",
        )
        assert [fault["code"] for fault in told["needs_a_person"]] == ["no_turns_process"]
