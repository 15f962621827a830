"""Messages that wait while a turn runs its tools: the next call takes them along."""

from typing import Any
from unittest.mock import ANY

import pytest

from tests.support.playbook import Playbook
from tests.support.turns import LONG_HISTORY, completed, failed, opened, play, text, tool_call
from worker.codecs.messages import AssistantMessage, Message, ToolMessage, UserMessage
from worker.turn.commands import AskInbox, CommitCall, OpenCall, OpenSidecar, RecordCompaction, RunTools, Seal
from worker.turn.events import (
    Begin,
    Died,
    Drain,
    InboxMessage,
    InboxMoved,
    InboxRead,
    NotAnswered,
    Tick,
    ToolFinished,
)
from worker.turn.facts import Committed, Fact, Joined, Progress, ToolEnded
from worker.turn.recurrence import Recurrence
from worker.turn.start import CompactionTerms
from worker.turn.states import State
from worker.turn.transcript import Transcript, with_turn

BOB, EVE = InboxMessage("turn_b", "And Bob?"), InboxMessage("turn_e", "And Eve?")
TOOLS = completed(1, 1, "tool_calls", tool_call())
ASKED: tuple[Message, ...] = (
    UserMessage("What is due?"),
    AssistantMessage("", (tool_call(),)),
    ToolMessage("t1", "clock", "12:00"),
)


def after_tools(**changes: Any) -> Playbook:
    """A turn that takes messages, whose first call had a tool that has just ended."""
    scene = play(**{"joins": True, **changes}).given(Begin())
    scene.take()
    scene.given(TOOLS).expect(ANY, RunTools(1, ANY, 1))
    return scene.given(ToolFinished(1, 0, "12:00"))


def joined_now(*messages: InboxMessage, **changes: Any) -> tuple[Playbook, OpenCall]:
    scene = after_tools(**changes)
    scene.expect(ANY, AskInbox()).stands(State.JOINING)
    (command,) = scene.given(InboxRead(messages)).take()
    assert isinstance(command, OpenCall)
    return scene, command


@pytest.mark.requirement("sessions:join:after-tools")
def test_messages_come_after_the_results_of_the_tools_as_they_were_said() -> None:
    scene, command = joined_now(BOB, EVE)
    assert command == opened(2, 1, 0, True, carries=("turn_b", "turn_e"))
    assert command.request.messages == (*ASKED, UserMessage("And Bob?"), UserMessage("And Eve?"))
    scene.given(text(2, 1, "All.")).take()
    commit, seal = scene.given(completed(2, 1)).take()
    assert isinstance(commit, CommitCall)
    assert commit.joined == (Joined(2, "turn_b", "And Bob?"), Joined(2, "turn_e", "And Eve?"))
    assert isinstance(seal, Seal)


@pytest.mark.requirement("sessions:join:after-tools")
def test_where_nothing_waits_the_call_is_opened_as_ever() -> None:
    _, command = joined_now()
    assert command == opened(2, 1, 0, True)
    assert command.request.messages == ASKED


@pytest.mark.requirement("sessions:join:only-where-wanted")
def test_a_turn_that_takes_no_messages_does_not_ask() -> None:
    after_tools(joins=False).expect(ANY, opened(2, 1, 0, True))


@pytest.mark.requirement("sessions:join:after-tools")
def test_nothing_joins_the_first_call_nor_one_that_asks_again_for_an_empty_answer() -> None:
    scene = play(joins=True).given(Begin()).expect(opened(1, 1, 0, True))
    scene.given(completed(1, 1)).expect(ANY, opened(2, 1, 0, True))


@pytest.mark.requirement("sessions:join:reissued-unchanged")
def test_a_call_that_dies_is_asked_again_with_the_same_messages_and_no_others() -> None:
    scene, command = joined_now(BOB)
    *_, again = scene.given(Died(2, 1, "reset", "")).take()
    assert again == opened(2, 2, 1, False)
    assert again.request is command.request
    scene.given(text(2, 2, "All.")).take()
    commit, _ = scene.given(completed(2, 2)).take()
    assert commit.joined == (Joined(2, "turn_b", "And Bob?"),)


@pytest.mark.requirement("sessions:join:reissued-unchanged")
def test_a_request_that_got_no_stream_goes_out_again_unchanged() -> None:
    scene, command = joined_now(BOB)
    scene.ignores(NotAnswered(2, 1, 503, True, "http_503", "Busy."))
    (again,) = scene.at(2).given(Tick()).take()
    assert again.request is command.request


@pytest.mark.requirement("sessions:join:reissued-unchanged")
def test_a_driver_that_takes_over_asks_again_with_what_the_dead_call_carried() -> None:
    facts = (Committed(1, 1, "", (tool_call(),), "tool_calls", None), ToolEnded(1, 0, "12:00", None))
    carried = (Joined(2, "turn_b", "And Bob?"),)
    scene = play(joins=True, facts=facts, carried=carried, progress=Progress(call=2, attempt=1, is_open=True, calls=2))
    _, command = scene.given(Begin()).take()
    assert command == opened(2, 2, 0, False)
    assert command.request.messages == (*ASKED, UserMessage("And Bob?"))
    scene.given(text(2, 2, "All.")).take()
    commit, _ = scene.given(completed(2, 2)).take()
    assert commit.joined == carried


