"""The journal gives back what was committed; the log tells the relay what happened."""

import json
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.store.turns import SESSION, Redis, commit, discard, driven, granted, log_of, seal, taken
from worker import ids
from worker.codecs.events import ToolCall, Usage
from worker.codecs.messages import AssistantMessage, Echo, ToolMessage, UserMessage
from worker.codecs.toolargs import ToolCallPieces, parse_arguments
from worker.errors import StoreError
from worker.store import keys
from worker.store.accumulator import ExecutionOutputAccumulator
from worker.store.journal import (
    decode_facts,
    decode_failure,
    decode_totals,
    encode_committed,
    encode_decision,
    encode_fact,
    encode_failure,
    encode_totals,
    history,
)
from worker.store.log import LOG_VERSION, Newer, Unreadable, read_log
from worker.store.records import RECORD_VERSION
from worker.turn.commands import Failure
from worker.turn.facts import ApprovalAsked, ApprovalDecided, Committed, Compacted, Fact, ToolEnded, ToolStarted
from worker.turn.usage import NO_USAGE, UsageTotals

COUNTS = st.none() | st.integers(0, 10**9)
TEXT = st.text(max_size=40)
JSON = st.recursive(st.none() | st.booleans() | st.integers() | TEXT, lambda inner: st.lists(inner, max_size=3))
ARGUMENTS = TEXT | st.dictionaries(TEXT, JSON, max_size=3).map(json.dumps)
TOOL_CALLS = st.builds(
    lambda call_id, name, arguments, is_whole: ToolCall(
        call_id, name, arguments, parse_arguments(arguments) if is_whole else None
    ),
    TEXT,
    TEXT,
    ARGUMENTS,
    st.booleans(),
)
"""Also of answers whose provider never said that the arguments are whole, although they would parse."""
COMMITTED = st.builds(
    Committed,
    call=st.integers(1, 99),
    attempt=st.integers(1, 9),
    text=TEXT,
    tool_calls=st.lists(TOOL_CALLS, max_size=3).map(tuple),
    finish_reason=st.none() | TEXT,
    usage=st.none() | st.builds(Usage, COUNTS, COUNTS, COUNTS, COUNTS, COUNTS, COUNTS),
    provider=TEXT,
    echo=st.none()
    | st.builds(Echo, TEXT, TEXT, st.lists(st.dictionaries(TEXT, JSON, max_size=3), max_size=2).map(tuple)),
)
FACTS = st.lists(
    COMMITTED
    | st.builds(ToolStarted, st.integers(), st.integers())
    | st.builds(ToolEnded, st.integers(), st.integers(), TEXT, st.none() | TEXT)
    | st.builds(ApprovalAsked, st.integers(), st.integers(), TEXT)
    | st.builds(ApprovalDecided, st.integers(), st.integers(), TEXT, TEXT)
    | st.builds(
        Compacted, st.integers(), st.booleans(), st.integers(), st.integers(), st.none() | TEXT, st.integers(0, 99)
    )
)


@pytest.mark.requirement("store:journal:round-trip")
@given(facts=FACTS)
def test_facts_come_back_as_they_went(facts: list[Fact]) -> None:
    text = b""
    entries = []
    for fact in facts:
        match fact:
            case Committed():
                said = fact.text.encode()
                entries.append(encode_committed(fact, len(text), len(said)))
                text += said
            case ApprovalDecided(call=call, index=index, option=option, by=by):
                assert by is not None
                decision = encode_decision(option, by)
                assert not re.search(r"\s", decision), "a reply of a verb is stored as words"
                entries.append(f'{{"kind":"approval_decided","call":{call},"index":{index},{decision[1:]}')
            case _:
                entries.append(encode_fact(fact))
    assert list(decode_facts([entry.encode() for entry in entries], text)) == facts


@pytest.mark.requirement("store:journal:nested-arguments")
@pytest.mark.parametrize("depth", [60, 400, 900, 2_500, 10_000])
def test_arguments_come_back_as_they_went_however_deep_they_are_nested(depth: int) -> None:
    pieces = ToolCallPieces()
    pieces.add(0, "t1", "clock", '{"a":' * depth + "{}" + "}" * depth)
    fact = Committed(1, 1, "", pieces.calls("answer"), "tool_calls", None)
    assert decode_facts([encode_committed(fact, 0, 0).encode()], b"") == (fact,)


VERSION_1_TEXT = "Let me look. It is naïve.".encode()
VERSION_1 = [
    (
        b'{"kind": "committed", "call": 1, "attempt": 2, "offset": 0, "length": 13, "tool_calls": [{"id": "t1", "name":'
        b' "clock", "arguments": "{\\"zone\\": 1}"}], "finish_reason": "tool_calls", "usage": {"input_tokens": 11, '
        b'"output_tokens": 3, "total_tokens": null, "cached_input_tokens": null, "reasoning_tokens": null}}'
    ),
    b'{"kind": "tool_started", "call": 1, "index": 0}',
    b'{"kind": "tool_ended", "call": 1, "index": 0, "result": "noon", "failure": null}',
    (
        b'{"kind": "committed", "call": 2, "attempt": 1, "offset": 13, "length": 13, "tool_calls": [], "finish_reason":'
        b' "stop", "usage": null}'
    ),
]
"""A journal as version 1 wrote it."""


