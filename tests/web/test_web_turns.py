"""Turns over HTTP."""

import asyncio
import json
import logging
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from channels.web import body
from tests.store.test_turn_listing import of_a_newer_release
from tests.store.turns import commit, completed, driver_of, seal, taken
from tests.support.web import Served, serving, web_settings
from worker.output.events import ErrorOutput, TurnCompletedOutput
from worker.store import keys
from worker.store.records import read_turn
from worker.turn.commands import Failure
from worker.turn.usage import NO_USAGE, UsageTotals

WRITE = ("turns:write", "turns:read")


async def submitted(client: httpx.AsyncClient, prompt: str = "hello", **more: Any) -> dict[str, Any]:
    answer = await client.post("/v1/turns", json={"prompt": prompt, **more})
    assert answer.status_code == 202, answer.text
    told: dict[str, Any] = answer.json()
    return told


def error_of(answer: httpx.Response) -> tuple[int, str, str | None]:
    body = answer.json()
    assert set(body) == {"error"}
    assert set(body["error"]) <= {"code", "message", "field", "reason"}
    assert body["error"]["message"]
    return answer.status_code, body["error"]["code"], body["error"].get("field")


@pytest.mark.requirement("web:submit")
async def test_a_message_becomes_a_turn_that_can_be_looked_at(web: Served) -> None:
    async with await web.client(*WRITE) as client:
        answer = await client.post("/v1/turns", json={"prompt": "hello", "labels": {"team": "ops"}})
        assert answer.status_code == 202, answer.text
        told = answer.json()
        assert answer.headers["location"] == told["urls"]["turn"] == f"/v1/turns/{told['turn']}"
        assert told["duplicate"] is False
        seen = (await client.get(told["urls"]["turn"])).json()
    assert (seen["state"], seen["text"], seen["labels"], seen["source"]) == ("queued", "", {"team": "ops"}, "http")
    assert (seen["outcome"], seen["error"], seen["sealed_ms"]) == (None, None, None)
    record = await read_turn(web.redis, told["turn"])
    assert record is not None
    assert record.message == "hello"


@pytest.mark.requirement("web:submit:idempotent")
async def test_the_same_key_and_message_give_the_same_turn(web: Served) -> None:
    async with await web.client(*WRITE) as client:
        first, again = [
            await client.post("/v1/turns", json={"prompt": "hello"}, headers={"Idempotency-Key": "order 7"})
            for _ in range(2)
        ]
        assert first.json()["turn"] == again.json()["turn"]
        assert (first.json()["duplicate"], again.json()["duplicate"]) == (False, True)
        other = await client.post("/v1/turns", json={"prompt": "bye"}, headers={"Idempotency-Key": "order 7"})
        assert error_of(other) == (409, "conflict", "Idempotency-Key")
        assert first.json()["turn"] not in other.text
    assert await web.redis.zcard(keys.live(0)) == 1


@pytest.mark.requirement("web:submit:idempotent")
async def test_keys_of_different_tokens_never_meet(web: Served) -> None:
    turns = set()
    for _ in range(2):
        async with await web.client(*WRITE) as client:
            answer = await client.post("/v1/turns", json={"prompt": "hello"}, headers={"Idempotency-Key": "order 7"})
            turns.add(answer.json()["turn"])
    assert len(turns) == 2


@pytest.mark.requirement("web:read:committed-only")
async def test_a_turn_that_runs_shows_what_stands_and_nothing_that_streams(web: Served) -> None:
    async with await web.client(*WRITE) as client:
        turn = (await submitted(client, session="chat/1"))["turn"]
        driver = driver_of(web.redis, await taken(web.redis, "chat/1"))
        await driver.open_call(1, 1, 0, True)
        await commit(driver, 1, 1, "It is naïve. ")
        await driver.open_call(2, 1, 0, True)
        driver.stage_text("Perhaps")
        seen = (await client.get(f"/v1/turns/{turn}")).json()
        assert (seen["state"], seen["text"], seen["calls"]) == ("running", "It is naïve. ", 2)


