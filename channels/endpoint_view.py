"""An endpoint as people see it, also one that this process cannot send to.

What belongs here: what is shown of an endpoint of the settings and of the store. What must not be known here: who asks
and in which words he is answered, how endpoints are stored.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from channels.delivery.faring import Faring, faring
from channels.delivery.lane import Lane
from channels.endpoint_settings import Definition
from channels.endpoints.model import Origin
from channels.endpoints.record import Stored
from channels.settings import Settings
from worker.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Seen:
    """An endpoint as people see it. `stored`: None where it is of the settings. `lane`: whether it is sent to.

    `faring`: how that goes. `key_ends`: of the keys that sign, newest first. `fault`: why it cannot be sent to as this
    process is set up, and the fix; then `definition` holds the fields that can be read, and defaults for the others.
    Else empty.
    """

    name: str
    origin: Origin
    definition: Definition
    header_names: tuple[str, ...]
    key_ends: tuple[tuple[str, int | None], ...]
    stored: Stored | None
    lane: Lane
    faring: Faring
    fault: str = ""


def of_settings(name: str, settings: Settings, lane: Lane, now_ms: int) -> Seen:
    """An endpoint that stands in the settings, at a time (UTC ms)."""
    given = settings.endpoints[name]
    ends = tuple((key.scheme, None) for key in given.own_keys)
    return Seen(name, "file", given, tuple(given.headers), ends, None, lane, faring(lane, now_ms))


def of_store(stored: Stored, settings: Settings, lane: Lane, now_ms: int) -> Seen:
    """A stored endpoint at a time (UTC ms). Raises nothing for what cannot be read."""
    fault = stored.fault
    try:
        definition = settings.stored_definition(stored.name, stored.config)
    except ConfigurationError as error:
        definition, fault = _readable(stored.config), fault or str(error)
    ends = tuple((scheme, until_ms) for scheme, until_ms in stored.key_ends if until_ms is None or until_ms > now_ms)
    return Seen(stored.name, "store", definition, stored.header_names, ends, stored, lane, faring(lane, now_ms), fault)


def _readable(config: Mapping[str, Any]) -> Definition:
    """The fields that are right, each by itself."""
    right: dict[str, Any] = {"url": ""}
    for name, value in config.items():
        try:
            alone = Definition.model_validate({"url": "https://unreadable.invalid", name: value})
        except ValidationError:
            continue
        right[name] = getattr(alone, name)
    return Definition.model_construct(**right)