@pytest.mark.requirement("store:journal:version-1")
def test_a_journal_of_version_1_is_read() -> None:
    assert decode_facts(VERSION_1, VERSION_1_TEXT) == (
        Committed(
            1, 2, "Let me look. ", (ToolCall("t1", "clock", '{"zone": 1}', {"zone": 1}),), "tool_calls", Usage(11, 3)
        ),
        ToolStarted(1, 0),
        ToolEnded(1, 0, "noon", None),
        Committed(2, 1, "It is naïve.", (), "stop", None, provider="", echo=None),
    )


@pytest.mark.requirement("store:journal:version-1")
async def test_a_turn_that_version_1_began_is_driven_on(any_redis: Redis) -> None:
    grant = await granted(any_redis)
    turn, session = keys.turn_record(grant.turn), keys.session_record(0, SESSION)
    await any_redis.rpush(keys.journal(grant.turn), *VERSION_1)
    await any_redis.set(keys.text(grant.turn), VERSION_1_TEXT)
    await any_redis.hset(turn, mapping={"v": 1, "lease_ms": 1, "marker": len(VERSION_1_TEXT), "call": 2, "calls": 2})
    await any_redis.hset(session, mapping={"v": 1, "last_input_tokens": 11})
    await any_redis.hdel(turn, "requester", "streamed")
    grant = await taken(any_redis)
    assert len(grant.facts) == 4
    assert (grant.requester, grant.progress.streamed, grant.progress.granted) == (None, False, frozenset())
    assert grant.progress.last_input_tokens == 11
    assert await any_redis.hget(turn, "v") == await any_redis.hget(session, "v") == str(RECORD_VERSION).encode()
    await seal(ExecutionOutputAccumulator(any_redis, grant, lambda: True))


@pytest.mark.requirement("store:journal:echo")
@pytest.mark.parametrize(("depth", "is_kept"), [(2, True), (60, True), (150, False), (10_000, False)])
def test_what_a_provider_wants_back_comes_back_unless_it_is_nested_beyond_reading(depth: int, is_kept: bool) -> None:
    item: dict[str, object] = {"signature": "abc"}
    for level in range(depth - 1):
        item = {"inner": [item]} if level % 2 else {"inner": item}
    fact = Committed(1, 1, "", (), "stop", None, "main", Echo("main", "anthropic", ({"type": "thinking"}, item)))
    (read,) = decode_facts([encode_committed(fact, 0, 0).encode()], b"")
    assert read == (fact if is_kept else replace(fact, echo=None))


@given(totals=st.builds(UsageTotals, COUNTS, COUNTS, COUNTS, COUNTS, COUNTS, COUNTS, COUNTS))
def test_totals_come_back_as_they_went(totals: UsageTotals) -> None:
    assert decode_totals(encode_totals(totals).encode()) == totals


def test_failures_come_back_as_they_went() -> None:
    for failure in (None, Failure("internal", "bug", "Something of ours broke.")):
        assert decode_failure(encode_failure(failure).encode()) == failure


@pytest.mark.requirement("store:journal:unreadable")
@pytest.mark.parametrize(
    "entry",
    [
        b"",
        b"[]",
        b"{}",
        b'{"kind": "dream"}',
        b'{"kind": "tool_started", "call": 1}',
        b'{"kind": "committed", "call": 1, "attempt": 1, "offset": 0, "length": 5}',
    ],
)
def test_a_journal_that_holds_what_is_no_fact_is_an_error_that_shows_no_text(entry: bytes) -> None:
    with pytest.raises(StoreError, match=r"the journal (holds|refers to)") as raised:
        decode_facts([entry], b"sec")
    assert "sec" not in str(raised.value)


@pytest.mark.requirement("store:commit:one-step")
async def test_a_commit_brings_text_journal_usage_and_log_in_one_step(any_redis: Redis) -> None:
    accumulator = await driven(any_redis)
    await accumulator.open_call(1, 1, 0, True)
    calls = (ToolCall("a", "look", '{"at": 1}', {"at": 1}), ToolCall("b", "look", "{", None))
    fact = Committed(1, 1, "très bien", calls, "tool_calls", Usage(11, 5))
    await accumulator.commit(fact, UsageTotals(11, 5), [])
    text = await any_redis.get(keys.text(accumulator.turn))
    (entry,) = await any_redis.lrange(keys.journal(accumulator.turn), 0, -1)
    assert decode_facts([entry], text) == (fact,)
    assert b"bien" not in entry
    assert await any_redis.hget(keys.session_record(0, SESSION), "last_input_tokens") == b"11"
    assert decode_totals(await any_redis.hget(keys.turn_record(accumulator.turn), "totals")) == UsageTotals(11, 5)
    (logged,) = await log_of(any_redis)
    assert (logged.kind, logged.turn, logged.call, logged.outcome) == ("commit", accumulator.turn, 1, None)


