"""Whole turns against llmock, which fails on request in all three wire formats and judges how it was taken."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from channels.embedded import EmbeddedServer
from tests.real.field import WIRES, Came, Field, field
from tests.real.llmock import PATHS, Llmock
from tests.support.stack import database

pytestmark = [
    pytest.mark.real,
    pytest.mark.process,
    pytest.mark.timeout(300),
    pytest.mark.parametrize("wire", WIRES),
]

SETTINGS = """
[lease]
sweep_s = 0.1

[turns]
resume_backoff_s = 0.2
max_calls = 12
"""
WORDS = "Tell the crew about the harbour, the weather and the tide of today."
TEXT = f"Hello! You said: {WORDS}"


@pytest.fixture(scope="module")
async def mock(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Llmock]:
    async with Llmock(tmp_path_factory.mktemp("llmock")) as server:
        yield server


@pytest.fixture(scope="module")
async def running(
    mock: Llmock, tmp_path_factory: pytest.TempPathFactory, server: EmbeddedServer
) -> AsyncIterator[Field]:
    roots = {wire: (mock.port, path) for wire, path in PATHS.items()}
    async with field(tmp_path_factory.mktemp("field"), database(server, 4), roots, SETTINGS) as started:
        yield started


async def turn(mock: Llmock, running: Field, wire: str, *plan: dict[str, Any], plain: bool = True) -> Came:
    """One turn that meets this plan; llmock must find nothing to blame."""
    await mock.forget()
    if plan:
        await mock.plan(*plan)
    came = await running.ask(wire, WORDS, plain=plain)
    assert await mock.findings() == []
    assert came.data["text"] == came.spoken
    return came


def broken(kind: str, **more: Any) -> dict[str, Any]:
    """A stream that breaks in the middle of its text, in every wire format."""
    return {"type": "stream_fault", "kind": kind, "after_chunks": 9, **more}


@pytest.mark.requirement("real:turns:whole")
async def test_an_answer_is_delivered_whole(mock: Llmock, running: Field, wire: str) -> None:
    came = await turn(mock, running, wire)
    assert (came.end, came.data["text"], came.discards) == (("completed", None, None), TEXT, [])
    assert [usage.output_tokens for usage in came.usage] == [
        plain.usage and plain.usage.get("completion_tokens", plain.usage.get("output_tokens")) for plain in came.read
    ]


@pytest.mark.requirement("real:turns:faults")
@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (broken("stall", stall_seconds=20), "stall"),
        (broken("disconnect"), "reset"),
        (broken("truncate"), "end_of_stream"),
        (broken("malformed"), "protocol"),
    ],
    ids=["stall", "disconnect", "truncate", "malformed"],
)
async def test_a_stream_that_breaks_is_discarded_and_asked_again(
    mock: Llmock, running: Field, wire: str, fault: dict[str, Any], reason: str
) -> None:
    came = await turn(mock, running, wire, fault)
    assert (came.end, came.data["text"], came.discards) == (("completed", None, None), TEXT, [reason])
    half, whole = came.read
    assert half.text
    assert (TEXT.startswith(half.text), half.complete and not half.broken, whole.text) == (True, False, TEXT)


@pytest.mark.requirement("real:turns:faults")
async def test_a_stream_that_breaks_each_time_fails_the_turn(mock: Llmock, running: Field, wire: str) -> None:
    await mock.forget()
    await mock.plan(broken("disconnect", times=3))
    came = await running.ask(wire, WORDS, plain=True)
    assert (came.end, came.data["text"]) == (("failed", None, "reset"), "")
    assert (came.discards, len(came.answers)) == (["reset"] * 3, 3)
    # Two waits of resume_backoff_s, varied by chance, may come out equal or shrinking. They are made for streams that
    # had begun, two at most; what llmock has in mind, refused requests, is retried with growing waits.
    assert set(await mock.findings()) <= {("warning", "no_backoff")}


@pytest.mark.requirement("real:turns:faults")
@pytest.mark.parametrize("plan", [{"type": "slow_first_token", "seconds": 2}, {"type": "delay", "seconds": 2}])
async def test_a_slow_start_is_no_stall(mock: Llmock, running: Field, wire: str, plan: dict[str, Any]) -> None:
    came = await turn(mock, running, wire, plan)
    assert (came.end, came.discards, len(came.answers)) == (("completed", None, None), [], 1)


@pytest.mark.requirement("real:turns:statuses")
@pytest.mark.parametrize(
    "plan",
    [
        [{"type": "fail", "status": 429, "retry_after": 1.5}],
        [{"type": "fail", "status": 503, "times": 2}],
        [{"type": "fail", "status": 529}],
        [{"type": "fail", "status": 500}, {"type": "fail", "status": 408}],
    ],
    ids=["429", "503", "529", "500-408"],
)
async def test_a_status_that_may_pass_is_waited_out(
    mock: Llmock, running: Field, wire: str, plan: list[dict[str, Any]]
) -> None:
    came = await turn(mock, running, wire, *plan)
    assert (came.end, came.data["text"], came.discards) == (("completed", None, None), TEXT, [])
    statuses = [fail["status"] for fail in plan for _ in range(fail.get("times", 1))]
    assert [answer.status for answer in came.answers] == [*statuses, 200]


@pytest.mark.requirement("real:turns:statuses")
@pytest.mark.parametrize(
    ("status", "code"), [(400, "refused"), (401, "unauthorized"), (403, "forbidden"), (404, "not_found")]
)
async def test_a_status_that_will_not_pass_ends_the_turn_at_once(
    mock: Llmock, running: Field, wire: str, status: int, code: str
) -> None:
    came = await turn(mock, running, wire, {"type": "fail", "status": status})
    assert (came.end, came.data["text"], len(came.answers)) == (("failed", None, code), "", 1)


@pytest.mark.requirement("real:turns:tools")
async def test_a_tool_runs_once_and_the_text_around_it_is_delivered(mock: Llmock, running: Field, wire: str) -> None:
    before = len(running.tool_runs())
    call = {"type": "reply", "text": "Let me look. ", "tool_calls": [{"name": "look_up", "arguments": {}}] * 2}
    came = await turn(mock, running, wire, call, plain=False)
    assert (came.end, came.discards) == (("completed", None, None), [])
    assert came.data["text"].startswith("Let me look. Hello!")
    assert len(running.tool_runs()) - before == 2
    assert [result.failure for result in came.tool_results] == [None, None]


@pytest.mark.requirement("real:turns:tools")
@pytest.mark.parametrize("kind", ["disconnect", "truncate", "malformed"])
async def test_no_tool_runs_from_a_call_that_died(mock: Llmock, running: Field, wire: str, kind: str) -> None:
    before = len(running.tool_runs())
    call = {"type": "reply", "text": "Look. ", "tool_calls": [{"name": "look_up", "arguments": {"timezone": "UTC"}}]}
    at = {"chat": 4, "responses": 9, "anthropic": 6}[wire]
    fault = {"type": "stream_fault", "kind": kind, "after_chunks": at}
    came = await turn(mock, running, wire, call, fault, {"type": "reply", "text": "Without it."}, plain=False)
    assert (came.end, came.data["text"], len(came.discards)) == (("completed", None, None), "Without it.", 1)
    assert came.read[0].tool_calls
    assert (len(running.tool_runs()) - before, came.tool_results) == (0, [])


@pytest.mark.requirement("real:turns:tools")
@pytest.mark.parametrize(
    ("kind", "failure"), [("malformed_arguments", "bad_arguments"), ("unknown_tool", "unknown_tool")]
)
async def test_a_broken_tool_call_is_told_to_the_model_and_never_run(
    mock: Llmock, running: Field, wire: str, kind: str, failure: str
) -> None:
    before = len(running.tool_runs())
    came = await turn(mock, running, wire, {"type": "tool_fault", "kind": kind}, plain=False)
    assert came.end == ("completed", None, None)
    assert [result.failure for result in came.tool_results] == [failure]
    assert len(running.tool_runs()) == before


@pytest.mark.requirement("real:turns:tools")
async def test_a_tool_loop_is_ended(mock: Llmock, running: Field, wire: str) -> None:
    call = {"type": "reply", "text": "Again. ", "tool_calls": [{"name": "look_up", "arguments": {}}], "times": None}
    came = await turn(mock, running, wire, call, plain=False)
    assert came.end == ("failed", None, "tool_loop")
    assert came.data["text"] == "Again. " * len(came.answers)


@pytest.mark.requirement("real:turns:incomplete")
async def test_an_answer_that_was_cut_by_length_is_incomplete(mock: Llmock, running: Field, wire: str) -> None:
    came = await turn(mock, running, wire, {"type": "reply", "text": "It is half past", "finish_reason": "length"})
    assert (came.end, came.data["text"]) == (("incomplete", "length", None), "It is half past")


@pytest.mark.requirement("real:turns:incomplete")
async def test_an_answer_that_was_cut_by_a_filter_is_incomplete(mock: Llmock, running: Field, wire: str) -> None:
    came = await turn(mock, running, wire, {"type": "reply", "text": "So", "finish_reason": "content_filter"})
    # llmock's Responses have no word for it and say "completed".
    reasons = {"chat": ("incomplete", "content_filter"), "anthropic": ("incomplete", "refusal")}
    assert came.end == (*reasons.get(wire, ("completed", None)), None)
    assert came.data["text"] == "So"
