"""Inbound routes over HTTP: a real web process on a real store."""

import asyncio
import json
import logging
import socket
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from standardwebhooks import Webhook

from channels.hooks import store
from channels.web import body as web_body
from tests.support.hooks import OTHER, STANDARD, by_hmac, by_time, hook, hook_settings
from tests.support.web import Served, serving
from worker.errors import ConfigurationError
from worker.metrics import REGISTRY
from worker.store import keys
from worker.store.records import TurnRecord, read_turn

GOOD = b'{"customer": {"id": 7}, "type": "paid"}'
EVENT, DELIVERY = "X-Webhook-Event", "X-Webhook-Delivery"

HOOKS = {
    "crm": hook(
        agent="clerk",
        prompt="{event} of customer {/customer/id}",
        events=["paid"],
        session="crm/{/customer/id}",
        to=["ops", "https://example.com/hook"],
        labels={"team": "ops"},
        labels_from={"customer": "/customer/id"},
        body_bytes=2000,
        rate_per_minute=3,
    ),
    "plain": hook(rate_per_minute=100_000),
    "timed": hook(verification="hmac_timestamped"),
    "token": hook(verification="secret", header="X-Gitlab-Token"),
    "standard": hook(verification="standard", secrets={"one": {"value": STANDARD}}),
    "off": hook(enabled=False),
    "bodies": hook(dedupe_body_s=60),
    "rejects": hook(session="one", on_busy="reject"),
    "interrupts": hook(session="two", on_busy="interrupt"),
    "of-clerk": hook(session="two", agent="clerk"),
}


@pytest.fixture
async def web(real_url: str) -> AsyncIterator[Served]:
    more = {"web": {"failures_per_minute": 1000}}
    async with serving(hook_settings(real_url, HOOKS, **more)) as served:
        yield served


@pytest.fixture
async def sender(web: Served) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=web.url, timeout=30) as client:
        yield client


async def posted(
    sender: httpx.AsyncClient, route: str, body: bytes = GOOD, headers: dict[str, str] | None = None, /, **more: str
) -> httpx.Response:
    signed = by_hmac(body) if headers is None else headers
    return await sender.post(f"/hooks/{route}", content=body, headers={**signed, **more})


def received(route: str, result: str) -> float:
    labels = {"route": route, "result": result}
    return REGISTRY.get_sample_value("lastword_hooks_received_total", labels) or 0


async def turn_of(web: Served, answer: httpx.Response) -> TurnRecord:
    assert answer.status_code == 202, answer.text
    record = await read_turn(web.redis, answer.json()["turn"])
    assert record is not None
    return record


async def count_turns(web: Served) -> int:
    return int(await web.redis.zcard(keys.live(0)))


@pytest.mark.requirement("hooks:accepted")
@pytest.mark.requirement("tuning:hooks:to")
@pytest.mark.requirement("tuning:hooks:agent")
async def test_a_genuine_event_is_a_turn_with_all_that_its_route_says(web: Served, sender: httpx.AsyncClient) -> None:
    before = received("crm", "accepted")
    answer = await posted(sender, "crm", **{EVENT: "paid", DELIVERY: "d-1"})
    record = await turn_of(web, answer)
    assert answer.json() == {
        "status": "accepted",
        "reason": None,
        "route": "crm",
        "event_type": "paid",
        "delivery_id": "d-1",
        "turn": record.turn,
        "session": "crm/7",
    }
    assert (record.message, record.session, record.source) == ("paid of customer 7", "crm/7", "hook/crm")
    assert record.destinations == ("ops", "https://example.com/hook")
    assert record.labels == {"team": "ops", "customer": "7"}
    assert (record.agent, record.state) == ("clerk", "queued")
    assert received("crm", "accepted") == before + 1


@pytest.mark.requirement("hooks:accepted")
async def test_without_a_session_each_event_has_one_of_its_own(web: Served, sender: httpx.AsyncClient) -> None:
    records = [await turn_of(web, await posted(sender, "plain")) for _ in range(2)]
    assert len({record.session for record in records}) == len({record.turn for record in records}) == 2


