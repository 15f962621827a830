"""Making a conversation shorter for the model.

What belongs here: when it is due, what goes, and what a recorded compaction does to the messages. What must not be
known here: how the summary is asked for over the network (`sidecar`), where facts are stored.

Two means. The results of tools are the bulk of most conversations and the first to lose their use, so the old ones go
first; that costs nothing. If that is not enough, a summary takes the place of all that was said before the turn's
message and of the turn's older answers. The turn's message, what has joined it (nobody has answered it yet, while the
turn goes on) and the last answers with all their results stay as they are, so a tool call is never without its result,
and no wire format refuses what is left.

Nothing of this touches the journal: what was said stays there, and a `Compacted` fact says how it is shown.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from worker.codecs.messages import AssistantMessage, Message, ToolMessage, UserMessage
from worker.turn import summary as summaries
from worker.turn.facts import Compacted
from worker.turn.start import CompactionTerms

CLEARED = (
    "[This result was left out to make room; the call itself was made. Call again only if you still need what it "
    "returned and asking twice does no harm.]"
)
"""What the model reads where an old result of a tool stood. A result that is not longer stays."""

_ENOUGH = 0.25
"""Share of the conversation that must go for a summary to be worth a request, or for old results to end an overflow."""
_CHARS_PER_TOKEN = (1.0, 4.0)
_UNKNOWN_CHARS_PER_TOKEN = 2.0
_UNKNOWN_CONTEXT_TOKENS = 32_768


def is_due(last_input_tokens: int | None, context_tokens: int | None, terms: CompactionTerms) -> bool:
    """Whether the conversation takes so much of the context that it should be made shorter before the next call.

    `last_input_tokens`: what the last completed call reported. False where either number is not known.
    """
    if last_input_tokens is None or context_tokens is None:
        return False
    return last_input_tokens >= terms.threshold * context_tokens


def compacted(messages: tuple[Message, ...], turn_message_at: int, fact: Compacted) -> tuple[tuple[Message, ...], int]:
    """The messages as the model reads them from `fact` on, and the new index of the turn's message.

    `turn_message_at`: index of the message that began the turn. To apply the facts of a journal, apply each to the
    messages that stood when it was recorded, in order. A second time the same fact changes nothing.
    """
    if fact.summary is not None:
        kept_from = _kept_from(messages, turn_message_at, fact.kept_calls)
        joined = filter(_has_joined, messages[turn_message_at + 1 : kept_from])
        messages = (summaries.told(fact.summary), messages[turn_message_at], *joined, *messages[kept_from:])
        turn_message_at = 1
    results = [place for place, message in enumerate(messages) if isinstance(message, ToolMessage)]
    old = set(results[: max(len(results) - fact.kept_results, 0)])
    return tuple(_cleared(message) if at in old else message for at, message in enumerate(messages)), turn_message_at


@dataclass(frozen=True, slots=True)
class Plan:
    """How to make one conversation shorter. Its facts have the `before_call` 0: whoever records one sets it.

    `fact`: without a summary; it may clear nothing. `summary_request`: messages that ask for the summary that is
    wanted, to be sent with `instructions` and without tools; None: none is. `summarised`: the fact to record with that
    summary, which it still lacks.
    """

    fact: Compacted
    summary_request: tuple[Message, ...] | None = None
    instructions: str | None = None
    summarised: Compacted | None = None


def with_summary(plan: Plan, summary: str) -> Compacted:
    """The fact to record once the summary that the plan asks for has come."""
    assert plan.summarised is not None, "the plan asks for no summary"
    return replace(plan.summarised, summary=summary)


def without_summary(plan: Plan) -> Compacted | None:
    """The fact to record when the plan asks for no summary or there was none to be had. None: nothing gets shorter."""
    return plan.fact if plan.fact.results_cleared else None


class Strategy(Protocol):
    """Decides what of a conversation goes."""

    def plan(  # noqa: PLR0913, PLR0917 - all that the decision may rest on
        self,
        messages: tuple[Message, ...],
        turn_message_at: int,
        tokens: int | None,
        context_tokens: int | None,
        terms: CompactionTerms,
        forced: bool,
    ) -> Plan | None:
        """A plan, or None when nothing can be made shorter.

        `messages`: the next request's. `tokens`: what the last completed call reported as its input. `forced`: the
        provider has said that the context overflows.
        """
        ...


class _ResultsThenSummary:
    """Old results go; if that is not enough, a summary is asked for.

    Tokens are not counted but estimated: of the tokens that were reported, the share goes that goes of the characters.
    Instructions and tools, which never shrink, are taken to shrink too, so the estimate is on the hopeful side; where
    it was wrong, the next call is due again. Where no tokens are known, and after an overflow, a quarter must go.

    The results of the last answer are unread and stay, and so do the last answers, unless the context overflows: then
    less and less stays until a quarter goes.
    """

    def plan(  # noqa: PLR0913, PLR0917 - the protocol's
        self,
        messages: tuple[Message, ...],
        turn_message_at: int,
        tokens: int | None,
        context_tokens: int | None,
        terms: CompactionTerms,
        forced: bool,
    ) -> Plan | None:
        conversation = _Conversation(messages, turn_message_at, forced)
        kept = terms.kept_results if forced else max(terms.kept_results, _unread(messages))
        fact = conversation.counted(kept)
        if fact.results_cleared and conversation.freed(fact) > _must_go(tokens, context_tokens, terms, forced):
            return Plan(fact)
        summarised = None
        if terms.summarises:
            summarised = conversation.enough([(kept, calls) for calls in _down_from(terms.kept_calls, forced)])
        if forced:
            fact = conversation.enough([(results, None) for results in _down_from(kept, forced)])
        if summarised is None or not conversation.is_worth_a_summary(summarised):
            return Plan(fact) if fact.results_cleared else None
        request = summaries.request(
            conversation.summed_up(summarised),
            messages[turn_message_at].text,
            _room(messages, tokens, context_tokens, forced),
        )
        return Plan(fact, request, summaries.INSTRUCTIONS, summarised)


DEFAULT: Strategy = _ResultsThenSummary()


class _Conversation:
    """One conversation, and what is left of it by this fact or that. In facts, an empty summary is one to come."""

    def __init__(self, messages: tuple[Message, ...], turn_message_at: int, forced: bool) -> None:
        self._messages = messages
        self._turn_message_at = turn_message_at
        self._forced = forced
        self._size = max(_size(messages), 1)

    def counted(self, kept_results: int, kept_calls: int | None = None) -> Compacted:
        """The fact that leaves so much. `kept_calls` None: no summary."""
        summary = None if kept_calls is None else ""
        fact = Compacted(0, self._forced, kept_results, kept_calls or 0, summary)
        after, _ = compacted(self._messages, self._turn_message_at, fact)
        return replace(
            fact,
            results_cleared=_readable_results(self._messages) - _readable_results(after),
            messages_before=len(self._messages),
            messages_after=len(after),
        )

    def enough(self, choices: list[tuple[int, int | None]]) -> Compacted:
        """The first choice of (kept results, kept calls) by which enough goes, else the last."""
        facts = [self.counted(kept_results, kept_calls) for kept_results, kept_calls in choices]
        return next((fact for fact in facts if self.freed(fact) >= _ENOUGH), facts[-1])

    def freed(self, fact: Compacted) -> float:
        """The share of the characters that goes. A summary to come is taken to be as long as the one before it."""
        after, _ = compacted(self._messages, self._turn_message_at, fact)
        if fact.summary is not None:
            after = (*filter(summaries.is_told, self._messages[:1]), *after[1:])
        return 1 - _size(after) / self._size

    def summed_up(self, fact: Compacted) -> tuple[Message, ...]:
        """The messages that the summary takes the place of."""
        at = self._turn_message_at
        own = self._messages[at + 1 : _kept_from(self._messages, at, fact.kept_calls)]
        return self._messages[:at] + tuple(message for message in own if not _has_joined(message))

    def is_worth_a_summary(self, fact: Compacted) -> bool:
        """Whether enough goes; after an overflow, whether anything goes, for there is nothing else to be done."""
        return self.freed(fact) > 0 if self._forced else self.freed(fact) >= _ENOUGH


def _down_from(most: int, forced: bool) -> range:
    return range(most, -1 if forced else most - 1, -1)


def _must_go(tokens: int | None, context_tokens: int | None, terms: CompactionTerms, forced: bool) -> float:
    """The share of the characters that dropping results must go beyond to be enough by itself."""
    if forced or not tokens or context_tokens is None:
        return _ENOUGH
    return 1 - terms.threshold * context_tokens / tokens


def _room(messages: Sequence[Message], tokens: int | None, context_tokens: int | None, forced: bool) -> int:
    """Characters of conversation that a request for a summary may hold: half of the context, as far as it is known.

    Characters per token are those of the last completed call, whose request is all that came before its answer.
    """
    per_token = _UNKNOWN_CHARS_PER_TOKEN
    if tokens:
        answers = [place for place, message in enumerate(messages) if isinstance(message, AssistantMessage)]
        asked = _size(messages[: answers[-1]] if answers else messages)
        per_token = min(max(asked / tokens, _CHARS_PER_TOKEN[0]), _CHARS_PER_TOKEN[1])
    room = int((context_tokens or tokens or _UNKNOWN_CONTEXT_TOKENS) * per_token) // 2
    return min(room, _size(messages) // 2) if forced else room


def _kept_from(messages: Sequence[Message], turn_message_at: int, kept_calls: int) -> int:
    """Index of the first message of the turn that stays beside a summary: where its last `kept_calls` answers begin."""
    answers = [
        place
        for place, message in enumerate(messages)
        if place > turn_message_at and isinstance(message, AssistantMessage)
    ]
    if len(answers) <= kept_calls:
        return turn_message_at + 1
    return answers[-kept_calls] if kept_calls else len(messages)


def _has_joined(message: Message) -> bool:
    return isinstance(message, UserMessage) and message.joined


def _unread(messages: Sequence[Message]) -> int:
    """How many results have come since the last answer."""
    kinds = [type(message) for message in messages]
    last_answer = len(kinds) - 1 - kinds[::-1].index(AssistantMessage) if AssistantMessage in kinds else 0
    return kinds[last_answer:].count(ToolMessage)


def _cleared(message: Message) -> Message:
    if isinstance(message, ToolMessage) and len(message.text) > len(CLEARED):
        return replace(message, text=CLEARED)
    return message


def _readable_results(messages: Sequence[Message]) -> int:
    return sum(isinstance(message, ToolMessage) and message.text != CLEARED for message in messages)


def _size(messages: Sequence[Message]) -> int:
    """Characters; of a message's echo none, as only its provider knows what it costs."""
    return sum(
        len(message.text) + sum(len(call.name) + len(call.arguments) for call in message.tool_calls)
        if isinstance(message, AssistantMessage)
        else len(message.text)
        for message in messages
    )
