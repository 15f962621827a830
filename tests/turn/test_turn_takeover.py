"""A driver vanished: another one goes on from the journal."""

from typing import Any
from unittest.mock import ANY

import pytest

from tests.support.playbook import Playbook
from tests.support.stored_turn import StoredTurn
from tests.support.turns import BROKEN_CALL, completed, discarded, machine, opened, play, text, tool_call
from worker.codecs.events import Usage
from worker.codecs.messages import AssistantMessage, ToolMessage, UserMessage
from worker.output.buffer import CommitBuffer
from worker.output.events import CallCompletedOutput, TextDeltaOutput, TextStreamDiscardedOutput
from worker.output.filters import OutputFilter, admits
from worker.turn.commands import Command, DiscardCall, Failure, HandOff, OpenCall, RecordToolResult, RunTools, Seal
from worker.turn.events import Begin, Died, Drain, Event, ToolFinished
from worker.turn.facts import Committed, Fact, Progress, ToolEnded, ToolStarted
from worker.turn.machine import TurnMachine
from worker.turn.transcript import NEVER_RUN, with_turn
from worker.turn.usage import NO_USAGE
from worker.turn.verdict import OUTCOME_UNKNOWN

CLOCK_CALL = tool_call("clock", id="t1")
MAIL_CALL = tool_call("mail", id="t2")


def taken_over(*facts: Fact, call: int = 1, attempt: int = 1, is_open: bool = False, **more: Any) -> Playbook:
    """A scene in which a driver came before. `more`: fields of the progress, then of the machine."""
    in_progress = {name: more.pop(name) for name in list(more) if hasattr(Progress(), name)}
    progress = Progress(call=call, attempt=attempt, is_open=is_open, **({"calls": call} | in_progress))
    return play(facts=facts, progress=progress, **more)


def committed(call: int, text: str, *tool_calls: Any, finish_reason: str = "stop") -> Committed:
    return Committed(call, 1, text, tool_calls, finish_reason, None)


def taken(call: int = 1, attempt: int = 1, totals: Any = NO_USAGE) -> DiscardCall:
    return DiscardCall(call, attempt, "takeover", 0, totals)


@pytest.mark.requirement("turn:takeover:discards-first")
def test_an_attempt_that_was_open_is_discarded_and_followed_by_the_next_one() -> None:
    scene = taken_over(attempt=2, is_open=True, resumes_spent=1, last_input_tokens=70)
    scene.given(Begin()).expect(taken(1, 2, discarded(1, 70)), opened(1, 3, 1, is_new_call=False, request=ANY))


@pytest.mark.requirement("turn:takeover:discards-first")
def test_an_attempt_that_is_not_known_to_be_open_is_discarded_all_the_same() -> None:
    scene = taken_over(attempt=1, is_open=False)
    scene.given(Begin()).expect(taken(), opened(1, 2, 0, is_new_call=False, request=ANY))


@pytest.mark.requirement("turn:takeover:discards-first")
def test_where_nobody_had_opened_a_call_there_is_nothing_to_discard() -> None:
    play(progress=Progress(crashes=1)).given(Begin()).expect(opened(1, 1, 0, is_new_call=True, request=ANY))


@pytest.mark.requirement("turn:takeover:spent-budget-stays-spent")
def test_spent_resumes_stay_spent() -> None:
    scene = taken_over(attempt=3, is_open=True, resumes_spent=2)
    scene.given(Begin()).expect(ANY, opened(1, 4, 2, is_new_call=False, request=ANY))
    scene.at(1).given(text(1, 4, "Due ")).expect(ANY)
    assert scene.machine.deadline() == 601  # no resume is left, so no stall detector
    scene.given(Died(1, 4, "reset", "")).expect(
        ANY, ANY, Seal("failed", None, Failure("stream_failure", "reset", ANY), discarded(1), True)
    )


