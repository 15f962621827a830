"""What a web process counts of requests and live readers."""

import asyncio
from urllib.parse import urlsplit

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from channels.web.operations import OPERATIONS
from tests.support.stack import eventually
from tests.support.web import Fold, Served, read_along, serving, web_settings
from tests.support.written_turn import WrittenTurn
from worker import metrics

Key = tuple[str, str, str]


def requests() -> dict[Key, float]:
    """Requests so far, by route, method and status."""
    families = text_string_to_metric_families(metrics.text().decode())
    return {
        (sample.labels["route"], sample.labels["method"], sample.labels["status"]): sample.value
        for family in families
        if family.name == "lastword_web_requests"
        for sample in family.samples
    }


def since(before: dict[Key, float]) -> dict[Key, float]:
    return {key: value - before.get(key, 0) for key, value in requests().items() if value != before.get(key, 0)}


def figure(name: str, **labels: str) -> float:
    return metrics.REGISTRY.get_sample_value(f"lastword_{name}", labels) or 0.0


@pytest.mark.requirement("metrics:web:counted")
async def test_requests_are_counted_by_route_method_and_class_and_timed(web: Served) -> None:
    before = requests()
    timed = figure("web_answer_seconds_count", route="/v1/turns/{turn}")
    async with await web.client("turns:read", "turns:write") as client:
        turn = (await client.post("/v1/turns", json={"prompt": "hi"})).json()
        await client.post("/v1/turns", json={"prompt": 1})
        for _ in range(2):
            await client.get(turn["urls"]["turn"])
        await client.get("/v1/turns/turn_00")
        await client.delete(turn["urls"]["turn"])
        await client.get("/livez")
    expected = {
        ("/v1/turns", "POST", "2xx"): 1,
        ("/v1/turns", "POST", "4xx"): 1,
        ("/v1/turns/{turn}", "GET", "2xx"): 2,
        ("/v1/turns/{turn}", "GET", "4xx"): 1,
        ("none", "DELETE", "4xx"): 1,
        ("/livez", "GET", "2xx"): 1,
    }
    assert since(before) == expected
    assert figure("web_answer_seconds_count", route="/v1/turns/{turn}") == timed + 3
    assert figure("web_answer_seconds_sum", route="/v1/turns/{turn}") > 0


@pytest.mark.requirement("metrics:web:counted")
async def test_a_fault_of_ours_is_counted(web: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: object) -> None:
        raise RuntimeError

    before = requests()
    async with await web.client("turns:read") as client:
        monkeypatch.setattr("channels.web.way.tokens.find", broken)
        assert (await client.get("/v1/turns")).status_code == 500
    assert since(before) == {("/v1/turns", "GET", "5xx"): 1}


@pytest.mark.requirement("metrics:web:counted")
async def test_live_readers_are_counted_while_they_are_connected(web: Served) -> None:
    written = await WrittenTurn.begun(web.redis)
    before, route = requests(), "/v1/turns/{turn}/events"
    timed = figure("web_answer_seconds_count", route=route)

    async def readers() -> float:
        return figure("web_readers")

    at_first = await readers()
    async with await web.client("events:read") as client:
        reading = [read_along(client, written.turn, Fold()) for _ in range(3)]
        for one in reading:
            await anext(one)
        assert await readers() == at_first + 3
        # When its answer begins, not when it ends.
        assert since(before) == {(route, "GET", "2xx"): 3}
        assert figure("web_answer_seconds_count", route=route) == timed + 3
        for one in reading:
            await one.aclose()
        await eventually(readers, lambda count: count == at_first, "readers that left to be counted no more")
    assert since(before) == {(route, "GET", "2xx"): 3}


@pytest.mark.requirement("metrics:web:bounded")
async def test_whatever_is_asked_for_labels_are_words_of_ours(real_url: str) -> None:
    async with serving(web_settings(real_url)) as web, await web.client("turns:read") as client:
        before = requests()
        for path in (
            "/v1/turns/CURLEW",
            "/CURLEW",
            "/v1/turns/CURLEW/events",
            "/v1/turns?state=CURLEW",
            "/v1//turns",
        ):
            await client.get(path)
            await client.request("CURLEW", path)
        unreadable = ("none", "other", "4xx")
        count = requests()[unreadable]
        await raw(web, b"CURLEW\r\n\r\n")
        assert requests()[unreadable] == count + 1
        await raw(web, b"GET /CURLEW HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer CURLEW\r\nConnection: close\r\n\r\n")
        seen = since(before)
    assert len(seen) >= 4
    assert "CURLEW" not in metrics.text().decode()
    assert {route for route, _, _ in requests()} <= {"none", *(operation.path for operation in OPERATIONS)}
    assert {method for _, method, _ in requests()} <= {
        "GET",
        "POST",
        "HEAD",
        "PUT",
        "PATCH",
        "DELETE",
        "OPTIONS",
        "other",
    }
    assert {status for _, _, status in requests()} <= {"2xx", "4xx", "5xx"}


async def raw(web: Served, data: bytes) -> None:
    """Send this, and wait for the end of the answer."""
    told = urlsplit(web.url)
    reader, writer = await asyncio.open_connection(told.hostname, told.port)
    writer.write(data)
    assert b" 4" in await asyncio.wait_for(reader.read(), 30)
    writer.close()
    await writer.wait_closed()


@pytest.mark.requirement("metrics:web:counted")
async def test_one_scrape_holds_the_figures_of_the_web_process(real_url: str) -> None:
    settings = web_settings(real_url)
    settings = settings.model_copy(update={"metrics": settings.metrics.model_copy(update={"report_s": 0.2})})
    async with serving(settings) as web, httpx.AsyncClient(base_url=web.url) as client:
        await client.get("/livez")

        async def scraped() -> str:
            return (await client.get("/metrics")).text

        wanted = ('lastword_web_requests_total{method="GET",process="web@', 'route="/livez",status="2xx"}')
        await eventually(
            scraped,
            lambda text: any(line.startswith(wanted[0]) and wanted[1] in line for line in text.splitlines()),
            "the requests of the web process in a scrape",
        )
