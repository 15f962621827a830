"""`lastword vault`: master keys are made, and what is stored is brought under the first of them.

What belongs here: the form of the answers. What must not be known here: how secrets are encrypted or stored.
"""

import json
import secrets
import sys
from collections.abc import Callable

from channels.console import exits
from channels.console.joined import Client, Joined, ask
from channels.console.terminal import open_console
from channels.endpoints import rings
from channels.endpoints.resealing import Resealed, SealedStore, reseal_all
from channels.endpoints.vault import Vault, fresh_master_key
from channels.settings import Settings
from channels.vault_section import open_vault
from worker.errors import ConfigurationError


def run_key() -> int:
    """Make a master key and print its line; returns the exit code."""
    sys.stdout.write(fresh_master_key(secrets.token_bytes) + "\n")
    errors = open_console(stderr=True)
    errors.print(
        "1. add it below the keys in vault.keys_file of every machine, and start all processes anew, so that each can "
        "decrypt what any encrypts; 2. make it the first there, start them anew; 3. `lastword vault reseal`",
        style="dim",
    )
    return exits.OK


def run_reseal(settings: Settings, store_of: Callable[[Client, Vault], SealedStore], *, as_json: bool) -> int:
    """Encrypt all that is stored with the first key, and print what came of it; returns the exit code.

    Raises `ConfigurationError`, before anything is changed, for what is stored and does not open, and for a first key
    that a delivery process lacks: it would sign nothing any more. `store_of`: gives what is stored in the Redis of a
    client, and who can open it.
    """
    try:
        vault = open_vault(settings.vault, settings.data_dir)
    except OSError as error:
        raise ConfigurationError(str(error)) from None

    async def reseal(_: Joined, client: Client) -> int:
        rings.check_rings(await rings.living_rings(client), vault.key_ids, vault.place)
        done = await reseal_all(vault, store_of(client, vault))
        if as_json:
            found = {"changed": done.changed, "total": done.total, "left": done.left, "idle_keys": list(done.idle_keys)}
            sys.stdout.write(json.dumps({"key": vault.key_ids[0], **found}) + "\n")
        else:
            sys.stdout.write("".join(f"{line}\n" for line in _told(done, vault.key_ids[0], vault.place)))
        return exits.FAILED if done.left else exits.OK

    return ask(settings, reseal)


def _told(done: Resealed, first: str, place: str) -> list[str]:
    lines = [f"{done.changed} encrypted anew with the key {first}; {done.total - done.left} of {done.total} are"]
    if done.left:
        lines.append(
            f"{done.left} are under an older key: a process that was started with other keys writes; start it anew and "
            "repeat this"
        )
    elif done.idle_keys:
        lines.append(f"nothing that is stored needs {', '.join(done.idle_keys)} any more: remove from {place}")
    return lines
