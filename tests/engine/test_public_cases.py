"""Public bug reports as whole turns: real bytes over real sockets into a real store, on each wire format.

The numbers are those of the cases of the field: what a naive system does is in the title of each.
"""

import json
from pathlib import Path

import pytest

from tests.support.whole_turns import WIRES, WholeTurn, whole_turn

pytestmark = pytest.mark.parametrize("wire", WIRES)

WHOLE = '[[calls]]\nsteps = [ { text = "The tide is low.", pieces = 3, every_s = 0.08 } ]\n'
HALF = '{ text = "The tide is hig", pieces = 3 }'


def dies(*steps: str) -> str:
    """A first attempt of these steps, then a whole answer."""
    return f"[[calls]]\nsteps = [ {', '.join((HALF, *steps))} ]\n\n{WHOLE}"


def resumed(turn: WholeTurn, reason: str) -> None:
    """The half sentence is gone, and everybody knows."""
    assert (turn.record.outcome, turn.text) == ("completed", "The tide is low.")
    assert turn.discards == [reason]
    assert len(turn.asked) == 2
    assert turn.story[-4:] == ["delta 1.2", "text 1.2", "completed 1.2", "end"]
    assert turn.story.index("discard 1.1") < turn.story.index("delta 1.2")


@pytest.mark.requirement("cases:t01:glue-after-a-stall")
async def test_t01_the_half_sentence_of_a_stalled_call_is_not_glued_to_its_retry(
    wire: str, real_url: str, tmp_path: Path
) -> None:
    turn = await whole_turn(real_url, tmp_path, dies("{ stall = true }"), wire)
    resumed(turn, "stall")
    assert turn.story[0] == "delta 1.1"
    assert [each.ended for each in turn.asked] == ["stall", "complete"], "the dead connection is closed"


ARMS = {
    "reset": ("{ reset = true }", "reset"),
    "cut": ("{ cut = true }", "reset"),
    "truncated": ("{ truncate = true }", "end_of_stream"),
    "an error object": ('{ error = { message = "busy", type = "server_error", code = 503 } }', "provider_error"),
    "a named error event": ('{ error = { message = "busy" }, event = "error" }', "provider_error"),
    "bad JSON": ('{ raw = "data: {not json\\n\\n" }', "protocol"),
}


@pytest.mark.requirement("cases:t02:every-arm-discards")
@pytest.mark.parametrize(("step", "reason"), ARMS.values(), ids=ARMS)
async def test_t02_however_a_call_dies_there_is_exactly_one_discard(
    wire: str, step: str, reason: str, real_url: str, tmp_path: Path
) -> None:
    turn = await whole_turn(real_url, tmp_path, dies(step), wire, first_token_timeout_s=2)
    resumed(turn, reason)


@pytest.mark.requirement("cases:t03:clean-truncation")
async def test_t03_an_answer_that_ends_in_good_order_before_its_end_is_no_answer(
    wire: str, real_url: str, tmp_path: Path
) -> None:
    turn = await whole_turn(real_url, tmp_path, dies("{ truncate = true }"), wire)
    resumed(turn, "end_of_stream")
    assert "hig" not in turn.text


@pytest.mark.requirement("cases:t04:terminal-event-then-silence")
@pytest.mark.parametrize("after", ["{ stall = true }", "{ reset = true }"])
async def test_t04_what_follows_the_end_of_an_answer_does_not_unmake_it(
    wire: str, after: str, real_url: str, tmp_path: Path
) -> None:
    script = f'[[calls]]\nsteps = [ {{ text = "The tide is low." }}, {{ done = true }}, {after} ]\n'
    turn = await whole_turn(real_url, tmp_path, script, wire)
    assert (turn.record.outcome, turn.text, turn.discards) == ("completed", "The tide is low.", [])
    assert len(turn.asked) == 1


@pytest.mark.requirement("cases:t06:keepalives-mask-a-stall")
async def test_t06_keepalives_do_not_keep_a_stalled_call_alive(wire: str, real_url: str, tmp_path: Path) -> None:
    turn = await whole_turn(real_url, tmp_path, dies("{ keepalive_every_s = 0.05 }"), wire)
    resumed(turn, "stall")


@pytest.mark.requirement("cases:t07:thinking-is-progress")
async def test_t07_thinking_is_progress(wire: str, real_url: str, tmp_path: Path) -> None:
    script = """
[[calls]]
steps = [ { reasoning = "Hmmmmmmmm", pieces = 8, every_s = 0.15 }, { text = "42" } ]
"""
    turn = await whole_turn(real_url, tmp_path, script, wire, stall_timeout_s=0.6)
    assert (turn.record.outcome, turn.text, turn.discards) == ("completed", "42", [])


@pytest.mark.requirement("cases:t07:endless-thinking-is-not")
async def test_t07_endless_thinking_is_not(wire: str, real_url: str, tmp_path: Path) -> None:
    script = f"""
[[calls]]
steps = [ {{ reasoning = "{"m" * 500}", pieces = 500, every_s = 0.03 }} ]

{WHOLE}"""
    turn = await whole_turn(real_url, tmp_path, script, wire, reasoning_timeout_s=0.5)
    assert (turn.record.outcome, turn.text, turn.discards) == ("completed", "The tide is low.", ["reasoning"])


