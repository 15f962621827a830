"""Sixty whole turns with tools against a real llama-server, twenty a wire format, judged by the server's bytes."""

from pathlib import Path
from typing import Any

import pytest

from channels.embedded import EmbeddedServer
from tests.real.field import WIRES, Came, field
from tests.real.llama import LlamaServer, tiny
from tests.support.stack import database

pytestmark = [pytest.mark.real, pytest.mark.process, pytest.mark.timeout(600)]

TURNS_OF_A_SESSION = 4
SESSIONS = 5
SETTINGS = """
[lease]
sweep_s = 0.1

[turns]
history_turns = 4
"""
AGENT = "max_tokens = 2000\nextra_body = { chat_template_kwargs = { enable_thinking = true } }"


def reported(wire: str, usage: dict[str, Any] | None) -> tuple[int, int]:
    """(input, output) tokens in the server's own words."""
    assert usage is not None
    if wire == "chat":
        return usage["prompt_tokens"], usage["completion_tokens"]
    cached = usage.get("cache_read_input_tokens", 0) if wire == "anthropic" else 0
    return usage["input_tokens"] + cached, usage["output_tokens"]


def judge(came: Came, tool_runs: int) -> None:
    """What Lastword made of a turn is what the server's bytes say."""
    assert came.end == ("completed", None, None)
    assert {answer.status for answer in came.answers} == {200}
    assert all(plain.complete and plain.error is None for plain in came.read)
    assert came.data["text"] == came.spoken
    called = [call for plain in came.read for call in plain.tool_calls]
    assert [(result.tool_call_id, result.name) for result in came.tool_results] == [
        (call["id"], call["name"]) for call in called
    ]
    assert tool_runs == len(called) > 0
    assert [(usage.input_tokens, usage.output_tokens) for usage in came.usage] == [
        reported(came.wire, plain.usage) for plain in came.read
    ]
    assert came.read[-1].tool_calls == []
    assert came.read[-1].reasoning
    assert came.discards == []


@pytest.mark.requirement("real:turns:llama")
@pytest.mark.parametrize("wire", WIRES)
async def test_twenty_turns_with_tools_are_what_a_real_server_said(
    tmp_path: Path, server: EmbeddedServer, wire: str
) -> None:
    async with LlamaServer(tiny(tmp_path), tmp_path) as llama:
        roots = {wire: (llama.port, "/v1")}
        async with field(tmp_path, database(server, 6), roots, SETTINGS, AGENT) as running:
            spoke_before_a_tool = 0
            for number in range(TURNS_OF_A_SESSION * SESSIONS):
                before = len(running.tool_runs())
                session = f"session_{wire}_{number // TURNS_OF_A_SESSION}"
                came = await running.ask(wire, f"What time is it, for the {number}th time?", session=session)
                judge(came, len(running.tool_runs()) - before)
                spoke_before_a_tool += bool(came.read[0].text)
            assert spoke_before_a_tool > 0
            keys = running.tool_runs()
            assert len(set(keys)) == len(keys)


@pytest.mark.requirement("real:turns:statuses")
@pytest.mark.parametrize("wire", WIRES)
async def test_a_message_that_a_real_server_cannot_hold_fails_the_turn_with_that_reason(
    tmp_path: Path, server: EmbeddedServer, wire: str
) -> None:
    async with (
        LlamaServer(tiny(tmp_path), tmp_path) as llama,
        field(tmp_path, database(server, 6), {wire: (llama.port, "/v1")}, SETTINGS, AGENT) as running,
    ):
        came = await running.ask(wire, "ebb and flow " * 1000, plain=True)
    assert (came.end, came.data["text"]) == (("failed", None, "context_overflow"), "")
    assert {answer.status for answer in came.answers} == {400}
    assert len(came.answers) <= 2