@pytest.mark.requirement("hooks:verification:kinds")
async def test_each_kind_of_proof_is_taken_over_http(sender: httpx.AsyncClient) -> None:
    now = time.time()  # noqa: TID251 - as a sender's clock
    signature = Webhook(STANDARD).sign("msg_1", datetime.fromtimestamp(int(now), UTC), GOOD.decode())
    standard = {"webhook-id": "msg_1", "webhook-timestamp": str(int(now)), "webhook-signature": signature}
    token = {"X-Gitlab-Token": "a secret of more than sixteen bytes"}
    for route, headers in (("timed", by_time(GOOD, now)), ("token", token), ("standard", standard)):
        assert (await posted(sender, route, GOOD, headers)).json()["status"] == "accepted", route
        assert (await posted(sender, route, GOOD, {})).status_code == 401, route
    assert (await posted(sender, "timed", GOOD, by_time(GOOD, now - 400))).status_code == 401
    assert (await posted(sender, "timed", GOOD, by_time(GOOD, now + 400))).status_code == 401
    again = (await posted(sender, "standard", GOOD, standard)).json()
    assert (again["reason"], again["delivery_id"]) == ("duplicate_delivery", "msg_1")


@pytest.mark.requirement("hooks:order")
@pytest.mark.requirement("tuning:hooks:body-bytes")
@pytest.mark.requirement("hooks:metrics")
async def test_each_check_has_its_answer_and_the_earlier_fault_is_told(web: Served, sender: httpx.AsyncClient) -> None:
    long, no_json = b"x" * 2001, b"{"
    wrong = {"X-Webhook-Signature": "0" * 64}
    before = {result: received("crm", result) for result in ("event_filtered", "duplicate_delivery", "rate_limited")}
    steps = [
        ("none", await posted(sender, "nobody", long, wrong), 404, "not_found", "route_not_found"),
        ("crm", await posted(sender, "crm", long, wrong), 413, "too_large", "body_too_large"),
        ("crm", await posted(sender, "crm", no_json, wrong), 400, "not_json", "invalid_json"),
        ("crm", await posted(sender, "crm", GOOD, wrong), 401, "unauthorized", "verification_failed"),
        ("crm", await posted(sender, "crm", b"[]", **{EVENT: "paid"}), 422, "invalid", "payload_refused"),
    ]
    for route, answer, status, code, result in steps:
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), answer.text
        assert received(route, result) >= 1
    assert await count_turns(web) == 0
    filtered = await posted(sender, "crm", b"[]", **{EVENT: "other", DELIVERY: "d-1"})
    assert (filtered.status_code, filtered.json()["status"], filtered.json()["reason"]) == (
        202,
        "ignored",
        "event_filtered",
    )
    for number in range(3):
        assert (await posted(sender, "crm", **{EVENT: "paid", DELIVERY: f"d-{number}"})).json()["status"] == "accepted"
    duplicate = await posted(sender, "crm", **{EVENT: "paid", DELIVERY: "d-1"})
    assert duplicate.json()["reason"] == "duplicate_delivery", "a duplicate is told before the rate is looked at"
    limited = await posted(sender, "crm", **{EVENT: "paid", DELIVERY: "d-3"})
    assert (limited.status_code, limited.json()["error"]["code"]) == (429, "rate_limited")
    assert 1 <= int(limited.headers["retry-after"]) <= 60
    assert (await posted(sender, "crm", GOOD, wrong)).status_code == 401, "a stranger is told nothing of the rate"
    assert {result: received("crm", result) - count for result, count in before.items()} == dict.fromkeys(before, 1)


@pytest.mark.requirement("hooks:route-off")
@pytest.mark.requirement("tuning:hooks:enabled")
async def test_a_route_that_is_off_is_answered_like_one_that_is_not_there(sender: httpx.AsyncClient) -> None:
    answers = [await posted(sender, route) for route in ("off", "nobody", "c%20rm", "CRM")]
    assert {(answer.status_code, answer.text) for answer in answers} == {(404, answers[0].text)}