def whole_answer(wire: str, text: str) -> str:
    """One JSON body where a stream was asked for."""
    bodies: dict[str, object] = {
        "chat": {"choices": [{"index": 0, "message": {"content": text}, "finish_reason": "stop"}]},
        "responses": {
            "id": "resp_1",
            "object": "response",
            "status": "completed",
            "output": [
                {
                    "id": "msg_1",
                    "type": "message",
                    "role": "assistant",
                    "status": "completed",
                    "content": [{"type": "output_text", "text": text, "annotations": []}],
                }
            ],
        },
        "anthropic": {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "content": [{"type": "text", "text": text}],
            "stop_reason": "end_turn",
            "usage": {"input_tokens": 3, "output_tokens": 4},
        },
    }
    return json.dumps(bodies[wire])


@pytest.mark.requirement("cases:t09:retry-does-not-stream")
async def test_t09_a_retried_call_that_does_not_stream_is_not_lost(wire: str, real_url: str, tmp_path: Path) -> None:
    (tmp_path / "answer.json").write_text(whole_answer(wire, "Dear Ana, hello."), encoding="utf-8")
    script = """
[[calls]]
steps = [ { text = "Dear Ana, " }, { reset = true } ]

[[calls]]
steps = [ { raw_file = "answer.json" } ]
"""
    turn = await whole_turn(real_url, tmp_path, script, wire)
    assert (turn.record.outcome, turn.text, turn.discards) == ("completed", "Dear Ana, hello.", ["reset"])


HALF_TOOL = '{ tool = "clock", arguments = "{\\"timezone\\": \\"Eur", id = "call_1" }'


@pytest.mark.requirement("cases:t11:truncated-arguments")
async def test_t11_arguments_cut_by_length_never_run(wire: str, real_url: str, tmp_path: Path) -> None:
    script = f'[[calls]]\nsteps = [ {HALF}, {HALF_TOOL}, {{ finish = "length" }} ]\n'
    turn = await whole_turn(real_url, tmp_path, script, wire)
    assert (turn.record.outcome, turn.record.reason) == ("incomplete", "length")
    assert turn.tools_run == []


@pytest.mark.requirement("cases:t11:truncated-arguments")
async def test_t11_arguments_cut_by_the_end_of_the_stream_are_discarded_with_their_call(
    wire: str, real_url: str, tmp_path: Path
) -> None:
    script = f"[[calls]]\nsteps = [ {HALF_TOOL}, {{ truncate = true }} ]\n\n{WHOLE}"
    turn = await whole_turn(real_url, tmp_path, script, wire)
    assert (turn.record.outcome, turn.text, turn.discards) == ("completed", "The tide is low.", ["end_of_stream"])
    assert turn.tools_run == []


@pytest.mark.requirement("cases:t11:truncated-arguments")
async def test_t11_arguments_that_are_broken_in_a_whole_call_are_told_to_the_model_and_do_not_run(
    wire: str, real_url: str, tmp_path: Path
) -> None:
    script = f"[[calls]]\nsteps = [ {HALF_TOOL} ]\n\n{WHOLE}"
    turn = await whole_turn(real_url, tmp_path, script, wire)
    assert (turn.record.outcome, turn.text, turn.discards) == ("completed", "The tide is low.", [])
    assert turn.tools_run == []
    assert [result.failure for result in turn.tool_results] == ["bad_arguments"]


@pytest.mark.requirement("cases:bug:overloaded-in-a-200")
async def test_an_overload_that_comes_as_the_first_event_of_a_200_is_asked_again(
    wire: str, real_url: str, tmp_path: Path
) -> None:
    error = '{ message = "Overloaded", type = "overloaded_error" }'
    turn = await whole_turn(real_url, tmp_path, f"[[calls]]\nsteps = [ {{ error = {error} }} ]\n\n{WHOLE}", wire)
    assert (turn.record.outcome, turn.text, turn.discards) == ("completed", "The tide is low.", ["provider_error"])


@pytest.mark.requirement("cases:bug:reasoning-alone-is-no-answer")
async def test_reasoning_alone_is_asked_for_again(wire: str, real_url: str, tmp_path: Path) -> None:
    script = f'[[calls]]\nsteps = [ {{ reasoning = "Hm." }} ]\n\n{WHOLE}'
    turn = await whole_turn(real_url, tmp_path, script, wire)
    assert (turn.record.outcome, turn.text, turn.discards) == ("completed", "The tide is low.", [])
    assert turn.record.calls == 2


@pytest.mark.requirement("cases:bug:tools-then-an-error")
async def test_an_error_after_a_tool_repeats_the_call_and_not_the_tool(
    wire: str, real_url: str, tmp_path: Path
) -> None:
    script = f"""
[[calls]]
steps = [ {{ text = "Let me look. " }}, {{ tool = "clock", arguments = {{}} }} ]

[[calls]]
steps = [ {HALF}, {{ cut = true }} ]

{WHOLE}"""
    turn = await whole_turn(real_url, tmp_path, script, wire)
    assert (turn.record.outcome, turn.text) == ("completed", "Let me look. The tide is low.")
    assert turn.tools_run == ["clock"]
    assert turn.record.totals.input_tokens is not None
    assert turn.record.totals.discarded_resume_attempts == 1
    assert turn.record.totals.discarded_resume_estimated_input_tokens is not None


@pytest.mark.requirement("cases:bug:spent-resumes-fail")
async def test_a_provider_that_dies_each_time_fails_the_turn_with_what_it_cost(
    wire: str, real_url: str, tmp_path: Path
) -> None:
    script = f'after_last = "last"\n\n[[calls]]\nsteps = [ {HALF}, {{ truncate = true }} ]\n'
    turn = await whole_turn(real_url, tmp_path, script, wire)
    assert (turn.record.outcome, turn.code, turn.text) == ("failed", "end_of_stream", "")
    assert turn.discards == ["end_of_stream"] * 3
    assert turn.record.totals.discarded_resume_attempts == 2
    assert len(turn.asked) == 3
