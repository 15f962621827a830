"""The answer that the events of an Anthropic Messages stream add up to.

What belongs here: what an event adds to the answer, which deviations are repaired, and when the answer is over. What
must not be known here: how events are framed (`framing`), the type and meaning of a single field (`anthropic_fields`),
what one block is (`anthropic_blocks`), what is documented (`anthropic_rules`).

The terminal mark is `message_stop`. Profile `compat` also takes the end of the stream for it once a stop reason has
come, unless the answer calls tools: what acts on the world waits for the real mark.
"""

import json

from worker.codecs.answer_calls import AnswerCalls
from worker.codecs.answer_text import AnswerText, Said
from worker.codecs.anthropic_blocks import (
    TEXT,
    THINKING,
    TOOL_USE,
    Block,
    block_begun,
    block_for,
    echo_of,
    is_documented_delta,
    is_tool_use,
)
from worker.codecs.anthropic_fields import index_of, object_in, text_in, text_or_none, usage_of
from worker.codecs.anthropic_rules import MessageRules
from worker.codecs.events import Completed, Failed, ReasoningDelta, StreamEvent, TextDelta, ToolCall, UsageReported
from worker.codecs.finish_words import bounded, in_our_words, lets_tools_run, means_error
from worker.codecs.limits import LimitPassedError, Profile, RuleBrokenError, StreamLimits
from worker.codecs.wirejson import well_formed

_SAID: dict[str, Said] = {TEXT: TextDelta, THINKING: ReasoningDelta}
_REFUSED = "refused"
"""What the model says by a refusal that the provider does not explain."""