@pytest.mark.requirement("web:read:ended")
async def test_a_turn_that_failed_tells_why_and_what_its_resumes_cost(web: Served) -> None:
    failure = Failure("timeout", "stall_timeout", "The provider fell silent.")
    totals = UsageTotals(3, 4, 7, discarded_resume_attempts=2, discarded_resume_estimated_input_tokens=6)
    async with await web.client(*WRITE) as client:
        turn = (await submitted(client, session="chat/1"))["turn"]
        driver = driver_of(web.redis, await taken(web.redis, "chat/1"))
        error = ErrorOutput(message=failure.message, category="timeout", code=failure.code, correlation_id="c0ffee")
        ends = [error, TurnCompletedOutput(outcome="failed", reason="stall_timeout")]
        await driver.seal("failed", "stall_timeout", failure, "c0ffee", totals, ends)
        seen = (await client.get(f"/v1/turns/{turn}")).json()
    assert (seen["state"], seen["outcome"], seen["reason"]) == ("sealed", "failed", "stall_timeout")
    assert seen["error"] == {
        "category": "timeout",
        "code": "stall_timeout",
        "message": "The provider fell silent.",
        "correlation_id": "c0ffee",
    }
    assert seen["usage"]["total_tokens"] == 7
    assert seen["resume"] == {"discarded_attempts": 0, "resumes": 2, "discarded_estimated_input_tokens": 6}
    assert seen["sealed_ms"] >= seen["created_ms"]


@pytest.mark.requirement("web:list")
async def test_the_turns_that_go_on_are_listed_by_state_label_and_age(web: Served) -> None:
    async with await web.client(*WRITE) as client:
        old = await submitted(client, session="a", labels={"team": "ops", "env": "test"})
        new = await submitted(client, session="b", labels={"team": "web"})
        ended = await submitted(client, session="c")
        await seal(driver_of(web.redis, await taken(web.redis, "c")))
        await taken(web.redis, "b")

        async def listed(**query: Any) -> list[str]:
            answer = (await client.get("/v1/turns", params=query)).json()
            return [turn["turn"] for turn in answer["turns"]]

        assert await listed() == [old["turn"], new["turn"]]
        assert ended["turn"] not in await listed()
        assert await listed(state="running") == [new["turn"]]
        assert await listed(label="team=ops") == [old["turn"]]
        assert await listed(label=["team=ops", "env=prod"]) == []
        created = (await client.get(new["urls"]["turn"])).json()["created_ms"]
        assert old["turn"] in await listed(since_ms=0)
        assert await listed(since_ms=created + 60_000) == []
        first = (await client.get("/v1/turns", params={"limit": 1})).json()
        assert ([turn["turn"] for turn in first["turns"]], first["truncated"]) == ([old["turn"]], True)
        assert "text" not in first["turns"][0]
        for query, field in (
            ({"state": "over"}, "state"),
            ({"limit": "0"}, "limit"),
            ({"limit": "x"}, "limit"),
            ({"since_ms": "-1"}, "since_ms"),
            ({"label": "team"}, "label"),
            ({"colour": "red"}, "colour"),
        ):
            assert error_of(await client.get("/v1/turns", params=query)) == (422, "invalid", field)
        twice = await client.get("/v1/turns?limit=1&limit=2")
        assert error_of(twice) == (422, "invalid", "limit")


@pytest.mark.requirement("web:list")
async def test_a_label_is_asked_for_once(web: Served) -> None:
    async with await web.client(*WRITE) as client:
        answer = await client.get("/v1/turns?label=env%3Ddev&label=env%3Dprod")
        assert error_of(answer) == (422, "invalid", "label")


@pytest.mark.requirement("web:list:light")
async def test_looking_at_turns_moves_none_of_their_messages(web: Served) -> None:
    async with await web.client(*WRITE) as client:
        turns = [await submitted(client, "x" * 500_000, session=f"chat/{number}") for number in range(10)]

        async def sent() -> int:
            return int((await web.redis.info("stats"))["total_net_output_bytes"])

        before = await sent()
        assert len((await client.get("/v1/turns")).json()["turns"]) == 10
        assert (await client.get("/v1/turns?limit=1")).json()["truncated"]
        for turn in turns:
            await client.get(turn["urls"]["turn"])
            await client.post(turn["urls"]["cancel"])
        assert await sent() - before < 500_000


@pytest.mark.requirement("web:urls:hidden")
async def test_of_a_url_that_the_outcome_goes_to_only_the_host_is_shown(web: Served) -> None:
    async with await web.client(*WRITE, "destinations:url") as client:
        turn = await submitted(client, destinations=["https://example.com:8443/in?sig=SECRET"])
    async with await web.client("turns:read") as client:
        answers = [await client.get("/v1/turns"), await client.get(turn["urls"]["turn"])]
    assert all("SECRET" not in answer.text for answer in answers)
    assert answers[1].json()["destinations"] == ["https://example.com/..."]


