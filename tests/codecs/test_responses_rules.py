"""Each rule of the Responses lifecycle: one stream that breaks it, and what the two profiles make of that.

A row is a stream, the code of its protocol failure under `strict`, and under `compat` either the same, or the text of
the answer that is read all the same.
"""

from typing import Any, NamedTuple

import pytest

from tests.support.responses_events import (
    NO_NAME,
    Event,
    added,
    call,
    call_events,
    done,
    event,
    framed,
    message,
    message_events,
    outcome,
    read,
    reasoning,
    reasoning_events,
    response,
    whole,
)
from worker.codecs.events import Completed, Failed, ReasoningDelta

REASONING, MESSAGE, CALL = reasoning_events(0, "Hm", "."), message_events(1, "Ni", "ne"), call_events(2, '{"n":', "1}")
GOOD = whole(REASONING, MESSAGE, CALL)
"""created, in_progress; added, part, 2 deltas, value, part, done twice; added, 2 deltas, value, done; completed."""
CREATED, PROGRESS, REASONING_AT, MESSAGE_AT, CALL_AT, END = 0, 1, 2, 9, 16, 21
ADDED, PART, DELTA, VALUE, PART_DONE, DONE = 0, 1, 2, 4, 5, 6
CALL_DELTA, CALL_VALUE, CALL_DONE = 1, 3, 4
TEXT = "Nine"


def but(at: int, *without: str, **fields: Any) -> list[Event]:
    """The good stream with other fields in the event at `at`, or without some of them."""
    entry = {**GOOD[at], **fields}
    return [*GOOD[:at], {key: value for key, value in entry.items() if key not in without}, *GOOD[at + 1 :]]


def but_item(at: int, *without: str, **fields: Any) -> list[Event]:
    """The good stream with other fields in the item of the event at `at`, or without some of them."""
    item = {**GOOD[at]["item"], **fields}
    return but(at, item={key: value for key, value in item.items() if key not in without})


def but_response(at: int, *without: str, **fields: Any) -> list[Event]:
    """The good stream with other fields in the response of the event at `at`, or without some of them."""
    said = {**GOOD[at]["response"], **fields}
    return but(at, response={key: value for key, value in said.items() if key not in without})


def less(*places: int) -> list[Event]:
    """The good stream without some of its events."""
    return [entry for place, entry in enumerate(GOOD) if place not in places]


def plus(at: int, *entries: Event) -> list[Event]:
    """The good stream with more events before that at `at`."""
    return [*GOOD[:at], *entries, *GOOD[at:]]


def output(*entries: Event) -> list[Event]:
    """The good stream with another output at its end."""
    return but_response(END, output=list(entries))


def moved(at: int, to: int) -> list[Event]:
    """The good stream with one event at another place."""
    rest = less(at)
    return [*rest[:to], GOOD[at], *rest[to:]]


R_ITEM, M_ITEM, C_ITEM = (GOOD[END]["response"]["output"][place] for place in range(3))
TWO_MESSAGES = whole(message_events(0, "One ", item_id="msg_0"), message_events(1, "two."))
MESSAGE_DELTA = GOOD[MESSAGE_AT + DELTA]
REASONING_PART = event(
    "response.content_part.added",
    output_index=0,
    item_id="rs_1",
    content_index=0,
    part={"type": "reasoning_text", "text": ""},
)


class Rule(NamedTuple):
    """A stream and the code of its failure under `strict`.

    `text`: what `compat` reads all the same; None where it fails too, with the code `compat` if that is another one.
    """

    events: list[Event]
    code: str
    text: str | None = None
    compat: str | None = None


