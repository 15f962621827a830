"""Tool calls that go round in circles. One letter is one tool call; a word is one answer."""

import json
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.codecs.events import ToolCall
from worker.turn.facts import Committed, Compacted, Fact, ToolEnded, ToolStarted
from worker.turn.recurrence import MAX_ROUND, REPEATED, ROUNDS, Judgement, Recurrence, judge


def call_of(letter: str, arguments: str = "{}") -> ToolCall:
    return ToolCall(f"t-{letter}", letter, arguments, json.loads(arguments))


class Turn:
    """A turn whose tools are judged, and run unless that is refused. The outcome of a tool is its own letter."""

    def __init__(self, *answers: str) -> None:
        self.facts: list[Fact] = []
        self.recurrence = Recurrence()
        self.outcomes: dict[str, str] = {}
        """Of a tool, where it is not its letter."""
        for answer in answers:
            self.answers(answer)

    def answers(self, letters: str, order: str | None = None) -> list[Judgement]:
        """The model calls these tools in one answer; `order`: in which they end. The judgements, in the same order."""
        commit = Committed(len(self.facts) + 1, 1, "", tuple(call_of(letter) for letter in letters), "tool_calls", None)
        self._add(commit)
        judgements = [self.recurrence.judge(tool_call) for tool_call in commit.tool_calls]
        assert judgements == [judge(self.facts, tool_call) for tool_call in commit.tool_calls]
        ended = sorted(range(len(letters)), key=lambda at: (order or letters).index(letters[at]))
        for index in ended:
            if judgements[index] == "run":
                self._add(ToolStarted(commit.call, index))
                result = self.outcomes.get(letters[index], letters[index])
                self._add(ToolEnded(commit.call, index, result, "broken" if result == "!" else None))
            else:
                self._add(ToolEnded(commit.call, index, REPEATED.result, REPEATED.failure))
        return judgements

    def compacts(self) -> None:
        self._add(Compacted(len(self.facts) + 1, False, 0))

    def _add(self, fact: Fact) -> None:
        self.facts.append(fact)
        self.recurrence.add(fact)


@pytest.mark.requirement("recurrence:corrected-then-settled")
def test_the_third_identical_tool_call_with_the_same_outcome_is_corrected_and_the_fourth_settles_the_turn() -> None:
    turn = Turn()
    assert turn.answers("A") == ["run"]
    assert turn.answers("A") == ["run"]
    assert turn.answers("A") == ["correct"]
    assert turn.answers("A") == ["settle"]


@pytest.mark.requirement("recurrence:corrected-then-settled")
def test_the_correction_tells_the_model_that_nothing_was_run_and_what_to_do_instead() -> None:
    assert REPEATED.failure == "repeated"
    for part in ("was not run", "last 2 times", "same result", "do something else"):
        assert part in REPEATED.result


@pytest.mark.requirement("recurrence:circles")
@pytest.mark.parametrize("circle", ["A", "AB", "ABC"])
def test_a_round_of_up_to_three_steps_is_made_twice_and_not_begun_again(circle: str) -> None:
    turn = Turn(*circle, *circle)
    assert [turn.answers(letter) for letter in circle] == [["correct"]] * len(circle)
    assert turn.answers(circle[0]) == ["settle"]


@pytest.mark.requirement("recurrence:circles")
@pytest.mark.parametrize("letter", "ABC")
def test_no_step_of_a_round_that_was_made_twice_runs_wherever_it_is_taken_up(letter: str) -> None:
    assert Turn(*"ABCABC").answers(letter) == ["correct"]
    assert Turn(*"XABCABC").answers(letter) == ["correct"]


@pytest.mark.requirement("recurrence:something-new")
def test_a_tool_call_is_not_held_up_when_something_new_was_done_since_it_ran() -> None:
    """Whoever edits and then tests calls the test again and again, and may well read the same failure twice."""
    assert Turn(*"ABAC").answers("A") == ["run"]
    assert Turn(*"ABACADAEA").answers("A") == ["run"]
    assert Turn(*"AAB").answers("A") == ["run"]
    assert Turn(*"AABA").answers("A") == ["run"]
    assert Turn(*"ABACAA").answers("A") == ["correct"]
    assert Turn(*"ABCDABCD").answers("A") == ["run"]


@pytest.mark.requirement("recurrence:something-new")
def test_a_correction_is_forgotten_once_anything_else_was_done() -> None:
    assert Turn(*"AAA", "X").answers("A") == ["run"]
    assert Turn("A", "A", "AX").answers("A") == ["run"]
    assert Turn(*"AAA").answers("AX") == ["settle", "run"]


@pytest.mark.requirement("recurrence:changed-outcome")
@pytest.mark.parametrize("changed", ["other", "!"])
def test_an_outcome_that_changed_lets_the_call_run_again(changed: str) -> None:
    """Waiting for something is calling the same tool until it says something else."""
    turn = Turn("A")
    turn.outcomes["A"] = changed
    assert turn.answers("A") == ["run"]
    assert turn.answers("A") == ["run"]
    assert turn.answers("A") == ["correct"]


@pytest.mark.requirement("recurrence:changed-outcome")
def test_a_failure_is_part_of_an_outcome_even_if_the_text_is_the_same() -> None:
    commits = [Committed(number, 1, "", (call_of("A"),), "tool_calls", None) for number in (1, 2, 3)]
    ends = [ToolEnded(1, 0, "No.", None), ToolEnded(2, 0, "No.", "timeout")]
    assert judge([commits[0], ends[0], commits[1], ends[1], commits[2]], call_of("A")) == "run"
    ends[1] = ToolEnded(2, 0, "No.", None)
    assert judge([commits[0], ends[0], commits[1], ends[1], commits[2]], call_of("A")) == "correct"


