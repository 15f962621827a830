"""A whole delivery process but for Celery: from a sealed turn in the store to a verified webhook."""

import asyncio
import base64
import itertools
import json
import logging
import resource
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio
from standardwebhooks.webhooks import Webhook

from channels.delivery.model import Delivery, State
from channels.endpoints.record import LEAVING
from channels.outbox import reading
from channels.settings import Settings
from channels.wiring import DeliveryProcess
from tests.store.turns import commit, discard
from tests.support.egress import LOOPBACK
from tests.support.http_proxy import Proxy
from tests.support.receiver import Answer, Receiver, refusing_url
from tests.support.stack import eventually
from tests.support.web import VAULT_KEY
from worker import ids
from worker.connector import MOST_CONNECTIONS
from worker.errors import ConfigurationError
from worker.guard import MOST_DIALLED
from worker.network_section import EgressSettings
from worker.output.events import ErrorOutput, Outcome, TurnCompletedOutput
from worker.store.accumulator import ExecutionOutputAccumulator
from worker.store.inbox import NewTurn, submit
from worker.store.lease import claim
from worker.turn.commands import Failure
from worker.turn.usage import UsageTotals

SECRET = "whsec_" + base64.b64encode(b"s" * 32).decode()
TOTALS = UsageTotals(
    input_tokens=20,
    output_tokens=5,
    total_tokens=25,
    discarded_resume_attempts=1,
    discarded_resume_estimated_input_tokens=10,
)


@asynccontextmanager
async def delivering(settings: Settings) -> AsyncIterator[DeliveryProcess]:
    """A delivery process whose wake-ups arrive at once."""
    loop = asyncio.get_running_loop()
    deliveries: set[asyncio.Task[None]] = set()

    def deliver() -> None:
        task = loop.create_task(process.deliver())
        deliveries.add(task)
        task.add_done_callback(deliveries.discard)

    def wake() -> None:
        loop.call_soon_threadsafe(deliver)

    process = DeliveryProcess(settings, wake)
    await process.start()
    process.begin()
    try:
        yield process
    finally:
        process.drain()
        await asyncio.gather(*deliveries)
        await process.stop()


async def first_one(client: redis.asyncio.Redis, state: State) -> Delivery:
    """The first delivery that is in this state."""
    try:
        async with asyncio.timeout(20):
            while not (found := (await reading.listed(client, 1, state=state)).deliveries):
                pass
    except TimeoutError:
        pytest.fail(f"waited 20 s for a delivery that is {state}")
    return found[0]


def settings_of(real_url: str, folder: Path, receiver_url: str, *, partitions: int = 1, **delivery: Any) -> Settings:
    endpoint = {"url": receiver_url, "secret": SECRET, "headers": {"X-Team": "a"}}
    return Settings.model_validate(
        {
            "redis_url": real_url,
            "data_dir": folder,
            "partitions": partitions,
            "endpoints": {"crm": endpoint},
            "vault": {"keys": [VAULT_KEY]},
            "egress": LOOPBACK,
            "delivery": {"timeout_s": 5, **delivery},
        }
    )


async def answered(client: redis.asyncio.Redis, *destinations: str, failure: Failure | None = None) -> str:
    """A turn with one resumed call, sealed."""
    turn, session = ids.new_turn(0), ids.new_session()
    new = NewTurn(turn, session, "hello", "default", "test", {"ticket": "A-1"}, destinations, None, deadline_s=7200)
    await submit(client, new, 1)
    grant = await claim(client, session, ids.new_nonce(), 8.0, 1)
    assert grant is not None
    accumulator = ExecutionOutputAccumulator(client, grant, lambda: True)
    await accumulator.open_call(1, 1, 0, is_new_call=True)
    accumulator.stage_text("The invoice was")
    await discard(accumulator, 1, 1)
    await accumulator.open_call(1, 2, 1, is_new_call=False)
    await commit(accumulator, 1, 2, "Paid on Friday. ✓\n")
    outcome: Outcome = "completed" if failure is None else "failed"
    error = [] if failure is None else [ErrorOutput(message=failure.message, category=failure.category)]
    outputs = [*error, TurnCompletedOutput(outcome=outcome)]
    await accumulator.seal(outcome, None, failure, "c" * 32, TOTALS, outputs)
    return turn


@pytest.mark.requirement("delivery:process:sealed-to-delivered")
async def test_a_sealed_turn_reaches_its_receiver_signed_and_with_its_committed_text_alone(
    real_redis: redis.asyncio.Redis, real_url: str, tmp_path: Path
) -> None:
    async with Receiver() as receiver, delivering(settings_of(real_url, tmp_path, receiver.url)):
        turn = await answered(real_redis, "crm")
        request = await receiver.nth(1)
    body = Webhook(SECRET).verify(request.body, request.headers)
    assert body["type"] == "turn.completed"
    data = body["data"]
    assert (data["turn"], data["outcome"], data["text"]) == (turn, "completed", "Paid on Friday. ✓\n")
    assert data["usage"]["total_tokens"] == 25
    assert data["resume"] == {"discarded_attempts": 1, "discarded_estimated_input_tokens": 10, "resumes": 1}
    assert (data["labels"], data["error"]) == ({"ticket": "A-1"}, None)
    assert request.headers["x-team"] == "a"
    [delivery] = (await reading.listed(real_redis, 10)).deliveries
    assert (delivery.id, delivery.state, delivery.attempts) == (request.headers["webhook-id"], "delivered", 1)


