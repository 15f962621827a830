"""Standard Webhooks signatures: v1 (HMAC-SHA256) and v1a (ed25519), each over `id.timestamp.body`.

What belongs here: the three headers of a signed request, and whether such headers and a body belong together; bytes in,
bytes out. What must not be known here: what a body means, HTTP, how secrets are written, the clock.
"""

import hashlib
import hmac
import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from channels.endpoints.encoding import from_base64, to_base64
from channels.endpoints.model import SigningKey
from channels.endpoints.signing_keys import KEY_BYTES, Scheme, VerifyingKey, counts, private_key
from worker.errors import LocalProtocolError

ID, TIMESTAMP, SIGNATURE = "webhook-id", "webhook-timestamp", "webhook-signature"
TOLERANCE_S = 300
"""How far the clock of a receiver may be off, and how old a request may be: what the public libraries allow."""

# A dot would make the signed content readable in two ways: it is what separates the three parts.
_ID = re.compile(r"[A-Za-z0-9_-]+")
_TIMESTAMP = re.compile(r"0|[1-9][0-9]{0,11}")
_SIZES = {"v1": 32, "v1a": 64}
_SHOWN = 60

Reason = Literal["missing_header", "malformed", "stale", "future", "no_match"]


@dataclass(frozen=True, slots=True)
class Verified:
    """A signature is by the key number `key` (from 0). `age_s`: seconds since it was made, below 0: yet to come."""

    scheme: Scheme
    key: int
    age_s: int


@dataclass(frozen=True, slots=True)
class Unverified:
    """What is wrong. `matched`: set where a signature is right and only the time is not."""

    reason: Reason
    message: str
    matched: Verified | None = None


def signed_headers(
    keys: Sequence[SigningKey], message_id: str, timestamp: int, body: bytes, now_ms: int
) -> dict[str, str]:
    """The headers of a signed request. `timestamp`: unix seconds of this attempt, fresh for each; the id is stable.

    `keys`: newest first; each that still counts at `now_ms` (UTC milliseconds) signs, in this order. Raises
    `LocalProtocolError` when none does, when one is no key, or when the content could be read in two ways.
    """
    signing = [key for key in keys if counts(key, now_ms)]
    if not signing:
        raise LocalProtocolError(f"message {message_id} would be sent without a signature")
    if _ID.fullmatch(message_id) is None:
        raise LocalProtocolError(f"message id {message_id!r} is not made of letters, digits, _ and -")
    seconds = str(operator.index(timestamp))
    if _TIMESTAMP.fullmatch(seconds) is None:
        raise LocalProtocolError(f"timestamp {seconds} of message {message_id} is no time of ours")
    content = b"%s.%s.%s" % (message_id.encode(), seconds.encode(), body)
    # Receivers split at each space: a second one in a row would be a signature without a scheme to them.
    return {
        ID: message_id,
        TIMESTAMP: seconds,
        SIGNATURE: " ".join(f"{key.scheme},{to_base64(_signed(key, content))}" for key in signing),
    }


def _signed(key: SigningKey, content: bytes) -> bytes:
    if len(key.key) < KEY_BYTES[key.scheme]:  # whoever guesses a short one, such as none, signs in our name
        raise LocalProtocolError(f"a {key.scheme} key of {len(key.key)} bytes would sign")
    if key.scheme == "v1":
        return hmac.digest(key.key, content, hashlib.sha256)
    return private_key(key.key).sign(content)