@pytest.mark.requirement("hooks:verification:same-answer")
async def test_a_stranger_is_told_the_same_whatever_he_tries(sender: httpx.AsyncClient) -> None:
    tries: list[dict[str, str]] = [{}, by_hmac(GOOD, OTHER), {"X-Webhook-Signature": "short"}, by_hmac(b"{}")]
    answers = [await posted(sender, "crm", GOOD, headers) for headers in tries]
    assert {(answer.status_code, answer.text, answer.headers["www-authenticate"]) for answer in answers} == {
        (401, answers[0].text, 'Webhook realm="lastword"')
    }


@pytest.mark.requirement("hooks:dedupe:id")
async def test_a_delivery_that_comes_again_is_the_same_turn_whatever_it_holds(
    web: Served, sender: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    first = await posted(sender, "plain", **{DELIVERY: "d-1"})
    again = await posted(sender, "plain", **{DELIVERY: "d-1"})
    assert again.json() == {**first.json(), "status": "ignored", "reason": "duplicate_delivery"}
    with caplog.at_level(logging.WARNING, logger="lastword"):
        other = await posted(sender, "plain", b'{"other": "secret words"}', **{DELIVERY: "d-1"})
    assert (other.json()["reason"], other.json()["turn"]) == ("duplicate_delivery", first.json()["turn"])
    assert "hook_delivery_differs" in [record.message for record in caplog.records]
    assert await count_turns(web) == 1


@pytest.mark.requirement("hooks:dedupe:without-id")
async def test_without_an_id_only_a_route_that_says_so_knows_a_body_again(
    web: Served, sender: httpx.AsyncClient
) -> None:
    assert [(await posted(sender, "plain")).json()["status"] for _ in range(2)] == ["accepted", "accepted"]
    first, again = [(await posted(sender, "bodies")).json() for _ in range(2)]
    assert (again["reason"], again["turn"]) == ("duplicate_delivery", first["turn"])
    assert (await posted(sender, "bodies", GOOD + b" ")).json()["status"] == "accepted"
    (kept,) = [key async for key in web.redis.scan_iter("*:idem:*", count=100)][:1]
    assert 0 < await web.redis.ttl(kept) <= 60


@pytest.mark.requirement("hooks:dedupe:atomic")
async def test_fifty_deliveries_at_the_same_time_are_one_turn(web: Served, sender: httpx.AsyncClient) -> None:
    answers = await asyncio.gather(*(posted(sender, "crm", **{EVENT: "paid", DELIVERY: "d"}) for _ in range(50)))
    told = [answer.json() for answer in answers]
    assert {answer.status_code for answer in answers} == {202}
    assert len({each["turn"] for each in told}) == 1
    assert sorted(each["status"] for each in told) == ["accepted", *["ignored"] * 49]
    assert await count_turns(web) == 1
    assert (await posted(sender, "crm", **{EVENT: "paid", DELIVERY: "d-2"})).status_code == 202, "they cost one place"


@pytest.mark.requirement("hooks:rate")
@pytest.mark.requirement("tuning:hooks:rate-per-minute")
async def test_the_rate_is_exact_however_many_come_at_once(web: Served, sender: httpx.AsyncClient) -> None:
    answers = await asyncio.gather(
        *(posted(sender, "crm", **{EVENT: "paid", DELIVERY: f"d-{number}"}) for number in range(40))
    )
    assert sorted(answer.status_code for answer in answers) == [*[202] * 3, *[429] * 37]
    assert await count_turns(web) == 3
    refused = [number for number, answer in enumerate(answers) if answer.status_code == 429]
    name = keys.quota("hook/crm", 1)
    (oldest, _), *_ = await web.redis.zrange(name, 0, 0, withscores=True)
    await web.redis.zadd(name, {oldest: 0})  # a minute later
    late = await posted(sender, "crm", **{EVENT: "paid", DELIVERY: f"d-{refused[0]}"})
    assert late.json()["status"] == "accepted", "what was refused was remembered nowhere"
    assert (await posted(sender, "crm", **{EVENT: "paid", DELIVERY: f"d-{refused[1]}"})).status_code == 429


@pytest.mark.requirement("hooks:durable")
async def test_dedupe_and_rate_outlive_the_process(real_url: str) -> None:
    settings = hook_settings(real_url, HOOKS)
    turns: list[str] = []
    answers: list[int] = []
    for _ in range(2):
        async with serving(settings) as web, httpx.AsyncClient(base_url=web.url) as sender:
            turns.append((await posted(sender, "crm", **{EVENT: "paid", DELIVERY: "d-0"})).json()["turn"])
            answers = [
                (await posted(sender, "crm", **{EVENT: "paid", DELIVERY: f"d-{len(turns)}{number}"})).status_code
                for number in range(2)
            ]
    assert turns[0] == turns[1]
    assert answers == [429, 429]


@pytest.mark.requirement("hooks:on-busy")
@pytest.mark.requirement("tuning:hooks:on-busy")
async def test_a_busy_session_refuses_or_is_interrupted_as_the_route_says(
    web: Served, sender: httpx.AsyncClient
) -> None:
    assert (await posted(sender, "rejects", **{DELIVERY: "d-1"})).status_code == 202
    refused = await posted(sender, "rejects", **{DELIVERY: "d-2"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "busy")
    assert int(refused.headers["retry-after"]) > 0
    assert (await posted(sender, "rejects", **{DELIVERY: "d-1"})).json()["reason"] == "duplicate_delivery"
    first = await turn_of(web, await posted(sender, "interrupts"))
    await posted(sender, "interrupts")
    after = await read_turn(web.redis, first.turn)
    assert after is not None
    assert after.outcome == "cancelled"


@pytest.mark.requirement("hooks:answers")
async def test_answers_name_the_route_and_to_strangers_no_setting(sender: httpx.AsyncClient) -> None:
    await posted(sender, "rejects")
    busy = (await posted(sender, "rejects")).json()["error"]["message"]
    assert "route rejects" in busy
    long = await posted(sender, "crm", b"x" * 2001, {})
    assert long.json()["error"]["message"] == "the body is longer than 2000 bytes"
    for told in (busy, long.text):
        assert "hooks." not in told
        assert "NAME" not in told


@pytest.mark.requirement("hooks:bounds")
@pytest.mark.requirement("tuning:hooks:body-bytes")
async def test_a_body_of_exactly_the_bound_is_taken(sender: httpx.AsyncClient) -> None:
    for length, status in ((2000, 202), (2001, 413)):
        body = GOOD + b" " * (length - len(GOOD))
        assert (await posted(sender, "crm", body, **{EVENT: "paid", DELIVERY: "d"})).status_code == status


@pytest.mark.requirement("hooks:on-busy")
async def test_an_event_never_interrupts_the_turn_of_another_agent(web: Served, sender: httpx.AsyncClient) -> None:
    other = await turn_of(web, await posted(sender, "of-clerk"))
    refused = await posted(sender, "interrupts")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "busy")
    after = await read_turn(web.redis, other.turn)
    assert after is not None
    assert (after.session, after.agent, after.outcome, after.state) == ("two", "clerk", None, "queued")


@pytest.mark.requirement("hooks:answers")
async def test_what_the_store_cannot_take_is_refused_without_its_words(
    sender: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: Any, **__: Any) -> None:
        raise ConfigurationError("labels: 'canary words' are none")

    monkeypatch.setattr(store, "take", refuse)
    before = received("plain", "payload_refused")
    answer = await posted(sender, "plain")
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "invalid")
    assert "canary" not in answer.text
    assert received("plain", "payload_refused") == before + 1


