"""The whole of Lastword against one server of another's making, in three wire formats at once.

What belongs here: settings, processes, and what came of one turn, with the server's bytes beside it.
"""

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.process.test_worker_killed import body_of
from tests.real.wiretap import Answered, Wiretap
from tests.support.plain_reader import Plain, read
from tests.support.receiver import Receiver
from tests.support.stack import SECRET, Process, Stack
from worker.output.events import ErrorOutput, Output, TextStreamDiscardedOutput, ToolResultOutput, UsageOutput

WIRES = ("chat", "responses", "anthropic")
WITHIN_S = 60.0


@dataclass(frozen=True, slots=True)
class Came:
    """What came of one turn. `data`: what its webhook said. `answers`: what the server sent, attempt by attempt."""

    wire: str
    outputs: list[Output]
    data: dict[str, Any]
    answers: list[Answered]

    @property
    def read(self) -> list[Plain]:
        """The streams that the server sent, read without our code."""
        return _streams(self.wire, self.answers)

    @property
    def spoken(self) -> str:
        """The text of all calls that the server completed: what the turn must have delivered."""
        return "".join(plain.text for plain in self.read if plain.complete and not plain.broken and not plain.error)

    @property
    def end(self) -> tuple[str, str | None, str | None]:
        """Outcome, reason and error code."""
        error = self.data["error"]
        return self.data["outcome"], self.data["reason"], error["code"] if error else None

    @property
    def discards(self) -> list[str]:
        """Why attempts were discarded."""
        return [output.reason for output in self.outputs if isinstance(output, TextStreamDiscardedOutput)]

    @property
    def tool_results(self) -> list[ToolResultOutput]:
        """What the tools gave."""
        return [output for output in self.outputs if isinstance(output, ToolResultOutput)]

    @property
    def usage(self) -> list[UsageOutput]:
        """The tokens of each completed call."""
        return [output for output in self.outputs if isinstance(output, UsageOutput)]

    @property
    def errors(self) -> list[ErrorOutput]:
        """What failed."""
        return [output for output in self.outputs if isinstance(output, ErrorOutput)]


class Field:
    """A running Lastword whose agents ask the server through wiretaps: one a wire format, with the tool `look_up`.

    The agent `plain-WIRE` is offered no tool.
    """

    def __init__(
        self, stack: Stack, turns: Process, receiver: Receiver, taps: Mapping[str, Wiretap], runs: Path
    ) -> None:
        self.stack = stack
        self._turns = turns
        self.taps = taps
        self.receiver = receiver
        self._runs = runs

    async def ask(self, wire: str, prompt: str, *, plain: bool = False, session: str | None = None) -> Came:
        """One turn from the message to the webhook. Nothing else may use this wire format meanwhile."""
        assert self._turns.returncode is None, self._turns.tail()
        self.taps[wire].forget()
        agent = f"plain-{wire}" if plain else wire
        turn = await self.stack.submit(prompt, agent=agent, session=session, destinations=("receiver",), watch_s=60)
        outputs = await self.stack.ended(turn, WITHIN_S)
        data = await self._delivered(turn)
        return Came(wire, outputs, data, self.taps[wire].answers())

    def streams(self, wire: str) -> list[Plain]:
        """What the server has streamed in this wire format since the last `ask` began, read without our code."""
        return _streams(wire, self.taps[wire].answers())

    def tool_runs(self) -> list[str]:
        """The idempotency keys of all runs of the tool so far."""
        return self._runs.read_text(encoding="utf-8").splitlines() if self._runs.exists() else []

    async def _delivered(self, turn: str) -> dict[str, Any]:
        for number in range(1, 10_000):
            data = body_of(await self.receiver.nth(number, WITHIN_S))
            if data["turn"] == turn:
                return data
        raise AssertionError(turn)


@asynccontextmanager
async def field(
    folder: Path, url: str, roots: Mapping[str, tuple[int, str]], more: str = "", agent: str = ""
) -> AsyncIterator[Field]:
    """A running field. `roots`: port and path of each wire format's base URL. `more`: of settings; `agent`: of each."""
    async with AsyncExitStack() as exits:
        taps = {wire: await exits.enter_async_context(Wiretap(port)) for wire, (port, _) in roots.items()}
        receiver = await exits.enter_async_context(Receiver())
        stack = await exits.enter_async_context(Stack(folder, url))
        text = [more, f'[endpoints.receiver]\nurl = "{receiver.url}"\nsecret = "{SECRET}"']
        for wire, (_, path) in roots.items():
            text.append(_PROVIDER.format(wire=wire, port=taps[wire].port, path=path))
            text.append(f'[agents.{wire}]\nprovider = "{wire}"\ntools = ["look_up"]\n{agent}')
            text.append(f'[agents.plain-{wire}]\nprovider = "{wire}"\n{agent}')
        stack.configure("\n".join(text))
        runs = folder / "tool-runs"
        stack.start("delivery")
        turns = stack.start("turns", environment=_found_beside_us(stack) | {"TOOL_RUNS": str(runs)})
        yield Field(stack, turns, receiver, taps, runs)


def _found_beside_us(stack: Stack) -> dict[str, str]:
    """Where a process finds the tool `look_up`."""
    return {"PYTHONPATH": os.pathsep.join([stack.environment["PYTHONPATH"], str(Path(__file__).parent / "installed")])}


def _streams(wire: str, answers: list[Answered]) -> list[Plain]:
    return [read(wire, answer.body) for answer in answers if answer.status == 200]


_PROVIDER = """
[providers.{wire}]
wire = "{wire}"
base_url = "http://127.0.0.1:{port}{path}"
model = "tiny"
api_key = "none"
stall_timeout_s = 1
finish_grace_s = 1
transport_backoff_s = 0.1
"""
