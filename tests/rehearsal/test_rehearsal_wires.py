"""One script in three wire formats: what each step sends is read by our own decoder, in its strict profile.

Reasoning is no part of the documented Chat Completions: there it is read in the profile `compat`.
"""

from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from channels.rehearsal.script import load_script
from channels.rehearsal.server import StandIn
from channels.rehearsal.transcript import Exchange
from tests.support.asking import KEY_HEADERS, PATHS, Asking, RawAnswer, ask, question
from tests.support.plain_reader import read
from worker.codecs.events import (
    Completed,
    Failed,
    Keepalive,
    ReasoningDelta,
    StreamEvent,
    TextDelta,
    Usage,
)
from worker.codecs.limits import Profile, StreamLimits
from worker.codecs.wires import codec_of

WIRES = ("chat", "responses", "anthropic")
TOOLS = """{ tool = "clock", arguments = { timezone = "UTC" }, pieces = 3 }, { tool = "look", id = "call_7" }"""


@dataclass(slots=True)
class Decoded:
    """What the strict decoder made of an answer. `end` None: it gave nothing terminal."""

    events: list[StreamEvent]
    text: str
    reasoning: str
    end: Completed | Failed | None


def provider(folder: Path, script: str) -> StandIn:
    """A stand-in provider with this script; not started."""
    path = folder / "script.toml"
    path.write_text(script, encoding="utf-8")
    return StandIn(load_script(path), transcript_path=folder / "transcript.jsonl")


async def play(folder: Path, wire: str, call: str, prompt: str = "hello there") -> tuple[RawAnswer, Exchange]:
    """What one call of a script sends, and what the transcript says of it."""
    async with provider(folder, f"[[calls]]\n{call}\n") as stand_in:
        answer = await ask(stand_in.base_url, prompt, wire)
        return answer, await stand_in.transcript.wait_for_end(1)


def decode(wire: str, answer: RawAnswer) -> Decoded:
    """Read an answer as strictly as we can; `close` only where the body ended in good order."""
    profile: Profile = "compat" if b"reasoning_content" in answer.body else "strict"
    decoder = codec_of(wire, profile=profile).decoder()
    events = decoder.feed(answer.body)
    if answer.end == "whole":
        events += decoder.close()
    ends = [event for event in events if isinstance(event, Completed | Failed)]
    assert len(ends) <= 1
    assert not ends or events[-1] is ends[0]
    return Decoded(
        events,
        "".join(event.text for event in events if isinstance(event, TextDelta)),
        "".join(event.text for event in events if isinstance(event, ReasoningDelta)),
        ends[0] if ends else None,
    )


def completed(wire: str, answer: RawAnswer) -> tuple[Decoded, Completed]:
    decoded = decode(wire, answer)
    assert isinstance(decoded.end, Completed), decoded.end
    return decoded, decoded.end


@pytest.mark.requirement("rehearsal:wires:lifecycle")
@pytest.mark.parametrize("wire", WIRES)
async def test_text_reasoning_and_tools_come_in_the_wire_formats_own_lifecycle(tmp_path: Path, wire: str) -> None:
    steps = f"""steps = [
      {{ reasoning = "The tide, hm.", pieces = 3 }},
      {{ text = "Let me löok. ", pieces = 4 }},
      {TOOLS},
      {{ text = "Wait." }},
    ]"""
    answer, exchange = await play(tmp_path, wire, steps)
    decoded, end = completed(wire, answer)
    assert (decoded.text, decoded.reasoning) == ("Let me löok. Wait.", "The tide, hm.")
    assert [(call.name, call.arguments) for call in end.tool_calls] == [("clock", '{"timezone":"UTC"}'), ("look", "{}")]
    assert end.tool_calls[1].id == "call_7"
    assert end.finish_reason == "tool_calls"
    assert (exchange.wire, exchange.ended) == (wire, "complete")
    assert (exchange.sent.text, exchange.sent.reasoning) == (decoded.text, decoded.reasoning)
    assert [(call["id"], call["name"], call["arguments"]) for call in exchange.sent.tool_calls] == [
        (call.id, call.name, call.arguments) for call in end.tool_calls
    ]
    pieces = [event.text for event in decoded.events if isinstance(event, TextDelta)]
    assert len(pieces) == 5
    plain = read(wire, answer.body)
    assert (plain.text, plain.reasoning, plain.complete) == (decoded.text, decoded.reasoning, True)
    assert plain.tool_calls == exchange.sent.tool_calls


