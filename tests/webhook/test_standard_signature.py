"""Signatures: our own vectors, the independent package's verdict, and the shared vectors where they are at hand."""

import base64
import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
import standardwebhooks.webhooks
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks.webhooks import Webhook

from channels.webhook.signature import decode_secret, signed_headers
from worker.errors import ConfigurationError, LocalProtocolError

SHARED = Path(__file__).parents[3] / "shared" / "webhook_vectors.json"

# Worked out with: printf '%s' ID.TIMESTAMP.BODY | openssl dgst -sha256 -mac hmac -macopt hexkey:KEY -binary | base64
VECTORS = [
    (bytes(range(24)), "dlv_0000000000000000000001", 1790000000, b"{}", "SbIlbbZ6a0FBuD41DNJkfpABzeQ3qH603AdfZnJVqik="),
    (
        bytes(range(64)),
        "dlv_ffabc",
        1790000001,
        "Zürich → 東京".encode(),
        "lp0qw34u5XhO+Faxtb1mUJOBtpyDCCVn8KPdUZ4xJc4=",
    ),
]


def secret_of(key: bytes) -> str:
    return "whsec_" + base64.b64encode(key).decode()


@pytest.mark.requirement("webhook:signature:vectors")
@pytest.mark.parametrize(("key", "message_id", "timestamp", "body", "signature"), VECTORS)
def test_the_signature_is_the_one_that_another_tool_computed(
    key: bytes, message_id: str, timestamp: int, body: bytes, signature: str
) -> None:
    assert signed_headers([key], message_id, timestamp, body) == {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": f"v1,{signature}",
    }


@pytest.mark.requirement("webhook:signature:independent-verifier")
@given(
    st.binary(min_size=24, max_size=64),
    st.from_regex(r"[A-Za-z0-9_-]{1,40}", fullmatch=True),
    st.dictionaries(st.text(), st.text() | st.integers() | st.none()),
)
def test_the_independent_package_verifies_what_we_sign(key: bytes, message_id: str, content: dict[str, object]) -> None:
    body = json.dumps(content).encode()
    now = int(datetime.now(UTC).timestamp())  # noqa: TID251 - the package compares it with its own clock
    headers = signed_headers([key], message_id, now, body)
    assert Webhook(secret_of(key)).verify(body, headers) == content


@pytest.mark.requirement("webhook:signature:rotation")
def test_while_a_secret_is_rotated_both_verify_and_the_newest_comes_first() -> None:
    new, old = b"n" * 32, b"o" * 32
    now = int(datetime.now(UTC).timestamp())  # noqa: TID251 - the package compares it with its own clock
    headers = signed_headers([new, old], "dlv_1", now, b"{}")
    first, second = headers["webhook-signature"].split(" ")
    assert first == signed_headers([new], "dlv_1", now, b"{}")["webhook-signature"]
    assert second == signed_headers([old], "dlv_1", now, b"{}")["webhook-signature"]
    for key in (new, old):
        assert Webhook(secret_of(key)).verify(b"{}", headers) == {}


def test_another_body_does_not_verify() -> None:
    now = int(datetime.now(UTC).timestamp())  # noqa: TID251 - the package compares it with its own clock
    headers = signed_headers([b"k" * 32], "dlv_1", now, b'{"a":1}')
    with pytest.raises(standardwebhooks.webhooks.WebhookVerificationError):
        Webhook(secret_of(b"k" * 32)).verify(b'{"a":2}', headers)


@pytest.mark.requirement("webhook:signature:shared-vectors")
def test_the_shared_vectors_are_reproduced() -> None:
    if not SHARED.exists():
        pytest.skip("../shared/webhook_vectors.json is not here")
    vectors = [vector for vector in json.loads(SHARED.read_text())["vectors"] if vector["scheme"] == "v1"]
    assert len(vectors) == 4
    for vector in vectors:
        secrets = [vector["secret"], *([vector["also_secret"]] if "also_secret" in vector else [])]
        keys = [decode_secret("secret", secret) for secret in secrets]
        headers = signed_headers(keys, vector["id"], vector["timestamp"], vector["body"].encode())
        assert set(headers["webhook-signature"].split()) == set(vector["signature"].split()), vector["name"]


@pytest.mark.requirement("webhook:signature:strict-secret")
@pytest.mark.parametrize(
    ("secret", "why"),
    [
        ("", "does not start with whsec_"),
        ("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "does not start with whsec_"),
        ("v1,whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "does not start with whsec_"),
        ("whsec_", "stands for 0 bytes"),
        (secret_of(b"x" * 23), "stands for 23 bytes"),
        (secret_of(b"x" * 65), "stands for 65 bytes"),
        (secret_of(b"\xff" * 32).replace("/", "_"), "not standard base64"),
        (secret_of(b"x" * 32).rstrip("="), "not standard base64"),
        (secret_of(b"x" * 24) + "\n", "not standard base64"),
        (secret_of(b"x" * 24)[:12] + " " + secret_of(b"x" * 24)[12:], "not standard base64"),
        ("whsec_äöü", "not standard base64"),
    ],
)
def test_a_secret_that_is_not_strictly_right_is_refused_without_being_repeated(secret: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why) as caught:
        decode_secret("subscribers.crm.secrets[0]", secret)
    message = str(caught.value)
    assert message.startswith("subscribers.crm.secrets[0]: ")
    assert "python -c" in message
    assert len(secret) < 12 or secret[8:] not in message


@pytest.mark.parametrize("size", [24, 25, 64])
def test_a_secret_of_a_permitted_size_is_the_bytes_it_stands_for(size: int) -> None:
    assert decode_secret("secret", secret_of(b"k" * size)) == b"k" * size


@pytest.mark.parametrize("message_id", ["", "dlv.1", "dlv 1", "dlv_1\n", "dlv_ü"])
def test_an_id_that_could_be_read_in_two_ways_is_never_signed(message_id: str) -> None:
    with pytest.raises(LocalProtocolError, match="message id"):
        signed_headers([b"k" * 32], message_id, 1, b"{}")


def test_nothing_is_sent_unsigned() -> None:
    with pytest.raises(LocalProtocolError, match="without a signature"):
        signed_headers([], "dlv_1", 1, b"{}")
