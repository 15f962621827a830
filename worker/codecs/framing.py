"""One decoder for every wire format that streams JSON objects as server-sent events.

What belongs here: what no wire format owns: which bytes are an object, a mark, an error, a keepalive, another body, and
when nothing follows. What must not be known here: what an object says; that is the business of an `AnswerReader`.

Each item of the stream that says nothing of the answer is one `Keepalive`, and bytes that complete no item are none:
so a stream's events do not depend on how it was cut.
"""

from contextlib import suppress
from typing import Protocol

from worker.codecs.events import Completed, Failed, Keepalive, StreamEvent, ToolCall
from worker.codecs.foreign import SENTENCE_BYTES, ForeignLines, error_in
from worker.codecs.limits import LimitPassedError, Profile, RuleBrokenError, StreamLimits
from worker.codecs.provider_errors import failure_of
from worker.codecs.sse import SseComment, SseDecoder, SseEvent, SseFault, SseItem, SseUnknownLine
from worker.codecs.wirejson import parse

_DONE = b"[DONE]"
_PULSES = frozenset({"ping", "heartbeat", "keepalive", "keep-alive"})
_KEEPALIVE = Keepalive()
_TERMINAL = (Completed, Failed)


class AnswerReader(Protocol):
    """What one wire format makes of the objects of one stream.

    Its methods append what they learn to `events`; a `Completed` or `Failed` as the last of them ends the decoding. All
    may raise `RuleBrokenError` for a peer that breaks a rule; `end` only where what it held back passes a limit.
    `finish_reason`, `tool_calls`, `raw_usage` as in `worker.codecs.codec.Decoder`. `raw_error`: an error that the
    reader itself found in an object, else None. `pieces_below`: the keys on the way to where strings are pieces of a
    longer text, see `wirejson.parse`.
    """

    pieces_below: tuple[str, ...]

    @property
    def finishing(self) -> bool:
        """The terminal mark was seen, and nothing of the answer since: only trailing matter may follow."""
        ...

    @property
    def ends_with_stream(self) -> bool:
        """The end of the stream completes the call, with all that came until then; a broken one, if `finishing`."""
        ...

    @property
    def stands(self) -> bool:
        """It is finishing with an answer that says something, so that an error which comes now unmakes nothing."""
        ...

    @property
    def finish_reason(self) -> str | None: ...  # noqa: D102 - the class says it

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]: ...  # noqa: D102 - the class says it

    @property
    def raw_usage(self) -> dict[str, object] | None: ...  # noqa: D102 - the class says it

    @property
    def raw_error(self) -> object: ...  # noqa: D102 - the class says it

    def expect_half_characters(self) -> None:
        """The peer's JSON has flaws: from now on a piece of text may end in the first half of a character."""
        ...

    def take(self, name: str, value: dict[str, object], events: list[StreamEvent]) -> None:
        """The object of one event. `name`: what the stream called the event, empty where it did not."""
        ...

    def take_more_text(self, name: str, value: dict[str, object], events: list[StreamEvent]) -> bool:
        """The quick way for what streams are full of: the next piece of the text that the last object was a piece of.

        False: it is another object, nothing was taken, and it has to be looked at in full. True: it was taken exactly
        as `take` would have taken it.
        """
        ...

    def take_done(self, events: list[StreamEvent]) -> None:
        """`[DONE]` came."""
        ...

    def take_beside_error(self, value: dict[str, object], events: list[StreamEvent]) -> None:
        """The object is an error that ends the stream: append what else it says, such as usage."""
        ...

    def take_document(self, document: dict[str, object], events: list[StreamEvent]) -> bool:
        """The body was one JSON object instead of a stream. False where it is no answer; else append all of it."""
        ...

    def end(self, events: list[StreamEvent]) -> None:
        """The call is whole: append what was held back, then the `Completed`."""
        ...


