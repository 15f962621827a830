"""Every figure of the verdict rises for a record that deserves it, and none for those that do not."""

from dataclasses import replace
from typing import Any

import pytest

from ops.chaos_run.causes import STORE
from ops.chaos_run.judge import judge, right_texts
from ops.chaos_run.records import Exchange, Post, Reading, Records, Run, Strike
from ops.chaos_run.said import Answer
from ops.chaos_run.verdict import Verdict

CALL = "call_a"
FIRST, DEAD, END = "Let me look⟨0.1.1.1⟩ ", "It ⟨0.2.1.1⟩", "It is noon⟨0.2.2.1⟩\n"
KEY = "turn_0:1:0"
TOLD = Answer(FIRST, [CALL], {CALL: f"done {KEY}"})
ASKED = Exchange(1, 0, 1, "turns-1.1", 1.0, FIRST, True, {CALL: "book"}, (), ())
DIED = Exchange(2, 0, 2, "turns-1.1", 2.0, DEAD, False, {}, (TOLD,), ())
ENDED = Exchange(3, 0, 2, "turns-2.1", 4.0, END, True, {}, (TOLD,), ())
POST = Post("id_0", 0, "turn_0", "completed", FIRST + END, "delivery-1.1", 5.0, 5.2, True, True)
RUNS = (Run("start", KEY, "book", "turns-1.1", 1.5), Run("end", KEY, "book", "turns-1.1", 1.6))
KILL = Strike("kill", "turns-1.1", 2.5, 2.5, True)
STRIKE = Strike("kill", "delivery-1.1", 5.1, 5.1, False)
LEASE_S = 2.0
WHOLE = Records(1, ((0,),), (ASKED, DIED, ENDED), (POST,), RUNS, (KILL,), LEASE_S)
FAULTS = (
    "failed",
    "dead",
    "lost",
    "partial",
    "wrong_text",
    "wrong_history",
    "wrong_readings",
    "unexplained_duplicates",
    "duplicate_ids",
    "contradictions",
    "bad_signatures",
    "tool_calls_twice",
    "wrong_results",
    "unasked_tool_runs",
    "unexplained_requests",
    "unexplained_takeovers",
    "unexplained_tool_runs",
    "unexplained_unknowns",
)


def judged(**changes: Any) -> Verdict:
    return judge(replace(WHOLE, **changes))


def only(verdict: Verdict, figure: str) -> bool:
    """Whether this fault alone was found, once, and the run is not clean."""
    counts = {name: getattr(verdict, name) for name in FAULTS}
    return counts == dict.fromkeys(FAULTS, 0) | {figure: 1} and len(verdict.findings) == 1 and not verdict.is_clean


@pytest.mark.requirement("chaos:judge:clean")
def test_a_turn_whose_end_came_once_with_the_text_of_its_completed_calls_is_clean() -> None:
    verdict = judged()
    assert verdict.findings == []
    assert verdict.is_clean
    assert (verdict.completed, verdict.takeovers, verdict.tool_runs, verdict.requests) == (1, 1, 1, 3)


@pytest.mark.requirement("chaos:judge:clean")
def test_of_two_complete_attempts_of_the_last_call_either_is_right() -> None:
    again = replace(ENDED, n=4, text="Noon⟨0.2.3.1⟩", process="turns-2.2", came=4.8)
    strikes = (KILL, replace(KILL, process="turns-2.1", at=4.5, until=4.5))
    for text in (END, again.text):
        exchanges, posts = (*WHOLE.exchanges, again), (replace(POST, text=FIRST + text),)
        verdict = judged(exchanges=exchanges, posts=posts, strikes=strikes)
        assert verdict.findings == []
        assert verdict.takeovers == 2


@pytest.mark.requirement("chaos:judge:clean")
def test_of_two_complete_attempts_of_an_earlier_call_the_one_that_is_shown_later_is_right() -> None:
    unseen = replace(ASKED, n=0, text="Wait⟨0.1.0.1⟩ ", tools={"call_b": "book"}, process="turns-2.0", came=0.5)
    exchanges, strikes = (unseen, *WHOLE.exchanges), (KILL, replace(KILL, process="turns-2.0", at=0.6, until=0.6))
    assert judged(exchanges=exchanges, strikes=strikes).findings == []
    verdict = judged(exchanges=exchanges, strikes=strikes, posts=(replace(POST, text=unseen.text + END),))
    assert only(verdict, "partial")


@pytest.mark.requirement("chaos:judge:ends")
@pytest.mark.parametrize("posts", [(), (replace(POST, is_acknowledged=False),)])
def test_an_end_that_the_receiver_never_acknowledged_is_lost(posts: tuple[Post, ...]) -> None:
    assert only(judged(posts=posts), "lost")


