"""Whether an event comes from who holds a route's secret.

What belongs here: the kinds of proof, checked and made; bytes in, a verdict out. What must not be known here: routes,
HTTP, the clock, what a body means.

    hmac               HMAC-SHA256 of the body, in one header
    hmac_timestamped   `t=SECONDS,v1=SIGNATURE[,v1=...]` in one header; signed is SECONDS.BODY
    secret             the secret itself, in one header
    standard           Standard Webhooks, v1: webhook-id, webhook-timestamp, webhook-signature

A route has one kind, and no other is tried. Signatures are compared as text, so each has exactly one spelling: hex in
lower case, base64 padded. All secrets are always tried, and every comparison takes the same time.
"""

import base64
import hashlib
import hmac
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from channels.endpoints.signing_keys import decode_secret
from worker.errors import ConfigurationError

Kind = Literal["hmac", "hmac_timestamped", "secret", "standard"]
Encoding = Literal["hex", "base64"]
Headers = Mapping[str, Sequence[bytes]]
"""The values of each header, by its name in lower case."""

MIN_SECRET_BYTES = 16
_MOST_SIGNATURES = 20
_SECONDS = re.compile(rb"(?:0|[1-9][0-9]{0,11})")
_ID = re.compile(rb"[\x21-\x2d\x2f-\x7e]{1,255}")
"""No dot: it separates what is signed."""


@dataclass(frozen=True, slots=True)
class Verification:
    """How a route's events prove whence they come.

    `keys`: of `key_of`; any of them counts, the first signs. `header`: name of the header, of `standard` what the names
    of its three begin with. `prefix`: text before a signature of `hmac`. `tolerance_s`: how far the time of a signature
    may be off, either way.
    """

    kind: Kind
    keys: tuple[bytes, ...] = field(repr=False)
    header: str
    prefix: str = ""
    encoding: Encoding = "hex"
    tolerance_s: int = 300


def key_of(name: str, kind: Kind, secret: str) -> bytes:
    """The key that a secret stands for. Raises `ConfigurationError`, which names `name` and never the secret."""
    if kind == "standard":
        return decode_secret(name, secret).key
    key = secret.encode()
    if len(key) < MIN_SECRET_BYTES:
        raise ConfigurationError(
            f"{name}: the secret has {len(key)} bytes: give at least {MIN_SECRET_BYTES}, as in: python -c "
            '"import secrets; print(secrets.token_hex(32))"'
        )
    if secret != secret.strip():
        raise ConfigurationError(f"{name}: the secret begins or ends with a blank, which no header keeps: remove it")
    return key


def is_genuine(rule: Verification, headers: Headers, body: bytes, now_s: float) -> bool:
    """Whether the event proves that its sender holds one of the keys, of late. `now_s`: unix seconds."""
    match rule.kind:
        case "secret":
            return _any_equal([_only(headers, rule.header)], rule.keys)
        case "hmac":
            given = _only(headers, rule.header)
            return _any_equal([given], [rule.prefix.encode() + _spelled(rule, key, body) for key in rule.keys])
        case "hmac_timestamped":
            return _is_timestamped(rule, _only(headers, rule.header), body, now_s)
        case "standard":
            return _is_standard(rule, headers, body, now_s)


def may_be_genuine(rule: Verification, headers: Headers) -> bool:
    """Whether there is anything at all that could prove an event, whatever its body."""
    if rule.kind == "secret":
        return is_genuine(rule, headers, b"", 0)
    return bool(_only(headers, f"{rule.header}-signature" if rule.kind == "standard" else rule.header))


def proof(rule: Verification, body: bytes, *, now_s: int, message: str) -> dict[str, str]:
    """The headers with which a sender proves this body. `message`: its id, which `standard` signs."""
    key, header = rule.keys[0], rule.header
    match rule.kind:
        case "secret":
            return {header: key.decode()}
        case "hmac":
            return {header: rule.prefix + _spelled(rule, key, body).decode()}
        case "hmac_timestamped":
            return {header: f"t={now_s},v1={_spelled(rule, key, b'%d.%s' % (now_s, body)).decode()}"}
        case "standard":
            signature = _base64(key, b"%s.%d.%s" % (message.encode(), now_s, body)).decode()
            return {
                f"{header}-id": message,
                f"{header}-timestamp": str(now_s),
                f"{header}-signature": f"v1,{signature}",
            }


def _is_timestamped(rule: Verification, given: bytes, body: bytes, now_s: float) -> bool:
    times, signatures = [], []
    for item in given.split(b","):
        name, _, value = item.partition(b"=")
        if name == b"t":
            times.append(value)
        elif name == b"v1":
            signatures.append(value)
    if len(times) != 1 or not _is_recent(times[0], rule.tolerance_s, now_s):
        return False
    expected = [_spelled(rule, key, times[0] + b"." + body) for key in rule.keys]
    return _any_equal(signatures, expected)


def _is_standard(rule: Verification, headers: Headers, body: bytes, now_s: float) -> bool:
    message, time, given = (_only(headers, f"{rule.header}-{part}") for part in ("id", "timestamp", "signature"))
    if not _ID.fullmatch(message) or not _is_recent(time, rule.tolerance_s, now_s):
        return False
    signatures = [each for each in given.split(b" ") if each.startswith(b"v1,")]
    content = message + b"." + time + b"." + body
    return _any_equal(signatures, [b"v1," + _base64(key, content) for key in rule.keys])


def _is_recent(time: bytes, tolerance_s: int, now_s: float) -> bool:
    return _SECONDS.fullmatch(time) is not None and abs(now_s - int(time)) <= tolerance_s


def _any_equal(given: Sequence[bytes], expected: Sequence[bytes]) -> bool:
    equal = False
    for one in given[:_MOST_SIGNATURES]:
        for other in expected:
            equal |= hmac.compare_digest(one, other)
    return equal


def _only(headers: Headers, name: str) -> bytes:
    """The value of a header that was given once, else nothing, which equals no signature."""
    values = headers.get(name.lower(), ())
    return values[0] if len(values) == 1 else b""


def _spelled(rule: Verification, key: bytes, content: bytes) -> bytes:
    spell: Callable[[bytes, bytes], bytes] = _base64 if rule.encoding == "base64" else _hex
    return spell(key, content)


def _hex(key: bytes, content: bytes) -> bytes:
    return hmac.digest(key, content, hashlib.sha256).hex().encode()


def _base64(key: bytes, content: bytes) -> bytes:
    return base64.b64encode(hmac.digest(key, content, hashlib.sha256))
