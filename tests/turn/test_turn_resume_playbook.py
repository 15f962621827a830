"""A turn whose provider dies: discard first, then the same request again or an honest failure."""

from typing import Any
from unittest.mock import ANY

import pytest

from tests.support.playbook import Playbook
from tests.support.turns import (
    begun,
    committed_as,
    completed,
    discarded,
    dropped,
    failed,
    opened,
    play,
    reopened,
    text,
    tool_call,
)
from worker.codecs.events import Keepalive, Usage
from worker.turn.commands import (
    CloseCall,
    DiscardCall,
    Failure,
    OpenCall,
    ReopenCall,
    Seal,
    StageText,
    Warn,
)
from worker.turn.events import Begin, Died, Heard, NotAnswered, Tick, ToolFinished
from worker.turn.facts import Progress
from worker.turn.states import State
from worker.turn.usage import NO_USAGE

WARNING = Warn("turn_call_resumed", ANY)


def again(attempt: int, spent: int | None = None, *, call: int = 1) -> OpenCall:
    return opened(call, attempt, attempt - 1 if spent is None else spent, attempt == 1, ANY)


def dead(attempt: int, reason: str, size: int = 0, totals: Any = ANY, *, call: int = 1) -> DiscardCall:
    return dropped(call, attempt, reason, size, totals)


def resumed(attempt: int, reason: str, size: int = 0, totals: Any = ANY, *, call: int = 1) -> DiscardCall:
    return dropped(call, attempt, reason, size, totals, resumes_spent=attempt)


def sealed(code: str, category: str, totals: Any = ANY) -> Seal:
    return Seal("failed", None, Failure(category, code, ANY), totals, ANY)  # type: ignore[arg-type]


def message(scene: Playbook) -> str:
    failure = scene.commands[-1].failure
    assert failure is not None
    return str(failure.message)


@pytest.mark.requirement("turn:resume:discard-then-same-request")
def test_a_stalled_call_is_discarded_and_the_same_request_is_sent_again() -> None:
    scene = play().given(Begin()).expect(again(1))
    request = scene.commands[0].request
    scene.at(5).given(text(1, 1, "The invo")).expect(StageText("The invo"))
    scene.at(50).given(Tick()).expect(CloseCall(), resumed(1, "stall", 8, discarded(1)), WARNING, again(2))
    assert scene.commands[-1].request is request
    scene.given(text(1, 2, "The invoice is paid.")).expect(ANY)
    scene.given(completed(1, 2)).expect(
        committed_as(1, 2, "The invoice is paid.", "", (), "stop", None, discarded(1)),
        Seal("completed", None, None, discarded(1)),
    )


@pytest.mark.requirement("turn:resume:budget")
def test_a_budget_of_two_permits_three_attempts_then_the_turn_fails_as_a_timeout() -> None:
    scene = begun()
    scene.at(1).given(text(1, 1, "a")).expect(ANY)
    scene.at(46).given(Tick()).expect(CloseCall(), resumed(1, "stall", 1), WARNING, again(2))
    scene.at(47).given(text(1, 2, "ab")).expect(ANY)
    scene.at(92).given(Tick()).expect(CloseCall(), resumed(2, "stall", 2), WARNING, again(3))
    scene.at(93).given(text(1, 3, "abc")).expect(ANY)
    assert scene.machine.deadline() == 693  # the last attempt has no stall detector
    scene.at(693).given(Tick()).expect(
        CloseCall(), dead(3, "inter_delta", 3, discarded(2)), sealed("inter_delta_timeout", "timeout", discarded(2))
    )
    assert "3 attempts (turns.timeout_resume_retry_budget = 2)" in message(scene)


@pytest.mark.requirement("turn:resume:off")
def test_a_budget_of_zero_fails_at_the_first_death_and_discards_all_the_same() -> None:
    scene = begun(resume_budget=0)
    scene.at(1).given(text(1, 1, "a")).expect(ANY)
    scene.at(601).given(Tick()).expect(
        CloseCall(), dead(1, "inter_delta", 1, NO_USAGE), sealed("inter_delta_timeout", "timeout", NO_USAGE)
    )


@pytest.mark.requirement("turn:resume:silent-attempt-is-discarded")
def test_an_attempt_that_died_before_its_first_word_is_discarded_too() -> None:
    scene = begun()
    scene.at(1800).given(Tick()).expect(CloseCall(), resumed(1, "prefill"), WARNING, again(2))


@pytest.mark.requirement("turn:resume:inherits-the-phase")
def test_a_call_that_died_in_prefill_gets_the_whole_prefill_budget_again() -> None:
    scene = begun().at(10).given(Died(1, 1, "reset", "reset by peer"))
    scene.take()
    assert scene.machine.deadline() == 10 + 1800
    scene.at(20).ignores(Heard(1, 2, Keepalive()))
    assert scene.machine.deadline() == 10 + 1800