@pytest.mark.parametrize("wire", ["responses", "anthropic"])
async def test_a_tool_call_is_closed_as_soon_as_it_is_whole(tmp_path: Path, wire: str) -> None:
    mark = b"function_call_arguments.done" if wire == "responses" else b"content_block_stop"
    async with provider(tmp_path, f"[[calls]]\nsteps = [ {TOOLS}, {{ stall = true }} ]\n") as stand_in:
        async with Asking(stand_in.base_url, wire=wire) as asking:
            await asking.until(mark)
            await asking.until(mark)
        exchange = await stand_in.transcript.wait_for_end(1)
    assert (exchange.ended, len(exchange.sent.tool_calls)) == ("stall", 2)


@pytest.mark.requirement("rehearsal:wires:lifecycle")
async def test_the_events_of_responses_are_numbered_named_and_in_order(tmp_path: Path) -> None:
    answer, _ = await play(tmp_path, "responses", 'steps = [ { text = "ab", pieces = 2 }, { tool = "look" } ]')
    kinds = [str(each["type"]).removeprefix("response.") for each in answer.data]
    assert kinds == [
        *("created", "in_progress"),
        *("output_item.added", "content_part.added", "output_text.delta", "output_text.delta"),
        *("output_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"),
        "completed",
    ]
    assert [each["sequence_number"] for each in answer.data] == list(range(len(kinds)))
    names = [line[7:].decode() for line in answer.body.split(b"\n") if line.startswith(b"event: ")]
    assert names == [each["type"] for each in answer.data]
    final = answer.data[-1]["response"]
    assert isinstance(final, dict)
    assert [item["type"] for item in final["output"]] == ["message", "function_call"]
    assert final["output"] == [each["item"] for each in answer.data if each["type"] == "response.output_item.done"]


@pytest.mark.requirement("rehearsal:wires:lifecycle")
async def test_the_events_of_messages_are_named_and_in_order(tmp_path: Path) -> None:
    answer, _ = await play(tmp_path, "anthropic", 'steps = [ { reasoning = "hm" }, { text = "a" }, { tool = "look" } ]')
    assert [each["type"] for each in answer.data] == [
        *("message_start", "ping"),
        *("content_block_start", "content_block_delta", "content_block_delta", "content_block_stop"),
        *("content_block_start", "content_block_delta", "content_block_stop"),
        *("content_block_start", "content_block_delta", "content_block_delta", "content_block_stop"),
        *("message_delta", "message_stop"),
    ]
    names = [line[7:].decode() for line in answer.body.split(b"\n") if line.startswith(b"event: ")]
    assert names == [each["type"] for each in answer.data]
    assert read("anthropic", answer.body).signatures[0]


@pytest.mark.requirement("rehearsal:wires:finish")
@pytest.mark.parametrize(
    ("finish", "wire", "word", "meaning"),
    [
        ("stop", "chat", "stop", "stop"),
        ("stop", "responses", "completed", "stop"),
        ("stop", "anthropic", "end_turn", "stop"),
        ("length", "chat", "length", "length"),
        ("length", "responses", "max_output_tokens", "length"),
        ("length", "anthropic", "max_tokens", "length"),
        ("content_filter", "chat", "content_filter", "content_filter"),
        ("content_filter", "responses", "content_filter", "content_filter"),
        ("content_filter", "anthropic", "refusal", "refusal"),
        ("pause_turn", "anthropic", "pause_turn", "pause_turn"),
    ],
)
async def test_a_finish_reason_is_said_in_the_wire_formats_own_word(
    tmp_path: Path, finish: str, wire: str, word: str, meaning: str
) -> None:
    answer, exchange = await play(tmp_path, wire, f'steps = [ {{ text = "so far" }}, {{ finish = "{finish}" }} ]')
    decoded, end = completed(wire, answer)
    assert (decoded.text, end.finish_reason) == ("so far", meaning)
    assert (read(wire, answer.body).finish, exchange.sent.finish_reason) == (word, finish)
    if wire == "responses":
        event = "response.completed" if finish == "stop" else "response.incomplete"
        assert answer.data[-1]["type"] == event


