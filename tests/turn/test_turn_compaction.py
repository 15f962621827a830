"""What of a conversation goes, and what a recorded compaction does to it."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.codecs.events import ToolCall
from worker.codecs.messages import AssistantMessage, Message, Request, ToolMessage, UserMessage
from worker.codecs.wires import WIRES, codec_of
from worker.turn.compaction import CLEARED, DEFAULT, Plan, compacted, is_due, with_summary, without_summary
from worker.turn.facts import Committed, Compacted, Fact, Joined, ToolEnded
from worker.turn.start import CompactionTerms
from worker.turn.summary import HEADING, SUMMARY_CHARS, shortened
from worker.turn.transcript import Transcript, with_turn

TERMS = CompactionTerms(threshold=0.75, kept_results=3, kept_calls=1)
TURN = UserMessage("What is due?")
HISTORY: tuple[Message, ...] = (UserMessage("Hello."), AssistantMessage("Good day."))


def step(number: int, *results: str, text: str = "") -> tuple[Message, ...]:
    """An answer with so many tool calls, and their results."""
    calls = tuple(ToolCall(f"t{number}.{index}", "look", "{}", {}) for index in range(len(results)))
    return AssistantMessage(text, calls), *(ToolMessage(f"t{number}.{i}", "look", r) for i, r in enumerate(results))


def steps(*sizes: int) -> tuple[Message, ...]:
    """Answers that each call one tool, with results of so many characters."""
    return tuple(message for number, size in enumerate(sizes) for message in step(number, str(number) * size))


def results(messages: tuple[Message, ...]) -> list[str]:
    """The results that a model reads, cut to their first character; `-` for one that was cleared."""
    return ["-" if m.text == CLEARED else m.text[:1] for m in messages if isinstance(m, ToolMessage)]


def plan(messages: tuple[Message, ...], at: int, **changes: Any) -> Plan | None:
    """The default strategy's. `changes`: its arguments, or fields of its terms."""
    given_: dict[str, Any] = {"tokens": 900, "context_tokens": 1000, "forced": False}
    given_ |= {name: changes.pop(name) for name in list(changes) if name in given_}
    return DEFAULT.plan(
        messages,
        at,
        given_["tokens"],
        given_["context_tokens"],
        replace(TERMS, **changes),
        given_["forced"],
    )


def unanswered(messages: tuple[Message, ...]) -> Iterator[str]:
    """What every wire format would refuse."""
    due: list[tuple[str, str]] = []
    for place, message in enumerate(messages):
        if isinstance(message, ToolMessage):
            if (message.tool_call_id, message.name) not in due:
                yield f"a result without its call at {place}"
            else:
                due.remove((message.tool_call_id, message.name))
        elif due:
            yield f"a call without its result before {place}"
        if isinstance(message, AssistantMessage):
            due = [(call.id, call.name) for call in message.tool_calls]
            if place == 0:
                yield "an answer to nothing"
            if not message.text and not message.tool_calls:
                yield f"an empty answer at {place}"
    if due:
        yield "a call without its result at the end"


def said_on_the_wire(wire: str, messages: tuple[Message, ...]) -> list[tuple[str, str]]:
    """(`user`, `assistant`, `call` or `result`; the id) of everything in the request's body, in order."""
    body = json.loads(codec_of(wire).encode(Request(model="small", messages=messages)).body)
    assert "tools" not in body
    said: list[tuple[str, str]] = []
    for item in body["input"] if wire == "responses" else body["messages"]:
        match item:
            case {"type": "function_call", "call_id": call_id}:
                said.append(("call", call_id))
            case {"type": "function_call_output", "call_id": call_id} | {"role": "tool", "tool_call_id": call_id}:
                said.append(("result", call_id))
            case {"role": role, "content": [*blocks]} if wire == "anthropic":
                kinds = {"tool_use": "call", "tool_result": "result"}
                ids = [block.get("id") or block.get("tool_use_id") or "" for block in blocks]
                said += [(kinds.get(block["type"], role), each) for block, each in zip(blocks, ids, strict=True)]
            case {"role": role}:
                said.append((role, ""))
                said += [("call", call["id"]) for call in item.get("tool_calls", ())]
    return said


@pytest.mark.requirement("compaction:due")
@pytest.mark.parametrize(
    ("tokens", "context", "due"),
    [(749, 1000, False), (750, 1000, True), (1200, 1000, True), (None, 1000, False), (900, None, False)],
)
def test_it_is_due_from_the_threshold_on_and_never_where_a_number_is_not_known(
    tokens: int | None, context: int | None, due: bool
) -> None:
    assert is_due(tokens, context, TERMS) is due


