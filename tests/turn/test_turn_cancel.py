"""A turn that somebody wants to end: from wherever it stands there is one way out, and no second one."""

from unittest.mock import ANY

import pytest

from tests.support.playbook import Playbook
from tests.support.turns import (
    LONG_HISTORY,
    begun,
    completed,
    discarded,
    dropped,
    failed,
    play,
    text,
    tool_call,
)
from worker.errors import LocalProtocolError
from worker.turn.commands import AskInbox, CloseCall, DiscardCall, OpenSidecar, Park, Seal
from worker.turn.events import Cancel, Died, Drain, NotAnswered, Tick, ToolFinished
from worker.turn.facts import Committed, Progress, ToolStarted
from worker.turn.start import CompactionTerms
from worker.turn.states import State
from worker.turn.usage import NO_USAGE

CANCELLED = Seal("cancelled", "requested", None, NO_USAGE)
TOOLS = completed(1, 1, "tool_calls", tool_call(), tool_call("mail", id="t2"))


def cancel(scene: Playbook) -> Playbook:
    return scene.given(Cancel("requested"))


@pytest.mark.requirement("cancel:machine:one-way-out")
@pytest.mark.requirement("cases:t19:before-headers")
def test_a_call_that_has_said_nothing_is_closed_and_discarded() -> None:
    scene = cancel(begun())
    scene.expect(CloseCall(), dropped(1, 1, "cancelled", 0, NO_USAGE), CANCELLED).stands(State.SEALED)
    assert scene.machine.deadline() is None


@pytest.mark.requirement("cancel:machine:one-way-out")
@pytest.mark.requirement("cases:t19:between-two-deltas")
def test_what_has_streamed_is_void() -> None:
    scene = begun()
    scene.given(text(1, 1, "Dü")).expect(ANY)
    cancel(scene).expect(CloseCall(), dropped(1, 1, "cancelled", 3, NO_USAGE), CANCELLED)
    with pytest.raises(LocalProtocolError):
        scene.machine.handle(text(1, 1, "e"), 1)


@pytest.mark.requirement("cancel:machine:one-way-out")
@pytest.mark.requirement("cases:t19:resume-backoff")
def test_no_attempt_follows_the_wait_for_one_and_the_dead_one_is_told() -> None:
    scene = begun(resume_backoff_s=2)
    scene.given(Died(1, 1, "reset", ""))
    scene.take()
    cancel(scene).expect(Seal("cancelled", "requested", None, discarded(1), True))


@pytest.mark.requirement("cancel:machine:one-way-out")
def test_a_request_that_waits_to_be_sent_again_is_discarded() -> None:
    scene = begun()
    scene.ignores(NotAnswered(1, 1, 503, True, "http_503", "Busy."))
    cancel(scene).expect(CloseCall(), dropped(1, 1, "cancelled", 0, NO_USAGE), CANCELLED)


@pytest.mark.requirement("cancel:machine:one-way-out")
@pytest.mark.requirement("cases:t19:tools-run")
def test_tools_that_run_are_not_waited_for() -> None:
    scene = begun()
    scene.given(TOOLS)
    scene.take()
    cancel(scene).expect(CANCELLED).stands(State.SEALED)
    with pytest.raises(LocalProtocolError):
        scene.machine.handle(ToolFinished(1, 0, "12:00"), 1)


@pytest.mark.requirement("cancel:machine:one-way-out")
def test_a_turn_that_would_wait_for_a_person_ends() -> None:
    scene = begun(asks=frozenset({"mail"}))
    scene.given(completed(1, 1, "tool_calls", tool_call("mail")))
    assert scene.take()[-1] == Park()
    cancel(scene).expect(CANCELLED)


@pytest.mark.requirement("cancel:machine:one-way-out")
def test_a_turn_that_looks_into_its_inbox_ends() -> None:
    scene = begun(joins=True)
    scene.given(TOOLS).take()
    scene.given(ToolFinished(1, 0, "12:00")).take()
    scene.given(ToolFinished(1, 1, "sent")).expect(ANY, AskInbox())
    cancel(scene).expect(CANCELLED)


@pytest.mark.requirement("cancel:machine:one-way-out")
@pytest.mark.requirement("cases:t19:compacting")
def test_a_conversation_that_is_being_summed_up_is_left() -> None:
    scene = begun(history=LONG_HISTORY, compaction=CompactionTerms())
    scene.given(failed(1, 1, "context_overflow"))
    assert isinstance(scene.take()[-1], OpenSidecar)
    cancel(scene).expect(CloseCall(), CANCELLED)


@pytest.mark.requirement("cancel:machine:begins-with-it")
def test_a_turn_that_is_cancelled_before_it_begins_voids_what_was_open_and_asks_nobody() -> None:
    scene = play(progress=Progress(call=1, attempt=2, is_open=True, calls=1))
    void = DiscardCall(1, 2, "cancelled", 0, discarded(1))
    cancel(scene).expect(void, Seal("cancelled", "requested", None, discarded(1), True))


@pytest.mark.requirement("cancel:machine:begins-with-it")
def test_an_answer_that_was_committed_before_stands() -> None:
    facts = (Committed(1, 1, "Friday.", (), "stop", None),)
    scene = play(facts=facts, progress=Progress(call=1, attempt=1, calls=1))
    cancel(scene).expect(ANY, Seal("completed", None, None, NO_USAGE))


@pytest.mark.requirement("cancel:machine:begins-with-it")
def test_tools_that_another_driver_began_are_not_begun_again() -> None:
    facts = (Committed(1, 1, "", (tool_call(),), "tool_calls", None), ToolStarted(1, 0))
    scene = play(facts=facts, progress=Progress(call=1, attempt=1, calls=1), retry_safe=frozenset({"clock"}))
    cancel(scene).expect(ANY, CANCELLED)


@pytest.mark.requirement("cancel:machine:one-way-out")
@pytest.mark.parametrize("on_drain", ["fail", "handoff"])
def test_a_process_that_shuts_down_ends_it_too_unless_it_has_handed_it_over(on_drain: str) -> None:
    scene = begun(on_drain=on_drain)
    scene.given(Drain()).take()
    if on_drain == "handoff":
        scene.refuses(Cancel("requested"))
    else:
        cancel(scene).expect(CloseCall(), ANY, CANCELLED)


@pytest.mark.requirement("cancel:machine:one-way-out")
def test_the_end_of_its_time_and_a_cancel_make_one_end() -> None:
    scene = begun(deadline=10.0)
    scene.at(11).given(Tick()).take()
    scene.refuses(Cancel("requested"))
