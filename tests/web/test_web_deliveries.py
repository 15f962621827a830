"""Deliveries over HTTP."""

import asyncio
import json
import socket
from typing import Any

import httpx
import pytest

from channels.delivery.model import Delivery, Evidence, Failed
from channels.outbox import lanes, reading
from channels.settings import Settings
from tests.delivery.outboxes import ONE_TRY, box, insert, known, limited, made
from tests.support.posting import one as posted
from tests.support.receiver import silent_url
from tests.support.web import Served, serving, web_settings
from tests.web.test_connections import has_connections

BOTH = ("deliveries:read", "deliveries:write")
URL = "https://hooks.example/hush?token=hush"
ENDED_MS = 4_000_000_000_000
SHOWN = Evidence(500, 31, 2, 3, 12, 9, address="10.1.2.3", content_type="text/plain", body=b"no\xff")
BUSY = Failed("transient", "http_500", "hooks.example answered 500", "yes", evidence=SHOWN)
BLOCKED = Failed("permanent", "blocked", "hooks.example:443: 10.1.2.3 is private", "no", evidence=Evidence(None, 4, 2))
REFUSED = Failed("transient", "connect_refused", "nothing listens at 10.1.2.3:81", "no", evidence=Evidence(None, 4, 2))
NO_NAME = Failed("transient", "dns", "no address was found for inner.example", "no", evidence=Evidence(None, 9))
BY_PROXY = Failed("ours", "proxy_failed", "the proxy inner.example:3128 answered 502", "no", evidence=Evidence(502, 5))


def refused(answer: httpx.Response, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    error: dict[str, Any] = answer.json()["error"]
    return error


def delivery(number: int, destination: str = "crm", **fields: Any) -> Delivery:
    times: dict[str, Any] = {"created_ms": 1000 + number, "due_ms": 1000 + number}
    return made(f"evt_{number:024}", destination, **times | fields)


async def filled(web: Served) -> None:
    """1 is dead, 2 is queued, 3 is held, and 4 was delivered to a URL."""
    end: dict[str, Any] = {"due_ms": 0, "ended_ms": ENDED_MS}
    await insert(
        web.redis,
        [
            delivery(1, state="dead", code="http_500", message="hooks.example answered 500", **end),
            delivery(2),
            delivery(3, "billing", event_type="call.completed", state="held", due_ms=0),
            delivery(4, URL, state="delivered", **end),
        ],
    )
    await known(web.redis, delivery(1))


async def attempted(web: Served, one: Delivery, failure: Failed) -> None:
    outgoing = box(web.redis, {one.lane: ONE_TRY})
    await insert(web.redis, [one])
    [claimed] = [each for each in await outgoing.claim(f"claim-{failure.code}", 100) if each.id == one.id]
    await outgoing.settle([(claimed, failure)])


async def numbers(client: httpx.AsyncClient, **query: Any) -> list[int]:
    answer = await client.get("/v1/deliveries", params=query)
    assert answer.status_code == 200, answer.text
    return [one["created_ms"] - 1000 for one in answer.json()["deliveries"]]


@pytest.mark.requirement("operating:http:deliveries")
async def test_deliveries_are_listed_by_what_is_asked_for(web: Served) -> None:
    await filled(web)
    async with await web.client("deliveries:read") as client:
        assert await numbers(client) == [4, 3, 2, 1]
        assert await numbers(client, state="held") == [3]
        assert await numbers(client, endpoint="crm") == [2, 1]
        assert await numbers(client, endpoint=URL) == [4]
        assert await numbers(client, type="call.completed") == [3]
        assert await numbers(client, turn=delivery(1).turn, since_ms=1002, until_ms=1004) == [3, 2]
        assert await numbers(client, turn="turn_00" + "0" * 20) == []
        first = (await client.get("/v1/deliveries", params={"limit": 3})).json()
        assert await numbers(client, limit=3, after=first["next"]) == [1]
        assert (await client.get("/v1/deliveries", params={"limit": 4})).json()["next"] is None
        [dead] = (await client.get("/v1/deliveries", params={"state": "dead"})).json()["deliveries"]
        assert dead == {
            "id": delivery(1).id,
            "event_id": delivery(1).event_id,
            "event_type": "turn.completed",
            "turn": delivery(1).turn,
            "destination": "crm",
            "state": "dead",
            "attempts": 0,
            "code": "http_500",
            "message": "hooks.example answered 500",
            "created_ms": 1001,
            "due_ms": None,
            "ended_ms": ENDED_MS,
            "replayed_ms": None,
        }


@pytest.mark.requirement("operating:http:deliveries")
@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"state": "lost"}, "state"),
        ({"since_ms": "yesterday"}, "since_ms"),
        ({"until_ms": "-1"}, "until_ms"),
        ({"limit": "0"}, "limit"),
        ({"after": "somewhere"}, "after"),
        ({"source": "cli"}, "source"),
        ({"endpoint": ""}, "endpoint"),
        ({"type": ""}, "type"),
        ({"turn": ""}, "turn"),
    ],
)
async def test_a_filter_that_says_nothing_is_named(web: Served, query: dict[str, str], field: str) -> None:
    async with await web.client("deliveries:read") as client:
        assert refused(await client.get("/v1/deliveries", params=query), 422)["field"] == field
        if not {*query} & {"limit", "after"}:
            assert refused(await client.get("/v1/deliveries/export", params=query), 422)["field"] == field


