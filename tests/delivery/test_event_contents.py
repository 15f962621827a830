"""What deliveries say, read from a store: every type of event, in few round trips, and what is not there any more."""

import json
from dataclasses import replace
from typing import Any

import jsonschema
import pytest
import redis

from channels.contents import Contents
from channels.delivery.model import Delivery, Hopeless, Unsent
from channels.events import notices
from channels.events.schema import schema_of
from channels.telling import LATER_S
from channels.webhook.payload import Form
from tests.delivery.subscribers import SOON, addressing_of, endpoint
from tests.store.turns import (
    ARGUMENTS,
    Redis,
    ask,
    commit,
    discard,
    driven,
    driver_of,
    granted,
    log_of,
    outputs_of_commit,
    seal,
    taken,
)
from worker import ids
from worker.codecs.events import ToolCall, Usage
from worker.output.events import CallCompletedOutput, TextOutput, ThinkingOutput, TurnCompletedOutput, UsageOutput
from worker.store import approvals, keys
from worker.store.log import LogEntry
from worker.store.records import RECORD_VERSION
from worker.turn.commands import Failure
from worker.turn.facts import Committed
from worker.turn.usage import NO_USAGE, UsageTotals

FORM = Form("https://lastword.example", 262_144)
ALL = (endpoint("all", "*", "delivery.*"),)


def content_key(delivery: Delivery) -> str:
    return f"lw:{{p00}}:content:{delivery.event_id}"


def contents_of(client: Redis, form: Form = FORM, **more: Any) -> Contents:
    return Contents(client, form, content_key, **more)


async def relayed(client: Redis, entries: Any = None) -> list[Delivery]:
    """The deliveries of the log for who subscribes to all, with what they refer to stored."""
    deliveries: list[Delivery] = []
    entries = await log_of(client) if entries is None else entries
    for made in await addressing_of(client, *ALL).made_of(entries, SOON):
        assert made is not None
        if made.content:
            await client.set(f"lw:{{p00}}:content:{made.event_id}", made.content)
        deliveries += [one for one in made.deliveries if one.destination == "all"]
    return deliveries


async def told(client: Redis, *, full: bool = True, form: Form = FORM) -> list[tuple[str, Any]]:
    """Type and data of every event, each checked against its schema."""
    deliveries = await relayed(client)
    bodies = await contents_of(client, form).bodies([(delivery, full) for delivery in deliveries])
    read = []
    for delivery, body in zip(deliveries, bodies, strict=True):
        assert isinstance(body, bytes), body
        parsed = json.loads(body)
        jsonschema.Draft202012Validator(schema_of(delivery.event_type)).validate(parsed)
        assert parsed["type"] == delivery.event_type
        read.append((parsed["type"], parsed["data"]))
    return read


USED: dict[str, Any] = {"input_tokens": 7, "output_tokens": 3, "total_tokens": 10}
NOT_TOLD = {"cached_input_tokens": None, "reasoning_tokens": None, "cache_write_input_tokens": None}


async def commit_with_usage(accumulator: Any, call: int, text: str) -> None:
    fact = Committed(call, 1, text, (), "stop", Usage(7, 3, 10))
    outputs = [
        TextOutput(call=call, attempt=1, text=text),
        CallCompletedOutput(call=call, attempt=1, finish_reason="stop"),
        ThinkingOutput(call=call, attempt=1, text="Hm."),
        UsageOutput(call=call, attempt=1, **USED),
    ]
    await accumulator.commit(fact, NO_USAGE, outputs)


async def with_a_tool(accumulator: Any) -> None:
    """Commit a first call that asked for a tool."""
    await accumulator.open_call(1, 1, 0, True)
    calls = (ToolCall("t0", "mail", ARGUMENTS, {"to": "bob"}),)
    fact = Committed(1, 1, "One moment. ", calls, "tool_calls", None)
    await accumulator.commit(fact, NO_USAGE, outputs_of_commit(fact))


