"""Standard Webhooks signatures, scheme v1: HMAC-SHA256 over `id.timestamp.body`.

What belongs here: secrets, and the three headers of a signed request; bytes in, bytes out. What must not be known here:
what a body means, HTTP, the clock.
"""

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Sequence

from worker.errors import ConfigurationError, LocalProtocolError

PREFIX = "whsec_"
MIN_BYTES = 24
MAX_BYTES = 64

# A dot would make the signed content readable in two ways: it is what separates the three parts.
_ID = re.compile(r"[A-Za-z0-9_-]+")


def decode_secret(field: str, text: str) -> bytes:
    """The key that a secret stands for: `whsec_` and the standard base64 of 24 to 64 bytes, decoded strictly.

    Raises `ConfigurationError`, which names `field` and the fix but never the secret.
    """
    fix = f'give {PREFIX} and the base64 of {MIN_BYTES} to {MAX_BYTES} random bytes, as in: python -c "import base64, '
    fix += f"secrets; print('{PREFIX}' + base64.b64encode(secrets.token_bytes(32)).decode())\""
    if not text.startswith(PREFIX):
        raise ConfigurationError(f"{field}: the secret does not start with {PREFIX}; {fix}")
    try:
        key = base64.b64decode(text[len(PREFIX) :].encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError):
        raise ConfigurationError(f"{field}: what follows {PREFIX} is not standard base64; {fix}") from None
    if not MIN_BYTES <= len(key) <= MAX_BYTES:
        raise ConfigurationError(f"{field}: the secret stands for {len(key)} bytes; {fix}")
    return key


def signed_headers(keys: Sequence[bytes], message_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """The headers of a signed request. `keys`: newest first; each signs. `timestamp`: unix seconds of this attempt."""
    if not keys:
        raise LocalProtocolError(f"message {message_id} would be sent without a signature")
    if _ID.fullmatch(message_id) is None:
        raise LocalProtocolError(f"message id {message_id!r} is not made of letters, digits, _ and -")
    content = b"%s.%d.%s" % (message_id.encode(), timestamp, body)
    signatures = (base64.b64encode(hmac.digest(key, content, hashlib.sha256)).decode() for key in keys)
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(f"v1,{signature}" for signature in signatures),
    }
