import stat
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from standardwebhooks import Webhook

from channels.destinations import check_destinations
from channels.endpoint_settings import EndpointSettings
from channels.endpoints.signing_keys import encode_secret
from channels.settings import Settings
from worker.errors import ConfigurationError
from worker.process_sections import LeaseSettings
from worker.sections import McpSettings, ProviderSettings, ring_of
from worker.settings import TurnSettings, WorkerSettings

URL = "http://127.0.0.1:1/v1"
HOOK = "http://hooks.example/hook"


def provider(**fields: Any) -> dict[str, Any]:
    return {"base_url": URL, "model": "m", **fields}


@pytest.mark.requirement("settings:checks:arithmetic")
def test_a_turn_deadline_below_the_worst_call_is_refused_with_the_sum() -> None:
    with pytest.raises(ValidationError) as caught:
        WorkerSettings.model_validate(
            {"providers": {"main": provider()}, "turns": {"turn_deadline_s": 5000, "resume_backoff_s": 4}}
        )
    words = str(caught.value)
    assert "turns.turn_deadline_s (5000) is shorter than the worst call of providers.main" in words
    assert "(1 + timeout_resume_retry_budget 2) x 1800" in words
    assert "+ 2 waits of 5 = 5410" in words


def test_a_turn_deadline_that_just_holds_the_worst_call_is_taken() -> None:
    turns = {"turn_deadline_s": 5410, "resume_backoff_s": 4}
    settings = WorkerSettings.model_validate({"providers": {"main": provider()}, "turns": turns})
    assert settings.turns.turn_deadline_s == 5410


@pytest.mark.requirement("settings:checks:arithmetic")
def test_a_lease_must_outlast_four_renewals() -> None:
    assert LeaseSettings(ttl_s=8, renew_s=2).ttl_s == 8
    with pytest.raises(ValidationError, match=r"4 x 2\.5 = 10"):
        LeaseSettings(ttl_s=8, renew_s=2.5)


