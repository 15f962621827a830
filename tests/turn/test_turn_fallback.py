"""A turn that may ask more than one provider."""

from dataclasses import replace
from typing import Any
from unittest.mock import ANY

import pytest

from tests.support.playbook import Playbook
from tests.support.turns import (
    BACKUP,
    MAIN,
    completed,
    dropped,
    failed,
    machine,
    opened,
    play,
    reopened,
    text,
    tool_call,
)
from worker.codecs.events import Completed
from worker.codecs.messages import AssistantMessage, Echo, UserMessage
from worker.turn.asking import whom_to_ask
from worker.turn.commands import DiscardCall, Failure, Seal
from worker.turn.events import Begin, Died, Heard, NotAnswered, Tick, ToolFinished
from worker.turn.facts import Progress
from worker.turn.resume import is_the_providers
from worker.turn.states import State

TWO = (MAIN, BACKUP)


def begun(**changes: Any) -> Playbook:
    scene = play(providers=TWO, **changes).given(Begin())
    scene.take()
    return scene


def busy(attempt: int) -> NotAnswered:
    return NotAnswered(1, attempt, 503, True, "overloaded", "Busy.")


@pytest.mark.requirement("turn:trap-t15:other-provider")
def test_the_first_attempt_goes_to_the_agents_provider_and_a_resume_to_its_fallback() -> None:
    scene = play(providers=TWO)
    scene.given(Begin()).expect(opened(1, 1, 0, is_new_call=True, provider="main"))
    scene.given(text(1, 1, "The tide is hig")).expect(ANY)
    scene.at(45).given(Tick()).expect(ANY, ANY, ANY, opened(1, 2, 1, is_new_call=False, provider="backup"))
    assert scene.commands[-1].request.model == "other"
    scene.given(text(1, 2, "The tide is low.")).expect(ANY)
    scene.given(completed(1, 2)).expect(ANY, Seal("completed", None, None, ANY))


@pytest.mark.requirement("turn:trap-t15:other-provider")
def test_a_fallback_that_dies_too_gives_back_to_the_first() -> None:
    scene = begun()
    scene.given(Died(1, 1, "reset", "")).expect(ANY, ANY, ANY, opened(1, 2, 1, is_new_call=False, provider="backup"))
    scene.given(Died(1, 2, "reset", "")).expect(
        ANY,
        dropped(1, 2, "reset", 0, ANY, resumes_spent=2, provider="backup"),
        ANY,
        opened(1, 3, 2, is_new_call=False, provider="main"),
    )


@pytest.mark.requirement("turn:trap-t15:jitter")
def test_the_wait_before_the_other_provider_is_spread_by_chance() -> None:
    for chance, wait in ((0.0, 0.75), (1.0, 1.25)):
        turn = machine(providers=TWO, resume_backoff_s=1, jitter=lambda: chance)  # noqa: B023 - used at once
        turn.handle(Begin(), 0)
        turn.handle(Died(1, 1, "reset", ""), 0)
        assert (turn.state, turn.deadline()) == (State.WAITING, wait)


@pytest.mark.requirement("turn:fallback:keeps-to-who-answered")
def test_the_next_call_goes_on_with_the_provider_that_answered() -> None:
    scene = begun()
    scene.given(Died(1, 1, "reset", "")).take()
    scene.given(completed(1, 2, "tool_calls", tool_call())).expect(ANY, ANY)
    scene.given(ToolFinished(1, 0, "12:00")).expect(ANY, opened(2, 1, 0, is_new_call=True, provider="backup"))


@pytest.mark.requirement("turn:fallback:unreachable")
def test_a_provider_that_gives_no_answer_is_left_for_the_fallback_once_its_retries_are_spent() -> None:
    scene = begun(transport_retries=1)
    scene.given(busy(1)).expect()
    scene.at(1).given(Tick()).expect(reopened(1, 1))
    scene.given(busy(1)).expect(
        ANY,
        dropped(1, 1, "not_answered", 0, ANY, resumes_spent=1),
        ANY,
        opened(1, 2, 1, is_new_call=False, provider="backup"),
    )


