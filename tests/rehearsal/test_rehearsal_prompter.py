"""A program may stand in for the script: it sees what is asked, and how far the answer has come."""

from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from channels.rehearsal.cues import Cue
from channels.rehearsal.server import StandIn
from channels.rehearsal.steps import Call, Say
from channels.rehearsal.wire import Question, RequestRefused
from worker.codecs.events import ToolCall
from worker.codecs.messages import AssistantMessage, Message, Request, ToolMessage, ToolSpec, UserMessage
from worker.codecs.wires import codec_of

WIRES = ("chat", "responses", "anthropic")
SPEC = ToolSpec("clock", "Tells the time.", {"type": "object"})


@dataclass
class Prompter:
    """Answers everything, and remembers what it was asked."""

    models: tuple[str, ...] = ()
    asked: list[Question] = field(default_factory=list)

    def next(self, question: Question) -> Cue:
        self.asked.append(question)
        if question.message == "No?":
            raise RequestRefused("not that", code="no_message")
        return Cue(Call((Say(("Noon.",)),)), question.message, question.answers + 1)


def conversation(text: str, calls: int) -> tuple[Message, ...]:
    """An answer with so many tool calls, and their results."""
    called = tuple(ToolCall(f"c{number}", "clock", "{}", {}) for number in range(calls))
    return AssistantMessage(text, called), *(ToolMessage(call.id, "clock", "12:00") for call in called)


@pytest.mark.requirement("rehearsal:calls:by-question")
@pytest.mark.parametrize("wire", WIRES)
async def test_a_prompter_sees_the_last_message_and_how_many_answers_follow_it(tmp_path: Path, wire: str) -> None:
    first, last = UserMessage("First?"), UserMessage("And then?")
    silent, spoken, both = conversation("", 1), conversation("Let me look.", 1), conversation("Two at once.", 2)
    histories: list[tuple[tuple[Message, ...], str, int]] = [
        ((first,), "First?", 0),
        ((first, *silent), "First?", 1),
        ((first, *spoken), "First?", 1),
        ((first, *both), "First?", 1),
        ((first, *both, AssistantMessage("Noon."), last), "And then?", 0),
        ((first, AssistantMessage("Noon."), UserMessage("Really?"), last), "And then?", 0),
        ((first, AssistantMessage("Noon."), last, *spoken), "And then?", 1),
    ]
    prompter = Prompter()
    codec = codec_of(wire)
    async with StandIn(prompter, transcript_path=tmp_path / "t") as stand_in, httpx.AsyncClient() as client:
        for messages, _, _ in histories:
            encoded = codec.encode(Request("m", messages, tools=(SPEC,)))
            answer = await client.post(stand_in.base_url + encoded.path, content=encoded.body, headers=encoded.headers)
            assert answer.status_code == 200, answer.text
        told = [(exchange.conversation, exchange.call) for exchange in stand_in.transcript.exchanges]
    assert [(question.message, question.answers) for question in prompter.asked] == [
        (message, answers) for _, message, answers in histories
    ]
    assert told == [(message, answers + 1) for _, message, answers in histories]


@pytest.mark.requirement("rehearsal:calls:by-question")
@pytest.mark.parametrize("wire", WIRES)
async def test_two_calls_of_one_turn_are_two_answers(wire: str) -> None:
    messages = (UserMessage("First?"), *conversation("", 1), *conversation("Again.", 2), *conversation("", 1))
    prompter = Prompter()
    codec = codec_of(wire)
    async with StandIn(prompter) as stand_in, httpx.AsyncClient() as client:
        encoded = codec.encode(Request("m", messages, tools=(SPEC,)))
        answer = await client.post(stand_in.base_url + encoded.path, content=encoded.body, headers=encoded.headers)
    assert answer.status_code == 200
    assert [(question.message, question.answers) for question in prompter.asked] == [("First?", 3)]


@pytest.mark.requirement("rehearsal:calls:by-question")
async def test_a_prompter_may_refuse() -> None:
    codec = codec_of("chat")
    async with StandIn(Prompter()) as stand_in, httpx.AsyncClient() as client:
        encoded = codec.encode(Request("m", (UserMessage("No?"),)))
        answer = await client.post(stand_in.base_url + encoded.path, content=encoded.body, headers=encoded.headers)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "not that"
