"""`lastword run`: one turn in this process, shown as it happens.

What belongs here: starting the engine in-process, following the turn's outputs, printing them. What must not be known
here: how a turn runs.

Only a terminal sees text that is still streaming; a pipe and `--json` get the text of completed calls alone.
"""

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import redis.asyncio
from rich.console import Console

from channels.console import exits
from channels.settings import Settings
from worker import api
from worker.output.buffer import CommitBuffer
from worker.output.events import (
    ErrorOutput,
    Output,
    TextDeltaOutput,
    TextOutput,
    TextStreamDiscardedOutput,
    ToolCallOutput,
    ToolResultOutput,
    TurnCompletedOutput,
    UsageOutput,
)
from worker.store import connect
from worker.store.outputs import outputs_after, watch
from worker.wiring import TurnProcess

FOLLOW_BLOCK_S = 1.0
_WATCH_S = 30.0


@dataclass(slots=True)
class Shown:
    """What has been seen of the turn so far."""

    turn: str
    session: str
    started: float = field(default_factory=monotonic)
    buffer: CommitBuffer = field(default_factory=CommitBuffer)
    tools: list[dict[str, Any]] = field(default_factory=list)
    usage: dict[str, int] = field(default_factory=dict)
    error: dict[str, str] | None = None
    outcome: str | None = None
    reason: str | None = None
    first_text_s: float | None = None
    unseen: str = ""
    dangling: bool = False

    def take(self, output: Output) -> None:
        """Fold one output. `unseen` is then what this output adds to the text that a terminal has printed."""
        self.unseen = ""
        if isinstance(output, TextDeltaOutput):
            self.unseen = output.text
        elif isinstance(output, TextOutput) and output.is_call_boundary:  # the last deltas may never have been staged
            streamed = self.buffer.staged
            self.unseen = output.text[len(streamed) :] if output.text.startswith(streamed) else f"\n{output.text}"
        self.buffer.apply(output)
        match output:
            case TextDeltaOutput() | TextOutput() if self.first_text_s is None:
                self.first_text_s = monotonic() - self.started
            case ToolCallOutput():
                self.tools.append({"id": output.tool_call_id, "name": output.name, "arguments": output.arguments})
            case UsageOutput():
                self._add(output)
            case ErrorOutput():
                self.error = {
                    "category": output.category,
                    "code": output.code,
                    "message": output.message,
                    "correlation_id": output.correlation_id,
                }
            case TurnCompletedOutput():
                self.outcome, self.reason = output.outcome, output.reason

    def _add(self, output: UsageOutput) -> None:
        for name in ("input_tokens", "output_tokens", "total_tokens", "cached_input_tokens", "reasoning_tokens"):
            value = getattr(output, name)
            if value is not None:
                self.usage[name] = self.usage.get(name, 0) + value
        for name in ("discarded_resume_attempts", "discarded_resume_estimated_input_tokens"):
            value = getattr(output, name)
            if value is not None:  # cumulative already
                self.usage[name] = value

    def summary(self) -> dict[str, Any]:
        """The one object of `--json`."""
        return {
            "schema_version": 1,
            "turn": self.turn,
            "session": self.session,
            "outcome": self.outcome,
            "reason": self.reason,
            "text": self.buffer.committed,
            "tool_calls": self.tools or None,
            "usage": self.usage or None,
            "error": self.error,
            "ttft_ms": None if self.first_text_s is None else round(self.first_text_s * 1000, 1),
            "total_ms": round((monotonic() - self.started) * 1000, 1),
        }


async def run(  # noqa: PLR0913 - what the command line was given
    settings: Settings, url: str, prompt: str, *, agent: str, session: str | None, as_json: bool
) -> int:
    """Run one turn on the store at `url`; returns the exit code of its outcome."""
    settings = settings.model_copy(update={"redis_url": url})
    client = connect.open_redis(url, block_s=FOLLOW_BLOCK_S)
    process = TurnProcess(settings)
    await process.start()
    try:
        submitted = await api.submit(
            settings,
            client,
            prompt=prompt,
            source="cli",
            wake=lambda _: None,
            agent=agent,
            session=session,
            watch_s=_WATCH_S,
        )
        shown = Shown(submitted.turn, submitted.session)
        driving = asyncio.get_running_loop().create_task(process.run_session(submitted.session))
        try:
            await _follow(client, shown, _printer(as_json=as_json))
            await driving
        finally:
            process.drain()
            with contextlib.suppress(asyncio.CancelledError):
                await driving
    finally:
        await process.stop()
        await client.aclose()
    if as_json:
        sys.stdout.write(json.dumps(shown.summary(), ensure_ascii=False) + "\n")
    return exits.of_outcome(shown.outcome)


async def follow(client: redis.asyncio.Redis, turn: str) -> AsyncIterator[Output]:
    """The outputs of a turn from its first, as they come, until it ends; it is watched meanwhile.

    `client` must allow a blocking read of `FOLLOW_BLOCK_S` seconds.
    """
    last = "0-0"
    while True:
        await watch(client, turn, _WATCH_S)
        for entry, output in await outputs_after(client, turn, last, round(FOLLOW_BLOCK_S * 1000)):
            last = entry
            yield output
            if isinstance(output, TurnCompletedOutput):
                return


async def _follow(client: redis.asyncio.Redis, shown: Shown, printer: "_Printer") -> None:
    async for output in follow(client, shown.turn):
        shown.take(output)
        printer.show(output, shown)


class _Printer:
    """Prints nothing but errors: what `--json` wants while the turn runs."""

    def __init__(self) -> None:
        self._errors = Console(stderr=True, highlight=False)

    def show(self, output: Output, shown: Shown) -> None:
        del shown
        if isinstance(output, ErrorOutput):
            self._errors.print(
                f"error: {output.message} [{output.code}, reference {output.correlation_id[:8]}]", markup=False
            )


class _PipePrinter(_Printer):
    """Prints the text of completed calls, and nothing else, to standard output."""

    def show(self, output: Output, shown: Shown) -> None:
        super().show(output, shown)
        if isinstance(output, TextOutput) and output.is_call_boundary:
            sys.stdout.write(output.text)
            sys.stdout.flush()
        elif isinstance(output, TurnCompletedOutput):
            sys.stdout.write("\n" if shown.buffer.committed else "")


class _TerminalPrinter(_Printer):
    """Prints text as it streams, says so when it is void, and shows tools."""

    def __init__(self) -> None:
        super().__init__()
        self._out = Console(highlight=False)

    def show(self, output: Output, shown: Shown) -> None:
        match output:
            case TextDeltaOutput() | TextOutput():
                self._out.out(shown.unseen, end="", highlight=False)
                shown.dangling = shown.dangling or bool(shown.unseen)
            case TextStreamDiscardedOutput():
                self._note(shown, f"interrupted ({output.reason}): the text since the last mark is void; asking again")
            case ToolCallOutput():
                self._note(shown, f"tool {output.name} …")
            case ToolResultOutput():
                self._note(shown, f"tool {output.name}: {'failed' if output.failure else 'done'}")
            case TurnCompletedOutput():
                self._note(shown, f"{output.outcome}" + (f" ({output.reason})" if output.reason else ""))
            case _:
                super().show(output, shown)

    def _note(self, shown: Shown, words: str) -> None:
        if shown.dangling:
            self._out.print()
            shown.dangling = False
        self._out.print(f"· {words}", style="dim", markup=False)


def _printer(*, as_json: bool) -> _Printer:
    if as_json:
        return _Printer()
    return _TerminalPrinter() if sys.stdout.isatty() else _PipePrinter()
