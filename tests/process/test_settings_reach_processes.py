"""Each setting of leases, staging, processes, partitions, logs and deliveries, from the file through real workers.

Most are set for one turns worker and one delivery worker at once; those of the lease need workers of their own. What
is expected cannot come of a default.
"""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
from standardwebhooks import Webhook

from channels.delivery.model import Delivery
from channels.embedded import EmbeddedServer
from channels.rehearsal.server import StandIn
from tests.support.receiver import Answer, Hang, Received, Receiver
from tests.support.stack import Process, Stack, database, eventually, stand_in
from worker import ids
from worker.app import make_app, wake_session
from worker.output.events import TextDeltaOutput, TextStreamDiscardedOutput
from worker.store import keys
from worker.store.records import read_turn

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

OWN = "whsec_" + "b3duLW93bi1vd24tb3duLW93bi1vd24tb3duLW93bg=="
COMMON = "whsec_" + "Y29tbW9uLWNvbW1vbi1jb21tb24tY29tbW9uLWNvbW0="
SCRIPT = """
after_last = "last"

[[conversations]]
match = "<slow>"
calls = [ { steps = [ { text = "An answer that takes its time.", pieces = 20, every_s = 0.1 } ] } ]

[[conversations]]
match = "<slow after a tool>"
calls = [
  { steps = [ { tool = "clock" } ] },
  { steps = [ { text = "An answer that takes its time, and then takes more.", pieces = 50, every_s = 0.1 } ] },
  { steps = [ { text = "An answer." } ] },
]

[[conversations]]
match = "<cut once>"
calls = [ { steps = [ { text = "Half an " }, { truncate = true } ] }, { steps = [ { text = "An answer." } ] } ]

[[calls]]
steps = [ { text = "An answer." } ]
"""
SETTINGS = """
partitions = 4
log_level = "warning"

[lease]
sweep_s = 0.1

[turns]
resume_backoff_s = 0.05

[staging]
tick_s = 5

[processes]
turns_concurrency = 1

[delivery]
secret_file = "common.secret"
timeout_s = 1
retry_waits_s = [0.1, 0.1]
concurrency = 1
"""


def provider_section(base_url: str) -> str:
    return f'[providers.main]\nmodel = "stand-in"\nbase_url = "{base_url}"\n'


@dataclass(frozen=True)
class Running:
    """A turns worker and a delivery worker, with what they speak to."""

    stack: Stack
    turns: Process
    delivery: Process
    provider: StandIn
    receiver: Receiver

    async def delivered(self, turn: str) -> Received:
        """The request that reported a turn."""

        async def look() -> list[Received]:
            return [each for each in self.receiver.requests if json.loads(each.body)["data"]["turn"] == turn]

        return (await eventually(look, bool, f"the delivery of {turn}"))[0]

    async def dead(self, turn: str, count: int) -> list[Delivery]:
        """The dead deliveries of a turn, once there are `count`."""
        return await self.stack.deliveries(lambda each: (each.turn, each.state) == (turn, "dead"), count)


@pytest.fixture(scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory, server: EmbeddedServer) -> AsyncIterator[Running]:
    folder = tmp_path_factory.mktemp("processes")
    (folder / "own.secret").write_text(f"{OWN}\n", encoding="utf-8")
    (folder / "common.secret").write_text(f"{COMMON}\n", encoding="utf-8")
    async with (
        stand_in(SCRIPT, folder) as provider,
        Receiver() as receiver,
        Receiver(Hang()) as hanging,
        Receiver(Answer(500)) as failing,
        Stack(folder, database(server, 4)) as stack,
    ):
        endpoints = {
            "plain": f'url = "{receiver.url}"',
            "own": f'url = "{receiver.url}"\nsecret_file = "own.secret"',
            "tenant": f'url = "{receiver.url}"\nheaders = {{ x-tenant = "acme" }}',
            "hanging": f'url = "{hanging.url}"',
            "also-hanging": f'url = "{hanging.url}"',
            "failing": f'url = "{failing.url}"',
        }
        sections = [f"[endpoints.{name}]\n{lines}" for name, lines in endpoints.items()]
        stack.configure("\n".join([SETTINGS, provider_section(provider.base_url), *sections]))
        yield Running(stack, stack.start("turns"), stack.start("delivery"), provider, receiver)


