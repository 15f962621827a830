"""Turns over HTTP: handing one in, looking at it, ending it.

What belongs here: what requests mean to the worker's port, and turns in the API's words. What must not be known here:
how a turn runs, tokens' secrets.
"""

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import redis.asyncio
from starlette.responses import Response

from channels.endpoints.directory import unknown
from channels.settings import Settings
from channels.web.errors import Refused, json_response
from channels.web.models import (
    CancelAnswer,
    NewerTurn,
    Resume,
    SubmitAnswer,
    SubmitRequest,
    Tokens,
    Turn,
    TurnError,
    TurnHead,
    TurnList,
    TurnUrls,
)
from channels.web.operation import DEFAULT_LIMIT, MOST_LISTED
from channels.web.operations import STATES
from channels.web.tokens import Token
from channels.web.way import Call, require
from channels.webhook.address import check_url, shown
from worker import api, ids
from worker.errors import ConfigurationError
from worker.store import records
from worker.store.inbox import IdempotencyConflict, InterruptBarred, SessionBusy
from worker.store.listing import LIVE, OUTCOMES, Wanted, find
from worker.store.records import TurnRecord

_KEY_HEADER = "Idempotency-Key"
_NUMBER = re.compile(r"[0-9]{1,15}")
_FIELDS = {"label": "labels", "destination": "destinations", "idempotency_key": _KEY_HEADER}
_HOLDS = ("prompt", "agent", "session", "labels", "requester", "on_busy", "by", "option")


@dataclass(frozen=True, slots=True)
class TurnRoutes:
    """The routes of turns. `wake`: asks a turns process to look at a session; must not block."""

    settings: Settings
    client: redis.asyncio.Redis
    wake: Callable[[str], None]

    async def submit(self, call: Call) -> Response:
        """POST /v1/turns. HTTP turns run alone: none of them joins a turn that runs."""
        asked = cast("SubmitRequest", call.body)
        key = idempotency_key(call)
        self._check_bounds(call.token, asked)
        await self._check_destinations(call.token, asked)
        try:
            submitted = await api.submit(
                self.settings,
                self.client,
                prompt=asked.prompt,
                source="http",
                wake=self.wake,
                agent=asked.agent,
                session=asked.session,
                labels=asked.labels,
                destinations=asked.destinations,
                idempotency_key=key,
                requester=asked.requester,
                on_busy=asked.on_busy,
                interrupts=call.token.agent or None,
            )
        except ConfigurationError as error:
            raise refusal_of(error) from None
        except (SessionBusy, InterruptBarred, IdempotencyConflict) as error:
            raise _not_taken(error) from None
        answer = SubmitAnswer(
            turn=submitted.turn,
            session=submitted.session,
            duplicate=submitted.duplicate,
            urls=_urls(submitted.turn),
        )
        return json_response(answer, 202, {"Location": answer.urls.turn})

    async def read(self, call: Call) -> Response:
        """GET /v1/turns/{turn}."""
        record = await visible_turn(self.client, self.settings, call)
        text = (await records.read_text(self.client, record.turn)).encode()[: record.marker].decode()
        return json_response(Turn(**_head(record), text=text))

    async def list(self, call: Call) -> Response:
        """GET /v1/turns."""
        query = call.request.query_params
        limit = number(call, "limit", DEFAULT_LIMIT, 1, MOST_LISTED)
        since_ms = number(call, "since_ms", 0, 0, 10**15)
        states, outcomes = _states(query.get("state"))
        labels = _labels(query.getlist("label"))
        token = call.token
        wanted = Wanted(states, outcomes, since_ms, labels, token.agent or None, token.sessions)
        found = await find(self.client, self.settings.partitions, wanted, limit)
        heads = [TurnHead(**_head(record)) for record in found.turns]
        newer = [NewerTurn(turn=each.turn, state=each.state) for each in found.newer]
        return json_response(TurnList(turns=heads, newer=newer, truncated=found.more or found.stopped))

    async def cancel(self, call: Call) -> Response:
        """POST /v1/turns/{turn}/cancel."""
        record = await visible_turn(self.client, self.settings, call)
        try:
            met = await api.cancel_turn(
                self.settings, self.client, turn=record.turn, by=call.token.name, wake=self.wake
            )
        except api.TurnNotFound:
            raise unknown_turn() from None
        if met.state == "newer":
            raise Refused("refused", "a newer version of Lastword has written this turn: ask a process of that version")
        return json_response(CancelAnswer(turn=met.turn, state=met.state, outcome=met.outcome))

    def _check_bounds(self, token: Token, asked: SubmitRequest) -> None:
        if token.agent not in ("", asked.agent):
            raise Refused("forbidden", f"agent: this token may only ask {token.agent}", field="agent")
        try:
            self.settings.agent(asked.agent)
        except ConfigurationError:  # whose words are for who writes the settings
            raise Refused("invalid", f"agent: {asked.agent!r} is none of this installation", field="agent") from None
        if token.sessions and not (asked.session or "").startswith(token.sessions):
            message = f"session: this token may only use sessions that begin with {token.sessions}"
            raise Refused("forbidden", message, field="session")
        if token.agent and not token.sessions and asked.session is not None:
            # Its history, its turns and what was allowed in it may be those of another agent.
            message = (
                "session: a token of one agent may name a session only if it is made for sessions, too: leave it out, "
                "or make a token with --sessions PREFIX"
            )
            raise Refused("forbidden", message, field="session")

    async def _check_destinations(self, token: Token, asked: SubmitRequest) -> None:
        for destination in asked.destinations:
            if "://" in destination:
                require(token, "destinations:url")
                try:
                    check_url("destination", destination)
                except ConfigurationError as error:
                    raise Refused("invalid", str(error), field="destinations") from None
        names = [destination for destination in asked.destinations if "://" not in destination]
        for name in await unknown(self.client, self.settings, names):  # the words for operators name other endpoints
            message = f"destinations: {name[:80]!r} is no endpoint of this installation"
            raise Refused("invalid", message, field="destinations")


