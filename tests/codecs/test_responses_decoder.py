"""The Responses decoder: its ends, its limits, and streams that nobody wrote by hand."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

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
    read_in_pieces,
    reasoning,
    reasoning_events,
    response,
    whole,
    written,
)
from worker.codecs.events import (
    Completed,
    Failed,
    FailureClass,
    Keepalive,
    ReasoningDelta,
    StreamEvent,
    TextDelta,
    Usage,
    UsageReported,
)
from worker.codecs.limits import DEFAULT_LIMITS, Profile, StreamLimits
from worker.codecs.openai_responses import ResponsesCodec

STREAMS = {path.stem: path.read_bytes() for path in (Path(__file__).parent / "streams" / "responses").glob("*.sse")}
PROFILES: list[Profile] = ["compat", "strict"]
GOOD = whole(reasoning_events(0, "Hm"), message_events(1, "Ni", "ne"), call_events(2, "{}"))
DEEP = json.loads('{"a":' * 900 + "1" + "}" * 900)


def completion(events: list[StreamEvent]) -> Completed:
    last = events[-1]
    assert isinstance(last, Completed)
    return last


def ended(kind: str, status: str | None, **fields: Any) -> list[StreamEvent]:
    return read(framed([GOOD[0], event(kind, response=response(status, [], **fields))]))


@pytest.mark.requirement("codecs-responses:terminal")
@pytest.mark.parametrize("kind", ["response.completed", "response.done"])
def test_a_terminal_event_completes_the_call_at_once_and_nothing_is_read_after_it(kind: str) -> None:
    events = [*GOOD[:-1], {**GOOD[-1], "type": kind}]
    decoder = ResponsesCodec().decoder()
    said = decoder.feed(framed([*events, *GOOD]))
    assert isinstance(said[-1], Completed)
    assert not decoder.finishing
    assert decoder.feed(framed(GOOD)) == []
    assert decoder.close() == []


@pytest.mark.requirement("codecs-responses:terminal")
@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("end", [b"", b"data: [DONE]\n\n", b": bye\n\n", b'data: {"type":"response.completed","resp'])
def test_a_stream_without_a_terminal_event_dies_even_if_all_its_items_are_done(end: bytes, profile: Profile) -> None:
    assert outcome(read(framed(GOOD[:-1]) + end, profile)) == ("died", "Nine")


@pytest.mark.requirement("codecs-responses:terminal")
@pytest.mark.parametrize(
    ("kind", "status", "fields", "finish"),
    [
        ("response.completed", "completed", {}, "stop"),
        ("response.incomplete", "incomplete", {"incomplete_details": {"reason": "max_output_tokens"}}, "length"),
        ("response.incomplete", "incomplete", {"incomplete_details": {"reason": "content_filter"}}, "content_filter"),
        ("response.incomplete", "incomplete", {"incomplete_details": {"reason": "max_time"}}, "length"),
        ("response.incomplete", "incomplete", {"incomplete_details": {}}, "length"),
        ("response.incomplete", None, {"incomplete_details": None}, "length"),
        ("response.completed", "incomplete", {}, "length"),
        ("response.completed", "completed", {"incomplete_details": {"reason": "max_output_tokens"}}, "length"),
        ("response.done", None, {}, "stop"),
    ],
)
def test_the_finish_reason_is_a_word_of_ours(kind: str, status: str | None, fields: Event, finish: str) -> None:
    assert completion(ended(kind, status, **fields)).finish_reason == finish


@pytest.mark.requirement("codecs-responses:terminal")
def test_the_providers_own_words_are_kept_beside_ours() -> None:
    decoder = ResponsesCodec().decoder()
    assert (decoder.finish_reason, decoder.raw_usage, decoder.raw_error, decoder.tool_calls) == (None, None, None, ())
    usage = {"input_tokens": 1}
    details = {"reason": "max_output_tokens"}
    cut = response("incomplete", [], incomplete_details=details, usage=usage)
    decoder.feed(framed([GOOD[0], event("response.incomplete", response=cut)]))
    assert (decoder.finish_reason, decoder.raw_usage) == ("incomplete", usage)


ERRORS: list[tuple[Event, FailureClass, str]] = [
    (event("error", code="server_error", message="m", param=None), "retryable", "server_error"),
    (event("error", error={"code": "insufficient_quota", "message": "m"}), "refused", "insufficient_quota"),
    (
        event("error", error={"code": "context_length_exceeded", "message": "m"}),
        "context_overflow",
        "context_length_exceeded",
    ),
    (event("response.error", error={"code": "invalid_prompt", "message": "m"}), "refused", "invalid_prompt"),
    ({"error": {"code": 503, "message": "m"}, "named": NO_NAME}, "retryable", "503"),
    ({"message": "m", "code": "rate_limit_exceeded", "named": "error"}, "retryable", "rate_limit_exceeded"),
    (
        event("response.failed", response=response("failed", error={"code": "server_error", "message": "m"})),
        "retryable",
        "server_error",
    ),
    (
        event("response.failed", response=response("failed", error={"code": "content_filter", "message": "m"})),
        "content_filter",
        "content_filter",
    ),
    (
        event("response.failed", response=response("failed", error={"message": "m", "retry_after": 7})),
        "retryable",
        "failed",
    ),
    (
        event("response.done", response=response(None, error={"code": "invalid_image", "message": "m"})),
        "refused",
        "invalid_image",
    ),
    (event("response.cancelled", response=response("cancelled", error={"message": "m"})), "retryable", "cancelled"),
]


@pytest.mark.requirement("codecs-responses:errors")
@pytest.mark.parametrize(("error", "failure", "code"), ERRORS)
def test_an_error_of_any_form_ends_the_answer_in_its_class(error: Event, failure: FailureClass, code: str) -> None:
    decoder = ResponsesCodec().decoder()
    said = decoder.feed(framed([*GOOD[:12], error, *GOOD[12:]]))
    failed = said[-1]
    assert isinstance(failed, Failed)
    assert (failed.failure, failed.message) == (failure, "m")
    assert code in (failed.code, decoder.finish_reason)
    assert decoder.raw_error
    assert decoder.close() == []


@pytest.mark.requirement("codecs-responses:errors")
def test_an_error_keeps_what_was_said_before_it_and_the_time_to_wait() -> None:
    error = event(
        "response.failed",
        response=response("failed", error={"message": "m", "retry_after": 7}, usage={"input_tokens": 3}),
    )
    said = read(framed([*GOOD[:11], error]))
    assert [entry for entry in said if not isinstance(entry, Keepalive)] == [
        ReasoningDelta("Hm"),
        TextDelta("Ni"),
        UsageReported(Usage(input_tokens=3)),
        Failed("retryable", "m", None, 7.0),
    ]


@pytest.mark.requirement("codecs-responses:usage")
def test_usage_is_given_in_our_words_and_what_is_no_count_is_unknown() -> None:
    usage = {
        "input_tokens": 9,
        "output_tokens": "many",
        "total_tokens": True,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 1},
        "output_tokens_details": {"reasoning_tokens": 2},
    }
    ours = Usage(9, None, None, 4, 2, 1)
    assert ended("response.completed", "completed", usage=usage)[-2:] == [
        UsageReported(ours),
        Completed("stop", (), ours),
    ]
    nothings: list[Any] = [None, {}, "free", [1]]
    for nothing in nothings:
        assert completion(ended("response.completed", "completed", usage=nothing)).usage is None


LIMITS = {
    "line_too_long": (StreamLimits(line_bytes=300), message_events(0, "x" * 300)),
    "event_too_long": (StreamLimits(event_bytes=300), message_events(0, "x" * 300)),
    "stream_too_long": (StreamLimits(stream_bytes=900), message_events(0, "x" * 300)),
    "index_too_high": (StreamLimits(index=3), message_events(4, "x")),
    "text_too_long": (StreamLimits(text_chars=5), [*reasoning_events(0, "123"), *message_events(1, "456")]),
    "arguments_too_long": (StreamLimits(argument_chars=5), call_events(0, '{"a":', "1}")),
    "too_many_tool_calls": (StreamLimits(tool_calls=1), [*call_events(0), *call_events(1, item_id="f2", call_id="c2")]),
}


@pytest.mark.requirement("codecs-responses:limits")
@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("code", LIMITS)
def test_each_limit_ends_the_answer_with_its_own_code(code: str, profile: Profile) -> None:
    limits, items = LIMITS[code]
    data = framed([GOOD[0], *items])
    failed = read(data, profile, limits)[-1]
    assert isinstance(failed, Failed)
    assert (failed.failure, failed.code) == ("protocol", code)
    assert outcome(read(data, profile))[0] == "died"


@pytest.mark.requirement("codecs-responses:limits")
def test_the_text_that_waits_for_its_turn_counts_too() -> None:
    first, second = message_events(0, "12"), message_events(1, "3456", item_id="msg_2")
    data = framed([GOOD[0], *first[:2], *second])
    failed = read(data, limits=StreamLimits(text_chars=3))[-1]
    assert isinstance(failed, Failed)
    assert failed.code == "text_too_long"


@pytest.mark.requirement("codecs-responses:limits")
@pytest.mark.parametrize("profile", PROFILES)
def test_an_answer_of_endless_empty_parts_is_ended(profile: Profile) -> None:
    events = [GOOD[0]]
    for index in range(9):
        events.append(added(index, message(item_id=f"m{index}")))
        place = {"item_id": f"m{index}", "output_index": index, "part": {"type": "output_text", "text": ""}}
        events += [event("response.content_part.added", content_index=part, **place) for part in range(1000)]
    assert outcome(read(framed(events), profile)) == ("failed", "too_many_parts")


@pytest.mark.requirement("codecs-responses:echo")
def test_the_echo_is_the_items_as_they_were_sent_where_reasoning_came_encrypted() -> None:
    secret = {**reasoning(), "encrypted_content": "gAAAA", "x": 1}
    open_one = reasoning(item_id="rs_2")
    items = [[added(0, secret), done(0, secret)], message_events(1, "Hi"), [added(2, open_one), done(2, open_one)]]
    events = whole(*items, call_events(3, "{}"))
    for profile in PROFILES:
        echo = completion(read(framed(events), profile)).echo
        assert echo == (secret, message("Hi"), call("{}"))
    assert completion(read(framed(whole(*items[1:])))).echo == ()


@pytest.mark.requirement("codecs-responses:echo")
def test_the_echo_has_the_ids_that_the_provider_gave_last_and_none_of_ours() -> None:
    secret = {**reasoning(), "encrypted_content": "gAAAA"}
    events = [
        GOOD[0],
        added(0, {**secret, "id": "a"}),
        done(0, {**secret, "id": "b"}),
        *message_events(1, "Hi")[:3],
        event("response.completed", response=response("completed", [])),
    ]
    unfinished = {key: value for key, value in message("Hi").items() if key != "id"}
    assert completion(read(framed(events))).echo == ({**secret, "id": "b"}, {**unfinished, "status": "completed"})


@pytest.mark.requirement("codecs-responses:tool-calls")
def test_a_call_that_was_cut_off_is_never_whole() -> None:
    decoder = ResponsesCodec().decoder()
    decoder.feed(framed([GOOD[0], *call_events(0, "{", '"a":1}')[:2]]))
    assert [tool.arguments_json for tool in decoder.tool_calls] == [None]
    cut = call_events(0)[:1]
    end = event("response.incomplete", response=response("incomplete", []))
    last = completion(read(framed([GOOD[0], *cut, end])))
    assert (last.finish_reason, [tool.arguments_json for tool in last.tool_calls]) == ("length", [None])


@pytest.mark.requirement("codecs-responses:tool-calls")
def test_arguments_that_come_as_an_object_are_read_and_those_nested_too_deeply_are_no_object() -> None:
    end = event("response.completed", response=response("completed", [{**call(), "arguments": {"a": [1]}}]))
    assert completion(read(framed([GOOD[0], end]))).tool_calls[0].arguments_json == {"a": [1]}
    deep = "[" * 100 + "]" * 100
    assert completion(read(framed(whole(call_events(0, deep))), "strict")).tool_calls[0].arguments_json is None


@pytest.mark.requirement("codecs-responses:never-raises")
@pytest.mark.parametrize(
    "field", ["type", "item", "item_id", "output_index", "part", "delta", "response", "error", "content_index"]
)
@pytest.mark.parametrize("profile", PROFILES)
def test_a_field_nested_very_deeply_never_raises(field: str, profile: Profile) -> None:
    for entry in GOOD:
        for value in (DEEP, [DEEP]):
            read(framed([*GOOD[:4], {**entry, field: value, "named": entry["type"]}]), profile)
            for inner in ("item", "response", "part"):
                if inner in entry:
                    for key in ("type", "id", "status", "output", "arguments", "content", "summary", "text", "call_id"):
                        read(framed([GOOD[0], {**entry, inner: {**entry[inner], key: value}}]), profile)


# Answers that nobody wrote by hand.

TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
PIECES = st.lists(TEXT, max_size=4)
ITEMS = st.lists(st.tuples(st.sampled_from(["message", "call", "reasoning"]), PIECES), min_size=1, max_size=5)


def item_events(index: int, kind: str, pieces: list[str]) -> list[Event]:
    if kind == "message":
        return message_events(index, *pieces, item_id=f"msg_{index}")
    if kind == "reasoning":
        return reasoning_events(index, *pieces, item_id=f"rs_{index}")
    return call_events(index, *pieces, item_id=f"fc_{index}", call_id=f"call_{index}")


def told(events: list[StreamEvent]) -> tuple[str, str, list[tuple[str, str]]]:
    last = completion(events)
    return (
        "".join(entry.text for entry in events if isinstance(entry, TextDelta)),
        "".join(entry.text for entry in events if isinstance(entry, ReasoningDelta)),
        [(tool.id, tool.arguments) for tool in last.tool_calls],
    )


def meant(items: list[tuple[str, list[str]]]) -> tuple[str, str, list[tuple[str, str]]]:
    return (
        "".join("".join(pieces) for kind, pieces in items if kind == "message"),
        "".join("".join(pieces) for kind, pieces in items if kind == "reasoning"),
        [(f"call_{index}", "".join(pieces)) for index, (kind, pieces) in enumerate(items) if kind == "call"],
    )


@pytest.mark.requirement("codecs-responses:interleaved")
@settings(deadline=None)
@given(ITEMS, st.data())
def test_items_may_be_interleaved_in_any_way_and_the_answer_is_in_their_order(
    items: list[tuple[str, list[str]]], draw: st.DataObject
) -> None:
    queues = [item_events(index, kind, pieces) for index, (kind, pieces) in enumerate(items)]
    said = whole(*queues)
    left = [list(queue) for queue in queues]
    mixed: list[Event] = []
    while waiting := [queue for queue in left if queue]:
        mixed.append(draw.draw(st.sampled_from(waiting)).pop(0))
    last = -1
    in_order = True  # an item must be announced before text of a later one is given
    for entry in mixed:
        if entry["type"] == "response.output_item.added":
            in_order = in_order and entry["output_index"] > last
            last = max(last, entry["output_index"])
    assume(in_order)
    for profile in PROFILES:
        text, _, calls = told(read(framed([*said[:2], *mixed, said[-1]]), profile))
        assert (text, calls) == (meant(items)[0], meant(items)[2])


DEVIATIONS = [
    "other ids", "no numbers", "no names", "no parts", "no values", "no items done", "no items added", "no deltas",
    "empty output", "no created", "no indices", "no part indices", "other ids at the end", "keepalives",
]  # fmt: skip


LEFT_OUT = {
    "no parts": ("content_part.added", "content_part.done", "summary_part.added", "summary_part.done"),
    "no values": ("_text.done", "arguments.done"),
    "no items done": ("output_item.done",),
    "no items added": ("output_item.added",),
    "no deltas": (".delta",),
    "no created": ("response.created",),
}


def deviated(events: list[Event], how: set[str]) -> list[Event]:
    """The events of a documented answer as a server with these deviations would send them."""
    suffixes = tuple(suffix for name in how for suffix in LEFT_OUT.get(name, ()))
    kept = [entry for entry in events if not suffixes or not entry["type"].endswith(suffixes)]
    sent: list[Event] = []
    for number, entry in enumerate(json.loads(json.dumps(kept))):
        if "other ids" in how and "item" in entry:
            entry["item"]["id"] = f"x{number}"
        if "other ids" in how and "item_id" in entry:
            entry["item_id"] = f"x{number}"
        if "no indices" in how:
            entry.pop("output_index", None)
        if "no part indices" in how:
            entry.pop("content_index", None)
            entry.pop("summary_index", None)
        if "no names" in how:
            entry["named"] = NO_NAME
        if "output" in entry.get("response", {}) and entry["type"] == "response.completed":
            output = entry["response"]["output"]
            for place, item in enumerate(output if {"other ids", "other ids at the end"} & how else ()):
                item["id"] = f"y{place}"
            entry["response"]["output"] = [] if "empty output" in how else output
        sent.append(entry)
        if "keepalives" in how:
            sent.append(event("keepalive"))
    return sent


@pytest.mark.requirement("codecs-responses:deviations")
@settings(deadline=None, max_examples=200)
@given(ITEMS, st.sets(st.sampled_from(DEVIATIONS)))
def test_an_answer_says_the_same_with_any_deviations_that_leave_it_whole(
    items: list[tuple[str, list[str]]], how: set[str]
) -> None:
    # Each of these takes the last place where something of the answer, or its place, stands.
    assume(not {"empty output", "no deltas", "no values", "no parts", "no items done"} <= how)
    assume(not {"empty output", "no items done", "no items added"} <= how)
    assume(not {"empty output", "no items done", "no deltas"} <= how)
    assume(not {"no indices", "other ids"} <= how)
    assume(not {"no indices", "no items added", "no items done"} <= how)
    events = whole(*(item_events(index, kind, pieces) for index, (kind, pieces) in enumerate(items)))
    data = framed(deviated(events, how), numbered="no numbers" not in how)
    assert told(read(data)) == meant(items)


@pytest.mark.requirement("codecs-responses:any-cut")
@settings(deadline=None)
@given(st.sampled_from(sorted(STREAMS)), st.sampled_from(PROFILES), st.data())
def test_however_a_stream_is_cut_it_says_the_same(name: str, profile: Profile, draw: st.DataObject) -> None:
    data = STREAMS[name]
    cuts = sorted(draw.draw(st.lists(st.integers(0, len(data)), max_size=10)))
    decoder = ResponsesCodec(profile=profile).decoder()
    said: list[StreamEvent] = []
    for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        said += decoder.feed(data[start:end])
    assert said + decoder.close() == read(data, profile)


def listened_to(data: bytes, size: int, profile: Profile, limits: StreamLimits = DEFAULT_LIMITS) -> list[StreamEvent]:
    """Feed everything, whatever comes; after a terminal event nothing more may come."""
    decoder = ResponsesCodec(limits, profile).decoder()
    said: list[StreamEvent] = []
    for start in range(0, len(data), size):
        said += decoder.feed(data[start : start + size])
        assert isinstance(decoder.tool_calls, tuple)
    said += decoder.close()
    said += decoder.feed(data) + decoder.close()
    terminal = [number for number, entry in enumerate(said) if isinstance(entry, Completed | Failed)]
    assert terminal in ([], [len(said) - 1])
    everything = [[written(entry) for entry in said], decoder.raw_usage, decoder.raw_error]
    json.dumps(everything, ensure_ascii=False).encode()  # raises on half a character
    return said


TIGHT = StreamLimits(2000, 4000, 40_000, 5, 300, 60, 2)


@pytest.mark.requirement("codecs-responses:never-raises")
@settings(deadline=None)
@given(st.binary(max_size=300), st.integers(1, 64), st.sampled_from(PROFILES))
def test_random_bytes_never_raise(data: bytes, size: int, profile: Profile) -> None:
    listened_to(data, size, profile, TIGHT)


@pytest.mark.requirement("codecs-responses:never-raises")
@settings(deadline=None)
@given(
    st.sampled_from(sorted(STREAMS)),
    st.lists(st.tuples(st.integers(0, 9000), st.binary(max_size=6)), max_size=6),
    st.integers(1, 64),
    st.sampled_from(PROFILES),
)
def test_streams_with_corrupted_bytes_never_raise(
    name: str, changes: list[tuple[int, bytes]], size: int, profile: Profile
) -> None:
    data = STREAMS[name]
    for place, piece in changes:
        cut = place % (len(data) + 1)
        data = data[:cut] + piece + data[cut + len(piece) // 2 :]
    listened_to(data, size, profile, TIGHT)


MUTATIONS = st.lists(st.tuples(st.sampled_from(["drop", "twice", "swap"]), st.integers(0, 60)), max_size=5)


@pytest.mark.requirement("codecs-responses:never-raises")
@settings(deadline=None, max_examples=150)
@given(st.sampled_from(sorted(STREAMS)), MUTATIONS, st.integers(1, 400))
def test_streams_with_events_dropped_doubled_and_swapped_end_once_and_strict_agrees_with_compat(
    name: str, changes: list[tuple[str, int]], size: int
) -> None:
    frames = [frame + b"\n\n" for frame in STREAMS[name].split(b"\n\n") if frame]
    for how, place in changes:
        at = place % len(frames)
        if how == "swap":
            frames[at], frames[at - 1] = frames[at - 1], frames[at]
        else:
            frames[at : at + 1] = [] if how == "drop" and len(frames) > 1 else [frames[at]] * 2
    data = b"".join(frames)
    strict, compat = (listened_to(data, size, profile) for profile in PROFILES[::-1])
    assert strict == read(data, "strict")
    assert compat == read_in_pieces(data, 1)
    if isinstance(strict[-1:][0] if strict else None, Completed):
        assert compat == strict


KEYS = [
    "type", "item", "item_id", "output_index", "content_index", "summary_index", "part", "delta", "text", "response",
    "id", "status", "output", "content", "summary", "call_id", "name", "arguments", "role", "error", "usage",
]  # fmt: skip
KINDS = [*sorted({entry["type"] for entry in GOOD}), "error", "response.refusal.done", "response.incomplete", "message"]
KINDS += ["reasoning", "function_call", "custom_tool_call", "output_text", "summary_text", "assistant", "completed"]
LEAVES = st.none() | st.booleans() | st.integers(-1, 3) | st.floats() | st.text(max_size=3) | st.sampled_from(KINDS)
JSON = st.recursive(
    LEAVES | st.sampled_from(["\ud83e", "\udddc", "resp_1", "fc_2"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=12,
)


@pytest.mark.requirement("codecs-responses:never-raises")
@settings(deadline=None, max_examples=150)
@given(
    st.lists(st.tuples(st.integers(0, len(GOOD)), st.sampled_from(KEYS), JSON), max_size=4),
    st.lists(st.dictionaries(st.sampled_from(KEYS), JSON, max_size=6), max_size=3),
    st.sampled_from(PROFILES),
)
def test_events_with_any_json_in_any_field_never_raise(
    changes: list[tuple[int, str, Any]], others: list[Event], profile: Profile
) -> None:
    events: list[Event] = json.loads(json.dumps(GOOD))
    for place, key, value in changes:
        entry = events[place % len(events)]
        inner = next((entry[name] for name in ("item", "response", "part") if isinstance(entry.get(name), dict)), entry)
        (inner if key in inner else entry)[key] = value
    events[3:3] = others
    for entry in events:
        entry["named"] = (
            str(entry.get("type")).encode("ascii", "replace").decode().replace("\n", " ").replace("\r", " ")
        )
    listened_to(framed(events), 50, profile, TIGHT)


@pytest.mark.requirement("codecs-responses:half-characters")
@settings(deadline=None)
@given(st.lists(st.sampled_from(["a", "\ud83e", "\udddc", "é"]), min_size=1, max_size=12), st.integers(1, 12))
def test_halves_of_a_character_are_joined_and_lone_halves_replaced(units: list[str], size: int) -> None:
    pieces = ["".join(units[start : start + size]) for start in range(0, len(units), size)]
    joined = "".join(units).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    flawed = event("keepalive", logprob=float("nan"))
    for make in (message_events, call_events, reasoning_events):
        said = read(framed([flawed, *whole(make(0, *pieces))]))
        calls = [tool.arguments for tool in completion(said).tool_calls]
        assert "".join([*calls, *(getattr(entry, "text", "") for entry in said)]) == joined * (1 + len(calls))


@pytest.mark.requirement("codecs-responses:tool-calls")
@pytest.mark.parametrize("status", ["incomplete", "failed", "cancelled"])
@pytest.mark.parametrize("arguments", ["{}", '{"port":"Ayr"}'])
def test_a_call_whose_final_form_is_not_whole_never_runs(status: str, arguments: str) -> None:
    item = call(arguments, status=status)
    created = event("response.created", response=response())
    for output in ([], [item], [call(arguments, status="completed")]):
        ended = event("response.completed", response=response("completed", output))
        for events in (
            [created, *call_events(0, arguments)[:-1], done(0, item), ended],
            [created, done(0, item), ended],
        ):
            completed = read(framed(events))[-1]
            assert isinstance(completed, Completed)
            assert [made.arguments_json for made in completed.tool_calls] == [None]
    ended = event("response.completed", response=response("completed", [item]))
    completed = read(framed([created, *call_events(0, arguments), ended]))[-1]
    assert isinstance(completed, Completed)
    assert [made.arguments_json for made in completed.tool_calls] == [None]


@pytest.mark.requirement("codecs-responses:tool-calls")
def test_a_call_that_was_only_announced_never_runs() -> None:
    created = event("response.created", response=response())
    ended = event("response.completed", response=response("completed", []))
    announced, *_, said, completed_item = call_events(0)

    def arguments_after(*events: Event) -> object:
        completed = read(framed([created, *events, ended]))[-1]
        assert isinstance(completed, Completed)
        (made,) = completed.tool_calls
        return made.arguments_json

    assert arguments_after(announced) is None
    assert arguments_after(added(0, call(" "))) is None
    assert arguments_after(announced, said) == {}
    assert arguments_after(announced, completed_item) == {}
    assert arguments_after(announced, call_events(0, '{"a":1}')[1]) == {"a": 1}


@pytest.mark.requirement("codecs-responses:errors")
@pytest.mark.parametrize("kind", ["completed", "incomplete", "done", "failed", "cancelled"])
@pytest.mark.parametrize("status", ["failed", "cancelled", None])
@pytest.mark.parametrize(("code", "failure"), [("invalid_prompt", "refused"), ("server_error", "retryable")])
def test_a_failed_status_that_tells_its_error_fails_by_it_whatever_the_event_is_called(
    kind: str, status: str | None, code: str, failure: str
) -> None:
    created = event("response.created", response=response())
    ended = event(f"response.{kind}", response=response(status, error={"code": code, "message": "No."}))
    last = read(framed([created, *message_events(0, "Hi"), ended]))[-1]
    assert isinstance(last, Failed)
    assert (last.failure, last.code) == (failure, code)
