"""What must be true of endpoints before anything is sent to them, and what to do where it is not.

What belongs here: looking at files, secrets and stored definitions, and naming the fix. What must not be known here:
how the findings are shown, what is sent.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import redis.asyncio
from redis.exceptions import RedisError

from channels.doctor import Check, check_sealed
from channels.endpoint_settings import Definition
from channels.endpoints.record import Stored
from channels.endpoints.registry import Registry
from channels.endpoints.rings import check_rings, living_rings
from channels.endpoints.vault import Vault
from channels.settings import Settings
from channels.vault_section import open_vault
from channels.webhook.address import shown
from worker.errors import ConfigurationError

_PAGE = 500
_PEM = b"-----BEGIN "


def check_given(settings: Settings) -> list[Check]:
    """Whether the endpoints of the settings can be sent to, as far as this machine shows."""
    checks = []
    if settings.delivery.ca_file is not None and (fault := _fault_of_file(settings.delivery.ca_file)):
        checks.append(Check("endpoints", False, f"delivery.ca_file: {fault}", "correct the path or the file"))
    for name, definition in settings.endpoints.items():
        try:
            settings.endpoint(name)
        except (ConfigurationError, OSError) as error:
            checks.append(Check(f"endpoint {name}", False, str(error), "see the message"))
        faults = list(_faults_of_files(definition))
        fix = f"correct the path or the file in endpoints.{name}"
        checks += [Check(f"endpoint {name}", False, fault, fix) for fault in faults]
        if not faults:
            checks.append(Check(f"endpoint {name}", True, _told(definition)))
    return checks


async def check_stored(client: redis.asyncio.Redis, settings: Settings) -> list[Check]:
    """Whether the endpoints of the store can be read and signed for with what this machine has."""
    try:
        vault = open_vault(settings.vault, settings.data_dir)
    except (ConfigurationError, OSError) as error:
        return [Check("vault", False, str(error), "see the message")]
    registry = Registry(client, vault)
    checks: list[Check] = []
    after = ""
    try:
        while page := await registry.listed(after, _PAGE):
            for stored in page:
                checks += _stored_checks(settings, stored)
            after = page[-1].name
        checks += check_sealed(vault, await registry.sealed()) if checks else []
        return checks + _ring_checks(await living_rings(client), vault)
    except (RedisError, OSError):
        return []  # the check of Redis tells of it


def _ring_checks(rings: Sequence[Sequence[str]], vault: Vault) -> list[Check]:
    try:
        check_rings(rings, vault.key_ids, vault.place)
    except ConfigurationError as error:
        return [Check("vault", False, str(error), "see the message")]
    return []


def _stored_checks(settings: Settings, stored: Stored) -> Iterator[Check]:
    name, title = stored.name, f"endpoint {stored.name}"
    if name in settings.endpoints:
        fix = (
            f"give one of them another name: rename [endpoints.{name}]; deleting the other cancels what waits for both"
        )
        yield Check(title, True, "the one of the settings hides the one that is stored", fix)
        return
    try:
        definition = settings.stored_definition(name, stored.config)
    except ConfigurationError as error:
        yield Check(title, False, stored.fault or str(error), "see the message")
        return
    faults = list(_faults_of_files(definition))
    for fault in faults:
        yield Check(title, False, fault, f"put the file there, or `lastword endpoints update {name} --set FIELD=PATH`")
    if not faults:
        yield Check(title, True, _told(definition))


def _told(definition: Definition) -> str:
    gets = f"gets {', '.join(definition.events)}" if definition.events else "gets what names it"
    return f"{shown(definition.url)} {gets}"


def _faults_of_files(definition: Definition) -> Iterator[str]:
    for field in ("ca_file", "cert_file", "key_file"):
        path = getattr(definition, field)
        if path is not None and (fault := _fault_of_file(path)):
            yield f"{field}: {fault}"


def _fault_of_file(path: Path) -> str:
    """What is wrong with a PEM file, or nothing."""
    try:
        return "" if _PEM in path.read_bytes() else f"{path} is no PEM file"
    except OSError as error:
        return f"{path} cannot be read ({error.strerror})"