RULES = {
    # the frame of an event
    "the event: line names another type": Rule(but(4, named="response.output_text.delta"), "type_mismatch", TEXT),
    "an event has no event: line": Rule(but(4, named=NO_NAME), "type_mismatch", TEXT),
    "an event has no type": Rule(but(4, "type", named=GOOD[4]["type"]), "type_mismatch", TEXT),
    "an event has neither type nor name": Rule(plus(5, {"delta": "x", "named": NO_NAME}), "type_mismatch", TEXT),
    "sequence_number is missing": Rule(but(4, sequence_number=None), "wrong_sequence", TEXT),
    "sequence_number does not rise": Rule(but(4, sequence_number=3), "wrong_sequence", TEXT),
    "sequence_number is text": Rule(but(4, sequence_number="4"), "wrong_sequence", TEXT),
    # the response
    "the response is created twice": Rule(plus(PROGRESS, GOOD[CREATED]), "created_twice"),
    "the response is created without an id": Rule(but_response(CREATED, "id"), "created_without_id", TEXT),
    "the response is created without a response": Rule(but(CREATED, "response"), "wrong_type", TEXT),
    "the response is created as queued": Rule(but_response(CREATED, status="queued"), "created_status", TEXT),
    "the response is created as completed": Rule(but_response(CREATED, status="completed"), "created_status"),
    "the response is created with items": Rule(but_response(CREATED, output=[M_ITEM]), "created_with_items"),
    "in_progress comes before created": Rule(moved(PROGRESS, 0), "event_before_created", TEXT),
    "an item comes before created": Rule(moved(CREATED, 3), "event_before_created", TEXT),
    "nothing is created": Rule(less(CREATED), "event_before_created", TEXT),
    "the end comes before created": Rule([GOOD[END]], "event_before_created", TEXT),
    "in_progress has another id": Rule(but_response(PROGRESS, id="resp_2"), "response_id_changed", TEXT),
    "in_progress has another status": Rule(but_response(PROGRESS, status="completed"), "in_progress_status"),
    "in_progress has items": Rule(but_response(PROGRESS, output=[M_ITEM]), "in_progress_with_items"),
    "the end has another id": Rule(but_response(END, id="resp_2"), "response_id_changed", TEXT),
    "the end has no response": Rule(but(END, "response"), "no_response"),
    "the end has no status": Rule(but_response(END, "status"), "terminal_status", TEXT),
    "the end has a status that is no end": Rule(but_response(END, status="in_progress"), "terminal_status"),
    "the end is completed, its status failed": Rule(but_response(END, status="failed"), "status_contradicts"),
    "the end is completed, its status incomplete": Rule(
        but_response(END, status="incomplete"), "status_contradicts", TEXT
    ),
    "the end is incomplete, its status completed": Rule(but(END, type="response.incomplete"), "status_contradicts"),
    "the end is failed, its status completed": Rule(but(END, type="response.failed"), "status_contradicts"),
    "incomplete_details are text": Rule(but_response(END, incomplete_details="long"), "wrong_type", TEXT),
    "the reason is not a documented one": Rule(
        but_response(END, incomplete_details={"reason": "max_time"}), "incomplete_details", TEXT
    ),
    "a counter of the usage is negative": Rule(but_response(END, usage={"input_tokens": -1}), "wrong_usage", TEXT),
    "a counter of the usage is text": Rule(but_response(END, usage={"total_tokens": "9"}), "wrong_usage", TEXT),
    "more is cached than came in": Rule(
        but_response(END, usage={"input_tokens": 1, "input_tokens_details": {"cached_tokens": 2}}), "wrong_usage", TEXT
    ),
    "cache details come without input": Rule(
        but_response(END, usage={"input_tokens_details": {"cached_tokens": 2}}), "wrong_usage", TEXT
    ),
    # indices
    "an announcement has no index": Rule(but(CALL_AT, "output_index"), "wrong_index", TEXT),
    "a delta has no index": Rule(but(MESSAGE_AT + DELTA, "output_index"), "wrong_index", TEXT),
    "an item is done without an index": Rule(but(MESSAGE_AT + DONE, "output_index"), "wrong_index", TEXT),
    "an index is negative": Rule(but(MESSAGE_AT, output_index=-1), "wrong_index"),
    "an index is text": Rule(but(MESSAGE_AT, output_index="1"), "wrong_index"),
    "an index is a list": Rule(but(MESSAGE_AT + DELTA, output_index=[1]), "wrong_index", compat="two_items"),
    "an index is too high": Rule(but(MESSAGE_AT, output_index=1024), "index_too_high"),
    "a content index is missing": Rule(but(MESSAGE_AT + DELTA, "content_index"), "wrong_index", TEXT),
    "a content index is too high": Rule(but(MESSAGE_AT + PART, content_index=1024), "index_too_high"),
    "a summary index is missing": Rule(but(REASONING_AT + VALUE, "summary_index"), "wrong_index", TEXT),
    "a summary index is too high": Rule(but(REASONING_AT + PART, summary_index=1024), "index_too_high"),
    "a summary index is skipped": Rule(but(REASONING_AT + PART, summary_index=1), "index_gap"),
    "an index is given to two items": Rule(but(CALL_AT, output_index=1), "index_taken"),
    # announcements
    "an item is no object": Rule(but(MESSAGE_AT, item="msg"), "wrong_type"),
    "an item has no type": Rule(but_item(MESSAGE_AT, "type"), "item_incomplete"),
    "an item has no id": Rule(but_item(MESSAGE_AT, "id"), "item_incomplete", TEXT),
    "a call has no call_id at first": Rule(but_item(CALL_AT, "call_id"), "item_incomplete", TEXT),
    "a call has no name at first": Rule(but_item(CALL_AT, name=""), "item_incomplete", TEXT),
    "a call_id is a number": Rule(but_item(CALL_AT, call_id=7), "item_incomplete", compat="wrong_type"),
    "the call_id is the id": Rule(
        whole(MESSAGE_0 := message_events(0, "Nine"), call_events(1, item_id="call_1")), "identity_taken", TEXT
    ),
    "two calls have one call_id": Rule(
        whole(MESSAGE_0, call_events(1, "{}"), call_events(2, "{}", item_id="fc_2")), "identity_taken"
    ),
    "two items have one id": Rule(but_item(CALL_AT, id="msg_1"), "identity_taken", compat="output_changed"),
    "a message is not the assistant's": Rule(but_item(MESSAGE_AT, role="user"), "wrong_role"),
    "a message has no role": Rule(but_item(MESSAGE_AT, "role"), "wrong_role", TEXT),
    "an item is announced as completed": Rule(but_item(MESSAGE_AT, status="completed"), "item_status", TEXT),
    "encrypted reasoning is a number": Rule(but_item(REASONING_AT, encrypted_content=7), "wrong_type"),
    "an announced part of reasoning has more fields": Rule(
        but_item(REASONING_AT, summary=[{"type": "summary_text", "text": "", "id": "x"}]), "part_fields", TEXT
    ),
    "an announced part is of no known type": Rule(
        but_item(MESSAGE_AT, content=[{"type": "audio", "text": ""}]), "kind_mismatch"
    ),
    # what comes when
    "an item was never announced": Rule(less(MESSAGE_AT), "item_unknown", TEXT),
    "an item that is done was never announced": Rule(less(*range(MESSAGE_AT, MESSAGE_AT + DONE)), "item_unknown", TEXT),
    "a delta comes after its item is done": Rule(plus(CALL_AT, MESSAGE_DELTA), "item_closed"),
    "an item is done twice": Rule(plus(CALL_AT, GOOD[CALL_AT - 1]), "item_closed"),
    "an event has another item_id": Rule(but(MESSAGE_AT + DELTA, item_id="msg_9"), "item_id_changed", TEXT),
    "an event has the item_id of another item": Rule(
        but(MESSAGE_AT + DELTA, item_id="rs_1"), "item_id_changed", compat="two_items"
    ),
    "an event has no item_id": Rule(but(MESSAGE_AT + DELTA, "item_id"), "item_id_changed", TEXT),
    "text comes for a call": Rule(
        plus(CALL_AT + CALL_DELTA, {**MESSAGE_DELTA, "output_index": 2, "item_id": "fc_1"}), "kind_mismatch"
    ),
    "arguments come for a message": Rule(
        plus(MESSAGE_AT + DELTA, {**GOOD[CALL_AT + CALL_DELTA], "output_index": 1, "item_id": "msg_1"}), "kind_mismatch"
    ),
    "reasoning comes for a message": Rule(
        but(MESSAGE_AT + DELTA, type="response.reasoning_text.delta"), "kind_mismatch"
    ),
    "a refusal comes for a part that is text": Rule(
        but(MESSAGE_AT + DELTA, type="response.refusal.delta"), "kind_mismatch"
    ),
    "a message gets a part of reasoning": Rule(
        but(MESSAGE_AT + PART, part={"type": "reasoning_text", "text": ""}), "kind_mismatch"
    ),
    "a part is of no known type": Rule(but(MESSAGE_AT + PART, part={"type": "audio"}), "kind_mismatch"),
    "a part is no object": Rule(but(MESSAGE_AT + PART, part=7), "wrong_type", compat="kind_mismatch"),
    "a part is done as another type": Rule(
        but(MESSAGE_AT + PART_DONE, part={"type": "refusal", "refusal": "Nine"}), "kind_mismatch"
    ),
    "a part was never added": Rule(less(MESSAGE_AT + PART), "part_unknown", TEXT),
    "a summary was never added": Rule(less(REASONING_AT + PART), "part_unknown", TEXT),
    "a part is added late": Rule(moved(MESSAGE_AT + PART, MESSAGE_AT + DELTA), "part_unknown", compat="part_twice"),
    "a part is added twice": Rule(plus(MESSAGE_AT + DELTA, GOOD[MESSAGE_AT + PART]), "part_twice"),
    "a part is added otherwise than announced": Rule(
        but_item(MESSAGE_AT, content=[{"type": "output_text", "text": "Ni"}]), "part_changed"
    ),
    "a part of reasoning has more fields": Rule(
        but(REASONING_AT + PART, part={"type": "summary_text", "text": "", "id": "x"}), "part_fields", TEXT
    ),
    "a part has no text": Rule(but(MESSAGE_AT + PART, part={"type": "output_text"}), "wrong_type", TEXT),
    "reasoning comes in an unknown event": Rule(
        plus(3, event("response.reasoning.delta", output_index=0, item_id="rs_1", delta="x")),
        "unsupported_reasoning",
        TEXT,
    ),
    "an event that says nothing is of no item": Rule(
        plus(3, event("response.web_search_call.searching", output_index=5)), "item_unknown", TEXT
    ),
    "an event that says nothing comes after its item": Rule(
        plus(END, event("response.web_search_call.searching", output_index=1)), "item_closed", TEXT
    ),
    # values
    "a delta is a number": Rule(but(MESSAGE_AT + DELTA, delta=7), "wrong_type"),
    "a delta is missing": Rule(but(MESSAGE_AT + DELTA, "delta"), "wrong_type"),
    "a final value is a number": Rule(but(MESSAGE_AT + VALUE, text=7), "wrong_type"),
    "a final value is missing": Rule(but(MESSAGE_AT + VALUE, "text"), "wrong_type", TEXT),
    "a final value is another": Rule(but(MESSAGE_AT + VALUE, text="Ten"), "text_changed"),
    "a final value is longer": Rule(but(MESSAGE_AT + VALUE, text="Nine!"), "text_changed"),
    "a final value is empty": Rule(but(MESSAGE_AT + VALUE, text=""), "text_changed", TEXT),
    "a final value comes without deltas": Rule(less(MESSAGE_AT + DELTA, MESSAGE_AT + DELTA + 1), "text_changed", TEXT),
    "a final value comes twice": Rule(plus(MESSAGE_AT + PART_DONE, GOOD[MESSAGE_AT + VALUE]), "done_twice"),
    "a delta comes after the final value": Rule(plus(MESSAGE_AT + PART_DONE, MESSAGE_DELTA), "text_after_done"),
    "a final value never comes": Rule(less(MESSAGE_AT + VALUE), "part_open", TEXT),
    "a part is done twice": Rule(plus(MESSAGE_AT + DONE, GOOD[MESSAGE_AT + PART_DONE]), "done_twice"),
    "a part is done as another text": Rule(
        but(MESSAGE_AT + PART_DONE, part={"type": "output_text", "text": "Ten"}), "text_changed"
    ),
    "a part is never done": Rule(less(MESSAGE_AT + PART_DONE), "part_open", TEXT),
    "a summary is done as another text": Rule(but(REASONING_AT + VALUE, text="Oh."), "text_changed"),
    "the arguments are done as others": Rule(but(CALL_AT + CALL_VALUE, arguments="{}"), "arguments_changed"),
    "the arguments come without deltas": Rule(
        less(CALL_AT + CALL_DELTA, CALL_AT + CALL_DELTA + 1), "arguments_changed", TEXT
    ),
    "the arguments are done twice": Rule(plus(CALL_AT + CALL_DONE, GOOD[CALL_AT + CALL_VALUE]), "done_twice"),
    "the arguments go on after they were done": Rule(
        plus(CALL_AT + CALL_DONE, GOOD[CALL_AT + CALL_DELTA]), "text_after_done"
    ),
    "the arguments are never done": Rule(less(CALL_AT + CALL_VALUE), "part_open", TEXT),
    # items that are done
    "an item is done as another type": Rule(but(MESSAGE_AT + DONE, item=call(item_id="msg_1")), "item_changed"),
    "an item is done as another id": Rule(but_item(MESSAGE_AT + DONE, id="msg_9"), "item_changed", TEXT),
    "an item is done as the user's": Rule(but_item(MESSAGE_AT + DONE, role="user"), "wrong_role"),
    "a call is done as another call_id": Rule(but_item(CALL_AT + CALL_DONE, call_id="call_9"), "item_changed"),
    "a call is done as another name": Rule(but_item(CALL_AT + CALL_DONE, name="wind"), "item_changed"),
    "a call is done without a name": Rule(but_item(CALL_AT + CALL_DONE, "name"), "no_identity", TEXT),
    "a call never has a name": Rule(
        whole(MESSAGE_0, [added(1, call(name="")), *call_events(1, "{}")[1:-1], done(1, call("{}", name=""))]),
        "item_incomplete",
        compat="no_identity",
    ),
    "a call is done with other arguments": Rule(
        but_item(CALL_AT + CALL_DONE, arguments='{"n": 1}'), "arguments_changed"
    ),
    "a call is done with arguments that are no text": Rule(
        whole(MESSAGE_0, [*call_events(1)[:-1], done(1, {**call(), "arguments": 7})]),
        "wrong_type",
    ),
    "a message is done with more parts": Rule(
        but_item(MESSAGE_AT + DONE, content=[*M_ITEM["content"], {"type": "refusal", "refusal": ""}, {"type": "x"}]),
        "content_changed",
    ),
    "a message is done with a part of another type": Rule(
        but_item(MESSAGE_AT + DONE, content=[{"type": "refusal", "refusal": "Nine"}]), "content_changed"
    ),
    "a message is done with another text": Rule(
        but_item(MESSAGE_AT + DONE, content=[{"type": "output_text", "text": "Ten"}]), "text_changed"
    ),
    "a message is done without content": Rule(but_item(MESSAGE_AT + DONE, "content"), "wrong_type", TEXT),
    "a message is done with content that is text": Rule(but_item(MESSAGE_AT + DONE, content="Nine"), "wrong_type"),
    "a message is done with empty content": Rule(but_item(MESSAGE_AT + DONE, content=[]), "content_changed", TEXT),
    "reasoning is done with another text": Rule(but(REASONING_AT + DONE, item=reasoning("Oh.")), "text_changed"),
    "reasoning is done with more parts": Rule(
        but(REASONING_AT + DONE, item=reasoning("Hm.", "More.")), "content_changed"
    ),
    "reasoning is done while a part is open": Rule(plus(REASONING_AT + DONE, REASONING_PART), "part_open", TEXT),
    # the output at the end
    "an item is never done": Rule(less(MESSAGE_AT + DONE), "item_open", TEXT),
    "no item is ever done": Rule(less(REASONING_AT + DONE, MESSAGE_AT + DONE, CALL_AT + CALL_DONE), "item_open", TEXT),
    "the output is missing": Rule(but_response(END, "output"), "output_missing", TEXT),
    "the output is no list": Rule(but_response(END, output={}), "wrong_type"),
    "an item of the output is no object": Rule(output(R_ITEM, M_ITEM, "call"), "wrong_type"),  # type: ignore[arg-type]
    "the output is empty": Rule(output(), "output_changed", TEXT),
    "the output lacks an item": Rule(output(R_ITEM, C_ITEM), "output_changed", TEXT),
    "the output has an item that was not streamed": Rule(
        output(R_ITEM, M_ITEM, C_ITEM, message(" sharp", "msg_3")), "output_changed", "Nine sharp"
    ),
    "the output has an item twice": Rule(output(R_ITEM, M_ITEM, M_ITEM, C_ITEM), "output_changed"),
    "the output is in another order": Rule(output(M_ITEM, R_ITEM, C_ITEM), "output_changed", TEXT),
    "the messages of the output are in another order": Rule(
        [
            *TWO_MESSAGES[:-1],
            event(
                "response.completed", response=response("completed", [*TWO_MESSAGES[-1]["response"]["output"][::-1]])
            ),
        ],
        "output_changed",
        compat="output_reordered",
    ),
    "an item of the output has another type": Rule(output(R_ITEM, M_ITEM, message("x", "fc_1")), "output_changed"),
    "an item of the output has another id": Rule(output(R_ITEM, {**M_ITEM, "id": "x"}, C_ITEM), "output_changed", TEXT),
    "a call of the output has another call_id": Rule(
        output(R_ITEM, M_ITEM, {**C_ITEM, "call_id": "x"}), "output_changed", TEXT
    ),
    "a call of the output has another name": Rule(output(R_ITEM, M_ITEM, {**C_ITEM, "name": "x"}), "output_changed"),
    "a call of the output has other arguments": Rule(
        output(R_ITEM, M_ITEM, {**C_ITEM, "arguments": "{}"}), "arguments_changed"
    ),
    "a message of the output has another text": Rule(output(R_ITEM, message("Ten"), C_ITEM), "text_changed"),
    "a message of the output has no text": Rule(output(R_ITEM, message(""), C_ITEM), "text_changed", TEXT),
    "a message of the output has no content": Rule(output(R_ITEM, message(), C_ITEM), "content_changed", TEXT),
    "the reasoning of the output has no text": Rule(output(reasoning(), M_ITEM, C_ITEM), "content_changed", TEXT),
    "the reasoning of the output has another text": Rule(output(reasoning("Oh."), M_ITEM, C_ITEM), "text_changed"),
    "the output is all there is": Rule([GOOD[CREATED], GOOD[END]], "output_changed", TEXT),
}


