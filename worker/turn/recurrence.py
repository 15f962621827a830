"""Tool calls that go round in circles.

What belongs here: whether a tool call may run, judged from the turn's committed facts. What must not be known here: how
tools run, how a turn ends.

An answer with its tools is one step: what it called, with which outcomes, in whatever order they came. The turn goes
round in circles when its last steps are a round of one to three steps that was made twice with the same outcomes:

    A A            then A                    is answered by `REPEATED` instead of being run
    A B A B        then A, or B
    A B C A B C    then A, B or C
    A B A C        then A                    runs: something new was done in between, so its outcome may be new
    A A (REPEATED) then A                    settles the turn
    A A (REPEATED) X A                       runs, for the same reason

An outcome that changed is another step, so it breaks the circle by itself. So does a compaction: a model that can no
longer read a result may well ask for it again. So does a message that joins: it may well be what asks for it.
"""

import json
from collections import deque
from collections.abc import Iterable
from typing import Literal

from worker.codecs.events import ToolCall
from worker.turn.facts import Committed, Compacted, Fact, Joined, ToolEnded
from worker.turn.verdict import ToolRefusal

Judgement = Literal["run", "correct", "settle"]
"""`run`: it may. `correct`: record `REPEATED` as its result instead. `settle`: that has been said, so the turn ends."""

MAX_ROUND = 3
"""Steps of the longest round that is recognised."""
ROUNDS = 2
"""How often a round is made before it is not made again."""

REPEATED = ToolRefusal(
    f"Error: this tool call was not run. The last {ROUNDS} times it gave exactly the same result, and nothing new was "
    "done in between. Use the result that you have, or do something else: the next identical call ends your work.",
    "repeated",
)
"""What the model reads instead of the result of a call that goes round in circles."""

_Key = tuple[str, str]
_Outcome = tuple[_Key, str, str | None]
_Step = frozenset[_Outcome]


class Recurrence:
    """The steps of a turn so far. Costs per fact do not grow with the turn.

    Give it every fact in the order of the journal; then ask about the tool calls of the last `Committed`. The results
    of that answer do not count yet, so two drivers that split its tools come to the same, and identical tool calls of
    one answer all run: nobody knows their results yet. They count as one.
    """

    def __init__(self, facts: Iterable[Fact] = ()) -> None:
        self._steps: deque[_Step] = deque(maxlen=ROUNDS * MAX_ROUND)
        self._circling: frozenset[_Key] = frozenset()
        """Tool calls of the rounds that the last steps have made `ROUNDS` times."""
        self._corrected: frozenset[_Key] = frozenset()
        """Tool calls that were answered by `REPEATED` since anything was done."""
        self._commit: Committed | None = None
        self._outcomes: set[_Outcome] = set()
        self._corrections: set[_Key] = set()
        for fact in facts:
            self.add(fact)

    def add(self, fact: Fact) -> None:
        """Take the next fact."""
        match fact:
            case Committed():
                self._end_step()
                self._commit = fact
            case ToolEnded():
                self._take_result(fact)
            case Compacted() | Joined():
                self._outcomes, self._corrections = set(), set()
                self._steps.clear()
                self._circling = self._corrected = frozenset()
            case _:
                pass  # that a tool began, or that a person was asked, is no outcome

    def judge(self, tool_call: ToolCall) -> Judgement:
        """Whether a tool call of the last answer may run."""
        key = _key(tool_call)
        if key in self._corrected:
            return "settle"
        return "correct" if key in self._circling else "run"

    def _take_result(self, ended: ToolEnded) -> None:
        commit = self._commit
        if commit is None or ended.call != commit.call or ended.index >= len(commit.tool_calls):
            return
        key = _key(commit.tool_calls[ended.index])
        if ended.failure == REPEATED.failure:
            self._corrections.add(key)
        else:
            self._outcomes.add((key, ended.result, ended.failure))

    def _end_step(self) -> None:
        if self._outcomes:
            self._steps.append(frozenset(self._outcomes))
            self._circling = _circling(list(self._steps))
            self._corrected = frozenset()
        else:
            self._corrected |= self._corrections
        self._outcomes, self._corrections = set(), set()


def judge(facts: Iterable[Fact], tool_call: ToolCall) -> Judgement:
    """Whether a tool call of the last `Committed` of `facts` may run. For many calls, keep a `Recurrence`."""
    return Recurrence(facts).judge(tool_call)


def _circling(steps: list[_Step]) -> frozenset[_Key]:
    keys: set[_Key] = set()
    for length in range(1, MAX_ROUND + 1):
        rounds = [steps[-length * made :][:length] for made in range(1, ROUNDS + 1)]
        if len(steps) >= ROUNDS * length and all(made == rounds[0] for made in rounds):
            keys |= {key for step in rounds[0] for key, _, _ in step}
    return frozenset(keys)


def _key(tool_call: ToolCall) -> _Key:
    """Equal for calls that ask the same: order of keys and white space aside; raw text where it is no JSON object."""
    if tool_call.arguments_json is None:
        return tool_call.name, tool_call.arguments
    return tool_call.name, json.dumps(tool_call.arguments_json, sort_keys=True, ensure_ascii=False)
