"""What a run writes down is read back as it was: transcript in three wire formats, receiver's file, ledger, strikes."""

import json
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from channels.rehearsal.server import StandIn
from channels.rehearsal.wire import Question
from ops.chaos_run import tools
from ops.chaos_run.receiver import Receiver
from ops.chaos_run.records import LEDGER, RECEIVED, STRIKES, TRANSCRIPT, Course, Records, Strike, read_records
from ops.chaos_run.said import Answer
from ops.chaos_run.story import WIRES, Story, plan_of
from tests.support.stack import SECRET
from tests.support.tool_runs import CONTEXT, result_of
from worker.codecs.events import ToolCall
from worker.codecs.messages import AssistantMessage, Message, Request, ToolMessage, ToolSpec, UserMessage
from worker.codecs.wires import codec_of

SEED = 5
SPECS = tuple(ToolSpec(name, "A tool.", {"type": "object"}) for name in ("book", "look"))
EARLIER = (UserMessage("Before?"), AssistantMessage("It was\n"))
SILENT = {"Stall", "KeepAlive"}


def steps_of(number: int) -> set[str]:
    """The kinds of steps of what `ask` asks of a message: three attempts of its first call, and of its third."""
    story, prompt = Story(SEED), plan_of(SEED, number).prompt
    calls = [story.next(Question("m", "", 0, prompt, answers)).call for answers in (0, 2) for _ in range(3)]
    return {type(step).__name__ for call in calls for step in call.steps}


LONG = next(
    number
    for number in range(1000)
    if len(plan_of(SEED, number).tools) == 3 and not SILENT & steps_of(number) and "Reset" in steps_of(number)
)
"""A message whose third call is its last, and of which an attempt dies, but none falls silent."""


BEGAN = datetime.now(UTC)  # noqa: TID251 - lines have the time of day


def records_of(folder: Path, messages: int = 0, sessions: tuple[tuple[int, ...], ...] = ()) -> Records:
    """The records in a folder, of a run that began with this module."""
    return read_records(folder, Course(messages, sessions, frozenset(), 2.0, BEGAN))


def since_began() -> float:
    return (datetime.now(UTC) - BEGAN).total_seconds()  # noqa: TID251 - as above


async def ask(stand_in: StandIn, wire: str, messages: tuple[Message, ...], process: str) -> None:
    """Ask three times; the client never leaves before the end of an answer."""
    codec = codec_of(wire)
    encoded = codec.encode(Request("m", messages, tools=SPECS))
    headers = {**encoded.headers, "X-Chaos-Process": process}
    async with httpx.AsyncClient() as client:
        for _ in range(3):
            try:
                await client.post(stand_in.base_url + encoded.path, content=encoded.body, headers=headers)
            except httpx.HTTPError:
                continue


@pytest.mark.requirement("chaos:records:files")
@pytest.mark.parametrize("wire", WIRES)
async def test_an_exchange_shows_what_was_said_before_and_what_was_sent(tmp_path: Path, wire: str) -> None:
    plan = plan_of(SEED, LONG)
    call = ToolCall("call_1", "book", "{}", {})
    other = ToolCall("call_2", "look", "{}", {})
    messages = (
        *EARLIER,
        UserMessage(plan.prompt),
        AssistantMessage("", (call,)),
        ToolMessage("call_1", "book", "done"),
        AssistantMessage(" Two. ", (ToolCall("call_3", "look", "{}", {}), other)),
        ToolMessage("call_3", "look", "unknown"),
        ToolMessage("call_2", "look", "again"),
    )
    before = since_began()
    async with StandIn(Story(SEED), transcript_path=tmp_path / TRANSCRIPT) as stand_in:
        await ask(stand_in, wire, messages[:3], "turns-1.1")
        await ask(stand_in, wire, messages, "turns-2.7")
        sent = list(stand_in.transcript.exchanges)
    exchanges = records_of(tmp_path, LONG + 1, ((LONG,),)).exchanges
    came = [before - 0.001, *(each.came for each in exchanges), since_began()]
    assert came == sorted(came)
    assert [(each.n, each.message, each.call) for each in exchanges] == [
        (number, LONG, 1 if number <= 3 else 3) for number in range(1, 7)
    ]
    assert [each.process for each in exchanges] == ["turns-1.1"] * 3 + ["turns-2.7"] * 3
    assert [each.text for each in exchanges] == [each.sent.text for each in sent]
    assert [each.is_complete for each in exchanges] == [each.ended == "complete" for each in sent]
    assert not all(each.is_complete for each in exchanges)
    assert {name for each in exchanges for name in each.tools.values()} == set(plan.tools[0])
    for each in exchanges:
        assert each.earlier == ((Answer("It was\n"),),)
    for each in exchanges[3:]:
        assert each.history == (
            Answer("", ["call_1"], {"call_1": "done"}),
            Answer(" Two. ", ["call_3", "call_2"], {"call_3": "unknown", "call_2": "again"}),
        )