@pytest.mark.requirement("turn:takeover:spent-budget-stays-spent")
@pytest.mark.parametrize("budget", [0, 1, 2])
def test_a_resume_that_was_decided_on_stays_spent_through_every_hand_off_in_its_wait(budget: int) -> None:
    stored, deaths = StoredTurn(), 0
    for process in range(9):
        driver = machine(
            facts=tuple(stored.facts), progress=stored.progress, resume_budget=budget, resume_backoff_s=5, crash_cap=0
        )
        events: list[Event] = [Begin()]
        while events and stored.seal is None:
            for command in driver.handle(events.pop(0), process):
                stored.perform(command)
                if isinstance(command, OpenCall):
                    events += [text(1, command.attempt, "Due "), Died(1, command.attempt, "reset", ""), Drain()]
                    deaths += 1
        if stored.seal is not None:
            break
    assert deaths == 1 + budget
    assert stored.seal == Seal("failed", None, Failure("stream_failure", "reset", ANY), ANY, budget > 0)


@pytest.mark.requirement("turn:takeover:goes-on-from-the-last-commit")
def test_text_that_was_committed_is_in_the_next_request_and_is_not_asked_for_again() -> None:
    scene = taken_over(
        committed(1, "Let me look.", CLOCK_CALL),
        ToolStarted(1, 0),
        ToolEnded(1, 0, "12:00", None),
        call=2,
        is_open=True,
    )
    scene.given(Begin()).expect(taken(2, 1, discarded(1)), opened(2, 2, 0, is_new_call=False, request=ANY))
    assert scene.commands[-1].request.messages == (
        UserMessage("What is due?"),
        AssistantMessage("Let me look.", (CLOCK_CALL,)),
        ToolMessage("t1", "clock", "12:00"),
    )


@pytest.mark.requirement("turn:takeover:tools-run-once")
def test_a_tool_that_ended_never_runs_again_and_one_that_had_not_started_runs() -> None:
    scene = taken_over(committed(1, "", CLOCK_CALL, MAIL_CALL), ToolStarted(1, 0), ToolEnded(1, 0, "12:00", None))
    scene.given(Begin()).expect(taken(), RunTools(1, ((1, MAIL_CALL),), 1))
    scene.given(ToolFinished(1, 1, "sent")).expect(ANY, opened(2, 1, 0, is_new_call=True, request=ANY))
    assert [message.text for message in scene.commands[-1].request.messages[2:]] == ["12:00", "sent"]


@pytest.mark.requirement("turn:takeover:outcome-unknown")
def test_a_tool_that_was_running_runs_again_only_if_that_is_safe() -> None:
    scene = taken_over(
        committed(1, "", CLOCK_CALL, MAIL_CALL), ToolStarted(1, 0), ToolStarted(1, 1), retry_safe=frozenset({"clock"})
    )
    scene.given(Begin()).expect(
        taken(), RecordToolResult(1, 1, MAIL_CALL, ANY, "outcome_unknown", 1), RunTools(1, ((0, CLOCK_CALL),), 1)
    )
    assert "its outcome is unknown" in scene.commands[1].result


@pytest.mark.requirement("turn:takeover:outcome-unknown")
def test_where_no_tool_is_left_to_run_the_next_call_follows_at_once() -> None:
    scene = taken_over(committed(1, "", MAIL_CALL), ToolStarted(1, 0))
    scene.given(Begin()).expect(taken(), ANY, opened(2, 1, 0, is_new_call=True, request=ANY))


def test_arguments_that_are_broken_are_answered_by_whoever_comes_to_it() -> None:
    scene = taken_over(committed(1, "", BROKEN_CALL))
    scene.given(Begin()).expect(taken(), RecordToolResult(1, 0, BROKEN_CALL, ANY, "bad_arguments", 1), ANY)


