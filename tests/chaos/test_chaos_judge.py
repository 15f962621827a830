"""Every figure of the verdict rises for a record that deserves it, and none for those that do not."""

from dataclasses import replace
from typing import Any

import pytest

from ops.chaos_run.judge import STORE, Verdict, judge, right_texts
from ops.chaos_run.records import Exchange, Post, Reading, Records, Run, Strike
from ops.chaos_run.said import Answer

CALL = "call_a"
FIRST, DEAD, END = "Let me look⟨0.1.1.1⟩ ", "It ⟨0.2.1.1⟩", "It is noon⟨0.2.2.1⟩\n"
KEY = "turn_0:1:0"
TOLD = Answer(FIRST, [CALL], {CALL: f"done {KEY}"})
ASKED = Exchange(1, 0, 1, "turns-1.1", FIRST, True, {CALL: "book"}, (), ())
DIED = Exchange(2, 0, 2, "turns-1.1", DEAD, False, {}, (TOLD,), ())
ENDED = Exchange(3, 0, 2, "turns-2.1", END, True, {}, (TOLD,), ())
POST = Post("id_0", 0, "turn_0", "completed", FIRST + END, "delivery-1.1", 5.0, 5.2, True, True)
RUNS = (Run("start", KEY, "book"), Run("end", KEY, "book"))
STRIKE = Strike("kill", "delivery-1.1", 5.1, 5.1, False)
WHOLE = Records(1, ((0,),), (ASKED, DIED, ENDED), (POST,), RUNS, ())
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
    again = replace(ENDED, n=4, text="Noon⟨0.2.3.1⟩", process="turns-2.2")
    for text in (END, again.text):
        verdict = judged(exchanges=(*WHOLE.exchanges, again), posts=(replace(POST, text=FIRST + text),))
        assert verdict.findings == []
        assert verdict.takeovers == 2


@pytest.mark.requirement("chaos:judge:clean")
def test_of_two_complete_attempts_of_an_earlier_call_the_one_that_is_shown_later_is_right() -> None:
    unseen = replace(ASKED, n=0, text="Wait⟨0.1.0.1⟩ ", tools={"call_b": "book"})
    exchanges = (unseen, *WHOLE.exchanges)
    assert judged(exchanges=exchanges).findings == []
    verdict = judged(exchanges=exchanges, posts=(replace(POST, text=unseen.text + END),))
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
    again = replace(ENDED, n=4, text="Noon⟨0.2.3.1⟩", process="turns-2.2")
    first = replace(POST, is_acknowledged=acknowledged)
    posts = (first, replace(POST, text=FIRST + again.text, came=6.0))
    assert only(judged(exchanges=(*WHOLE.exchanges, again), posts=posts, strikes=(STRIKE,)), "contradictions")


@pytest.mark.requirement("chaos:judge:repeats")
def test_a_part_that_is_delivered_beside_the_whole_is_both_a_part_and_a_contradiction() -> None:
    verdict = judged(posts=(POST, replace(POST, text=FIRST, came=6.0)), strikes=(STRIKE,))
    assert (verdict.partial, verdict.contradictions, len(verdict.findings)) == (1, 1, 2)


@pytest.mark.requirement("chaos:judge:repeats")
def test_a_second_outcome_for_one_end_is_a_contradiction() -> None:
    verdict = judged(posts=(POST, replace(POST, outcome="failed", came=6.0)), strikes=(STRIKE,))
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
    other = replace(ASKED, n=0, text="Wait⟨0.1.0.1⟩ ")
    shown = replace(DIED, history=(replace(TOLD, text=other.text),))
    assert only(judged(exchanges=(other, ASKED, shown, ENDED)), "wrong_text")


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
    exchanges=(*WHOLE.exchanges, Exchange(4, 1, 1, "turns-2.1", "Bye⟨1.1.1.1⟩", True, {}, (), ((TOLD, Answer(END)),))),
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
    verdict = judged(posts=(POST, replace(POST, came=8.0, ended=8.1, process="delivery-2.1")), strikes=strikes)
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
    assert judged(posts=(POST, other), strikes=(STRIKE,)).duplicate_ids == 1


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
    ],
)
def test_a_reader_that_is_left_with_anything_else_is_wrong(readings: tuple[Reading, ...]) -> None:
    assert only(judged(read=frozenset({0}), readings=readings), "wrong_readings")


@pytest.mark.requirement("chaos:judge:tools")
def test_a_tool_that_must_not_repeat_and_started_twice_is_seen() -> None:
    assert only(judged(runs=(*RUNS, RUNS[0])), "tool_calls_twice")


@pytest.mark.requirement("chaos:judge:tools")
def test_a_tool_that_may_repeat_may() -> None:
    runs = tuple(replace(run, tool="look") for run in (*RUNS, *RUNS))
    exchanges = (replace(ASKED, tools={CALL: "look"}), DIED, ENDED)
    verdict = judged(runs=runs, exchanges=exchanges)
    assert verdict.is_clean
    assert verdict.tool_runs == 2


UNSEEN = replace(ASKED, n=0, text="Wait⟨0.1.0.1⟩ ", is_complete=False, tools={"call_b": "look"})


@pytest.mark.requirement("chaos:judge:tools")
@pytest.mark.parametrize(
    ("key", "tool"),
    [("turn_0:1:0", "look"), ("turn_0:1:1", "book"), ("turn_0:2:0", "book"), ("turn_0:3:0", "book")],
)
def test_a_tool_that_no_answer_that_counts_has_asked_for_is_seen(key: str, tool: str) -> None:
    runs = (*RUNS, Run("start", key, tool), Run("end", key, tool))
    verdict = judged(exchanges=(UNSEEN, *WHOLE.exchanges), runs=runs)
    assert (verdict.unasked_tool_runs, verdict.is_clean) == (1, False)


@pytest.mark.requirement("chaos:judge:tools")
def test_a_tool_of_the_last_call_that_completed_was_asked_for() -> None:
    verdict = judged(exchanges=(ASKED,), posts=(replace(POST, outcome="failed", text=FIRST),))
    assert only(verdict, "failed")