@pytest.mark.requirement("rehearsal:wires:usage")
@pytest.mark.parametrize("wire", WIRES)
async def test_usage_of_the_script_is_said_in_the_wire_formats_own_words(tmp_path: Path, wire: str) -> None:
    usage = """usage = { prompt_tokens = 120, completion_tokens = 18, total_tokens = 138,
      prompt_tokens_details = { cached_tokens = 100 }, completion_tokens_details = { reasoning_tokens = 4 } }"""
    answer, exchange = await play(tmp_path, wire, f'steps = [ {{ text = "one" }} ]\n{usage.replace(chr(10), "")}')
    _, end = completed(wire, answer)
    assert end.usage is not None
    assert (end.usage.input_tokens, end.usage.output_tokens, end.usage.cached_input_tokens) == (120, 18, 100)
    assert exchange.sent.usage == read(wire, answer.body).usage
    if wire == "anthropic":
        assert exchange.sent.usage is not None
        assert exchange.sent.usage["input_tokens"] == 20
        message = answer.data[0]["message"]
        assert isinstance(message, dict)
        assert (message["usage"]["input_tokens"], message["usage"]["cache_read_input_tokens"]) == (20, 100)
    else:
        assert end.usage.reasoning_tokens == 4


@pytest.mark.requirement("rehearsal:wires:usage")
@pytest.mark.parametrize("wire", ["responses", "anthropic"])
async def test_usage_is_counted_in_words_where_the_script_names_none(tmp_path: Path, wire: str) -> None:
    answer, _ = await play(
        tmp_path, wire, 'steps = [ { reasoning = "so so" }, { text = "one two three" } ]', "four five"
    )
    _, end = completed(wire, answer)
    assert isinstance(end.usage, Usage)
    assert (end.usage.input_tokens, end.usage.output_tokens) == (2, 5)


@pytest.mark.requirement("rehearsal:wires:lifecycle")
@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(
    "step",
    ["{ pause_s = 0.02 }", "{ stall = 0.02 }", "{ keepalive_every_s = 0.01, for_s = 0.03 }"],
)
async def test_after_a_silence_the_answer_goes_on(tmp_path: Path, wire: str, step: str) -> None:
    answer, exchange = await play(tmp_path, wire, f'steps = [ {step}, {{ text = "be" }}, {step}, {{ text = "fore" }} ]')
    decoded, end = completed(wire, answer)
    assert (decoded.text, end.finish_reason, exchange.ended) == ("before", "stop", "complete")


@pytest.mark.requirement("rehearsal:wires:keepalives")
async def test_keepalives_are_pings_in_messages_and_comments_elsewhere(tmp_path: Path) -> None:
    step = "{ keepalive_every_s = 0.01, for_s = 0.03 }"
    for wire in WIRES:
        answer, _ = await play(tmp_path, wire, f"steps = [ {step} ]")
        assert (answer.body.count(b": keep-alive\n\n") > 1) is (wire != "anthropic")
        assert (answer.body.count(b"event: ping\n") > 2) is (wire == "anthropic")
        assert Keepalive() in decode(wire, answer).events
        answer, _ = await play(tmp_path, wire, f"steps = [ {step.replace('}', ', comment = {!r} }}'.format('wait'))} ]")
        assert answer.body.count(b": wait\n\n") > 1
        assert answer.body.count(b"event: ping\n") <= 1


@pytest.mark.requirement("rehearsal:wires:errors")
@pytest.mark.parametrize(
    ("wire", "event", "sent"),
    [
        ("chat", "", {"error": {"message": "busy", "type": "server_error", "code": None}}),
        ("responses", "", {"type": "error", "code": "server_error", "message": "busy", "param": None}),
        ("anthropic", "", {"type": "error", "error": {"message": "busy", "type": "api_error"}}),
        ("anthropic", "error", {"message": "busy", "type": "server_error", "code": None}),
        ("responses", "error", {"message": "busy", "type": "server_error", "code": None}),
    ],
)
async def test_an_error_inside_the_stream_has_the_wire_formats_own_form(
    tmp_path: Path, wire: str, event: str, sent: dict[str, object]
) -> None:
    named = f', event = "{event}"' if event else ""
    answer, exchange = await play(tmp_path, wire, f'steps = [ {{ text = "half" }}, {{ error = "busy"{named} }} ]')
    said = {key: value for key, value in answer.data[-1].items() if key != "sequence_number"}
    assert (said, exchange.ended) == (sent, "error")
    decoded = decode(wire, answer)
    assert decoded.text == "half"
    assert isinstance(decoded.end, Failed)
    if not event:
        assert (decoded.end.failure, decoded.end.message) == ("retryable", "busy")