@pytest.mark.requirement("turn:takeover:final-commit")
@pytest.mark.parametrize(
    ("last", "seal"),
    [
        (committed(1, "Due Friday."), Seal("completed", None, None, NO_USAGE)),
        (committed(1, "Due Fri", finish_reason="length"), Seal("incomplete", "length", None, NO_USAGE)),
        (committed(1, "", finish_reason="content_filter"), Seal("incomplete", "content_filter", None, NO_USAGE)),
        (committed(1, "", finish_reason="refusal"), Seal("incomplete", "refusal", None, NO_USAGE)),
        (committed(1, ""), Seal("failed", None, Failure("provider_failure", "empty_answer", ANY), NO_USAGE)),
    ],
)
def test_a_final_commit_is_sealed_as_its_own_driver_would_have(last: Committed, seal: Seal) -> None:
    taken_over(last, empty_nudges=0).given(Begin()).expect(taken(), seal)


@pytest.mark.requirement("turn:takeover:final-commit")
def test_a_tool_call_that_nobody_offered_fails_after_a_takeover_too() -> None:
    scene = taken_over(committed(1, "", CLOCK_CALL), tools=())
    scene.given(Begin()).expect(
        taken(), Seal("failed", None, Failure("provider_failure", "unknown_tool", ANY), NO_USAGE)
    )


@pytest.mark.requirement("turn:takeover:crash-cap")
def test_a_turn_that_took_down_too_many_drivers_is_given_up_as_dead() -> None:
    dead = Seal("dead", None, Failure("internal", "crash_cap", ANY), ANY, ANY)
    taken_over(is_open=True, suspect_crashes=4).given(Begin()).expect(taken(1, 1, discarded(1)), dead)
    play(progress=Progress(crashes=9, suspect_crashes=4)).given(Begin()).expect(dead)
    taken_over(is_open=True, crashes=9, suspect_crashes=3).given(Begin()).expect(
        ANY, opened(1, 2, 0, is_new_call=False, request=ANY)
    )


@pytest.mark.requirement("turn:deadline")
def test_a_turn_taken_over_after_its_deadline_is_discarded_and_failed() -> None:
    scene = taken_over(is_open=True, deadline=-1)
    scene.given(Begin()).expect(taken(1, 1, discarded(1)), Seal("failed", None, ANY, discarded(1), True))


@pytest.mark.requirement("turn:deadline")
def test_after_the_deadline_a_takeover_starts_no_tool() -> None:
    late = Seal("failed", None, Failure("timeout", "turn_deadline", ANY), NO_USAGE)
    taken_over(committed(1, "", CLOCK_CALL), deadline=-1).given(Begin()).expect(taken(), late)
    begun = (ToolStarted(1, 0), ToolEnded(1, 0, "12:00", None))
    taken_over(committed(1, "", CLOCK_CALL, MAIL_CALL), *begun, deadline=-1).given(Begin()).expect(taken(), late)


@pytest.mark.requirement("turn:deadline")
def test_an_answer_that_was_whole_before_the_deadline_is_sealed_as_completed_after_it() -> None:
    scene = taken_over(committed(1, "Due Friday."), deadline=-1)
    scene.given(Begin()).expect(taken(), Seal("completed", None, None, NO_USAGE))


@pytest.mark.requirement("turn:takeover:cap-on-calls")
def test_calls_made_before_count_against_the_cap_and_a_call_opened_before_is_not_a_new_one() -> None:
    scene = taken_over(committed(1, "", BROKEN_CALL), max_calls=1)
    scene.given(Begin()).expect(taken(), ANY, Seal("failed", None, Failure("provider_failure", "max_calls", ANY), ANY))
    scene = taken_over(is_open=True, max_calls=1)
    scene.given(Begin()).expect(ANY, opened(1, 2, 0, is_new_call=False, request=ANY))


# A whole turn, with the driver killed after every single command.


class Killed(Exception):
    """The driver is gone."""