def test_the_good_stream_is_as_documented_and_both_profiles_say_the_same_of_it() -> None:
    assert [GOOD[at]["type"].split(".", 1)[1] for at in (REASONING_AT, MESSAGE_AT, CALL_AT, END)] == [
        "output_item.added",
        "output_item.added",
        "output_item.added",
        "completed",
    ]
    assert outcome(read(framed(GOOD), "strict")) == ("completed", TEXT)
    assert read(framed(GOOD), "strict") == read(framed(GOOD), "compat")


@pytest.mark.requirement("codecs-responses:strict")
@pytest.mark.parametrize("rule", RULES)
def test_the_strict_profile_names_the_rule_that_a_stream_breaks(rule: str) -> None:
    failed = read(framed(RULES[rule].events), "strict")[-1]
    assert isinstance(failed, Failed)
    assert (failed.failure, failed.code) == ("protocol", RULES[rule].code)
    assert failed.message.startswith("responses event ")


@pytest.mark.requirement("codecs-responses:compat")
@pytest.mark.parametrize("rule", RULES)
def test_the_compat_profile_repairs_what_is_known_and_fails_as_the_strict_one_otherwise(rule: str) -> None:
    broken = RULES[rule]
    expected = ("failed", broken.compat or broken.code) if broken.text is None else ("completed", broken.text)
    assert outcome(read(framed(broken.events), "compat")) == expected


