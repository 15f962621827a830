"""The answer that the events of a Responses stream add up to.

What belongs here: what an event adds to the answer, and when the answer is over. What must not be known here: how
events are framed (`framing`), the order of events (`responses_lifecycle`, `responses_output`), deviations
(`responses_compat`).

The terminal mark is a terminal event of the response, or an error. `[DONE]` is none.
"""

from collections.abc import Iterator

from worker.codecs.answer_text import AnswerText
from worker.codecs.events import Completed, Failed, StreamEvent, ToolCall, UsageReported
from worker.codecs.limits import Profile, RuleBrokenError, StreamLimits
from worker.codecs.provider_errors import failure_of
from worker.codecs.responses_compat import Repairs
from worker.codecs.responses_fields import Fields, check_usage, name_in, object_in, usage_of
from worker.codecs.responses_lifecycle import FAILED, TERMINAL, Ending, Lifecycle
from worker.codecs.responses_output import Output
from worker.codecs.responses_parts import REASONING

_ERRORS = ("error", "response.error", "response.failed")
_LONGEST_NAME = 80
_TEXT_DELTA = "response.output_text.delta"


class ResponsesAnswer:
    """Takes events, gives events in our words, and keeps what belongs to the whole answer: an `AnswerReader`.

    `finish_reason`: the status of the response that ended.
    """

    pieces_below: tuple[str, ...] = ("delta",)
    finishing = False
    ends_with_stream = False
    stands = False

    def __init__(self, limits: StreamLimits, profile: Profile) -> None:
        strict = profile == "strict"
        self.finish_reason: str | None = None
        self.raw_usage: dict[str, object] | None = None
        self.raw_error: object = None
        self._text = AnswerText(limits.text_chars)
        self._output = Output(limits, self._text, strict=strict)
        self._lifecycle = Lifecycle(strict=strict)
        self._speaking: tuple[object, ...] | None = None
        """The place that the last event was a delta of text of, if it was one."""
        self._repairs = None if strict else Repairs(self._lifecycle, self._output)

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The tool calls as far as they have come."""
        return self._output.tool_calls

    def expect_half_characters(self) -> None:
        """From now on a delta may end in the first half of a character."""
        self._output.halves = True

    def take(self, name: str, value: dict[str, object], events: list[StreamEvent]) -> None:
        """The object of one event. Raises RuleBrokenError, with the event's name and the rule."""
        says_text = self._repairs is not None and value.get("type") == _TEXT_DELTA
        place = _place_of(value) if says_text else None  # as the provider has it; repairs change the event
        try:
            for event in self._documented(name, value):
                self._take(event, events)
        except RuleBrokenError as broken:
            kind = name_in(value, "type") or name or "without a type"
            raise _of_event(kind, broken) from None
        self._speaking = place

    def take_more_text(self, name: str, value: dict[str, object], events: list[StreamEvent]) -> bool:
        """Take a delta that only says more where the last one spoke. False: it is another event. Raises as `take`."""
        del name
        if self._speaking is None or value.get("type") != _TEXT_DELTA:
            return False
        if type(delta := value.get("delta")) is not str or "response" in value or _place_of(value) != self._speaking:
            return False
        try:
            self._output.take_more(delta, events)
        except RuleBrokenError as broken:
            raise _of_event(_TEXT_DELTA, broken) from None
        return True

    def take_done(self, events: list[StreamEvent]) -> None:
        """`[DONE]` came: that says nothing, as every whole answer has had its terminal event by then."""

    def take_beside_error(self, value: dict[str, object], events: list[StreamEvent]) -> None:
        """The object is an error that ends the stream: take its usage, and what it says of the response."""
        if value.get("type") in _ERRORS:
            self.finish_reason = "failed"
        self._take_usage(value, events)

    def take_document(self, document: dict[str, object], events: list[StreamEvent]) -> bool:
        """The body was one JSON object. A response that ended is an answer. Raises RuleBrokenError."""
        kind = f"response.{name_in(document, 'status')}"
        if document.get("object") != "response" or kind not in TERMINAL:
            return False
        self.take("", {"type": "response.done", "response": document}, events)
        return True

    def end(self, events: list[StreamEvent]) -> None:
        """Nothing is held back: the terminal event has given all."""

    def _documented(self, name: str, value: Fields) -> Iterator[Fields]:
        if self._repairs is not None:
            yield from self._repairs.events(name, value)
        else:
            self._lifecycle.check_frame(name, value)
            yield value

    def _take(self, event: Fields, events: list[StreamEvent]) -> None:
        kind = str(event["type"])
        if not kind.startswith("response."):
            return
        self._take_usage(event, events)
        if kind in TERMINAL:
            ending = self._lifecycle.end(kind, event)
            self._end(ending, object_in(event, "response"), events)
        else:
            self._lifecycle.take(kind, event)
            self._output.take(kind, event, events)

    def _take_usage(self, event: Fields, events: list[StreamEvent]) -> None:
        response = event.get("response")
        usage = response.get("usage") if isinstance(response, dict) else None
        if usage and isinstance(usage, dict):
            if self._repairs is None:
                check_usage(usage)
            self.raw_usage = usage
            events.append(UsageReported(usage_of(usage)))

    def _end(self, ending: Ending, response: Fields, events: list[StreamEvent]) -> None:
        self.finish_reason = ending.status
        if ending.status in FAILED:
            error = response.get("error")
            self.raw_error = error or None
            message = f"the provider ended the response with status {ending.status}"
            events.append(failure_of(error, response) if error else Failed("retryable", message, ending.status))
            return
        self._output.check_output(response, needed=ending.status == "completed")
        calls = self.tool_calls
        finish_reason = ending.finish_reason or ("tool_calls" if calls else "stop")
        usage = None if self.raw_usage is None else usage_of(self.raw_usage)
        events.append(Completed(finish_reason, calls, usage, 1, self._text.refusal, self._echo()))

    def _echo(self) -> tuple[Fields, ...]:
        """All items of the answer, if the provider encrypted its reasoning: it wants them back as they were, in order.

        Without that nothing is lost when the items are made anew. Reasoning that is not encrypted cannot be sent back
        to a provider that stored nothing.
        """
        sent = [
            item.final or {} if self._repairs is None else self._repairs.original(item)
            for item in self._output.in_order()
        ]
        kept = tuple(item for item in sent if item.get("type") != REASONING or name_in(item, "encrypted_content"))
        return kept if any(item.get("type") == REASONING for item in kept) else ()


def _place_of(event: Fields) -> tuple[object, ...]:
    """Where an event belongs, in the provider's words; with types, as true is no index though it equals 1."""
    output, content = event.get("output_index"), event.get("content_index")
    return output, type(output), content, type(content), event.get("item_id")


def _of_event(kind: str, broken: RuleBrokenError) -> RuleBrokenError:
    return type(broken)(broken.code, f"responses event {kind[:_LONGEST_NAME]}: {broken}")
