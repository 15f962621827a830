"""What is signed: our own vectors, the verdicts of independent packages, and the shared vectors where they are."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import standardwebhooks.webhooks
import svix.webhooks
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from hypothesis import given
from hypothesis import strategies as st

from channels.endpoints.encoding import from_base64
from channels.endpoints.model import SigningKey
from channels.endpoints.signing_keys import decode_secret, encode_secret, public_key
from channels.webhook.signature import signed_headers
from worker.errors import LocalProtocolError

SHARED = Path(__file__).parents[3] / "shared" / "webhook_vectors.json"
OURS = json.loads((Path(__file__).parent / "signature_vectors.json").read_text(encoding="utf-8"))
LIBRARIES: dict[str, Any] = {"standardwebhooks": standardwebhooks.webhooks.Webhook, "svix": svix.webhooks.Webhook}

V1_KEYS = st.builds(SigningKey, st.just("v1"), st.binary(min_size=24, max_size=64))
V1A_KEYS = st.builds(SigningKey, st.just("v1a"), st.binary(min_size=32, max_size=32))
IDS = st.from_regex(r"[A-Za-z0-9_-]{1,40}", fullmatch=True)
OBJECTS = st.dictionaries(st.text(), st.text() | st.integers() | st.none())
OLD, NEW, PAIR = SigningKey("v1", b"o" * 32), SigningKey("v1", b"n" * 32), SigningKey("v1a", b"p" * 32)


def now() -> int:
    return int(datetime.now(UTC).timestamp())  # noqa: TID251 - the packages compare it with their own clock


def signatures(*keys: SigningKey, now_ms: int = 0) -> str:
    return signed_headers(keys, "dlv_1", 1790000000, b"{}", now_ms)["webhook-signature"]


@pytest.mark.requirement("webhook:signature:vectors")
@pytest.mark.parametrize("vector", OURS["signing"], ids=lambda vector: vector["name"])
def test_the_signature_is_the_one_that_another_tool_computed(vector: dict[str, Any]) -> None:
    keys = [decode_secret("secret", text) for text in vector["keys"]]
    assert signed_headers(keys, vector["id"], vector["timestamp"], vector["body"].encode(), 0) == {
        "webhook-id": vector["id"],
        "webhook-timestamp": str(vector["timestamp"]),
        "webhook-signature": vector["signature"],
    }


@pytest.mark.requirement("webhook:signature:shared-vectors")
@pytest.mark.requirement("signing:v1a:shared-vectors")
def test_the_shared_vectors_are_reproduced() -> None:
    if not SHARED.exists():
        pytest.skip("../shared/webhook_vectors.json is not here")
    vectors = json.loads(SHARED.read_text(encoding="utf-8"))["vectors"]
    assert [vector["scheme"] for vector in vectors] == ["v1", "v1", "v1", "v1", "v1a"]
    for vector in vectors:
        names = ("secret", "also_secret", "private_key")
        keys = [decode_secret(name, vector[name]) for name in names if name in vector]
        headers = signed_headers(keys, vector["id"], vector["timestamp"], vector["body"].encode(), 0)
        assert set(headers["webhook-signature"].split(" ")) == set(vector["signature"].split(" ")), vector["name"]
        if vector["scheme"] == "v1a":
            assert public_key(keys[0]) == vector["public_key"]
            assert keys[0].key.hex() == vector["private_seed_hex"]


@pytest.mark.requirement("webhook:signature:independent-verifier")
@given(
    keys=st.lists(V1_KEYS | V1A_KEYS, max_size=4), key=V1_KEYS, place=st.integers(0, 4), message_id=IDS, content=OBJECTS
)
def test_the_independent_packages_verify_each_v1_key_of_a_list(
    keys: list[SigningKey], key: SigningKey, place: int, message_id: str, content: dict[str, object]
) -> None:
    """Wherever in the list it stands, and whatever v1a signatures stand around it."""
    keys.insert(place, key)
    body = json.dumps(content).encode()
    headers = signed_headers(keys, message_id, now(), body, 0)
    for each in keys:
        if each.scheme == "v1":
            assert LIBRARIES["standardwebhooks"](encode_secret(each)).verify(body, headers) == content
            LIBRARIES["svix"](encode_secret(each)).verify(body, headers)  # raises if it does not verify


@pytest.mark.requirement("signing:v1a:independent-verifier")
@given(keys=st.lists(V1_KEYS | V1A_KEYS, max_size=3), key=V1A_KEYS, message_id=IDS, body=st.binary(max_size=200))
def test_v1a_verifies_with_nothing_but_the_public_key(
    keys: list[SigningKey], key: SigningKey, message_id: str, body: bytes
) -> None:
    headers = signed_headers([*keys, key], message_id, 1790000000, body, 0)
    scheme, signature = headers["webhook-signature"].split(" ")[-1].split(",")
    verifier = Ed25519PublicKey.from_public_bytes(from_base64(public_key(key).removeprefix("whpk_")))
    verifier.verify(from_base64(signature), f"{message_id}.1790000000.".encode() + body)
    assert scheme == "v1a"
    with pytest.raises(InvalidSignature):
        verifier.verify(from_base64(signature), f"{message_id}.1790000001.".encode() + body)


@pytest.mark.parametrize("library", LIBRARIES)
def test_another_body_does_not_verify(library: str) -> None:
    headers = signed_headers([NEW], "dlv_1", now(), b'{"a":1}', 0)
    with pytest.raises(standardwebhooks.webhooks.WebhookVerificationError):
        LIBRARIES[library](encode_secret(NEW)).verify(b'{"a":2}', headers)


@pytest.mark.requirement("webhook:signature:rotation")
@pytest.mark.parametrize("library", LIBRARIES)
def test_while_a_secret_is_rotated_both_verify_and_the_newest_comes_first(library: str) -> None:
    headers = signed_headers([NEW, OLD], "dlv_1", now(), b"{}", 0)
    assert signatures(NEW, OLD) == f"{signatures(NEW)} {signatures(OLD)}"
    for key in (NEW, OLD):
        LIBRARIES[library](encode_secret(key)).verify(b"{}", headers)


@pytest.mark.requirement("signing:rotation:expiry")
def test_a_key_signs_until_its_time_has_come_and_no_longer() -> None:
    """The check is made as of the attempt: no key outlives its time in a cache."""
    leaving = SigningKey("v1", OLD.key, until_ms=5000)
    assert signatures(NEW, leaving, now_ms=4999) == signatures(NEW, OLD)
    assert signatures(NEW, leaving, now_ms=5000) == signatures(NEW)


@pytest.mark.requirement("signing:wire:exact")
@given(keys=st.lists(V1_KEYS | V1A_KEYS, min_size=1, max_size=10), seconds=st.integers(0, 10**12 - 1))
def test_what_is_sent_has_the_form_that_every_library_reads(keys: list[SigningKey], seconds: int) -> None:
    """Exactly one space between signatures, one comma in each, whole seconds; printable ASCII throughout."""
    headers = signed_headers(keys, "dlv_1", seconds, b"{}", 0)
    tokens = headers["webhook-signature"].split(" ")
    assert [token.split(",")[0] for token in tokens] == [key.scheme for key in keys]
    assert all(len(token.split(",")) == 2 for token in tokens)
    assert headers["webhook-timestamp"] == f"{seconds:d}"
    assert all(value.isascii() and value.isprintable() for value in headers.values())


@pytest.mark.requirement("signing:wire:fresh")
def test_each_attempt_has_a_time_and_a_signature_of_its_own_and_the_id_of_all() -> None:
    """svix 93: receivers drop what is old."""
    first, second = (signed_headers([NEW, PAIR], "dlv_1", seconds, b"{}", 0) for seconds in (1790000000, 1790000300))
    assert first["webhook-id"] == second["webhook-id"]
    assert first["webhook-timestamp"] != second["webhook-timestamp"]
    before, after = (headers["webhook-signature"].split(" ") for headers in (first, second))
    assert not set(before) & set(after)


@pytest.mark.requirement("signing:wire:exact")
@pytest.mark.parametrize("message_id", ["", "dlv.1", "dlv 1", "dlv_1\n", "dlv_ü"])
def test_an_id_that_could_be_read_in_two_ways_is_never_signed(message_id: str) -> None:
    with pytest.raises(LocalProtocolError, match="message id"):
        signed_headers([NEW], message_id, 1, b"{}", 0)


@pytest.mark.requirement("signing:wire:exact")
def test_a_time_that_is_none_is_never_signed() -> None:
    for wrong in (-1, 10**12):
        with pytest.raises(LocalProtocolError, match="is no time of ours"):
            signed_headers([NEW], "dlv_1", wrong, b"{}", 0)
    with pytest.raises(TypeError):
        signed_headers([NEW], "dlv_1", 1790000000.5, b"{}", 0)  # type: ignore[arg-type]


@pytest.mark.requirement("signing:wire:exact")
@pytest.mark.parametrize("key", [SigningKey("v1", b""), SigningKey("v1", b"k" * 23), SigningKey("v1a", b"k" * 31)])
def test_nothing_is_signed_with_what_is_no_key(key: SigningKey) -> None:
    """As a record that was cut short would give."""
    with pytest.raises(LocalProtocolError, match=f"a {key.scheme} key of {len(key.key)} bytes would sign") as caught:
        signed_headers([NEW, key], "dlv_1", 1, b"{}", 0)
    assert "kkk" not in str(caught.value)


@pytest.mark.parametrize("keys", [[], [SigningKey("v1", b"k" * 32, until_ms=1000)]])
def test_nothing_is_sent_unsigned(keys: list[SigningKey]) -> None:
    with pytest.raises(LocalProtocolError, match="without a signature"):
        signed_headers(keys, "dlv_1", 1, b"{}", 1000)
