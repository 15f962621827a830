"""Endpoints over HTTP: making, changing, pausing and trying them.

What belongs here: what requests mean to the desk, and endpoints in the API's words. What must not be known here: how
endpoints are stored.

A token that speaks for one agent, or for some sessions, may not even look: an endpoint gets what everybody's turns say.
"""

import hashlib
import hmac
from collections.abc import Awaitable
from dataclasses import asdict, dataclass
from typing import TypeVar, cast

from pydantic import SecretStr, ValidationError
from starlette.responses import Response

from channels.endpoint_desk import DefinedInSettings, EndpointDesk
from channels.endpoint_settings import Definition, EndpointFields
from channels.endpoint_view import Seen
from channels.endpoints import signing_keys
from channels.endpoints.model import SigningKey
from channels.endpoints.registry import (
    EndpointExists,
    EndpointLeaving,
    Idempotency,
    KeyReused,
    Made,
    SecretsUnreadable,
    UnknownEndpoint,
    VersionConflict,
)
from channels.web.body import refusal_of
from channels.web.endpoint_models import (
    EndpointDeleted,
    EndpointList,
    EndpointMade,
    EndpointPatch,
    EndpointRequest,
    EndpointShown,
    KeyShown,
    RotateRequest,
    StandingShown,
    TestSent,
)
from channels.web.errors import Code, Refused, json_response
from channels.web.operation import DEFAULT_LIMIT, MOST_LISTED
from channels.web.turns import idempotency_key, number
from channels.web.way import Call
from channels.webhook.address import shown
from worker.errors import ConfigurationError
from worker.observability import warn

T = TypeVar("T")

_FIELDS = frozenset(EndpointRequest.model_fields)
_ANY_VERSION = -1
_LATEST = 10**15


@dataclass(frozen=True, slots=True)
class EndpointRoutes:
    """The routes of endpoints."""

    desk: EndpointDesk

    async def create(self, call: Call) -> Response:
        """POST /v1/endpoints."""
        _check_whole(call)
        asked = cast("EndpointRequest", call.body)
        key = idempotency_key(call)
        definition = _definition(asked)
        made = await _told(
            self.desk.create(
                asked.name,
                definition,
                key=_key_of(asked.secret),
                scheme=asked.scheme,
                idempotency=None if key is None else Idempotency(key, _fingerprint(call, asked)),
            )
        )
        answer = await self._made(asked.name, made)
        return json_response(answer, 201, {"Location": f"/v1/endpoints/{asked.name}"})

    async def list(self, call: Call) -> Response:
        """GET /v1/endpoints."""
        _check_whole(call)
        limit = number(call, "limit", DEFAULT_LIMIT, 1, MOST_LISTED)
        found = await _told(self.desk.page(call.request.query_params.get("after", ""), limit + 1))
        following = found[limit - 1].name if len(found) > limit else None
        return json_response(EndpointList(endpoints=[_shown(one) for one in found[:limit]], next=following))

    async def read(self, call: Call) -> Response:
        """GET /v1/endpoints/{name}."""
        _check_whole(call)
        return json_response(_shown(await _told(self.desk.show(_name(call)))))

    async def update(self, call: Call) -> Response:
        """PATCH /v1/endpoints/{name}."""
        _check_whole(call)
        asked = cast("EndpointPatch", call.body)
        fields = {name: getattr(asked, name) for name in asked.model_fields_set - {"version"}}
        if "url" in fields and asked.url is None:
            raise Refused("invalid", "url: it cannot be left out; give the new one", field="url")
        return json_response(_shown(await _told(self.desk.update(_name(call), fields, asked.version))))

    async def delete(self, call: Call) -> Response:
        """DELETE /v1/endpoints/{name}."""
        _check_whole(call)
        version = number(call, "version", _ANY_VERSION, 0, _LATEST - 1)
        await _told(self.desk.delete(_name(call), None if version == _ANY_VERSION else version))
        return json_response(EndpointDeleted(name=_name(call)))

    async def rotate(self, call: Call) -> Response:
        """POST /v1/endpoints/{name}/rotate."""
        _check_whole(call)
        asked = cast("RotateRequest", call.body)
        step = self.desk.rotate(
            _name(call),
            overlap_s=asked.overlap_s,
            key=_key_of(asked.secret),
            scheme=asked.scheme,
            expected=asked.version,
        )
        made = await _told(step, "refused")  # there are as many keys as may be, or this one was used before
        return json_response(await self._made(_name(call), made))

    async def pause(self, call: Call) -> Response:
        """POST /v1/endpoints/{name}/pause."""
        _check_whole(call)
        await _told(self.desk.pause(_name(call), f"paused by {call.token.name}"))
        return await self.read(call)

    async def resume(self, call: Call) -> Response:
        """POST /v1/endpoints/{name}/resume."""
        _check_whole(call)
        await _told(self.desk.resume(_name(call), call.token.name))
        return await self.read(call)

    async def test(self, call: Call) -> Response:
        """POST /v1/endpoints/{name}/test."""
        _check_whole(call)
        return json_response(TestSent(event=await _told(self.desk.test(_name(call)))), 202)

    async def _made(self, name: str, made: Made) -> EndpointMade:
        newest = made.keys[0] if made.keys else None
        return EndpointMade(
            endpoint=_shown(await _told(self.desk.show(name))),
            secret=None if newest is None else signing_keys.encode_secret(newest),
            public_key=signing_keys.public_key(newest) if newest is not None and newest.scheme == "v1a" else None,
            duplicate=made.duplicate,
        )


