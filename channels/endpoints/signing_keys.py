"""Signing keys: how they are written, made and replaced.

What belongs here: secrets as text (`whsec_`, `whsk_`, `whpk_`) and as bytes, and the rules of a rotation. What must not
be known here: signatures, requests, where keys are kept, the clock, chance: both are arguments.

Every error names the field and the fix, and never a secret.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import Literal

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from channels.endpoints.encoding import from_base64, to_base64
from channels.endpoints.model import SigningKey
from worker.errors import ConfigurationError

SECRET = "whsec_"  # noqa: S105 - how secrets of v1 begin
PRIVATE = "whsk_"
PUBLIC = "whpk_"
MIN_BYTES = 24
MAX_BYTES = 64
MAX_KEYS = 10
OVERLAP_MS = 86_400_000
"""How long replaced keys go on signing unless it is said otherwise: a day."""
MAX_OVERLAP_MS = 7 * 86_400_000

Scheme = Literal["v1", "v1a"]
Chance = Callable[[int], bytes]
"""Gives that many random bytes."""

_FRESH_BYTES = 32
_SEED_BYTES = 32
KEY_BYTES = {"v1": MIN_BYTES, "v1a": _SEED_BYTES}
"""The least size of a key of each scheme."""
_FIX = (
    f"give {SECRET} and the base64 of {MIN_BYTES} to {MAX_BYTES} random bytes, or {PRIVATE} and the base64 of the seed "
    "and the public key of an ed25519 key; `lastword webhook secret` makes either"
)


@dataclass(frozen=True, slots=True)
class VerifyingKey:
    """What a receiver verifies with. Of v1 `key` is the secret itself; of v1a the 32 bytes of the public key."""

    scheme: Scheme
    key: bytes = field(repr=False)


def decode_secret(name: str, text: str) -> SigningKey:
    """The key that a secret stands for: `whsec_` for v1, `whsk_` for v1a, each followed by strict base64.

    Raises `ConfigurationError`, which names the field `name` and the fix but never the secret.
    """
    if text.startswith(SECRET):
        key = _decoded(name, text, SECRET)
        if not MIN_BYTES <= len(key) <= MAX_BYTES:
            raise ConfigurationError(f"{name}: the secret stands for {len(key)} bytes; {_FIX}")
        return SigningKey("v1", key)
    if text.startswith(PRIVATE):
        return SigningKey("v1a", _seed(name, _decoded(name, text, PRIVATE)))
    hint = ""
    if text.startswith(PUBLIC):
        hint = "; it is a public key, which cannot sign"
    elif SECRET in text or PRIVATE in text:
        hint = "; remove what stands before that"
    raise ConfigurationError(f"{name}: the secret does not start with {SECRET} or {PRIVATE}{hint}; {_FIX}")


def decode_verifying_key(name: str, text: str) -> VerifyingKey:
    """What verifies what a secret signed: the secret, or its public key `whpk_...`. Raises as `decode_secret`."""
    if not text.startswith(PUBLIC):
        return verifying_key(decode_secret(name, text))
    key = _decoded(name, text, PUBLIC)
    if len(key) != _SEED_BYTES:
        raise ConfigurationError(
            f"{name}: the public key has {len(key)} bytes; give {PUBLIC} and the base64 of the {_SEED_BYTES} bytes"
        )
    return VerifyingKey("v1a", key)


def encode_secret(key: SigningKey) -> str:
    """The secret as text, as `decode_secret` takes it."""
    if key.scheme == "v1":
        return SECRET + to_base64(key.key)
    return PRIVATE + to_base64(key.key + _public_bytes(key.key))


def public_key(key: SigningKey) -> str:
    """The public key of a v1a key, `whpk_` and base64: what its receivers need. Raises ValueError for one of v1."""
    if key.scheme != "v1a":
        raise ValueError("a key of v1 has no public part: its receivers need the secret itself")
    return PUBLIC + to_base64(_public_bytes(key.key))


def verifying_key(key: SigningKey) -> VerifyingKey:
    """What verifies what this key signs."""
    return VerifyingKey(key.scheme, key.key if key.scheme == "v1" else _public_bytes(key.key))


def fresh_key(scheme: Scheme, chance: Chance) -> SigningKey:
    """A new key of 32 bytes from `chance`."""
    return SigningKey(scheme, chance(_FRESH_BYTES))


def counts(key: SigningKey, now_ms: int) -> bool:
    """Whether a key still signs."""
    return key.until_ms is None or key.until_ms > now_ms


def rotated(
    keys: Sequence[SigningKey], fresh: SigningKey, overlap_ms: int = OVERLAP_MS, *, now_ms: int
) -> tuple[SigningKey, ...]:
    """The keys after `fresh` has become the newest: newest first, without those that sign no more.

    The old ones sign for `overlap_ms` (0 to 7 days) more, and none longer than it would have. 0 ends them at once, as
    after a leak. Raises `ConfigurationError` when the overlap is out of bounds, when `fresh` is one of the keys, and
    when there would be more than 10; that names the time when there is room again.
    """
    if not 0 <= overlap_ms <= MAX_OVERLAP_MS:
        raise ConfigurationError(
            f"overlap_ms = {overlap_ms}: old keys go on signing for 0 to {MAX_OVERLAP_MS} milliseconds (7 days)"
        )
    if any((key.scheme, key.key) == (fresh.scheme, fresh.key) for key in keys):
        raise ConfigurationError("the new secret is one of those that sign already or did; give another one")
    end = now_ms + overlap_ms
    old = [replace(key, until_ms=end if key.until_ms is None else min(key.until_ms, end)) for key in keys]
    kept = tuple(key for key in old if counts(key, now_ms))
    if len(kept) >= MAX_KEYS:
        ends = [key.until_ms for key in keys if key.until_ms is not None and counts(key, now_ms)]
        room = (
            f"the next of them ends at {_shown(min(ends))}: rotate then, or" if ends else "none ends by itself: rotate"
        )
        raise ConfigurationError(
            f"{len(kept)} secrets sign already, of {MAX_KEYS} at most; {room} with an overlap of 0, which ends all old "
            "ones at once"
        )
    return (replace(fresh, until_ms=None), *kept)


@lru_cache(maxsize=1024)
def private_key(seed: bytes) -> Ed25519PrivateKey:
    """The ed25519 key of a seed of 32 bytes. Kept, because making it costs as much as signing with it."""
    return Ed25519PrivateKey.from_private_bytes(seed)


def _shown(ms: int) -> str:
    """A time rounded up to the second, so that it is not too early."""
    return datetime.fromtimestamp(-(-ms // 1000), UTC).isoformat().replace("+00:00", "Z")


def _public_bytes(seed: bytes) -> bytes:
    return private_key(seed).public_key().public_bytes_raw()


def _seed(name: str, key: bytes) -> bytes:
    if len(key) != 2 * _SEED_BYTES:
        alone = " (the seed alone)" if len(key) == _SEED_BYTES else ""
        raise ConfigurationError(
            f"{name}: the secret stands for {len(key)} bytes{alone}, not {2 * _SEED_BYTES}; {_FIX}"
        )
    seed, public = key[:_SEED_BYTES], key[_SEED_BYTES:]
    if _public_bytes(seed) != public:
        raise ConfigurationError(f"{name}: the second half of the secret is not the public key of the first; {_FIX}")
    return seed


def _decoded(name: str, text: str, prefix: str) -> bytes:
    encoded = text[len(prefix) :]
    try:
        return from_base64(encoded)
    except ValueError:
        hint = ": it is base64url; write + for -, / for _, and the = at the end" if set(encoded) & set("-_") else ""
        raise ConfigurationError(f"{name}: what follows {prefix} is not standard base64{hint}; {_FIX}") from None
