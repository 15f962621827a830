"""Which runs of tools are right, and what the model may be told of them.

What belongs here: the verdict over the ledger, and over the results that requests show. What must not be known here:
texts, deliveries, files.

**A tool** may run for an answer that counts, and for no other. One that must not repeat starts once; another one starts
again only where a strike explains that nobody knew of its end (`unexplained_tool_runs`).

**The model** is told what the tool gave; or, of one that must not repeat, that its outcome is unknown. That is right
only where a strike explains why nobody knows it: a strike on the process that ran the tool or, where it never started,
on the one that had to start it (`unexplained_unknowns`).
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise

from ops.chaos_run.causes import Causes, Moment
from ops.chaos_run.records import Exchange, Run
from ops.chaos_run.verdict import Verdict

MUST_NOT_REPEAT = "book"
UNKNOWN = "outcome is unknown"
"""What the model is told of a tool call that may have run."""


def judge_starts(verdict: Verdict, runs: Iterable[Run], causes: Causes) -> None:
    """Judge how often each tool call was started, of all turns."""
    starts: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for run in runs:
        if run.event == "start":
            starts[run.key, run.tool].append(run)
    verdict.tool_runs = sum(map(len, starts.values()))
    for (key, tool), started in starts.items():
        if tool == MUST_NOT_REPEAT and len(started) > 1:
            verdict.find("tool_calls_twice", f"{key} was started {len(started)} times")
        elif not all(causes.explain(_moment(before), _moment(again)) for before, again in pairwise(started)):
            verdict.find("unexplained_tool_runs", f"{tool} {key} was started {len(started)} times")


def judge_told(  # noqa: PLR0913, PLR0917 - one turn in all records that tell of it
    verdict: Verdict, message: int, turn: str, exchanges: Sequence[Exchange], runs: Sequence[Run], causes: Causes
) -> None:
    """Judge what the model was told of each tool call of one turn."""
    asked = {identity: each for each in exchanges if each.is_complete for identity in each.tools}
    names = {identity: name for each in exchanges for identity, name in each.tools.items()}
    ended = {run.key for run in runs if run.event == "end"}
    for call, index, identity, result, then in _told(exchanges):
        key, name = f"{turn}:{call}:{index}", names.get(identity)
        if name == MUST_NOT_REPEAT and UNKNOWN in result:
            verdict.unknown_outcomes += 1
            begun = next((_moment(run) for run in runs if run.key == key), None)
            first = begun or (Moment(asked[identity].process, asked[identity].came) if identity in asked else then)
            if not causes.explain(first, then):
                verdict.find("unexplained_unknowns", f"message {message}: nothing kept {name} {key} from its end")
        elif result != f"done {key}" or key not in ended:
            verdict.find("wrong_results", f"message {message}: of {name} {key} it was told {result!r}")


def judge_asked(verdict: Verdict, message: int, turn: str, exchanges: Sequence[Exchange], runs: Iterable[Run]) -> None:
    """No tool ran that the answers shown later, or the complete ones of the last call, had not asked for."""
    last = max((each.call for each in exchanges), default=0)
    names = {identity: name for each in exchanges for identity, name in each.tools.items()}
    answers = [(call, answer.calls) for each in exchanges for call, answer in enumerate(each.history, 1)]
    answers += [(last, list(each.tools)) for each in exchanges if each.call == last and each.is_complete]
    asked = {
        (f"{turn}:{call}:{index}", names.get(identity))
        for call, calls in answers
        for index, identity in enumerate(calls)
    }
    ran = {(run.key, run.tool) for run in runs if run.key.startswith(f"{turn}:")}
    for key, tool in sorted(ran - asked):
        verdict.find(
            "unasked_tool_runs", f"message {message}: {tool} {key} ran, and no answer that counts asked for it"
        )


def _told(exchanges: Sequence[Exchange]) -> list[tuple[int, int, str, str, Moment]]:
    """(call, index, id, result, when it was first shown) of each tool call, and of each result that differs."""
    told: dict[tuple[int, int, str, str], Moment] = {}
    for each in exchanges:
        for call, answer in enumerate(each.history, 1):
            for index, identity in enumerate(answer.calls):
                shown = call, index, identity, answer.results.get(identity, "")
                told.setdefault(shown, Moment(each.process, each.came))
    return [(*shown, then) for shown, then in sorted(told.items())]


def _moment(run: Run) -> Moment:
    return Moment(run.process, run.at)
