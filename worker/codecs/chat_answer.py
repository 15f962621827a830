"""The answer that the chunks of a Chat Completions stream add up to.

What belongs here: what a chunk adds to the answer, and when the answer is over. What must not be known here: how chunks
are framed (`framing`), the type and meaning of a single field (`chat_fields`), what is documented (`chat_rules`).

Only the choice with index 0 is the answer; the others are counted. A field of the wrong type breaks a rule when the
answer depends on it, and is passed over when it does not.

The terminal mark is `finish_reason` or `[DONE]`. `[DONE]` completes the call at once; after a `finish_reason` usage
may still follow, so the call completes at `[DONE]` or at the end of the stream, with all that came until then: some
servers send a `finish_reason` in chunks before the last one. Where content has come behind one, it says nothing on
later content either: then `[DONE]`, one without content or an orderly end of the stream is the end, and no tool call is
whole by such an end of the stream alone.

An error after a `finish_reason` unmakes no answer that says something, unless it stands in the same chunk. A
`finish_reason` that means an error is a failure. After one that nobody knows no tool call is whole.
"""

from worker.codecs.answer_calls import AnswerCalls
from worker.codecs.answer_text import AnswerText
from worker.codecs.chat_fields import (
    DELTA,
    index_of,
    reasoning_in,
    said_in_parts,
    tool_pieces_in,
    usage_of,
    wrong_type,
)
from worker.codecs.chat_message import unsaid, unsaid_of_calls
from worker.codecs.chat_rules import ChatRules
from worker.codecs.events import (
    Completed,
    Failed,
    ReasoningDelta,
    RefusalDelta,
    StreamEvent,
    TextDelta,
    ToolCall,
    UsageReported,
)
from worker.codecs.finish_words import bounded, in_our_words, is_no_word, lets_tools_run, means_error
from worker.codecs.limits import Profile, RuleBrokenError, StreamLimits
from worker.codecs.think_tag import ThinkTag
from worker.codecs.wirejson import well_formed