@pytest.mark.requirement("turn:fallback:unreachable")
def test_without_a_budget_for_resumes_no_other_provider_is_asked() -> None:
    scene = begun(transport_retries=0, resume_budget=0)
    failure = Failure("provider_failure", "overloaded", ANY)
    scene.given(busy(1)).expect(ANY, ANY, Seal("failed", None, failure, ANY))


@pytest.mark.requirement("turn:fallback:refused")
def test_a_request_that_is_refused_is_not_sent_to_anybody_else() -> None:
    scene = begun()
    refused = NotAnswered(1, 1, 401, False, "unauthorized", "No.")
    scene.given(refused).expect(ANY, ANY, Seal("failed", None, Failure("provider_failure", "unauthorized", "No."), ANY))


@pytest.mark.requirement("turn:fallback:begins-anew")
def test_the_other_provider_gets_its_own_whole_prefill_budget_whatever_the_dead_one_had_streamed() -> None:
    other = replace(BACKUP, watchdog=replace(BACKUP.watchdog, prefill_s=900))
    scene = play(providers=(MAIN, other)).given(Begin())
    scene.take()
    scene.given(text(1, 1, "The")).take()
    scene.given(Died(1, 1, "reset", "")).take()
    assert scene.machine.deadline() == 900
    alone = play().given(Begin())
    alone.take()
    alone.given(text(1, 1, "The")).take()
    alone.given(Died(1, 1, "reset", "")).take()
    assert alone.machine.deadline() == 600


@pytest.mark.requirement("turn:fallback:skipped")
def test_a_provider_that_is_left_alone_is_not_asked_unless_nobody_else_is_left() -> None:
    play(providers=TWO, skipped={"main"}).given(Begin()).expect(opened(1, 1, 0, is_new_call=True, provider="backup"))
    play(skipped={"main"}).given(Begin()).expect(opened(1, 1, 0, is_new_call=True, provider="main"))
    play(providers=TWO, skipped={"main", "backup"}).given(Begin()).expect(opened(1, 1, 0, is_new_call=True))


@pytest.mark.requirement("turn:fallback:skipped")
def test_whom_to_ask() -> None:
    three = (MAIN, BACKUP, replace(MAIN, name="last"))

    def asked(*skipped: str, **more: str) -> str:
        return whom_to_ask(three, skipped, **more).name

    assert asked() == "main"
    assert asked(preferred="last") == "last"
    assert asked("last", preferred="last") == "main"
    assert asked(died="main") == "backup"
    assert asked("backup", died="main") == "last"
    assert asked(died="last") == "main"
    assert asked("backup", "last", died="main") == "main"
    assert asked("main", "backup", "last", died="main") == "backup"
    assert asked(preferred="gone", died="") == "main"


@pytest.mark.requirement("turn:echo:only-to-its-provider")
def test_what_a_provider_wants_back_goes_to_nobody_else() -> None:
    items: tuple[dict[str, object], ...] = ({"type": "thinking", "signature": "x"},)
    said = Completed("tool_calls", (tool_call(),), None, echo=items)
    scene = begun()
    scene.given(Heard(1, 1, said)).expect(ANY, ANY)
    scene.given(ToolFinished(1, 0, "12:00")).expect(ANY, opened(2, 1, 0, is_new_call=True))
    assert scene.commands[-1].request.messages[1] == AssistantMessage("", (tool_call(),), Echo("main", "chat", items))
    scene.given(Died(2, 1, "reset", "")).expect(ANY, ANY, ANY, opened(2, 2, 1, is_new_call=False, provider="backup"))
    assert scene.commands[-1].request.messages[1] == AssistantMessage("", (tool_call(),))


