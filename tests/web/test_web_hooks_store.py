"""Inbound routes while the store is away, full, or loses its answers."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis.asyncio

from tests.support.hooks import by_hmac, hook, hook_settings
from tests.support.valkey import Valkey
from tests.support.web import serving
from worker.metrics import REGISTRY
from worker.store import inbox, keys
from worker.store.script import Script

BODY = b'{"id": 7}'
HEADERS = by_hmac(BODY, **{"X-Webhook-Delivery": "d-1"})
HOOKS = {"crm": hook(rate_per_minute=2)}


def received(result: str) -> float:
    return REGISTRY.get_sample_value("lastword_hooks_received_total", {"route": "crm", "result": result}) or 0


@pytest.mark.requirement("hooks:outage")
async def test_an_event_during_an_outage_is_told_to_come_again_and_then_is_one_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "PATIENCE_S", 0.2)
    with Valkey(tmp_path) as valkey:
        async with serving(hook_settings(valkey.url, HOOKS)) as web, httpx.AsyncClient(base_url=web.url) as sender:
            valkey.kill()
            away = await sender.post("/hooks/crm", content=BODY, headers=HEADERS, timeout=60)
            assert (away.status_code, away.json()["error"]["code"]) == (503, "unavailable")
            assert int(away.headers["retry-after"]) > 0
            stranger = await sender.post("/hooks/crm", content=BODY, timeout=60)
            assert stranger.status_code == 503
            valkey.start()
            taken, again = [
                (await sender.post("/hooks/crm", content=BODY, headers=HEADERS, timeout=60)).json() for _ in range(2)
            ]
            assert (taken["status"], again["reason"]) == ("accepted", "duplicate_delivery")
            assert taken["turn"] == again["turn"]
            assert await web.redis.zcard(keys.live(0)) == 1
    assert received("store_unavailable") >= 1


@pytest.mark.requirement("hooks:outage")
async def test_a_full_store_takes_no_event_and_spends_no_rate(real_redis: redis.asyncio.Redis, real_url: str) -> None:
    async with serving(hook_settings(real_url, HOOKS)) as web, httpx.AsyncClient(base_url=web.url) as sender:
        await real_redis.config_set("maxmemory", 1)
        try:
            full = [await sender.post("/hooks/crm", content=BODY, headers=HEADERS, timeout=60) for _ in range(3)]
        finally:
            await real_redis.config_set("maxmemory", 0)
        assert {(one.status_code, one.json()["error"]["code"]) for one in full} == {(503, "store_full")}
        assert all(int(one.headers["retry-after"]) > 0 for one in full)
        taken = await sender.post("/hooks/crm", content=BODY, headers=HEADERS, timeout=60)
        assert taken.json()["status"] == "accepted"
        assert await real_redis.zcard(keys.quota("hook/crm", 1)) == 1
    assert received("store_full") >= 3


@pytest.mark.requirement("hooks:dedupe:atomic")
@pytest.mark.parametrize("lost", ["before", "after"])
async def test_an_answer_of_the_store_that_is_lost_makes_no_second_turn(
    real_url: str, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    run, count = Script.__call__, 0

    async def lossy(self: Script, *args: Any, **options: Any) -> Any:
        nonlocal count
        count += self.name == "submit"
        if self.name == "submit" and count == 1 and lost == "before":
            raise redis.ConnectionError
        reply = await run(self, *args, **options)
        if self.name == "submit" and count == 1:
            raise redis.ConnectionError
        return reply

    async with serving(hook_settings(real_url, HOOKS)) as web, httpx.AsyncClient(base_url=web.url) as sender:
        monkeypatch.setattr(Script, "__call__", lossy)
        answers = await asyncio.gather(
            *(sender.post("/hooks/crm", content=BODY, headers=HEADERS, timeout=60) for _ in range(3))
        )
        assert len({answer.json()["turn"] for answer in answers}) == 1
        assert sorted(answer.json()["status"] for answer in answers) == ["accepted", "ignored", "ignored"]
        assert await web.redis.zcard(keys.live(0)) == 1
        assert await web.redis.zcard(keys.quota("hook/crm", 1)) == 1


@pytest.mark.requirement("hooks:outage")
async def test_a_broker_that_is_away_costs_no_event(real_url: str) -> None:
    settings = hook_settings(real_url, HOOKS, broker_url="redis://127.0.0.1:9/0")
    async with serving(settings) as web, httpx.AsyncClient(base_url=web.url) as sender:
        answer = await sender.post("/hooks/crm", content=BODY, headers=HEADERS, timeout=60)
        assert (answer.status_code, answer.json()["status"]) == (202, "accepted")
