"""Whether headers and a body belong together: vectors made with another tool, hostile ones among them."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import standardwebhooks.webhooks
from hypothesis import given
from hypothesis import strategies as st

from channels.endpoints.model import SigningKey
from channels.endpoints.signing_keys import VerifyingKey, decode_verifying_key, encode_secret, verifying_key
from channels.webhook.signature import Unverified, Verified, signed_headers, verify

VECTORS = json.loads((Path(__file__).parent / "signature_vectors.json").read_text(encoding="utf-8"))["verifying"]
KEYS = [SigningKey("v1", b"a" * 32), SigningKey("v1a", b"b" * 32), SigningKey("v1", b"c" * 24)]
NOW = 1790000000


def told(keys: list[VerifyingKey], headers: dict[str, str], body: bytes) -> str:
    verdict = verify(keys, headers, body, NOW)
    assert isinstance(verdict, Unverified)
    return verdict.message


@pytest.mark.requirement("signing:verify:vectors")
@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_the_verdict_is_the_one_of_the_vector(vector: dict[str, Any]) -> None:
    keys = [decode_verifying_key("key", text) for text in vector["keys"]]
    body = bytes.fromhex(vector["body_hex"]) if "body_hex" in vector else vector["body"].encode()
    verdict = verify(keys, vector["headers"], body, vector["now"], vector["tolerance"])
    expected = vector["expected"]
    if "reason" in expected:
        assert isinstance(verdict, Unverified)
        assert verdict.reason == expected["reason"]
        assert (verdict.matched is not None) == (verdict.reason in {"stale", "future"})
    else:
        assert verdict == Verified(**expected)


@pytest.mark.requirement("signing:verify:vectors")
def test_the_vectors_hold_every_reason() -> None:
    reasons = {vector["expected"].get("reason", "verified") for vector in VECTORS}
    assert reasons == {"verified", "missing_header", "malformed", "stale", "future", "no_match"}


@pytest.mark.requirement("signing:verify:vectors")
@given(st.permutations(KEYS), st.sampled_from(KEYS), st.binary(max_size=100), st.integers(-300, 300))
def test_what_is_signed_verifies_with_each_of_its_keys(
    keys: list[SigningKey], mine: SigningKey, body: bytes, age_s: int
) -> None:
    headers = signed_headers(keys, "dlv_1", NOW, body, 0)
    assert verify([verifying_key(mine)], headers, body, NOW + age_s) == Verified(mine.scheme, 0, age_s)


@pytest.mark.requirement("signing:verify:vectors")
@given(st.dictionaries(st.sampled_from(["webhook-id", "webhook-timestamp", "webhook-signature", "x"]), st.text()))
def test_no_headers_break_it(headers: dict[str, str]) -> None:
    assert isinstance(verify([verifying_key(key) for key in KEYS], headers, b"{}", NOW), Unverified)


@pytest.mark.requirement("signing:verify:vectors")
@given(st.integers(0, 2), st.data())
def test_no_changed_byte_verifies(which: int, data: st.DataObject) -> None:
    """Of the body, or a character of any of the three headers."""
    key, body = KEYS[which], b'{"type":"turn.completed"}'
    headers = signed_headers([key], "dlv_1", NOW, body, 0)
    name = data.draw(st.sampled_from(["body", *headers]))
    text = body.decode() if name == "body" else headers[name]
    place = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.characters(max_codepoint=0x7F).filter(lambda character: character != text[place]))
    changed = text[:place] + other + text[place + 1 :]
    given_headers = headers if name == "body" else headers | {name: changed}
    verdict = verify([verifying_key(key)], given_headers, changed.encode() if name == "body" else body, NOW)
    assert isinstance(verdict, Unverified)


@pytest.mark.requirement("signing:verify:precise")
def test_a_signature_that_is_right_but_late_is_told_with_its_age() -> None:
    keys = [verifying_key(key) for key in KEYS]
    headers = signed_headers(KEYS[:1], "dlv_1", NOW, b"{}", 0)
    assert verify(keys, headers, b"{}", NOW + 7200) == Unverified(
        "stale", "the signature is right, but was made 7200 s ago; at most 300 s are allowed", Verified("v1", 0, 7200)
    )
    early = verify(keys, headers, b"{}", NOW - 400)
    assert isinstance(early, Unverified)
    assert early.message == "the signature is right, but was made 400 s from now; at most 300 s are allowed"
    assert verify(keys, headers, b"{}", NOW + 7200, 7200) == Verified("v1", 0, 7200)


@pytest.mark.requirement("signing:verify:precise")
@pytest.mark.parametrize(
    ("signed", "kept", "how"),
    [
        (b"{}", b"{}\n", "without the line end after it"),
        (b"{}", b"{}\r\n", "without the line end after it"),
        (b"{}\n", b"{}", "with a line end after it"),
        (b"{\n}", b"{\r\n}", "with LF for each CR LF"),
        (b"{\r\n}", b"{\n}", "with CR LF for each LF"),
    ],
)
def test_what_an_editor_or_a_log_did_to_the_body_is_told(signed: bytes, kept: bytes, how: str) -> None:
    for key in KEYS:
        headers = signed_headers([key], "dlv_1", NOW, signed, 0)
        words = told([verifying_key(key)], headers, kept)
        assert words == f"a signature is that of this body {how}: it was changed after it was signed"


@pytest.mark.requirement("signing:verify:precise")
def test_keys_of_another_scheme_are_told() -> None:
    v1, v1a, _ = (verifying_key(key) for key in KEYS)
    words = told([v1a], signed_headers(KEYS[:1], "dlv_1", NOW, b"{}", 0), b"{}")
    assert words == "it is signed by v1, and what you gave verifies v1a"
    headers = signed_headers(KEYS, "dlv_1", NOW, b"{}", 0)
    assert told([v1], headers | {"webhook-signature": "v9,x"}, b"{}").startswith("it is signed by no known scheme, and")
    assert told([], headers, b"{}").endswith("what you gave verifies nothing")


@pytest.mark.requirement("signing:verify:precise")
@pytest.mark.parametrize(
    ("header", "value", "words"),
    [
        ("webhook-id", "", "there is no webhook-id"),
        ("webhook-id", "a.b", "webhook-id = 'a.b' is not made of letters"),
        ("webhook-timestamp", "1.5", "webhook-timestamp = '1.5' is not a time in whole seconds"),
        ("webhook-signature", "v1,a  v1,b", "webhook-signature: number 1 (v1) is not standard base64"),
        ("webhook-signature", " v1,a", "webhook-signature has more than one space in a row, or one at an end"),
        ("webhook-signature", "v1a", "webhook-signature: number 1 is not a scheme, a comma and base64"),
        ("webhook-signature", "v2,x v1,QQ==", "webhook-signature: number 2 (v1) is of 1 bytes"),
    ],
)
def test_a_header_without_its_right_form_is_told(header: str, value: str, words: str) -> None:
    headers = signed_headers(KEYS, "dlv_1", NOW, b"{}", 0) | {header: value}
    assert told([verifying_key(KEYS[0])], headers, b"{}").startswith(words)


@pytest.mark.requirement("signing:verify:precise")
def test_a_header_of_any_length_makes_a_short_message() -> None:
    headers = signed_headers(KEYS, "dlv_1", NOW, b"{}", 0) | {"webhook-id": "." * 100_000}
    assert len(told([verifying_key(KEYS[0])], headers, b"{}")) < 200


def test_a_public_library_signs_what_verifies_here() -> None:
    key = KEYS[0]
    signature = standardwebhooks.webhooks.Webhook(encode_secret(key)).sign(
        "msg_1", datetime.fromtimestamp(NOW, UTC), "{}"
    )
    headers = {"webhook-id": "msg_1", "webhook-timestamp": str(NOW), "webhook-signature": signature}
    assert verify([verifying_key(key)], headers, b"{}", NOW) == Verified("v1", 0, 0)
