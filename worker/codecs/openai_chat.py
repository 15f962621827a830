"""The Chat Completions wire format: OpenAI's, as OpenAI and the many servers that copy it really send it.

What belongs here: the request's body, and when an answer is over. What must not be known here: HTTP, time, retries,
turns; how events are framed (`sse`), what the fields of a chunk mean (`chat_answer`), what an error object means
(`provider_errors`).

The terminal mark is `finish_reason` or `[DONE]`. `[DONE]` completes the call at once; after a `finish_reason` usage
may still follow, so the call completes at `[DONE]` or at the end of the stream. From there on a broken chunk no
longer unmakes the call, but an error object does.
"""

from contextlib import suppress

import orjson

from worker.codecs.chat_answer import ChatAnswer, ChatLimits, LimitPassedError, RuleBrokenError
from worker.codecs.codec import EncodedRequest
from worker.codecs.events import Failed, Keepalive, StreamEvent, ToolCall
from worker.codecs.foreign import ForeignLines, error_in
from worker.codecs.messages import AssistantMessage, Message, Request, ToolMessage, ToolSpec, UserMessage
from worker.codecs.provider_errors import failure_of
from worker.codecs.sse import EVENT_BYTES, LINE_BYTES, SseDecoder, SseEvent, SseFault, SseItem, SseUnknownLine
from worker.codecs.wirejson import parse

_DONE = b"[DONE]"
_PULSES = frozenset({"ping", "heartbeat", "keepalive", "keep-alive"})
_DEAD_FINISHES = frozenset({"error", "insufficient_system_resource"})
_PIECES_BELOW = ("choices", "delta")
_KEEPALIVE = Keepalive()
_DEFAULT_LIMITS = ChatLimits()