@pytest.mark.requirement("web:bad-input:quiet")
async def test_a_refusal_tells_nobody_what_else_there_is(web: Served) -> None:
    async with await web.client(*WRITE) as client:
        for body, field, value in (
            ({"prompt": "hi", "agent": "defaul"}, "agent", "'defaul'"),
            ({"prompt": "hi", "destinations": ["bil"]}, "destinations", "'bil'"),
        ):
            answer = await client.post("/v1/turns", json=body)
            assert error_of(answer) == (422, "invalid", field)
            message = answer.json()["error"]["message"]
            assert message.startswith(f"{field}: {value} is no")
            assert not any(word in message for word in ("known names", "did you mean", "default'", "["))


BAD: list[tuple[dict[str, Any], str]] = [
    ({}, "prompt"),
    ({"prompt": ""}, "prompt"),
    ({"prompt": "  "}, "prompt"),
    ({"prompt": 7}, "prompt"),
    ({"prompt": "é" * 600_000}, "prompt"),
    ({"prompt": "hi", "colour": "red"}, "colour"),
    ({"prompt": "hi", "agent": "nobody"}, "agent"),
    ({"prompt": "hi", "session": "two words"}, "session"),
    ({"prompt": "hi", "session": ""}, "session"),
    ({"prompt": "hi", "labels": {"a b": "x"}}, "labels"),
    ({"prompt": "hi", "labels": {"a": 1}}, "labels.a"),
    ({"prompt": "hi", "labels": {str(n): "" for n in range(33)}}, "labels"),
    ({"prompt": "hi", "destinations": ["nobody"]}, "destinations"),
    ({"prompt": "hi", "destinations": "billing"}, "destinations"),
    ({"prompt": "hi", "requester": ""}, "requester"),
    ({"prompt": "hi", "requester": " bob"}, "requester"),
    ({"prompt": "hi", "on_busy": "panic"}, "on_busy"),
]


@pytest.mark.requirement("web:bad-input")
async def test_what_is_wrong_is_refused_by_field_and_stores_nothing(web: Served) -> None:
    async with await web.client(*WRITE) as client:
        for body, field in BAD:
            answer = await client.post("/v1/turns", json=body)
            assert error_of(answer) == (422, "invalid", field), answer.text[:300]
        for key in ("", "x" * 201):
            answer = await client.post("/v1/turns", json={"prompt": "hi"}, headers={"Idempotency-Key": key})
            assert error_of(answer) == (422, "invalid", "Idempotency-Key")
        assert await web.redis.zcard(keys.live(0)) == 0


@pytest.mark.requirement("web:bad-input")
@pytest.mark.parametrize(
    "body",
    [
        b'\xef\xbb\xbf{"prompt": "hi"}',
        '{"prompt": "hi"}'.encode("utf-16"),
        b"",
        b"{",
        b"prompt=hi",
        b"\xff",
        b'{"prompt": "\\ud800"}',
        b"[" * 100_000,
        b'{"prompt": "hi"} {}',
        b"NaN",
    ],
    ids=["mark", "utf-16", "empty", "cut", "form", "no UTF-8", "half a pair", "deep", "two", "no number"],
)
async def test_what_is_no_json_object_is_refused(web: Served, body: bytes) -> None:
    async with await web.client(*WRITE) as client:
        answer = await client.post("/v1/turns", content=body, headers={"Content-Type": "application/json"})
        assert error_of(answer)[:2] in ((400, "not_json"), (422, "invalid"))
        assert (await client.get("/v1/turns")).json()["turns"] == []


@pytest.mark.requirement("web:bad-input")
async def test_another_type_of_content_is_refused(web: Served) -> None:
    async with await web.client(*WRITE) as client:
        text = json.dumps({"prompt": "hi"})
        for headers in (
            {},
            {"Content-Type": "text/plain"},
            {"Content-Type": "application/json", "Content-Encoding": "br"},
        ):
            assert error_of(await client.post("/v1/turns", content=text, headers=headers))[:2] == (415, "media_type")
        answer = await client.post(
            "/v1/turns", content=text, headers={"Content-Type": "application/json; charset=utf-8"}
        )
        assert answer.status_code == 202