@pytest.mark.requirement("settings:checks:arithmetic")
@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {"first_token_timeout_s": 1300, "prefill_timeout_s": 1250},
            r"first_token_timeout_s \(1300\) must not exceed prefill",
        ),
        (
            {"first_token_timeout_s": 1201},
            r"first_token_timeout_s \(1201\) must not exceed no_progress_timeout_s \(1200\)",
        ),
        ({"stall_timeout_s": 1200}, r"stall_timeout_s \(1200\) must be below no_progress_timeout_s \(1200\)"),
        ({"transport_backoff_s": 31}, r"transport_backoff_s \(31\) must not exceed transport_backoff_max_s \(30\)"),
    ],
)
def test_waits_that_cannot_fire_are_refused(fields: dict[str, float], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        ProviderSettings.model_validate(provider(**fields))


@pytest.mark.requirement("settings:checks:arithmetic")
def test_text_must_outlive_its_delivery() -> None:
    with pytest.raises(ValidationError) as caught:
        Settings.model_validate({"turns": {"keep_s": 432_159}, "endpoints": {"a": {"url": HOOK, "timeout_s": 100}}})
    assert "turns.keep_s (432159) is shorter than the longest delivery: 60 until its first" in str(caught.value)
    assert "delivery.give_up_s 432000 + an attempt of 100 = 432160" in str(caught.value)
    Settings.model_validate({"turns": {"keep_s": 432_160}, "endpoints": {"a": {"url": HOOK, "timeout_s": 100}}})
    Settings.model_validate({"turns": {"keep_s": 86400}, "delivery": {"give_up_s": 80000, "retry_waits_s": [60]}})


@pytest.mark.requirement("settings:budget:bounds")
def test_the_resume_budget_goes_from_0_to_10_and_is_2() -> None:
    assert TurnSettings().timeout_resume_retry_budget == 2
    assert TurnSettings(timeout_resume_retry_budget=0).timeout_resume_retry_budget == 0
    assert TurnSettings(timeout_resume_retry_budget=10).timeout_resume_retry_budget == 10
    for wrong in (-1, 11):
        with pytest.raises(ValidationError, match="timeout_resume_retry_budget"):
            TurnSettings(timeout_resume_retry_budget=wrong)


def test_an_agent_needs_a_provider_that_exists() -> None:
    with pytest.raises(
        ValidationError, match=r"agents\.a\.provider: there is no \[providers\.mian\].*did you mean 'main'"
    ):
        WorkerSettings.model_validate({"providers": {"main": provider()}, "agents": {"a": {"provider": "mian"}}})


def test_an_agent_needs_a_model() -> None:
    with pytest.raises(ValidationError, match=r"set agents\.a\.model or providers\.main\.model"):
        WorkerSettings.model_validate({"providers": {"main": {"base_url": URL}}, "agents": {"a": {}}})


def with_sections(**sections: Any) -> WorkerSettings:
    """Settings of these sections, with the provider `main` unless there are others."""
    return WorkerSettings.model_validate({"providers": {"main": provider()}, **sections})


@pytest.mark.requirement("settings:checks:names")
@pytest.mark.parametrize(
    ("sections", "words"),
    [
        (
            {"agents": {"a": {"tools": ["mcp:fiels/read"]}}, "mcp": {"files": {"url": URL}}},
            r"agents\.a\.tools: there is no \[mcp\.fiels\] for 'mcp:fiels/read': add it; did you mean 'files'",
        ),
        (
            {"agents": {"a": {"tools": ["refund"]}}, "tools": {"refnud": {"approval": "ask"}}},
            r"tools\.refnud is set, but no agent offers that tool: .*; did you mean 'refund'",
        ),
        (
            {"agents": {"a": {"tools": ["mcp:files"]}}, "mcp": {"files": {"url": URL}}, "tools": {"flies_read": {}}},
            r"tools\.flies_read is set, but no agent offers that tool",
        ),
        ({"providers": {"main": provider(fallback="sqare"), "spare": provider()}}, r"did you mean 'spare'"),
        ({"providers": {"main": provider(fallback="main")}}, r"providers\.main\.fallback is main itself"),
        (
            {"providers": {"main": provider(fallback="spare"), "spare": {"base_url": URL}}},
            r"providers\.spare\.model is not set, but it is the fallback of main: set it",
        ),
    ],
)
def test_a_name_that_nothing_bears_is_refused(sections: dict[str, Any], words: str) -> None:
    """A tool that needs approval must not run without it because its name was mistyped."""
    with pytest.raises(ValidationError, match=words):
        with_sections(**sections)


def test_a_tool_that_an_agent_can_offer_may_be_decided_about() -> None:
    """Which tools a server has is known to the server alone; where no agent offers anything, nothing can run."""
    agent = {"tools": ["refund", "mcp:files/read"]}
    tools: dict[str, Any] = {"refund": {}, "files_read": {"approval": "ask"}}
    with_sections(agents={"a": agent}, mcp={"files": {"url": URL}}, tools=tools)
    with_sections(tools=tools)


SPARE = {"main": provider(fallback="spare"), "spare": provider(prefill_timeout_s=3600)}


@pytest.mark.requirement("settings:checks:arithmetic")
def test_the_deadline_must_hold_a_call_that_the_slowest_fallback_makes_alone() -> None:
    """The others may be skipped."""
    words = r"worst call of providers\.spare: \(1 \+ timeout_resume_retry_budget 2\) x 3600 .* = 10801"
    with pytest.raises(ValidationError, match=words):
        with_sections(providers=SPARE)
    with_sections(providers=SPARE, turns={"turn_deadline_s": 10802})


@pytest.mark.requirement("settings:checks:arithmetic")
def test_where_nobody_is_skipped_the_deadline_must_hold_a_call_that_goes_round_the_fallbacks() -> None:
    """It begins with whoever answered last, so the slow one may be asked twice: 3600 + 1800 + 3600, and two waits."""
    nobody_skipped = {"deaths": 0}
    words = r"\(1 \+ timeout_resume_retry_budget 2\) attempts 3600 of spare \+ 1800 of main \+ 3600 of spare .* = 9001"
    with pytest.raises(ValidationError, match=words):
        with_sections(providers=SPARE, turns={"turn_deadline_s": 9001}, provider_health=nobody_skipped)
    with_sections(providers=SPARE, turns={"turn_deadline_s": 9002}, provider_health=nobody_skipped)


@pytest.mark.requirement("settings:checks:arithmetic")
@pytest.mark.parametrize(
    ("sections", "words"),
    [
        (
            {
                "providers": {"main": provider(fallback="spare"), "spare": provider()},
                "turns": {"timeout_resume_retry_budget": 0},
                "provider_health": {"deaths": 0},
            },
            r"main\.fallback \(spare\) would never be asked: .*_budget 0 = 1 attempt, and provider_health\.deaths 0",
        ),
        (
            {
                "providers": {"main": provider(fallback="spare"), "spare": provider()},
                "provider_health": {"skip_s": 1.5},
            },
            r"provider_health\.skip_s \(1\.5\) must be at least lease\.renew_s \(2\)",
        ),
        (
            {"compaction": {"threshold": 0.5}},
            r"compaction\.threshold \(0\.5\) is a share of providers\.NAME\.context_tokens, which no provider has",
        ),
        (
            {"tools": {"clock": {"timeout_s": 7200}}},
            r"tools\.clock\.timeout_s \(7200\) must be below turns\.turn_deadline_s \(7200\), else it never fires",
        ),
    ],
)
def test_what_could_never_take_effect_is_refused(sections: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        with_sections(**sections)


def test_what_can_take_effect_is_taken() -> None:
    """The counterparts of what is refused."""
    two = {"main": provider(fallback="spare"), "spare": provider()}
    with_sections(providers=two, turns={"timeout_resume_retry_budget": 0})
    with_sections(providers=two, turns={"timeout_resume_retry_budget": 1}, provider_health={"deaths": 0, "skip_s": 1})
    with_sections(provider_health={"skip_s": 1})
    with_sections(providers={"main": provider(context_tokens=1000)}, compaction={"threshold": 0.5})
    with_sections(compaction={"threshold": 0.5, "strategy": "off"})
    with_sections(compaction={"keep_tool_results": 0})
    with_sections(tools={"clock": {"timeout_s": 7199}})
    WorkerSettings.model_validate({"compaction": {"threshold": 0.5}})


@pytest.mark.parametrize("names", [("main",), ("main", "spare"), ("main", "spare", "third")])
def test_fallbacks_may_go_round(names: tuple[str, ...]) -> None:
    following = dict(zip(names, (*names[1:], "main"), strict=True)) if len(names) > 1 else {}
    providers = {name: ProviderSettings.model_validate(provider(fallback=following.get(name))) for name in names}
    WorkerSettings(providers=providers)
    assert ring_of("main", providers) == names


def test_the_address_of_an_mcp_server_is_asked_as_it_stands() -> None:
    """A server may want its last slash, or a query."""
    for url in ("http://h/mcp/", "https://h/mcp?team=blue", "http://h"):
        assert McpSettings.model_validate({"url": url}).url == url


def test_an_agent_that_is_not_known_is_told_the_nearest() -> None:
    settings = WorkerSettings.model_validate({"providers": {"main": provider()}, "agents": {"clerk": {}}})
    with pytest.raises(ConfigurationError, match="did you mean 'clerk'"):
        settings.agent("clerc")


@pytest.mark.parametrize("name", ["Main", "1a", "a__b", "a b", "", "a-", "x" * 61])
def test_a_name_that_no_variable_can_spell_is_refused(name: str) -> None:
    with pytest.raises(ValidationError):
        WorkerSettings.model_validate({"providers": {name: provider()}})


@pytest.mark.parametrize(
    "url", ["", "ftp://h", "http://", "h:80", "http://h?x=1", "http://h#x", "http://u@h", "http://h:x"]
)
def test_a_base_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ValidationError, match="it must"):
        ProviderSettings.model_validate({"base_url": url})


@pytest.mark.parametrize("url", ["localhost:6379", "http://h", "redis://", "redis://h:port", "unix:///tmp/s"])
def test_a_redis_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ValidationError, match="it must look like redis://"):
        WorkerSettings.model_validate({"redis_url": url})