class FramedDecoder:
    """Reads one answer: the `worker.codecs.codec.Decoder` of every wire format."""

    def __init__(self, reader: AnswerReader, limits: StreamLimits, profile: Profile) -> None:
        self._reader = reader
        self._repairs = profile == "compat"
        self._sse = SseDecoder(limits)
        self._foreign = ForeignLines(limits.event_bytes)
        self._raw_error: object = None
        self._ended = False

    @property
    def finishing(self) -> bool:
        """The terminal mark was seen and only trailing matter may follow; False again when more of the answer comes."""
        return self._reader.finishing and not self._ended

    @property
    def finish_reason(self) -> str | None:
        """The provider's own word for how the answer finished, if it has come."""
        return self._reader.finish_reason

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The tool calls as far as they have come. Only those of a `Completed` may run."""
        return self._reader.tool_calls

    @property
    def raw_usage(self) -> dict[str, object] | None:
        """The last usage object that the provider sent."""
        return self._reader.raw_usage

    @property
    def raw_error(self) -> object:
        """The error that the provider sent inside the stream: mostly an object, sometimes a sentence."""
        return self._raw_error or self._reader.raw_error

    def feed(self, data: bytes) -> list[StreamEvent]:
        """Take the next bytes, cut anywhere; give what they complete, in order."""
        events: list[StreamEvent] = []
        if not self._ended:
            self._take_items(self._sse.feed(data), events)
        return events

    def close(self, *, broken: bool = False) -> list[StreamEvent]:
        """The stream ended. Nothing terminal is given when the terminal mark was not seen: a death.

        `broken`: not in good order, so that a mark which more of the answer followed does not count.
        """
        events: list[StreamEvent] = []
        if self._ended:
            return events
        self._take_items(self._sse.close(), events)
        if not self._ended:
            try:
                self._end_of_stream(events, broken=broken)
            except RuleBrokenError as rule:
                self._break(rule, events)
            self._ended = True
        return events

    def _end_of_stream(self, events: list[StreamEvent], *, broken: bool) -> None:
        if self._reader.ends_with_stream:
            if self._reader.finishing or not broken:
                self._reader.end(events)
        elif not self._take_body(events) and (failure := self._foreign.end()):
            self._fail(failure, self._foreign.raw_error, events)

    def _take_body(self, events: list[StreamEvent]) -> bool:
        """Take the body before what came now, if it is one whole answer instead of a stream."""
        document = self._foreign.document() if self._repairs and self._foreign.has_body else None
        return document is not None and self._reader.take_document(document, events)

    def _take_items(self, items: list[SseItem], events: list[StreamEvent]) -> None:
        for item in items:
            if type(item) is SseEvent:
                try:
                    self._take_event(item, events)
                except RuleBrokenError as broken:
                    self._break(broken, events)
                if events and type(events[-1]) in _TERMINAL:
                    self._ended = True
            else:
                self._take_other(item, events)
            if self._ended:
                return

    def _take_other(self, item: SseItem, events: list[StreamEvent]) -> None:
        if isinstance(item, SseFault):
            self._break(RuleBrokenError(item.code, item.message), events)
        elif isinstance(item, SseUnknownLine):
            if failure := self._foreign.take(item):
                self._fail(failure, self._foreign.raw_error, events)
            elif item.whole:
                events.append(_KEEPALIVE)
        else:
            if isinstance(item, SseComment):
                self._foreign.saw_comment()
            else:
                self._foreign.saw_stream()
            events.append(_KEEPALIVE)

    def _take_event(self, item: SseEvent, events: list[StreamEvent]) -> None:
        data = item.data
        if not item.whole and not self._repairs:
            self._foreign.saw_stream()
            return  # the standard says so: what no blank line ended was never sent
        if self._foreign.has_body and self._take_foreign(data, events):
            return
        self._foreign.saw_stream()
        if not data.startswith(b"{"):
            data = data.strip()
            if data.startswith(_DONE):
                self._take_done(events)
                return
            if self._repairs and ((not data and item.name != "error") or item.name in _PULSES):
                events.append(_KEEPALIVE)
                return
        self._take_json(item, data, events)

    def _take_json(self, item: SseEvent, data: bytes, events: list[StreamEvent]) -> None:
        try:
            value, flawed = parse(data, self._reader.pieces_below)
        except ValueError:
            if item.name == "error" and item.whole:
                sentence = data[:SENTENCE_BYTES].decode("utf-8", "replace")
                self._fail(failure_of(sentence), sentence, events)
            elif item.whole:
                raise RuleBrokenError("not_json", "the data of an event must be JSON") from None
            return
        if flawed:
            if not self._repairs:
                raise RuleBrokenError("not_json", "the data of an event must be JSON without NaN or half characters")
            self._reader.expect_half_characters()
        self._take_value(value, item.name, events)

    def _take_foreign(self, data: bytes, events: list[StreamEvent]) -> bool:
        """Take the body that stands before the first event of the stream. False where the stream is what counts."""
        if self._take_body(events):
            return True
        if not data.strip().startswith(_DONE):
            return False
        failure = self._foreign.end()
        if failure is None:
            raise RuleBrokenError("not_json", "the body before [DONE] must be an event stream or JSON")
        self._fail(failure, self._foreign.raw_error, events)
        return True

    def _take_done(self, events: list[StreamEvent]) -> None:
        before = len(events)
        self._reader.take_done(events)
        if len(events) == before:
            events.append(_KEEPALIVE)

    def _take_value(self, value: object, name: str, events: list[StreamEvent]) -> None:
        error = error_in(value)
        if error or name == "error":
            stood = self._reader.stands
            if isinstance(value, dict):
                with suppress(RuleBrokenError):  # the error says more than a rule broken beside it
                    self._reader.take_beside_error(value, events)
            failure = failure_of(error or value, value if isinstance(value, dict) else {})
            self._fail(failure, error or value, events, stood=stood)
            return
        if not isinstance(value, dict):
            raise RuleBrokenError("wrong_type", "the data of an event must be a JSON object")
        before = len(events)
        if not self._reader.take_more_text(name, value, events):
            self._reader.take(name, value, events)
        if len(events) == before:
            events.append(_KEEPALIVE)

    def _fail(self, failure: Failed, raw_error: object, events: list[StreamEvent], *, stood: bool = True) -> None:
        """The provider told an error. `stood`: whether the answer stood before what came with it."""
        self._ended = True
        self._raw_error = raw_error
        if self._repairs and stood and self._reader.stands:
            self._end_all_the_same(events)
        else:
            events.append(failure)

    def _break(self, broken: RuleBrokenError, events: list[StreamEvent]) -> None:
        self._ended = True
        if self._repairs and self._reader.finishing and not isinstance(broken, LimitPassedError):
            self._end_all_the_same(events)
        else:
            events.append(_rule_broken(broken))

    def _end_all_the_same(self, events: list[StreamEvent]) -> None:
        try:
            self._reader.end(events)
        except LimitPassedError as passed:  # by what was held back
            events.append(_rule_broken(passed))


def _rule_broken(broken: RuleBrokenError) -> Failed:
    return Failed("protocol", str(broken), broken.code)