@pytest.mark.requirement("events:contents:call")
async def test_each_call_is_told_with_its_own_text_finish_reason_and_usage(any_redis: Redis) -> None:
    accumulator = await driven(any_redis)
    await accumulator.open_call(1, 1, 0, True)
    await discard(accumulator, 1, 1)
    await accumulator.open_call(1, 2, 1, False)
    await commit(accumulator, 1, 2, "Größer ist ")
    await accumulator.open_call(2, 1, 0, True)
    await commit_with_usage(accumulator, 2, "\U0001f30a.")
    await accumulator.open_call(3, 1, 0, True)
    await commit(accumulator, 3, 1, "")
    await seal(accumulator)
    *calls, (end, sealed) = await told(any_redis)
    assert [event_type for event_type, _ in calls] == ["call.completed"] * 3
    assert [(data["call"], data["text"], data["usage"]) for _, data in calls] == [
        (1, "Größer ist ", None),
        (2, "\U0001f30a.", {**USED, **NOT_TOLD}),
        (3, "", None),
    ]
    assert {(data["turn"], data["session"], data["source"]) for _, data in calls} == {
        (accumulator.turn, "chat/1", "test")
    }
    assert all(data["labels"] == {"team": "a"} and data["finish_reason"] == "stop" for _, data in calls)
    assert (end, sealed["text"]) == ("turn.completed", "Größer ist \U0001f30a.")


@pytest.mark.requirement("events:contents:call")
async def test_the_usage_of_a_call_is_its_own_and_not_that_of_a_summary_beside_it(any_redis: Redis) -> None:
    accumulator = await driven(any_redis)
    await accumulator.open_call(1, 1, 0, True)
    fact = Committed(1, 1, "Hello.", (), "stop", Usage(7, 3, 10))
    beside: dict[str, Any] = {"input_tokens": 900, "output_tokens": 90, "total_tokens": 990}
    outputs = [
        TextOutput(call=1, attempt=1, text="Hello."),
        CallCompletedOutput(call=1, attempt=1, finish_reason="stop"),
        UsageOutput(call=1, attempt=1, **USED),
        UsageOutput(call=1, attempt=1, purpose="compaction", **beside),
    ]
    await accumulator.commit(fact, NO_USAGE, outputs)
    ((_, data),) = await told(any_redis)
    assert data["usage"] == {**USED, **NOT_TOLD}


@pytest.mark.requirement("events:contents:moment")
async def test_the_end_of_a_turn_bears_the_time_of_its_end(any_redis: Redis) -> None:
    turn = await whole_turn(any_redis)
    await any_redis.hset(keys.turn_record(turn), "sealed_ms", 1_790_000_000_123)
    (end,) = [one for one in await relayed(any_redis) if one.event_type == "turn.completed"]
    (body,) = await contents_of(any_redis).bodies([(end, True)])
    assert isinstance(body, bytes)
    assert json.loads(body)["timestamp"] == "2026-09-21T14:13:20.123Z"


@pytest.mark.requirement("events:contents:approvals")
@pytest.mark.parametrize("answer", ["deny", None])
async def test_a_request_is_told_with_what_would_run_and_its_answer_with_who_gave_it(
    any_redis: Redis, answer: str | None
) -> None:
    accumulator = driver_of(any_redis, await granted(any_redis, requester="ana"))
    await with_a_tool(accumulator)
    approval = await ask(accumulator, requester="ana", expire_s=60)
    await accumulator.park()
    assert answer is None or not isinstance(await approvals.resolve(any_redis, approval, answer, "ana"), str)
    if answer is None:
        await any_redis.hset(keys.approvals(accumulator.turn), "1_0:expires", 1)
        assert await approvals.resolve(any_redis, approval, "deny", "ana") == "prompt_expired"
    _, (asked, request), (decided, decision) = await told(any_redis)
    assert (asked, decided) == ("approval.requested", "approval.decided" if answer else "approval.expired")
    assert (request["approval"], request["tool"], request["arguments"]) == (approval, "mail", ARGUMENTS)
    assert (request["requester"], request["call"]) == ("ana", 1)
    assert request["expires_ms"] - request["asked_ms"] == 60_000
    assert [option["key"] for option in request["options"]] == ["approve_once", "approve_session", "deny"]
    assert (decision["approval"], decision["tool"], decision["option"], decision["by"]) == (
        (approval, "mail", "deny", "ana") if answer else (approval, "mail", "expired", None)
    )
    assert decision["asked_ms"] == request["asked_ms"]
    assert "arguments" not in decision