@pytest.mark.requirement("chaos:judge:ends")
@pytest.mark.parametrize(
    ("outcome", "figure"), [("failed", "failed"), ("incomplete", "failed"), ("cancelled", "failed"), ("dead", "dead")]
)
def test_an_end_of_another_kind_is_not_completed(outcome: str, figure: str) -> None:
    assert only(judged(posts=(replace(POST, outcome=outcome, text=FIRST),)), figure)


@pytest.mark.requirement("chaos:judge:texts")
@pytest.mark.parametrize(
    ("text", "figure"),
    [
        (FIRST, "partial"),
        (END, "partial"),
        ("", "partial"),
        ((FIRST + END).strip(), "partial"),
        ((FIRST + END)[:-5], "partial"),
        (FIRST + DEAD + END, "partial"),
        (DEAD, "partial"),
        (FIRST + FIRST + END, "wrong_text"),
        (END + FIRST, "wrong_text"),
        (FIRST + "\n" + END, "wrong_text"),
        (FIRST + "It is noon⟨7.2.2.1⟩\n", "wrong_text"),
        (FIRST.replace("look", "lock") + END, "wrong_text"),
    ],
)
def test_a_text_that_is_not_right_is_a_part_or_wrong(text: str, figure: str) -> None:
    assert only(judged(posts=(replace(POST, text=text),)), figure)


@pytest.mark.requirement("chaos:judge:texts")
def test_an_answer_that_calls_tools_ends_no_turn() -> None:
    assert only(judged(exchanges=(ASKED,), posts=(replace(POST, text=FIRST),)), "partial")


@pytest.mark.requirement("chaos:judge:repeats")
@pytest.mark.parametrize("acknowledged", [True, False])
def test_two_posts_of_one_end_with_different_texts_contradict_each_other_though_either_would_be_right(
    acknowledged: bool,
) -> None:
    again = replace(ENDED, n=4, text="Noon⟨0.2.3.1⟩", process="turns-2.2", came=4.8)
    strikes = (KILL, replace(KILL, process="turns-2.1", at=4.5, until=4.5), STRIKE)
    first = replace(POST, is_acknowledged=acknowledged)
    posts = (first, replace(POST, text=FIRST + again.text, came=6.0))
    assert only(judged(exchanges=(*WHOLE.exchanges, again), posts=posts, strikes=strikes), "contradictions")


@pytest.mark.requirement("chaos:judge:repeats")
def test_a_part_that_is_delivered_beside_the_whole_is_both_a_part_and_a_contradiction() -> None:
    verdict = judged(posts=(POST, replace(POST, text=FIRST, came=6.0)), strikes=(KILL, STRIKE))
    assert (verdict.partial, verdict.contradictions, len(verdict.findings)) == (1, 1, 2)


@pytest.mark.requirement("chaos:judge:repeats")
def test_a_second_outcome_for_one_end_is_a_contradiction() -> None:
    verdict = judged(posts=(POST, replace(POST, outcome="failed", came=6.0)), strikes=(KILL, STRIKE))
    assert (verdict.failed, verdict.contradictions) == (1, 1)


@pytest.mark.requirement("chaos:judge:texts")
@pytest.mark.parametrize("message", [None, 1, -1])
def test_a_post_for_no_message_of_the_run_is_wrong(message: int | None) -> None:
    assert only(judged(posts=(POST, replace(POST, message=message))), "wrong_text")


@pytest.mark.requirement("chaos:judge:requests")
@pytest.mark.parametrize(
    "shown",
    [
        replace(TOLD, text="Let me"),
        replace(TOLD, text=FIRST + DEAD),
        replace(TOLD, calls=["call_x"], results={"call_x": f"done {KEY}"}),
    ],
)
def test_a_request_that_shows_what_the_provider_never_completed_is_wrong(shown: Answer) -> None:
    exchanges = (ASKED, replace(ENDED, history=(shown,)))
    assert right_texts(exchanges)[1] is not None
    assert judged(exchanges=exchanges).wrong_text == 1


@pytest.mark.requirement("chaos:judge:requests")
def test_a_request_that_shows_an_attempt_that_died_is_wrong() -> None:
    died = replace(ASKED, n=0, text="Let me⟨0.1.0.1⟩ ", is_complete=False)
    behind = replace(ENDED, history=(replace(TOLD, text=died.text),))
    assert only(judged(exchanges=(died, ASKED, behind)), "wrong_text")


