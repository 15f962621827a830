"""The ids and names of a conversation's tool calls, as a provider takes them.

What belongs here: which ids and names are sent, and that a call and its result keep together. What must not be known
here: any wire format.

The history may hold calls that other providers and wire formats gave, and a provider refuses every request of a session
for one id or name that it would not have given itself. So what does not fit is changed, always in the same way.
"""

import hashlib
import re
from collections import deque

LONGEST = 200
"""Characters of an id or a name that an answer may have. No tool is called by a longer one."""

_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]")


def bounded_id(call_id: str) -> str:
    """A tool call's id as it is kept: another one, always the same, for one that is too long."""
    return call_id if len(call_id) <= LONGEST else _made_from(call_id, "call_")


class SentCalls:
    """The calls of one request, in order. No two of them have one id.

    `longest_name` in characters; `ids`: what an id must match as a whole; `prefix`: how ids begin that were made up.
    """

    def __init__(self, *, longest_name: int, ids: re.Pattern[str], prefix: str) -> None:
        self._longest_name = longest_name
        self._ids = ids
        self._prefix = prefix
        self._sent: set[str] = set()
        self._unanswered: dict[str, deque[str]] = {}

    def begin_answer(self) -> None:
        """The calls that follow are those of the next answer; so are the results."""
        self._unanswered = {}

    def id_of_call(self, call_id: str) -> str:
        """The id to send for the next call."""
        call_id = bounded_id(call_id)
        sent, again = self._fitting(call_id), 0
        while sent in self._sent:
            again += 1
            sent = _made_from(f"{call_id}/{again}", self._prefix)
        self._sent.add(sent)
        self._unanswered.setdefault(call_id, deque()).append(sent)
        return sent

    def id_of_result(self, call_id: str) -> str:
        """The id to send for the result of a call; results of calls with the same id come in the order of the calls."""
        call_id = bounded_id(call_id)
        unanswered = self._unanswered.get(call_id)
        if not unanswered:
            return self._fitting(call_id)
        return unanswered.popleft() if len(unanswered) > 1 else unanswered[0]

    def name(self, name: str) -> str:
        """The name to send for a tool that was called."""
        return _NOT_IN_NAMES.sub("_", name)[: self._longest_name] or "unnamed"

    def _fitting(self, call_id: str) -> str:
        return call_id if self._ids.fullmatch(call_id) else _made_from(call_id, self._prefix)


def _made_from(call_id: str, prefix: str) -> str:
    return prefix + hashlib.sha256(call_id.encode("utf-8", "replace")).hexdigest()[:24]
