"""Which master keys encrypt the secrets that are stored.

What belongs here: the section `[vault]`, and the ring that is made where it is not set. What must not be known here:
what is encrypted, and where it is stored.
"""

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from pydantic import Field, SecretStr, model_validator

from channels.endpoints.vault import Ring, Vault, fresh_master_key, ring_of
from channels.kept_secrets import kept_secret, warn_if_open
from worker.errors import ConfigurationError
from worker.fields import ExpandedPath, Section, filled_from_file

KEYS_FILE = "vault-keys"
"""What the generated ring is called in data_dir."""

OF_ALL = 0o007
"""Rights that nobody needs to a file that was put there: what mounts secrets gives one to a group."""


class VaultSettings(Section):
    """How secrets of stored endpoints are encrypted at rest."""

    keys: tuple[SecretStr, ...] = Field(
        default=(),
        description="Master keys, each ID:KEY with KEY the base64 of 32 bytes. The first encrypts, all decrypt. "
        "Not set: one is generated once, in data_dir.",
    )
    keys_file: ExpandedPath | None = Field(default=None, description="File that holds keys instead, one a line.")

    @model_validator(mode="before")
    @classmethod
    def _read_keys(cls, values: object) -> object:
        if isinstance(values, dict) and isinstance(values.get("keys"), str):
            raise ValueError('keys is a list, as in ["ID:KEY"]; write the brackets')  # noqa: TRY004 - pydantic's way
        filled = filled_from_file(values, "keys")
        if isinstance(filled, dict) and isinstance(filled.get("keys"), str):
            return {**filled, "keys": tuple(filled["keys"].splitlines())}
        return filled

    @model_validator(mode="after")
    def _check_keys(self) -> Self:
        if self.keys or self.keys_file is not None:
            try:
                self.ring()
            except ConfigurationError as error:
                raise ValueError(str(error)) from None
        return self

    def ring(self) -> Ring:
        """The keys that are set. Raises `ConfigurationError`, also when there are none."""
        place = "vault.keys" if self.keys_file is None else f"vault.keys_file ({self.keys_file})"
        return ring_of(self._lines(), place)

    def _lines(self) -> Iterator[tuple[str, str]]:
        """(place, line) of each key. In a file, empty lines and those that begin with # say nothing."""
        for number, each in enumerate(self.keys, start=1):
            line = each.get_secret_value()
            if self.keys_file is None:
                yield f"keys, number {number}", line
            elif line.strip() and not line.startswith("#"):
                yield f"keys_file = {str(self.keys_file)!r}, line {number}", line


def open_vault(section: VaultSettings, data_dir: Path) -> Vault:
    """The vault of the settings; where no keys are set, that of a key which is made at the first call.

    Raises OSError with path and fix when that can be neither read nor made; `ConfigurationError` when it was damaged.
    """
    if section.keys:
        if section.keys_file is not None:
            warn_if_open(section.keys_file, OF_ALL)
        return Vault(section.ring(), secrets.token_bytes)
    path = data_dir / KEYS_FILE
    text = kept_secret(
        path,
        lambda: fresh_master_key(secrets.token_bytes),
        "the master key",
        "set vault.keys_file, or correct data_dir or its rights",
    )
    lines = [(f"{path}, line {number}", line) for number, line in enumerate(text.splitlines(), start=1)]
    return Vault(ring_of(lines, str(path)), secrets.token_bytes)