class ChatCodec:
    """The codec of the Chat Completions format. `limits` hold for each answer; the byte limits for its framing."""

    def __init__(
        self, limits: ChatLimits = _DEFAULT_LIMITS, line_bytes: int = LINE_BYTES, event_bytes: int = EVENT_BYTES
    ) -> None:
        self._limits = limits
        self._line_bytes = line_bytes
        self._event_bytes = event_bytes

    def encode(self, request: Request) -> EncodedRequest:
        """The request that asks for a streamed answer. A null in `extra_body` takes its key out of the body."""
        body: dict[str, object] = {
            "model": request.model,
            "messages": _messages(request),
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if request.tools:
            body["tools"] = [_tool(tool) for tool in request.tools]
        if request.max_tokens is not None:
            body["max_tokens"] = request.max_tokens
        if request.temperature is not None:
            body["temperature"] = request.temperature
        body |= request.extra_body
        sent = {key: value for key, value in body.items() if value is not None}
        headers = {"content-type": "application/json", "accept": "text/event-stream"}
        return EncodedRequest("/chat/completions", orjson.dumps(sent), headers)

    def decoder(self) -> "ChatDecoder":
        """A decoder for the answer to one attempt."""
        return ChatDecoder(self._limits, self._line_bytes, self._event_bytes)


class ChatDecoder:
    """Reads one answer. After a `Completed` or `Failed` it gives nothing more; it never raises for a broken peer."""

    def __init__(
        self, limits: ChatLimits = _DEFAULT_LIMITS, line_bytes: int = LINE_BYTES, event_bytes: int = EVENT_BYTES
    ) -> None:
        self._sse = SseDecoder(line_bytes, event_bytes)
        self._answer = ChatAnswer(limits)
        self._foreign = ForeignLines()
        self._raw_error: object = None
        self._ended = False

    @property
    def finishing(self) -> bool:
        """A `finish_reason` was seen; only usage and `[DONE]` may follow."""
        return self._answer.finish_reason is not None and not self._ended

    @property
    def finish_reason(self) -> str | None:
        """The provider's word for how the answer finished, if it has come."""
        return self._answer.finish_reason

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The tool calls as far as they have come. Only those of a `Completed` may run."""
        return self._answer.tool_calls

    @property
    def raw_usage(self) -> dict[str, object] | None:
        """The last usage object that the provider sent."""
        return self._answer.raw_usage

    @property
    def raw_error(self) -> object:
        """The error that the provider sent inside the stream: mostly an object, sometimes a sentence."""
        return self._raw_error

    def feed(self, data: bytes) -> list[StreamEvent]:
        """Take the next bytes, cut anywhere. Bytes that say nothing give one `Keepalive`."""
        if self._ended or not data:
            return []
        events: list[StreamEvent] = []
        self._take(self._sse.feed(data), events)
        return events or [_KEEPALIVE]

    def close(self) -> list[StreamEvent]:
        """The stream ended. Nothing terminal is given when neither `finish_reason` nor `[DONE]` was seen: a death."""
        if self._ended:
            return []
        events: list[StreamEvent] = []
        self._take(self._sse.close(), events)
        if not self._ended:
            if self._answer.finish_reason is not None:
                self._complete(events)
            elif failure := self._foreign.end():
                self._fail(failure, self._foreign.raw_error, events)
            self._ended = True
        return events

    def _take(self, items: list[SseItem], events: list[StreamEvent]) -> None:
        for item in items:
            if type(item) is SseEvent:
                self._foreign.saw_stream()
                try:
                    self._take_event(item, events)
                except RuleBrokenError as broken:
                    self._break(broken, events)
            elif type(item) is SseUnknownLine:
                if failure := self._foreign.take(item):
                    self._fail(failure, self._foreign.raw_error, events)
            elif type(item) is SseFault:
                self._break(RuleBrokenError(item.code, item.message), events)
            else:
                self._foreign.saw_stream()
                _alive(events)
            if self._ended:
                return

    def _take_event(self, item: SseEvent, events: list[StreamEvent]) -> None:
        data = item.data
        if not data.startswith(b"{"):
            data = data.strip()
            if data.startswith(_DONE):
                self._complete(events)
                return
            if (not data and item.name != "error") or item.name in _PULSES:
                _alive(events)
                return
        try:
            chunk, flawed = parse(data, _PIECES_BELOW)
        except ValueError:
            if item.name == "error" and item.whole:
                sentence = data.decode("utf-8", "replace")
                self._fail(failure_of(sentence), sentence, events)
            elif item.whole:
                raise RuleBrokenError("not_json", "chat chunk: the data of an event must be JSON") from None
            return
        if flawed:
            self._answer.expect_half_characters()
        self._take_chunk(chunk, item.name, events)

    def _take_chunk(self, chunk: object, name: str, events: list[StreamEvent]) -> None:
        error = error_in(chunk)
        if error or name == "error":
            self._take_error(error or chunk, chunk, events)
            return
        if not isinstance(chunk, dict):
            raise RuleBrokenError("wrong_type", "chat chunk: the data of an event must be a JSON object")
        before = len(events)
        self._answer.take_usage(chunk)
        self._answer.take_choices(chunk, events)
        finish = self._answer.finish_reason
        if finish in _DEAD_FINISHES:
            message = f"the provider ended the answer with finish_reason {finish}"
            self._fail(Failed("retryable", message, finish), None, events)
        elif len(events) == before:
            _alive(events)

    def _take_error(self, error: object, around: object, events: list[StreamEvent]) -> None:
        chunk = around if isinstance(around, dict) else {}
        self._answer.take_usage(chunk)
        with suppress(RuleBrokenError):  # the error says more than a rule broken beside it
            self._answer.take_choices(chunk, events)
        self._fail(failure_of(error, chunk), error, events)

    def _complete(self, events: list[StreamEvent]) -> None:
        self._ended = True
        self._answer.end(events)

    def _fail(self, failure: Failed, raw_error: object, events: list[StreamEvent]) -> None:
        self._ended = True
        self._raw_error = raw_error
        events.append(failure)

    def _break(self, broken: RuleBrokenError, events: list[StreamEvent]) -> None:
        if self._answer.finish_reason is not None and not isinstance(broken, LimitPassedError):
            self._complete(events)
        else:
            self._fail(Failed("protocol", str(broken), broken.code), None, events)


def _alive(events: list[StreamEvent]) -> None:
    if not events or events[-1] is not _KEEPALIVE:
        events.append(_KEEPALIVE)


def _messages(request: Request) -> list[dict[str, object]]:
    messages = [_message(message) for message in request.messages]
    if request.instructions is not None:
        messages.insert(0, {"role": "system", "content": request.instructions})
    return messages


def _message(message: Message) -> dict[str, object]:
    match message:
        case UserMessage(text):
            return {"role": "user", "content": text}
        case ToolMessage(tool_call_id=tool_call_id, text=text):
            return {"role": "tool", "tool_call_id": tool_call_id, "content": text}
        case AssistantMessage(text, ()):
            return {"role": "assistant", "content": text}
        case AssistantMessage(text, tool_calls):
            return {
                "role": "assistant",
                "content": text or None,
                "tool_calls": [_tool_call(call) for call in tool_calls],
            }


def _tool_call(call: ToolCall) -> dict[str, object]:
    # Servers parse the arguments of the history: what the model left broken or empty must not break the next call.
    arguments = call.arguments if call.arguments_json else "{}"
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def _tool(tool: ToolSpec) -> dict[str, object]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}