@pytest.mark.requirement("rehearsal:wires:errors")
async def test_a_response_can_fail_as_a_whole(tmp_path: Path) -> None:
    steps = (
        'steps = [ { text = "half" }, { error = { code = "server_error", message = "x" }, event = "response.failed" } ]'
    )
    answer, exchange = await play(tmp_path, "responses", steps)
    response = answer.data[-1]["response"]
    assert isinstance(response, dict)
    assert (response["status"], response["error"]) == ("failed", {"code": "server_error", "message": "x"})
    decoded = decode("responses", answer)
    assert (decoded.text, exchange.ended) == ("half", "error")
    assert isinstance(decoded.end, Failed)
    assert (decoded.end.failure, decoded.end.code) == ("retryable", "server_error")


@pytest.mark.parametrize("wire", WIRES)
async def test_an_error_may_be_all_there_is(tmp_path: Path, wire: str) -> None:
    answer, _ = await play(tmp_path, wire, 'steps = [ { error = "busy" } ]')
    decoded = decode(wire, answer)
    assert isinstance(decoded.end, Failed)
    assert decoded.end.message == "busy"


@pytest.mark.requirement("rehearsal:wires:early-ends")
@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(
    ("call", "ended"),
    [
        ('steps = [ { text = "half" }, { truncate = true } ]', "truncated"),
        ('steps = [ { text = "half" }, { tool = "look" }, { truncate = true } ]', "truncated"),
        ('steps = [ { text = "half" }, { cut = true } ]', "cut"),
        ('steps = [ { text = "half" }, { pause_s = 0.05 }, { reset = true } ]', "reset"),
    ],
)
async def test_an_answer_without_its_ending_is_not_complete(tmp_path: Path, wire: str, call: str, ended: str) -> None:
    answer, exchange = await play(tmp_path, wire, call)
    decoded = decode(wire, answer)
    assert not isinstance(decoded.end, Completed)
    assert (decoded.text, exchange.ended, exchange.sent.finish_reason) == ("half", ended, None)


@pytest.mark.requirement("rehearsal:wires:early-ends")
@pytest.mark.parametrize("wire", WIRES)
async def test_a_body_cut_at_any_byte_is_complete_just_when_the_transcript_says_so(tmp_path: Path, wire: str) -> None:
    whole, _ = await play(tmp_path, wire, 'steps = [ { text = "abc" } ]')
    size = len(whole.body)
    cuts = sorted({*range(0, size, 97), *range(size - 40, size), size})
    calls = "\n".join(f'[[calls]]\ncut_at_byte = {at}\nsteps = [ {{ text = "abc" }} ]' for at in cuts)
    async with provider(tmp_path, calls) as stand_in:
        for number, at in enumerate(cuts, 1):
            answer = await ask(stand_in.base_url, "hello there", wire)
            exchange = await stand_in.transcript.wait_for_end(number)
            assert (len(answer.body), exchange.sent.bytes) == (at, at)
            decoder = codec_of(wire, profile="strict").decoder()
            events = decoder.feed(answer.body)
            if exchange.ended == "complete" and wire == "chat":
                assert decoder.finishing or isinstance(events[-1], Completed)
            else:
                assert any(isinstance(event, Completed) for event in events) is (exchange.ended == "complete"), at


@pytest.mark.requirement("rehearsal:wires:early-ends")
async def test_a_message_with_a_stop_reason_alone_is_not_complete(tmp_path: Path) -> None:
    steps = 'steps = [ { text = "whole" }, { finish = "stop" }, { truncate = true } ]'
    answer, exchange = await play(tmp_path, "anthropic", steps)
    assert b"message_stop" not in answer.body
    assert (exchange.ended, exchange.sent.finish_reason) == ("truncated", "stop")
    assert not isinstance(decode("anthropic", answer).end, Completed)