@pytest.mark.requirement("chaos:judge:requests")
def test_requests_that_show_different_answers_of_one_call_are_wrong() -> None:
    other = replace(ASKED, n=0, text="Wait⟨0.1.0.1⟩ ", came=0.5)
    shown = replace(DIED, history=(replace(TOLD, text=other.text),))
    strikes = (KILL, replace(KILL, process=STORE, at=0.7, until=0.8))
    assert only(judged(exchanges=(other, ASKED, shown, ENDED), strikes=strikes), "wrong_text")


@pytest.mark.requirement("chaos:judge:requests")
@pytest.mark.parametrize(
    "result",
    ["", f"done {KEY} ", "done turn_1:1:0", "done turn_0:1:1", "Error: the tool failed"],
)
def test_a_result_that_the_tool_did_not_give_is_wrong(result: str) -> None:
    shown = replace(TOLD, results={CALL: result})
    assert only(judged(exchanges=(ASKED, replace(ENDED, history=(shown,)))), "wrong_results")


@pytest.mark.requirement("chaos:judge:requests")
def test_a_result_of_a_tool_that_never_ended_is_wrong() -> None:
    assert only(judged(runs=RUNS[:1]), "wrong_results")


@pytest.mark.requirement("chaos:judge:requests")
@pytest.mark.parametrize(("tool", "figure"), [("book", "unknown_outcomes"), ("look", "wrong_results")])
def test_an_unknown_outcome_is_right_of_a_tool_that_must_not_repeat_alone(tool: str, figure: str) -> None:
    shown = replace(TOLD, results={CALL: "Error: this call was interrupted and its outcome is unknown."})
    exchanges = (replace(ASKED, tools={CALL: tool}), replace(ENDED, history=(shown,)))
    verdict = judged(exchanges=exchanges, runs=RUNS[:1])
    assert getattr(verdict, figure) == 1
    assert verdict.is_clean == (figure == "unknown_outcomes")


NEXT = replace(
    WHOLE,
    messages=2,
    sessions=((0, 1),),
    exchanges=(
        *WHOLE.exchanges,
        Exchange(4, 1, 1, "turns-2.1", 7.0, "Bye⟨1.1.1.1⟩", True, {}, (), ((TOLD, Answer(END)),)),
    ),
    posts=(POST, replace(POST, identity="id_1", message=1, turn="turn_1", text="Bye⟨1.1.1.1⟩")),
)


@pytest.mark.requirement("chaos:judge:requests")
def test_a_session_shows_what_was_delivered_for_its_earlier_turns() -> None:
    assert judge(NEXT).findings == []


@pytest.mark.requirement("chaos:judge:requests")
@pytest.mark.parametrize(
    "earlier", [(), ((TOLD,),), ((TOLD, Answer(END)), (Answer("Bye"),)), ((Answer(FIRST + DEAD),),)]
)
def test_a_session_that_shows_anything_else_is_wrong(earlier: tuple[tuple[Answer, ...], ...]) -> None:
    exchanges = (*NEXT.exchanges[:-1], replace(NEXT.exchanges[-1], earlier=earlier))
    assert only(judge(replace(NEXT, exchanges=exchanges)), "wrong_history")


@pytest.mark.requirement("chaos:judge:repeats")
@pytest.mark.parametrize(
    ("strikes", "explained"),
    [
        ((), False),
        ((STRIKE,), True),
        ((replace(STRIKE, process=STORE),), True),
        ((replace(STRIKE, kind="freeze", at=1.0, until=5.1),), True),
        ((replace(STRIKE, process="delivery-2.1"),), False),
        ((replace(STRIKE, process="turns-1.1"),), False),
        ((replace(STRIKE, at=4.0, until=4.9),), False),
        ((replace(STRIKE, at=8.1, until=8.1),), False),
    ],
)
def test_a_repeat_after_an_acknowledged_post_needs_a_strike_that_explains_it(
    strikes: tuple[Strike, ...], explained: bool
) -> None:
    verdict = judged(posts=(POST, replace(POST, came=8.0, ended=8.1, process="delivery-2.1")), strikes=(KILL, *strikes))
    assert verdict.duplicate_deliveries == 1
    assert verdict.is_clean if explained else only(verdict, "unexplained_duplicates")


@pytest.mark.requirement("chaos:judge:repeats")
def test_a_retry_of_what_was_not_acknowledged_is_no_duplicate() -> None:
    verdict = judged(posts=(replace(POST, is_acknowledged=False), replace(POST, came=6.0)))
    assert verdict.is_clean
    assert verdict.duplicate_deliveries == 0


