"""All that is stored comes under the first master key, whatever happens meanwhile: in memory, and in a Redis hash."""

import os
from collections.abc import Sequence
from typing import Any

import pytest
import redis.asyncio

from channels.endpoints.resealing import Resealed, SealedStore, reseal_all
from channels.endpoints.vault import Sealed, Vault, context_of, key_id, ring_of
from worker.errors import ConfigurationError

LINES = ("k1:" + "MTEx" * 10 + "MTE=", "k2:" + "MjIy" * 10 + "MjI=")
PLACES = [(f"e{number}", field) for number in range(20) for field in ("secrets", "headers")]


def vault(*lines: str) -> Vault:
    return Vault(ring_of((("", line) for line in lines), "vault.keys_file"), os.urandom)


OLD, NEW, BOTH = vault(LINES[0]), vault(LINES[1]), vault(LINES[1], LINES[0])


class InMemory:
    """Sealed texts in a dict. `interrupt_after`: so many are put, then the process dies."""

    def __init__(self, interrupt_after: int = 10**9) -> None:
        self.texts: dict[tuple[str, str], str] = {}
        self.interrupt_after = interrupt_after
        self.lies_once = False

    async def sealed(self) -> Sequence[Sealed]:
        return [Sealed(*place, text) for place, text in self.texts.items()]

    async def put_sealed(self, name: str, field: str, old: str, new: str) -> bool:
        if self.interrupt_after == 0:
            raise KeyboardInterrupt
        self.interrupt_after -= 1
        if self.lies_once:  # another process has written in between
            self.lies_once = False
            self.texts[name, field] = OLD.seal(b"newer", context_of(name, field))
        if self.texts.get((name, field)) != old:
            return False
        self.texts[name, field] = new
        return True


class InHash:
    """Sealed texts in a Redis hash, compared and replaced by a script."""

    SCRIPT = """
    if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then return 0 end
    redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
    return 1
    """

    def __init__(self, client: redis.asyncio.Redis) -> None:
        self.client: Any = client

    async def sealed(self) -> Sequence[Sealed]:
        texts = await self.client.hgetall("sealed")
        places = {place: place.decode().split("/") for place in texts}
        return [Sealed(name, field, texts[place].decode()) for place, (name, field) in places.items()]

    async def put_sealed(self, name: str, field: str, old: str, new: str) -> bool:
        return bool(await self.client.eval(self.SCRIPT, 1, "sealed", f"{name}/{field}", old, new))


async def in_memory() -> InMemory:
    store = InMemory()
    store.texts = {place: OLD.seal(repr(place).encode(), context_of(*place)) for place in PLACES}
    return store


async def assert_under_the_new_key_alone(store: SealedStore) -> None:
    stored = await store.sealed()
    assert sorted((each.name, each.field) for each in stored) == sorted(PLACES)
    for each in stored:
        assert NEW.open(each.text, each.context) == repr((each.name, each.field)).encode()


@pytest.mark.requirement("signing:vault:rotation")
async def test_all_that_is_stored_comes_under_the_first_key_and_the_old_one_may_go() -> None:
    store = await in_memory()
    assert await reseal_all(BOTH, store) == Resealed(40, 40, 0, ("k1",))
    await assert_under_the_new_key_alone(store)
    before = dict(store.texts)
    assert await reseal_all(BOTH, store) == Resealed(0, 40, 0, ("k1",))
    assert store.texts == before


@pytest.mark.requirement("signing:vault:rotation")
async def test_the_same_in_redis(real_redis: redis.asyncio.Redis) -> None:
    store = InHash(real_redis)
    for name, field in PLACES:
        text = OLD.seal(repr((name, field)).encode(), context_of(name, field))
        await store.client.hset("sealed", f"{name}/{field}", text)
    assert await reseal_all(BOTH, store) == Resealed(40, 40, 0, ("k1",))
    await assert_under_the_new_key_alone(store)


@pytest.mark.requirement("signing:vault:killed")
@pytest.mark.parametrize("after", [0, 1, 17, 39])
async def test_killed_at_any_point_all_can_be_read_and_a_repetition_ends_it(after: int) -> None:
    store = await in_memory()
    store.interrupt_after = after
    with pytest.raises(KeyboardInterrupt):
        await reseal_all(BOTH, store)
    for each in await store.sealed():
        assert BOTH.open(each.text, each.context) == repr((each.name, each.field)).encode()
    store.interrupt_after = 10**9
    assert await reseal_all(BOTH, store) == Resealed(40 - after, 40, 0, ("k1",))
    await assert_under_the_new_key_alone(store)


@pytest.mark.requirement("signing:vault:killed")
async def test_what_was_written_meanwhile_is_not_overwritten_but_comes_under_the_first_key_too() -> None:
    store = await in_memory()
    store.lies_once = True
    assert await reseal_all(BOTH, store) == Resealed(40, 40, 0, ("k1",))
    assert NEW.open(store.texts[PLACES[0]], context_of(*PLACES[0])) == b"newer"


@pytest.mark.requirement("signing:vault:killed")
async def test_where_somebody_goes_on_writing_with_the_old_key_it_ends_and_says_so() -> None:
    class Stubborn(InMemory):
        async def put_sealed(self, name: str, field: str, old: str, new: str) -> bool:
            self.lies_once = name == "e7"
            return await super().put_sealed(name, field, old, new)

    store = Stubborn()
    store.texts = (await in_memory()).texts
    done = await reseal_all(BOTH, store)
    assert (done.left, done.idle_keys) == (2, ())
    assert {key_id(text, "") for place, text in store.texts.items() if place[0] == "e7"} == {"k1"}


@pytest.mark.requirement("signing:vault:killed")
async def test_with_a_key_missing_nothing_is_changed() -> None:
    store = await in_memory()
    store.texts["e3", "secrets"] = vault("k9:" + "OTk5" * 10 + "OTk=").seal(b"x", context_of("e3", "secrets"))
    before = dict(store.texts)
    with pytest.raises(ConfigurationError, match="endpoints e3 are encrypted with the key k9"):
        await reseal_all(BOTH, store)
    assert store.texts == before


@pytest.mark.requirement("signing:vault:rotation")
async def test_a_key_that_is_still_needed_is_not_called_idle() -> None:
    store = InMemory()
    assert await reseal_all(BOTH, store) == Resealed(0, 0, 0, ("k1",))
    assert await reseal_all(OLD, store) == Resealed(0, 0, 0, ())
