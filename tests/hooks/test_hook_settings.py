"""The settings of inbound routes: what is refused, and that each reaches what it sets."""

import base64
import hashlib
import hmac
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from channels.hooks.route import Faulty, Filtered, Wanted
from channels.hooks.settings import HookSettings, routes_of
from channels.settings import Settings, load_settings
from tests.support.hooks import LONG_ENOUGH, OTHER, SECRET, STANDARD, by_hmac, by_time, hook, judged_by, raw, route
from worker.errors import ConfigurationError

NOW = 1_764_590_400.0
BODY = b'{"customer": {"id": 7}, "type": "paid", "n": "d-1"}'
PROVIDERS = {"main": {"base_url": "http://127.0.0.1:9/v1", "model": "m"}}


def judged(headers: dict[str, str], now_s: float = NOW, **fields: Any) -> Wanted | Filtered | Faulty:
    return judged_by(route(**fields), raw(headers), BODY, now_s)


def wanted(headers: dict[str, str] | None = None, **fields: Any) -> Wanted:
    met = judged(by_hmac(BODY) if headers is None else headers, **fields)
    assert isinstance(met, Wanted), met
    return met


@pytest.mark.requirement("hooks:settings:refused")
@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"secrets": {}}, "secrets"),
        ({"secrets": {"current": {}}}, "it holds nothing: set value or value_file"),
        ({"secrets": {"current": {"value": "canary-short"}}}, "secrets.current: the secret has 12 bytes"),
        ({"verification": "none"}, "verification"),
        ({"verification": "standard"}, "secrets.current: the secret does not start with whsec_"),
        ({"verification": "secret", "signature_prefix": "sha256="}, "signature_prefix means nothing where"),
        ({"verification": "hmac_timestamped", "signature_prefix": "x"}, "remove it, or set verification to hmac"),
        ({"verification": "secret", "encoding": "hex"}, "encoding means nothing"),
        ({"tolerance_s": 10}, "set verification to hmac_timestamped or standard"),
        ({"verification": "hmac_timestamped", "tolerance_s": 0}, "tolerance_s"),
        ({"verification": "hmac_timestamped", "tolerance_s": 3601}, "tolerance_s"),
        ({"signature_prefix": "a\nb"}, "signature_prefix holds what no header keeps"),
        ({"header": "X Signature"}, "header"),
        ({"prompt": "{title}"}, "prompt: the placeholder {title} is not known"),
        ({"prompt": ""}, "prompt"),
        ({"session": "crm/{body}"}, "session: the placeholder {body} is not known"),
        ({"session": "a b"}, "session 'a b' makes no session id"),
        ({"session": "solo/{/a}"}, "not beginning with solo/"),
        ({"session": "{/a}/{/b}/{/c}/{/d}"}, "each placeholder counts 60"),
        ({"session": "crm/{/a}-{/b}"}, "session: nothing tells where /a ends and /b begins"),
        ({"event_pointer": "type"}, "event_pointer 'type' is no JSON pointer"),
        ({"delivery_pointer": "/a~"}, "delivery_pointer '/a~' is no JSON pointer"),
        ({"labels_from": {"a": "b"}}, "labels_from.a 'b' is no JSON pointer"),
        ({"labels": {"a": "x"}, "labels_from": {"a": "/b"}}, "a is in labels and in labels_from"),
        ({"labels": {"bad name": "x"}}, "labels"),
        ({"labels": {f"a{number}": "x" for number in range(20)},
          "labels_from": {f"b{number}": "/x" for number in range(13)}}, "more than 32"),
        ({"dedupe_s": 59}, "dedupe_s"),
        ({"rate_per_minute": 0}, "rate_per_minute"),
        ({"nonsense": 1}, "nonsense"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused_with_its_fix(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError) as caught:
        HookSettings.model_validate(hook(**fields))
    told = [f"{'.'.join(map(str, each['loc']))} {each['msg']}" for each in caught.value.errors()]
    assert any(words in each for each in told), told
    assert not any("canary" in each for each in told)


@pytest.mark.requirement("hooks:settings:refused")
@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"agent": "nobody"}, r"hooks\.crm: agents\.nobody is not set"),
        ({"to": ["no body"]}, r"hooks\.crm: name 'no body'"),
        ({"to": ["ftp://x/canary"]}, r"hooks\.crm: to = 'ftp://x/\.\.\.' does not begin with http"),
        ({"to": ["http://u:canary@x/"]}, r"hooks\.crm: to names a user or a password"),
        ({"to": ["http://10.0.0.1/canary"]}, r"hooks\.crm: to = 'http://10\.0\.0\.1/\.\.\.' is blocked by policy"),
    ],
)
def test_a_route_to_an_agent_that_is_not_there_or_to_what_no_receiver_can_be_is_refused(
    fields: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValidationError, match=words) as caught:
        Settings.model_validate({"providers": PROVIDERS, "turns": LONG_ENOUGH, "hooks": {"crm": hook(**fields)}})
    assert "canary" not in caught.value.errors()[0]["msg"]