@pytest.mark.requirement("events:contents:turn")
async def test_a_failed_turn_is_told_with_its_error(any_redis: Redis) -> None:
    accumulator = await driven(any_redis)
    failure = Failure("timeout", "stalled", "the model fell silent")
    totals = UsageTotals(input_tokens=2**64, discarded_resume_attempts=2)
    await accumulator.seal("failed", None, failure, "c" * 32, totals, [TurnCompletedOutput(outcome="failed")])
    ((event_type, data),) = await told(any_redis)
    assert (event_type, data["outcome"], data["error"]["code"]) == ("turn.failed", "failed", "stalled")
    assert (data["error"]["correlation_id"], data["usage"]["input_tokens"]) == ("c" * 32, 2**64)
    assert data["resume"]["resumes"] == 2


async def whole_turn(client: Redis, text: str = "Hello.") -> str:
    """A turn with a call, a request, an answer and an end."""
    accumulator = driver_of(client, await granted(client))
    await with_a_tool(accumulator)
    await ask(accumulator)
    await accumulator.park()
    await approvals.resolve(client, ids.approval_of(accumulator.turn, 1, 0), "deny", "ana")
    accumulator = driver_of(client, await taken(client))
    await accumulator.open_call(2, 1, 0, True)
    await commit(accumulator, 2, 1, text)
    await seal(accumulator)
    return str(accumulator.turn)


@pytest.mark.requirement("events:payload:thin")
async def test_thin_bodies_hold_neither_text_nor_arguments_and_neither_is_read(any_redis: Redis) -> None:
    turn = await whole_turn(any_redis)
    await any_redis.delete(keys.text(turn))
    await any_redis.sadd(keys.text(turn), "what cannot be read as a text")
    found = await told(any_redis, full=False)
    assert len(found) == 5
    for event_type, data in found:
        assert not {"text", "arguments"} & data.keys()
        if event_type == "approval.decided":
            assert "fetch_url" not in data
        else:
            where = "approvals" if event_type == "approval.requested" else f"turns/{turn}"
            assert (data["fetch_url"], data["truncated"]) == (f"https://lastword.example/v1/{where}", False)


@pytest.mark.requirement("events:payload:thin")
async def test_one_event_is_told_each_endpoint_in_the_form_that_it_asked_for(any_redis: Redis) -> None:
    accumulator = await driven(any_redis)
    await accumulator.open_call(1, 1, 0, True)
    await commit(accumulator, 1, 1, "Hello.")
    await seal(accumulator)
    one = next(each for each in await relayed(any_redis) if each.event_type == "turn.completed")
    contents = contents_of(any_redis)
    for forms in ([True, False], [False, True], [True], [False]):  # together, and of what is at hand
        for full, body in zip(forms, await contents.bodies([(one, full) for full in forms]), strict=True):
            assert isinstance(body, bytes)
            assert ("text" in json.loads(body)["data"]) is full


@pytest.mark.requirement("events:payload:cap")
async def test_of_a_text_above_the_cap_no_more_than_the_cap_is_read(any_redis: Redis) -> None:
    turn = await whole_turn(any_redis, "ü" * 40_000)
    form = Form("https://lastword.example", 65_537)  # in the middle of a letter
    found = dict(await told(any_redis, form=form))
    for event_type in ("call.completed", "turn.completed"):
        data = found[event_type]
        assert "text" not in data
        assert (data["truncated"], data["fetch_url"]) == (True, f"https://lastword.example/v1/turns/{turn}")
    assert found["approval.requested"]["arguments"] == ARGUMENTS


class Counted:
    """A client that counts the pipelines that it carries out, and can lose one."""

    def __init__(self, client: Redis, answer: Exception | None = None) -> None:
        self.client = client
        self.pipelines = 0
        self.commands = 0
        self.answer = answer

    def pipeline(self, **options: Any) -> Any:
        pipeline = self.client.pipeline(**options)
        execute = pipeline.execute

        async def counted(**how: Any) -> Any:
            self.pipelines += 1
            self.commands += len(pipeline.command_stack)
            if self.answer is not None:
                raise self.answer
            return await execute(**how)

        pipeline.execute = counted
        return pipeline