@pytest.fixture(scope="module")
async def timed_out(running: Running) -> list[Delivery]:
    """Two deliveries of one turn, to receivers that never answer."""
    return await running.dead(await running.stack.submit("<any>", destinations=("hanging", "also-hanging")), 2)


@pytest.mark.requirement("tuning:delivery:timeout-s")
async def test_a_receiver_that_hangs_is_left_after_the_timeout(timed_out: list[Delivery]) -> None:
    """Six attempts of a second, one after the other; by default they would take a minute and a half."""
    attempts = [attempt for delivery in timed_out for attempt in delivery.log]
    assert {attempt.code for attempt in attempts} == {"timeout"}
    assert max(delivery.ended_ms - delivery.created_ms for delivery in timed_out) < 45_000


@pytest.mark.requirement("tuning:delivery:concurrency")
async def test_no_more_deliveries_are_attempted_at_a_time_than_may_be(timed_out: list[Delivery]) -> None:
    """One at a time: each attempt begins after the end of another one, and lasts a second. Two would end together."""
    ends = sorted(attempt.at_ms for delivery in timed_out for attempt in delivery.log)
    assert len(ends) == 6
    assert min(after - before for before, after in pairwise(ends)) > 500


@pytest.mark.requirement("tuning:delivery:retry-waits-s")
async def test_a_delivery_is_retried_as_often_and_as_soon_as_its_waits_say(running: Running) -> None:
    """By default it would go on for most of a day."""
    [delivery] = await running.dead(await running.stack.submit("<any>", destinations=("failing",)), 1)
    assert (delivery.attempts, delivery.code) == (3, "attempts_spent")


@pytest.mark.requirement("tuning:endpoints:headers")
async def test_the_headers_of_an_endpoint_are_sent(running: Running) -> None:
    received = await running.delivered(await running.stack.submit("<any>", destinations=("tenant",)))
    assert received.headers["x-tenant"] == "acme"


@pytest.mark.parametrize(
    ("endpoint", "secret"),
    [
        pytest.param("own", OWN, marks=pytest.mark.requirement("tuning:endpoints:secret-file")),
        pytest.param("plain", COMMON, marks=pytest.mark.requirement("tuning:delivery:secret-file")),
    ],
)
async def test_a_delivery_is_signed_by_the_secret_in_the_file(running: Running, endpoint: str, secret: str) -> None:
    """That of its endpoint, else that of all deliveries."""
    received = await running.delivered(await running.stack.submit("<any>", destinations=(endpoint,)))
    assert Webhook(secret).verify(received.body.decode(), received.headers) == json.loads(received.body)


@pytest.mark.requirement("tuning:top-level:partitions")
async def test_turns_of_every_partition_are_run_and_delivered(running: Running) -> None:
    sessions = {ids.partition_of_session(f"session-{number}", 4): f"session-{number}" for number in range(50)}
    turns = [
        await running.stack.submit("<any>", session=session, destinations=("plain",)) for session in sessions.values()
    ]
    received = [json.loads((await running.delivered(turn)).body) for turn in turns]
    assert {each["type"] for each in received} == {"turn.completed"}
    assert {ids.partition_of(turn) for turn in turns} == {0, 1, 2, 3}


@pytest.mark.requirement("tuning:staging:tick-s")
async def test_streaming_text_reaches_a_reader_tick_by_tick(running: Running) -> None:
    """Twenty pieces in two seconds: a tick of five seconds joins them, one of 0.05 shows nearly each."""
    outputs = await running.stack.ended(await running.stack.submit("<slow>", watch_s=60))
    assert len([output for output in outputs if isinstance(output, TextDeltaOutput)]) <= 2


@pytest.mark.requirement("tuning:processes:turns-concurrency")
async def test_a_process_runs_no_more_turns_at_a_time_than_it_may(running: Running) -> None:
    transcript = running.provider.transcript
    first = await running.stack.submit("<slow> first")
    number = len(transcript.exchanges) + 1
    await transcript.wait_for_request(number, 30)
    second = await running.stack.submit("<any> second")
    for turn in (first, second):
        await running.stack.ended(turn)
    await transcript.wait_for_end(number + 1)
    lines = (running.stack.folder / "transcript.jsonl").read_text(encoding="utf-8").splitlines()[-4:]
    assert [(json.loads(line)["event"], json.loads(line)["prompt"]) for line in lines] == [
        ("started", "<slow> first"),
        ("ended", "<slow> first"),
        ("started", "<any> second"),
        ("ended", "<any> second"),
    ]