@pytest.mark.requirement("faults:broker:silent")
async def test_a_wake_up_that_hangs_holds_up_no_delivery(
    real_redis: redis.asyncio.Redis, real_url: str, tmp_path: Path
) -> None:
    """Neither that which it tells of, nor those that become due meanwhile."""
    hangs = threading.Event()
    async with Receiver() as receiver:

        def wake() -> None:
            hangs.wait()

        process = DeliveryProcess(settings_of(real_url, tmp_path, receiver.url), wake)
        await process.start()
        process.begin()
        try:
            for number in (1, 2):
                await answered(real_redis, "crm")
                await receiver.nth(number)
            assert not hangs.is_set()
        finally:
            hangs.set()
            process.drain()
            await process.stop()


async def test_a_failed_turn_is_told_with_its_error_and_the_text_that_stands(
    real_redis: redis.asyncio.Redis, real_url: str, tmp_path: Path
) -> None:
    async with Receiver() as receiver, delivering(settings_of(real_url, tmp_path, receiver.url)):
        await answered(real_redis, "crm", failure=Failure("timeout", "stalled", "the model fell silent"))
        body = json.loads((await receiver.nth(1)).body)
    assert body["type"] == "turn.failed"
    assert body["data"]["text"] == "Paid on Friday. ✓\n"
    assert body["data"]["error"] == {
        "category": "timeout",
        "code": "stalled",
        "message": "the model fell silent",
        "correlation_id": "c" * 32,
    }


@pytest.mark.requirement("delivery:process:retried")
async def test_a_receiver_that_fails_at_first_is_asked_again_under_the_same_id(
    real_redis: redis.asyncio.Redis, real_url: str, tmp_path: Path
) -> None:
    async with (
        Receiver(Answer(503), Answer(200)) as receiver,
        delivering(settings_of(real_url, tmp_path, receiver.url, retry_waits_s=(0.05,))),
    ):
        await answered(real_redis, "crm")
        first, second = await receiver.nth(1), await receiver.nth(2)
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    [delivery] = (await reading.listed(real_redis, 10)).deliveries
    assert [attempt.code for attempt in delivery.log] == ["http_503", "http_200"]


async def test_one_bad_destination_costs_the_others_nothing(
    real_redis: redis.asyncio.Redis, real_url: str, tmp_path: Path
) -> None:
    with refusing_url() as refusing:
        async with Receiver() as receiver, delivering(settings_of(real_url, tmp_path, receiver.url, retry_waits_s=())):
            await answered(real_redis, "nobody", refusing, "crm", receiver.url)
            await receiver.nth(2)
    found = {delivery.destination: delivery for delivery in (await reading.listed(real_redis, 10)).deliveries}
    assert {name: one.state for name, one in found.items()} == {
        "nobody": "queued",  # another process may know it
        refusing: "dead",
        "crm": "delivered",
        receiver.url: "delivered",
    }
    assert found["nobody"].attempts == 0
    assert (found[refusing].code, found[refusing].log[0].code) == ("attempts_spent", "connect_refused")


@pytest.mark.requirement("delivery:process:cannot-sign")
async def test_what_cannot_be_signed_waits_with_the_reason_and_the_fix_and_spends_no_attempt(
    real_redis: redis.asyncio.Redis, real_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    logged = logging.getLogger("lastword")
    logged.addHandler(caplog.handler)
    try:
        async with Receiver() as receiver:
            settings = settings_of(real_url, Path("/dev/null/x"), receiver.url, retry_waits_s=(0.05,))
            async with delivering(settings):
                await answered(real_redis, receiver.url, "crm")
                await receiver.nth(1)
                waiting = await first_one(real_redis, "waiting")
    finally:
        logged.removeHandler(caplog.handler)
    assert (waiting.destination, waiting.attempts, waiting.ours) == (receiver.url, 0, len(waiting.log))
    assert {attempt.code for attempt in waiting.log} == {"cannot_sign"}
    assert "/dev/null/x/webhook-secret" in waiting.log[-1].message
    assert "set delivery.secret, or correct data_dir" in waiting.log[-1].message
    [warning] = [record for record in caplog.records if record.getMessage() == "plain_urls_cannot_be_signed"]
    assert "/dev/null/x/webhook-secret" in vars(warning)["lastword"]["reason"]


async def test_a_process_that_can_sign_does_not_say_that_it_cannot(
    real_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    logged = logging.getLogger("lastword")
    logged.addHandler(caplog.handler)
    try:
        async with delivering(settings_of(real_url, tmp_path, "http://127.0.0.1:9/")):
            assert (tmp_path / "webhook-secret").exists()
    finally:
        logged.removeHandler(caplog.handler)
    assert "plain_urls_cannot_be_signed" not in [record.getMessage() for record in caplog.records]


@pytest.mark.requirement("attempt:fan-out")
async def test_a_process_that_delivers_may_open_as_many_descriptors_as_it_has_connections(
    real_url: str, tmp_path: Path
) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[1] != resource.RLIM_INFINITY and before[1] < 3000:
        pytest.skip("this machine allows no more")
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, before[1]))
    try:
        async with delivering(settings_of(real_url, tmp_path, "http://127.0.0.1:9/", concurrency=200)):
            raised, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            assert raised >= MOST_CONNECTIONS + (1 + MOST_DIALLED) * 200
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.requirement("tuning:egress:proxy-looks-up")
@pytest.mark.parametrize(("section", "asked"), [({}, 0), ({"proxy_looks_up": True}, 1)])
async def test_a_proxy_is_asked_by_name_where_the_settings_say_so(
    real_redis: redis.asyncio.Redis, real_url: str, tmp_path: Path, section: dict[str, Any], asked: int
) -> None:
    async with Receiver() as receiver, Proxy(names={"localhost": "127.0.0.1"}) as proxy:
        url = receiver.url.replace("127.0.0.1", "localhost")
        given = settings_of(real_url, tmp_path, url, proxy=proxy.url, retry_waits_s=())
        settings = given.model_copy(update={"egress": EgressSettings.model_validate({**LOOPBACK, **section})})
        async with delivering(settings):
            await answered(real_redis, "crm")
            ended = await first_one(real_redis, "delivered" if asked else "dead")
    assert (ended.log[-1].code, len(proxy.seen)) == ("http_200" if asked else "blocked", asked)