@pytest.mark.requirement("turn:resume:inherits-the-phase")
def test_a_call_that_died_in_mid_stream_keeps_the_tight_budget_through_keepalives() -> None:
    scene = begun()
    scene.at(10).given(text(1, 1, "a")).expect(ANY)
    scene.at(55).given(Tick()).expect(ANY, ANY, ANY, again(2))
    scene.at(60).ignores(Heard(1, 2, Keepalive()))
    assert scene.machine.deadline() == 660
    scene.at(660).given(Tick()).expect(CloseCall(), resumed(2, "inter_delta"), WARNING, again(3))


@pytest.mark.requirement("turn:resume:deaths")
@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (Died(1, 1, "timeout", "read timed out"), "timeout"),
        (Died(1, 1, "reset", "reset by peer"), "reset"),
        (Died(1, 1, "end_of_stream", "ended"), "end_of_stream"),
        (Died(1, 1, "protocol", "not a chunk"), "protocol"),
        (failed(1, 1, "retryable"), "provider_error"),
        (failed(1, 1, "protocol", "an endless line"), "protocol"),
    ],
)
def test_every_death_of_a_stream_is_resumed(event: Any, reason: str) -> None:
    scene = begun()
    scene.given(text(1, 1, "Due ")).expect(ANY)
    scene.given(event).expect(CloseCall(), resumed(1, reason, 4), WARNING, again(2))


@pytest.mark.requirement("turn:trap-t7:end-without-a-terminal-mark")
def test_a_stream_that_ends_without_its_mark_is_no_answer() -> None:
    scene = begun(resume_budget=0)
    scene.given(text(1, 1, "Due Friday.")).expect(ANY)
    scene.given(Died(1, 1, "end_of_stream", "")).expect(
        CloseCall(), dead(1, "end_of_stream", 11), sealed("end_of_stream", "stream_failure")
    )


@pytest.mark.requirement("turn:failure:categories")
@pytest.mark.parametrize(
    ("event", "code", "category"),
    [
        (Died(1, 1, "timeout", ""), "timeout", "timeout"),
        (Died(1, 1, "reset", ""), "reset", "stream_failure"),
        (Died(1, 1, "protocol", ""), "protocol", "stream_failure"),
        (failed(1, 1, "protocol"), "protocol", "stream_failure"),
        (failed(1, 1, "retryable"), "provider_error", "provider_failure"),
    ],
)
def test_a_death_that_is_not_resumed_fails_in_its_own_category(event: Any, code: str, category: str) -> None:
    begun(resume_budget=0).given(event).expect(ANY, ANY, sealed(code, category))


@pytest.mark.requirement("turn:resume:one-death-once")
def test_a_death_that_two_notice_is_handled_once() -> None:
    scene = begun()
    scene.at(1).given(text(1, 1, "a")).expect(ANY)
    scene.at(46).given(Tick()).expect(ANY, ANY, ANY, again(2))
    scene.ignores(Died(1, 1, "reset", "closed by us"), Tick(), failed(1, 1, "retryable"))


@pytest.mark.requirement("turn:resume:late-events-dropped")
def test_late_events_of_a_dead_attempt_are_dropped_by_id() -> None:
    scene = begun()
    scene.given(text(1, 1, "a")).expect(ANY)
    scene.given(Died(1, 1, "reset", "")).expect(ANY, ANY, ANY, again(2))
    scene.ignores(text(1, 1, "b"), completed(1, 1), NotAnswered(1, 1, 500, True, "http_500", ""))
    scene.given(text(1, 2, "c")).expect(StageText("c"))
    scene.given(completed(1, 2)).expect(committed_as(1, 2, "c", "", (), "stop", None, ANY), ANY)


@pytest.mark.requirement("turn:resume:backoff")
def test_a_resume_waits_a_little_and_hears_nothing_meanwhile() -> None:
    scene = begun(resume_backoff_s=2, jitter=lambda: 1.0)
    scene.at(10).given(Died(1, 1, "reset", "")).expect(CloseCall(), resumed(1, "reset"), WARNING)
    assert (scene.machine.state, scene.machine.deadline()) == (State.WAITING, 12.5)
    scene.at(12).ignores(Tick(), text(1, 1, "late"))
    scene.at(12.5).given(Tick()).expect(again(2))


@pytest.mark.requirement("turn:resume:backoff")
def test_a_wait_that_the_provider_asked_for_in_its_error_is_honoured() -> None:
    scene = begun().given(failed(1, 1, "retryable", retry_after=30.0))
    scene.take()
    assert scene.machine.deadline() == 30