@pytest.mark.requirement("chaos:judge:repeats")
@pytest.mark.parametrize("other", [replace(POST, identity="id_x", came=6.0), replace(POST, turn="turn_x", came=6.0)])
def test_two_ids_or_two_turns_for_one_message_are_seen(other: Post) -> None:
    assert judged(posts=(POST, other), strikes=(KILL, STRIKE)).duplicate_ids == 1


@pytest.mark.requirement("chaos:judge:repeats")
def test_a_signature_that_does_not_verify_is_seen() -> None:
    assert only(judged(posts=(replace(POST, is_signed=False),)), "bad_signatures")


READING = Reading(0, FIRST + END, "", 0)


@pytest.mark.requirement("chaos:judge:readers")
def test_a_reader_that_is_left_with_what_was_delivered_is_right() -> None:
    assert judged(read=frozenset({0}), readings=(READING,)).is_clean


@pytest.mark.requirement("chaos:judge:readers")
@pytest.mark.parametrize(
    "readings",
    [
        (),
        (replace(READING, message=1),),
        (replace(READING, text=FIRST),),
        (replace(READING, text=FIRST + DEAD + END),),
        (replace(READING, staged="It"),),
        (replace(READING, gaps=1),),
        (replace(READING, text=FIRST, gaps=3), READING),
        (READING, READING),
    ],
)
def test_a_reader_that_is_left_with_anything_else_is_wrong(readings: tuple[Reading, ...]) -> None:
    assert only(judged(read=frozenset({0}), readings=readings), "wrong_readings")


@pytest.mark.requirement("chaos:judge:tools")
def test_a_tool_that_must_not_repeat_and_started_twice_is_seen() -> None:
    assert only(judged(runs=(*RUNS, RUNS[0])), "tool_calls_twice")


LOOKS = tuple(replace(run, tool="look") for run in RUNS)
LOOKS_AGAIN = tuple(replace(run, process="turns-2.1", at=3.0) for run in LOOKS)


@pytest.mark.requirement("chaos:judge:tools")
def test_a_tool_that_may_repeat_may_after_a_strike_alone() -> None:
    exchanges = (replace(ASKED, tools={CALL: "look"}), DIED, ENDED)
    verdict = judged(runs=(*LOOKS, *LOOKS_AGAIN), exchanges=exchanges)
    assert verdict.is_clean
    assert verdict.tool_runs == 2
    assert only(judged(runs=(*LOOKS * 50, *LOOKS_AGAIN), exchanges=exchanges), "unexplained_tool_runs")


UNTOLD = replace(TOLD, results={CALL: "Error: this call was interrupted and its outcome is unknown."})


@pytest.mark.requirement("chaos:judge:causes")
@pytest.mark.parametrize("runs", [(), RUNS[:1], RUNS])
@pytest.mark.parametrize(
    ("strikes", "explained"),
    [
        ((), False),
        ((KILL,), True),
        ((replace(KILL, process=STORE),), True),
        ((replace(KILL, process="turns-2.2"),), False),
        ((replace(KILL, at=4.5, until=4.5),), False),
    ],
)
def test_an_unknown_outcome_needs_a_strike_that_explains_it_be_its_end_in_the_ledger_or_not(
    runs: tuple[Run, ...], strikes: tuple[Strike, ...], explained: bool
) -> None:
    shown = replace(ENDED, history=(UNTOLD,))
    # A strike that explains nothing of the tool explains that the other process goes on.
    shown = shown if explained else replace(shown, process="turns-1.1")
    verdict = judged(exchanges=(ASKED, shown), runs=runs, strikes=strikes)
    assert verdict.unknown_outcomes == 1
    assert verdict.is_clean if explained else only(verdict, "unexplained_unknowns")


@pytest.mark.requirement("chaos:judge:causes")
def test_an_unknown_outcome_is_explained_by_a_strike_on_the_process_that_ran_the_tool() -> None:
    """It was asked for in one process, ran in a second, and a third tells of it."""
    runs = (replace(RUNS[0], process="turns-2.2", at=3.0),)
    exchanges = (ASKED, replace(ENDED, history=(UNTOLD,)))
    assert only(judged(exchanges=exchanges, runs=runs), "unexplained_unknowns")
    second = replace(KILL, process="turns-2.2", at=3.1, until=3.1)
    assert judged(exchanges=exchanges, runs=runs, strikes=(KILL, second)).is_clean


