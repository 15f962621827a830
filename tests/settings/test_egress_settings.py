"""The section [egress]: what it takes, what it refuses, and that it reaches the doors."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from channels.settings import load_settings
from tests.support.egress import Listener, guard
from tests.support.peer import Conversation, Peer
from worker.assembly import Providers
from worker.errors import ConfigurationError
from worker.guard import Blocked, Guard, guard_operator, guard_outsiders
from worker.http import HTTP_FAULTS, classify, open_client
from worker.lookup import SystemLookup
from worker.network_section import EgressSettings
from worker.settings import WorkerSettings
from worker.settings import load_settings as load_worker_settings

Write = Callable[[str], Path]


@pytest.mark.requirement("egress:settings:checked")
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('allow = ["10.0.0.1/8"]', ["egress.allow", "10.0.0.1/8", "the network of that length is 10.0.0.0/8"]),
        ('allow = ["169.254.169.254"]', ["egress.allow", "169.254.169.254", "can never be allowed", "remove it"]),
        ('deny = ["intranet"]', ["egress.deny", "intranet", "write one like 10.0.0.0/8"]),
        ('ports = ["80-"]', ["egress.ports", "80-", "write one like 443 or 8000-8999"]),
        ("ports = [70000]", ["egress.ports", "70000", "write one like 443 or 8000-8999"]),
        ("dns_timeout_s = 0", ["egress.dns_timeout_s", "0.05 to 60 seconds"]),
        ("allows = []", ["egress.allows", "did you mean 'allow'"]),
    ],
)
def test_what_is_wrong_is_refused_with_field_value_and_fix(text: str, words: list[str], write: Write) -> None:
    write(f"[egress]\n{text}\n")
    with pytest.raises(ConfigurationError) as caught:
        load_worker_settings()
    for word in words:
        assert word in str(caught.value)


@pytest.mark.requirement("egress:settings:checked")
def test_a_receiver_that_may_not_be_reached_is_refused_at_the_start(write: Write) -> None:
    receiver = '[turns]\nkeep_s = 2592000\n[endpoints.crm]\nurl = "http://127.0.0.1:9000/s3cret"\n'
    write(receiver)
    with pytest.raises(ConfigurationError) as caught:
        load_settings()
    assert "endpoints.crm: url = 'http://127.0.0.1/...' is blocked by policy: address 127.0.0.1" in str(caught.value)
    assert "give another URL, or change that setting" in str(caught.value)
    assert "s3cret" not in str(caught.value)
    write(f'{receiver}[egress]\nallow = ["127.0.0.0/8"]\n')
    assert load_settings().endpoints["crm"].url == "http://127.0.0.1:9000/s3cret"


@pytest.mark.requirement("egress:settings:checked")
def test_a_destination_that_may_not_be_reached_is_refused(write: Write) -> None:
    write("[turns]\nkeep_s = 2592000\n")
    with pytest.raises(ConfigurationError, match=r"destination = 'https://10\.0\.0\.1/\.\.\.' is blocked by policy"):
        load_settings().plain_endpoint("https://10.0.0.1/hook")


def test_variables_set_the_section(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LASTWORD_EGRESS__ALLOW", '["127.0.0.0/8", "::1/128"]')
    monkeypatch.setenv("LASTWORD_EGRESS__PORTS", "[443]")
    egress = load_worker_settings().egress
    assert (egress.allow, egress.ports) == (("127.0.0.0/8", "::1/128"), ("443",))


def egress_of(**section: Any) -> EgressSettings:
    return WorkerSettings.model_validate({"egress": section}).egress


async def code_of(guarded: Guard, url: str) -> str:
    async with open_client(connect_timeout_s=5, guard=guarded) as client:
        with pytest.raises(HTTP_FAULTS) as caught:
            await client.post(url)
    return classify(caught.value).code


@pytest.mark.requirement("tuning:egress:allow")
async def test_an_allowed_network_is_reached() -> None:
    async with Listener() as listener:
        url = f"http://127.0.0.1:{listener.port}/"
        assert await code_of(guard_outsiders(egress_of()), url) == "blocked"
        assert await code_of(guard_outsiders(egress_of(allow=["127.0.0.0/8"])), url) != "blocked"
        assert await code_of(guard_operator(egress_of()), url) != "blocked"


@pytest.mark.requirement("tuning:egress:deny")
async def test_a_denied_network_is_reached_by_nobody() -> None:
    async with Listener() as listener:
        url, both = f"http://127.0.0.1:{listener.port}/", {"allow": ["127.0.0.0/8"], "deny": ["127.0.0.1"]}
        assert await code_of(guard_outsiders(egress_of(**both)), url) == "blocked"
        assert await code_of(guard_operator(egress_of(**both)), url) == "blocked"
        assert listener.accepted == 0


@pytest.mark.requirement("tuning:egress:ports")
async def test_webhooks_go_to_the_ports_that_are_set() -> None:
    async with Listener() as listener:
        url, port, allow = f"http://127.0.0.1:{listener.port}/", listener.port, ["127.0.0.0/8"]
        assert await code_of(guard_outsiders(egress_of(allow=allow, ports=[port - 1])), url) == "blocked"
        assert await code_of(guard_outsiders(egress_of(allow=allow, ports=[port])), url) != "blocked"
        assert await code_of(guard_operator(egress_of(ports=[port - 1])), url) != "blocked"


@pytest.mark.requirement("tuning:egress:dns-timeout-s")
def test_a_lookup_is_given_the_time_that_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is done with it is shown in tests/egress/test_bounded_lookups.py."""
    given: list[float] = []

    monkeypatch.setattr(SystemLookup, "__init__", lambda _, timeout_s: given.append(timeout_s))
    guard_outsiders(egress_of(dns_timeout_s=1.5))
    guard_operator(egress_of(dns_timeout_s=2.5))
    assert given == [1.5, 2.5]


async def answer_ok(peer: Conversation) -> None:
    await peer.request()
    await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")


async def test_a_provider_is_dialled_through_the_guard_that_it_was_given() -> None:
    async with Peer(answer_ok) as peer:
        settings = WorkerSettings.model_validate({"providers": {"main": {"base_url": f"{peer.url}/v1", "model": "m"}}})
        for guarded, is_blocked in ((guard_operator(settings.egress), False), (guard_outsiders(settings.egress), True)):
            providers = Providers(settings.providers, guarded)
            client = providers._client("main", settings.providers["main"])
            if is_blocked:
                with pytest.raises(HTTP_FAULTS) as caught:
                    await client.post(peer.url)
                assert classify(caught.value).code == "blocked"
            else:
                assert (await client.post(peer.url)).text == "ok"
            await providers.close()
    with pytest.raises(Blocked):
        await guard().addresses("10.0.0.1", 443)


@pytest.mark.requirement("egress:rules:metadata")
@pytest.mark.parametrize(
    "url", ["http://169.254.169.254/v1", "http://[fd00:ec2::254]/v1", "http://[::ffff:a9fe:a9fe]/v1"]
)
async def test_a_provider_at_a_metadata_address_is_not_dialled(url: str) -> None:
    everything = egress_of(allow=["0.0.0.0/0", "::/0"])
    for guarded in (guard_operator(everything), guard_outsiders(everything)):
        assert await code_of(guarded, url) == "blocked"
