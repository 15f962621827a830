"""What is right: an ending is compared with that of the same turns when nobody died.

What belongs here: the comparison, and the invariants that hold for any turn that was taken over. What must not be known
here: where processes died.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from tests.survive.story import MOST_DEATHS, Ending, TurnEnd, deaths_of_the_provider
from worker.codecs.messages import Message, ToolMessage
from worker.output.buffer import CommitBuffer
from worker.output.events import (
    CallCompletedOutput,
    Output,
    TextDeltaOutput,
    TextOutput,
    TextStreamDiscardedOutput,
    ThinkingDeltaOutput,
    TurnCompletedOutput,
)
from worker.output.filters import OutputFilter, admits
from worker.turn.facts import Committed, Compacted, Joined, ToolEnded, ToolStarted
from worker.turn.verdict import OUTCOME_UNKNOWN

RETRY_SAFE = ("look", "wait")


def judge(calm: Ending, ending: Ending) -> None:
    """Fails where the ending is not that of an undisturbed run."""
    assert len(ending.turns) == len(calm.turns)
    for at, (expected, turn) in enumerate(zip(calm.turns, ending.turns, strict=True)):
        assert turn.text == expected.text
        assert turn.record.marker == len(turn.text.encode())
        assert _end(turn) == _end(expected)
        assert turn.record.crashes == ending.crashes[at]
        unknown = _unknown(ending, turn)
        assert _facts(turn, unknown) == _facts(expected, unknown)
        assert _told_unknown(turn) == unknown
        check_outputs(turn, MOST_DEATHS + ending.spent[at])
    assert [each[1:] for each in ending.sent] == [each[1:] for each in calm.sent]
    told = [turn.record for turn in ending.turns if turn.record.outcome != "merged"]
    assert [each[0] for each in ending.sent] == [record.turn for record in told]
    joined = {turn.record.merged_into for turn in ending.turns if turn.record.outcome == "merged"}
    assert joined <= {record.turn for record in told}
    assert _log(ending) == _log(calm)
    _check_tool_runs(calm, ending)
    _check_requests(calm, ending)


def _end(turn: TurnEnd) -> Any:
    record = turn.record
    totals = record.totals
    return (
        record.state,
        record.outcome,
        record.reason,
        record.failure.code if record.failure else None,
        record.calls,
        (totals.input_tokens, totals.output_tokens, totals.total_tokens),
    )


def _told_unknown(turn: TurnEnd) -> set[tuple[int, int]]:
    """The tool calls of which the model was told that their outcome is unknown."""
    ended = [fact for fact in turn.facts if isinstance(fact, ToolEnded)]
    return {(fact.call, fact.index) for fact in ended if fact.failure == OUTCOME_UNKNOWN.failure}


def _unknown(ending: Ending, turn: TurnEnd) -> set[tuple[int, int]]:
    """The tool calls of a turn that a death cut and that must not run again."""
    names = {
        (fact.call, index): tool_call.name
        for fact in turn.facts
        if isinstance(fact, Committed)
        for index, tool_call in enumerate(fact.tool_calls)
    }
    cut = {(call, index) for of, call, index in ending.running if of == turn.record.turn}
    return {place for place in cut if names[place] not in RETRY_SAFE}


def _facts(turn: TurnEnd, unknown: set[tuple[int, int]]) -> list[Any]:
    """The journal without attempts: those of tools that ran side by side in the order of their calls."""
    told: list[Any] = []
    for fact in turn.facts:
        match fact:
            case Committed():
                tool_calls = [(each.name, each.arguments) for each in fact.tool_calls]
                told.append((fact.call, -1, "committed", fact.text, tool_calls, fact.finish_reason, fact.provider))
            case ToolStarted(call, index):
                started = (call, index, "1 started")
                told += [] if started in told else [started]  # once more, if that is safe
            case ToolEnded(call, index) if (call, index) in unknown:
                told.append((call, index, "2 ended"))
            case ToolEnded(call, index, result, failure):
                told.append((call, index, "2 ended", result, failure))
            case Compacted():
                told.append((fact.before_call - 1, 99, "compacted", fact.summary))
            case Joined(call, _, message):
                told.append((call, -2, "joined", message))
            case _:
                told.append((fact.call, fact.index, f"0 {type(fact).__name__}", repr(fact)))
    return sorted((each[:3] if each[:2] in unknown else each for each in told), key=lambda each: each[:3])


def _log(ending: Ending) -> list[Any]:
    turns = [turn.record.turn for turn in ending.turns]
    told = [(turns.index(entry.turn), entry.kind, entry.call, entry.outcome) for entry in ending.log]
    return [each for each in told if each[1] != "discard"]


def _check_tool_runs(calm: Ending, ending: Ending) -> None:
    """Each tool of the undisturbed run took effect: once, or not at all if its run was cut."""
    runs = Counter(_placed(ending))
    unknown = {(at, call, index) for at, turn in enumerate(ending.turns) for call, index in _unknown(ending, turn)}
    assert set(_placed(calm)) - set(runs) <= {each for each in set(_placed(calm)) if each[1:] in unknown}
    assert set(runs) <= set(_placed(calm))
    for (name, *_), count in runs.items():
        assert count == 1 or name.startswith(RETRY_SAFE), f"{name} ran {count} times"


def _placed(ending: Ending) -> list[tuple[str, int, int, int]]:
    turns = [turn.record.turn for turn in ending.turns]
    runs = [(name, *key.split(":")) for name, key in ending.tool_runs]
    return [(name, turns.index(turn), int(call), int(index)) for name, turn, call, index in runs if turn in turns]


def _check_requests(calm: Ending, ending: Ending) -> None:
    """What each call asked in the end is what it would have asked: the history was built anew from the journal."""
    expected, asked = _last_requests(calm), _last_requests(ending)
    assert asked.keys() == expected.keys()
    unknown = sum(len(_unknown(ending, turn)) for turn in ending.turns)
    for place, messages in asked.items():
        pairs = list(zip(messages, expected[place], strict=True))
        others = [message for message, other in pairs if message != other]
        assert len(others) <= unknown
        for message in others:
            assert isinstance(message, ToolMessage)
            assert message.text == OUTCOME_UNKNOWN.result


def _last_requests(ending: Ending) -> dict[tuple[str, int], tuple[Message, ...]]:
    return {(asked.message, asked.call): asked.request.messages for asked in ending.asked if asked.call}


def check_outputs(turn: TurnEnd, most_deaths: int = MOST_DEATHS) -> None:
    """What readers were told of one turn, by itself. `most_deaths`: attempts of one call that died of the provider."""
    outputs = turn.outputs
    assert [output.seq for output in outputs] == list(range(1, len(outputs) + 1))
    assert [at for at, output in enumerate(outputs, 1) if isinstance(output, TurnCompletedOutput)] == [len(outputs)]
    for wanted in (OutputFilter.FULL, OutputFilter.TEXT, OutputFilter.TEXT_STREAMING):
        assert _folded(outputs, wanted).committed == turn.text
    _check_attempts(turn, most_deaths)


def _folded(outputs: Iterable[Output], wanted: OutputFilter) -> CommitBuffer:
    buffer = CommitBuffer()
    for output in outputs:
        if admits(wanted, output):
            buffer.apply(output)
    assert (buffer.repeated, buffer.stale, buffer.unknown) == (0, 0, 0)
    return buffer


def _check_attempts(turn: TurnEnd, most_deaths: int) -> None:
    """Every attempt but one that completed has one discard, before anything of the next one and after all its own."""
    dead: list[tuple[int, int]] = []
    for output in turn.outputs:
        match output:
            case TextStreamDiscardedOutput():
                assert (output.call, output.attempt) not in dead, "discarded twice"
                dead.append((output.call, output.attempt))
            case TextDeltaOutput() | ThinkingDeltaOutput() | TextOutput(is_call_boundary=True) | CallCompletedOutput():
                assert (output.call, output.attempt) not in dead, "told after its discard"
                before = {(output.call, attempt) for attempt in range(1, output.attempt)}
                assert before <= set(dead), "told before an earlier attempt was discarded"
            case _:
                pass
    completed = {fact.call: fact.attempt for fact in turn.facts if isinstance(fact, Committed)}
    for call in {call for call, _ in dead}:
        attempts = [attempt for of, attempt in dead if of == call]
        assert attempts == list(range(1, completed.get(call, len(attempts) + 1)))
    assert turn.record.discards == len(dead)
    deaths = deaths_of_the_provider(turn.outputs)
    assert all(count <= most_deaths for count in deaths.values()), "the budget of resumes began afresh"
