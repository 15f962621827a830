"""The committed facts of a turn as the messages that a model reads.

What belongs here: facts in order, and what they mean for the next request. What must not be known here: where facts
are stored, what the turn does next.
"""

from collections.abc import Iterable
from dataclasses import replace

from worker.codecs.messages import AssistantMessage, Message, ToolMessage, UserMessage
from worker.turn import verdict
from worker.turn.compaction import compacted
from worker.turn.facts import (
    ApprovalAsked,
    ApprovalDecided,
    Committed,
    Compacted,
    Fact,
    Joined,
    ToolEnded,
    ToolStarted,
)

NEVER_RUN = "This tool call was not run: the turn ended first."
"""What later turns of the session read where a tool call has no result; a request without one would be refused."""
NUDGE = "Your last answer had no text. Answer the request above now, in plain text, or call a tool."
BE_BRIEF = "Your last answer was cut off before it had any text. Think less and answer briefly now, in plain text."


class Transcript:
    """What has been said and done in a turn so far. `history`: the messages of earlier turns of the session."""

    def __init__(self, history: tuple[Message, ...], message: str, facts: Iterable[Fact]) -> None:
        self.last: Committed | None = None
        """The last call that completed."""
        self.started: set[int] = set()
        """Indices of its tool calls that some driver had begun to run."""
        self.ended: set[int] = set()
        """Indices of its tool calls that have a result."""
        self.asked: dict[int, ApprovalAsked] = {}
        """Its tool calls that a person was asked about, by index."""
        self.decided: dict[int, ApprovalDecided] = {}
        """What people have decided about them, by index."""
        self.has_run_tools = False
        """Whether any tool of the turn was begun."""
        self.empties = 0
        """Answers without text in a row."""
        self.compacted: Compacted | None = None
        """The last time the conversation was made shorter, if no call has completed since."""
        self.tokens_after_compaction: int | None = None
        """Input tokens of the first call that completed after it."""
        self.carried: tuple[Joined, ...] = ()
        """Messages that the open call takes along: in its requests, and in no compaction, until it has completed."""
        self.facts: list[Fact] = []
        self._history = history
        self._message = message
        for fact in facts:
            self.add(fact)

    def add(self, fact: Fact) -> None:
        """Take the next fact."""
        self.facts.append(fact)
        match fact:
            case Committed():
                self.last = fact
                self.started, self.ended, self.asked, self.decided = set(), set(), {}, {}
                if self.compacted is not None:
                    self.tokens_after_compaction = fact.usage.input_tokens if fact.usage else None
                self.compacted = None
                self.carried = ()
                self.empties = self.empties + 1 if verdict.is_empty(fact) else 0
            case Compacted():
                self.compacted = fact
            case Joined():
                pass
            case _ if self.last is None or fact.call != self.last.call:
                pass  # of an earlier call: a late answer to a question that is settled, say
            case ToolStarted(index=index):
                self.started.add(index)
                self.has_run_tools = True
            case ToolEnded(index=index):
                self.ended.add(index)
            case ApprovalAsked(index=index):
                self.asked[index] = fact
            case ApprovalDecided(index=index):
                self.decided[index] = fact

    def messages(self, provider: str) -> tuple[Message, ...]:
        """The messages of the next request to `provider`. What another one wants back is left out."""
        messages, _ = self.conversation()
        shown: list[Message] = []
        for message in messages:
            if not isinstance(message, AssistantMessage) or not message.echo or message.echo.provider == provider:
                shown.append(message)
            elif message.text or message.tool_calls:  # nobody takes an empty one
                shown.append(replace(message, echo=None))
        return (*shown, *(UserMessage(message.text) for message in self.carried))

    def conversation(self) -> tuple[tuple[Message, ...], int]:
        """All messages that stand, and the index of the one that began the turn."""
        return _told(self._history, self._message, self.facts, goes_on=True)


def with_turn(history: tuple[Message, ...], message: str, facts: Iterable[Fact]) -> tuple[Message, ...]:
    """What a session has said once a turn has ended: the messages before it, and its own."""
    return _told(history, message, facts, goes_on=False)[0]


def _told(
    history: tuple[Message, ...], message: str, facts: Iterable[Fact], *, goes_on: bool
) -> tuple[tuple[Message, ...], int]:
    """The message, then what joined with each completed call, its answer and its tools' results; shorter where told."""
    facts = list(facts)
    results = {
        (fact.call, fact.index): verdict.OUTCOME_UNKNOWN.result for fact in facts if isinstance(fact, ToolStarted)
    }
    results |= {(fact.call, fact.index): fact.result for fact in facts if isinstance(fact, ToolEnded)}
    messages: tuple[Message, ...] = (*history, UserMessage(message))
    begins_at = len(history)
    for fact in facts:
        if isinstance(fact, Committed):
            messages += _answer(fact, results, goes_on=goes_on)
        elif isinstance(fact, Joined):
            messages += (UserMessage(fact.text, joined=True),)
        elif isinstance(fact, Compacted):
            messages, begins_at = compacted(messages, begins_at, fact)
    return messages, begins_at


def _answer(commit: Committed, results: dict[tuple[int, int], str], *, goes_on: bool) -> tuple[Message, ...]:
    if verdict.is_empty(commit):  # an empty message would be refused; what stands in its place is that it was empty
        return (UserMessage(BE_BRIEF if commit.finish_reason == "length" else NUDGE),) if goes_on else ()
    return (
        AssistantMessage(commit.text, commit.tool_calls, commit.echo),
        *(
            ToolMessage(tool_call.id, tool_call.name, results.get((commit.call, index), NEVER_RUN))
            for index, tool_call in enumerate(commit.tool_calls)
        ),
    )