@pytest.mark.requirement("tuning:top-level:log-level")
async def test_a_process_logs_nothing_below_its_level(running: Running) -> None:
    await running.delivered(await running.stack.submit("<cut once>", destinations=("plain",)))
    await running.stack.logged(running.turns, "turn_call_resumed")
    lines = running.turns.lines() + running.delivery.lines()
    assert "info" not in {line["level"] for line in lines}


@pytest.mark.requirement("tuning:lease:sweep-s")
async def test_a_turn_that_nobody_tells_of_waits_for_the_next_sweep(tmp_path: Path, server: EmbeddedServer) -> None:
    """The next sweep is a minute away, and the first turn goes on for two seconds, the length of two default sweeps."""
    async with stand_in(SCRIPT, tmp_path) as provider, Stack(tmp_path, database(server, 5)) as stack:
        stack.configure("[lease]\nsweep_s = 60\n" + provider_section(provider.base_url))
        found = await stack.submit("<slow>")
        stack.start("turns")
        await provider.transcript.wait_for_request(1, 30)
        session = ids.new_session()
        untold = await stack.submit("<any>", session=session)
        await stack.ended(found)
        record = await read_turn(stack.client, untold)
        assert record is not None
        assert record.state == "queued"
        wake_session(make_app(stack.settings, concurrency=1), session)
        await stack.ended(untold)


@dataclass(frozen=True)
class Pair:
    """Two turns workers that look after each other."""

    stack: Stack
    workers: tuple[Process, Process]

    async def driver_of(self, turn: str) -> Process:
        """The worker that has completed a call of a turn."""

        async def look() -> list[Process]:
            return [each for each in self.workers if any(line.get("turn") == turn for line in each.lines())]

        return (await eventually(look, bool, f"a worker that drives {turn}"))[0]


@pytest.fixture(scope="module")
async def pair(tmp_path_factory: pytest.TempPathFactory, server: EmbeddedServer) -> AsyncIterator[Pair]:
    folder = tmp_path_factory.mktemp("pair")
    async with stand_in(SCRIPT, folder) as provider, Stack(folder, database(server, 6)) as stack:
        lease = "[lease]\nttl_s = 20\nrenew_s = 0.2\nsweep_s = 0.1\n"
        stack.configure(f'{lease}[agents.default]\ntools = ["clock"]\n{provider_section(provider.base_url)}')
        workers = (stack.start("turns"), stack.start("turns"))
        for worker in workers:
            await stack.logged(worker, "turns_process_started")
        yield Pair(stack, workers)


@pytest.mark.requirement("tuning:lease:renew-s")
async def test_a_driver_gives_signs_of_life_as_often_as_it_is_told(pair: Pair) -> None:
    """Eight ends of a lease while an answer of five seconds flows; by default there would be four."""
    session = ids.new_session()
    turn = await pair.stack.submit("<slow after a tool> renewed", session=session)
    ends: set[float] = set()

    async def look() -> int:
        end = await pair.stack.client.zscore(keys.due(0), f"{keys.DUE_LEASE}{session}")
        record = await read_turn(pair.stack.client, turn)
        assert record is not None
        if record.state == "running" and end is not None:
            ends.add(end)
        return len(ends)

    await eventually(look, lambda count: count >= 8, f"eight signs of life from the driver of {turn}")


@pytest.mark.requirement("tuning:lease:ttl-s")
async def test_the_turn_of_a_process_that_vanished_is_taken_over_when_its_lease_ends(pair: Pair) -> None:
    """After 20 s, of which its last sign of life was some tenths old; by default after 8 s."""
    turn = await pair.stack.submit("<slow after a tool> vanished", watch_s=60)
    await pair.stack.until(turn, lambda output: isinstance(output, TextDeltaOutput) and output.call == 2)
    driver = await pair.driver_of(turn)
    driver.kill()
    seconds, microseconds = await pair.stack.client.time()
    killed_ms = seconds * 1000 + microseconds // 1000
    outputs = await pair.stack.ended(turn, within_s=80)
    [discard] = [output for output in outputs if isinstance(output, TextStreamDiscardedOutput)]
    assert discard.reason == "takeover"
    assert discard.at_ms - killed_ms > 14_000
