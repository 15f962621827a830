"""What a scrape holds: the figures of all processes, the state of the whole, and nothing beside the runbook."""

import asyncio
import gc
import json
import re
import threading
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import redis
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.parser import text_string_to_metric_families

from channels import exposition, survey
from channels import metrics as delivery_metrics
from channels.delivery.faring import Faring
from channels.faults import faults
from channels.outbox.log import RelayLog
from channels.relay import Relay
from channels.settings import Settings
from channels.survey import DeliveriesSurvey, LogSurvey, RedisState, Survey, look
from channels.web import metrics as web_metrics
from tests.delivery.outboxes import BUSY, GONE
from tests.delivery.subscribers import addressing_of, endpoint
from tests.delivery.test_deliverer_drain import ScriptedSender, deliverer, due
from tests.store.turns import commit, driven, seal
from worker import metrics
from worker.observability import configure_logging
from worker.store import processes
from worker.store.log import read_aside, read_log
from worker.store.processes import LivingProcess, Told
from worker.store.survey import TurnsSurvey

RUNBOOK = Path(__file__).resolve().parents[2] / "ops" / "runbooks" / "metrics.md"
TOLD = Told("turns", "turns@a:1:aa", "a", 1, "0.1", 3, draining=False, stopped=False, loop_lag_s=0.01)
X = b"# TYPE lastword_x_total counter\nlastword_x_total 3\n"
DELIVERS = replace(TOLD, role="delivery", name="delivery@a:2:bb")
TURNS = TurnsSurvey(
    unsealed=0,
    looked_at=0,
    states={"queued": 0, "running": 0, "parked": 0},
    waiting=0,
    waiting_oldest_s=0.0,
    due=0,
    due_oldest_s=0.0,
    approvals=0,
    approval_expires_s=None,
    kept={"dead": 0},
    lately={"dead": 0},
)
DELIVERIES = DeliveriesSurvey({}, {}, 0, 0.0, 0, 0)
LOG = LogSurvey(0, 0.0)
PROCESSES = [LivingProcess("one", TOLD, 1, 2), LivingProcess("two", DELIVERS, 1, 2)]
FINE = Survey(
    [TURNS], [LOG], DELIVERIES, PROCESSES, {"turns": 0, "delivery": 0}, RedisState(True, 10, 0), {"main": 9.0}, 3
)

Row = tuple[str, str, str, str]


def defined() -> set[Row]:
    """Name, kind, labels and meaning of every figure in the code."""
    ours = [one for module in (metrics, delivery_metrics, web_metrics) for one in vars(module).values()]
    rows: set[Row] = {
        (_named(one._name, str(one._type)), str(one._type), ", ".join(one._labelnames), one._documentation)
        for one in ours
        if isinstance(one, MetricWrapperBase)
    }
    of_the_library = {
        (_named(one.name, one.type), one.type, "", one.documentation)
        for one in metrics.REGISTRY.collect()
        if _named(one.name, one.type) not in {row[0] for row in rows}
    }
    of_the_whole = {
        (one.name, one.type, ", ".join(one._labelnames), one.documentation)  # type: ignore[attr-defined]
        for one in exposition.state(FINE)
    }
    return rows | of_the_library | of_the_whole


def _named(name: str, kind: str) -> str:
    return f"{name}_total" if kind == "counter" else name


