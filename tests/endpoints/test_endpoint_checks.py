"""What `lastword doctor` finds out about endpoints."""

import secrets
from pathlib import Path
from typing import Any

import pytest

from channels.endpoint_checks import check_given, check_stored
from channels.endpoints.registry import Registry
from channels.settings import Settings
from channels.vault_section import open_vault

Redis = Any
URL = "https://example.com/hush"


def settings_of(folder: Path, **endpoints: Any) -> Settings:
    return Settings.model_validate({"data_dir": folder / "data", "endpoints": endpoints})


def registry_of(client: Redis, settings: Settings) -> Registry:
    return Registry(client, open_vault(settings.vault, settings.data_dir))


@pytest.mark.requirement("endpoints:doctor")
def test_a_file_that_is_not_there_or_is_none_is_told_with_its_setting(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("-----BEGIN CERTIFICATE-----\n")
    (tmp_path / "no.pem").write_text("hush")
    settings = settings_of(
        tmp_path,
        good={"url": URL, "ca_file": tmp_path / "ca.pem", "events": ["turn.*"]},
        none={"url": URL, "cert_file": tmp_path / "no.pem"},
        gone={"url": URL, "cert_file": tmp_path / "ca.pem", "key_file": tmp_path / "away.pem"},
    )
    told = {check.name: check for check in check_given(settings)}
    assert {name: check.good for name, check in told.items()} == {
        "endpoint good": True,
        "endpoint none": False,
        "endpoint gone": False,
    }
    assert told["endpoint good"].finding == "https://example.com/... gets turn.*"
    assert f"cert_file: {tmp_path / 'no.pem'} is no PEM file" in told["endpoint none"].finding
    assert "key_file" in told["endpoint gone"].finding
    assert "cannot be read (No such file" in told["endpoint gone"].finding
    assert "endpoints.gone" in told["endpoint gone"].fix
    assert "hush" not in str(told)


@pytest.mark.requirement("endpoints:doctor")
def test_a_common_secret_that_cannot_be_had_is_told_of_who_needs_it(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file where a folder should be")
    checks = check_given(settings_of(tmp_path, crm={"url": URL}))
    assert "can be neither read nor made" in checks[0].finding
    assert not checks[0].good


@pytest.mark.requirement("endpoints:doctor")
async def test_stored_endpoints_are_looked_at_too(any_redis: Redis, tmp_path: Path) -> None:
    settings = settings_of(tmp_path, ops={"url": URL})
    assert await check_stored(any_redis, settings) == []
    registry = registry_of(any_redis, settings)
    for name, more in (("crm", {}), ("odd", {"invented": 1}), ("ops", {}), ("tls", {"ca_file": str(tmp_path / "ca")})):
        await registry.create(name, {"url": URL, **more}, headers={"X-Team": secrets.token_hex()})
    told = {check.name: check for check in await check_stored(any_redis, settings)}
    assert {name: check.good for name, check in told.items()} == {
        "endpoint crm": True,
        "endpoint odd": False,
        "endpoint ops": True,
        "endpoint tls": False,
        "vault": True,
    }
    assert told["vault"].finding == "8 stored secrets can be decrypted"
    assert "the one of the settings hides" in told["endpoint ops"].finding
    assert "cannot be read here (invented)" in told["endpoint odd"].finding


@pytest.mark.requirement("endpoints:doctor")
async def test_a_master_key_that_is_lost_is_told_with_the_endpoints_that_need_it(
    any_redis: Redis, tmp_path: Path
) -> None:
    await registry_of(any_redis, settings_of(tmp_path / "one")).create("crm", {"url": URL}, headers={})
    checks = await check_stored(any_redis, settings_of(tmp_path / "two"))
    (fault,) = (check for check in checks if not check.good)
    assert "stored secrets of endpoints crm are encrypted with the key k" in fault.finding
