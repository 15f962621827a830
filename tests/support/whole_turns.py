"""Whole turns in this process: a real server for the store, real HTTP to a stand-in provider.

What belongs here: settings with short silences, one turn from submit to seal, and what came of it. What must not be
known here: any case.
"""

import asyncio
import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis.asyncio

from channels.rehearsal.server import StandIn
from channels.rehearsal.transcript import Exchange
from tests.support.stack import stand_in
from worker import api
from worker.output.events import (
    CallCompletedOutput,
    Output,
    TextDeltaOutput,
    TextOutput,
    TextStreamDiscardedOutput,
    ToolCallOutput,
    ToolResultOutput,
    TurnCompletedOutput,
)
from worker.settings import WorkerSettings
from worker.store.outputs import all_outputs
from worker.store.records import TurnRecord, read_text, read_turn
from worker.wiring import TurnProcess

WIRES = ("chat", "responses", "anthropic")
_WATCH_S = 60.0


@dataclass(frozen=True, slots=True)
class WholeTurn:
    """What came of a turn: its record, its text, all that a reader saw, and what the provider was asked."""

    record: TurnRecord
    text: str
    outputs: tuple[Output, ...]
    asked: tuple[Exchange, ...]

    @property
    def discards(self) -> list[str]:
        """The reasons of its discards, in order."""
        return [each.reason for each in self.outputs if isinstance(each, TextStreamDiscardedOutput)]

    @property
    def code(self) -> str | None:
        """The code of its failure."""
        return self.record.failure.code if self.record.failure else None

    @property
    def tools_run(self) -> list[str]:
        """The tools that were started, by name."""
        return [each.name for each in self.outputs if isinstance(each, ToolCallOutput)]

    @property
    def tool_results(self) -> list[ToolResultOutput]:
        """What the model was told of its tool calls."""
        return [each for each in self.outputs if isinstance(each, ToolResultOutput)]

    @property
    def story(self) -> list[str]:
        """Who said what in which order: `delta 1.1`, `discard 1.1`, `text 1.2`, `completed 1.2`, `end`."""
        words = {
            TextDeltaOutput: "delta",
            TextStreamDiscardedOutput: "discard",
            TextOutput: "text",
            CallCompletedOutput: "completed",
        }
        story: list[str] = []
        for output in self.outputs:
            if isinstance(output, TurnCompletedOutput):
                story.append("end")
            elif type(output) in words:
                line = f"{words[type(output)]} {output.call}.{output.attempt}"
                if not story or story[-1] != line:
                    story.append(line)
        return story


def settings_of(url: str, base_url: str, wire: str = "chat", **changes: Any) -> WorkerSettings:
    """Settings in which a stall is over soon. `changes`: further fields of the provider, or whole sections."""
    provider = {
        "wire": wire,
        "base_url": base_url,
        "model": "stand-in",
        "stall_timeout_s": 0.3,
        "first_token_timeout_s": 5,
        "no_progress_timeout_s": 6,
        "prefill_timeout_s": 10,
        "transport_backoff_s": 0.01,
        "transport_backoff_max_s": 0.02,
        "finish_grace_s": 0.2,
    }
    sections = {"agents", "turns", "compaction", "approvals", "provider_health", "lease", "mcp", "tools"}
    provider |= {name: value for name, value in changes.items() if name not in sections and name != "providers"}
    return WorkerSettings.model_validate(
        {
            "redis_url": url,
            "providers": {"main": provider, **changes.get("providers", {})},
            "agents": changes.get("agents", {"default": {"tools": ["clock"]}}),
            "turns": {"resume_backoff_s": 0.01, **changes.get("turns", {})},
            **{name: changes[name] for name in sections - {"agents", "turns"} if name in changes},
        }
    )


async def whole_turn(
    url: str, folder: Path, script: str, wire: str = "chat", prompt: str = "When is low tide?", **changes: Any
) -> WholeTurn:
    """One watched turn against a stand-in that plays `script`, until it has ended."""
    async with stand_in(script, folder) as provider:
        return await turn_with(url, provider, wire, prompt, **changes)


async def turn_with(
    url: str, provider: StandIn, wire: str = "chat", prompt: str = "When?", **changes: Any
) -> WholeTurn:
    """One watched turn against a stand-in that runs."""
    settings = settings_of(url, provider.base_url, wire, **changes)
    client = redis.asyncio.Redis.from_url(url)
    process = TurnProcess(settings)
    await process.start()
    try:
        submitted = await api.submit(
            settings, client, prompt=prompt, source="test", wake=lambda _: None, watch_s=_WATCH_S
        )
        async with asyncio.timeout(30):
            await process.run_session(submitted.session)
        record = await read_turn(client, submitted.turn)
        assert record is not None
        return WholeTurn(
            record,
            await read_text(client, submitted.turn),
            tuple(await all_outputs(client, submitted.turn)),
            tuple(provider.transcript.exchanges),
        )
    finally:
        await process.stop()
        with contextlib.suppress(Exception):
            await client.aclose()
