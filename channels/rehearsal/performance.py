"""One call of a script, performed for one client.

What belongs here: what each step does, in order, and what is recorded as sent. What must not be known here: which
call is due, how bytes travel (`body`), what a chunk looks like (`wire`).
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Sequence
from typing import TypeVar

from channels.rehearsal.body import Body
from channels.rehearsal.steps import (
    FOREVER,
    Call,
    CallTool,
    Cut,
    Done,
    EndlessLine,
    Finish,
    KeepAlive,
    Pause,
    Raw,
    Reset,
    Say,
    SendError,
    Stall,
    Step,
    Truncate,
)
from channels.rehearsal.transcript import Ended, Sent
from channels.rehearsal.wire import END_MARK, ChatWire, comment, error_event

_FLOOD_BYTES = 65536
_Piece = TypeVar("_Piece")


class Performance:
    """Performs a call once. `prompt_words`: of the request, when the client asked for usage; else None.

    `ended`: how the answer ends if it is stopped now.
    """

    def __init__(self, call: Call, wire: ChatWire, body: Body, sent: Sent, prompt_words: int | None) -> None:
        self.ended: Ended = "client_left"
        self._call = call
        self._wire = wire
        self._body = body
        self._sent = sent
        self._prompt_words = prompt_words
        self._has_role = False
        self._has_end_mark = False
        self._is_over = False

    async def run(self) -> None:
        """Perform the steps and the ending. Raises BodyCut, and ConnectionError when the client has left."""
        await self._hold(self._call.delay_s)
        if self._call.page is not None:
            self.end_as("status")
            await self._body.send_page(self._call.page)
            return
        await self._body.open()
        for step in self._call.steps:
            await self._perform(step)
            if self._is_over:
                return
        if not any(isinstance(step, Raw) for step in self._call.steps):
            await self._send_ending()
        await self._end_body("raw")

    async def _perform(self, step: Step) -> None:  # noqa: C901, PLR0912 - one arm a step
        match step:
            case Say():
                await self._say(step)
            case CallTool():
                await self._call_tool(step)
            case Pause(seconds):
                await asyncio.sleep(seconds)
            case Stall(seconds):
                await self._hold(seconds)
            case KeepAlive():
                await self._keep_alive(step)
            case Raw():
                await self._send_raw(step)
            case EndlessLine():
                await self._body.write(b"data: ")
                while True:
                    await self._body.write(b"x" * _FLOOD_BYTES)
            case SendError(error, event):
                await self._body.write(error_event(error, event))
                await self._end_body("error")
            case Finish(reason):
                await self._send_finish(reason)
            case Done():
                await self._send_ending()
            case Truncate():
                await self._end_body("truncated")
            case Cut():
                self._break_off("cut")
                self._body.cut()
            case Reset():
                self._break_off("reset")
                self._body.reset()

    async def _say(self, step: Say) -> None:
        async for piece in _paced(step.pieces, step.every_s):
            if step.is_reasoning:
                await self._send_content(self._wire.reasoning(piece))
                self._sent.reasoning += piece
            else:
                await self._send_content(self._wire.text(piece))
                self._sent.text += piece

    async def _call_tool(self, step: CallTool) -> None:
        index = len(self._sent.tool_calls)
        call_id = step.id or f"call_{secrets.token_hex(8)}"
        await self._send_content(self._wire.tool_call(index, call_id, step.name))
        record = {"id": call_id, "name": step.name, "arguments": ""}
        self._sent.tool_calls.append(record)
        async for piece in _paced(step.pieces, step.every_s):
            await self._body.write(self._wire.arguments(index, piece))
            record["arguments"] += piece

    async def _send_content(self, chunk: bytes) -> None:
        if not self._has_role:
            await self._body.write(self._wire.role())
            self._has_role = True
        await self._body.write(chunk)

    async def _keep_alive(self, step: KeepAlive) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + step.for_s
        before = self.ended
        self.end_as("stall")
        while loop.time() < until:
            await self._body.write(comment(step.comment))
            await asyncio.sleep(step.every_s)
        self.ended = before

    async def _send_raw(self, step: Raw) -> None:
        size = step.chunk_bytes or max(1, len(step.data))
        parts = [step.data[start : start + size] for start in range(0, len(step.data), size)]
        async for part in _paced(parts * step.times, step.every_s):
            await self._body.write(part)

    async def _send_finish(self, reason: str) -> None:
        await self._send_content(self._wire.finish(reason))
        self._sent.finish_reason = reason
        self.ended = "complete"

    async def _send_ending(self) -> None:
        if self._sent.finish_reason is None:
            await self._send_finish("tool_calls" if self._sent.tool_calls else "stop")
        usage = self._call.usage or self._counted_usage()
        if usage is not None and self._sent.usage is None:
            await self._body.write(self._wire.usage(usage))
            self._sent.usage = usage
        if not self._has_end_mark:
            self._has_end_mark = True
            await self._body.write(END_MARK)

    def _counted_usage(self) -> dict[str, object] | None:
        """A word is a token here, so that usage differs from answer to answer and can be checked."""
        if self._prompt_words is None:
            return None
        words = len(self._sent.text.split()) + len(self._sent.reasoning.split())
        return {
            "prompt_tokens": self._prompt_words,
            "completion_tokens": words,
            "total_tokens": self._prompt_words + words,
        }

    async def _hold(self, seconds: float) -> None:
        """Silence. A client that leaves now has left a stall."""
        before = self.ended
        self.end_as("stall")
        await (asyncio.sleep(seconds) if seconds < FOREVER else asyncio.Event().wait())
        self.ended = before

    async def _end_body(self, ended: Ended) -> None:
        self._break_off(ended)
        await self._body.close()

    def _break_off(self, ended: Ended) -> None:
        self.end_as(ended)
        self._is_over = True

    def end_as(self, ended: Ended) -> None:
        """The answer ends so, unless it was complete before."""
        if self.ended != "complete":
            self.ended = ended


async def _paced(pieces: Sequence[_Piece], every_s: float) -> AsyncIterator[_Piece]:
    for number, piece in enumerate(pieces):
        if number and every_s:
            await asyncio.sleep(every_s)
        yield piece
