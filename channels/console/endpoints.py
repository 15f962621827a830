"""`lastword endpoints`: who gets webhooks, where and how, and whether he is sent to.

What belongs here: the form of the answers. What must not be known here: how endpoints are stored, what is sent to them.
"""

import json
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Literal

from pydantic import ValidationError
from rich.table import Table
from rich.text import Text

from channels.console import exits
from channels.console.approvals import person
from channels.console.durations import seconds_of
from channels.console.endpoint_fields import Given, definition_of, key_of, unfit
from channels.console.joined import Client, Joined, ask
from channels.console.standing import faring_words, standing_object, standing_words
from channels.console.terminal import open_console, print_rows, time_of
from channels.endpoint_desk import DefinedInSettings, EndpointDesk, Resumed
from channels.endpoint_settings import Definition
from channels.endpoint_view import Seen
from channels.endpoints.model import SigningKey
from channels.endpoints.registry import EndpointExists, EndpointLeaving, UnknownEndpoint, VersionConflict
from channels.endpoints.signing_keys import MAX_OVERLAP_MS, Scheme, encode_secret, public_key
from channels.settings import Settings
from channels.webhook.address import shown
from worker.errors import ConfigurationError

Act = Literal["pause", "resume", "enable", "disable"]
_STYLES = {"paused": "yellow", "disabled": "red", "unreadable": "red"}
_PAGE = 500


def run_create(  # noqa: PLR0913 - one an option
    settings: Settings, name: str, given: Given, *, secret_file: Path | None, scheme: Scheme, as_json: bool
) -> int:
    """Make an endpoint and print its secret; returns the exit code."""
    definition, key = definition_of(given.fields()), key_of(secret_file)

    async def create(desk: EndpointDesk) -> int:
        made = await desk.create(name, definition, key=key, scheme=scheme)
        if as_json:
            sys.stdout.write(json.dumps(_object(await desk.show(name)) | _secret(made.keys[0])) + "\n")
            return exits.OK
        _print_secret(made.keys[0], f"endpoint {name} is made; receivers verify with this. It is kept encrypted")
        return exits.OK

    return _ask(settings, create)


def run_update(settings: Settings, name: str, given: Given, *, version: int | None, as_json: bool) -> int:
    """Change fields of an endpoint; returns the exit code."""
    fields = given.fields()

    async def update(desk: EndpointDesk) -> int:
        _print(await desk.update(name, fields, version), as_json=as_json)
        return exits.OK

    return _ask(settings, update)


def run_list(settings: Settings, *, as_json: bool) -> int:
    """Print all endpoints; returns the exit code."""

    async def listed(desk: EndpointDesk) -> int:
        found: list[Seen] = []
        while page := await desk.page(found[-1].name if found else "", _PAGE):
            found += page
        if as_json:
            sys.stdout.writelines(json.dumps(_object(one)) + "\n" for one in found)
        else:
            open_console().print(
                _table(found) if found else "no endpoints: `lastword endpoints create` or [endpoints.NAME] makes one",
                markup=False,
            )
        return exits.OK

    return _ask(settings, listed)


def run_show(settings: Settings, name: str, *, as_json: bool) -> int:
    """Print an endpoint; returns the exit code."""

    async def show(desk: EndpointDesk) -> int:
        _print(await desk.show(name), as_json=as_json)
        return exits.OK

    return _ask(settings, show)


def run_delete(settings: Settings, name: str, *, version: int | None) -> int:
    """Delete an endpoint; returns the exit code."""

    async def delete(desk: EndpointDesk) -> int:
        await desk.delete(name, version)
        sys.stdout.write(f"{name} deleted; what waits for it is cancelled\n")
        return exits.OK

    return _ask(settings, delete)


