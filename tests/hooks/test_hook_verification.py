"""Whether an event comes from who holds a route's secret. Signatures are made here, or by public libraries."""

import base64
import hashlib
import hmac
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook

from channels.hooks.verification import Kind, Verification, is_genuine, key_of, proof
from tests.support.hooks import OTHER, SECRET, STANDARD, by_hmac, by_time, raw
from worker.errors import ConfigurationError

NOW = 1_764_590_400
BODY = '{"title": "Zażółć gęślą jaźń \\ud83d\\ude00 😀"}'.encode()
HEADERS: dict[Kind, str] = {
    "hmac": "X-Webhook-Signature",
    "hmac_timestamped": "X-Webhook-Signature",
    "secret": "X-Webhook-Secret",
    "standard": "webhook",
}


def rule(kind: Kind, *secrets: str, **more: Any) -> Verification:
    keys = tuple(key_of("secrets.current", kind, secret) for secret in secrets or (SECRET,))
    return Verification(kind, keys, more.pop("header", HEADERS[kind]), **more)


def by_library(body: bytes, at: int = NOW, secret: str = STANDARD, message: str = "msg_1") -> dict[str, str]:
    signature = Webhook(secret).sign(message, datetime.fromtimestamp(at, UTC), body.decode())
    return {"webhook-id": message, "webhook-timestamp": str(at), "webhook-signature": signature}


@pytest.mark.requirement("hooks:verification:hmac")
def test_a_body_that_was_signed_with_the_secret_is_genuine() -> None:
    assert is_genuine(rule("hmac"), raw(by_hmac(BODY)), BODY, NOW)
    assert not is_genuine(rule("hmac"), raw(by_hmac(BODY, OTHER)), BODY, NOW)
    assert not is_genuine(rule("hmac"), raw(by_hmac(BODY)), BODY + b" ", NOW)
    assert not is_genuine(rule("hmac"), {}, BODY, NOW)


@pytest.mark.requirement("hooks:verification:hmac")
def test_a_known_vector_of_a_big_sender_is_genuine() -> None:
    """From GitHub's documents on validating deliveries."""
    signature = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
    github = rule("hmac", "It's a Secret to Everybody", header="X-Hub-Signature-256", prefix="sha256=")
    assert is_genuine(github, raw({"X-Hub-Signature-256": signature}), b"Hello, World!", NOW)
    assert not is_genuine(github, raw({"X-Hub-Signature-256": signature[7:]}), b"Hello, World!", NOW)


@pytest.mark.requirement("hooks:verification:hmac")
def test_a_signature_in_base64_is_taken_where_that_is_set_and_only_there() -> None:
    digest = hmac.new(SECRET.encode(), BODY, hashlib.sha256).digest()
    spelled = {"X-Webhook-Signature": base64.b64encode(digest).decode()}
    assert is_genuine(rule("hmac", encoding="base64"), raw(spelled), BODY, NOW)
    assert not is_genuine(rule("hmac"), raw(spelled), BODY, NOW)
    for wrong in (spelled["X-Webhook-Signature"].rstrip("="), digest.hex().upper(), f" {digest.hex()} "):
        for encoding in ("hex", "base64"):
            given_headers = raw({"X-Webhook-Signature": wrong})
            assert not is_genuine(rule("hmac", encoding=encoding), given_headers, BODY, NOW)


@pytest.mark.requirement("hooks:verification:timestamped")
def test_a_time_and_a_body_that_were_signed_together_are_genuine() -> None:
    timed = rule("hmac_timestamped")
    assert is_genuine(timed, raw(by_time(BODY, NOW)), BODY, NOW)
    header = by_time(BODY, NOW)["X-Webhook-Signature"]
    time, signature = header.split(",")
    for same in (f"{signature},{time}", f"{time},v1={'0' * 64},{signature}", f"v0=x,{time},{signature},scheme=v9"):
        assert is_genuine(timed, raw({"X-Webhook-Signature": same}), BODY, NOW), same
    for wrong in (
        signature,
        time,
        f"{time},{time},{signature}",
        f"t={NOW + 1},{signature}",
        f"t=Infinity,{signature}",
        f"t={NOW}.0,{signature}",
        f"t=0{NOW},{signature}",
        f"t=+{NOW},{signature}",
        f"t=,{signature}",
        f"{time},v0={signature[3:]}",
        f"{time};{signature}",
        f"{time}, {signature}",
        "",
        ",,,",
    ):
        assert not is_genuine(timed, raw({"X-Webhook-Signature": wrong}), BODY, NOW), wrong


