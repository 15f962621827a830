"""Bringing all that is stored under the first master key of the ring, so that an old one may go.

What belongs here: the loop over what is stored, and its bounds. What must not be known here: where it is stored.

Each text is replaced by itself and only where it is still what was read, so the loop may be killed and repeated at any
point, beside running processes: each text is readable before and after, with a ring that holds both keys.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from channels.endpoints.vault import Sealed, Vault, check_stored, key_id

_PASSES = 5


class SealedStore(Protocol):
    """Where sealed texts are kept."""

    async def sealed(self) -> Sequence[Sealed]:
        """All that is stored now."""

    async def put_sealed(self, name: str, field: str, old: str, new: str) -> bool:
        """Replace `old` by `new` in one step; False, and nothing is changed, where it is not `old` any more."""


@dataclass(frozen=True, slots=True)
class Resealed:
    """`changed`: texts that were replaced; `total`: all that are stored; `left`: those under an older key still.

    `idle_keys`: keys of the ring that open nothing that is stored, but for the first.
    """

    changed: int
    total: int
    left: int
    idle_keys: tuple[str, ...]


async def reseal_all(vault: Vault, store: SealedStore) -> Resealed:
    """Seal all that is stored with the first key. What changes meanwhile is looked at again, a few times.

    Raises `ConfigurationError` with all that the ring cannot open, before anything is changed.
    """
    changed = 0
    stored = await store.sealed()
    check_stored(vault, stored)
    for _ in range(_PASSES):
        older = [each for each in stored if key_id(each.text, each.context) != vault.key_ids[0]]
        if not older:
            break
        for each in older:
            fresh = vault.reseal(each.text, each.context)
            changed += await store.put_sealed(each.name, each.field, each.text, fresh)
        stored = await store.sealed()
    used = [key_id(each.text, each.context) for each in stored]
    return Resealed(
        changed,
        len(stored),
        sum(identifier != vault.key_ids[0] for identifier in used),
        tuple(identifier for identifier in vault.key_ids[1:] if identifier not in used),
    )
