"""One call of a script, performed for one client.

What belongs here: what each step does, in order, and what is recorded as sent. What must not be known here: which
call is due, how bytes travel (`body`), what the steps look like in a wire format (`wires`).
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
    Page,
    Pause,
    Raw,
    Reset,
    Say,
    SendError,
    Stall,
    Step,
    Truncate,
)
from channels.rehearsal.transcript import Ended, Exchange
from channels.rehearsal.wire import JsonObject, Question, Wire

_FLOOD_BYTES = 65536
_Piece = TypeVar("_Piece")


class Performance:
    """Performs a call once, as the answer of an exchange. `ended`: how the answer ends if it is stopped now."""

    def __init__(self, call: Call, wire: Wire, question: Question, body: Body, exchange: Exchange) -> None:
        self.ended: Ended = "client_left"
        self._call = call
        self._wire = wire
        self._question = question
        self._body = body
        self._sent = exchange.sent
        self._answer = wire.answer(exchange.n, question, self._usage())
        self._has_ended_well = False
        self._is_over = False

    async def run(self) -> None:
        """Perform the steps and the ending. Raises BodyCut, and ConnectionError when the client has left."""
        await self._hold(self._call.delay_s)
        if self._call.page is not None:
            self.end_as("status")
            await self._send_page(self._call.page)
            return
        await self._body.open()
        for step in self._call.steps:
            await self._perform(step)
            if self._is_over:
                return
        if not any(isinstance(step, Raw) for step in self._call.steps):
            await self._send_ending()
        await self._end_body("raw")

    async def _send_page(self, page: Page) -> None:
        body = self._wire.refusal(page.status, page.message, page.code) if page.body is None else page.body
        await self._body.send_page(page, body)

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
                await self._body.write(self._answer.error(error, event))
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
                await self._body.write(self._answer.reasoning(piece))
                self._sent.reasoning += piece
            else:
                await self._body.write(self._answer.text(piece))
                self._sent.text += piece

    async def _call_tool(self, step: CallTool) -> None:
        call_id = step.id or f"{self._wire.call_id_prefix}{secrets.token_hex(8)}"
        await self._body.write(self._answer.open_tool(call_id, step.name))
        record = {"id": call_id, "name": step.name, "arguments": ""}
        self._sent.tool_calls.append(record)
        async for piece in _paced(step.pieces, step.every_s):
            await self._body.write(self._answer.arguments(piece))
            record["arguments"] += piece
        await self._body.write(self._answer.close_tool())

    async def _keep_alive(self, step: KeepAlive) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + step.for_s
        before = self.ended
        self.end_as("stall")
        while loop.time() < until:
            await self._body.write(self._answer.keepalive(step.comment))
            await asyncio.sleep(step.every_s)
        self.ended = before

    async def _send_raw(self, step: Raw) -> None:
        size = step.chunk_bytes or max(1, len(step.data))
        parts = [step.data[start : start + size] for start in range(0, len(step.data), size)]
        async for part in _paced(parts * step.times, step.every_s):
            await self._body.write(part)

    async def _send_finish(self, reason: str) -> None:
        await self._body.write(self._answer.finish(reason, self._usage()))
        self._sent.finish_reason = reason
        self._sent.usage = self._answer.usage
        if self._answer.is_whole_at_finish:
            self.ended = "complete"

    async def _send_ending(self) -> None:
        if self._sent.finish_reason is None:
            await self._send_finish("tool_calls" if self._sent.tool_calls else "stop")
        if self._has_ended_well:
            return
        if self._sent.usage is None and (self._call.usage is not None or self._question.wants_usage):
            await self._body.write(self._answer.report_usage(self._usage()))
            self._sent.usage = self._answer.usage
        self._has_ended_well = True
        await self._body.write(self._answer.end())
        self.ended = "complete"

    def _usage(self) -> JsonObject:
        """A word is a token here, so that usage differs from answer to answer and can be checked."""
        if self._call.usage is not None:
            return self._call.usage
        prompt = self._question.words
        words = len(self._sent.text.split()) + len(self._sent.reasoning.split())
        return {"prompt_tokens": prompt, "completion_tokens": words, "total_tokens": prompt + words}

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