@pytest.mark.requirement("compaction:results")
@pytest.mark.parametrize(("kept", "expected"), [(0, "----"), (1, "---3"), (3, "-123"), (4, "0123"), (9, "0123")])
def test_old_results_become_a_fixed_text_and_the_last_ones_stay(kept: int, expected: str) -> None:
    messages = (*HISTORY, TURN, *steps(500, 500, 500, 500))
    after, at = compacted(messages, 2, Compacted(5, False, kept))
    assert results(after) == list(expected)
    assert at == 2
    assert [type(message) for message in after] == [type(message) for message in messages]
    assert [m for m in after if not isinstance(m, ToolMessage)] == [
        m for m in messages if not isinstance(m, ToolMessage)
    ]


@pytest.mark.requirement("compaction:results")
def test_a_result_that_is_no_longer_than_the_fixed_text_stays() -> None:
    messages = (TURN, *steps(len(CLEARED), len(CLEARED) + 1))
    assert results(compacted(messages, 0, Compacted(3, False, 0))[0]) == ["0", "-"]


@pytest.mark.requirement("compaction:summary")
@pytest.mark.parametrize(("kept_calls", "first_kept"), [(0, None), (1, 2), (2, 1), (3, 0), (9, 0)])
def test_a_summary_stands_for_all_but_the_turns_message_and_its_last_answers(
    kept_calls: int, first_kept: int | None
) -> None:
    answers = [step(0, "00", "0", text="Let me look."), step(1, "1"), step(2, "2", "22")]
    messages = (*HISTORY, *step(9, "9"), TURN, *answers[0], *answers[1], *answers[2])
    after, at = compacted(messages, 4, Compacted(4, False, 9, kept_calls, "All is well."))
    kept = [message for answer in answers[len(answers) if first_kept is None else first_kept :] for message in answer]
    assert after == (UserMessage(f"{HEADING}\n\nAll is well."), TURN, *kept)
    assert at == 1


@pytest.mark.requirement("compaction:summary")
def test_a_request_to_answer_again_belongs_to_the_answer_that_it_follows() -> None:
    nudge = UserMessage("Answer now.")
    messages = (TURN, nudge, *step(0, "0"), nudge, *step(1, "1"), nudge)
    after, _ = compacted(messages, 0, Compacted(4, False, 9, 1, "Well."))
    assert after[1:] == (TURN, *step(1, "1"), nudge)


@pytest.mark.requirement("compaction:joined")
@pytest.mark.parametrize("kept_calls", [0, 1])
def test_what_joined_the_turn_stays_word_for_word_beside_a_summary(kept_calls: int) -> None:
    """It is as little answered as the message that began the turn."""
    joined = [Joined(2, "turn_b", "Send it to Bob."), Joined(2, "turn_c", "Never to Eve.")]
    facts: list[Fact] = [
        Committed(1, 1, "Looking. " * 90, (ToolCall("t1", "look", "{}", {}),), "tool_calls", None),
        ToolEnded(1, 0, "r1", None),
        *joined,
        Committed(2, 1, "On it. " * 90, (ToolCall("t2", "look", "{}", {}),), "tool_calls", None),
        ToolEnded(2, 0, "r2", None),
    ]
    transcript = Transcript((*HISTORY, UserMessage("h" * 9000)), TURN.text, facts)
    messages, at = transcript.conversation()
    chosen = plan(messages, at, kept_calls=kept_calls)
    assert chosen is not None
    assert "Bob" not in str(chosen.summary_request)
    transcript.add(replace(with_summary(chosen, "Short."), before_call=3))
    after, at = transcript.conversation()
    told = [message for message in after if isinstance(message, UserMessage)]
    assert [message.text for message in told[1:]] == [TURN.text, *(each.text for each in joined)]
    assert after[at] == TURN
    assert len(after) == 4 + 2 * kept_calls


@pytest.mark.requirement("compaction:summary")
def test_a_summary_that_came_out_far_too_long_is_cut() -> None:
    after, _ = compacted((*HISTORY, TURN), 2, Compacted(1, False, 3, 1, "x" * 10 * SUMMARY_CHARS))
    assert len(after[0].text) < SUMMARY_CHARS + len(HEADING) + 100


# The strategy.