@pytest.mark.requirement("turn:fallback:refused")
def test_a_refused_request_is_no_death_of_the_provider() -> None:
    scene = begun()
    scene.given(NotAnswered(1, 1, 400, False, "refused", "No.")).expect(ANY, dropped(1, 1, "refused", 0, ANY), ANY)
    assert not is_the_providers("refused")
    assert is_the_providers("not_answered")


@pytest.mark.requirement("turn:fallback:unreachable")
@pytest.mark.parametrize("retry_after", [900.0, 8000.0])
def test_a_provider_that_asks_to_stay_away_for_long_is_left_for_the_fallback_at_once(retry_after: float) -> None:
    scene = begun()
    scene.given(NotAnswered(1, 1, 429, True, "rate_limited", "Slow down.", retry_after)).expect(
        ANY,
        dropped(1, 1, "not_answered", 0, ANY, resumes_spent=1),
        ANY,
        opened(1, 2, 1, is_new_call=False, provider="backup"),
    )
    busy = begun()
    busy.given(failed(1, 1, "retryable", retry_after=retry_after)).expect(
        ANY, ANY, ANY, opened(1, 2, 1, is_new_call=False, provider="backup")
    )


@pytest.mark.requirement("turn:fallback:unreachable")
def test_nobody_else_is_asked_once_no_resume_is_left() -> None:
    scene = begun(resume_budget=0)
    scene.given(NotAnswered(1, 1, 429, True, "rate_limited", "Slow down.", 900)).expect()
    assert scene.machine.deadline() == 900


@pytest.mark.requirement("turn:fallback:takeover")
def test_another_driver_asks_whom_its_predecessor_would_have_asked() -> None:
    asked = Progress(call=1, attempt=2, calls=1, resumes_spent=1, is_open=True, streamed=True, provider="backup")
    scene = play(providers=TWO, progress=asked)
    scene.given(Begin()).expect(
        DiscardCall(1, 2, "takeover", 0, ANY, streamed=True),
        opened(1, 3, 1, is_new_call=False, provider="backup"),
    )
    assert scene.machine.deadline() == 600, "it goes on where content had come"
    died = Progress(call=1, attempt=1, calls=1, resumes_spent=1, streamed=True, provider="main", died="main")
    other = play(providers=TWO, progress=died)
    other.given(Begin()).expect(ANY, opened(1, 2, 1, is_new_call=False, provider="backup"))
    assert other.machine.deadline() == 1800, "which is another provider, and begins anew"


@pytest.mark.requirement("turn:paused:goes-on")
def test_an_empty_answer_that_only_its_provider_can_go_on_from_is_not_shown_to_another() -> None:
    scene = begun()
    paused = Completed("pause_turn", (), None, echo=({"type": "server_tool_use"},))
    scene.given(Heard(1, 1, paused)).take()
    scene.given(Died(2, 1, "reset", "")).expect(ANY, ANY, ANY, opened(2, 2, 1, is_new_call=False, provider="backup"))
    assert scene.commands[-1].request.messages == (UserMessage("What is due?"),)


@pytest.mark.requirement("turn:fallback:unreachable")
def test_where_all_have_asked_to_stay_away_the_next_one_is_waited_for() -> None:
    scene = begun()
    scene.given(NotAnswered(1, 1, 429, True, "rate_limited", "Slow down.", 900)).take()
    scene.at(10).given(NotAnswered(1, 2, 429, True, "rate_limited", "Slow down.", 300)).take()
    assert (scene.machine.state, scene.machine.deadline()) == (State.WAITING, 900)
    scene.at(900).given(Tick()).expect(opened(1, 3, 2, is_new_call=False, provider="main"))


@pytest.mark.requirement("turn:fallback:begins-anew")
def test_what_an_attempt_inherits_is_stored_with_it() -> None:
    scene = begun()
    scene.given(text(1, 1, "The")).take()
    assert not scene.given(Died(1, 1, "reset", "")).take()[-1].streamed, "another provider begins anew"
    alone = play().given(Begin())
    alone.take()
    alone.given(text(1, 1, "The")).take()
    assert alone.given(Died(1, 1, "reset", "")).take()[-1].streamed