class Rehearsal:
    """A turn of two calls, two tools and one death, driven against what a store keeps.

    The provider's words depend on the call alone. Attempt 1 of call 2 dies in mid-stream. `lives`: how many steps each
    driver has before it is killed; the last one lives on.
    """

    def __init__(self, lives: list[int], retry_safe: frozenset[str]) -> None:
        self.stored = StoredTurn()
        self.effects: list[int] = []
        """Indices of the tools whose effect took place."""
        self._lives = lives
        self._steps_left: int | None = None
        self._retry_safe = retry_safe

    def run(self) -> StoredTurn:
        while self.stored.seal is None:
            self._steps_left = self._lives.pop(0) if self._lives else None
            driver = machine(
                facts=tuple(self.stored.facts),
                progress=self.stored.progress,
                retry_safe=self._retry_safe,
                crash_cap=20,
            )
            try:
                self._drive(driver)
            except Killed:
                self.stored.lose_driver()
        return self.stored

    def _drive(self, driver: TurnMachine) -> None:
        events: list[Event] = [Begin()]
        while events:
            for command in driver.handle(events.pop(0), 0):
                self._step()
                events += self._perform(command)

    def _perform(self, command: Command) -> list[Event]:
        self.stored.perform(command)
        if isinstance(command, OpenCall):
            return self._answer(command.call, command.attempt)
        if not isinstance(command, RunTools):
            return []
        finished: list[Event] = []
        for index, _ in command.tool_calls:
            self.stored.start_tool(command, index)
            self._step()
            self.effects.append(index)
            self._step()
            finished.append(ToolFinished(command.call, index, f"result {index}"))
        return finished

    @staticmethod
    def _answer(call: int, attempt: int) -> list[Event]:
        if call == 1:
            calls = (CLOCK_CALL, BROKEN_CALL, MAIL_CALL)
            return [text(1, attempt, "Let me "), text(1, attempt, "look. "), completed(1, attempt, "stop", *calls)]
        if attempt == 1:
            return [text(2, 1, "The invo"), Died(2, 1, "reset", "")]
        return [text(2, attempt, "Due "), text(2, attempt, "Friday."), completed(2, attempt, usage=Usage(9))]

    def _step(self) -> None:
        if self._steps_left is not None:
            if self._steps_left == 0:
                raise Killed
            self._steps_left -= 1


SAFE = frozenset({"clock", "mail"})
UNHURT = Rehearsal([], SAFE).run()
MOST_STEPS = 40


def test_the_rehearsal_that_nobody_disturbs_ends_as_it_should() -> None:
    assert UNHURT.text == "Let me look. Due Friday."
    assert UNHURT.seal == Seal("completed", None, None, ANY)
    steps = Rehearsal([MOST_STEPS], SAFE)
    steps.run()
    assert not steps.stored.progress.crashes, "MOST_STEPS covers the whole turn"


@pytest.mark.requirement("turn:takeover:any-moment")
@pytest.mark.parametrize("steps", range(MOST_STEPS))
def test_killed_at_any_moment_the_turn_ends_with_the_same_text_and_each_tool_ran_once(steps: int) -> None:
    rehearsal = Rehearsal([steps], frozenset())
    stored = rehearsal.run()
    assert stored.text == UNHURT.text
    assert stored.seal == Seal("completed", None, None, ANY)
    assert sorted(rehearsal.effects) == sorted(set(rehearsal.effects)), "no tool ran twice"
    unknown = [fact.index for fact in stored.facts if isinstance(fact, ToolEnded) and fact.failure == "outcome_unknown"]
    assert {*rehearsal.effects, *unknown} == {0, 2}
    for wanted in (OutputFilter.TEXT, OutputFilter.TEXT_STREAMING):
        reader = CommitBuffer()
        for output in stored.outputs:
            if admits(wanted, output):
                reader.apply(output)
        assert reader.committed == UNHURT.text