@pytest.mark.requirement("recurrence:same-call")
@pytest.mark.parametrize(
    ("one", "other", "are_equal"),
    [
        ('{"a": 1, "b": [1, {"c": null}]}', '{ "b":[1,{"c":null}],"a":1 }', True),
        ('{"a": "ü"}', '{"a": "\\u00fc"}', True),
        ("{}", " {} ", True),
        ('{"a": 1}', '{"a": 2}', False),
        ('{"a": 1}', '{"a": true}', False),
        ('{"a": 1}', '{"a": "1"}', False),
        ('{"a": [1, 2]}', '{"a": [2, 1]}', False),
        ('{"a": 100000000000000000001}', '{"a": 100000000000000000002}', False),
    ],
)
def test_arguments_are_compared_as_json_values(one: str, other: str, are_equal: bool) -> None:
    facts: list[Fact] = []
    for number, arguments in ((1, one), (2, other)):
        facts.append(Committed(number, 1, "", (call_of("A", arguments),), "tool_calls", None))
        facts.append(ToolEnded(number, 0, "the same", None))
    facts.append(Committed(3, 1, "", (call_of("A", one),), "tool_calls", None))
    assert judge(facts, call_of("A", one)) == ("correct" if are_equal else "run")


@pytest.mark.requirement("recurrence:same-call")
def test_arguments_that_are_no_json_are_compared_as_they_stand_and_calls_by_their_names_too() -> None:
    def broken(text: str) -> ToolCall:
        return ToolCall("t", "A", text, None)

    facts: list[Fact] = []
    for number in (1, 2, 3):
        facts.append(Committed(number, 1, "", (broken('{"a": '),), "tool_calls", None))
        facts.append(ToolEnded(number, 0, "Error: no JSON.", "bad_arguments"))
    assert judge(facts[:-1], broken('{"a": ')) == "correct"
    assert judge(facts[:-1], broken('{"a":')) == "run"
    assert judge(facts[:-1], ToolCall("t", "B", '{"a": ', None)) == "run"


@pytest.mark.requirement("recurrence:parallel")
def test_the_tool_calls_of_one_answer_are_one_step_in_whatever_order_they_are_made_and_end() -> None:
    turn = Turn()
    assert turn.answers("AB", order="BA") == ["run", "run"]
    assert turn.answers("BA", order="AB") == ["run", "run"]
    assert turn.answers("ABC") == ["correct", "correct", "run"]
    assert turn.answers("AB") == ["run", "run"]


@pytest.mark.requirement("recurrence:parallel")
def test_identical_tool_calls_of_one_answer_all_run_and_count_once() -> None:
    """Their results are not known when they are made."""
    turn = Turn()
    assert turn.answers("AA") == ["run", "run"]
    assert turn.answers("A") == ["run"]
    assert turn.answers("AA") == ["correct", "correct"]
    assert turn.answers("A") == ["settle"]


@pytest.mark.requirement("recurrence:parallel")
def test_drivers_that_share_the_tools_of_one_answer_judge_alike() -> None:
    """The first corrected one call and died; the second finds that in the journal and judges the other."""
    facts = [*Turn("A", "A").facts, Committed(9, 1, "", (call_of("A"), call_of("A")), "tool_calls", None)]
    corrected = ToolEnded(9, 0, REPEATED.result, REPEATED.failure)
    assert judge(facts, call_of("A")) == judge([*facts, corrected], call_of("A")) == "correct"


@pytest.mark.requirement("recurrence:compaction")
def test_a_model_that_can_no_longer_read_a_result_may_ask_for_it_again() -> None:
    for before in (["A", "A"], ["A", "A", "A"]):
        turn = Turn(*before)
        turn.compacts()
        assert turn.answers("A") == ["run"]


def test_answers_without_tools_are_no_steps() -> None:
    turn = Turn("A", "", "A", "", "")
    assert turn.answers("A") == ["correct"]


ANSWERS = st.lists(st.text("ABC", max_size=2), max_size=14)


@pytest.mark.requirement("recurrence:circles")
@given(ANSWERS, st.dictionaries(st.integers(0, 13), st.sampled_from("xy"), max_size=3))
def test_the_judgement_is_that_of_the_rule_read_off_the_whole_turn(answers: list[str], changes: dict[int, str]) -> None:
    """An independent model: what is remembered of a turn is enough to judge as from all of it."""
    turn = Turn()
    steps: list[frozenset[tuple[str, str]]] = []
    corrected: set[str] = set()
    for place, letters in enumerate(answers):
        turn.outcomes = {"A": changes[place]} if place in changes else {}
        circling = {
            letter
            for length in range(1, MAX_ROUND + 1)
            if len(steps) >= ROUNDS * length and steps[-length:] == steps[-2 * length : -length]
            for step in steps[-length:]
            for letter, _ in step
        }
        expected = ["settle" if x in corrected else "correct" if x in circling else "run" for x in letters]
        assert turn.answers(letters) == expected
        ran = {(x, turn.outcomes.get(x, x)) for x, judged in zip(letters, expected, strict=True) if judged == "run"}
        if ran:
            steps.append(frozenset(ran))
            corrected.clear()
        else:
            corrected |= set(letters)


@pytest.mark.requirement("recurrence:ends")
@given(st.lists(st.sampled_from("ABC"), min_size=1, max_size=3))
def test_a_model_that_repeats_one_round_for_ever_is_stopped_within_four_rounds(circle: list[str]) -> None:
    turn, judgements = Turn(), deque[Judgement]()
    while "settle" not in judgements:
        judgements += turn.answers(circle[len(judgements) % len(circle)])
        assert len(judgements) <= 4 * len(circle)
