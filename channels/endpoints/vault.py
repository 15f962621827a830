"""Secrets at rest: sealed with a master key, and bound to what they are secrets of.

What belongs here: the form of a sealed text, the ring of master keys, and what a ring cannot open. What must not be
known here: where keys and sealed texts are kept, Redis, the clock, chance: it is an argument.

A sealed text is `v1.KEYID.BASE64`: AES-256-GCM, a nonce of 12 bytes and then the ciphertext. The associated data are
the version, the key id and the context, so that a text opens for nothing else than what it was sealed for.

Every error names a key by its id, and never a key, a secret or a sealed text.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as data

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from channels.endpoints.encoding import from_base64, to_base64
from worker.errors import ConfigurationError, LocalProtocolError, NewerRecord

KEY_BYTES = 32

_VERSION = "v1"
_NONCE_BYTES = 12
_TAG_BYTES = 16
_KEY_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")
_FIELD = re.compile(r"[a-z][a-z0-9_]*")
_FIX = f"write ID:KEY, KEY being the base64 of {KEY_BYTES} random bytes; `lastword vault key` prints a new one"


@dataclass(frozen=True, slots=True)
class MasterKey:
    """A key of 32 bytes, and the id that sealed texts name it by."""

    id: str
    key: bytes = data(repr=False)


@dataclass(frozen=True, slots=True)
class Ring:
    """The master keys: the first one seals, each opens. `place`: where an operator adds one, as errors name it."""

    keys: tuple[MasterKey, ...]
    place: str


@dataclass(frozen=True, slots=True)
class Sealed:
    """A sealed text that is kept: that of `field` (such as `secrets`) of the endpoint `name`."""

    name: str
    field: str
    text: str = data(repr=False)

    @property
    def context(self) -> str:
        """What the text was sealed for."""
        return context_of(self.name, self.field)


def context_of(name: str, field: str) -> str:
    """The context of a field of an endpoint. No two fields or endpoints have the same."""
    if _FIELD.fullmatch(field) is None:  # without a space in it, what follows ` of ` can be nothing but the name
        raise LocalProtocolError(f"{field!r} is no name of a sealed field")
    return f"{field} of {name}"


def decode_master_key(place: str, text: str) -> MasterKey:
    """The key of a line `ID:KEY`. Raises `ConfigurationError` with `place` and the fix."""
    identifier, colon, encoded = text.partition(":")
    if not colon or _KEY_ID.fullmatch(identifier) is None:
        raise ConfigurationError(
            f"{place}: a master key begins with an id of letters, digits, - and _, and a colon; {_FIX}"
        )
    try:
        key = from_base64(encoded)
    except ValueError as error:
        raise ConfigurationError(f"{place}: what follows {identifier}: is {error}; {_FIX}") from None
    if len(key) != KEY_BYTES:
        raise ConfigurationError(f"{place}: the key {identifier} has {len(key)} bytes; {_FIX}")
    return MasterKey(identifier, key)


def fresh_master_key(chance: Callable[[int], bytes]) -> str:
    """The line of a new key. Its id is made from the key, so that two that were made apart have different ones."""
    key = chance(KEY_BYTES)
    return f"k{hashlib.sha256(b'master key id' + key).hexdigest()[:8]}:{to_base64(key)}"


def ring_of(lines: Iterable[tuple[str, str]], place: str) -> Ring:
    """The ring of these (place, `ID:KEY`). Raises `ConfigurationError` also when there are none, or two of one id."""
    keys: dict[str, MasterKey] = {}
    for where, line in lines:
        key = decode_master_key(where, line)
        if key.id in keys:
            raise ConfigurationError(f"{where}: there is a key {key.id} before it; give each an id of its own")
        keys[key.id] = key
    if not keys:
        raise ConfigurationError(f"{place} holds no master key; {_FIX}")
    return Ring(tuple(keys.values()), place)


class Vault:
    """Seals with the first key of a ring, opens with each. `chance`: gives random bytes, for nonces."""

    def __init__(self, ring: Ring, chance: Callable[[int], bytes]) -> None:
        self.place = ring.place
        self.key_ids = tuple(key.id for key in ring.keys)
        self._ciphers = {key.id: AESGCM(key.key) for key in ring.keys}
        self._chance = chance

    def seal(self, plain: bytes, context: str) -> str:
        """The sealed text of a secret. `context`: what it is the secret of, as `context_of` gives it."""
        first = self.key_ids[0]
        nonce = self._chance(_NONCE_BYTES)
        ciphertext = self._ciphers[first].encrypt(nonce, plain, _bound(first, context))
        return f"{_VERSION}.{first}.{to_base64(nonce + ciphertext)}"

    def open(self, text: str, context: str) -> bytes:
        """The secret of a sealed text.

        Raises `ConfigurationError` when its key is not in the ring, or when the text was changed or sealed for
        another context; `NewerRecord` when a newer release sealed it.
        """
        identifier, data = _parts(text, context)
        if identifier not in self._ciphers:
            raise ConfigurationError(
                f"the field {context} is encrypted with the key {identifier}, which is not in {self.place}; add it back"
            )
        try:
            return self._ciphers[identifier].decrypt(
                data[:_NONCE_BYTES], data[_NONCE_BYTES:], _bound(identifier, context)
            )
        except InvalidTag:
            raise ConfigurationError(
                f"the field {context} does not open with the key {identifier} of {self.place}: it was changed or "
                "moved, or that id had another key; put that key back, or give it anew"
            ) from None

    def reseal(self, text: str, context: str) -> str:
        """The same secret sealed with the first key; the same text if it is already. Raises as `open`."""
        plain = self.open(text, context)
        return text if key_id(text, context) == self.key_ids[0] else self.seal(plain, context)


def key_id(text: str, context: str) -> str:
    """The id of the key that sealed a text. Raises `ConfigurationError` when it is no sealed text."""
    return _parts(text, context)[0]


def missing_keys(vault: Vault, stored: Iterable[Sealed]) -> Mapping[str, Sequence[str]]:
    """The ids of keys that sealed what is stored but are not in the ring, each with the endpoints that need it."""
    missing: dict[str, dict[str, None]] = {}
    for each in stored:
        needed = key_id(each.text, each.context)
        if needed not in vault.key_ids:
            missing.setdefault(needed, {})[each.name] = None
    return {identifier: tuple(names) for identifier, names in missing.items()}


def check_stored(vault: Vault, stored: Iterable[Sealed]) -> None:
    """For the start of a process: raise `ConfigurationError` with all that the ring cannot open, one fault a line.

    What a newer release sealed is left to processes of that release.
    """
    keyless, faults = [], []
    for each in stored:
        try:
            if key_id(each.text, each.context) in vault.key_ids:
                vault.open(each.text, each.context)
            else:
                keyless.append(each)
        except NewerRecord:
            continue
        except ConfigurationError as error:
            faults.append(str(error))
    missing = [
        f"stored secrets of endpoints {', '.join(names)} are encrypted with the key {identifier}, which is not in "
        f"{vault.place}; add it back, or, where it is lost, rotate them with an overlap of 0 and give their headers "
        "once more"
        for identifier, names in missing_keys(vault, keyless).items()
    ]
    if missing or faults:
        raise ConfigurationError("\n".join([*missing, *faults]))


def _bound(identifier: str, context: str) -> bytes:
    return f"{_VERSION}.{identifier}.{context}".encode()


def _parts(text: str, context: str) -> tuple[str, bytes]:
    """(key id, nonce and ciphertext) of a sealed text."""
    version, *rest = text.split(".")
    if re.fullmatch(r"v[0-9]+", version) and version != _VERSION:
        raise NewerRecord(f"the field {context} was encrypted by a newer release ({version}): upgrade this one")
    try:
        identifier, encoded = rest
        data = from_base64(encoded)
    except ValueError:
        identifier, data = "", b""
    if version != _VERSION or _KEY_ID.fullmatch(identifier) is None or len(data) < _NONCE_BYTES + _TAG_BYTES:
        raise ConfigurationError(f"the field {context} is stored as no sealed text: it was changed; give it anew")
    return identifier, data