@pytest.mark.requirement("turn:resume:within-the-deadline")
def test_a_resume_that_would_come_after_the_deadline_is_not_waited_for() -> None:
    scene = begun(deadline=100)
    scene.at(80).given(failed(1, 1, "retryable", retry_after=30.0)).expect(
        CloseCall(), dead(1, "provider_error", 0, NO_USAGE), sealed("provider_error", "provider_failure", NO_USAGE)
    )
    assert "turns.turn_deadline_s" in message(scene)


@pytest.mark.requirement("turn:resume:any-call-of-the-turn")
def test_a_later_call_has_a_budget_of_its_own_and_resumes_without_running_tools_again() -> None:
    scene = begun(resume_budget=1)
    scene.given(Died(1, 1, "reset", "")).expect(ANY, ANY, ANY, again(2))
    scene.given(completed(1, 2, "tool_calls", tool_call(), usage=Usage(input_tokens=100))).expect(ANY, ANY)
    scene.given(ToolFinished(1, 0, "12:00")).expect(ANY, again(1, call=2))
    request = scene.commands[-1].request
    scene.given(text(2, 1, "No")).expect(ANY)
    scene.given(Died(2, 1, "reset", "")).expect(CloseCall(), resumed(1, "reset", 2, call=2), WARNING, again(2, call=2))
    assert scene.commands[-1].request is request
    scene.given(Died(2, 2, "reset", "")).expect(ANY, ANY, sealed("reset", "stream_failure"))


@pytest.mark.requirement("turn:usage:discarded-estimate")
@pytest.mark.requirement("turn:trap-t8:discarded-usage-on-failure")
def test_discards_are_counted_beside_the_totals_and_estimated_by_the_last_completed_call() -> None:
    scene = begun(progress=Progress(last_input_tokens=70), resume_budget=1)
    scene.given(Died(1, 1, "reset", "")).expect(ANY, resumed(1, "reset", 0, discarded(1, 70)), ANY, ANY)
    scene.given(completed(1, 2, "tool_calls", tool_call(), usage=Usage(input_tokens=100))).expect(ANY, ANY)
    scene.given(ToolFinished(1, 0, "12:00")).expect(ANY, ANY)
    scene.given(Died(2, 1, "reset", "")).expect(ANY, ANY, ANY, ANY)
    scene.given(Died(2, 2, "reset", "")).expect(ANY, ANY, ANY)
    totals = scene.commands[-1].totals
    assert totals.input_tokens == 100
    assert (totals.discarded_resume_attempts, totals.discarded_resume_estimated_input_tokens) == (2, 170)


@pytest.mark.requirement("turn:usage:discarded-estimate")
def test_a_call_that_does_not_report_its_input_leaves_the_estimate_to_the_one_before() -> None:
    scene = begun(progress=Progress(last_input_tokens=70))
    scene.given(completed(1, 1, "tool_calls", tool_call(), usage=Usage(output_tokens=5))).expect(ANY, ANY)
    scene.given(ToolFinished(1, 0, "12:00")).expect(ANY, ANY)
    scene.given(Died(2, 1, "reset", "")).expect(ANY, ANY, ANY, ANY)
    assert scene.commands[-3].totals.discarded_resume_estimated_input_tokens == 70


@pytest.mark.requirement("turn:usage:discarded-estimate")
def test_the_estimate_is_unknown_while_no_call_of_the_session_has_completed() -> None:
    begun().given(Died(1, 1, "reset", "")).expect(ANY, resumed(1, "reset", 0, discarded(1, None)), ANY, ANY)


@pytest.mark.requirement("turn:resume:warning")
def test_the_resume_warning_holds_ids_counts_and_times_and_nothing_else() -> None:
    scene = begun(progress=Progress(last_input_tokens=70), resume_backoff_s=2)
    scene.at(1).given(text(1, 1, "Grüße, secret")).expect(ANY)
    scene.at(3.25).given(failed(1, 1, "retryable", "secret prompt", code="secret")).expect(
        CloseCall(),
        ANY,
        Warn(
            "turn_call_resumed",
            (
                ("call", 1),
                ("attempt", 1),
                ("provider", "main"),
                ("resume", 1),
                ("budget", 2),
                ("reason", "provider_error"),
                ("lasted_s", 3.25),
                ("wait_s", 2.0),
                ("streamed_bytes", 15),
                ("discarded_resume_attempts", 1),
                ("discarded_resume_estimated_input_tokens", 70),
            ),
        ),
    )


# No stream at all: the transport's retries.