@pytest.mark.parametrize("headers", [{"a b": "x"}, {"Host": "x"}, {"X": "a\r\nb"}, {"X": "ä"}, {"": "x"}])
def test_a_header_that_would_break_a_request_is_refused(headers: dict[str, str]) -> None:
    with pytest.raises(ValidationError, match="header"):
        ProviderSettings.model_validate(provider(headers=headers))


def test_a_receiver_cannot_be_given_a_forged_signature() -> None:
    with pytest.raises(ValidationError, match="Webhook-Id is set by the signature"):
        EndpointSettings.model_validate({"url": URL, "headers": {"Webhook-Id": "x"}})


def test_the_broker_is_the_redis_unless_it_is_set() -> None:
    assert WorkerSettings(redis_url="redis://h/0").broker() == "redis://h/0"
    assert WorkerSettings(redis_url="redis://h/0", broker_url="amqp://b").broker() == "amqp://b"
    with pytest.raises(ConfigurationError, match="set LASTWORD_REDIS_URL"):
        WorkerSettings().redis()


async def test_a_destination_is_an_endpoint_or_a_url(fake_redis: Any, tmp_path: Path) -> None:
    settings = Settings.model_validate(
        {"endpoints": {"ops": {"url": "http://hooks.example/ops"}}, "data_dir": tmp_path}
    )
    ops = settings.endpoint("ops")
    assert ops is not None
    assert ops.url == "http://hooks.example/ops"
    assert settings.plain_endpoint("https://example.com/x").url == "https://example.com/x"
    await check_destinations(fake_redis, settings, ["ops", "https://example.com/x"])
    with pytest.raises(ConfigurationError, match="did you mean 'ops'"):
        await check_destinations(fake_redis, settings, ["opps"])
    with pytest.raises(ConfigurationError, match="destination"):
        await check_destinations(fake_redis, settings, ["gopher://x"])