@pytest.mark.requirement("store:commit:input-tokens")
async def test_a_call_that_reports_no_input_tokens_leaves_the_last_count(any_redis: Redis) -> None:
    accumulator = await driven(any_redis)
    for call, usage in ((1, Usage(11)), (2, Usage(None, 5)), (3, None)):
        await accumulator.open_call(call, 1, 0, True)
        await accumulator.commit(Committed(call, 1, "", (), "stop", usage), NO_USAGE, [])
    assert await any_redis.hget(keys.session_record(0, SESSION), "last_input_tokens") == b"11"


@pytest.mark.requirement("store:history:sealed-turns")
async def test_a_session_remembers_what_its_sealed_turns_said(any_redis: Redis) -> None:
    turns = []
    for number in range(3):
        accumulator = await driven(any_redis)
        turns.append(accumulator.turn)
        await accumulator.open_call(1, 1, 0, True)
        call = ToolCall("a", "look", "{}", {})
        await accumulator.commit(Committed(1, 1, f"{number}: ", (call,), "tool_calls", None), NO_USAGE, [])
        await accumulator.record(ToolEnded(1, 0, "seen", None), [])
        await accumulator.open_call(2, 1, 0, True)
        await commit(accumulator, 2, 1, "done")
        await seal(accumulator)
    said = await history(any_redis, SESSION, ids.new_turn(0), 10, 1)
    assert len(said) == 12
    assert said[4:8] == (
        UserMessage("hello"),
        AssistantMessage("1: ", (ToolCall("a", "look", "{}", {}),)),
        ToolMessage("a", "look", "seen"),
        AssistantMessage("done"),
    )
    assert await history(any_redis, SESSION, ids.new_turn(0), 1, 1) == said[8:]
    assert await history(any_redis, SESSION, turns[1], 10, 1) == said[:4]
    assert await history(any_redis, SESSION, ids.new_turn(0), 0, 1) == ()
    await any_redis.delete(keys.turn_record(turns[0]))
    assert await history(any_redis, SESSION, ids.new_turn(0), 10, 1) == said[4:]


@pytest.mark.requirement("store:log:order")
async def test_the_log_tells_each_event_once_in_order_with_the_id_that_its_op_gives_it(
    any_redis: Redis,
) -> None:
    accumulator = await driven(any_redis)
    await accumulator.open_call(1, 1, 0, True)
    await discard(accumulator, 1, 1)
    await discard(accumulator, 1, 1)
    await accumulator.open_call(1, 2, 1, False)
    await commit(accumulator, 1, 2, "text")
    await seal(accumulator)
    entries = await log_of(any_redis)
    nonce = (await any_redis.hget(keys.turn_record(accumulator.turn), "nonce")).decode()
    assert [(entry.kind, entry.event_id) for entry in entries] == [
        ("discard", ids.event_of(accumulator.turn, nonce, 2)),
        ("commit", ids.event_of(accumulator.turn, nonce, 5)),
        ("seal", ids.event_of(accumulator.turn, nonce, 6)),
    ]
    assert entries[-1].outcome == "completed"
    assert all(entry.at_ms > 0 for entry in entries)
    assert await read_log(any_redis, 0, entries[0].id, 1, 0) == [entries[1]]
    assert await read_log(any_redis, 0, entries[-1].id, 10, 10) == []


@pytest.mark.requirement("store:log:unreadable")
@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"v": 1, "kind": "dream"}, "its kind 'dream' is not known"),
        ({"v": 1, "kind": "seal", "outcome": "odd", "event": "e", "turn": "t", "call": 0}, "its outcome 'odd'"),
        ({"v": 1, "kind": "commit", "turn": "t", "call": 1}, "KeyError"),
        ({"v": "x", "kind": "commit"}, "ValueError"),
        ({"v": 1, "kind": "commit", "event": "e", "turn": "t", "call": b"\xff"}, "Error"),
    ],
)
async def test_an_entry_that_cannot_be_read_says_why_and_where_it_stands(
    fake_redis: Redis, fields: dict[str, object], why: str
) -> None:
    place = (await fake_redis.xadd(keys.log(0), fields)).decode()
    (entry,) = await log_of(fake_redis)
    assert isinstance(entry, Unreadable)
    assert entry.id == place
    assert why in entry.why


async def test_an_entry_of_a_newer_release_is_told_from_one_that_cannot_be_read(fake_redis: Redis) -> None:
    place = (await fake_redis.xadd(keys.log(0), {"v": LOG_VERSION + 1, "kind": "dream"})).decode()
    assert await log_of(fake_redis) == [Newer(place, LOG_VERSION + 1)]


def test_what_is_stored_of_totals_leaves_out_what_is_null() -> None:
    assert json.loads(encode_totals(UsageTotals(3))) == {"input_tokens": 3}
    assert decode_totals(b'{"input_tokens": 3, "of_a_newer_version": 1}') == UsageTotals(3)
