"""Two machines that have each made a master key of their own."""

import asyncio
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from channels.console.vault import run_reseal
from channels.endpoint_checks import check_stored
from channels.endpoint_desk import EndpointDesk
from channels.endpoint_settings import Definition
from channels.endpoints.registry import Registry, SecretsUnreadable
from channels.endpoints.rings import LIVES_MS, RINGS, check_rings, living_rings, tell_ring, withdraw_ring
from channels.endpoints.vault import fresh_master_key
from channels.settings import Settings
from channels.vault_section import open_vault
from channels.wiring import DeliveryProcess
from tests.support.egress import LOOPBACK
from tests.support.receiver import refusing_url
from tests.support.web import VAULT_KEY
from tests.webhook.test_delivery_process import delivering
from worker.errors import ConfigurationError
from worker.store.connect import open_redis

CRM = Definition(url="https://crm.example")


def machine(url: str, folder: Path, **more: Any) -> Settings:
    return Settings.model_validate({"redis_url": url, "data_dir": folder, "egress": LOOPBACK, **more})


@pytest.mark.requirement("endpoints:secrets:one-ring")
async def test_no_secret_is_stored_that_a_delivery_process_could_not_open(
    real_url: str, real_redis: Any, tmp_path: Path
) -> None:
    here, there = machine(real_url, tmp_path / "here"), machine(real_url, tmp_path / "there")
    desk = EndpointDesk(here, real_redis)
    await desk.create("crm", CRM)
    await real_redis.flushall()
    async with delivering(there):
        theirs = open_vault(there.vault, there.data_dir).key_ids[0]
        ours = open_vault(here.vault, here.data_dir).key_ids[0]
        with pytest.raises(SecretsUnreadable, match=f"vault: the master key {ours} of .*: it has {theirs}; give all"):
            await desk.create("crm", CRM)
        (bad,) = [one for one in await check_stored(real_redis, here) if not one.good]
        assert (bad.name, theirs in bad.finding) == ("vault", True)
        await EndpointDesk(there, real_redis).create("crm", CRM)
        for step in (desk.rotate("crm", overlap_s=0), desk.update("crm", {"headers": {"X-Team": "a"}})):
            with pytest.raises(SecretsUnreadable, match=r"^vault: "):
                await step
        await desk.update("crm", {"payload": "thin"})


@pytest.mark.requirement("endpoints:secrets:one-ring")
async def test_what_all_can_open_is_stored_while_keys_are_exchanged(
    real_url: str, real_redis: Any, tmp_path: Path
) -> None:
    old, new = VAULT_KEY, fresh_master_key(lambda count: b"n" * count)
    rings = ([old], [old, new], [new, old], [new])
    for number, (before, after) in enumerate(pairwise(rings)):
        await real_redis.delete(RINGS)
        await tell_ring(real_redis, "theirs", [key.partition(":")[0] for key in before])
        desk = EndpointDesk(machine(real_url, tmp_path, vault={"keys": after}), real_redis)
        await desk.create(f"crm-{number}", CRM)


@pytest.mark.requirement("endpoints:secrets:one-ring")
async def test_a_ring_that_nobody_has_told_of_for_a_minute_is_nobodys(any_redis: Any) -> None:
    await tell_ring(any_redis, "one", ["k1", "k2"])
    assert await living_rings(any_redis) == [("k1", "k2")]
    await any_redis.zincrby(RINGS, -LIVES_MS - 1, "k1,k2 one")
    assert await living_rings(any_redis) == []
    await tell_ring(any_redis, "two", ["k3"])
    assert await any_redis.zcard(RINGS) == 1


@pytest.mark.requirement("endpoints:secrets:one-ring")
async def test_a_ring_goes_with_the_last_process_that_has_it(any_redis: Any) -> None:
    for process in ("one", "two"):
        await tell_ring(any_redis, process, ["k1", "k2"])
    await withdraw_ring(any_redis, "one", ["k1", "k2"])
    assert await living_rings(any_redis) == [("k1", "k2")]
    await withdraw_ring(any_redis, "two", ["k1", "k2"])
    assert await living_rings(any_redis) == []


@pytest.mark.requirement("endpoints:secrets:one-ring")
async def test_a_process_that_ends_while_redis_is_away_ends() -> None:
    with refusing_url() as url:
        nowhere = open_redis(url.replace("http", "redis").replace("hook", "0"))
        await withdraw_ring(nowhere, "one", ["k1"])
        await nowhere.aclose()


@pytest.mark.requirement("endpoints:secrets:one-ring")
async def test_a_delivery_process_tells_of_its_ring_from_its_start_to_its_end(
    real_url: str, real_redis: Any, tmp_path: Path
) -> None:
    there = machine(real_url, tmp_path, vault={"keys": [VAULT_KEY]})
    mine = (VAULT_KEY.partition(":")[0],)
    process = DeliveryProcess(there, lambda: None)
    try:
        await process.start()
        assert await living_rings(real_redis) == [mine]
        await real_redis.delete(RINGS)  # as by a server that lost its last writes, or a minute without Redis
        process.begin()
        async with asyncio.timeout(20):
            while await living_rings(real_redis) != [mine]:
                pass
    finally:
        await process.stop()
    assert await living_rings(real_redis) == []


@pytest.mark.requirement("endpoints:secrets:one-ring")
async def test_nothing_is_encrypted_anew_with_a_key_that_a_delivery_process_lacks(
    real_url: str, real_redis: Any, tmp_path: Path
) -> None:
    old, new = VAULT_KEY, fresh_master_key(lambda count: b"n" * count)
    theirs = machine(real_url, tmp_path, vault={"keys": [old]})
    await EndpointDesk(theirs, real_redis).create("crm", CRM)
    await tell_ring(real_redis, "theirs", [old.partition(":")[0]])
    here = machine(real_url, tmp_path, vault={"keys": [new, old]})
    with pytest.raises(ConfigurationError, match=r"^vault: the master key .* is not among those of a delivery process"):
        await asyncio.to_thread(run_reseal, here, Registry, as_json=True)
    assert await EndpointDesk(theirs, real_redis).keys("crm")


@pytest.mark.requirement("endpoints:secrets:one-ring")
def test_the_key_that_others_encrypt_with_must_be_here() -> None:
    check_rings([], ["k1"], "vault.keys")
    check_rings([["k2", "k1"]], ["k1", "k2"], "vault.keys")
    with pytest.raises(ConfigurationError, match=r"vault: vault.keys lacks the master key k2, with which a delivery"):
        check_rings([["k2", "k1"]], ["k1"], "vault.keys")


@pytest.mark.requirement("signing:vault:start")
async def test_a_delivery_process_does_not_start_where_it_cannot_open_what_is_stored(
    real_url: str, real_redis: Any, tmp_path: Path
) -> None:
    await EndpointDesk(machine(real_url, tmp_path, vault={"keys": [VAULT_KEY]}), real_redis).create("crm", CRM)
    new = fresh_master_key(lambda count: b"n" * count)
    process = DeliveryProcess(machine(real_url, tmp_path, vault={"keys": [new]}), lambda: None)
    try:
        with pytest.raises(ConfigurationError, match="stored secrets of endpoints crm are encrypted with the key"):
            await process.start()
    finally:
        await process.stop()
    assert await living_rings(real_redis) == []