@pytest.mark.requirement("delivery:process:many-partitions")
async def test_the_relays_of_80_partitions_wait_for_their_logs_at_once(
    real_redis: redis.asyncio.Redis, real_url: str, tmp_path: Path
) -> None:
    settings = settings_of(real_url, tmp_path, "http://127.0.0.1:9/", partitions=80)
    waiting = 0
    async with delivering(settings):
        try:
            async with asyncio.timeout(20):
                while (waiting := (await real_redis.info("clients"))["blocked_clients"]) < 80:
                    pass
        except TimeoutError:
            pytest.fail(f"waited 20 s for 80 relays to read at once; at most {waiting} did")


@pytest.mark.requirement("delivery:drain:unsent")
async def test_lost_replies_while_a_turn_is_read_cost_no_attempt_and_no_delivery(
    real_redis: redis.asyncio.Redis, real_url: str, tmp_path: Path
) -> None:
    async with (
        Receiver() as receiver,
        delivering(settings_of(real_url, tmp_path, receiver.url, retry_waits_s=(0.05,))) as process,
    ):
        client: Any = process._redis
        open_pipeline, reads = client.pipeline, itertools.count(1)

        def losing(*arguments: Any, **options: Any) -> Any:
            pipeline = open_pipeline(*arguments, **options)
            execute = pipeline.execute

            async def lose_the_first_for_the_relay_and_for_the_sender(*arguments: Any, **options: Any) -> Any:
                asked = {words for command, _ in pipeline.command_stack for words in command[1:2]}
                replies = await execute(*arguments, **options)
                # The relay asks again in between.
                if any(isinstance(key, str) and ":turn:" in key for key in asked) and next(reads) in {1, 3}:
                    raise redis.ConnectionError("the line broke before the reply came")
                return replies

            pipeline.execute = lose_the_first_for_the_relay_and_for_the_sender
            return pipeline

        client.pipeline = losing
        await answered(real_redis, "crm")
        await receiver.nth(1)
    assert next(reads) > 4
    [delivery] = (await reading.listed(real_redis, 10)).deliveries
    assert (delivery.destination, delivery.state, delivery.attempts) == ("crm", "delivered", 1)
    assert [attempt.code for attempt in delivery.log] == ["http_200"]


async def test_a_process_with_other_partitions_than_the_store_does_not_start(
    real_redis: redis.asyncio.Redis, real_url: str, tmp_path: Path
) -> None:
    await real_redis.hset("lw:meta", mapping={"v": "1", "partitions": "7"})
    process = DeliveryProcess(settings_of(real_url, tmp_path, "http://127.0.0.1:9/"), lambda: None)
    with pytest.raises(ConfigurationError, match="first used with 7"):
        await process.start()
    await process.stop()


@pytest.mark.requirement("endpoints:deleted:settings")
async def test_a_delivery_process_takes_the_names_of_its_settings_from_the_deleted_ones(
    real_redis: Any, real_url: str, tmp_path: Path
) -> None:
    await real_redis.zadd(LEAVING, {"crm": 1})
    await real_redis.zadd("lw:{dlv}:flight:crm", {"dlv_00aaaaaaaaaaaaaaaaaaaa": 9e15})  # so the name is not free

    async def named() -> Any:
        return await real_redis.zscore(LEAVING, "crm")

    async with delivering(settings_of(real_url, tmp_path, "http://127.0.0.1:1/")):
        await eventually(named, lambda score: score is None, "the name to be that of the settings")
