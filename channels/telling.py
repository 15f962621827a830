"""What has to be read to tell an event, and what is told of it then.

What belongs here: of each type of event, the reads and the words. What must not be known here: how reads are taken, the
JSON form, receivers.

A plan asks for reads, is given what they gave, asks again if it must, and ends with the body.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import fields
from typing import Any

import orjson

from channels.delivery.model import Delivery, Hopeless, Unsent
from channels.events.content import (
    APPROVAL_REQUESTED,
    CALL_COMPLETED,
    ApprovalDecided,
    ApprovalRequested,
    CallCompleted,
    Option,
    Resume,
    TokensUsed,
    TurnEnd,
    TurnError,
    is_of_endpoints,
)
from channels.webhook.payload import Form, render, render_own
from worker.store import reads
from worker.store.reads import Read
from worker.store.records import NewerTurn, TurnRecord

LATER_S = 30.0
"""Until a turn that cannot be told now is looked at again: a newer release, or the end of its turn, may come."""

Body = bytes | Hopeless | Unsent
Plan = Generator[Sequence[Read[Any]], Sequence[Any], Body]


class Telling:
    """Makes plans. `content_key`: the name under which is stored what a delivery's event refers to, or brings."""

    def __init__(self, form: Form, content_key: Callable[[Delivery], str]) -> None:
        self._form = form
        self._content_key = content_key

    def plan(self, delivery: Delivery, *, full: bool) -> Plan:
        """The plan for one delivery, with its long field or without."""
        if is_of_endpoints(delivery.event_type):
            return self._own(delivery)
        if delivery.event_type.startswith("turn."):
            return self._turn_end(delivery, full=full)
        return self._of_turn(delivery, full=full)

    def _own(self, delivery: Delivery) -> Plan:
        (data,) = _taken((yield [reads.stored(self._content_key(delivery))]))
        if data is None:
            return _gone(delivery)
        return render_own(delivery.event_type, delivery.created_ms, data)

    def _turn_end(self, delivery: Delivery, *, full: bool) -> Plan:
        text_read = reads.text(delivery.turn, 0, self._longest(full=full))
        found, text = _taken((yield [reads.head(delivery.turn), text_read]))
        head = _told(delivery, found)
        if not isinstance(head, TurnRecord):
            return head
        if head.sealed_ms is None:  # the server has lost its end since, and will have it again
            return Unsent(f"turn {head.turn} has not ended", LATER_S)
        if len(text) < min(head.marker, self._longest(full=full)):
            return _gone(delivery, "the text of ")
        is_whole = head.marker <= self._form.cap_bytes
        end = turn_end(head, text.decode() if full and is_whole else "")
        return render(delivery.event_type, head.sealed_ms, end, self._form, full=full, is_whole=is_whole)

    def _of_turn(self, delivery: Delivery, *, full: bool) -> Plan:
        """What tells of a call or an approval refers to it."""
        found, stored = _taken((yield [reads.head(delivery.turn), reads.stored(self._content_key(delivery))]))
        head = _told(delivery, found)
        if not isinstance(head, TurnRecord):
            return head
        if stored is None:
            return _gone(delivery)
        reference = orjson.loads(stored)
        if delivery.event_type == CALL_COMPLETED:
            return (yield from self._call(delivery, head, reference, full=full))
        if delivery.event_type == APPROVAL_REQUESTED:
            return (yield from self._request(delivery, head, reference, full=full))
        return (yield from self._decision(delivery, head, reference))

    def _call(self, delivery: Delivery, head: TurnRecord, reference: dict[str, Any], *, full: bool) -> Plan:
        call, begin, end = reference["call"], reference["begin"], reference["end"]
        text_read = reads.text(head.turn, begin, min(end, begin + self._longest(full=full)))
        found, text = _taken((yield [reads.call_end(head.turn, call, reference["out"]), text_read]))
        if head.marker < end and head.sealed_ms is None:  # as with the end of a turn
            return Unsent(f"call {call} of turn {head.turn} has not completed", LATER_S)
        if found is None:
            return _gone(delivery)
        if head.marker < end or len(text) < min(end - begin, self._longest(full=full)):
            return _gone(delivery, "the text of ")
        is_whole = end - begin <= self._form.cap_bytes
        content = CallCompleted(
            **_place(head),
            call=call,
            text=text.decode() if full and is_whole else "",
            finish_reason=found.finish_reason,
            usage=None if found.usage is None else tokens(found.usage),
        )
        return render(delivery.event_type, delivery.created_ms, content, self._form, full=full, is_whole=is_whole)

    def _request(self, delivery: Delivery, head: TurnRecord, reference: dict[str, Any], *, full: bool) -> Plan:
        out: str = reference["out"]
        (asked,) = _taken((yield [reads.request(head.turn, out)]))
        if asked is None:
            return _gone(delivery)
        content = ApprovalRequested(
            **_place(head),
            approval=asked.approval,
            call=reference["call"],
            tool=asked.name,
            arguments=asked.arguments,
            requester=asked.requester,
            options=tuple(Option(option.key, option.label) for option in asked.options),
            asked_ms=int(out.partition("-")[0]),
            expires_ms=asked.expires_at_ms,
        )
        return render(delivery.event_type, delivery.created_ms, content, self._form, full=full)

    def _decision(self, delivery: Delivery, head: TurnRecord, reference: dict[str, Any]) -> Plan:
        approval: str = reference["approval"]
        (decided,) = _taken((yield [reads.decision(approval)]))
        if decided is None:
            return _gone(delivery)
        content = ApprovalDecided(
            **_place(head),
            approval=approval,
            call=reference["call"],
            tool=decided.tool,
            option=decided.option,
            by=decided.by,
            asked_ms=decided.asked_ms,
            expires_ms=decided.expires_ms,
        )
        return render(delivery.event_type, delivery.created_ms, content, self._form, full=True)

    def _longest(self, *, full: bool) -> int:
        """Bytes of a text that are read: none where it is not wanted, and none that make the body too long anyway."""
        return self._form.cap_bytes if full else 0


