"""The routes of the HTTP API in one table: what each takes, gives, refuses, and who may ask.

What belongs here: the table, from which the routes and the OpenAPI document are made. What must not be known here: how
a request is answered.
"""

from channels.web.delivery_operations import DELIVERY_OPERATIONS
from channels.web.endpoint_operations import ENDPOINT_OPERATIONS
from channels.web.errors import Code
from channels.web.models import (
    MAX_IDEMPOTENCY_KEY,
    Alive,
    ApprovalList,
    CancelAnswer,
    DecideAnswer,
    DecideRequest,
    HookAnswer,
    Ready,
    SubmitAnswer,
    SubmitRequest,
    Turn,
    TurnList,
)
from channels.web.operation import LIMIT, TEXT, Operation, Parameter
from worker.output.filters import OutputFilter
from worker.store.listing import LIVE, OUTCOMES

FILTERS = ", ".join(str(one.name).lower() for one in (*OutputFilter, OutputFilter.FULL))
STATES = (*LIVE, "sealed", *OUTCOMES)
HOOK_ERRORS: tuple[Code, ...] = (
    *("not_found", "too_large", "body_timeout", "not_json", "unauthorized", "invalid", "busy", "rate_limited"),
    "store_full",
)
_TURN = Parameter("turn", "path", "Id of the turn.", TEXT)
_APPROVAL = Parameter("approval", "path", "Id of the request.", TEXT)
OPERATIONS = (
    Operation(
        name="submit_turn",
        method="POST",
        path="/v1/turns",
        summary="Hand a message in. When this answers, it is on disk.",
        scope="turns:write",
        answers={202: SubmitAnswer},
        request=SubmitRequest,
        parameters=(
            Parameter(
                "Idempotency-Key",
                "header",
                "The same key and message of the same token give the same turn, for a day.",
                {"type": "string", "minLength": 1, "maxLength": MAX_IDEMPOTENCY_KEY},
            ),
        ),
        errors=("conflict", "busy", "store_full"),
    ),
    Operation(
        name="list_turns",
        method="GET",
        path="/v1/turns",
        summary="The turns that have not ended, the oldest first; or those that have, the latest first.",
        scope="turns:read",
        answers={200: TurnList},
        parameters=(
            Parameter(
                "state",
                "query",
                "Only those in this state, or ended so; without it those that go on.",
                {"type": "string", "enum": list(STATES)},
            ),
            Parameter(
                "label",
                "query",
                "Only those with this label, as NAME=VALUE; repeated: with all of these, each name once.",
                {"type": "array", "items": TEXT},
            ),
            Parameter(
                "since_ms",
                "query",
                "Only those submitted since, or of ended ones those that ended since, in UTC ms.",
                {"type": "integer", "minimum": 0},
            ),
            LIMIT,
        ),
    ),
    Operation(
        name="read_turn",
        method="GET",
        path="/v1/turns/{turn}",
        summary="A turn: its state, how it ended, and the text that stands.",
        scope="turns:read",
        answers={200: Turn},
        parameters=(_TURN,),
        errors=("not_found",),
    ),
    Operation(
        name="cancel_turn",
        method="POST",
        path="/v1/turns/{turn}/cancel",
        summary="End a turn. When this answers, no call and no tool of it starts any more.",
        scope="turns:write",
        answers={200: CancelAnswer},
        parameters=(_TURN,),
        errors=("not_found", "refused"),
    ),
    Operation(
        name="read_events",
        method="GET",
        path="/v1/turns/{turn}/events",
        summary=(
            "Read along, as server-sent events: a snapshot (or reset: forget what you have), then each output as it "
            "comes, to turn_completed. The data of an event is JSON: Snapshot, or the output of that name."
        ),
        scope="events:read",
        answers={200: "text/event-stream", 204: None},
        parameters=(
            _TURN,
            Parameter("filter", "query", f"What to get, between commas: {FILTERS}. Not set: full.", TEXT),
            Parameter("Last-Event-ID", "header", "Id of the last event that was seen: go on behind it.", TEXT),
        ),
        errors=("not_found", "too_many_readers", "draining"),
    ),
    Operation(
        name="receive_event",
        method="POST",
        path="/hooks/{route}",
        summary=(
            "Post an event to an inbound route. It needs no token: the signature or secret that the route is set to is "
            "its key. When this answers `accepted`, the turn is on disk; whoever got another answer than 202 may send "
            "the same again."
        ),
        scope=None,
        answers={202: HookAnswer},
        takes_json=True,
        parameters=(Parameter("route", "path", "Name of the route.", TEXT),),
        errors=HOOK_ERRORS,
    ),
    Operation(
        name="list_approvals",
        method="GET",
        path="/v1/approvals",
        summary="The tool calls that wait for a person, the one that expires first before all others.",
        scope="approvals:read",
        answers={200: ApprovalList},
        parameters=(
            LIMIT,
            Parameter("after", "query", "Only those behind this place: the next of the answer before.", TEXT),
        ),
    ),
    Operation(
        name="decide_approval",
        method="POST",
        path="/v1/approvals/{approval}",
        summary="Decide for a person. When this answers, the decision is on disk and counts.",
        scope="approvals:decide",
        answers={200: DecideAnswer},
        request=DecideRequest,
        parameters=(_APPROVAL,),
        errors=("not_found", "refused"),
    ),
    *ENDPOINT_OPERATIONS,
    *DELIVERY_OPERATIONS,
    Operation(
        name="openapi",
        method="GET",
        path="/v1/openapi.json",
        summary="This document.",
        scope=None,
        is_counted=True,
        answers={200: "application/json"},
    ),
    Operation(
        name="livez",
        method="GET",
        path="/livez",
        summary="The process answers.",
        scope=None,
        answers={200: Alive},
    ),
    Operation(
        name="readyz",
        method="GET",
        path="/readyz",
        summary="Whether requests should be sent to this process.",
        scope=None,
        answers={200: Ready, 503: Ready},
    ),
    Operation(
        name="metrics",
        method="GET",
        path="/metrics",
        summary="Metrics, in the text form of Prometheus. From the same machine without a token.",
        scope="metrics:read",
        is_local=True,
        is_counted=True,
        answers={200: "text/plain"},
    ),
)
"""Every route there is."""
