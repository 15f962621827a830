"""One body of each kind, as receivers get them."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from channels.delivery.lane import Lane
from channels.delivery.model import Delivery
from channels.events import notices
from channels.events.content import (
    OUTCOMES,
    ApprovalDecided,
    ApprovalRequested,
    CallCompleted,
    Content,
    Option,
    Resume,
    TokensUsed,
    TurnEnd,
    TurnError,
)
from channels.webhook.payload import Form, render, render_own

TURN = "turn_00" + "b" * 20
FORM = Form("https://lastword.example", 300_000)
TEXTS = {
    "plain": "Hello.",
    "empty": "",
    "unicode": "\U0001f30a naïve \u2028 \x00\x1f \x7f",
    "half a pair": "a\ud83d",
    "too long": "x" * 300_000,
}


def _contents(text: str) -> dict[str, Content]:
    place: dict[str, Any] = {
        "turn": TURN,
        "session": "room/1",
        "agent": "default",
        "source": "http",
        "labels": {"team": text[:100]},
    }
    asked: dict[str, Any] = {**place, "approval": "appr_1", "call": 1, "tool": "mail", "asked_ms": 1, "expires_ms": 2}
    usage = TokensUsed(12, 3, 15, None, 0, None)
    end = TurnEnd(**place, outcome="", reason=text[:100], text=text, usage=usage, resume=Resume(2, 24, 1), error=None)
    error = TurnError("timeout", "stalled", text[:100], "c" * 32)
    options = (Option("approve_once", "Approve"), Option("deny", text[:100]))
    return {
        **{f"turn.{outcome}": replace(end, outcome=outcome) for outcome in OUTCOMES},
        "turn.failed": replace(end, outcome="failed", error=error, resume=Resume(0, None, 0)),
        "call.completed": CallCompleted(**place, call=2, text=text, finish_reason=None, usage=usage),
        "approval.requested": ApprovalRequested(**asked, arguments=text, requester="ana", options=options),
        "approval.decided": ApprovalDecided(**asked, option="deny", by=text[:100]),
        "approval.expired": ApprovalDecided(**asked, option="expired", by=None),
    }


def delivery_of(event_type: str = "turn.completed", **more: Any) -> Delivery:
    made = Delivery("dlv_00" + "a" * 20, "evt_1", TURN, event_type, "crm", 1_790_000_000_000, 1_790_000_000_000)
    return replace(made, **more)


def notice(of: Any, **more: Any) -> tuple[str, bytes]:
    """What an operator is told of an endpoint."""
    lane = Lane(failed=12, failing_since_ms=1_790_000_000_000, why="gone")
    return notices.notice_of(of, "crm", delivery_of(code="http_500", **more), lane, 1_790_000_100_000)


def every_body() -> Iterator[tuple[str, str, bytes]]:
    """Type, what is special, and the body."""
    for special, text in TEXTS.items():
        for event_type, content in _contents(text).items():
            for full in (True, False):
                name = f"{special}, {'full' if full else 'thin'}"
                yield event_type, name, render(event_type, 1_790_000_000_123, content, FORM, full=full)
                yield event_type, f"{name}, no url", render(event_type, 1, content, Form("", 300_000), full=full)
    for each in notices.TYPES:
        event_type, data = notice(each)
        yield event_type, "notice", render_own(event_type, 1_790_000_000_123, data)
    yield "endpoint.test", "test", render_own("endpoint.test", 1, notices.trial_of("crm", 1_790_000_000_000))