@pytest.mark.requirement("tuning:web:body-bytes")
@pytest.mark.requirement("web:body-cap")
async def test_a_body_beyond_the_cap_is_refused_before_it_has_come(real_url: str) -> None:
    async with serving(web_settings(real_url, body_bytes=2000)) as web, await web.client(*WRITE) as client:
        headers = {"Content-Type": "application/json"}
        assert error_of(await client.post("/v1/turns", json={"prompt": "x" * 3000}))[:2] == (413, "too_large")
        sent = 0

        async def endless() -> Any:
            nonlocal sent
            while True:
                sent += 1000
                yield b" " * 1000
                await asyncio.sleep(0)

        # Told in advance, or piece by piece: it is not read to its end.
        try:
            answer = await client.post("/v1/turns", content=endless(), headers=headers)
        except httpx.TransportError:  # it was closed while we still wrote
            pass
        else:
            assert error_of(answer)[:2] == (413, "too_large")
        assert sent < 50_000_000
        assert (await client.post("/v1/turns", json={"prompt": "x" * 1900})).status_code == 202


@pytest.mark.requirement("web:body-time")
async def test_a_body_that_does_not_come_is_not_waited_for(web: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "_READ_LIMIT_S", 0.3)
    address = urlsplit(web.url)
    head = "POST /v1/turns HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n"
    token = await web.token(*WRITE)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    try:
        writer.write(f'{head}Authorization: Bearer {token}\r\n\r\n{{"prompt": "'.encode())
        async with asyncio.timeout(20):
            told = await reader.readuntil(b"\r\n\r\n")
        assert told.startswith(b"HTTP/1.1 408"), told
        assert b"connection: close" in told.lower()
        async with asyncio.timeout(20):
            rest = await reader.read()
    finally:
        writer.close()
    assert json.loads(rest)["error"]["code"] == "body_timeout"


@pytest.mark.requirement("web:not-found")
async def test_what_is_not_there_is_not_found(web: Served) -> None:
    async with await web.client(*WRITE, "events:read") as client:
        for turn in (
            "turn_00" + "0" * 20,
            "turn_09" + "0" * 20,
            "x",
            "dlv_00" + "0" * 20,
            "turn_00" + "0" * 21,
            "%2e%2e",
        ):
            assert error_of(await client.get(f"/v1/turns/{turn}"))[:2] == (404, "not_found")
            assert error_of(await client.get(f"/v1/turns/{turn}/events"))[:2] == (404, "not_found")
            assert error_of(await client.post(f"/v1/turns/{turn}/cancel"))[:2] == (404, "not_found")
        assert error_of(await client.get("/v2/turns"))[:2] == (404, "not_found")
        assert error_of(await client.get("/v1/turns/"))[:2] == (404, "not_found")
        for method, path in (
            ("PUT", "/v1/turns"),
            ("DELETE", "/v1/turns"),
            ("HEAD", "/livez"),
            ("OPTIONS", "/v1/turns"),
        ):
            answer = await client.request(method, path)
            assert answer.status_code == 405
            assert answer.headers["allow"]


@pytest.mark.requirement("web:headers")
async def test_answers_are_for_nobody_elses_page_and_no_cache(web: Served) -> None:
    async with await web.client(*WRITE) as client:
        for path in ("/v1/turns", "/livez", "/nothing"):
            answer = await client.get(path, headers={"Origin": "https://example.com", "X-Request-ID": "a-client-s-own"})
            assert answer.headers["cache-control"] == "no-store"
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert "access-control-allow-origin" not in answer.headers
            assert "server" not in answer.headers
            assert answer.headers["x-request-id"] == "a-client-s-own"
        odd = await client.get("/livez", headers={"X-Request-ID": "a\tb"})
        assert odd.headers["x-request-id"] != "a\tb"


@pytest.mark.requirement("web:store-full")
async def test_a_full_store_is_told_as_such_and_reading_goes_on(web: Served) -> None:
    async with await web.client(*WRITE) as client:
        turn = await submitted(client)
        await web.redis.config_set("maxmemory", 1)
        try:
            answer = await client.post("/v1/turns", json={"prompt": "one too many"})
            assert error_of(answer)[:2] == (503, "store_full")
            assert int(answer.headers["retry-after"]) > 0
            assert (await client.get(turn["urls"]["turn"])).status_code == 200
        finally:
            await web.redis.config_set("maxmemory", 0)
        assert (await client.post("/v1/turns", json={"prompt": "now"})).status_code == 202


