"""Finding endpoints by destination, by lane and by event."""

import asyncio
import secrets
from pathlib import Path
from typing import Any

import pytest

from channels.delivery.lane import Rules
from channels.delivery.model import Failed, Withdrawn, lane_of
from channels.destinations import check_destinations
from channels.endpoints import record
from channels.endpoints.directory import Directory, unknown
from channels.endpoints.model import Endpoint, SigningKey
from channels.endpoints.record import Stored
from channels.endpoints.registry import Change, Registry
from channels.endpoints.signing_keys import encode_secret
from channels.endpoints.subscription import Event
from channels.endpoints.vault import MasterKey, Ring, Vault
from channels.outbox import leaving
from channels.settings import Settings
from tests.endpoints.test_endpoint_registry import DAMAGES, spoil
from worker.errors import ConfigurationError

Redis = Any
COMMON = SigningKey("v1", b"common" * 6)
URL = "https://plain.example/path"


def vault_of(name: str = "k") -> Vault:
    return Vault(Ring((MasterKey(name, name.encode().ljust(32)),), "vault.keys"), secrets.token_bytes)


def settings_of(**more: Any) -> Settings:
    given = {"ops": {"url": "https://ops.example", "events": ["delivery.*"], "concurrency": 2}}
    return Settings.model_validate(
        {"endpoints": given, "delivery": {"secret": encode_secret(COMMON), "endpoint_concurrency": 5}, **more}
    )


def directory_of(client: Redis, settings: Settings | None = None, vault: Vault | None = None) -> Directory:
    return Directory(client, vault or vault_of(), settings or settings_of())


def registry_of(client: Redis) -> Registry:
    return Registry(client, vault_of())


def config(url: str = "https://crm.example", **fields: Any) -> dict[str, Any]:
    return {"url": url, "events": ["turn.*"], **fields}


async def changed(client: Redis, name: str, config: dict[str, Any]) -> Stored:
    async def to_config(_: Stored, __: int) -> Change:
        return Change(config=config)

    return await registry_of(client).change(name, to_config)


@pytest.mark.requirement("endpoints:look-up")
async def test_a_destination_is_an_endpoint_of_the_settings_or_of_the_store_or_a_url_or_nothing(
    any_redis: Redis,
) -> None:
    made = await registry_of(any_redis).create("crm", config(), headers={"X-Team": "a"})
    ops, crm, plain, none, again = await directory_of(any_redis).look_up(["ops", "crm", URL, "nobody", "crm"])
    assert isinstance(ops, Endpoint)
    assert isinstance(crm, Endpoint)
    assert isinstance(plain, Endpoint)
    assert isinstance(none, Withdrawn)
    assert [(one.origin, one.url) for one in (ops, crm, plain)] == [
        ("file", "https://ops.example"),
        ("store", "https://crm.example"),
        ("plain", URL),
    ]
    assert [one.keys for one in (ops, crm, plain)] == [(COMMON,), made.keys, (COMMON,)]
    assert [one.limits.may_disable for one in (ops, crm, plain)] == [True, True, False]
    assert (crm.headers, crm.version, crm.name) == ((("X-Team", "a"),), made.stored.version, "crm")
    assert again == crm
    assert (none.code, "lastword endpoints create" in none.message) == ("endpoint_removed", True)
    assert await directory_of(any_redis).look_up([]) == []


@pytest.mark.requirement("endpoints:look-up:fresh")
async def test_an_update_counts_from_the_next_look_on(any_redis: Redis) -> None:
    """svix 2227: a cache kept the old address and secret for half a minute."""
    endpoints, directory = registry_of(any_redis), directory_of(any_redis)
    await endpoints.create("crm", config(), headers={})
    (first,) = await directory.look_up(["crm"])
    await changed(any_redis, "crm", config("https://new.example"))
    rotated = await endpoints.rotate("crm", overlap_ms=0)
    (second,) = await directory.look_up(["crm"])
    assert isinstance(first, Endpoint)
    assert isinstance(second, Endpoint)
    assert (first.url, second.url, second.keys) == ("https://crm.example", "https://new.example", rotated.keys)
    await endpoints.delete("crm")
    assert [type(one) for one in await directory.look_up(["crm"])] == [Withdrawn]
    await leaving.finish(any_redis, "crm", 1)
    anew = await endpoints.create("crm", config(), headers={})
    (third,) = await directory.look_up(["crm"])
    assert isinstance(third, Endpoint)
    assert third.keys == anew.keys