class MessageAnswer:
    """Takes events, gives ours, and keeps what belongs to the whole answer: an `AnswerReader`."""

    pieces_below: tuple[str, ...] = ("delta",)

    def __init__(self, limits: StreamLimits, profile: Profile) -> None:
        self.finish_reason: str | None = None
        self.raw_usage: dict[str, object] | None = None
        self.raw_error: object = None
        self._limits = limits
        self._rules = MessageRules() if profile == "strict" else None
        self._message_id: str | None = None
        self._refusal: str | None = None
        self._text = AnswerText(limits.text_chars)
        self._calls = AnswerCalls(limits, repairs=profile == "compat")
        self._blocks: list[Block] = []
        self._by_index: dict[int, Block] = {}
        self._last_index = -1
        self._speaking: Block | None = None
        """The block of text that the last event was a delta of, if it was one."""
        self._speaking_index = -1
        self._server_input_chars = 0
        self._flawed = False
        self._has_strayed = False

    @property
    def finishing(self) -> bool:
        """A stop reason was seen, and the end of the stream will do for the rest."""
        will_do = self._rules is None and not self._calls and not self._has_strayed
        return will_do and self.finish_reason is not None

    @property
    def ends_with_stream(self) -> bool:
        """A stop reason was seen, and the end of the stream will do for the rest."""
        return self.finishing

    @property
    def stands(self) -> bool:
        """A stop reason was seen after some text; `finishing` does not let an answer stand that calls tools."""
        return self.finishing and self._text.is_answer and not means_error(self.finish_reason)

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The tool calls as far as they have come. One whose block was not stopped is never whole.

        Nor is any after a stop reason that nobody knows.
        """
        calls = self._calls.calls(self._message_id or "")
        may_run = lets_tools_run(self.finish_reason)
        stopped = {block.call for block in self._blocks if may_run and block.state == "stopped"}
        return tuple(
            call if place in stopped else ToolCall(call.id, call.name, call.arguments, None)
            for place, call in enumerate(calls)
        )

    def expect_half_characters(self) -> None:
        """From now on a piece of text may end in the first half of a character."""
        self._flawed = True
        self._text.expect_half_characters()
        self._calls.expect_half_characters()

    def take(self, name: str, value: dict[str, object], events: list[StreamEvent]) -> None:
        """Take one event. Raises RuleBrokenError."""
        self._speaking = None
        if self._rules is not None:
            self._rules.check(name, value)
        match text_or_none("type", value.get("type")) or name:
            case "message_start":
                self._take_message_start(value, events)
            case "content_block_start":
                self._take_block_start(value, events)
            case "content_block_delta":
                self._take_delta(value, events)
            case "content_block_stop":
                if block := self._by_index.get(self._index_of(value, max(self._last_index, 0))):
                    self._stop(block, events)
            case "message_delta":
                self._take_message_delta(value, events)
                self._fail_if_error(events)
            case "message_stop":
                if self._message_id is None and not self._blocks and self.finish_reason is None:
                    raise RuleBrokenError("message_not_started", "message_stop came before any message")
                self.end(events)
            case _:  # a ping, or what this version does not know
                pass

    def take_more_text(self, name: str, value: dict[str, object], events: list[StreamEvent]) -> bool:
        """Take a delta that only says more in the block that the last one spoke in. False: it is another event."""
        del name
        block = self._speaking
        if block is None or value.get("type") != "content_block_delta":
            return False
        index, delta = value.get("index"), value.get("delta")
        if index != self._speaking_index or type(index) is not int or type(delta) is not dict:
            return False
        if delta.get("type") != "text_delta" or type(text := delta.get("text")) is not str:
            return False
        block.put(TEXT, text)
        self._text.say(TextDelta, text, events)
        return True

    def take_done(self, events: list[StreamEvent]) -> None:
        """`[DONE]` came, which some gateways send: the end of the stream. Raises RuleBrokenError."""
        if self._rules is not None:
            self._rules.check_done()
        if self.finish_reason is not None:
            self.end(events)

    def take_beside_error(self, value: dict[str, object], events: list[StreamEvent]) -> None:
        """Take what stands beside an error that ends the stream. Raises RuleBrokenError."""
        self._take_usage(value.get("usage"), events)

    def take_document(self, document: dict[str, object], events: list[StreamEvent]) -> bool:
        """Take a whole answer, as the request without `stream` would have got it. Raises RuleBrokenError."""
        content = document.get("content")
        if document.get("type") != "message" or not isinstance(content, list):
            return False
        self._message_id = text_or_none("id", document.get("id")) or ""
        for index, begun in enumerate(content):
            self._take_block_start({"index": index, "content_block": begun}, events)
            self._stop(self._blocks[-1], events)
        self._take_message_delta({"delta": document, "usage": document.get("usage")}, events)
        if not self._fail_if_error(events):
            self.end(events)
        return True

    def end(self, events: list[StreamEvent]) -> None:
        """The terminal mark was seen: append what is still held back, then the `Completed`."""
        self._text.end(events)
        finish = in_our_words(self.finish_reason)
        refusal = (self._refusal or _REFUSED) if finish == "refusal" else None
        usage = None if self.raw_usage is None else usage_of(self.raw_usage)
        calls = self.tool_calls
        events.append(Completed(finish, calls, usage, refusal=refusal, echo=echo_of(self._blocks, calls)))

    def _take_message_start(self, value: dict[str, object], events: list[StreamEvent]) -> None:
        message = object_in("message", value.get("message"))
        message_id = text_or_none("message.id", message.get("id")) or ""
        if self._blocks or self.finish_reason is not None:
            which = "the same" if message_id == self._message_id else "another"
            raise RuleBrokenError("second_message", f"a second message_start with {which} id")
        self._message_id = message_id
        self._take_usage(message.get("usage"), events)

    def _take_block_start(self, value: dict[str, object], events: list[StreamEvent]) -> None:
        index = self._index_of(value, self._last_index + 1)
        kind, begun = block_begun(value.get("content_block"))
        before = self._by_index.get(index)
        if before is not None and before.state == "open":
            raise RuleBrokenError("block_not_stopped", f"block {index} was started again before it was stopped")
        self._open(index, kind, begun, events)

    def _open(self, index: int, kind: str, begun: dict[str, object], events: list[StreamEvent]) -> Block:
        self._check_not_over()
        if len(self._blocks) > self._limits.index:
            message = f"the answer has more than {self._limits.index + 1} blocks"
            raise LimitPassedError("index_too_high", message)
        call = None
        if kind == TOOL_USE:
            call_id = text_or_none("content_block.id", begun.get("id"))
            name = text_or_none("content_block.name", begun.get("name"))
            call = self._calls.take(len(self._calls), call_id, name, "", events)
        block = Block(kind, begun, call)
        self._blocks.append(block)
        self._by_index[index] = block
        self._last_index = index
        if said := _SAID.get(kind):
            text = text_or_none(f"content_block.{kind}", begun.get(kind)) or ""
            block.put(kind, text)
            self._text.say(said, text, events)
        return block

    def _take_delta(self, value: dict[str, object], events: list[StreamEvent]) -> None:
        delta = object_in("delta", value.get("delta"))
        kind = text_in("delta.type", delta.get("type"))
        index = self._index_of(value, max(self._last_index, 0))
        if not is_documented_delta(kind):
            return
        self._check_not_over()
        block = self._by_index.get(index)
        if block is None:
            block = self._open(index, *block_for(kind), events)
        if block.state != "open":
            raise RuleBrokenError("block_not_open", f"content_block_delta came for block {index}, which was stopped")
        piece = block.add(kind, delta, flawed=self._flawed)
        if not piece:
            return
        if block.call is not None:
            self._calls.take(block.call, None, None, piece, events)
        elif is_tool_use(block.kind):
            self._server_input_chars += len(piece)
            if self._server_input_chars > self._limits.argument_chars:
                message = f"the tool arguments are longer than {self._limits.argument_chars} characters"
                raise LimitPassedError("arguments_too_long", message)
        elif said := _SAID.get(block.kind):
            self._text.say(said, piece, events)
            if kind == "text_delta" and self._rules is None:
                self._speaking, self._speaking_index = block, index

    def _stop(self, block: Block, events: list[StreamEvent]) -> None:
        if block.state == "stopped":
            return
        block.state = "stopped"
        if block.call is not None:
            whole = block.begun.get("input")
            if whole and not block.has_pieces:  # some servers send the input in one piece
                self._calls.take(block.call, None, None, json.dumps(whole), events)
            self._calls.complete(block.call, events)

    def _take_message_delta(self, value: dict[str, object], events: list[StreamEvent]) -> None:
        self._take_usage(value.get("usage"), events)
        delta = value.get("delta")
        if delta is None:
            return
        delta = object_in("delta", delta)
        reason = text_or_none("delta.stop_reason", delta.get("stop_reason"))
        if not reason:
            return
        if self.finish_reason is None:
            for block in self._blocks:
                if block.state == "open":
                    block.state = "cut"
        self.finish_reason = bounded(reason)
        details = delta.get("stop_details")
        explanation = details.get("explanation") if isinstance(details, dict) else None
        if explanation and isinstance(explanation, str):
            self._refusal = well_formed(explanation)

    def _fail_if_error(self, events: list[StreamEvent]) -> bool:
        if not means_error(self.finish_reason):
            return False
        message = f"the provider ended the answer with stop_reason {self.finish_reason}"
        events.append(Failed("retryable", message, self.finish_reason))
        return True

    def _take_usage(self, usage: object, events: list[StreamEvent]) -> None:
        """Counts are sums so far: a later one takes the place of an earlier one."""
        told = {key: count for key, count in usage.items() if count is not None} if isinstance(usage, dict) else {}
        if told:
            self.raw_usage = self.raw_usage or {}
            self.raw_usage.update(told)
            events.append(UsageReported(usage_of(self.raw_usage)))

    def _index_of(self, value: dict[str, object], instead: int) -> int:
        index = value.get("index")
        return index_of(instead if index is None else index, self._limits.index)

    def _check_not_over(self) -> None:
        if self.finish_reason is not None:
            self._has_strayed = True
            raise RuleBrokenError("content_after_stop_reason", "content came after the stop reason")
