"""Making, changing and deleting endpoints in Redis."""

import asyncio
import secrets
from typing import Any

import pytest

from channels.endpoints import record, registry
from channels.endpoints.model import SigningKey
from channels.endpoints.registry import (
    Change,
    EndpointExists,
    Idempotency,
    KeyReused,
    Registry,
    SecretsUnreadable,
    UnknownEndpoint,
    VersionConflict,
)
from channels.endpoints.resealing import reseal_all
from channels.endpoints.signing_keys import fresh_key
from channels.endpoints.vault import MasterKey, Ring, Vault, key_id
from channels.outbox import leaving
from worker.errors import ConfigurationError, NewerRecord, StoreFull

Redis = Any
CONFIG = {"url": "https://example.com/hook", "events": ["turn.*"]}
FIELDS: dict[str, tuple[str | int, ...]] = {
    "create": ("v", 1, "config", "{}"),
    "replace": ("config", "{}"),
    "delete": (),
}
FIRST, SECOND = MasterKey("k1", b"1" * 32), MasterKey("k2", b"2" * 32)


def vault_of(*keys: MasterKey) -> Vault:
    return Vault(Ring(keys or (FIRST,), "vault.keys"), secrets.token_bytes)


def registry_of(client: Redis) -> Registry:
    return Registry(client, vault_of())


async def everything(client: Redis) -> str:
    """All that the store holds, as one text."""
    told = []
    async for key in client.scan_iter("*"):
        kind = (await client.type(key)).decode()
        stored = await {"hash": client.hgetall, "zset": lambda name: client.zrange(name, 0, -1), "string": client.get}[
            kind
        ](key)
        told.append(f"{key!r}: {stored!r}")
    return "\n".join(told)


@pytest.mark.requirement("endpoints:registry:create")
async def test_an_endpoint_is_made_once_and_read_back(any_redis: Redis) -> None:
    endpoints = registry_of(any_redis)
    made = await endpoints.create("crm", CONFIG, headers={"X-Team": "a"})
    assert await endpoints.get("crm") == made.stored
    assert (made.stored.config, made.stored.header_names, made.stored.key_ends) == (
        CONFIG,
        ("X-Team",),
        (("v1", None),),
    )
    assert made.stored.created_ms == made.stored.updated_ms > 0
    assert await endpoints.keys("crm") == made.keys
    assert (len(made.keys[0].key), made.duplicate) == (32, False)
    with pytest.raises(EndpointExists, match="name 'crm': there is an endpoint of that name"):
        await endpoints.create("crm", {"url": "https://other.example"}, headers={})
    assert await endpoints.get("crm") == made.stored