def refused_connection(attempt: int = 1, **more: Any) -> NotAnswered:
    return NotAnswered(1, attempt, None, True, "connect_refused", "Nothing listens at 127.0.0.1:9.", **more)


@pytest.mark.requirement("turn:transport:backoff")
def test_a_request_without_an_answer_is_sent_again_as_the_same_attempt_with_growing_waits() -> None:
    scene = begun()
    request = scene.commands[0].request
    for wait in (1, 2, 4):
        scene.given(refused_connection()).expect()
        scene.stands(State.WAITING)
        assert scene.machine.deadline() == scene.now + wait
        scene.at(scene.now + wait).given(Tick()).expect(reopened(1, 1, request))
    scene.given(refused_connection()).expect(
        CloseCall(), dead(1, "not_answered", 0, NO_USAGE), sealed("connect_refused", "provider_failure", NO_USAGE)
    )
    assert message(scene) == (
        "Nothing listens at 127.0.0.1:9. It was sent 4 times (providers.main.transport_retries = 3)."
    )


@pytest.mark.requirement("turn:transport:backoff")
def test_retries_are_counted_for_each_attempt_and_a_reopened_one_gets_its_whole_time() -> None:
    scene = begun(transport_retries=1)
    scene.given(refused_connection()).expect()
    scene.at(1).given(Tick()).expect(ANY)
    assert scene.machine.deadline() == 1 + 1800
    scene.given(Died(1, 1, "reset", "")).expect(ANY, ANY, ANY, again(2))
    scene.given(refused_connection(2)).expect()
    scene.at(2).given(Tick()).expect(reopened(1, 2, ANY))
    scene.given(text(1, 2, "Yes.")).expect(ANY)
    scene.given(completed(1, 2)).expect(ANY, Seal("completed", None, None, ANY))


@pytest.mark.requirement("turn:transport:retry-after")
def test_retry_after_is_honoured_when_it_is_longer() -> None:
    scene = begun()
    scene.given(NotAnswered(1, 1, 429, True, "http_429", "Busy.", retry_after=60)).expect()
    assert scene.machine.deadline() == 60


@pytest.mark.requirement("turn:transport:within-the-deadline")
def test_a_retry_that_would_come_after_the_deadline_is_not_waited_for() -> None:
    scene = begun(deadline=50)
    scene.given(NotAnswered(1, 1, 429, True, "http_429", "Busy.", retry_after=60)).expect(
        CloseCall(), ANY, sealed("http_429", "provider_failure")
    )
    assert message(scene) == "Busy. The next try would come in 60 s, after the turn's deadline (turns.turn_deadline_s)."


@pytest.mark.requirement("turn:transport:refused")
def test_an_answer_that_no_retry_changes_fails_at_once_in_the_words_of_its_reader() -> None:
    scene = begun()
    scene.given(NotAnswered(1, 1, 401, False, "http_401", "The key was refused (providers.main.api_key).")).expect(
        CloseCall(), dead(1, "refused"), sealed("http_401", "provider_failure")
    )
    assert message(scene) == "The key was refused (providers.main.api_key)."


def test_without_a_backoff_the_request_is_sent_again_at_once() -> None:
    begun(transport_backoff_s=0).given(refused_connection()).expect(reopened(1, 1, ANY))


def test_the_deadline_in_a_wait_discards_the_attempt_that_is_still_open() -> None:
    scene = begun(deadline=50)
    scene.at(49.5).given(NotAnswered(1, 1, 503, True, "http_503", "Busy.")).expect(ANY, ANY, ANY)
    scene = begun(deadline=50, transport_backoff_s=10)
    scene.at(30).given(NotAnswered(1, 1, 503, True, "http_503", "Busy.")).expect()
    scene.at(60).given(Tick()).expect(CloseCall(), dead(1, "turn_deadline"), sealed("turn_deadline", "timeout"))


@pytest.mark.requirement("turn:trap-t6:bounded-requests")
def test_resumes_and_retries_together_are_bounded() -> None:
    """Each of the three attempts may be sent four times; then the turn is over."""
    scene = begun(deadline=1_000_000)
    sent = 1
    while scene.machine.state is not State.SEALED:
        attempt = max(command.attempt for command in scene.commands if isinstance(command, OpenCall))
        retries = sum(isinstance(command, ReopenCall) and command.attempt == attempt for command in scene.commands)
        scene.given(refused_connection(attempt) if retries < 3 else Died(1, attempt, "reset", ""))
        scene.take()
        if scene.machine.state is State.WAITING:
            deadline = scene.machine.deadline()
            assert deadline is not None
            scene.at(deadline).given(Tick())
            scene.take()
        sent = sum(isinstance(command, OpenCall | ReopenCall) for command in scene.commands)
        assert sent <= 12
    assert sent == 12