@pytest.mark.requirement("hooks:verification:timestamped")
@pytest.mark.requirement("hooks:verification:standard")
@pytest.mark.parametrize(("before", "counts"), [(19, True), (20, False)])
def test_of_twenty_signatures_each_counts_and_no_further_one(before: int, counts: bool) -> None:
    """Each of them costs a comparison with each key."""
    time, signature = by_time(BODY, NOW)["X-Webhook-Signature"].split(",")
    many = raw({"X-Webhook-Signature": ",".join([time, *["v1=0"] * before, signature])})
    assert is_genuine(rule("hmac_timestamped"), many, BODY, NOW) is counts
    headers = by_library(BODY)
    headers["webhook-signature"] = " ".join([*["v1,AAAA"] * before, headers["webhook-signature"]])
    assert is_genuine(rule("standard", STANDARD), raw(headers), BODY, NOW) is counts


@pytest.mark.requirement("hooks:verification:tolerance")
@pytest.mark.parametrize("kind", ["hmac_timestamped", "standard"])
def test_a_signature_counts_until_its_tolerance_is_over_in_both_directions(kind: Kind) -> None:
    timed = rule(kind, SECRET if kind == "hmac_timestamped" else STANDARD, tolerance_s=300)

    def signed(at: int) -> dict[str, list[bytes]]:
        return raw(by_time(BODY, at) if kind == "hmac_timestamped" else by_library(BODY, at))

    for off_s, counts in ((-301, False), (-300, True), (0, True), (300, True), (301, False)):
        assert is_genuine(timed, signed(NOW + off_s), BODY, NOW) is counts, off_s
    assert not is_genuine(timed, signed(NOW - 300), BODY, NOW + 0.001)


@pytest.mark.requirement("hooks:verification:secret")
def test_a_secret_in_a_header_is_compared_whole() -> None:
    plain = rule("secret", header="X-Gitlab-Token")
    assert is_genuine(plain, raw({"X-GitLab-Token": SECRET}), BODY, NOW)
    for wrong in (SECRET[:-1], SECRET + "x", SECRET.upper(), ""):
        assert not is_genuine(plain, raw({"X-Gitlab-Token": wrong}), BODY, NOW)
    umlauts = "ein Geheimnis mit Umläuten"
    assert is_genuine(rule("secret", umlauts), raw({"X-Webhook-Secret": umlauts}), BODY, NOW)


@pytest.mark.requirement("hooks:verification:standard")
def test_what_the_public_library_of_standard_webhooks_signs_is_genuine() -> None:
    standard = rule("standard", STANDARD)
    assert is_genuine(standard, raw(by_library(BODY)), BODY, NOW)
    svix = {name.replace("webhook", "svix"): value for name, value in by_library(BODY).items()}
    assert is_genuine(rule("standard", STANDARD, header="svix"), raw(svix), BODY, NOW)
    assert not is_genuine(standard, raw(svix), BODY, NOW)
    for name in by_library(BODY):
        headers = raw(by_library(BODY))
        del headers[name]
        assert not is_genuine(standard, headers, BODY, NOW), name
        assert not is_genuine(standard, {**raw(by_library(BODY)), name: [b""]}, BODY, NOW), name


@pytest.mark.requirement("hooks:verification:standard")
def test_among_several_tokens_of_standard_webhooks_one_of_v1_counts() -> None:
    standard = rule("standard", STANDARD)
    headers = by_library(BODY)
    token = headers["webhook-signature"]
    for tokens, counts in (
        (f"v1a,AAAA v1,AAAA {token}", True),
        (f"{token} nonsense", True),
        (token.replace("v1,", "v1a,"), False),
        (token.replace("v1,", "v2,"), False),
        (token.removeprefix("v1,"), False),
        ("", False),
    ):
        assert is_genuine(standard, raw({**headers, "webhook-signature": tokens}), BODY, NOW) is counts, tokens


@pytest.mark.requirement("hooks:verification:standard")
def test_an_id_with_a_dot_or_a_blank_proves_nothing() -> None:
    """A dot would let the end of the id be read as the time."""
    for message in ("msg.1", "msg 1", "x" * 256):
        headers = by_library(BODY, message=message)
        assert not is_genuine(rule("standard", STANDARD), raw(headers), BODY, NOW), message


@pytest.mark.requirement("hooks:verification:rotation")
def test_each_of_several_secrets_counts() -> None:
    both = rule("hmac", OTHER, SECRET)
    assert is_genuine(both, raw(by_hmac(BODY, SECRET)), BODY, NOW)
    assert is_genuine(both, raw(by_hmac(BODY, OTHER)), BODY, NOW)
    assert not is_genuine(both, raw(by_hmac(BODY, "a third secret, 16 bytes and more")), BODY, NOW)


