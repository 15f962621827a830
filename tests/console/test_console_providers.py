import json
from collections.abc import Callable
from typing import Any

import pytest
import redis

from channels.console import exits
from worker.store.health import Counts, HealthRules, Report, exchange

Lastword = Callable[..., Any]
RULES = HealthRules(deaths=3, window_s=600, skip_s=500)


@pytest.fixture
def stormy(real_url: str, unused_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two providers, of which `main` has died too often and `spare` a little."""
    settings = {
        "REDIS_URL": real_url,
        "PROVIDERS__MAIN__BASE_URL": "https://models.example:8443/secret-path/v1",
        "PROVIDERS__MAIN__MODEL": "large",
        "PROVIDERS__MAIN__FALLBACK": "spare",
        "PROVIDERS__SPARE__BASE_URL": f"http://127.0.0.1:{unused_port}/v1",
        "PROVIDERS__SPARE__WIRE": "anthropic",
        "PROVIDERS__SPARE__MODEL": "small",
        "PROVIDER_HEALTH__WINDOW_S": "600",
    }
    for name, value in settings.items():
        monkeypatch.setenv(f"LASTWORD_{name}", value)
    with redis.Redis.from_url(real_url) as client:
        exchange(client, Report("one", 1, {"main": Counts(4, 1), "spare": Counts(2, 7)}), RULES)


@pytest.mark.requirement("health:shown:list")
@pytest.mark.usefixtures("stormy")
def test_providers_are_listed_with_their_counts_and_who_is_skipped(lastword: Lastword) -> None:
    main, spare = (json.loads(line) for line in lastword("providers", "list", "--json").out.splitlines())
    assert 0 < main.pop("skipped_for_s") <= 500
    assert main.pop("skipped_until").endswith("+00:00")
    assert main == {
        "provider": "main",
        "wire": "chat",
        "host": "models.example:8443",
        "model": "large",
        "fallback": "spare",
        "deaths": 4,
        "completions": 1,
    }
    assert (spare["wire"], spare["fallback"], spare["skipped_for_s"]) == ("anthropic", None, None)
    assert (spare["deaths"], spare["completions"]) == (2, 7)
    ran = lastword("providers", "list")
    [line] = [line for line in ran.out.splitlines() if "main" in line]
    assert "for " in line
    assert "until " in line
    assert "secret-path" not in ran.out
    assert ran.code == exits.OK


@pytest.mark.requirement("health:off")
@pytest.mark.usefixtures("stormy")
def test_counts_that_nobody_keeps_are_not_shown_as_none_at_all(
    lastword: Lastword, monkeypatch: pytest.MonkeyPatch, real_url: str
) -> None:
    monkeypatch.setenv("LASTWORD_PROVIDER_HEALTH__DEATHS", "0")
    with redis.Redis.from_url(real_url) as client:
        client.flushall()
    for line in lastword("providers", "list", "--json").out.splitlines():
        assert json.loads(line)["deaths"] is None


def test_without_providers_the_list_says_so(lastword: Lastword, real_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LASTWORD_REDIS_URL", real_url)
    assert "no providers" in lastword("providers", "list").out


@pytest.mark.requirement("health:shown:doctor")
@pytest.mark.usefixtures("stormy")
def test_doctor_notes_a_provider_that_is_skipped(lastword: Lastword) -> None:
    checks = json.loads(lastword("doctor", "--json").out)["checks"]
    [note] = [check for check in checks if check["good"] and check["name"] == "provider main"]
    assert "4 attempts died of it, 1 calls completed" in note["finding"]
    assert "asked again by itself" in note["fix"]