@pytest.mark.requirement("settings:secrets:never-printed")
@pytest.mark.parametrize(
    "destination", ["https:/hooks.example/hush7?k=hush7", "hooks.example/hush7", "u:hush7@hooks.example", "ops hush7"]
)
async def test_a_destination_that_is_none_does_not_repeat_what_may_be_a_secret(
    fake_redis: Any, destination: str
) -> None:
    settings = Settings.model_validate({"endpoints": {"ops": {"url": "http://hooks.example/ops"}}})
    with pytest.raises(
        ConfigurationError, match=r"is neither a URL nor an endpoint; add \[endpoints\.NAME\]"
    ) as caught:
        await check_destinations(fake_redis, settings, [destination])
    assert "hush7" not in str(caught.value)


@pytest.mark.requirement("settings:secrets:signing")
def test_a_signing_secret_is_generated_once_for_its_owner_alone(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path / "data")
    (key,) = settings.plain_endpoint("http://hooks.example/x").keys
    secret = encode_secret(key)
    assert settings.plain_endpoint("http://hooks.example/y").keys == (key,)
    Webhook(secret)  # an independent library takes it
    [file] = (tmp_path / "data").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.requirement("settings:secrets:unusable")
def test_a_secret_that_can_be_neither_read_nor_made_names_its_path_and_the_fix(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "taken" / "webhook-secret").mkdir(parents=True)
    for folder in (tmp_path / "file", tmp_path / "file" / "below", tmp_path / "taken"):
        settings = Settings(data_dir=folder)
        with pytest.raises(OSError, match=r"set delivery\.secret, or correct data_dir or its rights") as caught:
            settings.common_secret()
        assert str(folder / "webhook-secret") in str(caught.value)
    assert [path.name for path in (tmp_path / "taken").iterdir()] == ["webhook-secret"]


@pytest.mark.requirement("settings:secrets:unusable")
@pytest.mark.parametrize("content", [b"", b"whsec_", b"hush7\n", b"\xff\xfehush7"])
def test_a_generated_secret_that_was_damaged_names_its_path_and_not_its_words(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "webhook-secret").write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"webhook-secret: .*give whsec_") as caught:
        Settings(data_dir=tmp_path).common_secret()
    assert "hush7" not in str(caught.value)


@pytest.mark.requirement("settings:secrets:signing")
def test_an_endpoints_own_secret_comes_before_the_common_one(tmp_path: Path) -> None:
    own, common = ("whsec_" + letter * 32 for letter in "ab")
    settings = Settings.model_validate(
        {
            "data_dir": tmp_path,
            "delivery": {"secret": common},
            "endpoints": {"one": {"url": HOOK, "secret": own}, "two": {"url": HOOK}},
        }
    )
    secrets = {}
    for name in ("one", "two"):
        endpoint = settings.endpoint(name)
        assert endpoint is not None
        secrets[name] = [encode_secret(key) for key in endpoint.keys]
    assert secrets == {"one": [own], "two": [common]}
    assert not list(tmp_path.iterdir())