@pytest.mark.requirement("web:submit")
async def test_a_turn_of_http_is_claimed_like_every_other(web: Served) -> None:
    async with await web.client(*WRITE) as client:
        await submitted(client, session="chat/1", requester="bob")
    grant = await taken(web.redis, "chat/1")
    assert (grant.message, grant.source) == ("hello", "http")
    driver = driver_of(web.redis, grant)
    await driver.open_call(1, 1, 0, True)
    await driver.commit(completed(1, 1, ""), NO_USAGE, [])


@pytest.mark.requirement("web:cancel")
async def test_a_turn_that_waits_ends_at_once_and_only_once(web: Served) -> None:
    async with await web.client(*WRITE, name="alice") as client:
        turn = await submitted(client)
        answers = [(await client.post(turn["urls"]["cancel"])).json() for _ in range(2)]
        seen = (await client.get(turn["urls"]["turn"])).json()
    assert answers[0] == {"turn": turn["turn"], "state": "cancelled", "outcome": "cancelled"}
    assert answers[1] == {"turn": turn["turn"], "state": "ended", "outcome": "cancelled"}
    assert (seen["state"], seen["outcome"]) == ("sealed", "cancelled")


@pytest.mark.requirement("web:cancel")
async def test_a_turn_that_ended_stays_as_it_ended(web: Served) -> None:
    async with await web.client(*WRITE) as client:
        turn = await submitted(client, session="chat/1")
        await seal(driver_of(web.redis, await taken(web.redis, "chat/1")))
        answer = (await client.post(turn["urls"]["cancel"])).json()
    assert (answer["state"], answer["outcome"]) == ("ended", "completed")


@pytest.mark.requirement("web:on-busy")
async def test_a_message_for_a_busy_session_waits_is_refused_or_comes_first(web: Served) -> None:
    async with await web.client(*WRITE) as client:
        first = await submitted(client, session="chat/1")
        waits = await submitted(client, session="chat/1")
        refused = await client.post("/v1/turns", json={"prompt": "hi", "session": "chat/1", "on_busy": "reject"})
        assert error_of(refused) == (409, "busy", "session")
        await submitted(client, session="chat/1", on_busy="interrupt")
        states = [(await client.get(turn["urls"]["turn"])).json()["outcome"] for turn in (first, waits)]
    assert states == ["cancelled", None]


@pytest.mark.requirement("survive:newer:listed")
async def test_turns_of_a_newer_release_are_listed_and_said_to_be_newer(web: Served) -> None:
    async with await web.client(*WRITE, "events:read") as client:
        ours, theirs = [await submitted(client, session=session) for session in ("a/1", "b/1")]
        await of_a_newer_release(web.redis, theirs["turn"])
        listed = (await client.get("/v1/turns")).json()
        assert [turn["turn"] for turn in listed["turns"]] == [ours["turn"]]
        assert listed["newer"] == [{"turn": theirs["turn"], "state": "queued"}]
        for path in (theirs["urls"]["turn"], theirs["urls"]["events"]):
            answer = await client.get(path)
            assert error_of(answer)[0] == 503
            assert "written by a newer release" in answer.json()["error"]["message"]
    async with await web.client(*WRITE, sessions="a/") as client:
        assert (await client.get("/v1/turns")).json()["newer"] == []
        assert error_of(await client.get(theirs["urls"]["turn"]))[:2] == (404, "not_found")


@pytest.mark.requirement("web:internal")
async def test_a_fault_of_ours_is_told_in_the_one_form_and_costs_no_connection(
    web: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    logging.getLogger("lastword").addHandler(caplog.handler)
    async with await web.client(*WRITE) as client:
        turn = await submitted(client)
        with monkeypatch.context() as broken:

            async def read_text(*_: Any) -> str:
                raise RuntimeError("words of a record")

            broken.setattr("worker.store.records.read_text", read_text)
            answer = await client.get(turn["urls"]["turn"])
        assert error_of(answer) == (500, "internal", None)
        name = answer.headers["x-request-id"]
        assert name in answer.json()["error"]["message"]
        assert answer.headers["cache-control"] == "no-store"
        after = await client.get(turn["urls"]["turn"])
        assert after.status_code == 200
        first, second = (each.extensions["network_stream"].get_extra_info("client_addr") for each in (answer, after))
        assert first == second, "the connection was kept"
    (line,) = (vars(record)["lastword"] for record in caplog.records if record.getMessage() == "request_failed")
    assert (line["request"], line["route"], line["error"]) == (name, "/v1/turns/{turn}", "RuntimeError")
    assert "words of a record" not in str([vars(record) for record in caplog.records]) + answer.text