def _fingerprint(call: Call, asked: EndpointRequest) -> str:
    """A digest of all that was asked; keyed by what is stored nowhere, or secrets could be guessed from it."""
    told = asked.model_dump_json(exclude={"secret", "headers"})
    secret = "" if asked.secret is None else asked.secret.get_secret_value()
    headers = sorted((name, value.get_secret_value()) for name, value in asked.headers.items())
    key = f"{call.token.id}\n{call.request.headers['Idempotency-Key']}".encode()
    return hmac.new(key, f"{told}\n{secret}\n{headers}".encode(), hashlib.sha256).hexdigest()


def _check_whole(call: Call) -> None:
    token = call.token
    if token.agent or token.sessions:
        raise Refused("forbidden", "this token speaks for some turns only, and endpoints get those of all: use another")


def _name(call: Call) -> str:
    name: str = call.request.path_params["name"]
    return name


def _key_of(secret: SecretStr | None) -> SigningKey | None:
    return None if secret is None else signing_keys.decode_secret("secret", secret.get_secret_value())


def _definition(asked: EndpointRequest) -> Definition:
    names = (set(EndpointFields.model_fields) | {"url"}) & asked.model_fields_set
    try:
        return Definition.model_validate({name: getattr(asked, name) for name in names})
    except ValidationError as error:
        raise refusal_of(error) from None


async def _told(step: Awaitable[T], unfit: Code = "invalid") -> T:
    """What a step gives, or what it refuses in the API's words. `unfit`: what a fault is that is of no one field."""
    try:
        return await step
    except (EndpointExists, EndpointLeaving) as error:
        raise Refused("conflict", str(error), field="name") from None
    except UnknownEndpoint as error:
        raise Refused("not_found", str(error), field="name") from None
    except VersionConflict as error:
        raise Refused("conflict", str(error), field="version") from None
    except KeyReused as error:
        raise Refused("conflict", str(error), field="Idempotency-Key") from None
    except DefinedInSettings as error:
        raise Refused("refused", str(error), field="name") from None
    except SecretsUnreadable as error:  # it names files of the machine and keys, and does not pass by itself
        warn("endpoint_secrets_unreadable", reason=str(error))
        raise Refused(
            "unavailable",
            "the master keys of this process do not open what is stored, or others lack them: the log says which; tell "
            "who runs the server",
        ) from None
    except ValidationError as error:
        raise refusal_of(error) from None
    except ConfigurationError as error:
        first = str(error).replace(":", " ").split()[0]
        raise Refused(unfit, str(error), field=first if first in _FIELDS else None) from None


def _shown(seen: Seen) -> EndpointShown:
    definition, stored, lane = seen.definition, seen.stored, seen.lane
    same = ("timeout_s", "rate_per_s", "burst", "concurrency", "order", "head_wait_s", "payload", "disable_after_s")
    waits = definition.retry_waits_s
    return EndpointShown(
        name=seen.name,
        origin="file" if stored is None else "store",
        version=None if stored is None else stored.version,
        url=shown(definition.url),
        events=list(definition.events),
        source=list(definition.source),
        labels=definition.labels,
        headers=list(seen.header_names),
        retry_waits_s=None if waits is None else list(waits),
        keys=[KeyShown.model_validate({"scheme": scheme, "until_ms": until}) for scheme, until in seen.key_ends],
        standing=StandingShown.model_validate(
            {"state": lane.standing, "why": lane.why, "since_ms": lane.since_ms or None, **asdict(seen.faring)}
        ),
        created_ms=None if stored is None else stored.created_ms,
        updated_ms=None if stored is None else stored.updated_ms,
        fault=seen.fault or None,
        **{name: getattr(definition, name) for name in same},
    )
