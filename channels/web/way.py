"""What every request goes through before and after it is answered: token, scope, rates, body, errors, log, figures.

What belongs here: that way, the same for all routes. What must not be known here: what a route does.

A log line has method, route template, status and time; never a path, a query, a body or anything of a token.
"""

import re
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from time import monotonic

import redis.asyncio
from pydantic import BaseModel
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from channels.web import metrics, tokens
from channels.web.body import check_query, read_model
from channels.web.errors import Refused, away
from channels.web.operation import Operation
from channels.web.rates import Rates
from channels.web.tokens import Token
from worker.errors import NewerRecord, StoreFull, StoreUnavailable
from worker.observability import fault, info
from worker.store.repeat import is_unanswered

_TRACE = "lastword"
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{8,64}")
_HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
_QUIET = ("/livez", "/readyz", "/metrics")
"""Asked every few seconds; a line for each would bury the others."""

_REALM = 'Bearer realm="lastword"'


@dataclass(slots=True)
class _Trace:
    """A request on its way. `route`: its template, once it is known."""

    request_id: str
    route: str = "none"
    status: int = 0
    started: float = field(default_factory=monotonic)


class Traced:
    """The outermost layer: an id and headers for every answer, figures, one line."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] != "http":
            return
        named = dict(scope["headers"]).get(b"x-request-id", b"").decode("latin-1")
        trace = _Trace(named if _REQUEST_ID.fullmatch(named) else secrets.token_hex(8))
        scope[_TRACE] = trace

        async def send_traced(message: Message) -> None:
            if message["type"] == "http.response.start":
                trace.status = message["status"]
                metrics.answered(trace.route, scope["method"], trace.status, monotonic() - trace.started)
                headers = MutableHeaders(raw=message["headers"])
                headers["x-request-id"] = trace.request_id
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            await self._app(scope, receive, send_traced)
        except Exception as error:
            fault("request_failed", error, request=trace.request_id, route=trace.route)
            raise  # the answer has begun; the server cuts it off
        finally:
            _log(metrics.known_method(scope["method"]), trace)


def _log(method: str, trace: _Trace) -> None:
    if trace.route in _QUIET and trace.status < 400:
        return
    took_ms = round((monotonic() - trace.started) * 1000)
    info("request", method=method, route=trace.route, status=trace.status, ms=took_ms, request=trace.request_id)


@dataclass(frozen=True, slots=True)
class Call:
    """A request that may be answered. `token` is there where the operation has a scope."""

    request: Request
    bearer: Token | None
    body: BaseModel | None

    @property
    def token(self) -> Token:
        """Who asks."""
        assert self.bearer is not None, "this operation has no scope"
        return self.bearer


Handler = Callable[[Call], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Guard:
    """What stands before every operation with a scope."""

    client: redis.asyncio.Redis
    rates: Rates
    body_bytes: int

    async def admit(self, request: Request, operation: Operation) -> Token | None:
        """Who asks, if he may; None: he needs no token. Raises `Refused`."""
        if operation.scope is None or (operation.is_local and _is_local(request)):
            if operation.is_counted:
                await self.rates.count_stranger(address_of(request))
            return None
        token = await tokens.find(self.client, _bearer(request))
        if token is None:
            await self.rates.count_failure(address_of(request))
            raise Refused(
                "unauthorized",
                "no valid token: send Authorization: Bearer TOKEN, with one of `lastword token create` that was not "
                "revoked and has not expired",
                headers={"WWW-Authenticate": _REALM},
            )
        await self.rates.count_request(token.id)
        require(token, operation.scope)
        return token


def require(token: Token, scope: str) -> None:
    """Refuse a token without this scope."""
    if scope not in token.scopes:
        raise Refused(
            "forbidden",
            f"this token lacks the scope {scope}: make one with `lastword token create --scope {scope}`",
            reason=scope,
            headers={"WWW-Authenticate": f'{_REALM}, error="insufficient_scope", scope="{scope}"'},
        )


def way_of(operation: Operation, handler: Handler, guard: Guard) -> Callable[[Request], Awaitable[Response]]:
    """The way of a request of this operation."""

    async def answer(request: Request) -> Response:
        request.scope[_TRACE].route = operation.path
        try:
            bearer = await guard.admit(request, operation)
            if operation.scope and not operation.is_local:  # a probe may say what it likes
                check_query(request, operation)
            body = await read_model(request, operation.request, guard.body_bytes) if operation.request else None
            return await handler(Call(request, bearer, body))
        except Refused as refused:
            return refused.response()
        except Exception as error:  # noqa: BLE001 - whatever it is, who asked is told in the one form of errors
            return (_store_error(error) or _fault_of_ours(error, request.scope[_TRACE])).response()

    return answer


def _fault_of_ours(error: Exception, trace: _Trace) -> Refused:
    fault("request_failed", error, request=trace.request_id, route=trace.route)
    return Refused("internal", f"a fault of ours; the log tells more of request {trace.request_id}")


def _store_error(error: Exception) -> Refused | None:
    if isinstance(error, StoreFull):
        return away(f"{error}; nothing was stored", "store_full", 30)
    if isinstance(error, StoreUnavailable | NewerRecord):
        return away(str(error))
    if is_unanswered(error):
        return away("Redis does not answer: send it again later")
    return None


def address_of(request: Request) -> str:
    """Where it was asked from: what rates count by."""
    return request.client.host if request.client else "unknown"


def _is_local(request: Request) -> bool:
    """Whether it was asked on this machine, and not by a proxy for somebody else."""
    if any(name in request.headers for name in ("x-forwarded-for", "forwarded", "via")):
        return False
    return address_of(request) in ("127.0.0.1", "::1", "::ffff:127.0.0.1")


def _bearer(request: Request) -> str:
    given = request.headers.getlist("authorization")
    scheme, _, text = given[0].partition(" ") if len(given) == 1 else ("", "", "")
    return text.strip() if scheme.lower() == "bearer" else ""
