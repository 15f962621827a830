"""Each step of a script, as it arrives on a bare socket and as the transcript tells it."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from channels.rehearsal.script import load_script
from channels.rehearsal.server import StandIn
from channels.rehearsal.transcript import Exchange
from tests.support.asking import Asking, RawAnswer, ask

DONE = b"data: [DONE]\n\n"


def provider(folder: Path, script: str) -> StandIn:
    """A stand-in provider with this script; not started."""
    path = folder / "script.toml"
    path.write_text(script, encoding="utf-8")
    return StandIn(load_script(path), transcript_path=folder / "transcript.jsonl")


async def play(folder: Path, call: str, prompt: str = "hello", **fields: Any) -> tuple[RawAnswer, Exchange]:
    """What one call of a script sends, and what the transcript says of it."""
    async with provider(folder, f"[[calls]]\n{call}\n") as stand_in:
        answer = await ask(stand_in.base_url, prompt, **fields)
        return answer, await stand_in.transcript.wait_for_end(1)


@pytest.mark.requirement("rehearsal:steps:whole-answer")
async def test_an_answer_without_an_ending_gets_a_whole_one(tmp_path: Path) -> None:
    answer, exchange = await play(tmp_path, 'steps = [ { text = "The tide is low." } ]')
    assert answer.status == 200
    assert "text/event-stream" in answer.head
    assert answer.text == "The tide is low."
    assert answer.deltas[0] == {"role": "assistant", "content": ""}
    assert answer.data[-1]["choices"][0]["finish_reason"] == "stop"  # type: ignore[index]
    assert answer.body.endswith(DONE)
    assert answer.end == "whole"
    assert exchange.ended == "complete"
    assert (exchange.sent.text, exchange.sent.finish_reason) == ("The tide is low.", "stop")
    assert exchange.sent.bytes == len(answer.body)


async def test_a_text_comes_in_as_many_pieces_as_the_script_says(tmp_path: Path) -> None:
    answer, exchange = await play(tmp_path, 'steps = [ { text = "The tide is löw.", pieces = 5, every_s = 0.001 } ]')
    pieces = [delta["content"] for delta in answer.deltas if delta.get("content")]
    assert len(pieces) == 5
    assert "".join(map(str, pieces)) == exchange.sent.text == "The tide is löw."


async def test_more_pieces_than_letters_are_one_letter_each(tmp_path: Path) -> None:
    answer, _ = await play(tmp_path, 'steps = [ { text = "abc", pieces = 99 } ]')
    assert [delta["content"] for delta in answer.deltas if delta.get("content")] == ["a", "b", "c"]


async def test_reasoning_is_no_text(tmp_path: Path) -> None:
    answer, exchange = await play(tmp_path, 'steps = [ { reasoning = "hmm", pieces = 3 }, { text = "42" } ]')
    assert "".join(str(delta.get("reasoning_content", "")) for delta in answer.deltas) == "hmm"
    assert (exchange.sent.reasoning, exchange.sent.text, answer.text) == ("hmm", "42", "42")


@pytest.mark.requirement("rehearsal:steps:tool-calls")
async def test_tool_calls_come_with_their_arguments_in_pieces(tmp_path: Path) -> None:
    steps = """steps = [
      { tool = "clock", arguments = { timezone = "UTC" }, pieces = 3 },
      { tool = "look", id = "call_7", arguments = '{"at": "x' },
      { tool = "nothing" },
    ]"""
    answer, exchange = await play(tmp_path, steps)
    calls: dict[object, dict[str, str]] = {}
    for delta in answer.deltas:
        for piece in delta.get("tool_calls", []):  # type: ignore[attr-defined]
            call = calls.setdefault(piece["index"], {"id": piece.get("id"), "name": piece["function"].get("name")})
            call["arguments"] = call.get("arguments", "") + piece["function"]["arguments"]
    assert list(calls.values()) == exchange.sent.tool_calls
    assert [call["arguments"] for call in exchange.sent.tool_calls] == ['{"timezone":"UTC"}', '{"at": "x', "{}"]
    assert exchange.sent.tool_calls[1]["id"] == "call_7"
    assert exchange.sent.finish_reason == "tool_calls"


async def test_finish_and_usage_are_those_of_the_script(tmp_path: Path) -> None:
    call = 'steps = [ { text = "a" }, { finish = "length" } ]\nusage = { prompt_tokens = 7, completion_tokens = 1 }'
    answer, exchange = await play(tmp_path, call)
    assert answer.data[-2]["choices"][0]["finish_reason"] == "length"  # type: ignore[index]
    assert answer.data[-1]["usage"] == {"prompt_tokens": 7, "completion_tokens": 1}
    assert answer.data[-1]["choices"] == []
    assert (exchange.sent.finish_reason, exchange.sent.usage) == ("length", answer.data[-1]["usage"])
    assert answer.body.endswith(DONE)


async def test_usage_is_counted_in_words_when_the_client_asks_for_it(tmp_path: Path) -> None:
    answer, _ = await play(
        tmp_path, 'steps = [ { text = "one two three" } ]', prompt="four five", stream_options={"include_usage": True}
    )
    assert answer.data[-1]["usage"] == {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}


async def test_usage_is_left_out_when_nobody_asks(tmp_path: Path) -> None:
    answer, _ = await play(tmp_path, 'steps = [ { text = "one" } ]')
    assert not any("usage" in each for each in answer.data)


@pytest.mark.requirement("rehearsal:steps:silence")
@pytest.mark.parametrize("step", ["{ stall = true }", "{ stall = inf }", "{ keepalive_every_s = 0.01 }"])
async def test_a_stall_holds_the_connection_until_the_client_leaves(tmp_path: Path, step: str) -> None:
    async with provider(tmp_path, f'[[calls]]\nsteps = [ {{ text = "half" }}, {step} ]\n') as stand_in:
        async with Asking(stand_in.base_url) as asking:
            await asking.until(b'"half"')
            if "keepalive" in step:
                await asking.until(b": keep-alive\n\n")
                await asking.until(b": keep-alive\n\n")
            assert (await stand_in.transcript.wait_for_request(1)).ended is None
        exchange = await stand_in.transcript.wait_for_end(1)
    assert (exchange.ended, exchange.sent.text) == ("stall", "half")


@pytest.mark.requirement("rehearsal:steps:silence")
@pytest.mark.parametrize(
    "step",
    ["{ stall = 0.05 }", "{ pause_s = 0.05 }", '{ keepalive_every_s = 0.01, for_s = 0.05, comment = "wait" }'],
)
async def test_after_a_silence_that_ends_the_answer_goes_on(tmp_path: Path, step: str) -> None:
    started = asyncio.get_running_loop().time()
    answer, exchange = await play(tmp_path, f'steps = [ {{ text = "be" }}, {step}, {{ text = "fore" }} ]')
    assert asyncio.get_running_loop().time() - started >= 0.05
    assert (answer.text, exchange.ended) == ("before", "complete")
    assert (b": wait\n\n" in answer.body) is ("wait" in step)


async def test_a_client_that_leaves_in_a_pause_has_left(tmp_path: Path) -> None:
    async with provider(tmp_path, '[[calls]]\nsteps = [ { text = "half" }, { pause_s = 600 } ]\n') as stand_in:
        async with Asking(stand_in.base_url) as asking:
            await asking.until(b'"half"')
        exchange = await stand_in.transcript.wait_for_end(1)
    assert exchange.ended == "client_left"


async def test_a_delay_comes_before_the_head(tmp_path: Path) -> None:
    script = '[[calls]]\ndelay_s = true\nsteps = []\n[[calls]]\ndelay_s = 0.05\nsteps = [ { text = "late" } ]\n'
    async with provider(tmp_path, script) as stand_in:
        async with Asking(stand_in.base_url):
            await stand_in.transcript.wait_for_request(1)
        assert (await stand_in.transcript.wait_for_end(1)).ended == "stall"
        assert (await ask(stand_in.base_url)).text == "late"


@pytest.mark.requirement("rehearsal:steps:broken-connections")
async def test_a_cut_closes_the_connection_without_the_end_of_the_body(tmp_path: Path) -> None:
    answer, exchange = await play(tmp_path, 'steps = [ { text = "half" }, { cut = true } ]')
    assert (answer.text, answer.end) == ("half", "cut")
    assert (exchange.ended, exchange.sent.text) == ("cut", "half")


@pytest.mark.requirement("rehearsal:steps:broken-connections")
@pytest.mark.parametrize("at", [0, 1, 100, 250])
async def test_a_body_is_cut_at_its_very_byte(tmp_path: Path, at: int) -> None:
    answer, exchange = await play(tmp_path, f'cut_at_byte = {at}\nsteps = [ {{ text = "abcdefgh", pieces = 8 }} ]')
    assert (len(answer.body), answer.end) == (at, "cut")
    assert (exchange.ended, exchange.sent.bytes) == ("cut", at)
    assert answer.text.startswith(exchange.sent.text)


async def test_a_body_that_is_shorter_than_its_cut_is_whole(tmp_path: Path) -> None:
    answer, exchange = await play(tmp_path, 'cut_at_byte = 100000\nsteps = [ { text = "a" } ]')
    assert (answer.end, exchange.ended) == ("whole", "complete")


@pytest.mark.requirement("rehearsal:steps:broken-connections")
async def test_a_reset_resets_the_connection(tmp_path: Path) -> None:
    async with provider(
        tmp_path, '[[calls]]\nsteps = [ { text = "half" }, { pause_s = 0.05 }, { reset = true } ]\n'
    ) as stand_in:
        async with Asking(stand_in.base_url) as asking:
            await asking.until(b'"half"')
            assert (await asking.answer()).end == "reset"
        exchange = await stand_in.transcript.wait_for_end(1)
    assert (exchange.ended, exchange.sent.text) == ("reset", "half")


@pytest.mark.requirement("rehearsal:steps:early-ends")
async def test_a_truncated_answer_ends_in_good_order_without_an_end_mark(tmp_path: Path) -> None:
    answer, exchange = await play(tmp_path, 'steps = [ { text = "half" }, { truncate = true } ]')
    assert (answer.text, answer.end, exchange.ended) == ("half", "whole", "truncated")
    assert DONE not in answer.body
    assert not any(choice["choices"][0]["finish_reason"] for choice in answer.data)  # type: ignore[index]


async def test_a_finish_without_an_end_mark_is_complete_all_the_same(tmp_path: Path) -> None:
    answer, exchange = await play(tmp_path, 'steps = [ { text = "whole" }, { finish = "stop" }, { truncate = true } ]')
    assert DONE not in answer.body
    assert (answer.end, exchange.ended) == ("whole", "complete")


@pytest.mark.requirement("rehearsal:steps:early-ends")
async def test_an_error_inside_the_stream_ends_the_answer(tmp_path: Path) -> None:
    answer, exchange = await play(tmp_path, 'steps = [ { text = "half" }, { error = "busy" }, { text = "never" } ]')
    assert answer.data[-1] == {"error": {"message": "busy", "type": "server_error", "code": None}}
    assert (answer.text, answer.end, exchange.ended) == ("half", "whole", "error")


async def test_an_error_under_an_event_name_stands_alone(tmp_path: Path) -> None:
    answer, _ = await play(tmp_path, 'steps = [ { error = { message = "busy", code = 7 }, event = "error" } ]')
    assert answer.body.startswith(b"event: error\ndata: ")
    assert answer.data == [{"message": "busy", "code": 7}]


@pytest.mark.requirement("rehearsal:steps:broken-connections")
async def test_a_socket_is_held_open_after_the_end_mark(tmp_path: Path) -> None:
    script = '[[calls]]\nsteps = [ { text = "whole" }, { done = true }, { stall = true } ]\n'
    async with provider(tmp_path, script) as stand_in:
        async with Asking(stand_in.base_url) as asking:
            await asking.until(DONE)
            assert (await stand_in.transcript.wait_for_request(1)).ended is None
        exchange = await stand_in.transcript.wait_for_end(1)
    assert (exchange.ended, exchange.sent.text) == ("complete", "whole")


@pytest.mark.requirement("rehearsal:steps:raw")
async def test_a_captured_stream_is_sent_byte_by_byte_as_it_was(tmp_path: Path) -> None:
    captured = 'data: {"choices":[{"index":0,"delta":{"content":"Grüße"}}]}\n\n'.encode() + DONE
    (tmp_path / "captured.sse").write_bytes(captured)
    answer, exchange = await play(tmp_path, 'steps = [ { raw_file = "captured.sse", chunk_bytes = 7 } ]')
    assert answer.body == captured
    assert {len(chunk) for chunk in answer.chunks[:-1]} == {7}
    assert (answer.end, exchange.ended, exchange.sent.bytes) == ("whole", "raw", len(captured))


@pytest.mark.requirement("rehearsal:steps:raw")
async def test_raw_text_can_be_repeated(tmp_path: Path) -> None:
    answer, _ = await play(tmp_path, r'steps = [ { raw = ": x\n\n", times = 1000 }, { raw = "data: [DONE]\n\n" } ]')
    assert answer.body == b": x\n\n" * 1000 + DONE


@pytest.mark.requirement("rehearsal:steps:raw")
async def test_an_endless_line_goes_on_until_the_client_leaves(tmp_path: Path) -> None:
    async with provider(tmp_path, "[[calls]]\nsteps = [ { endless_line = true } ]\n") as stand_in:
        async with Asking(stand_in.base_url) as asking:
            await asking.until(b"data: ")
            await asking.until(b"x" * 50_000)
        exchange = await stand_in.transcript.wait_for_end(1)
    assert exchange.ended == "client_left"


@pytest.mark.requirement("rehearsal:steps:status")
async def test_an_error_status_comes_with_its_body_and_its_wait(tmp_path: Path) -> None:
    call = (
        'status = 429\nretry_after = 2.5\nheaders = { X-Should-Retry = "true" }\nbody = { error = { code = "slow" } }'
    )
    answer, exchange = await play(tmp_path, call)
    assert answer.status == 429
    assert "Retry-After: 2.5" in answer.head
    assert "X-Should-Retry: true" in answer.head
    assert json.loads(answer.body) == {"error": {"code": "slow"}}
    assert exchange.ended == "status"


async def test_an_error_status_alone_says_that_it_was_rehearsed(tmp_path: Path) -> None:
    answer, _ = await play(tmp_path, "status = 503")
    assert json.loads(answer.body)["error"]["message"] == "rehearsed status 503"


async def test_a_status_may_have_a_plain_body(tmp_path: Path) -> None:
    answer, _ = await play(tmp_path, 'status = 502\nbody = "bad gateway"')
    assert (answer.body, "text/plain" in answer.head) == (b"bad gateway", True)


@pytest.mark.requirement("rehearsal:steps:status")
async def test_a_page_comes_where_a_stream_was_due(tmp_path: Path) -> None:
    answer, exchange = await play(tmp_path, 'html = "<h1>Welcome</h1>"')
    assert (answer.status, answer.body, exchange.ended) == (200, b"<h1>Welcome</h1>", "status")
    assert "text/html" in answer.head