@pytest.mark.requirement("events:contents:round-trips")
async def test_a_batch_of_every_type_and_many_turns_takes_two_round_trips_and_the_same_again_none(
    any_redis: Redis,
) -> None:
    for _ in range(5):
        await whole_turn(any_redis)
    deliveries = await relayed(any_redis)
    assert len(deliveries) == 25
    to_three = [(replace(one, id=f"dlv_{n}", destination=f"d{n}"), True) for one in deliveries for n in range(3)]
    counted = Counted(any_redis)
    contents = contents_of(counted)
    bodies = await contents.bodies(to_three)
    assert all(isinstance(body, bytes) for body in bodies)
    assert bodies[::3] == bodies[1::3] == bodies[2::3]
    assert counted.pipelines == 2
    assert counted.commands <= 5 * (2 + 2 * 4 + 2)
    assert await contents.bodies(to_three) == bodies
    assert counted.pipelines == 2
    assert await contents_of(any_redis).bodies(to_three) == bodies


@pytest.mark.requirement("events:contents:round-trips")
async def test_what_is_kept_at_hand_is_bounded(any_redis: Redis) -> None:
    for _ in range(4):
        await whole_turn(any_redis, "x" * 1000)
    ends = [(one, True) for one in await relayed(any_redis) if one.event_type.startswith("turn.")]
    counted = Counted(any_redis)
    contents = contents_of(counted, kept_bytes=5000)
    await contents.bodies(ends)
    assert contents._kept.size <= 5000
    await contents.bodies(ends[-2:])
    assert counted.pipelines == 1
    await contents.bodies(ends[:1])
    assert counted.pipelines == 2
    assert contents._kept.size == sum(map(len, contents._kept.bodies.values())) <= 5000


@pytest.mark.requirement("events:contents:gone")
async def test_what_is_not_stored_any_more_is_hopeless_and_costs_the_others_nothing(any_redis: Redis) -> None:
    first, second, third = [await whole_turn(any_redis) for _ in range(3)]
    deliveries = await relayed(any_redis)
    await any_redis.delete(keys.turn_record(first), keys.out(second), keys.approvals(second))
    await any_redis.delete(*[content_key(one) for one in deliveries if one.turn == third])
    bodies = await contents_of(any_redis).bodies([(one, True) for one in deliveries])
    by_turn: dict[str, list[Any]] = {}
    for one, body in zip(deliveries, bodies, strict=True):
        by_turn.setdefault(one.turn, []).append((one.event_type, isinstance(body, bytes)))
        assert isinstance(body, bytes) or body == Hopeless("turn_expired", f"turn {one.turn} is not stored any more")
    types = [event_type for event_type, _ in by_turn[first]]
    assert by_turn[first] == [(event_type, False) for event_type in types]
    assert by_turn[second] == by_turn[third] == [(each, each == "turn.completed") for each in types]


@pytest.mark.requirement("events:contents:text-gone")
@pytest.mark.parametrize("left", [None, "One", "Hello"], ids=["gone", "short", "last byte missing"])
async def test_a_text_of_which_anything_is_missing_is_never_told(any_redis: Redis, left: str | None) -> None:
    turn = await whole_turn(any_redis)
    deliveries = await relayed(any_redis)
    stored = (await any_redis.get(keys.text(turn))).decode()
    await any_redis.delete(keys.text(turn))
    if left is not None:
        await any_redis.set(keys.text(turn), stored[:-1] if left == "Hello" else left)
    bodies = await contents_of(any_redis).bodies([(one, True) for one in deliveries])
    by_type = dict(zip([one.event_type for one in deliveries], bodies, strict=True))
    gone = Hopeless("turn_expired", f"the text of turn {turn} is not stored any more")
    assert by_type["turn.completed"] == by_type["call.completed"] == gone
    assert {isinstance(by_type[each], bytes) for each in by_type if each.startswith("approval.")} == {True}


@pytest.mark.requirement("events:contents:text-gone")
@pytest.mark.parametrize("full", [True, False])
async def test_the_text_of_a_call_that_the_server_forgot_again_is_told_later_or_never(
    any_redis: Redis, full: bool
) -> None:
    """What lies behind the marker is a view of what a call might say."""
    turn = await whole_turn(any_redis)
    calls = [(one, full) for one in await relayed(any_redis) if one.event_type == "call.completed"]
    await any_redis.hincrby(keys.turn_record(turn), "marker", -1)
    last = (await contents_of(any_redis).bodies(calls))[-1]
    assert last == Hopeless("turn_expired", f"the text of turn {turn} is not stored any more")
    await any_redis.hdel(keys.turn_record(turn), "sealed_ms")
    last = (await contents_of(any_redis).bodies(calls))[-1]
    assert last == Unsent(f"call 2 of turn {turn} has not completed", LATER_S)