def run_rotate(  # noqa: PLR0913 - one an option
    settings: Settings,
    name: str,
    *,
    overlap: str,
    secret_file: Path | None,
    scheme: Scheme | None,
    as_json: bool,
) -> int:
    """Give an endpoint a new secret and print it; returns the exit code."""
    key, overlap_s = key_of(secret_file), seconds_of("--overlap", overlap, most_s=MAX_OVERLAP_MS // 1000)

    async def rotate(desk: EndpointDesk) -> int:
        made = await desk.rotate(name, overlap_s=overlap_s, key=key, scheme=scheme)
        if as_json:
            sys.stdout.write(json.dumps(_object(await desk.show(name)) | _secret(made.keys[0])) + "\n")
            return exits.OK
        old = len(made.keys) - 1
        _print_secret(made.keys[0], f"{name} is signed with this, and for a time with {old} before it")
        return exits.OK

    return _ask(settings, rotate)


def run_secret(settings: Settings, name: str, *, as_json: bool) -> int:
    """Print the secrets of an endpoint, the newest first, as `lastword webhook verify` reads them."""

    async def tell(desk: EndpointDesk) -> int:
        notes = open_console(stderr=True)
        for number, key in enumerate(await desk.keys(name), start=1):
            told = _secret(key) | {"scheme": key.scheme, "until_ms": key.until_ms}
            sys.stdout.write((json.dumps(told) if as_json else encode_secret(key)) + "\n")
            if key.until_ms is not None and not as_json:
                notes.print(f"number {number} signs until {time_of(key.until_ms)}", style="dim", soft_wrap=True)
        return exits.OK

    return _ask(settings, tell)


def run_act(settings: Settings, name: str, act: Act, *, why: str | None, replay: bool = False) -> int:
    """Pause, resume, enable or disable an endpoint; returns the exit code."""
    by = why or f"{act}d by {person()}"

    async def done(desk: EndpointDesk) -> int:
        if act in ("pause", "disable"):
            lane = await (desk.pause if act == "pause" else desk.disable)(name, by)
        else:
            resumed = await desk.resume(name, person(), replay=replay)
            lane = resumed.lane
            _say_what_is_held(name, resumed)
        sys.stdout.write(f"{name} {lane.standing}\n")
        return exits.OK

    return _ask(settings, done)


def _say_what_is_held(name: str, resumed: Resumed) -> None:
    if resumed.replay:
        note = f"{resumed.held} held deliveries are sent now: `lastword deliveries replays show {resumed.replay}`"
    elif resumed.held:
        note = f"{resumed.held} deliveries stay held: `lastword endpoints enable {name} --replay` sends them, too"
    else:
        return
    open_console(stderr=True).print(note, style="dim", markup=False, soft_wrap=True)


def run_test(settings: Settings, name: str, *, as_json: bool) -> int:
    """Send a test event; returns the exit code."""

    async def test(desk: EndpointDesk) -> int:
        event = await desk.test(name)
        sys.stdout.write((json.dumps({"event": event}) if as_json else event) + "\n")
        return exits.OK

    return _ask(settings, test)


def _ask(settings: Settings, question: Callable[[EndpointDesk], Awaitable[int]]) -> int:
    async def asked(there: Joined, client: Client) -> int:
        try:
            return await question(EndpointDesk(there.settings, client))
        except (EndpointExists, EndpointLeaving, UnknownEndpoint, VersionConflict, DefinedInSettings) as error:
            raise ConfigurationError(str(error)) from None
        except ValidationError as error:
            raise unfit(error) from None

    return ask(settings, asked)


def _secret(key: SigningKey) -> dict[str, object]:
    return {"secret": encode_secret(key), "public_key": public_key(key) if key.scheme == "v1a" else None}


def _print_secret(key: SigningKey, note: str) -> None:
    sys.stdout.write(encode_secret(key) + "\n")
    public = f"; the public key, for receivers: {public_key(key)}" if key.scheme == "v1a" else ""
    open_console(stderr=True).print(note + public, style="dim", markup=False, soft_wrap=True)


def _object(seen: Seen) -> dict[str, object]:
    told = seen.definition.model_dump(mode="json", include=set(Definition.model_fields) - {"url", "headers", "proxy"})
    stored = seen.stored
    return {
        "name": seen.name,
        "origin": seen.origin,
        "version": None if stored is None else stored.version,
        "url": shown(seen.definition.url),
        **told,
        "proxy": None if seen.definition.proxy is None else shown(seen.definition.proxy.get_secret_value()),
        "headers": list(seen.header_names),
        "keys": [{"scheme": scheme, "until_ms": until_ms} for scheme, until_ms in seen.key_ends],
        "standing": standing_object(seen.lane, seen.faring),
        "created_ms": None if stored is None else stored.created_ms,
        "updated_ms": None if stored is None else stored.updated_ms,
        "fault": seen.fault or None,
    }


def _print(seen: Seen, *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps(_object(seen)) + "\n")
        return
    rows = _object(seen) | {
        "keys": ", ".join(f"{scheme}{f' until {time_of(end)}' if end else ''}" for scheme, end in seen.key_ends)
        or "the common secret",
        "standing": standing_words(seen.lane, seen.faring),
        "created_ms": "" if seen.stored is None else time_of(seen.stored.created_ms),
        "updated_ms": "" if seen.stored is None else time_of(seen.stored.updated_ms),
    }
    print_rows(open_console(), {name.removesuffix("_ms"): value for name, value in rows.items()}, 16)


def _table(found: Sequence[Seen]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("name", "from", "url", "events", "keys", "standing"):
        table.add_column(name, overflow="fold", no_wrap=name == "name")
    for one in found:
        keys = " ".join(scheme for scheme, _ in one.key_ends) or "common"
        where = "settings" if one.origin == "file" else "store"
        cells = (one.name, where, shown(one.definition.url), " ".join(one.definition.events), keys)
        standing = "unreadable" if one.fault else one.lane.standing  # `endpoints show` says why
        wrong = faring_words(one.faring)
        style = _STYLES.get(standing, "yellow" if wrong else "")
        table.add_row(*map(Text, cells), Text("; ".join(filter(None, (standing, wrong))), style))
    return table