@pytest.mark.requirement("endpoints:look-up:fresh")
async def test_after_the_store_lost_its_last_writes_nothing_of_them_is_remembered(real_redis: Redis) -> None:
    endpoints, directory = registry_of(real_redis), directory_of(real_redis)
    await endpoints.create("crm", config(), headers={})
    names = (record.record_key("crm"), record.INDEX, record.CHANGED, record.LAST)
    before = [await real_redis.dump(name) for name in names]
    await changed(real_redis, "crm", config("https://lost.example"))
    await directory.look_up(["crm"])
    (await directory.audience()).subscribed(Event("turn.failed"))
    for name, value in zip(names, before, strict=True):
        await real_redis.restore(name, 0, value, replace=True)
    await changed(real_redis, "crm", config("https://kept.example", events=["call.completed"]))
    (found,) = await directory.look_up(["crm"])
    assert isinstance(found, Endpoint)
    assert found.url == "https://kept.example"
    assert [one.url for one in (await directory.audience()).subscribed(Event("call.completed"))] == [
        "https://kept.example"
    ]
    assert (await directory.audience()).subscribed(Event("turn.failed")) == []


@pytest.mark.requirement("endpoints:look-up:ours")
async def test_what_cannot_be_signed_here_is_a_fault_of_ours(any_redis: Redis, tmp_path: Path) -> None:
    endpoints = registry_of(any_redis)
    await endpoints.create("crm", config(), headers={})
    await endpoints.create("newer", config(), headers={})
    await any_redis.hset(record.record_key("newer"), "v", record.RECORD_VERSION + 1)
    await endpoints.create("odd", config(invented=1), headers={})
    (tmp_path / "data").write_text("a file where a folder should be")
    settings = settings_of(delivery={}, data_dir=tmp_path / "data")
    directory = directory_of(any_redis, settings, vault_of("other"))
    found = await directory.look_up(["crm", "newer", "odd", "ops", URL])
    assert [type(one) for one in found] == [Failed] * 5
    failures = [one for one in found if isinstance(one, Failed)]
    assert {(one.kind, one.sent) for one in failures} == {("ours", "no")}
    assert [one.code for one in failures] == ["cannot_sign", "endpoint_newer", *["cannot_sign"] * 3]
    assert "is encrypted with the key k, which is not in vault.keys" in failures[0].message
    assert "cannot be read here (invented)" in (await directory_of(any_redis).look_up(["odd"]))[0].message  # type: ignore[union-attr]


@pytest.mark.requirement("endpoints:look-up:urls")
@pytest.mark.parametrize(
    ("url", "code", "says"),
    [
        ("https://u:hush@h.example/", "invalid_url", "names a user or a password"),
        (f"https://h.example/{'x' * 3000}", "invalid_url", "give a URL of at most 2048"),
        ("ftp://h.example/hush", "invalid_url", "give a URL that does"),
        ("http://127.0.0.1/hush", "blocked", "setting egress.allow"),
        ("https://h.example:25/hush", "blocked", "setting egress.ports"),
        ("http://169.254.169.254/hush", "blocked", "give another URL"),
    ],
)
async def test_a_url_that_nothing_may_be_posted_to_fails_for_good_as_an_attempt_to_it_would(
    any_redis: Redis, url: str, code: str, says: str
) -> None:
    found, beside = await directory_of(any_redis).look_up([url, URL])
    assert isinstance(found, Failed)
    assert (found.kind, found.code, found.sent) == ("permanent", code, "no")
    assert says in found.message
    assert "hush" not in found.message
    assert isinstance(beside, Endpoint)


@pytest.mark.requirement("endpoints:look-up:files-first")
async def test_a_name_of_the_settings_is_that_of_the_settings(any_redis: Redis) -> None:
    await registry_of(any_redis).create("ops", config(), headers={})
    directory = directory_of(any_redis)
    (found,) = await directory.look_up(["ops"])
    assert isinstance(found, Endpoint)
    assert found.origin == "file"
    assert (await directory.audience()).subscribed(Event("turn.failed")) == []
    assert (await directory.rules(["ops"]))["ops"] == Rules(found.limits, found.backoff, found.timeout_s)