@pytest.mark.requirement("compaction:results-first")
def test_when_dropping_old_results_is_enough_no_summary_is_asked_for() -> None:
    chosen = plan((TURN, *steps(1000, 500, 500, 500)), 0)
    assert chosen == Plan(Compacted(0, False, 3, results_cleared=1, messages_before=9, messages_after=9))
    assert without_summary(chosen) == chosen.fact


@pytest.mark.requirement("compaction:results-first")
@pytest.mark.parametrize(("tokens", "asks"), [(760, False), (800, False), (1000, True)])
def test_the_estimate_takes_the_share_of_the_characters_from_the_tokens_that_were_reported(
    tokens: int, asks: bool
) -> None:
    """Of some 10,000 characters 1,850 go: 760 and 800 tokens come below 750, 1,000 do not."""
    chosen = plan((*HISTORY, TURN, *steps(2000, 3000, 2500, 2500)), 2, tokens=tokens)
    assert chosen is not None
    assert chosen.fact.results_cleared == 1
    assert (chosen.summary_request is not None) is asks


@pytest.mark.requirement("compaction:results-first")
def test_results_that_the_model_has_not_read_stay() -> None:
    messages = (TURN, *steps(3000), *step(1, *("1" * 500 for _ in range(5))))
    chosen = plan(messages, 0)
    assert chosen is not None
    assert chosen.fact.kept_results == 5
    assert results(compacted(messages, 0, chosen.fact)[0]) == list("-11111")


@pytest.mark.requirement("compaction:summary-when-needed")
def test_a_summary_is_asked_for_what_it_will_replace_and_recorded_with_its_text() -> None:
    old = (UserMessage("My name is Ada. " * 200), AssistantMessage("Noted."))
    messages = (*old, TURN, *step(0, "the list", text="Let me look."), *step(1, "the mail"))
    chosen = plan(messages, 2)
    assert chosen is not None
    assert chosen.summary_request is not None
    (asked,) = chosen.summary_request
    assert [said_on_the_wire(wire, chosen.summary_request) for wire in WIRES] == [[("user", "")]] * 3
    for told in ("My name is Ada.", "Noted.", "Let me look.", "calls look", "the list", "What is due?"):
        assert told in asked.text
    assert "the mail" not in asked.text
    fact = with_summary(chosen, "Ada asked.")
    after, at = compacted(messages, 2, fact)
    assert after == (UserMessage(f"{HEADING}\n\nAda asked."), TURN, *step(1, "the mail"))
    assert fact == Compacted(0, False, 3, 1, "Ada asked.", results_cleared=1, messages_before=7, messages_after=4)
    assert at == 1


@pytest.mark.requirement("compaction:summary-when-needed")
@pytest.mark.parametrize("changes", [{"summarises": False}, {}], ids=["switched off", "little to sum up"])
def test_no_summary_is_asked_for_when_it_is_switched_off_or_would_free_too_little(changes: dict[str, Any]) -> None:
    messages = (UserMessage("Hello."), AssistantMessage("Yes?"), UserMessage("u" * 5000), *steps(300, 300, 300, 300))
    chosen = plan(messages, 2, **changes)
    assert chosen is not None
    assert chosen.summary_request is None
    assert chosen.fact.results_cleared == 1


@pytest.mark.requirement("compaction:summary-when-needed")
def test_when_no_summary_was_to_be_had_old_results_go_all_the_same() -> None:
    messages = (UserMessage("u" * 9000), AssistantMessage("Yes?"), TURN, *steps(500, 100, 100, 100))
    chosen = plan(messages, 2)
    assert chosen is not None
    assert chosen.summary_request is not None
    fact = without_summary(chosen)
    assert fact is not None
    assert results(compacted(messages, 2, fact)[0]) == list("-123")
    assert fact.summary is None


@pytest.mark.requirement("compaction:nothing-to-do")
@pytest.mark.parametrize("forced", [False, True])
@pytest.mark.parametrize("messages", [(TURN,), (UserMessage("u" * 9000),)], ids=["one message", "one long message"])
def test_where_nothing_can_be_made_shorter_there_is_no_plan(messages: tuple[Message, ...], forced: bool) -> None:
    assert plan(messages, 0, forced=forced) is None


@pytest.mark.requirement("compaction:nothing-to-do")
def test_without_a_summary_a_plan_that_clears_nothing_records_nothing() -> None:
    chosen = plan((UserMessage("u" * 9000), AssistantMessage("Yes?"), TURN), 2)
    assert chosen is not None
    assert chosen.summary_request is not None
    assert without_summary(chosen) is None