@pytest.mark.requirement("operating:http:evidence")
async def test_a_delivery_is_shown_with_its_attempts_and_what_they_showed(web: Served) -> None:
    one = delivery(5)
    await attempted(web, one, BUSY)
    async with await web.client("deliveries:read") as client:
        told = (await client.get(f"/v1/deliveries/{one.id}")).json()
    assert (told["state"], told["attempts"], told["code"]) == ("dead", 1, "attempts_spent")
    [attempt] = told["log"]
    assert (attempt["number"], attempt["code"], attempt["sent"]) == (1, "http_500", "yes")
    assert attempt["evidence"] == {
        "status": 500,
        "lookup_ms": 2,
        "connect_ms": 3,
        "tls_ms": 12,
        "head_ms": 9,
        "total_ms": 31,
        "reused": False,
        "content_type": "text/plain",
        "body": None,
        "body_base64": "bm//",
        "truncated": False,
    }


@pytest.mark.requirement("operating:case:superlog-154:one-word")
async def test_blocked_refused_silent_and_unknown_addresses_look_alike_over_http(web: Served) -> None:
    seen = set()
    with silent_url() as url:
        silent = await posted(url, timeout_s=0.3)
    assert isinstance(silent, Failed)
    async with await web.client("deliveries:read", "destinations:url") as client:
        for number, failure in enumerate((BLOCKED, REFUSED, NO_NAME, silent)):
            one = delivery(number, f"lane{number}")
            await attempted(web, one, failure)
            told = (await client.get(f"/v1/deliveries/{one.id}")).json()
            [attempt] = told["log"]
            seen.add(json.dumps([told["code"], told["message"], attempt["code"], attempt["message"]]))
            assert (attempt["took_ms"], attempt["evidence"]) == (None, None)
            in_list = (await client.get("/v1/deliveries", params={"endpoint": one.destination})).json()
            assert in_list["deliveries"][0]["message"] == told["message"]
        exported = (await client.get("/v1/deliveries/export")).text
    assert seen == {json.dumps(["unreachable", "the endpoint cannot be reached"] * 2)}
    assert not [each for each in ("10.1.2.3", "127.0.0.1", "inner.example", "blocked", "refused") if each in exported]


@pytest.mark.requirement("operating:case:superlog-154:one-word")
async def test_nothing_of_a_proxy_is_told_over_http(web: Served) -> None:
    one = delivery(6)
    await attempted(web, one, BY_PROXY)
    async with await web.client("deliveries:read") as client:
        told = await client.get(f"/v1/deliveries/{one.id}")
    assert told.json()["log"][0]["code"] == "internal_error"
    assert not [each for each in ("inner.example", "3128", "502") if each in told.text]


@pytest.mark.requirement("operating:http:deliveries")
async def test_a_url_is_whole_only_for_a_token_that_may_see_it(web: Served) -> None:
    await filled(web)
    async with await web.client("deliveries:read") as client:
        for path in ("/v1/deliveries", "/v1/deliveries/export"):
            told = (await client.get(path)).text
            assert "hush" not in told
            assert '"https://hooks.example/..."' in told
    async with await web.client("deliveries:read", "destinations:url") as client:
        assert URL in (await client.get("/v1/deliveries")).text


@pytest.mark.requirement("operating:http:replay-one")
async def test_a_dead_delivery_is_replayed_and_a_delivery_process_woken(web: Served) -> None:
    await filled(web)
    async with await web.client(*BOTH) as client:
        answer = await client.post(f"/v1/deliveries/{delivery(1).id}/replay")
        assert (answer.status_code, answer.json()["state"]) == (200, "queued")
        assert answer.json()["replayed_ms"] > 0
        again = await client.post(f"/v1/deliveries/{delivery(1).id}/replay")
        assert "is queued: only a dead or held one" in refused(again, 409)["message"]
    assert await web.redis.blpop("delivery", 10) is not None


