"""The committed facts of a turn as the messages that a model reads.

What belongs here: facts in order, and what they mean for the next request. What must not be known here: where facts
are stored, what the turn does next.
"""

from collections.abc import Iterable

from worker.codecs.messages import AssistantMessage, Message, ToolMessage, UserMessage
from worker.turn.facts import Committed, Fact, ToolEnded, ToolStarted

NEVER_RUN = "This tool call was not run: the turn ended first."
"""What later turns of the session read where a tool call has no result; a request without one would be refused."""


class Transcript:
    """What has been said and done in a turn so far. `history`: the messages of earlier turns of the session."""

    def __init__(self, history: tuple[Message, ...], message: str, facts: Iterable[Fact]) -> None:
        self.last: Committed | None = None
        """The last call that completed."""
        self.started: set[int] = set()
        """Indices of its tool calls that some driver had begun to run."""
        self.ended: set[int] = set()
        """Indices of its tool calls that have a result."""
        self._history = history
        self._message = message
        self._facts: list[Fact] = []
        for fact in facts:
            self.add(fact)

    def add(self, fact: Fact) -> None:
        """Take the next fact."""
        self._facts.append(fact)
        match fact:
            case Committed():
                self.last = fact
                self.started = set()
                self.ended = set()
            case ToolStarted(index=index):
                self.started.add(index)
            case ToolEnded(index=index):
                self.ended.add(index)

    def messages(self) -> tuple[Message, ...]:
        """The messages of the next request."""
        return self._history + turn_messages(self._message, self._facts)


def turn_messages(message: str, facts: Iterable[Fact]) -> tuple[Message, ...]:
    """One turn as a model reads it: the message, then each completed call with the results of its tools, in order."""
    commits: list[Committed] = []
    results: dict[tuple[int, int], str] = {}
    for fact in facts:
        if isinstance(fact, Committed):
            commits.append(fact)
        elif isinstance(fact, ToolEnded):
            results[fact.call, fact.index] = fact.result
    messages: list[Message] = [UserMessage(message)]
    for commit in commits:
        messages.append(AssistantMessage(commit.text, commit.tool_calls))
        messages += [
            ToolMessage(tool_call.id, tool_call.name, results.get((commit.call, index), NEVER_RUN))
            for index, tool_call in enumerate(commit.tool_calls)
        ]
    return tuple(messages)
