"""The routes of endpoints, as they stand in the table of all routes.

What belongs here: those entries. What must not be known here: how a request is answered.
"""

from channels.web.endpoint_models import (
    EndpointDeleted,
    EndpointList,
    EndpointMade,
    EndpointPatch,
    EndpointRequest,
    EndpointShown,
    RotateRequest,
    TestSent,
)
from channels.web.models import MAX_IDEMPOTENCY_KEY
from channels.web.operation import LIMIT, TEXT, Operation, Parameter

_NAME = Parameter("name", "path", "Name of the endpoint.", TEXT)

ENDPOINT_OPERATIONS = (
    Operation(
        name="create_endpoint",
        method="POST",
        path="/v1/endpoints",
        summary="Make an endpoint. Its secret is in this answer, and in no other.",
        scope="endpoints:write",
        answers={201: EndpointMade},
        request=EndpointRequest,
        parameters=(
            Parameter(
                "Idempotency-Key",
                "header",
                "The same key and endpoint of the same token make it once, for a day.",
                {"type": "string", "minLength": 1, "maxLength": MAX_IDEMPOTENCY_KEY},
            ),
        ),
        errors=("conflict", "store_full"),
    ),
    Operation(
        name="list_endpoints",
        method="GET",
        path="/v1/endpoints",
        summary="The endpoints by name: those of the settings, and those that were made since.",
        scope="endpoints:read",
        answers={200: EndpointList},
        parameters=(
            LIMIT,
            Parameter("after", "query", "Only those behind this name: the next of the answer before.", TEXT),
        ),
    ),
    Operation(
        name="read_endpoint",
        method="GET",
        path="/v1/endpoints/{name}",
        summary="An endpoint: what it gets, how, and whether it is sent to.",
        scope="endpoints:read",
        answers={200: EndpointShown},
        parameters=(_NAME,),
        errors=("not_found",),
    ),
    Operation(
        name="update_endpoint",
        method="PATCH",
        path="/v1/endpoints/{name}",
        summary="Change an endpoint. It counts from the next attempt on, also of what waits.",
        scope="endpoints:write",
        answers={200: EndpointShown},
        request=EndpointPatch,
        parameters=(_NAME,),
        errors=("not_found", "conflict", "refused", "store_full"),
    ),
    Operation(
        name="delete_endpoint",
        method="DELETE",
        path="/v1/endpoints/{name}",
        summary="Delete an endpoint. What waits for it is cancelled.",
        scope="endpoints:write",
        answers={200: EndpointDeleted},
        parameters=(
            _NAME,
            Parameter(
                "version",
                "query",
                "Delete only this version; not set: whichever there is.",
                {"type": "integer", "minimum": 0},
            ),
        ),
        errors=("not_found", "conflict", "refused", "store_full"),
    ),
    Operation(
        name="rotate_endpoint",
        method="POST",
        path="/v1/endpoints/{name}/rotate",
        summary="Give an endpoint a new secret, which is in this answer and in no other; old ones sign on for a while.",
        scope="endpoints:write",
        answers={200: EndpointMade},
        request=RotateRequest,
        parameters=(_NAME,),
        errors=("not_found", "conflict", "refused", "store_full"),
    ),
    *(
        Operation(
            name=f"{verb}_endpoint",
            method="POST",
            path=f"/v1/endpoints/{{name}}/{verb}",
            summary=summary,
            scope="endpoints:write",
            answers={200: EndpointShown},
            parameters=(_NAME,),
            errors=("not_found",),
        )
        for verb, summary in (
            ("pause", "Hold what is for an endpoint, and what comes, until it is resumed."),
            (
                "resume",
                "Send again what comes for an endpoint, and what a paused one held. A disabled one holds on to it.",
            ),
        )
    ),
    Operation(
        name="test_endpoint",
        method="POST",
        path="/v1/endpoints/{name}/test",
        summary="Send an endpoint a test event, whatever it subscribes to.",
        scope="endpoints:write",
        answers={202: TestSent},
        parameters=(_NAME,),
        errors=("not_found", "store_full"),
    ),
)
"""Every route of endpoints."""