@pytest.mark.requirement("chaos:judge:causes")
@pytest.mark.parametrize(
    ("strikes", "explained"),
    [
        ((), False),
        ((KILL,), True),
        ((replace(KILL, kind="freeze", at=0.5, until=0.6),), True),  # its lease may run out behind it
        ((replace(KILL, kind="freeze", at=0.1, until=0.1),), True),
        ((replace(KILL, kind="freeze", at=-9.0, until=-8.0),), False),
        ((replace(KILL, kind="drain", at=-9.0, until=-9.0),), True),  # it works on for a while
        ((replace(KILL, process=STORE, at=0.0, until=0.1),), True),
        ((replace(KILL, process=STORE, at=-9.0, until=-8.0),), False),
        ((replace(KILL, kind="freeze", process="turns-2.1"),), True),  # late with what it was allowed to do
        ((replace(KILL, process="turns-2.1"),), False),
        ((replace(KILL, process="turns-2.2"),), False),
        ((replace(KILL, at=4.1, until=4.1),), False),
    ],
)
def test_another_process_goes_on_with_a_turn_after_a_strike_alone(strikes: tuple[Strike, ...], explained: bool) -> None:
    verdict = judged(exchanges=(ASKED, ENDED), strikes=strikes)
    assert verdict.takeovers == 1
    assert verdict.is_clean if explained else only(verdict, "unexplained_takeovers")


@pytest.mark.requirement("chaos:judge:causes")
@pytest.mark.parametrize(
    ("strikes", "explained"),
    [
        ((), False),
        ((replace(KILL, process=STORE, at=4.4, until=4.6),), True),
        ((replace(KILL, kind="freeze", process="turns-2.1", at=4.4, until=4.6),), True),
        ((replace(KILL, kind="freeze", process="turns-1.1", at=4.4, until=4.6),), False),
    ],
)
def test_a_call_that_was_answered_is_asked_again_after_a_strike_alone(
    strikes: tuple[Strike, ...], explained: bool
) -> None:
    again = replace(ENDED, n=4, text="Noon⟨0.2.3.1⟩", came=4.8)
    verdict = judged(exchanges=(*WHOLE.exchanges, again), strikes=(KILL, *strikes))
    assert verdict.is_clean if explained else only(verdict, "unexplained_requests")


@pytest.mark.requirement("chaos:judge:causes")
def test_each_repeat_of_an_answered_call_needs_a_strike_of_its_own() -> None:
    repeats = tuple(replace(ENDED, n=4 + n, text=f"Noon⟨0.2.{3 + n}.1⟩", came=10.0 * n + 10) for n in range(40))
    strike = replace(KILL, process=STORE, at=5.0, until=5.0)
    assert judged(exchanges=(*WHOLE.exchanges, *repeats), strikes=(KILL, strike)).unexplained_requests == 39


@pytest.mark.requirement("chaos:judge:causes")
@pytest.mark.parametrize(
    ("strike", "explained"),
    [
        (replace(KILL, process=STORE, at=4.1, until=4.2), False),
        (replace(KILL, kind="freeze", process="turns-2.1", at=4.1, until=4.2), False),
        (replace(KILL, kind="freeze", at=0.9, until=4.4), True),
    ],
)
def test_a_call_whose_answer_a_later_request_shows_is_asked_again_by_a_process_that_was_frozen_alone(
    strike: Strike, explained: bool
) -> None:
    first, then = replace(ASKED, process="turns-2.1", came=2.0), replace(ENDED, n=2, came=4.0)
    late = replace(ASKED, n=3, process="turns-1.1", came=4.5)
    verdict = judged(
        exchanges=(first, then, late), strikes=(strike, replace(KILL, process="turns-2.1", at=4.1, until=4.1))
    )
    assert verdict.unexplained_requests == (0 if explained else 1)
    assert verdict.is_clean == explained


UNSEEN = replace(ASKED, n=0, text="Wait⟨0.1.0.1⟩ ", is_complete=False, tools={"call_b": "look"})


@pytest.mark.requirement("chaos:judge:tools")
@pytest.mark.parametrize(
    ("key", "tool"),
    [("turn_0:1:0", "look"), ("turn_0:1:1", "book"), ("turn_0:2:0", "book"), ("turn_0:3:0", "book")],
)
def test_a_tool_that_no_answer_that_counts_has_asked_for_is_seen(key: str, tool: str) -> None:
    run = Run("start", key, tool, "turns-1.1", 1.5)
    runs = (*RUNS, run, replace(run, event="end"))
    verdict = judged(exchanges=(UNSEEN, *WHOLE.exchanges), runs=runs)
    assert (verdict.unasked_tool_runs, verdict.is_clean) == (1, False)


@pytest.mark.requirement("chaos:judge:tools")
def test_a_tool_of_the_last_call_that_completed_was_asked_for() -> None:
    verdict = judged(exchanges=(ASKED,), posts=(replace(POST, outcome="failed", text=FIRST),))
    assert only(verdict, "failed")
