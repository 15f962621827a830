"""Each setting of an endpoint, and each default in [delivery], is in the endpoint that deliveries are sent to."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from channels.endpoints.model import Endpoint, Match, SigningKey, Tls
from channels.endpoints.signing_keys import encode_secret
from channels.settings import Settings, load_settings
from tests.settings.conftest import Write
from worker.errors import ConfigurationError

URL = "https://example.com/hook"
OWN, OLD, COMMON = (SigningKey("v1", name.encode() * 10) for name in ("own", "old", "common"))


def settings_of(endpoint: dict[str, Any], delivery: dict[str, Any] | None = None) -> Settings:
    return Settings.model_validate(
        {
            "endpoints": {"crm": {"url": URL, **endpoint}},
            "delivery": {"secret": encode_secret(COMMON), **(delivery or {})},
        }
    )


def made(endpoint: dict[str, Any] | None = None, delivery: dict[str, Any] | None = None) -> Endpoint:
    found = settings_of(endpoint or {}, delivery).endpoint("crm")
    assert found is not None
    return found


def test_what_is_not_said_is_as_in_the_reference() -> None:
    one = made()
    assert (one.name, one.url, one.origin, one.keys, one.headers) == ("crm", URL, "file", (COMMON,), ())
    assert (one.timeout_s, one.order, one.full, one.proxy, one.tls) == (15, "none", True, "", Tls())
    assert (one.limits.concurrency, one.limits.rate_per_s, one.limits.burst) == (10, None, 1)
    assert (one.limits.disable_after_s, one.limits.may_disable) == (432000, True)
    assert (one.backoff.attempts, one.backoff.give_up_s, one.backoff.head_wait_s) == (10, 432000, None)
    assert (one.subscription.events, one.subscription.sources, one.subscription.labels) == ((), (), ())


@pytest.mark.requirement("tuning:endpoints:previous-secrets")
def test_previous_secrets_sign_after_the_new_one() -> None:
    one = made({"secret": encode_secret(OWN), "previous_secrets": [encode_secret(OLD)]})
    assert one.keys == (OWN, OLD)


@pytest.mark.parametrize(
    ("field", "value", "seen", "expected"),
    [
        pytest.param(
            "events",
            ["turn.*", "call.completed"],
            lambda one: one.subscription.events,
            ("turn.*", "call.completed"),
            marks=pytest.mark.requirement("tuning:endpoints:events"),
        ),
        pytest.param(
            "source",
            "crm/*",
            lambda one: one.subscription.sources,
            (Match("crm/", prefix=True),),
            marks=pytest.mark.requirement("tuning:endpoints:source"),
        ),
        pytest.param(
            "labels",
            {"team": "ops"},
            lambda one: one.subscription.labels,
            (("team", Match("ops")),),
            marks=pytest.mark.requirement("tuning:endpoints:labels"),
        ),
        pytest.param(
            "timeout_s",
            7,
            lambda one: one.timeout_s,
            7,
            marks=pytest.mark.requirement("tuning:endpoints:timeout-s"),
        ),
        pytest.param(
            "retry_waits_s",
            [1, 2],
            lambda one: one.backoff.schedule_s,
            (1, 2),
            marks=pytest.mark.requirement("tuning:endpoints:retry-waits-s"),
        ),
        pytest.param(
            "rate_per_s",
            2.5,
            lambda one: one.limits.rate_per_s,
            2.5,
            marks=pytest.mark.requirement("tuning:endpoints:rate-per-s"),
        ),
        pytest.param(
            "burst",
            4,
            lambda one: one.limits.burst,
            4,
            marks=pytest.mark.requirement("tuning:endpoints:burst"),
        ),
        pytest.param(
            "concurrency",
            3,
            lambda one: one.limits.concurrency,
            3,
            marks=pytest.mark.requirement("tuning:endpoints:concurrency"),
        ),
        pytest.param(
            "order",
            "session",
            lambda one: one.order,
            "session",
            marks=pytest.mark.requirement("tuning:endpoints:order"),
        ),
        pytest.param(
            "head_wait_s",
            900,
            lambda one: one.backoff.head_wait_s,
            900,
            marks=pytest.mark.requirement("tuning:endpoints:head-wait-s"),
        ),
        pytest.param(
            "payload",
            "thin",
            lambda one: one.full,
            False,
            marks=pytest.mark.requirement("tuning:endpoints:payload"),
        ),
        pytest.param(
            "disable_after_s",
            60,
            lambda one: one.limits.disable_after_s,
            60,
            marks=pytest.mark.requirement("tuning:endpoints:disable-after-s"),
        ),
        pytest.param(
            "proxy",
            "http://proxy:3128",
            lambda one: one.proxy,
            "http://proxy:3128",
            marks=pytest.mark.requirement("tuning:endpoints:proxy"),
        ),
        pytest.param(
            "ca_file",
            "/tls/ca.pem",
            lambda one: one.tls.ca_file,
            "/tls/ca.pem",
            marks=pytest.mark.requirement("tuning:endpoints:ca-file"),
        ),
        pytest.param(
            "cert_file",
            "/tls/cert.pem",
            lambda one: one.tls.cert_file,
            "/tls/cert.pem",
            marks=pytest.mark.requirement("tuning:endpoints:cert-file"),
        ),
        pytest.param(
            "key_file",
            "/tls/key.pem",
            lambda one: one.tls.key_file,
            "/tls/key.pem",
            marks=pytest.mark.requirement("tuning:endpoints:key-file"),
        ),
    ],
)
def test_what_is_said_of_an_endpoint_is_in_it(field: str, value: Any, seen: Any, expected: object) -> None:
    needed: dict[str, dict[str, Any]] = {
        "source": {"events": ["*"]},
        "labels": {"events": ["*"]},
        "burst": {"rate_per_s": 1},
        "head_wait_s": {"order": "endpoint"},
        "key_file": {"cert_file": "/tls/cert.pem"},
    }
    assert seen(made()) != expected
    assert seen(made({field: value, **needed.get(field, {})})) == expected


@pytest.mark.requirement("settings:checks:places")
def test_an_endpoint_leaves_places_to_others() -> None:
    half = r"concurrency: 51 is more than half of delivery.concurrency \(100\).*set it to 50 at most.*102 at least"
    given = {"crm": {"url": "https://crm.example", "concurrency": 51}}
    with pytest.raises(ValidationError, match=rf"endpoints.crm: {half}"):
        Settings.model_validate({"endpoints": given})
    with pytest.raises(ValidationError, match=f"endpoint_{half}"):
        Settings.model_validate({"delivery": {"endpoint_concurrency": 51}})
    with pytest.raises(ConfigurationError, match=f"endpoint crm: {half}"):
        Settings().stored_definition("crm", given["crm"])
    Settings.model_validate({"endpoints": given, "delivery": {"concurrency": 102}})
    for places, most in ((100, 10), (12, 6), (3, 1), (1, 1)):
        assert Settings.model_validate({"delivery": {"concurrency": places}}).plain_rules().limits.concurrency == most


@pytest.mark.parametrize(
    ("field", "value", "own", "seen", "expected"),
    [
        pytest.param(
            "endpoint_concurrency",
            3,
            {"concurrency": 4},
            lambda one: one.limits.concurrency,
            (3, 4),
            marks=pytest.mark.requirement("tuning:delivery:endpoint-concurrency"),
        ),
        pytest.param(
            "rate_per_s",
            3,
            {"rate_per_s": 4},
            lambda one: one.limits.rate_per_s,
            (3, 4),
            marks=pytest.mark.requirement("tuning:delivery:rate-per-s"),
        ),
        pytest.param(
            "burst",
            3,
            {"burst": 4, "rate_per_s": 1},
            lambda one: one.limits.burst,
            (3, 4),
            marks=pytest.mark.requirement("tuning:delivery:burst"),
        ),
        pytest.param(
            "payload",
            "thin",
            {"payload": "full"},
            lambda one: one.full,
            (False, True),
            marks=pytest.mark.requirement("tuning:delivery:payload"),
        ),
        pytest.param(
            "proxy",
            "http://a:1",
            {"proxy": "http://b:2"},
            lambda one: one.proxy,
            ("http://a:1", "http://b:2"),
            marks=pytest.mark.requirement("tuning:delivery:proxy"),
        ),
        pytest.param(
            "ca_file",
            "/a",
            {"ca_file": "/b"},
            lambda one: one.tls.ca_file,
            ("/a", "/b"),
            marks=pytest.mark.requirement("tuning:delivery:ca-file"),
        ),
        pytest.param(
            "disable_after_s",
            60,
            {"disable_after_s": 70},
            lambda one: one.limits.disable_after_s,
            (60, 70),
            marks=pytest.mark.requirement("tuning:delivery:disable-after-s"),
        ),
    ],
)
def test_what_stands_in_delivery_is_for_those_who_do_not_say_otherwise(
    field: str, value: Any, own: dict[str, Any], seen: Any, expected: tuple[object, object]
) -> None:
    assert seen(made()) != expected[0]
    assert (seen(made({}, {field: value})), seen(made(own, {field: value}))) == expected
    if field not in ("proxy", "payload", "ca_file"):
        assert seen(settings_of({}, {field: value}).plain_endpoint(URL)) == expected[0]


@pytest.mark.requirement("tuning:delivery:give-up-s")
def test_what_is_given_up_when_is_the_same_for_all() -> None:
    assert made({}, {"give_up_s": 400_000}).backoff.give_up_s == 400_000
    assert settings_of({}, {"give_up_s": 400_000}).plain_endpoint(URL).backoff.give_up_s == 400_000


@pytest.mark.requirement("endpoints:settings:renamed")
@pytest.mark.parametrize("source", ["file", "environment"])
def test_the_old_name_of_the_section_is_refused_with_the_new_one(
    write: Write, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    if source == "file":
        write('[subscribers.crm]\nurl = "https://example.com/hush"\n')
        words = "subscribers (lastword.toml:1) is called endpoints now: write [endpoints.NAME] for [subscribers.NAME]"
    else:
        monkeypatch.setenv("LASTWORD_SUBSCRIBERS__CRM__URL", "https://example.com/hush")
        words = "LASTWORD_SUBSCRIBERS__CRM__URL is called LASTWORD_ENDPOINTS__CRM__URL now: rename it"
    with pytest.raises(ConfigurationError) as caught:
        load_settings()
    assert words in str(caught.value)
    assert "hush" not in str(caught.value)


@pytest.mark.requirement("endpoints:settings:checks")
@pytest.mark.parametrize(
    ("endpoint", "delivery", "words"),
    [
        ({"events": ["turn.complete"]}, {}, "there is no event type 'turn.complete'; did you mean 'turn.completed'?"),
        ({"source": "crm"}, {}, "source is set, but there are no events that it could narrow"),
        ({"events": ["*"], "source": ["a*b"]}, {}, "a star may only stand at the end"),
        ({"head_wait_s": 9}, {}, "head_wait_s is set, but nothing is in order"),
        ({"key_file": "k"}, {}, "key_file is set, but cert_file is not"),
        ({"burst": 2}, {}, "endpoints.crm: burst is set, but there is no rate"),
        (
            {"retry_waits_s": [300_000, 60_000]},
            {},
            (
                "endpoints.crm: retry_waits_s: 2 waits of 360000 s in all, each up to a fifth longer (432000), + "
                "2 attempts of 15 s before them = 432030, but a delivery is given up after delivery.give_up_s "
                "(432000); shorten retry_waits_s or raise delivery.give_up_s"
            ),
        ),
        ({"timeout_s": 60}, {"retry_waits_s": [10], "give_up_s": 71}, "endpoints.crm: retry_waits_s: 1 waits of 10 s"),
        ({}, {"retry_waits_s": [60, 60], "give_up_s": 173}, "(144), + 2 attempts of 15 s before them = 174"),
        (
            {},
            {"retry_waits_s": [1] * 39, "give_up_s": 631},
            "39 waits of 39 s in all, each up to a fifth longer (46.8)",
        ),
        ({"rate_per_s": 0}, {}, "endpoints.crm.rate_per_s"),
        ({"rate_per_s": 1, "burst": 0}, {}, "endpoints.crm.burst"),
        ({}, {"rate_per_s": 0}, "delivery.rate_per_s"),
        ({}, {"burst": 0}, "delivery.burst"),
        ({"previous_secrets": [encode_secret(OLD)]}, {}, "previous_secrets is set, but secret is not"),
        (
            {"proxy": "socks5://h"},
            {},
            "'socks5' proxies cannot be used, only http ones; give one like http://HOST:PORT",
        ),
        ({"proxy": "https://h:3128"}, {}, "'https' proxies cannot be used, only http ones; give one like http://"),
        ({"proxy": "http://h:31280000"}, {}, "'h:31280000', cannot be read; a port is from 1 to 65535; give one like"),
        ({"url": "ftp://h"}, {}, "does not begin with http:// or https://"),
    ],
)
def test_what_contradicts_itself_is_refused(endpoint: dict[str, Any], delivery: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError) as caught:
        settings_of(endpoint, delivery)
    assert words in str(caught.value)


@pytest.mark.requirement("endpoints:settings:checks")
def test_a_name_that_is_that_of_a_plain_url_is_refused() -> None:
    with pytest.raises(ValidationError, match="names that begin with url- are those of plain URLs"):
        Settings.model_validate({"endpoints": {"url-00": {"url": URL}}})


@pytest.mark.requirement("endpoints:secrets:strict")
@pytest.mark.parametrize(
    "text",
    [
        "v1,whsec_" + "b3duIHNlY3JldCBvZiB0aGUgZW5kcG9pbnQ=",
        "whsec_QQ==",
        "whsec_abc_def-" + "A" * 32,
        "whpk_" + "A" * 43 + "=",
        "hush",
    ],
)
def test_a_secret_that_is_none_is_refused_and_not_repeated(write: Write, text: str) -> None:
    write(f'[endpoints.crm]\nurl = "{URL}"\nsecret = "{text}"\n')
    with pytest.raises(ConfigurationError, match=r"endpoints\.crm\.secret") as caught:
        load_settings()
    assert text not in str(caught.value)


@pytest.mark.requirement("endpoints:headers")
@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ({"Host": "hush"}, "Host"),
        ({"Content-Encoding": "hush"}, "Content-Encoding is set by Lastword itself"),
        ({"Transfer-Encoding": "hush"}, "Transfer-Encoding"),
        ({"Connection": "hush"}, "Connection"),
        ({"Keep-Alive": "hush"}, "Keep-Alive is set by Lastword itself"),
        ({"Proxy-Authorization": "hush"}, "Proxy-Authorization is set by Lastword itself"),
        ({"User-Agent": "hush"}, "User-Agent is set by Lastword itself"),
        ({"Accept-Encoding": "hush"}, "Accept-Encoding is set by Lastword itself"),
        ({"webhook-ID": "hush"}, "webhook-ID is set by the signature"),
        ({"X-Team": "hush", "x-team": "hush"}, "x-team is given twice"),
        ({"X-Team": "hush" * 1025}, "the value of X-Team has more than 4096 bytes"),
        ({"X-Team": "hush\r\nX-Other: 1"}, "the value of X-Team holds a character"),
        ({"X-Team": "hush\0"}, "the value of X-Team holds a character"),
        ({"X-Team": "hüsh"}, "the value of X-Team holds a character"),
        ({"X-Team": " hush"}, "the value of X-Team holds a character"),
        ({"X Team": "hush"}, "is no header that may be set"),
        ({f"X-{number}": "hush" for number in range(33)}, "33 given, at most 32"),
    ],
)
def test_a_header_that_endpoints_may_not_set_is_refused_and_its_value_not_repeated(
    headers: dict[str, str], words: str
) -> None:
    try:
        settings_of({"headers": headers})
    except ValidationError as error:
        told = str([fault["msg"] for fault in error.errors()])
        assert words in told
        assert "hush" not in told
        assert "hüsh" not in told
    else:
        pytest.fail("it was taken")


@pytest.mark.requirement("endpoints:headers")
def test_a_header_of_4096_bytes_is_taken() -> None:
    assert made({"headers": {"Authorization": "x" * 4096}}).headers == (("Authorization", "x" * 4096),)


def test_paths_in_a_file_are_those_of_its_folder(write: Write, tmp_path: Path) -> None:
    write(f'[endpoints.crm]\nurl = "{URL}"\nca_file = "ca.pem"\n')
    one = load_settings().endpoint("crm")
    assert one is not None
    assert one.tls.ca_file == str(tmp_path / "ca.pem")