@pytest.mark.requirement("turn:takeover:any-moment")
@pytest.mark.parametrize("first", range(0, MOST_STEPS, 3))
def test_killed_again_and_again_the_turn_still_ends_with_the_same_text(first: int) -> None:
    for second in range(MOST_STEPS):
        rehearsal = Rehearsal([first, second, 3], SAFE)
        stored = rehearsal.run()
        assert stored.text == UNHURT.text
        assert set(rehearsal.effects) == {0, 2}


@pytest.mark.requirement("turn:trap-t16:takeover-and-late-outputs")
@pytest.mark.parametrize("steps", range(MOST_STEPS))
def test_what_a_lost_driver_says_behind_its_discard_is_dropped_wherever_it_comes(steps: int) -> None:
    """A delta of each attempt that was discarded, or has completed, behind every later output of the turn."""
    outputs = Rehearsal([steps], frozenset()).run().outputs
    reader, over, late = CommitBuffer(), list[tuple[int, int]](), 0
    for at, output in enumerate(outputs, 1):
        reader.apply(output.model_copy(update={"seq": 100 * at}))
        if isinstance(output, TextStreamDiscardedOutput | CallCompletedOutput):
            over.append((output.call, output.attempt))
        for number, (call, attempt) in enumerate(over, 1):
            staged = reader.staged
            late += not reader.sealed
            delta = TextDeltaOutput(text="too late", call=call, attempt=attempt, seq=100 * at + number)
            assert not reader.apply(delta)
            assert reader.staged == staged
    assert reader.committed == UNHURT.text
    assert reader.stale >= late > 0


@pytest.mark.requirement("turn:takeover:every-attempt-ends")
@pytest.mark.parametrize("steps", range(MOST_STEPS))
def test_killed_at_any_moment_readers_learn_of_every_attempt_that_did_not_complete(steps: int) -> None:
    stored = Rehearsal([steps], SAFE).run()
    streamed = {(output.call, output.attempt) for output in stored.outputs if output.attempt}
    ended = {
        (output.call, output.attempt)
        for output in stored.outputs
        if type(output).__name__ in ("CallCompletedOutput", "TextStreamDiscardedOutput")
    }
    assert streamed == ended


@pytest.mark.requirement("turn:drain:handoff")
def test_a_turn_that_was_handed_off_goes_on_in_another_process_with_its_budget_unspent() -> None:
    stored = StoredTurn()
    leaving = machine()
    ordered = [command for event in (Begin(), text(1, 1, "Due "), Drain()) for command in leaving.handle(event, 0)]
    for command in ordered:
        stored.perform(command)
    assert ordered[-1] == HandOff()
    taking = machine(progress=stored.progress, facts=tuple(stored.facts))
    assert taking.handle(Begin(), 0) == (
        DiscardCall(1, 1, "takeover", 0, discarded(1), streamed=True),  # the hand-off was counted, the repeat is not
        opened(1, 2, 0, is_new_call=False, request=ANY),
    )


@pytest.mark.requirement("turn:takeover:final-commit")
def test_a_whole_answer_ends_the_turn_however_many_drivers_it_took() -> None:
    scene = taken_over(committed(1, "Due Friday."), suspect_crashes=9)
    scene.given(Begin()).expect(taken(), Seal("completed", None, None, NO_USAGE))


@pytest.mark.requirement("turn:drain:handoff")
def test_a_drain_before_the_beginning_counts_what_the_driver_before_had_left_open() -> None:
    scene = taken_over(is_open=True)
    scene.given(Drain()).expect(taken(1, 1, discarded(1)), HandOff())
    play().given(Drain()).expect(HandOff())


@pytest.mark.requirement("turn:transcript:no-call-without-a-result")
def test_later_turns_are_not_told_that_a_tool_never_ran_which_had_been_begun() -> None:
    facts = (committed(1, "", CLOCK_CALL, MAIL_CALL), ToolStarted(1, 0))
    told = [message.text for message in with_turn((), "Hi", facts) if isinstance(message, ToolMessage)]
    assert told == [OUTCOME_UNKNOWN.result, NEVER_RUN]