@pytest.mark.requirement("chaos:records:files")
async def test_each_run_of_a_tool_is_two_lines_of_the_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHAOS_LEDGER", str(tmp_path / LEDGER))
    monkeypatch.setenv("CHAOS_PROCESS", "turns-1.2")
    before = since_began()
    for tool in (tools.book, tools.look):
        assert (await result_of(tool, {"wait_ms": 1})).text == f"done {CONTEXT.key}"
    assert (tools.book.retry_safe, tools.look.retry_safe) == (False, True)
    runs = records_of(tmp_path).runs
    assert [(run.event, run.tool, run.key, run.process) for run in runs] == [
        (event, name, CONTEXT.key, "turns-1.2") for name in ("book", "look") for event in ("start", "end")
    ]
    at = [before - 0.001, *(run.at for run in runs), since_began()]  # lines have whole milliseconds
    assert at == sorted(at)


@pytest.mark.requirement("chaos:records:files")
async def test_a_post_is_acknowledged_once_its_answer_is_out(tmp_path: Path) -> None:
    """The receiver fails now and then, at most twice for one id; each POST is one line, whatever came of it."""
    receiver = Receiver(SEED, SECRET, tmp_path / RECEIVED, lambda: 1.5, hang_s=0.2)
    statuses: list[int | None] = []
    async with receiver.running(), httpx.AsyncClient() as client:
        for number in range(30):
            data = {"turn": "turn_1", "outcome": "completed", "text": "⟨é⟩\n", "labels": {"message": str(number % 10)}}
            body = json.dumps({"data": data})
            headers = {"webhook-id": f"id_{number % 10}", "X-Chaos-Process": "delivery-1.1"}
            try:
                statuses.append((await client.post(receiver.url, content=body, headers=headers)).status_code)
            except httpx.HTTPError:
                statuses.append(None)
        assert receiver.open == {}
    assert receiver.acknowledged == {str(number) for number in range(10)}
    posts = records_of(tmp_path, 10).posts
    assert [post.is_acknowledged for post in posts] == [status == 204 for status in statuses]
    assert {204, 503, None} == set(statuses)
    assert [(post.identity, post.message) for post in posts] == [(f"id_{n % 10}", n % 10) for n in range(30)]
    assert {(post.turn, post.outcome, post.text) for post in posts} == {("turn_1", "completed", "⟨é⟩\n")}
    assert {(post.process, post.is_signed, post.came, post.ended) for post in posts} == {
        ("delivery-1.1", False, 1.5, 1.5)
    }


@pytest.mark.requirement("chaos:records:files")
def test_a_strike_is_read_as_it_was_written(tmp_path: Path) -> None:
    line = {"kind": "freeze", "process": "turns-1.1", "at": 1.0, "until": 2.5, "mid_stream": True}
    (tmp_path / STRIKES).write_text(json.dumps(line) + "\n", encoding="utf-8")
    assert records_of(tmp_path).strikes == (Strike("freeze", "turns-1.1", 1.0, 2.5, True),)
