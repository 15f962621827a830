"""What an operator is told of endpoints, as the content of events that bring their own.

What belongs here: from what happened to the words of an event. What must not be known here: when something is worth
telling (`channels.delivery.lane` decides that), who is told, Redis.
"""

from channels.delivery.lane import Lane, Notice
from channels.delivery.model import Delivery, json_bytes
from channels.events.content import ENDPOINT_DISABLED, EndpointNotice, EndpointTest

TYPES: dict[Notice, str] = {
    "failing": "delivery.failing",
    "recovered": "delivery.recovered",
    "disabled": ENDPOINT_DISABLED,
    "dead": "delivery.dead",
}


_TRIED = "This is a test. Somebody wanted to see that what is sent to this endpoint arrives."


def notice_of(notice: Notice, endpoint: str, delivery: Delivery, lane: Lane, now_ms: int) -> tuple[str, bytes]:
    """The type of the event and its content. `endpoint`: as it may be shown.

    `delivery`: the one that showed it, as it is then; `lane`: as it is then. Nothing may be told of a delivery that
    tells how another one fares (`ABOUT_DELIVERIES`), except that its endpoint was disabled: an operator's endpoint that
    fails would be told of that, for ever.
    """
    why = {"disabled": lane.why, "recovered": ""}.get(notice, delivery.code)
    content = EndpointNotice(
        endpoint=endpoint,
        delivery=delivery.id,
        event_type=delivery.event_type,
        turn=delivery.turn,
        code=why,
        failed=lane.failed,
        failing_since_ms=lane.failing_since_ms or None,
        at_ms=now_ms,
    )
    return TYPES[notice], json_bytes(content)


def trial_of(endpoint: str, now_ms: int) -> bytes:
    """The content of a test event, which goes to that endpoint alone."""
    return json_bytes(EndpointTest(endpoint, _TRIED, now_ms))