@pytest.mark.requirement("endpoints:rules")
async def test_each_lane_has_the_rules_of_its_endpoint_as_they_are_now(any_redis: Redis) -> None:
    directory, plain = directory_of(any_redis), lane_of(URL)
    await registry_of(any_redis).create("crm", config(concurrency=3, rate_per_s=2, burst=4), headers={})
    rules = await directory.rules(["ops", "crm", plain, "nobody"])
    limits = [one.limits if isinstance(one, Rules) else None for one in rules.values()]
    assert [one and one.concurrency for one in limits] == [2, 3, 5, None]
    assert [one and one.may_disable for one in limits] == [True, True, False, None]
    await changed(any_redis, "crm", config(retry_waits_s=[1]))
    crm = (await directory.rules(["crm"]))["crm"]
    assert isinstance(crm, Rules)
    assert (crm.limits.concurrency, crm.limits.rate_per_s, crm.backoff.schedule_s) == (5, None, (1,))
    await registry_of(any_redis).delete("crm")
    assert isinstance((await directory.rules(["crm"]))["crm"], Withdrawn)
    assert await directory.rules([]) == {}


@pytest.mark.requirement("endpoints:subscribed")
async def test_an_event_is_for_those_who_subscribe_to_it_now(any_redis: Redis) -> None:
    endpoints, directory = registry_of(any_redis), directory_of(any_redis)
    for name, fields in (("b", {}), ("a", {"labels": {"team": "ops"}}), ("c", {"events": ["*"], "source": "crm/*"})):
        await endpoints.create(name, config(**fields), headers={"X-Team": "a"})

    async def who(event_type: str, source: str = "http", **labels: str) -> list[str]:
        return [one.name for one in (await directory.audience()).subscribed(Event(event_type, source, labels))]

    assert await who("turn.failed") == ["b"]
    assert await who("turn.failed", team="ops") == ["a", "b"]
    assert await who("turn.failed", "crm/1") == ["b", "c"]
    assert await who("delivery.dead") == ["ops"]
    await endpoints.delete("b")
    await changed(any_redis, "a", config(events=["delivery.dead"]))
    assert await who("turn.failed", team="ops") == []
    assert await who("delivery.dead") == ["ops", "a"]
    (seen,) = (await directory.audience()).subscribed(Event("turn.failed", "crm/1"))
    assert (seen.keys, seen.headers) == ((), ())


@pytest.mark.requirement("endpoints:subscribed")
async def test_an_endpoint_that_cannot_be_read_here_is_told_all_the_same(any_redis: Redis) -> None:
    """Its deliveries come to an attempt, fail as a fault of ours, and are kept; nothing is silently left out."""
    endpoints = registry_of(any_redis)
    await endpoints.create("odd", config(invented=1), headers={})
    await endpoints.create("newer", config(), headers={})
    await any_redis.hset(record.record_key("newer"), "v", record.RECORD_VERSION + 1)
    directory = directory_of(any_redis)
    assert [one.name for one in (await directory.audience()).subscribed(Event("turn.failed"))] == ["newer", "odd"]
    assert None not in (await directory.rules(["odd", "newer"])).values()


@pytest.mark.requirement("endpoints:look-up:damaged")
@pytest.mark.parametrize(("field", "value"), DAMAGES)
async def test_a_damaged_record_costs_only_its_own_deliveries(
    any_redis: Redis, field: str, value: bytes | None
) -> None:
    for name in ("crm", "good"):
        await registry_of(any_redis).create(name, config(), headers={})
    await spoil(any_redis, "crm", field, value)
    directory = directory_of(any_redis)
    crm, good = await directory.look_up(["crm", "good"])
    assert isinstance(crm, Failed)
    assert (crm.kind, "damaged in the store" in crm.message) == ("ours", True)
    assert isinstance(good, Endpoint)
    assert {one.name for one in await directory.everybody()} == {"ops", "crm", "good"}
    assert None not in (await directory.rules(["crm", "good"])).values()
    assert "good" in [one.name for one in (await directory.audience()).subscribed(Event("turn.failed"))]