@pytest.mark.requirement("hooks:verification:one-kind")
def test_no_kind_takes_the_proof_of_another() -> None:
    proofs = {
        "hmac": by_hmac(BODY),
        "hmac_timestamped": by_time(BODY, NOW),
        "secret": {"X-Webhook-Secret": SECRET, "X-Webhook-Signature": SECRET},
        "standard": by_library(BODY),
    }
    kinds: tuple[Kind, ...] = ("hmac", "hmac_timestamped", "secret", "standard")
    for kind in kinds:
        one = rule(kind, STANDARD if kind == "standard" else SECRET)
        taken = [given_as for given_as, headers in proofs.items() if is_genuine(one, raw(headers), BODY, NOW)]
        assert taken == [kind]


@pytest.mark.requirement("hooks:verification:one-kind")
def test_a_header_that_is_given_twice_proves_nothing() -> None:
    headers = raw(by_hmac(BODY))
    headers["x-webhook-signature"] *= 2
    assert not is_genuine(rule("hmac"), headers, BODY, NOW)


@pytest.mark.requirement("hooks:verification:any-byte")
@given(st.sampled_from(list(HEADERS)), st.data())
def test_any_byte_that_changes_is_noticed(kind: Kind, data: st.DataObject) -> None:
    one = rule(kind, STANDARD if kind == "standard" else SECRET)
    headers = raw(
        {
            "hmac": by_hmac(BODY),
            "hmac_timestamped": by_time(BODY, NOW),
            "secret": {"X-Webhook-Secret": SECRET},
            "standard": by_library(BODY),
        }[kind]
    )
    assert is_genuine(one, headers, BODY, NOW)
    places = [(name, at) for name, values in headers.items() for at in range(len(values[0]))]
    if kind != "secret":  # which says nothing of the body
        places += [("", at) for at in range(len(BODY))]
    name, at = data.draw(st.sampled_from(places))
    before = headers[name][0] if name else BODY
    byte = data.draw(st.integers(0, 255).filter(lambda other: other != before[at]))
    after = before[:at] + bytes([byte]) + before[at + 1 :]
    if name:
        assert not is_genuine(one, {**headers, name: [after]}, BODY, NOW)
    else:
        assert not is_genuine(one, headers, after, NOW)


@pytest.mark.requirement("hooks:verification:any-byte")
@given(
    st.sampled_from(list(HEADERS)),
    st.dictionaries(
        st.sampled_from(["x-webhook-signature", "x-webhook-secret", "webhook-id", "webhook-timestamp"]),
        st.lists(st.binary(max_size=200), max_size=3),
    ),
    st.binary(max_size=200),
)
def test_no_request_raises_and_none_is_genuine_by_chance(
    kind: Kind, headers: dict[str, list[bytes]], body: bytes
) -> None:
    one = rule(kind, STANDARD if kind == "standard" else SECRET)
    assert not is_genuine(one, headers, body, NOW)


@pytest.mark.requirement("hooks:verification:secrets")
@pytest.mark.parametrize(
    ("kind", "secret", "words"),
    [
        ("hmac", "fifteen bytes..", "15 bytes: give at least 16"),
        ("hmac", "", "0 bytes"),
        ("secret", " " + SECRET, "begins or ends with a blank"),
        ("standard", "v1," + STANDARD, "does not start with whsec_"),
        ("standard", SECRET, "does not start with whsec_"),
        ("standard", STANDARD.replace("A", "-"), "not standard base64"),
        ("standard", "whsec_QQ==", "1 bytes"),
    ],
)
def test_a_secret_that_cannot_be_one_is_refused_without_being_told(kind: Kind, secret: str, words: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        key_of("secrets.current", kind, secret)
    assert "secrets.current" in str(caught.value)
    assert words in str(caught.value)
    assert len(secret) < 8 or secret not in str(caught.value)


@pytest.mark.requirement("hooks:sign")
@pytest.mark.parametrize("kind", list(HEADERS))
def test_what_is_signed_here_is_what_senders_sign(kind: Kind) -> None:
    one = rule(kind, STANDARD if kind == "standard" else SECRET)
    made = proof(one, BODY, now_s=NOW, message="msg_1")
    expected = {
        "hmac": by_hmac(BODY),
        "hmac_timestamped": by_time(BODY, NOW),
        "secret": {"X-Webhook-Secret": SECRET},
        "standard": by_library(BODY),
    }
    assert made == expected[kind]
