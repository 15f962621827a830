"""A whole turn over bytes: decoder, machine, store and reader, with every promise about them checked at every step.

What is checked does not lean on the machine: which attempt completed, and what it said, is read off the decoder.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.support.stored_turn import StoredTurn
from tests.support.turns import machine
from worker.codecs.codec import Codec
from worker.codecs.events import Completed, Failed, StreamEvent, TextDelta
from worker.codecs.messages import ToolSpec
from worker.output.buffer import CommitBuffer
from worker.turn.commands import (
    Command,
    CommitCall,
    DiscardCall,
    OpenCall,
    ReopenCall,
    RunTools,
    Seal,
    StageText,
)
from worker.turn.events import Begin, DeathKind, Died, Event, Heard, Sent, Tick, ToolFinished
from worker.turn.states import State

Key = tuple[int, int]
MOST_CALLS = 3
RESUMES = 2


@dataclass(frozen=True, slots=True)
class Answer:
    """What the peer answers to one attempt: bytes, in chunks of `chunk` (0: all at once), then how the stream ends.

    `ends`: `close` as HTTP does, `reset`, or `hangs`: nothing follows, for ever.
    """

    data: bytes
    chunk: int = 0
    ends: str = "close"

    def chunks(self) -> Iterator[bytes]:
        """The bytes as they arrive."""
        size = self.chunk or max(len(self.data), 1)
        return (self.data[begin : begin + size] for begin in range(0, len(self.data), size))


@dataclass(slots=True)
class Attempt:
    """What the decoder said of one attempt."""

    texts: list[str] = field(default_factory=list)
    completed: Completed | None = None
    last: StreamEvent | None = None

    @property
    def text(self) -> str:
        return "".join(self.texts)


class StreamedTurn:
    """One turn whose attempts are answered by `answers` in turn; the last one is given again and again.

    `offered`: names of tools. Every tool answers with its call's number.
    """

    def __init__(self, codec: Codec, answers: list[Answer], offered: frozenset[str] = frozenset()) -> None:
        self.machine = machine(
            tools=tuple(ToolSpec(name, "", {"type": "object"}) for name in sorted(offered)),
            resume_budget=RESUMES,
            max_calls=MOST_CALLS,
            empty_nudges=1,
            empty_nudges_after_tools=1,
        )
        self.commits: list[CommitCall] = []
        self.ran: list[tuple[int, int]] = []
        self.attempts: dict[Key, Attempt] = {}
        self.discards: list[DiscardCall] = []
        self.seal: Seal | None = None
        self.reader = CommitBuffer()
        self.taken = 0
        """Bytes that were read of all answers."""
        self._codec = codec
        self._answers = answers
        self._stored = StoredTurn()
        self._told = 0
        self._now = 0.0
        self._open: Key | None = None
        self._unanswered: Key | None = None
        self._running: list[tuple[int, int]] = []

    def live(self) -> "StreamedTurn":
        """Go through the turn until its end. Whatever the peer says, it comes within so many steps."""
        self._feed(Begin())
        for _ in range(8 * MOST_CALLS * (1 + RESUMES)):
            if self.machine.state is State.SEALED:
                break
            if self._running:
                call, index = self._running.pop(0)
                self._feed(ToolFinished(call, index, f"result {call}"))
            elif self._unanswered is not None:
                self._answer(self._unanswered)
            else:
                deadline = self.machine.deadline()
                assert deadline is not None
                self._now = max(self._now, deadline)
                self._feed(Tick())
        assert self.machine.state is State.SEALED, "the turn goes on for ever"
        assert self.seal is not None
        assert self.reader.outcome == self.seal.outcome
        assert (self.seal.failure is not None) == (self.seal.outcome == "failed")
        assert self.reader.committed == self._stored.text == "".join(commit.text for commit in self.commits)
        return self

    def _answer(self, key: Key) -> None:
        self._unanswered = None
        answer = self._answers[min(len(self.attempts), len(self._answers)) - 1]
        attempt, decoder, events = self.attempts[key], self._codec.decoder(), 0
        self._feed(Sent(*key))
        for data in answer.chunks():
            self.taken += len(data)
            for event in decoder.feed(data):
                events += 1
                self._hear(key, attempt, Heard(*key, event))
            if isinstance(attempt.last, Completed | Failed):
                assert not decoder.feed(b"data: {}\n\n")
                return
        assert events <= len(answer.data) + 1, "more events than bytes"
        if answer.ends == "hangs" and not decoder.finishing:
            return
        for event in decoder.close():
            self._hear(key, attempt, Heard(*key, event))
        if not isinstance(attempt.last, Completed | Failed):
            kind: DeathKind = "reset" if answer.ends == "reset" else "end_of_stream"
            self._feed(Died(*key, kind, ""))

    def _hear(self, key: Key, attempt: Attempt, heard: Heard) -> None:
        event = heard.event
        assert not isinstance(attempt.last, Completed | Failed), "an event after the last one"
        attempt.last = event
        if isinstance(event, TextDelta):
            assert event.text
            attempt.texts.append(event.text)
        elif isinstance(event, Completed):
            attempt.completed = event
        self._feed(heard)
        if key != self._open and self.machine.state is not State.SEALED:
            assert self.machine.handle(Heard(*key, TextDelta("late")), self._now) == ()

    def _feed(self, event: Event) -> None:
        self._now += 0.001
        for command in self.machine.handle(event, self._now):
            self._check(command)
            self._stored.perform(command)
            if isinstance(command, RunTools):
                for index, _ in command.tool_calls:
                    self._stored.start_tool(command, index)
            self._read()

    def _read(self) -> None:
        """A reader gets what is new, and never holds anything but whole calls before its marker."""
        for output in self._stored.outputs[self._told :]:
            self.reader.apply(output)
        self._told = len(self._stored.outputs)
        assert self.reader.committed == "".join(commit.text for commit in self.commits)
        assert self.reader.marker == len(self.reader.committed.encode())
        assert self.reader.staged == ("" if self._open is None else self.attempts[self._open].text)

    def _check(self, command: Command) -> None:
        assert self.seal is None, "something follows the end"
        match command:
            case OpenCall(call=call, attempt=number):
                assert self._open is None, "the attempt before it was neither committed nor discarded"
                assert (call, number) not in self.attempts
                assert number <= 1 + RESUMES
                self.attempts[call, number] = Attempt()
                self._open = self._unanswered = (call, number)
            case ReopenCall():
                raise AssertionError("every request got a stream")
            case CommitCall(call=call, attempt=number):
                self._check_commit(command, self.attempts[call, number])
            case DiscardCall(call=call, attempt=number):
                assert self._open == (call, number)
                self._open = None
                self.discards.append(command)
            case RunTools():
                self._check_tools(command)
            case Seal():
                assert self._open is None
                self.seal = command
            case StageText():
                assert self._open is not None
            case _:
                pass

    def _check_commit(self, command: CommitCall, attempt: Attempt) -> None:
        assert self._open == (command.call, command.attempt)
        assert attempt.completed is not None, "the attempt did not complete"
        assert command.text == attempt.text
        assert command.tool_calls == attempt.completed.tool_calls
        assert command.call not in [commit.call for commit in self.commits]
        self._open = None
        self.commits.append(command)

    def _check_tools(self, command: RunTools) -> None:
        (commit,) = [each for each in self.commits if each.call == command.call]
        assert commit.attempt == command.attempt
        for index, tool_call in command.tool_calls:
            assert tool_call == commit.tool_calls[index]
            assert tool_call.arguments_json is not None
            assert (command.call, index) not in self.ran
            self.ran.append((command.call, index))
            self._running.append((command.call, index))