@pytest.mark.requirement("compaction:forced")
@pytest.mark.parametrize("tokens", [None, 10])
@pytest.mark.parametrize(("first", "asks"), [(4000, False), (1000, True)])
def test_after_an_overflow_a_quarter_must_go_or_a_summary_is_asked_for(
    tokens: int | None, first: int, asks: bool
) -> None:
    """What was reported before the overflow says little about it."""
    chosen = plan((*HISTORY, TURN, *steps(first, 1500, 1500, 1500)), 2, forced=True, tokens=tokens)
    assert chosen is not None
    assert chosen.fact.forced
    assert (chosen.summary_request is not None) is asks


@pytest.mark.requirement("compaction:forced")
def test_after_an_overflow_the_last_results_go_too_if_they_are_what_is_too_long() -> None:
    messages = (TURN, *steps(200), *step(1, "1" * 90_000))
    chosen = plan(messages, 0, forced=True, context_tokens=None, tokens=None)
    assert chosen is not None
    assert chosen.summary_request is not None
    assert len(chosen.summary_request[0].text) < 50_000
    assert "1111" in chosen.summary_request[0].text
    assert compacted(messages, 0, with_summary(chosen, "Ones."))[0] == (UserMessage(f"{HEADING}\n\nOnes."), TURN)
    fact = without_summary(chosen)
    assert fact is not None
    assert results(compacted(messages, 0, fact)[0]) == list("--")
    switched_off = plan(messages, 0, forced=True, summarises=False)
    assert switched_off is not None
    assert without_summary(switched_off) == fact


# The request for a summary.


