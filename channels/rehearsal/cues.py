"""Which call answers a request.

What belongs here: telling conversations apart, counting calls, refusing. What must not be known here: HTTP servers,
wire formats, how a call is performed.
"""

import hashlib
from dataclasses import dataclass
from typing import Protocol

from channels.rehearsal.steps import Call, Page, Script
from channels.rehearsal.wire import Question, RequestRefused


@dataclass(frozen=True, slots=True)
class Cue:
    """The call that is due. `conversation`: a hash of the first user message. `number`: of the call in its list."""

    call: Call
    conversation: str | None = None
    number: int | None = None


class Prompter(Protocol):
    """Whoever gives each request its call. `models`: those that it knows; empty: any."""

    @property
    def models(self) -> tuple[str, ...]:
        """The models that a client is told of."""
        ...

    def next(self, question: Question) -> Cue:
        """The call that answers this question. Raises RequestRefused where none does."""
        ...


class Cues:
    """Gives each request its call of a script. Calls are taken in order, for each conversation on its own."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._taken: dict[str, int] = {}

    @property
    def models(self) -> tuple[str, ...]:
        """The models of the script."""
        return self._script.models

    def next(self, question: Question) -> Cue:
        """The call that answers this question. Raises RequestRefused where none does."""
        if self._script.models and question.model not in self._script.models:
            raise RequestRefused(f"the model {question.model!r} does not exist", 404, "model_not_found")
        conversation = self._script.conversation_for(question.prompt)
        if conversation is None:
            raise RequestRefused("no conversation of the script fits the first user message", code="no_conversation")
        key = hashlib.sha256(question.prompt.encode()).hexdigest()[:16]
        taken = self._taken.get(key, 0)
        self._taken[key] = taken + 1
        calls = conversation.calls
        if taken >= len(calls) and conversation.after_last == "refuse":
            message = f"the script has {len(calls)} calls for this conversation, and this is request {taken + 1}"
            return Cue(refused(RequestRefused(message, code="script_over")), key)
        index = min(taken, len(calls) - 1) if conversation.after_last == "last" else taken % len(calls)
        return Cue(calls[index], key, index + 1)


def refused(refusal: RequestRefused) -> Call:
    """The call that refuses a request, in the words of its wire format."""
    return Call(page=Page(refusal.status, {}, "application/json", None, str(refusal), refusal.code))
