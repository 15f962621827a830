"""`lastword hooks`, and what `lastword doctor` says of inbound routes."""

import json
import secrets
from pathlib import Path
from typing import Any

import httpx
import pytest

from channels.console import exits, hooks
from channels.endpoints.registry import Registry
from channels.endpoints.vault import MasterKey, Ring, Vault
from channels.hook_checks import check_given, check_receivers
from channels.settings import Settings
from tests.console.conftest import Lastword
from tests.support.hooks import LONG_ENOUGH, OTHER, SECRET, STANDARD, by_hmac, hook, hook_settings
from tests.support.web import serving

FILE = f"""
[turns]
keep_s = 2592000

[hooks.crm]
verification = "hmac"
signature_prefix = "sha256="
prompt = "{{body}}"
to = ["https://example.com/canary?canary"]
events = ["paid"]
session = "crm/{{/id}}"

[hooks.crm.secrets.current]
value = "{SECRET}"

[hooks.off]
enabled = false
verification = "standard"
prompt = "{{event}}"
secrets.one.value = "{STANDARD}"
"""


@pytest.fixture
def _configured(provider: None) -> None:
    del provider
    Path("lastword.toml").write_text(FILE, encoding="utf-8")


@pytest.mark.requirement("hooks:list")
@pytest.mark.usefixtures("_configured")
def test_routes_are_listed_without_anything_secret(lastword: Lastword) -> None:
    shown, told = lastword("hooks", "list"), lastword("hooks", "list", "--json")
    assert shown.code == told.code == exits.OK
    crm, off = map(json.loads, told.out.splitlines())
    assert (crm["route"], crm["path"], crm["verification"], crm["secrets"]) == (
        "crm",
        "/hooks/crm",
        "hmac",
        ["current"],
    )
    assert (crm["to"], crm["events"], crm["session"]) == (["https://example.com/..."], ["paid"], "crm/{/id}")
    assert (off["enabled"], off["verification"]) == (False, "standard")
    assert "not enabled" in shown.out
    for text in (shown.out, told.out):
        assert "canary" not in text
        assert SECRET not in text
        assert STANDARD not in text


