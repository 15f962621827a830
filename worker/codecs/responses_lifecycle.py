"""The events of a response as a whole: created, in progress, ended.

What belongs here: their order, their identity, which status belongs to which event, how a response ended. What must not
be known here: items, repairs.
"""

from typing import NamedTuple

from worker.codecs.limits import RuleBrokenError
from worker.codecs.responses_fields import Fields, name_in, object_in, wrong_type

CREATED = "response.created"
IN_PROGRESS = "response.in_progress"
QUEUED = "response.queued"
_STATUSES = {
    "response.completed": ("completed",),
    "response.incomplete": ("incomplete",),
    "response.failed": ("failed", "cancelled"),
    "response.cancelled": ("cancelled",),
    "response.done": ("completed", "incomplete", "failed", "cancelled"),
}
TERMINAL = frozenset(_STATUSES)
"""The events that end a response. `response.done` and `response.cancelled` are not documented, but are sent."""
FAILED = ("failed", "cancelled")
_REASONS = (None, "max_output_tokens", "content_filter")


class Ending(NamedTuple):
    """How a response ended: its `status`, and the `reason` of one that is incomplete, both in the provider's words."""

    status: str
    reason: str | None

    @property
    def finish_reason(self) -> str | None:
        """The word of `worker.codecs.events.Completed`, or None where the response was not cut off.

        A response that is incomplete without a reason that we know was cut off by some limit all the same.
        """
        if self.status != "incomplete" and self.reason is None:
            return None
        return "content_filter" if self.reason == "content_filter" else "length"


class Lifecycle:
    """Checks the events of one response, in order. `response_id`: empty until it was created.

    `strict` as in `responses_output`: a completed event may else carry the status of an incomplete response, and any
    terminal event that of a failed one that tells its error.
    """

    def __init__(self, *, strict: bool) -> None:
        self.response_id = ""
        self._strict = strict
        self._last_number = -1

    def check_frame(self, name: str, event: Fields) -> None:
        """The frame of an event. `name`: what the stream called it. Raises RuleBrokenError."""
        kind = event.get("type")
        if not isinstance(kind, str) or kind != (name or "message"):
            raise RuleBrokenError("type_mismatch", "the event: line must be the type of the event")
        number = event.get("sequence_number")
        if number is None and not kind.startswith("response."):
            return
        if type(number) is not int or number <= self._last_number:
            raise RuleBrokenError("wrong_sequence", "sequence_number must be a number from 0 that rises")
        self._last_number = number

    def take(self, kind: str, event: Fields) -> None:
        """An event before the end, of the response or of an item. Raises RuleBrokenError."""
        if kind == CREATED:
            self._create(object_in(event, "response"))
        elif not self.response_id:
            raise RuleBrokenError("event_before_created", "response.created must come first")
        elif kind == IN_PROGRESS:
            response = object_in(event, "response")
            if response.get("id") not in (None, self.response_id):
                raise _another_id()
            if response.get("status") not in (None, "in_progress"):
                raise RuleBrokenError("in_progress_status", "the status must be in_progress")
            if response.get("output"):
                raise RuleBrokenError("in_progress_with_items", "the output must be empty")

    def end(self, kind: str, event: Fields) -> Ending:
        """A terminal event. Raises RuleBrokenError."""
        if not self.response_id:
            raise RuleBrokenError("event_before_created", "response.created must come first")
        response = event.get("response")
        if not isinstance(response, dict):
            raise RuleBrokenError("no_response", "a terminal event must have a response")
        if response.get("id") != self.response_id:
            raise _another_id()
        status = response.get("status")
        if not isinstance(status, str) or status not in _STATUSES["response.done"]:
            raise RuleBrokenError("terminal_status", "the status of a response that ended must be a terminal one")
        allowed = _STATUSES[kind]
        if not self._strict and kind == "response.completed":
            allowed = (*allowed, "incomplete")
        if not self._strict and response.get("error"):
            allowed = (*allowed, *FAILED)  # what went wrong is said: that counts, whatever the event is called
        if status not in allowed:
            raise RuleBrokenError("status_contradicts", f"the status must be {' or '.join(allowed)}")
        return Ending(status, self._reason(response))

    def _create(self, response: Fields) -> None:
        if self.response_id:
            raise RuleBrokenError("created_twice", "a response is created once")
        identity = name_in(response, "id")
        if identity is None:
            raise RuleBrokenError("created_without_id", "a response that is created must have an id")
        if response.get("status") not in (None, "in_progress"):
            raise RuleBrokenError("created_status", "the status must be in_progress")
        if response.get("output"):
            raise RuleBrokenError("created_with_items", "the output must be empty")
        self.response_id = identity

    def _reason(self, response: Fields) -> str | None:
        details = response.get("incomplete_details")
        if details is None:
            return None
        if not isinstance(details, dict):
            raise wrong_type("incomplete_details", "an object", details)
        reason = details.get("reason")
        if self._strict and reason not in _REASONS:
            raise RuleBrokenError("incomplete_details", "reason must be max_output_tokens or content_filter")
        return reason if isinstance(reason, str) else None


def _another_id() -> RuleBrokenError:
    return RuleBrokenError("response_id_changed", "the id must be that of the response that was created")