@pytest.mark.parametrize("wire", WIRES)
async def test_a_socket_is_held_open_after_the_ending(tmp_path: Path, wire: str) -> None:
    script = '[[calls]]\nsteps = [ { text = "whole" }, { done = true }, { stall = true } ]\n'
    marks = {
        "chat": b"data: [DONE]\n\n",
        "responses": b"event: response.completed",
        "anthropic": b"event: message_stop",
    }
    async with provider(tmp_path, script) as stand_in:
        async with Asking(stand_in.base_url, wire=wire) as asking:
            await asking.until(marks[wire])
            assert (await stand_in.transcript.wait_for_request(1)).ended is None
        exchange = await stand_in.transcript.wait_for_end(1)
    assert (exchange.ended, exchange.sent.text) == ("complete", "whole")


@pytest.mark.parametrize("wire", WIRES)
async def test_raw_bytes_are_the_same_in_every_wire_format(tmp_path: Path, wire: str) -> None:
    answer, exchange = await play(tmp_path, wire, r'steps = [ { raw = "data: {\"x\":1}\n\n", chunk_bytes = 3 } ]')
    assert (answer.body, exchange.ended) == (b'data: {"x":1}\n\n', "raw")


@pytest.mark.parametrize("wire", WIRES)
async def test_an_endless_line_passes_the_decoders_limit(tmp_path: Path, wire: str) -> None:
    decoder = codec_of(wire, StreamLimits(line_bytes=10_000), "strict").decoder()
    async with (
        provider(tmp_path, '[[calls]]\nsteps = [ { text = "a" }, { endless_line = true } ]\n') as stand_in,
        httpx.AsyncClient() as client,
        client.stream(
            "POST", f"{stand_in.base_url}/{PATHS[wire]}", json=question(wire, "x"), headers=keys(wire)
        ) as got,
    ):
        ends = []
        async for part in got.aiter_bytes():
            ends = [event for event in decoder.feed(part) if isinstance(event, Failed)]
            if ends:
                break
    assert [end.code for end in ends] == ["line_too_long"]


def keys(wire: str) -> dict[str, str]:
    return dict(line.split(": ", 1) for line in KEY_HEADERS[wire].split("\r\n"))


@pytest.mark.requirement("rehearsal:wires:refusals")
@pytest.mark.parametrize(
    ("wire", "status", "error"),
    [
        ("chat", 503, {"error": {"message": "rehearsed status 503", "type": "rehearsed", "param": None, "code": None}}),
        (
            "responses",
            429,
            {"error": {"message": "rehearsed status 429", "type": "rehearsed", "param": None, "code": None}},
        ),
        ("anthropic", 429, {"type": "error", "error": {"type": "rate_limit_error", "message": "rehearsed status 429"}}),
        ("anthropic", 529, {"type": "error", "error": {"type": "overloaded_error", "message": "rehearsed status 529"}}),
        ("anthropic", 500, {"type": "error", "error": {"type": "api_error", "message": "rehearsed status 500"}}),
        (
            "anthropic",
            422,
            {"type": "error", "error": {"type": "invalid_request_error", "message": "rehearsed status 422"}},
        ),
    ],
)
async def test_a_status_comes_with_the_wire_formats_own_error(
    tmp_path: Path, wire: str, status: int, error: dict[str, object]
) -> None:
    async with provider(tmp_path, f"[[calls]]\nstatus = {status}\n") as stand_in, httpx.AsyncClient() as client:
        url = f"{stand_in.base_url}/{PATHS[wire]}"
        answer = await client.post(url, json=question(wire, "x"), headers=keys(wire))
    assert (answer.status_code, answer.json()) == (status, error)


@pytest.mark.requirement("rehearsal:wires:paths")
async def test_each_wire_format_is_answered_below_any_path(tmp_path: Path) -> None:
    script = "\n".join(f'[[calls]]\nsteps = [ {{ text = "{word}" }} ]' for word in ("one", "two", "three"))
    async with provider(tmp_path, script) as stand_in:
        root = stand_in.base_url.removesuffix("/v1")
        texts = []
        for wire, before in zip(WIRES, ("/openai/deployments/m", "", "/anthropic/v1"), strict=True):
            answer = await ask(f"{root}{before}", "the same words", wire)
            texts.append(read(wire, answer.body).text)
        wires = [exchange.wire for exchange in stand_in.transcript.exchanges]
        conversations = {exchange.conversation for exchange in stand_in.transcript.exchanges}
        async with httpx.AsyncClient() as client:
            assert (await client.post(f"{root}/v1/completions", json={})).status_code == 404
    assert (texts, wires, len(conversations)) == (["one", "two", "three"], list(WIRES), 1)