@pytest.mark.requirement("endpoints:registry:create")
@pytest.mark.parametrize("name", ["", "Crm", "a b", "url-00", "a" * 61, "crm/..", "https://x"])
async def test_a_name_that_is_none_is_refused(fake_redis: Redis, name: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^name '"):
        await registry_of(fake_redis).create(name, CONFIG, headers={})


@pytest.mark.requirement("endpoints:registry:at-once")
async def test_of_creates_of_one_name_at_the_same_instant_one_makes_it(any_redis: Redis) -> None:
    async def create(number: int) -> object:
        try:
            return await registry_of(any_redis).create("crm", {"url": f"https://example.com/{number}"}, headers={})
        except EndpointExists as error:
            return error

    answers = await asyncio.gather(*(create(number) for number in range(20)))
    (made,) = (one for one in answers if isinstance(one, registry.Made))
    assert await registry_of(any_redis).get("crm") == made.stored
    assert await registry_of(any_redis).keys("crm") == made.keys


@pytest.mark.requirement("endpoints:registry:at-once")
async def test_of_creates_with_one_key_at_the_same_instant_one_makes_it_and_all_are_told_of_it(
    any_redis: Redis,
) -> None:
    answers = await asyncio.gather(
        *(
            registry_of(any_redis).create("crm", CONFIG, headers={}, idempotency=Idempotency("k", "same"))
            for _ in range(20)
        )
    )
    assert sorted(one.duplicate for one in answers) == [False, *[True] * 19]
    assert len({one.keys for one in answers}) == 1
    assert len({one.stored.version for one in answers}) == 1


@pytest.mark.requirement("endpoints:registry:idempotent")
async def test_a_key_stands_for_one_endpoint(any_redis: Redis) -> None:
    endpoints = registry_of(any_redis)
    key = Idempotency("k", "one")
    await endpoints.create("crm", CONFIG, headers={}, idempotency=key)
    with pytest.raises(KeyReused, match="stands for another endpoint"):
        await endpoints.create("other", CONFIG, headers={}, idempotency=Idempotency("k", "two"))
    assert [one.name for one in await endpoints.listed()] == ["crm"]
    assert 0 < await any_redis.ttl(record.idempotency_key("k")) <= 86400
    await endpoints.delete("crm")
    with pytest.raises(KeyReused, match="which was deleted"):
        await endpoints.create("crm", CONFIG, headers={}, idempotency=key)


@pytest.mark.requirement("endpoints:registry:change")
async def test_a_change_counts_only_for_the_version_that_was_read(any_redis: Redis) -> None:
    endpoints = registry_of(any_redis)
    made = await endpoints.create("crm", CONFIG, headers={"X-Team": "a"})

    async def to_other(before: record.Stored, _: int) -> Change:
        return Change(config={**before.config, "url": "https://other.example"})

    changed = await endpoints.change("crm", to_other, made.stored.version)
    assert changed.version > made.stored.version
    assert changed.config == {**CONFIG, "url": "https://other.example"}
    assert (changed.secrets, changed.headers, changed.created_ms) == (
        made.stored.secrets,
        made.stored.headers,
        made.stored.created_ms,
    )
    with pytest.raises(VersionConflict, match=f"has version {changed.version}, not {made.stored.version}"):
        await endpoints.change("crm", to_other, made.stored.version)
    with pytest.raises(VersionConflict):
        await endpoints.delete("crm", made.stored.version)
    await endpoints.delete("crm", changed.version)
    for step in (endpoints.get("crm"), endpoints.change("crm", to_other), endpoints.delete("crm")):
        with pytest.raises(UnknownEndpoint):
            await step
    await leaving.finish(any_redis, "crm", 1)
    anew = await endpoints.create("crm", CONFIG, headers={})
    assert anew.stored.version > changed.version


@pytest.mark.requirement("endpoints:registry:change")
async def test_a_change_that_names_no_version_is_worked_out_anew_where_another_came_before(any_redis: Redis) -> None:
    endpoints = registry_of(any_redis)
    await endpoints.create("crm", {**CONFIG, "burst": 0}, headers={})

    async def one_more(before: record.Stored, _: int) -> Change:
        return Change(config={**before.config, "burst": before.config["burst"] + 1})

    await asyncio.gather(*(endpoints.change("crm", one_more) for _ in range(5)))
    assert (await endpoints.get("crm")).config["burst"] == 5


@pytest.mark.requirement("endpoints:secrets:sealed")
async def test_neither_secrets_nor_values_of_headers_are_stored_readably(any_redis: Redis) -> None:
    endpoints = registry_of(any_redis)
    own = SigningKey("v1", b"hush-hush-hush-hush-hush-hush")
    made = await endpoints.create("crm", CONFIG, headers={"Authorization": "Bearer hush-token"}, key=own)
    rotated = await endpoints.rotate("crm")
    stored = await everything(any_redis)
    assert "hush" not in stored
    for key in (*made.keys, *rotated.keys):
        assert repr(key.key)[2:-1] not in stored
    assert "Authorization" in stored
    assert "hush" not in repr(made) + repr(rotated)
    assert record.open_headers(vault_of(), await endpoints.get("crm")) == {"Authorization": "Bearer hush-token"}


@pytest.mark.requirement("endpoints:secrets:sealed")
async def test_a_sealed_value_does_not_open_for_another_endpoint(any_redis: Redis) -> None:
    endpoints = registry_of(any_redis)
    await endpoints.create("crm", CONFIG, headers={})
    await endpoints.create("thief", CONFIG, headers={})
    await any_redis.hset(record.record_key("thief"), "secrets", (await endpoints.get("crm")).secrets)
    with pytest.raises(ConfigurationError, match="secrets of thief"):
        await endpoints.keys("thief")


@pytest.mark.requirement("endpoints:rotate")
async def test_old_keys_sign_until_the_end_of_the_overlap_and_no_longer(any_redis: Redis) -> None:
    endpoints = registry_of(any_redis)
    first = (await endpoints.create("crm", CONFIG, headers={})).keys[0]
    made = await endpoints.rotate("crm", overlap_ms=60_000)
    assert [key.key for key in made.keys[1:]] == [first.key]
    assert made.keys[0].until_ms is None
    assert made.keys[1].until_ms is not None
    assert made.stored.updated_ms + 59_000 < made.keys[1].until_ms <= made.stored.updated_ms + 60_000
    assert made.stored.key_ends == (("v1", None), ("v1", made.keys[1].until_ms))
    at_once = await endpoints.rotate("crm", overlap_ms=0, scheme="v1a")
    assert [key.scheme for key in at_once.keys] == ["v1a"]
    assert await endpoints.keys("crm") == at_once.keys
    follows = await endpoints.rotate("crm", overlap_ms=0)
    assert follows.keys[0].scheme == "v1a"


@pytest.mark.requirement("endpoints:rotate:lost")
async def test_an_endpoint_whose_master_key_is_lost_gets_a_new_secret_where_the_old_ones_end(any_redis: Redis) -> None:
    for name, headers in (("crm", {}), ("erp", {"X-Team": "a"})):
        await registry_of(any_redis).create(name, CONFIG, headers=headers, key=fresh_key("v1a", secrets.token_bytes))
    vault = vault_of(SECOND)
    endpoints = Registry(any_redis, vault)
    with pytest.raises(SecretsUnreadable, match=r"the key k1, which is not in .* lost, rotate with an overlap of 0"):
        await endpoints.rotate("crm", overlap_ms=60_000)
    for name in ("crm", "erp"):
        made = await endpoints.rotate(name, overlap_ms=0)
        assert ([key.scheme for key in made.keys], await endpoints.keys(name)) == (["v1a"], made.keys)
    [left] = [each for each in await endpoints.sealed() if key_id(each.text, each.context) != "k2"]
    assert (left.name, left.field) == ("erp", "headers"), "those are known nowhere else: they are given anew"


@pytest.mark.requirement("endpoints:rotate:bounds")
async def test_there_are_at_most_ten_keys_and_those_that_ended_make_room(any_redis: Redis) -> None:
    endpoints = registry_of(any_redis)
    await endpoints.create("crm", CONFIG, headers={})
    for _ in range(9):
        await endpoints.rotate("crm")
    with pytest.raises(ConfigurationError, match="10 secrets sign already"):
        await endpoints.rotate("crm")
    assert len(await endpoints.keys("crm")) == 10
    with pytest.raises(ConfigurationError, match="overlap_ms"):
        await endpoints.rotate("crm", overlap_ms=8 * 86_400_000)
    assert len((await endpoints.rotate("crm", overlap_ms=0)).keys) == 1


@pytest.mark.requirement("endpoints:registry:list")
async def test_endpoints_are_listed_by_name_page_by_page(any_redis: Redis) -> None:
    endpoints = registry_of(any_redis)
    names = [f"crm-{number:02}" for number in range(7)]
    for name in reversed(names):
        await endpoints.create(name, CONFIG, headers={})
    seen, after = [], ""
    while page := await endpoints.listed(after, 3):
        seen += [one.name for one in page]
        after = seen[-1]
    assert seen == names
    assert await endpoints.listed("zzz") == []


@pytest.mark.requirement("endpoints:registry:newer")
async def test_what_a_newer_version_wrote_is_left_to_it(any_redis: Redis) -> None:
    endpoints = registry_of(any_redis)
    for name in ("a", "b", "c"):
        await endpoints.create(name, CONFIG, headers={})
    await any_redis.hset(record.record_key("b"), "v", record.RECORD_VERSION + 1)
    assert [one.name for one in await endpoints.listed(limit=2)] == ["a", "c"]
    for step in (endpoints.get("b"), endpoints.rotate("b"), endpoints.delete("b")):
        with pytest.raises(NewerRecord, match="endpoint b was written by a newer version"):
            await step


DAMAGES: list[tuple[str, bytes | None]] = [
    *[("config", bytes_) for bytes_ in (b"{", b"[]", b"1", None)],
    *[("version", bytes_) for bytes_ in (b"x", b"", None)],
    ("secrets", None),
    ("secrets", b"\xff"),
    ("headers", None),
    ("v", None),
    ("v", b"x"),
    ("key_ends", None),
    ("key_ends", b"7"),
    ("key_ends", b'[["v1","x"]]'),
    ("key_ends", b'[["v1",1e30]]'),
    ("key_ends", b'[["v9",null]]'),
    ("key_ends", b'[["v1",' + b"9" * 30 + b"]]"),
    ("header_names", b"7"),
    ("header_names", b"[1]"),
    ("created_ms", b""),
    ("created_ms", b"9" * 30),
    ("config", b"[" * 3000),
]


async def spoil(client: Redis, name: str, field: str, value: bytes | None) -> None:
    key = record.record_key(name)
    await (client.hdel(key, field) if value is None else client.hset(key, field, value))


@pytest.mark.requirement("endpoints:registry:damaged")
@pytest.mark.parametrize(("field", "value"), DAMAGES)
async def test_a_damaged_record_is_listed_as_such_and_can_be_deleted(
    any_redis: Redis, field: str, value: bytes | None
) -> None:
    endpoints = registry_of(any_redis)
    for name in ("crm", "good"):
        await endpoints.create(name, CONFIG, headers={})
    await spoil(any_redis, "crm", field, value)
    assert [bool(one.fault) for one in await endpoints.listed()] == [True, False]
    with pytest.raises(ConfigurationError, match="endpoint crm is damaged in the store; delete it"):
        await endpoints.rotate("crm")
    assert {one.name for one in await endpoints.sealed()} >= {"good"}
    await endpoints.delete("crm")
    assert [one.name for one in await endpoints.listed()] == ["good"]
    assert not await any_redis.exists(record.record_key("crm"))


@pytest.mark.requirement("endpoints:registry:most")
async def test_there_are_no_more_endpoints_than_may_be(any_redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "MAX_ENDPOINTS", 2)
    endpoints = registry_of(any_redis)
    for name in ("a", "b"):
        await endpoints.create(name, CONFIG, headers={})
    with pytest.raises(ConfigurationError, match="there are 2 endpoints; delete one first"):
        await endpoints.create("c", CONFIG, headers={})


@pytest.mark.requirement("endpoints:registry:repeated")
@pytest.mark.parametrize("mode", ["create", "replace", "delete"])
async def test_a_step_that_is_sent_twice_is_taken_once_and_answered_the_same(any_redis: Redis, mode: str) -> None:
    endpoints = registry_of(any_redis)
    if mode != "create":
        await endpoints.create("crm", CONFIG, headers={})
    version = 0 if mode == "create" else (await endpoints.get("crm")).version
    keys = [record.record_key("crm"), record.INDEX, record.CHANGED, record.LAST, record.LEAVING]
    args: list[str | int] = [
        "op",
        "crm",
        mode,
        version,
        10,
        "",
        60,
        *FIELDS[mode],
    ]
    first = await registry._change(any_redis, keys, args)
    before = await everything(any_redis)
    assert await registry._change(any_redis, keys, args) == first
    assert await everything(any_redis) == before
    assert first[0] == b"DONE"


@pytest.mark.requirement("endpoints:secrets:resealed")
async def test_what_is_stored_is_brought_under_a_new_master_key(any_redis: Redis) -> None:
    made = await registry_of(any_redis).create("crm", CONFIG, headers={"X-Team": "a"})
    both = vault_of(SECOND, FIRST)
    done = await reseal_all(both, Registry(any_redis, both))
    assert (done.changed, done.total, done.left, done.idle_keys) == (2, 2, 0, ("k1",))
    only_new = Registry(any_redis, vault_of(SECOND))
    assert await only_new.keys("crm") == made.keys
    assert (await only_new.get("crm")).version == made.stored.version
    assert not await only_new.put_sealed("crm", "secrets", "what was read", "anew")
    assert await only_new.keys("crm") == made.keys


@pytest.mark.requirement("endpoints:registry:full")
async def test_a_server_without_room_takes_no_endpoint(real_redis: Redis) -> None:
    await real_redis.config_set("maxmemory", 1)
    try:
        with pytest.raises(StoreFull, match="maxmemory"):
            await registry_of(real_redis).create("crm", CONFIG, headers={})
    finally:
        await real_redis.config_set("maxmemory", 0)
    assert await real_redis.exists(record.INDEX) == 0
