"""Approvals over HTTP: what waits for a person, and a person's answer.

What belongs here: who decides in whose name, and requests in the API's words. What must not be known here: how they are
stored.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import redis.asyncio
from starlette.responses import Response

from channels.settings import Settings
from channels.web.errors import Code, Refused, away, json_response
from channels.web.models import Approval, ApprovalList, DecideAnswer, DecideRequest, Option
from channels.web.operation import DEFAULT_LIMIT, MOST_LISTED
from channels.web.turns import number, refusal_of
from channels.web.way import Call, require
from worker import api, ids
from worker.errors import ConfigurationError
from worker.output.approvals import REFUSALS, Refusal
from worker.store import records
from worker.store.pending import BEGINNING, PendingApproval, find, parse_place, shown_place

_CODES: dict[Refusal, Code] = {
    "prompt_expired": "refused",
    "wrong_requester": "forbidden",
    "option_unavailable": "invalid",
    "no_history": "not_found",
}
_FIELDS: dict[Refusal, str] = {"wrong_requester": "by", "option_unavailable": "option", "no_history": "approval"}


@dataclass(frozen=True, slots=True)
class ApprovalRoutes:
    """The routes of approvals. `wake`: asks a turns process to look at a session; must not block."""

    settings: Settings
    client: redis.asyncio.Redis
    wake: Callable[[str], None]

    async def list(self, call: Call) -> Response:
        """GET /v1/approvals."""
        limit = number(call, "limit", DEFAULT_LIMIT, 1, MOST_LISTED)
        named = call.request.query_params.get("after")
        after = BEGINNING if named is None else parse_place(named)
        if after is None:
            raise Refused("invalid", "after: give what the last answer has as its next", field="after")
        token = call.token
        found = await find(
            self.client, self.settings.partitions, limit, after=after, agent=token.agent, sessions=token.sessions
        )
        seen = [_approval(one) for one in found.approvals]
        following = None if found.end is None else shown_place(found.end)
        return json_response(ApprovalList(approvals=seen, truncated=following is not None, next=following))

    async def decide(self, call: Call) -> Response:
        """POST /v1/approvals/{approval}."""
        asked = cast("DecideRequest", call.body)
        by = asked.by or call.token.name
        if by != call.token.name:
            require(call.token, "approvals:act_as")
        approval = await self._visible(call)
        try:
            resolution = await api.resolve_approval(
                self.settings, self.client, approval=approval, option=asked.option, by=by, wake=self.wake
            )
        except ConfigurationError as error:
            raise refusal_of(error) from None
        except api.ApprovalRefused as refused:
            raise _refusal(refused.code) from None
        answer = DecideAnswer(
            approval=resolution.approval, turn=resolution.turn, option=resolution.option, by=resolution.by
        )
        return json_response(answer)

    async def _visible(self, call: Call) -> str:
        """The approval of the path, if its turn is this token's business."""
        approval: str = call.request.path_params["approval"]
        place = ids.parse_approval(approval)
        partition = None if place is None else ids.partition_of(place[0])
        if place is None or partition is None or partition >= self.settings.partitions:
            raise _refusal("no_history")
        heads = await records.read_heads(self.client, [place[0]])
        if not any(call.token.admits(head.agent, head.session) for head in heads):
            raise _refusal("no_history")
        for head in heads:
            if isinstance(head, records.NewerTurn):
                raise head.error
        return approval


def _refusal(code: Refusal) -> Refused:
    if code == "persist_failed":
        return away(REFUSALS[code])
    return Refused(_CODES[code], REFUSALS[code], field=_FIELDS.get(code), reason=code)


def _approval(one: PendingApproval) -> Approval:
    return Approval(
        approval=one.approval,
        turn=one.turn,
        session=one.session,
        agent=one.agent,
        tool=one.tool,
        arguments=one.arguments,
        requester=one.requester,
        options=[Option(key=option.key, label=option.label) for option in one.options],
        asked_ms=one.asked_ms,
        expires_ms=one.expires_ms,
    )