def _taken(answers: Sequence[Any]) -> Sequence[Any]:
    """What was read. Raises the exception that a read ended with."""
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    return answers


def _told(delivery: Delivery, head: TurnRecord | NewerTurn | None) -> TurnRecord | Hopeless | Unsent:
    if head is None:
        return _gone(delivery)
    return Unsent(str(head.error), LATER_S) if isinstance(head, NewerTurn) else head


def _gone(delivery: Delivery, part: str = "") -> Hopeless:
    what = f"turn {delivery.turn}" if delivery.turn else f"event {delivery.event_id}"
    return Hopeless("turn_expired" if delivery.turn else "event_expired", f"{part}{what} is not stored any more")


def _place(head: TurnRecord) -> dict[str, Any]:
    return {
        "turn": head.turn,
        "session": head.session,
        "agent": head.agent,
        "source": head.source,
        "labels": head.labels,
    }


def tokens(counted: object) -> TokensUsed:
    """The tokens that a provider has reported, of one call or of all."""
    return TokensUsed(**{field.name: getattr(counted, field.name) for field in fields(TokensUsed)})


def turn_end(record: TurnRecord, text: str) -> TurnEnd:
    """What receivers are told of a sealed turn."""
    totals, failure = record.totals, record.failure
    return TurnEnd(
        turn=record.turn,
        session=record.session,
        agent=record.agent,
        source=record.source,
        outcome=record.outcome or "",
        reason=record.reason,
        text=text,
        usage=tokens(totals),
        resume=Resume(
            discarded_attempts=record.discards,
            discarded_estimated_input_tokens=totals.discarded_resume_estimated_input_tokens,
            resumes=totals.discarded_resume_attempts or 0,
        ),
        labels=record.labels,
        error=None
        if failure is None
        else TurnError(failure.category, failure.code, failure.message, record.correlation_id or ""),
    )
