import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio
from aiohttp import web

from channels import doctor
from channels.console import exits
from channels.doctor import Check
from channels.settings import Settings
from worker.store.server import ServerFacts

Lastword = Callable[..., Any]
Serve = Callable[[str, int, str], Any]


def faults(checks: list[Check]) -> dict[str, Check]:
    return {check.name: check for check in checks if not check.good}


@pytest.fixture
async def base_url() -> AsyncIterator[Callable[[int, str], Any]]:
    """Gives the base URL of a server that answers /v1/models with this status and body."""
    runners: list[web.AppRunner] = []

    async def serve(status: int, body: str) -> str:
        async def models(request: web.Request) -> web.Response:
            if request.headers.get("authorization") != "Bearer k-1":
                return web.Response(status=401)
            return web.Response(status=status, text=body)

        async def chat(_: web.Request) -> web.Response:
            return web.Response(status=400, text="no messages")

        app = web.Application()
        app.router.add_get("/v1/models", models)
        app.router.add_post("/v1/chat/completions", chat)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        runners.append(runner)
        return f"http://127.0.0.1:{runner.addresses[0][1]}/v1"

    yield serve
    for runner in runners:
        await runner.cleanup()


def asking(url: str, key: str = "k-1", model: str = "small") -> Settings:
    return Settings.model_validate({"providers": {"main": {"base_url": url, "api_key": key, "model": model}}})


KNOWN = json.dumps({"object": "list", "data": [{"id": "small"}, {"id": "large"}]})


async def test_a_provider_that_knows_its_model_is_good(base_url: Callable[[int, str], Any]) -> None:
    [check] = await doctor.check_providers(asking(await base_url(200, KNOWN)))
    assert check.good
    assert "small" in check.finding


@pytest.mark.requirement("console:doctor:each-with-its-fix")
@pytest.mark.parametrize(
    ("status", "body", "settings", "finding", "fix"),
    [
        (200, KNOWN, {"model": "smal"}, "does not know the model smal", "did you mean 'small'?"),
        (200, KNOWN, {"key": "wrong"}, "refused the key (HTTP 401)", "providers.main.api_key"),
        (200, "<html>", {}, "no list of models", "providers.main.base_url; it usually ends in /v1"),
        (500, "", {}, "HTTP 500", "providers.main.base_url"),
    ],
)
async def test_a_provider_that_is_wrong_is_told_with_the_fix(
    base_url: Callable[[int, str], Any], status: int, body: str, settings: dict[str, str], finding: str, fix: str
) -> None:
    [check] = await doctor.check_providers(asking(await base_url(status, body), **settings))
    assert not check.good
    assert finding in check.finding
    assert fix in check.fix


async def test_a_provider_that_answers_chat_but_lists_no_models_is_not_called_wrong(
    base_url: Callable[[int, str], Any],
) -> None:
    [check] = await doctor.check_providers(asking(await base_url(404, "")))
    assert check.good
    assert "small not checked" in check.finding


@pytest.mark.requirement("console:doctor:each-with-its-fix")
async def test_a_base_url_that_lacks_its_v1_is_told(base_url: Callable[[int, str], Any]) -> None:
    url = (await base_url(200, KNOWN)).removesuffix("/v1")
    [check] = await doctor.check_providers(asking(url))
    assert not check.good
    assert "404" in check.finding
    assert "often ends in /v1" in check.fix


@pytest.mark.requirement("console:doctor:each-with-its-fix")
@pytest.mark.parametrize("scheme", ["redis://127.0.0.1:{}/0", "amqp://guest:guest@127.0.0.1:{}//"])
async def test_a_broker_that_is_away_is_told_with_the_fix(real_url: str, unused_port: int, scheme: str) -> None:
    broker = scheme.format(unused_port)
    [check] = await doctor.check_broker(Settings(redis_url=real_url, broker_url=broker))
    assert not check.good
    assert "LASTWORD_BROKER_URL" in check.fix
    assert "guest" not in check.finding + check.fix
    [check] = await doctor.check_broker(Settings(redis_url=real_url, broker_url=f"{real_url.removesuffix('0')}1"))
    assert check.good
    assert await doctor.check_broker(Settings(redis_url=real_url, broker_url=real_url)) == []
    assert await doctor.check_broker(Settings(redis_url=real_url)) == []


@pytest.mark.requirement("console:doctor:secret-per-machine")
def test_a_secret_that_each_machine_would_make_for_itself_is_told(lastword: Lastword) -> None:
    secret = "whsec_" + "A" * 32
    shared: dict[str, Any] = {"redis_url": "redis://redis.example/0"}
    [check] = doctor.check_secret(Settings.model_validate(shared))
    assert check.good
    assert "each machine" in check.finding
    assert "delivery.secret" in check.fix
    named = {"endpoints": {"billing": {"url": "https://example.com/hook"}}}
    [check] = doctor.check_secret(Settings.model_validate(shared | named))
    assert "billing" in check.finding
    assert doctor.check_secret(Settings.model_validate(named)) == []
    assert doctor.check_secret(Settings.model_validate(shared | named | {"delivery": {"secret": secret}})) == []
    assert lastword("doctor").out.count("note") == 0


@pytest.mark.requirement("console:doctor:each-with-its-fix")
async def test_a_provider_that_is_not_there_is_told_with_its_address(unused_port: int) -> None:
    [check] = await doctor.check_providers(asking(f"http://127.0.0.1:{unused_port}/v1"))
    assert not check.good
    assert f"127.0.0.1:{unused_port}" in check.finding
    assert "providers.main.base_url" in check.fix