@pytest.mark.requirement("codecs-responses:compat")
def test_what_is_repaired_says_the_same_as_the_good_stream() -> None:
    good = [entry for entry in read(framed(GOOD)) if type(entry) is ReasoningDelta]
    for name in ("a summary was never added", "an item is never done", "the output is missing", "no item is ever done"):
        said = read(framed(RULES[name].events))
        last = said[-1]
        assert [entry for entry in said if type(entry) is ReasoningDelta] == good
        assert isinstance(last, Completed)
        assert [(tool.id, tool.name, tool.arguments) for tool in last.tool_calls] == [("call_1", "tide", '{"n":1}')]


@pytest.mark.requirement("codecs-responses:strict")
def test_a_summary_that_is_left_out_when_reasoning_is_done_is_the_one_that_was_streamed() -> None:
    events = but(REASONING_AT + DONE, item=reasoning())
    assert outcome(read(framed(events), "strict")) == ("completed", TEXT)


@pytest.mark.requirement("codecs-responses:strict")
@pytest.mark.parametrize("name", ["a delta comes after its item is done", "the output is empty"])
def test_the_failure_names_the_event(name: str) -> None:
    failed = read(framed(RULES[name].events), "strict")[-1]
    assert isinstance(failed, Failed)
    assert failed.message in (
        "responses event response.output_text.delta: nothing comes of an item that is done",
        "responses event response.completed: the output must have as many items as were streamed",
    )