@pytest.mark.requirement("metrics:runbook:complete")
def test_the_runbook_lists_every_figure_and_no_other() -> None:
    text = RUNBOOK.read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(lastword_\w+)` \| (\w+) \| ([\w, ]*) \| (.+) \|$", text, re.MULTILINE)
    listed = {(name, kind, labels.strip(), meaning) for name, kind, labels, meaning in rows}
    assert len(rows) == len(listed)
    assert listed - defined() == set()
    assert defined() - listed == set()


@pytest.mark.requirement("metrics:runbook:complete")
def test_the_runbook_raises_alarms_about_figures_that_there_are() -> None:
    alarms = RUNBOOK.read_text(encoding="utf-8").split("## Alarms", 1)[1].split("\n## ", 1)[0]
    used = {name.removesuffix("_bucket") for name in re.findall(r"lastword_\w+", alarms)}
    assert len(used) > 10
    assert used - {row[0] for row in defined()} == set()


def samples(text: str, name: str) -> list[tuple[dict[str, str], float]]:
    families = text_string_to_metric_families(text)
    return [(each.labels, each.value) for family in families for each in family.samples if each.name == name]


def settings(url: str) -> Settings:
    return Settings(redis_url=url)


@pytest.mark.requirement("metrics:scrape:all-processes")
async def test_one_scrape_holds_the_figures_of_all_processes_and_the_state_of_the_whole(
    real_url: str, real_redis: Any
) -> None:
    one = b'# HELP lastword_x_total X.\n# TYPE lastword_x_total counter\nlastword_x_total{provider="main"} 3\n'
    two = one.replace(b" 3\n", b" 4\n")
    with redis.Redis.from_url(real_url) as client:
        processes.report(client, "one", TOLD, one, 60)
        processes.report(client, "two", DELIVERS, two, 60)
    text = (await exposition.render(real_redis, settings(real_url))).decode()
    assert samples(text, "lastword_x_total") == [
        ({"provider": "main", "role": "turns", "process": "one"}, 3.0),
        ({"provider": "main", "role": "delivery", "process": "two"}, 4.0),
    ]
    assert text.count("# TYPE lastword_x_total counter") == 1
    assert samples(text, "lastword_processes") == [({"role": "delivery"}, 1.0), ({"role": "turns"}, 1.0)]
    assert samples(text, "lastword_turns_waiting_oldest_seconds") == [({}, 0.0)]
    assert samples(text, "lastword_broker_up") == [({}, 1.0)]


@pytest.mark.requirement("metrics:scrape:all-processes")
async def test_what_a_process_counts_is_scraped_as_it_counted(real_url: str, real_redis: Any) -> None:
    metrics.attempt_discarded("main", "stall", 4.0, resumed=True)
    with redis.Redis.from_url(real_url) as client:
        processes.report(client, "one", TOLD, metrics.text(), 60)
    text = (await exposition.render(real_redis, settings(real_url))).decode()
    told = {family.name: family.samples for family in text_string_to_metric_families(text)}
    own = {family.name: family.samples for family in text_string_to_metric_families(metrics.text().decode())}
    assert set(own) <= set(told)
    for name in ("lastword_attempts_discarded", "lastword_attempt_longest_gap_seconds", "lastword_resumes"):
        added = {"role": "turns", "process": "one"}
        assert [(each.name, each.labels, each.value) for each in told[name]] == [
            (each.name, {**each.labels, **added}, each.value) for each in own[name]
        ]


@pytest.mark.requirement("metrics:scrape:broken")
async def test_figures_that_cannot_be_read_cost_those_of_their_process_alone(real_url: str, real_redis: Any) -> None:
    with redis.Redis.from_url(real_url) as client:
        processes.report(client, "bad", TOLD, b"\xff{{{ what\nlastword_x_total three\n", 60)
        processes.report(client, "good", TOLD, X, 60)
    text = (await exposition.render(real_redis, settings(real_url))).decode()
    assert [labels["process"] for labels, _ in samples(text, "lastword_x_total")] == ["good"]


@pytest.mark.requirement("metrics:scrape:broken")
async def test_figures_of_which_only_a_part_can_be_read_are_left_out_whole(real_url: str, real_redis: Any) -> None:
    half = b"# TYPE lastword_x counter\nlastword_x_total 77\n# TYPE lastword_y counter\nlastword_y_total three\n"
    with redis.Redis.from_url(real_url) as client:
        processes.report(client, "bad", TOLD, half, 60)
        processes.report(client, "good", TOLD, X, 60)
    text = (await exposition.render(real_redis, settings(real_url))).decode()
    assert [labels["process"] for labels, _ in samples(text, "lastword_x_total")] == ["good"]


@pytest.mark.requirement("metrics:scrape:broken")
@pytest.mark.parametrize(
    "changes",
    [
        {"record": json.dumps({**asdict(TOLD), "role": 5})},
        {"record": json.dumps({**asdict(TOLD), "role": "\ud800"})},
        {"record": json.dumps({**asdict(TOLD), "loop_lag_s": None})},
        {"record": json.dumps(asdict(TOLD)).encode("utf-16")},
        {"record": "[" * 100_000},
        {"seen": "abc"},
        {"since": "12.5"},
        {},
    ],
    ids=["role", "surrogate", "lag", "utf-16", "deep", "seen", "since", "no hash"],
)
async def test_a_report_that_cannot_be_read_hides_no_other(
    changes: dict[str, Any], real_url: str, real_redis: Any
) -> None:
    with redis.Redis.from_url(real_url) as client:
        client.zadd("lw:processes", {b"\xff\xfe": 9e15})
        processes.report(client, "bad", TOLD, b"", 60)
        if changes:
            client.hset("lw:process:bad", mapping=changes)
        else:
            client.delete("lw:process:bad")
            client.set("lw:process:bad", "x")
        processes.report(client, "good", TOLD, X, 60)
    text = (await exposition.render(real_redis, settings(real_url))).decode()
    assert samples(text, "lastword_x_total") == [({"role": "turns", "process": "good"}, 3.0)]
    assert [each.id for each in await processes.living(real_redis)] == ["good"]


@pytest.mark.requirement("status:other-versions")
async def test_what_a_figure_is_is_for_this_version_to_say_and_no_name_is_told_twice(
    real_url: str, real_redis: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    old = b"# TYPE lastword_turns_parked gauge\nlastword_turns_parked 5\n# TYPE lastword_resumes summary\n"
    old += b"lastword_resumes_count 6\n# TYPE lastword_turns_parked_total gauge\nlastword_turns_parked_total 7\n"
    old += b"# TYPE lastword_wait_seconds histogram\nlastword_wait_seconds_count 8\n"
    ours = b"# TYPE lastword_turns_parked_total counter\nlastword_turns_parked_total 9\n"
    configure_logging("WARNING")
    with redis.Redis.from_url(real_url) as client:
        processes.report(client, "a", TOLD, old, 60)
        processes.report(client, "b", TOLD, ours, 60)
    text = (await exposition.render(real_redis, settings(real_url))).decode()
    assert samples(text, "lastword_turns_parked_total") == [({"role": "turns", "process": "b"}, 9.0)]
    assert samples(text, "lastword_wait_seconds_count") == [({"role": "turns", "process": "a"}, 8.0)]
    assert samples(text, "lastword_resumes_count") == []
    told = re.findall(r"^# TYPE (\S+) ", text, re.MULTILINE)
    assert len(told) == len(set(told))
    assert capsys.readouterr().err.count('"figures_unreadable"') == 1


@pytest.mark.requirement("status:other-versions")
async def test_a_process_of_another_version_hides_no_other(real_url: str, real_redis: Any) -> None:
    figures = b"# TYPE lastword_turns_unsealed gauge\nlastword_turns_unsealed 3\n"
    figures += b"# TYPE lastword_due histogram\nlastword_due_count 1\n"
    with redis.Redis.from_url(real_url) as client:
        processes.report(client, "good", TOLD, figures, 60)
        for name, changes in (
            ("short", {"record": '{"role": "turns"}'}),
            ("broken", {"record": "{"}),
            ("list", {"record": "[]"}),
        ):
            processes.report(client, name, TOLD, b"", 60)
            client.hset(f"lw:process:{name}", mapping=changes)
        processes.report(client, "empty", TOLD, b"", 60)
        client.hdel("lw:process:empty", "record", "figures", "seen")
    assert [each.id for each in await processes.living(real_redis)] == ["good"]
    text = (await exposition.render(real_redis, settings(real_url))).decode()
    assert text.count("# TYPE lastword_turns_unsealed gauge") == 1
    assert text.count("# TYPE lastword_due gauge") == 1
    assert "lastword_due_count" not in text
    assert samples(text, "lastword_turns_unsealed") == [({}, 0.0), ({"role": "turns", "process": "good"}, 3.0)]


@pytest.mark.requirement("status:hangs")
def test_a_process_whose_loop_hangs_is_named_and_takes_no_work() -> None:
    stuck = LivingProcess("one", replace(TOLD, loop_lag_s=3600.0), 1, 2)
    waits = replace(TURNS, waiting=2)
    codes = [fault.code for fault in faults(replace(FINE, turns=[waits], processes=[stuck, PROCESSES[1]]))]
    assert codes == ["process_hangs", "no_turns_process"]
    message = faults(replace(FINE, processes=[stuck, *PROCESSES]))[0].message
    assert TOLD.name in message
    assert "3600 s" in message


@pytest.mark.requirement("status:hangs")
def test_what_nobody_looks_at_is_told_of() -> None:
    for late_s, codes in ((10.0, []), (3600.0, ["due_late"])):
        late = replace(TURNS, due=3, due_oldest_s=late_s)
        assert [fault.code for fault in faults(replace(FINE, turns=[late]))] == codes


def figure(name: str, **labels: str) -> float:
    """The value of a figure of this process."""
    return metrics.REGISTRY.get_sample_value(f"lastword_{name}", labels) or 0.0


@pytest.mark.requirement("metrics:deliveries:counted")
async def test_what_a_relay_reads_and_makes_is_counted(fake_redis: Any) -> None:
    accumulator = await driven(fake_redis)
    await accumulator.open_call(1, 1, 0, True)
    await commit(accumulator, 1, 1, "Hello.")
    await seal(accumulator)

    relay = Relay(
        RelayLog(fake_redis, 0),
        read=lambda after, count, block_ms: read_log(fake_redis, 0, after, count, min(block_ms, 50)),
        read_aside=lambda after, count: read_aside(fake_redis, 0, after, count),
        addressing=addressing_of(fake_redis, endpoint("audit", "turn.*")),
        wake=lambda: asyncio.sleep(0),
    )

    def figures() -> list[float]:
        of_kinds = [figure("log_entries_relayed_total", kind=kind) for kind in ("commit", "seal", "discard")]
        return [*of_kinds, figure("deliveries_made_total")]

    before = figures()
    await relay.step()
    assert [after - one for after, one in zip(figures(), before, strict=True)] == [1, 1, 0, 2]


@pytest.mark.requirement("metrics:deliveries:counted")
async def test_attempts_are_counted_by_how_they_were_settled(fake_redis: Any) -> None:
    async def later() -> Any:
        return BUSY

    async def never() -> Any:
        return replace(GONE, code="http_400")

    def figures() -> dict[str, float]:
        return {
            "delivered": figure("deliveries_settled_total", state="delivered", code=""),
            "waiting": figure("deliveries_settled_total", state="waiting", code="http_503"),
            "dead": figure("deliveries_settled_total", state="dead", code="http_400"),
            "attempts": figure("delivery_attempt_seconds_count"),
        }

    before = figures()
    await due(fake_redis, "fine", "later", "never")
    await deliverer(fake_redis, ScriptedSender({"later": later, "never": never})).drain()
    more = {name: count - before[name] for name, count in figures().items()}
    assert more == {"delivered": 1, "waiting": 1, "dead": 1, "attempts": 3}


@pytest.mark.requirement("status:exits:needs-a-person")
@pytest.mark.parametrize(
    ("survey", "codes"),
    [
        (FINE, []),
        (replace(FINE, processes=[]), []),
        (replace(FINE, processes=[], turns=[replace(TURNS, waiting=1)]), ["no_turns_process"]),
        (
            replace(
                FINE,
                processes=[replace(PROCESSES[0], told=replace(TOLD, draining=True)), PROCESSES[1]],
                turns=[replace(TURNS, waiting=1)],
            ),
            ["no_turns_process"],
        ),
        (
            replace(
                FINE,
                processes=[replace(PROCESSES[0], told=replace(TOLD, stopped=True)), PROCESSES[1]],
                turns=[replace(TURNS, waiting=1)],
            ),
            ["no_turns_process"],
        ),
        (replace(FINE, turns=[replace(TURNS, waiting=9, waiting_oldest_s=59)]), []),
        (replace(FINE, turns=[replace(TURNS, waiting=9, waiting_oldest_s=61)]), ["turns_wait"]),
        (replace(FINE, processes=[], deliveries=replace(DELIVERIES, ripe=1)), ["no_delivery_process"]),
        (replace(FINE, processes=[], logs=[replace(LOG, relay_lag_s=1)]), ["no_delivery_process"]),
        (replace(FINE, logs=[replace(LOG, relay_lag_s=61)]), ["relay_lags"]),
        (replace(FINE, logs=[replace(LOG, aside=1, aside_oldest_s=599)]), []),
        (replace(FINE, logs=[replace(LOG, aside=1, aside_oldest_s=601)]), ["newer_release"]),
        (replace(FINE, deliveries=replace(DELIVERIES, ripe=1, ripe_oldest_s=61)), ["deliveries_wait"]),
        (replace(FINE, deliveries=replace(DELIVERIES, dead=4)), []),
        (replace(FINE, deliveries=replace(DELIVERIES, stopped={"crm": "disabled"})), []),
        (replace(FINE, deliveries=replace(DELIVERIES, stopped={"crm": "paused"}, held={"crm": 3})), []),
        (
            replace(FINE, deliveries=replace(DELIVERIES, stopped={"crm": "disabled"}, held={"crm": 3})),
            ["endpoint_disabled"],
        ),
        (replace(FINE, deliveries=replace(DELIVERIES, dead=4, lately=1)), ["dead_letters"]),
        (replace(FINE, turns=[replace(TURNS, lately={"dead": 1, "failed": 3})]), ["dead_turns"]),
        (replace(FINE, turns=[replace(TURNS, lately={"dead": 0, "failed": 3})]), []),
        (replace(FINE, redis=RedisState(False, 10, 0)), ["not_persistent"]),
        (replace(FINE, redis=RedisState(True, 89, 100)), []),
        (replace(FINE, redis=RedisState(True, 91, 100)), ["memory"]),
        (replace(FINE, broker=None), ["no_broker"]),
    ],
)
def test_what_does_not_mend_itself_needs_a_person(survey: Survey, codes: list[str]) -> None:
    assert [fault.code for fault in faults(survey)] == codes


@pytest.mark.requirement("status:shows:all")
async def test_a_broker_that_does_not_answer_is_told_and_hides_nothing_else(
    real_url: str, real_redis: Any, unused_port: int
) -> None:
    there = Settings(redis_url=real_url, broker_url=f"redis://:geheim@127.0.0.1:{unused_port}/0")
    survey = await look(real_redis, there)
    assert survey.broker is None
    assert survey.redis.persists
    await real_redis.rpush("turns", "a", "b")
    assert (await look(real_redis, settings(real_url))).broker == {"turns": 2, "delivery": 0}


@pytest.mark.requirement("status:shows:all")
async def test_a_broker_whose_refusal_comes_too_late_is_no_fault_of_ours(
    real_url: str, real_redis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, complaints = threading.Event(), list[Any]()

    def late(_: str) -> dict[str, int]:
        asked.wait(30)
        raise ConnectionError

    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    monkeypatch.setattr(survey, "queue_depths", late)
    monkeypatch.setattr(survey, "_BROKER_LIMIT_S", 0.05)
    assert (await look(real_redis, settings(real_url))).broker is None
    asked.set()
    (looking,) = [each for each in threading.enumerate() if each.name == "lastword-broker-look"]
    await asyncio.to_thread(looking.join, 30)  # it has told the loop, which tells the future next
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    monkeypatch.undo()
    assert (await look(real_redis, settings(real_url))).broker is not None  # now the late answer is dropped
    gc.collect()
    assert complaints == []


@pytest.mark.requirement("operating:status")
def test_held_deliveries_are_told_of_a_hundred_endpoints_at_most() -> None:
    held = {f"lane{number:03}": number for number in range(1, 131)}
    seen = replace(FINE, deliveries=replace(DELIVERIES, held=held, stopped={"a": "paused", "b": "disabled"}, replays=2))
    told = {
        one.name: {tuple(each.labels.values()): each.value for each in one.samples} for one in exposition.state(seen)
    }
    rows = told["lastword_deliveries_held"]
    assert len(rows) == 100
    assert rows["lane130",] == 130
    assert rows["other",] == sum(range(1, 32))
    assert told["lastword_endpoints_stopped"] == {("paused",): 1, ("disabled",): 1}
    assert told["lastword_replays_running"] == {(): 2}


@pytest.mark.requirement("operating:failing")
def test_endpoints_that_fail_are_counted_and_those_that_fail_for_long_need_a_person() -> None:
    fails = {"crm": Faring(5, 1, 2, None), "url-1": Faring(9, 500_000, 2, None)}
    for now_ms, named in ((600_001, ""), (600_002, "crm took nothing"), (1_100_001, "crm, url-1 took nothing")):
        seen = replace(FINE, deliveries=replace(DELIVERIES, failing=fails), now_ms=now_ms)
        found = [(fault.code, fault.message) for fault in faults(seen)]
        assert [code for code, _ in found] == ["endpoints_fail"] * bool(named)
        assert all(message.startswith(named) for _, message in found)
        told = {one.name: one.samples[0].value for one in exposition.state(seen) if len(one.samples) == 1}
        assert told["lastword_endpoints_failing"] == 2