@pytest.mark.requirement("hooks:list")
@pytest.mark.usefixtures("provider")
def test_without_routes_the_list_says_so(lastword: Lastword, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LASTWORD_TURNS__KEEP_S", "2592000")
    assert "[hooks.NAME]" in lastword("hooks", "list").out


@pytest.mark.requirement("hooks:sign")
@pytest.mark.usefixtures("_configured")
def test_what_is_signed_is_what_a_sender_would_send(lastword: Lastword) -> None:
    Path("event.json").write_bytes(b'{"id": 7}')
    ran = lastword("hooks", "sign", "crm", "--body", "event.json", "--event", "paid", "--delivery", "d-1")
    assert ran.code == exits.OK, ran.err
    headers = dict(line.split(": ", 1) for line in ran.out.splitlines())
    signature = by_hmac(b'{"id": 7}')["X-Webhook-Signature"]
    assert headers == {
        "X-Webhook-Delivery": "d-1",
        "X-Webhook-Event": "paid",
        "X-Webhook-Signature": f"sha256={signature}",
    }
    fresh = json.loads(lastword("hooks", "sign", "off", "--body", "event.json", "--json").out)
    assert set(fresh) == {"webhook-id", "webhook-timestamp", "webhook-signature"}


@pytest.mark.requirement("hooks:sign")
@pytest.mark.usefixtures("_configured")
def test_a_route_or_a_file_that_is_not_there_is_told_with_its_fix(lastword: Lastword) -> None:
    Path("event.json").write_bytes(b"{}")
    for arguments, words in (
        (("cram", "--body", "event.json"), "did you mean 'crm'?"),
        (("crm", "--body", "none.json"), "cannot be read"),
    ):
        ran = lastword("hooks", "sign", *arguments)
        assert (ran.code, ran.out) == (exits.USAGE, "")
        assert words in ran.err


@pytest.mark.requirement("hooks:sign")
@pytest.mark.parametrize("kind", ["hmac", "hmac_timestamped", "secret", "standard"])
async def test_what_is_signed_is_taken(real_url: str, kind: str) -> None:
    secret = STANDARD if kind == "standard" else SECRET
    settings = hook_settings(real_url, {"crm": hook(verification=kind, secrets={"one": {"value": secret}})})
    body = '{"a": "ü"}'.encode()
    headers = hooks.headers_of(settings.hooks["crm"], "crm", body, "paid", None, hooks._unix_s)
    async with serving(settings) as web, httpx.AsyncClient(base_url=web.url) as sender:
        first, again = [(await sender.post("/hooks/crm", content=body, headers=headers)).json() for _ in range(2)]
    assert (first["status"], first["event_type"], again["reason"]) == ("accepted", "paid", "duplicate_delivery")


@pytest.mark.requirement("hooks:doctor")
def test_doctor_tells_of_open_secrets_and_of_routes_to_nobody(tmp_path: Path) -> None:
    (tmp_path / "open").write_text(OTHER, encoding="utf-8")
    (tmp_path / "kept").write_text(OTHER, encoding="utf-8")
    (tmp_path / "open").chmod(0o644)
    (tmp_path / "kept").chmod(0o600)
    to = ["https://hooks.example/canary"]
    settings = Settings.model_validate(
        {
            "turns": LONG_ENOUGH,
            "hooks": {
                "open": hook(to=to, secrets={"a": {"value_file": str(tmp_path / "open")}}),
                "kept": hook(to=to, secrets={"a": {"value_file": str(tmp_path / "kept")}}),
                "lost": hook(),
                "off": hook(enabled=False),
            },
        }
    )
    open_one, kept, lost, off = check_given(settings)
    assert (open_one.name, open_one.good) == ("hook open", False)
    assert str(tmp_path / "open") in open_one.finding
    assert "chmod 600" in open_one.fix
    assert (kept.good, kept.fix) == (True, "")
    assert "https://hooks.example/..." in kept.finding
    assert "canary" not in kept.finding
    assert lost.good
    assert "hooks.lost.to" in lost.fix
    assert (off.good, off.finding) == (True, "it is not enabled")


@pytest.mark.requirement("hooks:doctor")
async def test_doctor_tells_of_receivers_that_are_neither_in_the_settings_nor_in_the_store(any_redis: Any) -> None:
    settings = hook_settings(
        "redis://127.0.0.1:9/0",
        {
            "crm": hook(to=["ops", "billing", "gone", "https://hooks.example/canary"]),
            "off": hook(to=["gone"], enabled=False),
        },
    )
    registry = Registry(any_redis, Vault(Ring((MasterKey("k", b"k" * 32),), "vault.keys"), secrets.token_bytes))
    await registry.create("billing", {"url": "https://billing.example"}, headers={})
    [missing] = await check_receivers(any_redis, settings)
    assert (missing.name, missing.good) == ("hook crm", False)
    assert missing.finding == "there is no endpoint gone that could get its outcomes"
    assert missing.fix == "make it with `lastword endpoints create gone`, or correct hooks.crm.to"
    await registry.create("gone", {"url": "https://gone.example"}, headers={})
    assert await check_receivers(any_redis, settings) == []


@pytest.mark.requirement("hooks:doctor")
@pytest.mark.usefixtures("_configured")
def test_doctor_looks_at_the_routes(lastword: Lastword, monkeypatch: pytest.MonkeyPatch, real_url: str) -> None:
    monkeypatch.setenv("LASTWORD_REDIS_URL", real_url)
    checks = {check["name"]: check for check in json.loads(lastword("doctor", "--json").out)["checks"]}
    assert checks["hook crm"]["good"]
    monkeypatch.setenv("LASTWORD_HOOKS__CRM__TO", '["nobody"]')
    findings = [check["finding"] for check in json.loads(lastword("doctor", "--json").out)["checks"]]
    assert "there is no endpoint nobody that could get its outcomes" in findings