class ChatAnswer:
    """Takes chunks, gives events, and keeps what belongs to the whole answer: an `AnswerReader`."""

    pieces_below: tuple[str, ...] = ("choices", "delta")

    def __init__(self, limits: StreamLimits, profile: Profile) -> None:
        self.finish_reason: str | None = None
        self.raw_usage: dict[str, object] | None = None
        self.raw_error: object = None
        self._limits = limits
        self._rules = ChatRules() if profile == "strict" else None
        self._answer_id = ""
        self._is_quick = False
        """A chunk with the first choice has come, so that the next ones bring nothing new but text."""
        self._choices: set[int] = set()
        self._text = AnswerText(limits.text_chars)
        self._calls = AnswerCalls(limits, repairs=profile == "compat")
        self._think_tag = ThinkTag() if profile == "compat" else None
        self._content: list[str] = []
        self._has_reasoned = False
        self._is_finishing = False
        self._goes_on = False
        """Content has come behind a finish reason."""

    @property
    def finishing(self) -> bool:
        """A `finish_reason` was seen, and nothing of the answer since; only usage and `[DONE]` may follow."""
        return self._is_finishing

    @property
    def ends_with_stream(self) -> bool:
        """A `finish_reason` was seen."""
        return self.finish_reason is not None

    @property
    def stands(self) -> bool:
        """It is finishing with text, a refusal or tool calls."""
        says_something = self._text.is_answer or len(self._calls) > 0
        return self._is_finishing and says_something and not means_error(self.finish_reason)

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The tool calls as far as they have come.

        None is whole after a finish reason that nobody knows, or that more followed.
        """
        calls = self._calls.calls(self._answer_id)
        if self.finish_reason is None or (self._is_finishing and lets_tools_run(self.finish_reason)):
            return calls
        return tuple(ToolCall(call.id, call.name, call.arguments, None) for call in calls)

    def expect_half_characters(self) -> None:
        """From now on a piece of text may end in the first half of a character."""
        self._text.expect_half_characters()
        self._calls.expect_half_characters()

    def take(self, name: str, value: dict[str, object], events: list[StreamEvent]) -> None:
        """Take one chunk. Raises RuleBrokenError."""
        del name  # chunks come under no name, or under any
        if self._rules is not None:
            self._rules.check(value)
        self._take_chunk(value, events)
        if means_error(self.finish_reason):
            message = f"the provider ended the answer with finish_reason {self.finish_reason}"
            events.append(Failed("retryable", message, self.finish_reason))

    def take_more_text(self, name: str, value: dict[str, object], events: list[StreamEvent]) -> bool:
        """Take a chunk that has one choice, the first, and nothing in it but text. False: it is another."""
        del name
        if not self._is_quick or self._is_finishing or value.get("usage"):
            return False
        if not self._answer_id and value.get("id") is not None:
            return False
        choices = value.get("choices")
        if type(choices) is not list or len(choices) != 1 or type(choice := choices[0]) is not dict:
            return False
        index, delta = choice.get("index"), choice.get("delta")
        if index != 0 or type(index) is not int or choice.get("finish_reason") or choice.get("message"):
            return False
        if type(delta) is not dict or len(delta) != 1 or type(text := delta.get("content")) is not str:
            return False
        if text:
            self._say_content(text, events)
        return True

    def take_done(self, events: list[StreamEvent]) -> None:
        """`[DONE]` came: the answer is over. Raises RuleBrokenError."""
        if self._rules is not None:
            self._rules.check_done()
        self._is_finishing = True
        self.end(events)

    def take_beside_error(self, value: dict[str, object], events: list[StreamEvent]) -> None:
        """Take what stands beside an error that ends the stream. Raises RuleBrokenError."""
        self._take_chunk(value, events)

    def take_document(self, document: dict[str, object], events: list[StreamEvent]) -> bool:
        """Take a whole answer, as the request without `stream` would have got it. Raises RuleBrokenError."""
        choices = document.get("choices")
        if not isinstance(choices, list) or not any(
            isinstance(choice, dict) and isinstance(choice.get("message"), dict) for choice in choices
        ):
            return False
        self.take("", document, events)
        if not (events and isinstance(events[-1], Failed)):
            self._is_finishing = True
            self.end(events)
        return True

    def end(self, events: list[StreamEvent]) -> None:
        """The terminal mark was seen: append what is still held back, then the `Completed`."""
        if self._choices and 0 not in self._choices:
            events.append(Failed("protocol", "no choice of the answer has the index 0", "no_first_choice"))
            return
        for kind, piece in self._think_tag.rest() if self._think_tag is not None else ():
            self._text.say(kind, piece, events)
        self._say_unclosed(events)
        self._text.end(events)
        self._calls.end(events)
        usage = None if self.raw_usage is None else usage_of(self.raw_usage)
        finish = in_our_words(self.finish_reason)
        events.append(Completed(finish, self.tool_calls, usage, len(self._choices), self._text.refusal))

    def _take_chunk(self, chunk: dict[str, object], events: list[StreamEvent]) -> None:
        usage = chunk.get("usage")
        if usage and isinstance(usage, dict):  # in any chunk, and the last one counts
            self.raw_usage = usage
            events.append(UsageReported(usage_of(usage)))
        choices = chunk.get("choices")
        if not choices:
            return
        if not isinstance(choices, list):
            raise wrong_type("choices", "a list", choices)
        if not self._answer_id and isinstance(chunk.get("id"), str):
            self._answer_id = str(chunk["id"])
        for choice in choices:
            if choice is None:
                continue
            if not isinstance(choice, dict):
                raise wrong_type("choices[]", "an object", choice)
            if self._index_of(choice) == 0:
                self._take_first_choice(choice, events)
                self._is_quick = self._rules is None

    def _index_of(self, choice: dict[str, object]) -> int:
        index = choice.get("index")
        index = 0 if index is None else index_of("choices[].index", index, self._limits.index)
        self._choices.add(index)
        return index

    def _take_first_choice(self, choice: dict[str, object], events: list[StreamEvent]) -> None:
        calls = len(self._calls)
        try:
            has_content = self._take_content(choice.get("delta"), choice.get("message"), events)
        except RuleBrokenError:
            if len(self._calls):  # a call that nobody knows to be whole must not run
                self._is_finishing = False
            raise
        if has_content:
            self._is_finishing = False
            self._goes_on = self._goes_on or self.finish_reason is not None
        finish = choice.get("finish_reason")
        if finish:
            if not isinstance(finish, str):
                raise wrong_type("choices[].finish_reason", "text", finish)
            if not is_no_word(finish):
                self.finish_reason = bounded(finish)
                # Where the word stands on content that more followed, it says nothing on the next content either.
                # Nor does it on a call that only begins there: its arguments may be still to come.
                opens = bool(choice.get("delta")) and len(self._calls) > calls
                begins = opens and any(not call.arguments for call in self._calls.said()[calls:])
                self._is_finishing = not (has_content and (self._goes_on or begins))

    def _take_content(self, delta: object, message: object, events: list[StreamEvent]) -> bool:
        """Take what both say; whether it was anything."""
        before = len(events), len(self._content)
        if delta:
            if not isinstance(delta, dict):
                raise wrong_type(DELTA, "an object", delta)
            self._take_delta(delta, events)
        if message and before == (len(events), len(self._content)):  # else it repeats the delta
            self._take_message(message, events)
        return before != (len(events), len(self._content))

    def _take_message(self, message: object, events: list[StreamEvent]) -> None:
        if not isinstance(message, dict):
            raise wrong_type("choices[].message", "an object", message)
        content, refusal = well_formed("".join(self._content)), self._text.refusal or ""
        delta = unsaid(message, content, refusal, has_reasoned=self._has_reasoned)
        if len(self._calls):
            rests = unsaid_of_calls(list(tool_pieces_in(message, self._limits.index)), self._calls.said())
            self._take_delta(delta | {"tool_calls": None, "function_call": None}, events)
            for rest in rests:
                self._calls.take_rest(*rest, events)
        else:
            self._take_delta(delta, events)

    def _say_unclosed(self, events: list[StreamEvent]) -> None:
        """A think tag that the model never closed, though it was not cut off, was the answer."""
        is_open = self._think_tag is not None and self._think_tag.is_inside
        says_nothing = not self._text.is_answer and len(self._calls) == 0
        if is_open and says_nothing and in_our_words(self.finish_reason) in (None, "stop"):
            self._text.say(TextDelta, "".join(self._content), events)

    def _say_reasoning(self, reasoning: str, events: list[StreamEvent]) -> None:
        if self._think_tag is not None and not self._content:
            self._think_tag.is_past = True  # a server that has a field for it writes no tags
        self._has_reasoned = True
        self._text.say(ReasoningDelta, reasoning, events)

    def _say_content(self, content: str, events: list[StreamEvent]) -> None:
        self._content.append(content)
        if self._think_tag is None or self._think_tag.is_past:
            self._text.say(TextDelta, content, events)
            return
        for kind, piece in self._think_tag.split(content):
            self._text.say(kind, piece, events)

    def _take_delta(self, delta: dict[str, object], events: list[StreamEvent]) -> None:
        if reasoning := reasoning_in(delta):
            self._say_reasoning(reasoning, events)
        content = delta.get("content")
        if content:
            if isinstance(content, str):
                self._say_content(content, events)
            else:
                self._take_parts(content, events)
        refusal = delta.get("refusal")
        if refusal:
            if not isinstance(refusal, str):
                raise wrong_type(f"{DELTA}.refusal", "text", refusal)
            self._text.say(RefusalDelta, refusal, events)
        for piece in tool_pieces_in(delta, self._limits.index):
            self._calls.take(*piece, events)

    def _take_parts(self, parts: object, events: list[StreamEvent]) -> None:
        for kind, piece in said_in_parts(f"{DELTA}.content", parts):
            if kind == "text":
                self._say_content(piece, events)
            else:
                self._say_reasoning(piece, events)