@pytest.mark.requirement("events:contents:unreadable")
async def test_what_cannot_be_read_is_hopeless_with_its_reason_and_costs_the_others_nothing(any_redis: Redis) -> None:
    broken, strange, whole = [await whole_turn(any_redis) for _ in range(3)]
    deliveries = [one for one in await relayed(any_redis) if one.event_type.startswith("turn.")]
    await any_redis.hset(keys.turn_record(broken), "labels", "{")
    await any_redis.delete(keys.turn_record(strange))
    await any_redis.set(keys.turn_record(strange), "of another type")
    nowhere = replace(deliveries[0], turn="no turn", event_id="evt_0")
    requests = [(one, True) for one in (*deliveries, nowhere)]
    bodies = await contents_of(any_redis).bodies(requests)
    assert [isinstance(body, bytes) for body in bodies] == [False, False, True, False]
    assert deliveries[2].turn == whole
    assert [body.code for body in bodies if isinstance(body, Hopeless)] == ["unreadable_event"] * 3


@pytest.mark.requirement("events:contents:later")
async def test_a_turn_of_a_newer_release_and_one_whose_end_was_lost_are_told_later(any_redis: Redis) -> None:
    newer, lost = [await whole_turn(any_redis) for _ in range(2)]
    deliveries = [one for one in await relayed(any_redis) if one.event_type.startswith("turn.")]
    await any_redis.hset(keys.turn_record(newer), "v", RECORD_VERSION + 1)
    await any_redis.hdel(keys.turn_record(lost), "sealed_ms")
    for body in await contents_of(any_redis).bodies([(one, True) for one in deliveries]):
        assert isinstance(body, Unsent)
        assert body.after_s == LATER_S


@pytest.mark.requirement("events:contents:away")
@pytest.mark.parametrize(
    "answer", [redis.ConnectionError("gone"), redis.ResponseError("BUSY a script is running")], ids=["lost", "busy"]
)
async def test_while_redis_does_not_answer_nothing_is_lost_and_what_is_at_hand_is_told(
    any_redis: Redis, answer: Exception
) -> None:
    await whole_turn(any_redis)
    deliveries = [(one, True) for one in await relayed(any_redis)]
    counted = Counted(any_redis)
    contents = contents_of(counted)
    (known,) = await contents.bodies(deliveries[:1])
    counted.answer = answer
    first, *others = await contents.bodies(deliveries)
    assert first == known
    assert others == [Unsent("Redis did not answer", 1.0)] * 4
    counted.answer = None
    assert all(isinstance(body, bytes) for body in await contents.bodies(deliveries))


@pytest.mark.requirement("events:contents:own")
async def test_what_an_event_brings_is_sent_as_it_is_stored(any_redis: Redis) -> None:
    data = b'{"endpoint": "crm",  "n":1.7976931348623157e+308}'
    entry = LogEntry(
        "1790000000000-0", "event", "evt_9", "", 0, 1_790_000_000_000, None, None, "", (0, 0), "delivery.dead", data
    )
    (delivery,) = await relayed(any_redis, [entry])
    (body,) = await contents_of(any_redis).bodies([(delivery, True)])
    assert body == b'{"type":"delivery.dead","timestamp":"2026-09-21T14:13:20.000Z","data":%s}' % data
    await any_redis.delete(content_key(delivery))
    (gone,) = await contents_of(any_redis).bodies([(delivery, True)])
    assert gone == Hopeless("event_expired", "event evt_9 is not stored any more")


@pytest.mark.requirement("events:contents:own")
async def test_a_test_event_is_told_as_its_schema_says(fake_redis: Redis) -> None:
    data = notices.trial_of("crm", 1_790_000_000_000)
    entry = LogEntry("1-0", "event", "evt_9", "", 0, 1, None, None, "", (0, 0), "endpoint.test", data, "all")
    (delivery,) = await relayed(fake_redis, [entry])
    (body,) = await contents_of(fake_redis).bodies([(delivery, False)])
    assert isinstance(body, bytes)
    jsonschema.Draft202012Validator(schema_of("endpoint.test")).validate(json.loads(body))