@pytest.mark.requirement("endpoints:subscribed")
async def test_secrets_that_cannot_be_had_keep_no_event_from_the_log(any_redis: Redis, tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file where a folder should be")
    directory = directory_of(any_redis, settings_of(delivery={}, data_dir=tmp_path / "data"))
    assert [one.name for one in (await directory.audience()).subscribed(Event("delivery.dead"))] == ["ops"]


@pytest.mark.requirement("endpoints:subscribed:cost")
async def test_where_nothing_has_changed_an_event_costs_one_command(real_redis: Redis) -> None:
    for number in range(50):
        await registry_of(real_redis).create(f"crm-{number}", config(), headers={})
    directory = directory_of(real_redis)

    async def commands() -> int:
        return int((await real_redis.info("stats"))["total_commands_processed"])

    (await directory.audience()).subscribed(Event("turn.failed"))
    before = await commands()
    assert len((await directory.audience()).subscribed(Event("turn.failed"))) == 50
    assert await commands() - before == 2  # this INFO and one HGET
    await changed(real_redis, "crm-7", config(events=["call.completed"]))
    before = await commands()
    assert len((await directory.audience()).subscribed(Event("turn.failed"))) == 49
    assert await commands() - before == 4  # INFO, HGET, the versions, and the one that changed
    everybody = await directory.everybody()
    assert await directory.everybody() is everybody
    await registry_of(real_redis).delete("crm-7")
    assert len(await directory.everybody()) == len(everybody) - 1


@pytest.mark.requirement("endpoints:http:destinations")
async def test_names_that_nothing_is_called_by_are_told(any_redis: Redis) -> None:
    await registry_of(any_redis).create("crm", config(), headers={})
    assert await unknown(any_redis, settings_of(), ["ops", "crm", "nobody"]) == ["nobody"]
    assert await unknown(any_redis, settings_of(), []) == []


class Held:
    """Holds up one step of a look, from `reached` until `go`."""

    def __init__(self, step: Any) -> None:
        self._step = step
        self._armed = True
        self.reached, self.go = asyncio.Event(), asyncio.Event()

    async def __call__(self, *args: Any, **options: Any) -> Any:
        found = await self._step(*args, **options)
        if self._armed:
            self._armed = False
            self.reached.set()
            await self.go.wait()
        return found


@pytest.mark.requirement("endpoints:rules")
async def test_an_endpoint_that_is_just_being_read_anew_is_missing_for_nobody(
    any_redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One look is overtaken by another, and must not take away what that has found: without rules, all is cancelled."""
    directory = directory_of(any_redis)
    await registry_of(any_redis).create("crm", config(), headers={})
    await directory.rules(["crm"])
    await changed(any_redis, "crm", config(concurrency=2))
    versions = Held(any_redis.zrange)
    monkeypatch.setattr(any_redis, "zrange", versions)
    async with asyncio.TaskGroup() as group:
        group.create_task(directory.rules(["crm"]))
        await versions.reached.wait()
        await changed(any_redis, "crm", config(concurrency=3))
        await directory.rules(["crm"])
        records = Held(directory._read)
        monkeypatch.setattr(directory, "_read", records)
        versions.go.set()
        await records.reached.wait()
        rules = (await directory.rules(["crm"]))["crm"]
        records.go.set()
    assert isinstance(rules, Rules)
    assert rules.limits.concurrency == 3


@pytest.mark.requirement("endpoints:look-up:nearest")
async def test_a_destination_that_is_none_is_told_the_nearest_endpoint_wherever_it_is_defined(
    any_redis: Redis,
) -> None:
    await registry_of(any_redis).create("crm", config(), headers={})
    await check_destinations(any_redis, settings_of(), ["crm", "ops"])
    for wrong, hint in (
        ("crn", "did you mean 'crm'?"),
        ("opps", "did you mean 'ops'?"),
        ("zzzz", "`lastword endpoints list` shows those that there are"),
    ):
        with pytest.raises(ConfigurationError) as caught:
            await check_destinations(any_redis, settings_of(), [wrong])
        assert f"destination {wrong!r} is neither a URL nor an endpoint" in str(caught.value)
        assert str(caught.value).endswith(hint)
