"""What a supervisor is told, and what a process says when Redis is away."""

import asyncio
import socket
import threading
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from channels import exposition, survey
from channels.web import health
from channels.web import process as process_module
from channels.web.live import LiveOutputs
from tests.support.forwarder import Forwarder
from tests.support.stack import eventually
from tests.support.web import Fold, Served, read_along, serving, web_settings
from tests.support.written_turn import WrittenTurn
from tests.web.test_web_turns import error_of
from worker.store import connect


@pytest.mark.requirement("web:health")
async def test_a_process_that_can_work_is_alive_and_ready_and_counts(web: Served) -> None:
    async with await web.client("turns:read") as client:
        del client.headers["Authorization"]
        assert (await client.get("/livez")).json() == {"status": "alive"}
        assert (await client.get("/readyz")).json() == {"status": "ready", "reasons": []}
        metrics = await client.get("/metrics")
        assert metrics.headers["content-type"].startswith("text/plain")
        assert "lastword_" in metrics.text


@pytest.mark.requirement("web:metrics:who")
async def test_metrics_are_read_on_the_same_machine_or_with_a_token(real_url: str) -> None:
    settings = web_settings(real_url, trusted_proxies=("127.0.0.1",))
    async with serving(settings) as web, httpx.AsyncClient(base_url=web.url) as client:
        assert (await client.get("/metrics")).status_code == 200
        for header in ("X-Forwarded-For", "Forwarded", "Via"):
            answer = await client.get("/metrics", headers={header: "192.0.2.7"})
            assert error_of(answer)[:2] == (401, "unauthorized")
        for scope, status in (("turns:read", 403), ("metrics:read", 200)):
            headers = {"X-Forwarded-For": "192.0.2.7", "Authorization": f"Bearer {await web.token(scope)}"}
            assert (await client.get("/metrics", headers=headers)).status_code == status


@pytest.mark.requirement("web:metrics:cheap")
async def test_many_scrapes_at_once_or_in_a_row_cost_one(web: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    rendered, now = 0, 100.0
    render = exposition.render

    async def counted(*arguments: Any) -> bytes:
        nonlocal rendered
        rendered += 1
        return await render(*arguments)

    monkeypatch.setattr(exposition, "render", counted)
    monkeypatch.setattr(health, "monotonic", lambda: now)
    async with httpx.AsyncClient(base_url=web.url, timeout=30) as client:
        answers = await asyncio.gather(*(client.get("/metrics") for _ in range(8)))
        now += 1
        answers.append(await client.get("/metrics"))
        assert rendered == 1
        now += 1
        answers.append(await client.get("/metrics"))
    assert {answer.status_code for answer in answers} == {200}
    assert rendered == 2


@pytest.mark.requirement("web:metrics:cheap")
async def test_who_needs_no_token_is_counted_by_his_address(real_url: str) -> None:
    async with (
        serving(web_settings(real_url, requests_per_minute=3)) as web,
        httpx.AsyncClient(base_url=web.url) as client,
    ):
        codes = [(await client.get(path)).status_code for path in ("/metrics", "/v1/openapi.json") * 3]
        assert codes == [200] * 3 + [429] * 3
        assert (await client.get("/livez")).status_code == 200


@pytest.mark.requirement("web:metrics:silent-broker")
async def test_a_broker_that_is_silent_is_not_waited_for(real_redis: Any, real_url: str) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(100)
        port = silent.getsockname()[1]
        settings = web_settings(real_url).model_copy(update={"broker_url": f"redis://127.0.0.1:{port}/0"})
        loop = asyncio.get_running_loop()
        began = loop.time()
        seen = await asyncio.gather(*(survey.look(real_redis, settings) for _ in range(20)))
        assert loop.time() - began < 8
        assert [one.broker for one in seen] == [None] * 20
        looking = [one for one in threading.enumerate() if one.name == "lastword-broker-look"]
        assert len(looking) <= 1
        assert all(one.daemon for one in looking)


@pytest.mark.requirement("web:health:any-query")
async def test_a_probe_may_ask_with_any_query(web: Served) -> None:
    async with httpx.AsyncClient(base_url=web.url) as client:
        for path in ("/livez", "/readyz", "/metrics", "/v1/openapi.json"):
            assert (await client.get(f"{path}?verbose&name[]=x&verbose")).status_code == 200


@pytest.mark.requirement("web:health")
@pytest.mark.requirement("web:redis-away")
async def test_without_redis_it_lives_and_is_not_ready_and_says_so(
    real_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.store.inbox.PATIENCE_S", 0.3)
    monkeypatch.setattr(connect, "CONNECT_TIMEOUT_S", 1.0)
    port = urlsplit(real_url).port
    assert port is not None
    async with Forwarder(port) as network:
        settings = web_settings(real_url.replace(str(port), str(network.port)))
        async with serving(settings) as web, await web.client("turns:read", "turns:write", "events:read") as client:
            direct = connect.open_redis(real_url)
            written = await WrittenTurn.begun(direct)
            fold = Fold()
            events = read_along(client, written.turn, fold)
            await anext(events)
            async with network.away():
                assert (await client.get("/livez")).status_code == 200
                ready = await client.get("/readyz")
                assert (ready.status_code, ready.json()["reasons"]) == (503, ["redis_does_not_answer"])
                for answer in (
                    await client.get("/v1/turns"),
                    await client.post("/v1/turns", json={"prompt": "hi"}),
                    await client.get(f"/v1/turns/{written.turn}/events"),
                ):
                    assert error_of(answer)[:2] == (503, "unavailable")
                    assert int(answer.headers["retry-after"]) > 0
                await written.say(2)

            async def status() -> int:
                return (await client.get("/readyz")).status_code

            await eventually(status, lambda code: code == 200, "readiness after the outage")
            # A reader has waited through it, and misses nothing.
            await written.complete()
            await written.end()
            async for _ in events:
                pass
            assert "reset" not in fold.names
            assert fold.buffer.committed == written.committed
            await direct.aclose()


@pytest.mark.requirement("web:health")
async def test_a_redis_that_cannot_keep_what_it_is_told_is_a_reason(
    web: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with await web.client("turns:read") as client:
        for told, reason in (
            ({"loading": 1, "aof_enabled": 1, "aof_last_write_status": "ok"}, "redis_is_loading"),
            ({"aof_enabled": 1, "aof_last_write_status": "err"}, "redis_cannot_write_its_file"),
            ({"aof_enabled": 0, "rdb_last_bgsave_status": "err"}, "redis_cannot_write_its_file"),
        ):

            async def info(*_: object, told: dict[str, object] = told) -> dict[str, object]:
                return told

            monkeypatch.setattr("redis.asyncio.Redis.info", info)
            ready = await client.get("/readyz")
            assert (ready.status_code, ready.json()["reasons"]) == (503, [reason])


@pytest.mark.requirement("web:drain")
async def test_a_process_ends_though_what_reads_along_does_not_hear_that_it_is_cancelled(
    real_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_end = asyncio.Event()

    async def hears_nothing() -> None:
        while not may_end.is_set():
            with suppress(asyncio.CancelledError):
                await may_end.wait()

    monkeypatch.setattr(process_module, "_STOP_LIMIT_S", 0.1)
    monkeypatch.setattr(LiveOutputs, "run", lambda _: hears_nothing())
    process = process_module.WebProcess(web_settings(real_url))
    await process.start()
    await asyncio.sleep(0)  # it has begun
    stopping = asyncio.ensure_future(process.stop())
    ended, _ = await asyncio.wait([stopping], timeout=20)
    may_end.set()
    assert ended, "not stopped within 20 s"
    await stopping