@pytest.mark.requirement("hooks:receivers")
async def test_the_process_warns_at_its_start_of_receivers_that_nobody_has(
    real_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    hooks = {
        "crm": hook(to=["ops", "nobody", "https://example.com/secret-path"]),
        "off": hook(to=["nobody"], enabled=False),
        "other": hook(to=["ops"]),
    }
    with caplog.at_level(logging.WARNING, logger="lastword"):
        async with serving(hook_settings(real_url, hooks)):
            pass
    lines = [record.__dict__["lastword"] for record in caplog.records if record.message == "hook_receiver_unknown"]
    assert lines == [{"route": "crm", "endpoint": "nobody"}]
    caplog.clear()


@pytest.mark.requirement("hooks:content-type")
@pytest.mark.parametrize("kind", ["application/json", "application/vnd.x+json; charset=utf-8", "text/plain", None])
async def test_json_is_taken_whatever_it_is_called(web: Served, sender: httpx.AsyncClient, kind: str | None) -> None:
    more = {} if kind is None else {"Content-Type": kind}
    record = await turn_of(web, await posted(sender, "plain", '{"a": "zażółć 😀"}'.encode(), **more))
    assert record.message == 'An event came: {"a": "zażółć 😀"}'


@pytest.mark.requirement("hooks:json")
@pytest.mark.parametrize(
    "body", [b"", b"\xff{}", b"payload=%7B%7D", b'{"a": NaN}', b"[" * 100_000 + b"]" * 100_000, "{}".encode("utf-16")],
    ids=lambda value: repr(value)[:20],
)  # fmt: skip
async def test_what_is_no_json_is_refused(sender: httpx.AsyncClient, body: bytes) -> None:
    answer = await posted(sender, "plain", body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "not_json")


@pytest.mark.requirement("hooks:strangers")
async def test_failures_count_by_address_and_genuine_events_do_not(real_url: str) -> None:
    settings = hook_settings(real_url, HOOKS, web={"failures_per_minute": 4})
    async with serving(settings) as web, httpx.AsyncClient(base_url=web.url) as sender:
        tries = [
            ("nobody", GOOD),
            ("plain", b"{"),
            ("crm", b"x" * 2001),
            ("plain", GOOD),
            ("plain", GOOD),
            ("off", GOOD),
        ]
        answers = [await posted(sender, route, body, {}) for route, body in tries]
        assert [answer.status_code for answer in answers] == [404, 400, 413, 401, 429, 429]
        assert int(answers[-1].headers["retry-after"]) > 0
        assert (await posted(sender, "plain")).status_code == 202
        assert (await posted(sender, "crm", b"[]", **{EVENT: "paid"})).status_code == 422, "its sender is no stranger"


def unparsed(*_: Any, **__: Any) -> None:
    """Stands for the parser where nothing may be parsed."""
    raise AssertionError("it was parsed")


RUBBISH = b"[" + b"[]," * 349_000 + b"[]]"
WRONG = {"X-Webhook-Signature": "0" * 64}


@pytest.mark.requirement("hooks:strangers:cost")
async def test_ten_strangers_with_long_rubbish_cost_no_parsing_and_others_are_answered(
    sender: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json, "loads", unparsed)
    posts = [posted(sender, "plain", RUBBISH, WRONG) for _ in range(10)]
    *answers, alive = await asyncio.gather(*posts, sender.get("/livez"))
    assert {answer.status_code for answer in answers} == {401}
    assert alive.status_code == 200


@pytest.mark.requirement("hooks:strangers:cost")
async def test_of_an_address_that_fails_too_often_nothing_is_parsed_and_no_body_without_a_proof_is_read(
    real_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = hook_settings(real_url, HOOKS, web={"failures_per_minute": 2})
    async with serving(settings) as web, httpx.AsyncClient(base_url=web.url) as sender:
        assert [(await posted(sender, "plain", b"{", WRONG)).status_code for _ in range(2)] == [400, 400]
        with monkeypatch.context() as patch:
            patch.setattr(json, "loads", unparsed)
            assert (await posted(sender, "plain", b"{", WRONG)).status_code == 429
        for route, proof in (("plain", ""), ("standard", ""), ("token", "X-Gitlab-Token: wrong\r\n")):
            reader, writer = await asyncio.open_connection(urlsplit(web.url).hostname, urlsplit(web.url).port)
            try:  # its body never comes
                writer.write(f"POST /hooks/{route} HTTP/1.1\r\nHost: x\r\n{proof}Content-Length: 9\r\n\r\n".encode())
                answer = await asyncio.wait_for(reader.read(), 20)
            finally:
                writer.close()
            assert answer.startswith(b"HTTP/1.1 429"), route
            assert received(route, "verification_failed") >= 1
        assert (await posted(sender, "plain")).status_code == 202, "its sender is no stranger"
        token = {"X-Gitlab-Token": "a secret of more than sixteen bytes"}
        assert (await posted(sender, "token", GOOD, token)).status_code == 202


@pytest.mark.requirement("hooks:bounds")
async def test_a_body_that_does_not_come_to_its_end_is_given_up(web: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_body, "_READ_LIMIT_S", 0.2)
    host, port = urlsplit(web.url).hostname, urlsplit(web.url).port
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(b"POST /hooks/plain HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        answer = await asyncio.wait_for(reader.read(), 20)
    finally:
        writer.close()
    assert answer.startswith(b"HTTP/1.1 408")
    assert received("plain", "body_timeout") >= 1


@pytest.mark.requirement("hooks:bounds")
async def test_a_body_that_is_too_long_is_not_read_to_its_end(web: Served) -> None:
    host, port = urlsplit(web.url).hostname, urlsplit(web.url).port
    reader, writer = await asyncio.open_connection(host, port, family=socket.AF_INET)
    try:
        writer.write(b"POST /hooks/crm HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        writer.write(b"1000\r\n" + b"x" * 4096 + b"\r\n")
        answer = await asyncio.wait_for(reader.read(), 20)
    finally:
        writer.close()
    assert answer.startswith(b"HTTP/1.1 413")


@pytest.mark.requirement("hooks:silent")
async def test_no_log_line_holds_anything_that_was_sent(
    sender: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    body = b'{"customer": {"id": "canary-one"}, "words": "canary-two"}'
    more = {EVENT: "paid", DELIVERY: "canary-three"}
    with caplog.at_level(logging.DEBUG, logger="lastword"):
        for signed in (by_hmac(body), by_hmac(body), by_hmac(body, OTHER), {}):
            await posted(sender, "plain", body, signed, **more)
        await posted(sender, "canary-four", body)
        await posted(sender, "crm", body, **{EVENT: "canary-five"})
    lines = [f"{record.message} {record.__dict__.get('lastword')}" for record in caplog.records]
    events = {record.message for record in caplog.records}
    assert {"hook_accepted", "hook_refused", "request"} <= events
    for line in lines:
        assert "canary" not in line
        assert "sixteen bytes" not in line
        assert by_hmac(body)["X-Webhook-Signature"] not in line


@pytest.mark.requirement("hooks:silent")
async def test_a_session_is_logged_by_its_name_and_its_values_stand_nowhere_else(
    sender: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, logger="lastword"):
        await posted(sender, "crm", b'{"customer": {"id": "canary"}}', **{EVENT: "paid"})
    told = [(record.message, dict(getattr(record, "lastword", {}))) for record in caplog.records]
    assert {fields.pop("session", None) for _, fields in told} == {None, "crm/canary"}
    assert "canary" not in str(told)


@pytest.mark.requirement("hooks:method")
async def test_a_route_is_posted_to_and_nothing_else(sender: httpx.AsyncClient) -> None:
    for method in ("GET", "HEAD", "PUT", "DELETE"):
        answer = await sender.request(method, "/hooks/plain")
        assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    assert (await sender.post("/hooks/plain/more")).status_code == 404
