"""Bulk replays over HTTP."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from channels.outbox import lanes, oldest, reading, replaying
from channels.replays.taking import Replays
from tests.delivery.outboxes import insert, known, made
from tests.support.web import Served, serving
from tests.web.test_web_endpoints import settings_of
from worker.store import clock

BOTH = ("deliveries:read", "deliveries:write")
DAY_MS = 86_400_000


def refused(answer: httpx.Response, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    error: dict[str, Any] = answer.json()["error"]
    return error


async def died(web: Served, count: int = 5) -> None:
    at_ms = await clock.now_ms(web.redis) - 60_000
    end: dict[str, Any] = {"due_ms": 0, "state": "dead", "ended_ms": at_ms + 10}
    there = [made(f"evt_{number}", "crm", created_ms=at_ms + number, **end) for number in range(count)]
    await known(web.redis, there[0])
    await insert(web.redis, there)


async def taken_on(web: Served) -> None:
    """A delivery process takes each replay on by one page."""

    async def replay_some(ids: Sequence[str]) -> int:
        return len(await replaying.replay_some(web.redis, ids))

    async def nobody() -> None:
        """Nobody is woken."""

    await Replays(web.redis, partial(oldest.page_of, web.redis), replay_some, nobody).step()


async def started(client: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    answer = await client.post("/v1/replays", json=fields)
    assert answer.status_code == 202, answer.text
    told: dict[str, Any] = answer.json()
    assert answer.headers["location"] == f"/v1/replays/{told['id']}"
    return told


@pytest.mark.requirement("operating:http:replays")
async def test_a_range_is_replayed_and_its_progress_seen(web: Served) -> None:
    await died(web)
    async with await web.client(*BOTH, name="ops") as client:
        told = await started(client, endpoint="crm", types=["turn.completed"], rate_per_s=3)
        assert (told["state"], told["by"], told["states"], told["most"]) == ("running", "ops", ["dead"], 100_000)
        assert told["created_ms"] - told["since_ms"] == 14 * DAY_MS
        await taken_on(web)
        seen = (await client.get(f"/v1/replays/{told['id']}")).json()
        assert (seen["state"], seen["found"], seen["replayed"], seen["skipped"]) == ("running", 3, 3, 0)
        assert (await client.get("/v1/replays")).json() == {"replays": [seen]}


@pytest.mark.requirement("operating:http:replays")
async def test_a_replay_waits_goes_on_and_ends_as_it_is_told(web: Served) -> None:
    await died(web)
    async with await web.client(*BOTH, name="ops") as client:
        path = f"/v1/replays/{(await started(client))['id']}"
        for verb, state, why in (
            ("pause", "paused", "paused by ops"),
            ("pause", "paused", "paused by ops"),
            ("resume", "running", ""),
            ("cancel", "cancelled", "cancelled by ops"),
            ("cancel", "cancelled", "cancelled by ops"),
        ):
            told = (await client.post(f"{path}/{verb}")).json()
            assert (told["state"], told["why"]) == (state, why)
        for verb in ("pause", "resume"):
            assert refused(await client.post(f"{path}/{verb}"), 409)["reason"] == "cancelled"
    await taken_on(web)
    assert (await reading.counts(web.redis))[""] == {}


@pytest.mark.requirement("operating:http:replays")
@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"states": ["queued"]}, "states.0"),
        ({"states": []}, "states"),
        ({"rate_per_s": 0}, "rate_per_s"),
        ({"since_ms": 5}, "since_ms"),
        ({"until_ms": 5}, "since_ms"),
        ({"types": ["x"] * 51}, "types"),
        ({"destination": "crm"}, "destination"),
    ],
)
async def test_a_range_that_is_none_is_refused_with_its_field(web: Served, fields: dict[str, Any], field: str) -> None:
    async with await web.client(*BOTH) as client:
        assert refused(await client.post("/v1/replays", json=fields), 422)["field"] == field
        assert (await client.get("/v1/replays")).json() == {"replays": []}


@pytest.mark.requirement("operating:held")
async def test_what_a_paused_endpoint_holds_is_not_replayed_into_its_pause(web: Served) -> None:
    await lanes.pause(web.redis, "crm", "maintenance")
    async with await web.client(*BOTH) as client:
        answer = await client.post("/v1/replays", json={"states": ["held"], "endpoint": "crm"})
        assert refused(answer, 409)["field"] == "endpoint"
        await lanes.resume(web.redis, "crm")
        assert (await started(client, states=["held"], endpoint="crm"))["states"] == ["held"]


@pytest.mark.requirement("operating:http:replays")
async def test_a_url_is_whole_only_for_a_token_that_may_see_it(web: Served) -> None:
    url = "https://hooks.example/hush?token=hush"
    async with await web.client(*BOTH) as client:
        assert (await started(client, endpoint=url))["endpoint"] == "https://hooks.example/..."
        assert "hush" not in (await client.get("/v1/replays")).text
    async with await web.client(*BOTH, "destinations:url") as client:
        assert (await client.get("/v1/replays")).json()["replays"][0]["endpoint"] == url


@pytest.mark.requirement("operating:http:replays")
async def test_a_replay_that_nobody_knows_is_not_found(web: Served) -> None:
    async with await web.client(*BOTH) as client:
        answers = [await client.get("/v1/replays/none")]
        answers += [await client.post(f"/v1/replays/none/{verb}") for verb in ("pause", "resume", "cancel")]
        assert {refused(answer, 404)["field"] for answer in answers} == {"replay"}


@pytest.mark.requirement("operating:release")
async def test_an_endpoint_that_is_resumed_over_http_gets_what_its_pause_held(real_url: str, tmp_path: Path) -> None:
    async with (
        serving(settings_of(real_url, tmp_path)) as web,
        await web.client(*BOTH, "endpoints:write", name="anna") as client,
    ):
        await insert(web.redis, [made("evt_1", "ops", state="held", due_ms=0)])
        await client.post("/v1/endpoints/ops/pause")
        await client.post("/v1/endpoints/ops/resume")
        [job] = (await client.get("/v1/replays")).json()["replays"]
        assert (job["endpoint"], job["states"], job["by"], job["state"]) == ("ops", ["held"], "anna", "running")
        await lanes.disable(web.redis, "ops", "http_410")
        await client.post("/v1/endpoints/ops/resume")
        assert len((await client.get("/v1/replays")).json()["replays"]) == 1
