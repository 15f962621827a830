"""The script of a run and its plan of strikes: functions of the seed, whose words tell whose they are."""

import re
from collections import Counter

import pytest

from channels.rehearsal.cues import Cue
from channels.rehearsal.steps import Call, CallTool, Say
from channels.rehearsal.wire import Question, RequestRefused
from ops.chaos_run.story import TOOLS, WIRES, Story, plan_of
from ops.chaos_run.strikes import plan_strikes

MESSAGES = range(60)
ATTEMPTS = 4


def asked(story: Story, message: int, answers: int) -> Cue:
    return story.next(Question("stand-in", "An earlier message.", 5, plan_of(1, message).prompt, answers))


def text_of(call: Call) -> str:
    return "".join("".join(step.pieces) for step in call.steps if isinstance(step, Say) and not step.is_reasoning)


def told(seed: int = 1) -> dict[tuple[int, int, int], Call]:
    """The first attempts of every call of every message, by (message, call, attempt)."""
    story = Story(seed)
    return {
        (message, call, attempt): asked(story, message, call - 1).call
        for message in MESSAGES
        for call in range(1, len(plan_of(seed, message).tools) + 1)
        for attempt in range(1, ATTEMPTS + 1)
    }


@pytest.mark.requirement("chaos:story:own-words")
def test_each_attempt_has_words_of_its_own_that_say_whose_they_are() -> None:
    calls = told()
    for (message, call, attempt), answer in calls.items():
        marks = re.findall(r"⟨(\d+\.\d+\.\d+)\.\d+⟩", text_of(answer))
        assert set(marks) <= {f"{message}.{call}.{attempt}"}
        assert len(text_of(answer).split()) - len(marks) <= 1, "an answer may break off in mid-word"
    whole = Counter(text_of(answer) for answer in calls.values() if text_of(answer))
    assert set(whole.values()) == {1}


@pytest.mark.requirement("chaos:story:own-words")
def test_the_same_seed_tells_the_same_and_another_one_something_else() -> None:
    assert told() == told()
    assert told() != told(2)


@pytest.mark.requirement("chaos:story:own-words")
def test_from_the_third_attempt_on_a_call_is_answered_whole() -> None:
    kinds = {type(step) for (_, _, attempt), call in told().items() if attempt > 2 for step in call.steps}
    assert {kind.__name__ for kind in kinds} == {"Pause", "Say", "CallTool"}
    assert all(call.page is None for (_, _, attempt), call in told().items() if attempt > 2)


@pytest.mark.requirement("chaos:story:own-words")
def test_every_kind_of_step_wire_and_tool_comes_up() -> None:
    calls = told().values()
    steps = {type(step).__name__ for call in calls for step in call.steps}
    assert steps >= {"Say", "CallTool", "Stall", "KeepAlive", "Reset", "Cut", "Truncate", "SendError", "Done", "Finish"}
    assert {call.page.status for call in calls if call.page} == {429, 503}
    assert {step.name for call in calls for step in call.steps if isinstance(step, CallTool)} == set(TOOLS)
    assert {plan_of(1, message).wire for message in MESSAGES} == set(WIRES)
    assert max(Counter(plan_of(1, message).session for message in MESSAGES).values()) == 3


@pytest.mark.requirement("chaos:story:own-words")
def test_a_call_that_only_the_last_one_follows_asks_for_tools_and_the_last_one_does_not() -> None:
    for (message, number, attempt), call in told().items():
        if attempt > 2:
            names = tuple(step.name for step in call.steps if isinstance(step, CallTool))
            assert names == plan_of(1, message).tools[number - 1]


@pytest.mark.requirement("chaos:story:own-words")
def test_a_question_that_the_story_does_not_know_is_refused() -> None:
    with pytest.raises(RequestRefused, match="none of this run"):
        Story(1).next(Question("stand-in", "", 0, "What time is it?"))
    with pytest.raises(RequestRefused, match="is answered in"):
        asked(Story(1), 3, 9)


@pytest.mark.requirement("chaos:strikes:plan")
def test_a_plan_holds_all_kills_and_a_third_as_many_freezes_spread_over_the_run() -> None:
    plan = plan_strikes(1, 300, 40)
    assert plan == plan_strikes(1, 300, 40)
    assert plan != plan_strikes(2, 300, 40)
    kinds = Counter(strike.kind for strike in plan)
    assert kinds == {"kill": 40, "freeze": 13, "drain": 4}
    targets = ("stream", "commit", "tool", "delivery", "store")
    assert {(strike.kind, strike.target) for strike in plan if strike.kind != "drain"} == {
        ("kill", "web"),
        *((kind, target) for kind in ("kill", "freeze") for target in targets),
    }
    assert {strike.is_long for strike in plan if strike.kind == "freeze"} == {True, False}
    times = [strike.before for strike in plan]
    assert times == sorted(times)
    assert (times[0] < 30, times[-1] > 270, times[-1] < 300) == (True, True, True)


@pytest.mark.requirement("chaos:strikes:plan")
@pytest.mark.parametrize(("messages", "kills", "strikes"), [(12, 0, 0), (1, 1, 2), (2, 7, 9)])
def test_a_plan_may_be_small(messages: int, kills: int, strikes: int) -> None:
    assert len(plan_strikes(1, messages, kills)) == strikes