@pytest.mark.requirement("hooks:settings:secrets")
@pytest.mark.requirement("tuning:hooks:secrets:value")
@pytest.mark.requirement("tuning:hooks:secrets:value-file")
def test_secrets_come_from_the_settings_the_environment_and_files_and_are_never_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "next").write_text(OTHER + "\n", encoding="utf-8")
    third = "a third secret from the environment"
    (tmp_path / "lastword.toml").write_text(
        f'[turns]\nkeep_s = 2592000\n[hooks.crm]\nverification = "hmac"\nprompt = "{{body}}"\n'
        f'[hooks.crm.secrets.current]\nvalue = "{SECRET}"\n[hooks.crm.secrets.next]\nvalue_file = "next"\n',
        encoding="utf-8",
    )
    monkeypatch.setenv("LASTWORD_CONFIG", str(tmp_path / "lastword.toml"))
    monkeypatch.setenv("LASTWORD_HOOKS__CRM__SECRETS__LAST__VALUE", third)
    settings = load_settings()
    one = routes_of(settings.hooks)["crm"]
    for secret in (SECRET, OTHER, third):
        assert isinstance(judged_by(one, raw(by_hmac(BODY, secret)), BODY, NOW), Wanted)
        for text in (repr(settings), repr(one), str(settings.model_dump())):
            assert secret not in text
    assert isinstance(judged_by(one, raw(by_hmac(BODY, OTHER + "x")), BODY, NOW), Faulty)
    (tmp_path / "next").write_text("canary-short", encoding="utf-8")
    with pytest.raises(ConfigurationError) as caught:
        load_settings()
    assert "secrets.next: the secret has 12 bytes" in str(caught.value)
    assert "canary" not in str(caught.value)
    (tmp_path / "next").unlink()
    with pytest.raises(ConfigurationError, match=r"hooks\.crm\.secrets\.next .*value_file = .* cannot be read"):
        load_settings()


@pytest.mark.requirement("tuning:hooks:verification")
@pytest.mark.requirement("tuning:hooks:header")
@pytest.mark.requirement("tuning:hooks:signature-prefix")
@pytest.mark.requirement("tuning:hooks:encoding")
def test_how_a_sender_proves_himself_is_set() -> None:
    digest = hmac.new(SECRET.encode(), BODY, hashlib.sha256).digest()
    wanted({"X-Hub-Signature-256": f"sha256={digest.hex()}"}, header="X-Hub-Signature-256",
                  signature_prefix="sha256=")  # fmt: skip
    wanted({"X-Webhook-Signature": base64.b64encode(digest).decode()}, encoding="base64")
    wanted(by_time(BODY, NOW), verification="hmac_timestamped")
    wanted({"X-Webhook-Secret": SECRET}, verification="secret")
    standard: dict[str, Any] = {"verification": "standard", "secrets": {"current": {"value": STANDARD}}}
    assert isinstance(judged(by_hmac(BODY), **standard), Faulty)


@pytest.mark.requirement("tuning:hooks:tolerance-s")
def test_how_old_a_signature_may_be_is_set() -> None:
    for off_s, counts in ((10, True), (11, False), (-10, True), (-11, False)):
        met = judged(by_time(BODY, NOW + off_s), verification="hmac_timestamped", tolerance_s=10)
        assert isinstance(met, Wanted if counts else Faulty), off_s


@pytest.mark.requirement("tuning:hooks:events")
@pytest.mark.requirement("tuning:hooks:event-header")
@pytest.mark.requirement("tuning:hooks:event-pointer")
@pytest.mark.requirement("tuning:hooks:delivery-header")
@pytest.mark.requirement("tuning:hooks:delivery-pointer")
def test_where_an_event_tells_its_type_and_id_is_set() -> None:
    headers = by_hmac(BODY, **{"X-Event": "open", "X-Id": "7"})
    met = wanted(headers, event_header="X-Event", delivery_header="X-Id", events=["open"])
    assert (met.event_type, met.delivery_id) == ("open", "7")
    met = wanted(headers, event_pointer="/type", delivery_pointer="/n", events=["paid"])
    assert (met.event_type, met.delivery_id) == ("paid", "d-1")
    assert isinstance(judged(headers, event_header="X-Event", events=["paid"]), Filtered)


@pytest.mark.requirement("tuning:hooks:prompt")
@pytest.mark.requirement("tuning:hooks:prompt-bytes")
@pytest.mark.requirement("tuning:hooks:on-missing")
@pytest.mark.requirement("tuning:hooks:missing-word")
@pytest.mark.requirement("tuning:hooks:session")
def test_what_is_made_of_an_event_is_set() -> None:
    met = wanted(prompt="of {/customer/id}: {/none}", missing_word="nothing", session="crm/{/customer/id}")
    assert (met.prompt, met.session) == ("of 7: nothing", "crm/7")
    assert isinstance(judged(by_hmac(BODY), prompt="{/none}", on_missing="refuse"), Faulty)
    assert wanted(prompt="12345", prompt_bytes=5).session is None
    assert isinstance(judged(by_hmac(BODY), prompt="123456", prompt_bytes=5), Faulty)


@pytest.mark.requirement("tuning:hooks:labels")
@pytest.mark.requirement("tuning:hooks:labels-from")
@pytest.mark.requirement("tuning:hooks:label-characters")
@pytest.mark.requirement("tuning:hooks:dedupe-s")
@pytest.mark.requirement("tuning:hooks:dedupe-body-s")
def test_labels_and_what_counts_as_a_repetition_are_set() -> None:
    met = wanted(labels={"a": "b"}, labels_from={"kind": "/type"}, label_characters=3)
    assert met.labels == {"a": "b", "kind": "pai"}
    assert wanted(delivery_pointer="/n", dedupe_s=100).key_s == 100
    assert (met.key, wanted(dedupe_body_s=9).key_s) == (None, 9)