@pytest.mark.requirement("sessions:join:reissued-unchanged")
def test_what_an_older_call_carried_is_not_carried_again() -> None:
    facts = (Committed(1, 1, "", (tool_call(),), "tool_calls", None), ToolEnded(1, 0, "12:00", None))
    scene = play(
        joins=True, facts=facts, carried=(Joined(1, "turn_b", "?"),), progress=Progress(call=1, attempt=1, calls=1)
    )
    scene.given(Begin()).expect(ANY, AskInbox())
    scene.given(InboxRead((EVE,))).expect(opened(2, 1, 0, True, carries=("turn_e",)))


@pytest.mark.requirement("sessions:join:inbox-moved")
def test_a_call_that_could_not_be_opened_is_opened_anew_with_what_waits_then() -> None:
    scene, _ = joined_now(BOB, EVE, max_calls=2)
    scene.given(InboxMoved()).expect(AskInbox()).stands(State.JOINING)
    (command,) = scene.given(InboxRead((EVE,))).take()
    assert command == opened(2, 1, 0, True, carries=("turn_e",))
    assert command.request.messages == (*ASKED, UserMessage("And Eve?"))


@pytest.mark.requirement("sessions:join:inbox-moved")
def test_a_call_that_could_not_be_opened_counts_once() -> None:
    scene, _ = joined_now(BOB, EVE, max_calls=3)
    for _ in range(3):
        scene.given(InboxMoved()).expect(AskInbox())
        scene.given(InboxRead((EVE,))).take()
    scene.given(completed(2, 1, "tool_calls", tool_call("mail"))).expect(ANY, RunTools(2, ANY, 1))
    scene.given(ToolFinished(2, 0, "12:01")).expect(ANY, AskInbox())  # the third call may be made


@pytest.mark.requirement("sessions:join:after-tools")
def test_a_process_that_shuts_down_while_it_asks_hands_the_turn_over() -> None:
    scene = after_tools()
    scene.take()
    scene.given(Drain()).take()
    scene.stands(State.HANDED_OFF)


@pytest.mark.requirement("sessions:join:after-tools")
def test_the_end_of_the_turn_comes_although_the_inbox_does_not_answer() -> None:
    scene = after_tools(deadline=10.0)
    scene.take()
    assert scene.machine.deadline() == 10.0
    scene.at(11).given(Tick()).expect(ANY).stands(State.SEALED)


@pytest.mark.requirement("sessions:join:compaction")
def test_messages_that_join_are_no_part_of_a_summary_before_they_are_answered() -> None:
    scene, command = joined_now(BOB, history=LONG_HISTORY, compaction=CompactionTerms(kept_calls=0))
    assert UserMessage("And Bob?") in command.request.messages
    *_, sidecar = scene.given(failed(2, 1, "context_overflow")).take()
    assert isinstance(sidecar, OpenSidecar)
    assert "And Bob?" not in sidecar.request.messages[0].text
    scene.given(text(0, 1, "They talked.")).take()
    *_, recorded, again = scene.given(completed(0, 1)).take()
    assert isinstance(recorded, RecordCompaction)
    assert isinstance(again, OpenCall)
    assert again.request.messages[-1] == UserMessage("And Bob?")
    assert again.carries == ()
    scene.given(text(2, 2, "All.")).take()
    commit, _ = scene.given(completed(2, 2)).take()
    assert commit.joined == (Joined(2, "turn_b", "And Bob?"),)


@pytest.mark.requirement("sessions:join:compaction")
def test_live_and_replayed_the_model_reads_the_same() -> None:
    """What joined is shown from the opening on, and stands in the journal before the answer to it."""
    facts: list[Fact] = [
        Committed(1, 1, "", (tool_call(),), "tool_calls", None),
        ToolEnded(1, 0, "12:00", None),
        Joined(2, "turn_b", "And Bob?"),
        Committed(2, 1, "All.", (), "stop", None),
    ]
    live = Transcript((), "What is due?", facts[:2])
    live.carried = (Joined(2, "turn_b", "And Bob?"),)
    shown = live.messages("main")
    for fact in facts[2:]:
        live.add(fact)
    assert shown == (*ASKED, UserMessage("And Bob?"))
    assert not live.carried
    assert with_turn((), "What is due?", facts) == (*shown, AssistantMessage("All."))


@pytest.mark.requirement("sessions:join:recurrence")
def test_a_message_may_ask_for_what_was_done_before() -> None:
    facts: list[Fact] = []
    for call in (1, 2):
        facts += [Committed(call, 1, "", (tool_call(),), "tool_calls", None), ToolEnded(call, 0, "12:00", None)]
    again = Committed(3, 1, "", (tool_call(),), "tool_calls", None)
    assert Recurrence([*facts, again]).judge(tool_call()) == "correct"
    assert Recurrence([*facts, Joined(3, "turn_b", "Look again."), again]).judge(tool_call()) == "run"