def verify(
    keys: Sequence[VerifyingKey], headers: Mapping[str, str], body: bytes, now_s: int, tolerance_s: int = TOLERANCE_S
) -> Verified | Unverified:
    """Whether one of `keys` signed this body and these headers, within `tolerance_s` of `now_s` (unix seconds).

    Header names count in any case. Signatures of unknown schemes are passed over; all else must have its exact form.
    """
    given = {name.lower(): value for name, value in headers.items()}
    missing = [name for name in (ID, TIMESTAMP, SIGNATURE) if not given.get(name)]
    if missing:
        return Unverified("missing_header", f"there is no {missing[0]}: it was not signed, or lost it on its way")
    try:
        signatures = _read(given)
    except ValueError as error:
        return Unverified("malformed", str(error))
    age_s = now_s - int(given[TIMESTAMP])
    before = f"{given[ID]}.{given[TIMESTAMP]}.".encode()
    found = _match(keys, signatures, before + body)
    if found is None:
        return Unverified("no_match", _mismatch(keys, signatures, before, body))
    matched = Verified(keys[found].scheme, found, age_s)
    if abs(age_s) <= tolerance_s:
        return matched
    told = f"the signature is right, but was made {abs(age_s)} s {'ago' if age_s > 0 else 'from now'}"
    return Unverified("stale" if age_s > 0 else "future", f"{told}; at most {tolerance_s} s are allowed", matched)


def _read(given: Mapping[str, str]) -> list[tuple[str, bytes]]:
    """(scheme, signature) of each token whose scheme is known. Raises ValueError where a header has no right form."""
    if _ID.fullmatch(given[ID]) is None:
        raise ValueError(f"{ID} = {given[ID][:_SHOWN]!r} is not made of letters, digits, _ and -")
    if _TIMESTAMP.fullmatch(given[TIMESTAMP]) is None:
        raise ValueError(f"{TIMESTAMP} = {given[TIMESTAMP][:_SHOWN]!r} is not a time in whole seconds")
    signatures = []
    for number, token in enumerate(given[SIGNATURE].split(" "), start=1):
        scheme, comma, encoded = token.partition(",")
        if not token:
            raise ValueError(f"{SIGNATURE} has more than one space in a row, or one at an end")
        if not comma or not scheme or "," in encoded:
            raise ValueError(f"{SIGNATURE}: number {number} is not a scheme, a comma and base64")
        if scheme not in _SIZES:
            continue
        try:
            signature = from_base64(encoded)
        except ValueError as error:
            raise ValueError(f"{SIGNATURE}: number {number} ({scheme}) is {error}") from None
        if len(signature) != _SIZES[scheme]:
            raise ValueError(f"{SIGNATURE}: number {number} ({scheme}) is of {len(signature)} bytes")
        signatures.append((scheme, signature))
    return signatures


def _match(keys: Sequence[VerifyingKey], signatures: Sequence[tuple[str, bytes]], content: bytes) -> int | None:
    """The number of the first key that made one of the signatures."""
    for number, key in enumerate(keys):
        for scheme, signature in signatures:
            if scheme == key.scheme and _is_by(key, signature, content):
                return number
    return None


def _is_by(key: VerifyingKey, signature: bytes, content: bytes) -> bool:
    if key.scheme == "v1":
        return hmac.compare_digest(hmac.digest(key.key, content, hashlib.sha256), signature)
    try:
        Ed25519PublicKey.from_public_bytes(key.key).verify(signature, content)
    except InvalidSignature:
        return False
    return True


def _mismatch(keys: Sequence[VerifyingKey], signatures: Sequence[tuple[str, bytes]], before: bytes, body: bytes) -> str:
    """Why no signature matches, as far as can be told. What commonly befalls a body that was kept is tried."""
    offered, wanted = {scheme for scheme, _ in signatures}, {key.scheme for key in keys}
    if not offered & wanted:
        there = ", ".join(sorted(offered)) or "no known scheme"
        return f"it is signed by {there}, and what you gave verifies {', '.join(sorted(wanted)) or 'nothing'}"
    changed = {
        "without the line end after it": body.removesuffix(b"\n").removesuffix(b"\r"),
        "with a line end after it": body + b"\n",
        "with LF for each CR LF": body.replace(b"\r\n", b"\n"),
        "with CR LF for each LF": body.replace(b"\n", b"\r\n"),
    }
    for how, other in changed.items():
        if other != body and _match(keys, signatures, before + other) is not None:
            return f"a signature is that of this body {how}: it was changed after it was signed"
    return "no signature is by a secret that you gave: it is another one, or the id, the time or the body was changed"