async def test_no_provider_is_a_fault_with_the_first_step() -> None:
    [check] = await doctor.check_providers(Settings())
    assert not check.good
    assert "LASTWORD_PROVIDERS__MAIN__BASE_URL" in check.fix


async def test_the_embedded_server_has_no_fault(real_redis: redis.asyncio.Redis) -> None:
    checks = await doctor.check_redis(real_redis)
    assert faults(checks) == {}
    assert len(checks) == 4


@pytest.mark.requirement("console:doctor:each-with-its-fix")
@pytest.mark.parametrize(
    ("setting", "value", "name", "fix"),
    [
        ("appendonly", "no", "redis persistence", "appendonly yes"),
        ("maxmemory-policy", "allkeys-lru", "redis eviction", "noeviction"),
    ],
)
async def test_a_server_that_may_forget_is_told_with_the_fix(
    real_redis: redis.asyncio.Redis, setting: str, value: str, name: str, fix: str
) -> None:
    before = str((await real_redis.config_get(setting))[setting])
    await real_redis.config_set(setting, value)
    try:
        checks = await doctor.check_redis(real_redis)
    finally:
        await real_redis.config_set(setting, before)
    assert fix in faults(checks)[name].fix


@pytest.mark.requirement("console:doctor:each-with-its-fix")
@pytest.mark.parametrize(
    ("info", "has_waitaof", "name", "finding"),
    [
        ({"redis_version": "6.2.14"}, True, "redis version", "redis 6.2.14"),
        ({"redis_version": "7.0.15"}, False, "redis durability", "may lose the last second"),
        ({"aof_last_write_status": "err"}, True, "redis persistence", "write of its append-only file failed"),
        ({"appendfsync": "no"}, True, "redis persistence", "never says that a write is on disk"),
        ({"role": "slave"}, True, "redis role", "refuses to write"),
    ],
)
def test_an_old_or_failing_server_is_told_what_it_may_lose(
    info: dict[str, object], has_waitaof: bool, name: str, finding: str
) -> None:
    good = {"redis_version": "7.2.4", "aof_enabled": 1, "maxmemory_policy": "noeviction"}
    facts = ServerFacts({**good, **info}, has_waitaof, str(info.get("appendfsync", "")))
    [fault] = faults(list(doctor.redis_checks(facts))).values()
    assert fault.name == name
    assert finding in fault.finding
    assert fault.fix


def test_what_only_a_failover_can_lose_is_a_note() -> None:
    info = {"redis_version": "7.2.4", "aof_enabled": 1, "maxmemory_policy": "noeviction", "connected_slaves": 1}
    checks = list(doctor.redis_checks(ServerFacts(info, True, "everysec")))
    assert faults(checks) == {}
    [note] = [check for check in checks if check.fix]
    assert "min-replicas-to-write" in note.fix


async def test_a_redis_that_is_away_is_one_fault(unused_port: int) -> None:
    client = redis.asyncio.Redis.from_url(f"redis://127.0.0.1:{unused_port}/0")
    [check] = await doctor.check_redis(client)
    await client.aclose()
    assert not check.good
    assert "LASTWORD_REDIS_URL" in check.fix


@pytest.mark.requirement("console:doctor:import-clash")
def test_another_package_of_our_name_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert faults(doctor.check_imports()) == {}
    (tmp_path / "channels").mkdir()
    stranger = tmp_path / "channels" / "__init__.py"
    stranger.touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    [fault] = faults(doctor.check_imports()).values()
    assert fault.name == "package channels"
    assert str(stranger) in fault.finding
    assert "environment of its own" in fault.fix


@pytest.mark.requirement("console:doctor:import-clash")
@pytest.mark.parametrize("stranger", ["worker/__init__.py", "channels.py"])
def test_a_package_in_the_working_directory_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stranger: str
) -> None:
    """`python -m celery`, which `lastword up` starts, looks there first; this process does not."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / stranger).parent.mkdir(exist_ok=True)
    (tmp_path / stranger).touch()
    [fault] = faults(doctor.check_imports()).values()
    assert fault.name == f"package {stranger.split('/', maxsplit=1)[0].removesuffix('.py')}"
    assert stranger in fault.finding
    assert "working directory" in fault.fix


def test_a_data_folder_that_cannot_be_written_is_found(tmp_path: Path) -> None:
    assert doctor.check_data_dir(tmp_path / "new" / "folder").good
    (tmp_path / "file").touch()
    check = doctor.check_data_dir(tmp_path / "file")
    assert not check.good
    assert "LASTWORD_DATA_DIR" in check.fix


@pytest.mark.requirement("console:doctor:exit-code")
def test_the_exit_code_is_0_only_if_all_is_good(
    lastword: Lastword, monkeypatch: pytest.MonkeyPatch, real_url: str, unused_port: int
) -> None:
    monkeypatch.setenv("LASTWORD_REDIS_URL", real_url)
    monkeypatch.setenv("LASTWORD_PROVIDERS__MAIN__BASE_URL", f"http://127.0.0.1:{unused_port}/v1")
    monkeypatch.setenv("LASTWORD_PROVIDERS__MAIN__MODEL", "m")
    ran = lastword("doctor", "--json")
    told = json.loads(ran.out)
    assert (ran.code, told["good"]) == (exits.FAILED, False)
    assert [check["name"] for check in told["checks"] if not check["good"]] == ["provider main"]
    listing = lastword("doctor").out
    assert "FAULT provider main" in listing
    assert "note  webhook secret" in listing
    assert "fix: " in listing