async def visible_turn(client: redis.asyncio.Redis, settings: Settings, call: Call) -> TurnRecord:
    """The turn of the path, without its message, if it is this token's business. Raises `Refused` and `NewerRecord`.

    Others' turns look as if they were none.
    """
    turn = call.request.path_params["turn"]
    partition = ids.partition_of(turn)
    if not turn.startswith("turn_") or partition is None or partition >= settings.partitions:
        raise unknown_turn()
    for record in await records.read_heads(client, [turn]):
        if call.token.admits(record.agent, record.session):
            if isinstance(record, records.NewerTurn):
                raise record.error
            return record
    raise unknown_turn()


def unknown_turn() -> Refused:
    """There is no such turn for this token."""
    return Refused("not_found", "turn: it was never submitted here, or is kept no more (turns.keep_s)", field="turn")


def refusal_of(error: ConfigurationError) -> Refused:
    """What the worker's port says of a field, as an error of that field."""
    words = str(error)
    first = words.replace(":", " ").split()[0]
    field = _FIELDS.get(first, first if first in _HOLDS else None)
    return Refused("invalid", words, field=field)


def _not_taken(error: SessionBusy | InterruptBarred | IdempotencyConflict) -> Refused:
    match error:
        case SessionBusy():
            message = "session: a turn of it goes on, and on_busy is reject; send it again later, or let it wait"
            return Refused("busy", message, field="session")
        case InterruptBarred():
            message = (
                "on_busy: a turn of another agent goes on in this session, and this token may not end it: send it "
                "again later, or with on_busy queue"
            )
            return Refused("forbidden", message, field="on_busy")
        case IdempotencyConflict():
            message = f"this {_KEY_HEADER} stands for another message: use a key of its own for each message"
            return Refused("conflict", message, field=_KEY_HEADER)


def idempotency_key(call: Call) -> str | None:
    """The key that the store knows. Those of different tokens never meet. Raises `Refused`."""
    given = call.request.headers.getlist(_KEY_HEADER)
    if not given:
        return None
    if len(given) > 1 or not 1 <= len(given[0]) <= api.MAX_KEY_CHARACTERS:
        message = f"{_KEY_HEADER}: give it once, with 1 to {api.MAX_KEY_CHARACTERS} characters"
        raise Refused("invalid", message, field=_KEY_HEADER)
    return "http:" + hashlib.sha256(f"{call.token.id}\n{given[0]}".encode()).hexdigest()


def number(call: Call, name: str, default: int, low: int, high: int) -> int:
    """A number of the query, from `low` to `high`. Raises `Refused`."""
    text = call.request.query_params.get(name)
    if text is None:
        return default
    if not _NUMBER.fullmatch(text) or not low <= int(text) <= high:
        raise Refused("invalid", f"{name}: use a number from {low} to {high}", field=name)
    return int(text)


def _states(state: str | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    match state:
        case None:
            return LIVE, ()
        case "sealed":
            return (), OUTCOMES
        case _ if state in LIVE:
            return (state,), ()
        case _ if state in OUTCOMES:
            return (), (state,)
        case _:
            raise Refused("invalid", f"state: use one of {', '.join(STATES)}", field="state")


def _labels(texts: Sequence[str]) -> dict[str, str]:
    labels: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise Refused("invalid", "label: give NAME=VALUE", field="label")
        if name in labels:
            raise Refused("invalid", f"label: {name[:64]!r} is given twice, and a turn has one value", field="label")
        labels[name] = value
    return labels


def _urls(turn: str) -> TurnUrls:
    path = f"/v1/turns/{turn}"
    return TurnUrls(turn=path, events=f"{path}/events", cancel=f"{path}/cancel")


def _head(record: TurnRecord) -> dict[str, Any]:
    totals, failure = record.totals, record.failure
    error = failure and TurnError(
        category=failure.category,
        code=failure.code,
        message=failure.message,
        correlation_id=record.correlation_id,
    )
    usage = Tokens(**{name: getattr(totals, name) for name in Tokens.model_fields})
    resume = Resume(
        discarded_attempts=record.discards,
        resumes=totals.discarded_resume_attempts or 0,
        discarded_estimated_input_tokens=totals.discarded_resume_estimated_input_tokens,
    )
    same = ("turn", "session", "agent", "source", "state", "outcome", "reason", "requester", "labels", "calls")
    return {
        **{name: getattr(record, name) for name in (*same, "crashes", "created_ms", "sealed_ms")},
        "destinations": [shown(each) if "://" in each else each for each in record.destinations],
        "error": error,
        "usage": usage,
        "resume": resume,
        "urls": _urls(record.turn),
    }