@pytest.mark.requirement("compaction:request-fits")
@given(
    st.lists(st.integers(0, 30_000), min_size=1, max_size=60),
    st.integers(100, 20_000),
    st.sampled_from([256, 8_000, 100_000]),
)
def test_the_request_holds_at_most_half_of_the_context(sizes: list[int], tokens: int, context: int) -> None:
    messages = (*HISTORY, *steps(*sizes), TURN)
    chosen = plan(messages, len(messages) - 1, tokens=tokens, context_tokens=context, forced=True, kept_results=1000)
    if chosen is None or chosen.summary_request is None:
        return
    assert chosen.instructions
    (asked,) = chosen.summary_request
    per_entry = 120
    entries = min(2 * len(sizes) + 4, 2 * context // 200 + 6)
    assert len(asked.text) <= max(4 * context // 2, 600) + entries * per_entry + 200


@pytest.mark.requirement("compaction:request-fits")
def test_of_long_texts_the_middle_goes_and_short_ones_stay_whole() -> None:
    messages = (UserMessage("Begin " + "m" * 50_000 + " end"), AssistantMessage("The number is 4711."), TURN)
    chosen = plan(messages, 2, context_tokens=4000, tokens=40_000)
    assert chosen is not None
    assert chosen.summary_request is not None
    asked = chosen.summary_request[0].text
    for kept in ("Begin mmm", "mmm end", "characters left out]", "The number is 4711.", "What is due?"):
        assert kept in asked
    assert len(asked) < 3000


@pytest.mark.requirement("compaction:request-fits")
def test_of_very_many_messages_the_first_and_the_last_stay() -> None:
    old = tuple(m for n in range(3000) for m in (UserMessage(f"question {n}."), AssistantMessage(f"answer {n}.")))
    chosen = plan((*old, TURN), len(old), tokens=80_000, context_tokens=8_000)
    assert chosen is not None
    assert chosen.summary_request is not None
    asked = chosen.summary_request[0].text
    assert "question 0." in asked
    assert "answer 2999." in asked
    assert "messages\n" in asked
    assert "question 100." not in asked


@given(st.text(max_size=80), st.integers(0, 90))
def test_a_text_is_cut_in_its_middle_and_says_how_much_is_missing(text: str, limit: int) -> None:
    short = shortened(text, limit)
    if len(text) <= limit:
        assert short == text
    else:
        head = limit - limit // 3
        marker = f"\n[{len(text) - limit} characters left out]\n"
        assert short == text[:head] + marker + text[len(text) - (limit - head) :]


# Whole journals.

WORDS = st.sampled_from(["", "yes", "w" * 300, "w" * 3000])
CALLS = st.lists(WORDS, max_size=3)
ANSWERS = st.tuples(st.sampled_from(["", "Let me look.", "l" * 900]), CALLS)
TOKENS = st.sampled_from([None, 100, 800, 5000])
JOINING = st.tuples(st.sampled_from(["And Bob?", "b" * 900]))
HAPPENINGS = st.lists(st.one_of(ANSWERS, JOINING, st.tuples(TOKENS, st.booleans(), st.booleans())), max_size=14)
TERMS_OF_ANY_KIND = st.builds(
    CompactionTerms,
    kept_results=st.integers(0, 4),
    kept_calls=st.integers(0, 3),
    summarises=st.booleans(),
)


def lived(history: tuple[Message, ...], happenings: list[Any], terms: CompactionTerms) -> Iterator[Transcript]:
    """A turn as its first driver goes through it: its transcript before each call."""
    transcript = Transcript(history, TURN.text, ())
    call = 0
    for happening in happenings:
        if len(happening) == 1:
            transcript.add(Joined(call + 1, "turn_b", happening[0]))
        elif len(happening) == 2:
            text, outcomes = happening
            call += 1
            calls = tuple(ToolCall(f"t{call}.{i}", "look", "{}", {}) for i in range(len(outcomes)))
            transcript.add(Committed(call, 1, text, calls, "tool_calls" if calls else "stop", None))
            for index in reversed(range(len(outcomes))):
                transcript.add(ToolEnded(call, index, outcomes[index], None))
        else:
            tokens, forced, has_summary = happening
            messages, at = transcript.conversation()
            chosen = DEFAULT.plan(messages, at, tokens, 1000, terms, forced)
            if chosen is not None:
                summarised = chosen.summary_request is not None and has_summary
                fact = with_summary(chosen, "Short.") if summarised else without_summary(chosen)
                if fact is not None:
                    transcript.add(replace(fact, before_call=call + 1))
        yield transcript


@pytest.mark.requirement("compaction:same-for-every-driver")
@given(st.booleans(), HAPPENINGS, TERMS_OF_ANY_KIND)
def test_whoever_reads_the_journal_sees_the_conversation_that_its_writer_saw(
    has_history: bool, happenings: list[Any], terms: CompactionTerms
) -> None:
    history = (*HISTORY, *step(99, "9" * 999)) if has_history else ()
    for transcript in lived(history, happenings, terms):
        again = Transcript(history, TURN.text, transcript.facts)
        assert again.conversation() == transcript.conversation()
        assert again.messages("main") == transcript.messages("main")


@pytest.mark.requirement("compaction:legal")
@given(st.booleans(), HAPPENINGS, TERMS_OF_ANY_KIND)
def test_what_is_left_is_a_conversation_that_every_wire_format_takes(
    has_history: bool, happenings: list[Any], terms: CompactionTerms
) -> None:
    history = (*HISTORY, *step(99, "9" * 999)) if has_history else ()
    messages: tuple[Message, ...] = (TURN,)
    for transcript in lived(history, happenings, terms):
        messages, at = transcript.conversation()
        assert messages[at] == TURN
        assert list(unanswered(messages)) == []
        assert list(unanswered(with_turn(history, TURN.text, transcript.facts))) == []
    for wire in WIRES:
        due: list[str] = []
        for place, (kind, tool_call_id) in enumerate(said_on_the_wire(wire, messages)):
            assert place > 0 or kind == "user"
            if kind == "call":
                due.append(tool_call_id)
            elif kind == "result":
                due.remove(tool_call_id)
            else:
                assert due == []
        assert due == []


@pytest.mark.requirement("compaction:idempotent")
@given(st.booleans(), HAPPENINGS, TERMS_OF_ANY_KIND)
def test_a_fact_applied_a_second_time_changes_nothing_and_says_what_it_did(
    has_history: bool, happenings: list[Any], terms: CompactionTerms
) -> None:
    history = (*HISTORY, *step(99, "9" * 999)) if has_history else ()
    before: tuple[Message, ...] = (*history, TURN)
    seen: list[Fact] = []
    for transcript in lived(history, happenings, terms):
        messages, at = transcript.conversation()
        new = transcript.facts[len(seen) :]
        if new and isinstance(fact := new[-1], Compacted):
            assert compacted(messages, at, fact) == (messages, at)
            assert (fact.messages_before, fact.messages_after) == (len(before), len(messages))
            lost = [m for m in before if isinstance(m, ToolMessage) and m.text != CLEARED and m not in messages]
            assert fact.results_cleared == len(lost)
            assert messages != before
        seen = list(transcript.facts)
        before = messages