@pytest.mark.requirement("operating:http:replay-one")
async def test_a_replay_is_answered_though_the_broker_hangs(real_url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        broker = f"redis://127.0.0.1:{silent.getsockname()[1]}/0"
        await replayed(web_settings(real_url).model_copy(update={"broker_url": broker}))


async def replayed(settings: Settings) -> None:
    async with serving(settings) as web, await web.client(*BOTH) as client:
        await filled(web)
        assert (await client.post(f"/v1/deliveries/{delivery(1).id}/replay")).status_code == 200


@pytest.mark.requirement("operating:held")
async def test_what_a_disabled_endpoint_holds_is_replayed_only_once_it_is_enabled(web: Served) -> None:
    await filled(web)
    await lanes.disable(web.redis, "billing", "http_410")
    held = delivery(3, "billing").id
    async with await web.client(*BOTH) as client:
        answer = refused(await client.post(f"/v1/deliveries/{held}/replay"), 409)
        assert "billing is disabled" in answer["message"]
        await lanes.resume(web.redis, "billing")
        assert (await client.post(f"/v1/deliveries/{held}/replay")).json()["state"] == "queued"


@pytest.mark.requirement("operating:http:cancel")
async def test_a_delivery_is_cancelled_in_the_name_of_the_token(web: Served) -> None:
    await filled(web)
    async with await web.client(*BOTH, name="anna's token") as client:
        told = (await client.post(f"/v1/deliveries/{delivery(2).id}/cancel")).json()
        assert (told["state"], told["message"]) == ("cancelled", "cancelled by anna's token")
        for one in (delivery(1), delivery(2)):
            assert refused(await client.post(f"/v1/deliveries/{one.id}/cancel"), 409)["code"] == "refused"


@pytest.mark.requirement("operating:http:deliveries")
@pytest.mark.parametrize("wrong", ["dlv_00" + "f" * 20, "42"])
async def test_a_delivery_that_nobody_knows_is_not_found(web: Served, wrong: str) -> None:
    async with await web.client(*BOTH) as client:
        for answer in (
            await client.get(f"/v1/deliveries/{wrong}"),
            await client.post(f"/v1/deliveries/{wrong}/replay"),
            await client.post(f"/v1/deliveries/{wrong}/cancel"),
        ):
            assert refused(answer, 404)["field"] == "delivery"


@pytest.mark.requirement("operating:http:scopes")
async def test_who_may_only_read_changes_nothing_and_who_speaks_for_some_turns_sees_nothing(web: Served) -> None:
    await filled(web)
    reads = ["/v1/deliveries", f"/v1/deliveries/{delivery(1).id}", "/v1/deliveries/export", "/v1/replays"]
    writes = [f"/v1/deliveries/{delivery(1).id}/{verb}" for verb in ("replay", "cancel")]
    async with await web.client("deliveries:read") as reader:
        for path in (*writes, "/v1/replays"):
            assert refused(await reader.post(path, json={}), 403)["reason"] == "deliveries:write"
        for path in reads:
            assert (await reader.get(path)).status_code == 200
    for bounds in ({"agent": "helper"}, {"sessions": "chat/"}):
        async with await web.client(*BOTH, **bounds) as narrow:
            answers = [await narrow.get(path) for path in reads]
            answers += [await narrow.post(path) for path in writes]
            answers += [await narrow.post("/v1/replays", json={})]
            assert {refused(answer, 403)["message"] for answer in answers} == {
                "this token speaks for some turns only, and deliveries are of all: use another"
            }
    assert (await reading.show(web.redis, delivery(1).id)).state == "dead"


@pytest.mark.requirement("operating:http:export")
async def test_an_export_is_a_line_of_json_for_each(web: Served) -> None:
    await filled(web)
    await attempted(web, delivery(5), BUSY)
    async with await web.client("deliveries:read") as client:
        answer = await client.get("/v1/deliveries/export", params={"endpoint": "crm"})
        assert answer.headers["content-type"] == "application/x-ndjson"
        rows = [json.loads(line) for line in answer.text.splitlines()]
        assert [row["created_ms"] for row in rows] == [1005, 1002, 1001]
        assert rows[0] == (await client.get(f"/v1/deliveries/{delivery(5).id}")).json()
        assert (await client.get("/v1/deliveries/export", params={"state": "waiting"})).text == ""


@pytest.mark.requirement("operating:http:export")
async def test_an_export_is_read_no_faster_than_it_is_taken_and_ends_with_its_reader(web: Served) -> None:
    await insert(web.redis, [made(f"evt_{number}", created_ms=1000) for number in range(1)])
    big = Evidence(200, 1, body=b"x" * 16_000)
    outgoing = box(web.redis, {"crm": limited(concurrency=1_000)})
    for begin in range(0, 2_000, 500):
        await insert(web.redis, [made(f"evt_b{number}") for number in range(begin, begin + 500)])
    for step in range(20):
        batch = await outgoing.claim(f"claim-{step}", 100)
        await outgoing.settle([(one, Failed("transient", "http_500", "no", "yes", evidence=big)) for one in batch])
    calls_before = (await web.redis.info("commandstats"))["cmdstat_mget"]["calls"]
    async with (
        await web.client("deliveries:read") as client,
        client.stream("GET", "/v1/deliveries/export") as answer,
    ):
        assert answer.status_code == 200
        async for line in answer.aiter_lines():
            assert json.loads(line)["id"]
            break
        await asyncio.sleep(0.3)
    read = (await web.redis.info("commandstats"))["cmdstat_mget"]["calls"] - calls_before
    assert 1 <= read < 10  # of the eleven pages; the rest waits for who reads
    await has_connections(web, 0)
    async with await web.client("deliveries:read") as client:
        assert (await client.get("/v1/deliveries", params={"limit": 1})).status_code == 200
