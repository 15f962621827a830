"""The routes of deliveries and bulk replays, as they stand in the table of all routes.

What belongs here: those entries. What must not be known here: how a request is answered.
"""

from typing import get_args

from channels.delivery.model import State
from channels.web.delivery_models import (
    DeliveryDetail,
    DeliveryList,
    DeliveryShown,
    ReplayList,
    ReplayRequest,
    ReplayShown,
)
from channels.web.operation import LIMIT, TEXT, Operation, Parameter

STATES: tuple[State, ...] = get_args(State)
NDJSON = "application/x-ndjson"

_MOMENT = {"type": "integer", "minimum": 0}
_DELIVERY = Parameter("delivery", "path", "Id of the delivery.", TEXT)
_REPLAY = Parameter("replay", "path", "Id of the bulk replay.", TEXT)
_FILTERS = (
    Parameter("state", "query", "Only those of this state.", {"type": "string", "enum": list(STATES)}),
    Parameter("endpoint", "query", "Only those for this endpoint: its name, or a URL.", TEXT),
    Parameter("type", "query", "Only those of this event type.", TEXT),
    Parameter("turn", "query", "Only those of this turn.", TEXT),
    Parameter("since_ms", "query", "Only those made since, in UTC ms.", _MOMENT),
    Parameter("until_ms", "query", "Only those made before, in UTC ms.", _MOMENT),
)

DELIVERY_OPERATIONS = (
    Operation(
        name="list_deliveries",
        method="GET",
        path="/v1/deliveries",
        summary="What is on its way to receivers, what arrived and what did not, the newest first.",
        scope="deliveries:read",
        answers={200: DeliveryList},
        parameters=(
            *_FILTERS,
            LIMIT,
            Parameter("after", "query", "Only those behind this place: the next of the answer before.", TEXT),
        ),
    ),
    Operation(
        name="export_deliveries",
        method="GET",
        path="/v1/deliveries/export",
        summary="All of them, a DeliveryDetail a line, as they are read; an answer that is cut off is not whole.",
        scope="deliveries:read",
        answers={200: NDJSON},
        parameters=_FILTERS,
    ),
    Operation(
        name="read_delivery",
        method="GET",
        path="/v1/deliveries/{delivery}",
        summary="A delivery: its state, its attempts and what they showed.",
        scope="deliveries:read",
        answers={200: DeliveryDetail},
        parameters=(_DELIVERY,),
        errors=("not_found",),
    ),
    Operation(
        name="replay_delivery",
        method="POST",
        path="/v1/deliveries/{delivery}/replay",
        summary="Send a dead or held delivery again, from its first attempt, under the same id.",
        scope="deliveries:write",
        answers={200: DeliveryShown},
        parameters=(_DELIVERY,),
        errors=("not_found", "refused"),
    ),
    Operation(
        name="cancel_delivery",
        method="POST",
        path="/v1/deliveries/{delivery}/cancel",
        summary="Let a delivery that is queued, waiting or held not be sent any more.",
        scope="deliveries:write",
        answers={200: DeliveryShown},
        parameters=(_DELIVERY,),
        errors=("not_found", "refused"),
    ),
    Operation(
        name="start_replay",
        method="POST",
        path="/v1/replays",
        summary="Send all dead or held deliveries of a range again, at a pace. The delivery processes go on with it.",
        scope="deliveries:write",
        answers={202: ReplayShown},
        request=ReplayRequest,
        errors=("refused", "store_full"),
    ),
    Operation(
        name="list_replays",
        method="GET",
        path="/v1/replays",
        summary="Bulk replays and how far they have come, the newest first.",
        scope="deliveries:read",
        answers={200: ReplayList},
        parameters=(LIMIT,),
    ),
    Operation(
        name="read_replay",
        method="GET",
        path="/v1/replays/{replay}",
        summary="A bulk replay and how far it has come.",
        scope="deliveries:read",
        answers={200: ReplayShown},
        parameters=(_REPLAY,),
        errors=("not_found",),
    ),
    *(
        Operation(
            name=f"{verb}_replay",
            method="POST",
            path=f"/v1/replays/{{replay}}/{verb}",
            summary=summary,
            scope="deliveries:write",
            answers={200: ReplayShown},
            parameters=(_REPLAY,),
            errors=("not_found", "refused"),
        )
        for verb, summary in (
            ("pause", "Let a bulk replay wait until it is resumed."),
            ("resume", "Let a paused bulk replay go on where it was."),
            ("cancel", "End a bulk replay. What it has replayed stays so."),
        )
    ),
)
"""Every route of deliveries and bulk replays."""
