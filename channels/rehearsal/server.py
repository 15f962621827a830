"""The stand-in provider as a server.

What belongs here: routes, starting and stopping. What must not be known here: which call is due (`cues`), what a step
does (`performance`), how a script is written (`script`).
"""

import asyncio
import contextlib
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import orjson
from aiohttp import web

from channels.rehearsal.body import Body, BodyCut
from channels.rehearsal.cues import Cue, Cues, Prompter, refused
from channels.rehearsal.performance import Performance
from channels.rehearsal.script import load_script
from channels.rehearsal.steps import Script
from channels.rehearsal.transcript import Exchange, Transcript
from channels.rehearsal.wire import NO_QUESTION, JsonObject, Question, RequestRefused, Wire
from channels.rehearsal.wires.anthropic import AnthropicWire
from channels.rehearsal.wires.chat import ChatWire
from channels.rehearsal.wires.responses import ResponsesWire
from worker.errors import ConfigurationError

WIRES: tuple[Wire, ...] = (ChatWire(), ResponsesWire(), AnthropicWire())
_LARGEST_REQUEST = 256 * 1024 * 1024
_SECRET_HEADERS = ("authorization", "proxy-authorization", "x-api-key", "api-key", "cookie")
_WITHHELD = "withheld"


class StandIn:
    """A stand-in provider. Listens between `start` and `stop`, or within its `async with`.

    `script`: or whoever else says what to answer. `port` 0: a free one. `transcript`: what it was asked and what it
    sent, and waits for both.
    """

    def __init__(
        self, script: Script | Prompter, host: str = "127.0.0.1", port: int = 0, transcript_path: Path | None = None
    ) -> None:
        self.transcript = Transcript(transcript_path)
        self.base_url = ""
        self._cues: Prompter = Cues(script) if isinstance(script, Script) else script
        self._models = self._cues.models or ("stand-in",)
        self._address = (host, port)
        self._requests = 0
        self._answers: set[asyncio.Task[Any]] = set()
        self._is_stopping = False
        app = web.Application(client_max_size=_LARGEST_REQUEST)
        for wire in WIRES:
            app.router.add_post(f"/{{before:(.+/)?}}{wire.path}", partial(self._ask, wire))
        app.router.add_get("/v1/models", self._list_models)
        app.router.add_get("/health", self._health)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True)

    async def start(self) -> None:
        """Listen. `base_url` is known after it. Raises ConfigurationError where the address cannot be taken."""
        host, port = self._address
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, host, port).start()
        except OSError as error:
            await self._runner.cleanup()
            message = f"host {host}, port {port}: {error.strerror}. Choose another port, or 0 for a free one"
            raise ConfigurationError(message) from error
        bound_host, bound_port = self._runner.addresses[0][:2]
        self.base_url = f"http://{f'[{bound_host}]' if ':' in bound_host else bound_host}:{bound_port}/v1"

    async def stop(self) -> None:
        """Drop every connection and close the transcript."""
        self._is_stopping = True
        for answer in self._answers:
            answer.cancel()
        await self._runner.cleanup()
        self.transcript.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def _ask(self, wire: Wire, request: web.Request) -> web.StreamResponse:
        asked = _object(await request.read())
        if asked is None:
            body = wire.refusal(400, "the body is no JSON object", "invalid_request_error")
            return web.Response(status=400, body=body, content_type="application/json")
        question = NO_QUESTION
        try:
            question = wire.question(asked, request.headers)
            cue = self._cues.next(question)
        except RequestRefused as refusal:
            cue = Cue(refused(refusal))
        self._requests += 1
        headers = {
            key.lower(): _WITHHELD if key.lower() in _SECRET_HEADERS else value
            for key, value in request.headers.items()
        }
        exchange = Exchange(
            self._requests, wire.name, question.prompt, cue.conversation, cue.number, {**asked, "headers": headers}
        )
        self.transcript.start(exchange)
        answer = asyncio.current_task()
        assert answer is not None
        self._answers.add(answer)
        try:
            return await self._answer(request, wire, question, cue, exchange)
        finally:
            self._answers.discard(answer)

    async def _answer(
        self, request: web.Request, wire: Wire, question: Question, cue: Cue, exchange: Exchange
    ) -> web.StreamResponse:
        body = Body(request, cue.call.cut_at_byte)
        performance = Performance(cue.call, wire, question, body, exchange)
        try:
            await performance.run()
        except BodyCut:
            performance.end_as("cut")
        except ConnectionError:
            pass  # the client has left, and `ended` says so
        except asyncio.CancelledError:
            if self._is_stopping:
                performance.end_as("stopped")
            raise
        finally:
            exchange.sent.bytes = body.bytes_sent
            self.transcript.end(exchange, performance.ended)
        return body.response

    async def _list_models(self, _: web.Request) -> web.Response:
        models = [{"id": name, "object": "model", "owned_by": "lastword"} for name in self._models]
        return web.json_response({"object": "list", "data": models})

    async def _health(self, _: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})


async def serve(script: Script, host: str = "127.0.0.1", port: int = 0, transcript_path: Path | None = None) -> StandIn:
    """A stand-in provider that listens; to be stopped by the caller."""
    stand_in = StandIn(script, host, port, transcript_path)
    await stand_in.start()
    return stand_in


def run(script_path: Path, host: str, port: int, transcript_path: Path | None, started: Callable[[str], None]) -> None:
    """Serve a script file until SIGINT or SIGTERM. `started` gets the base URL. For the main thread.

    Raises ConfigurationError for a bad script, address or transcript.
    """
    script = load_script(script_path)

    async def until_stopped() -> None:
        stopping = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stopping.set)
        async with StandIn(script, host, port, transcript_path) as stand_in:
            started(stand_in.base_url)
            await stopping.wait()

    asyncio.run(until_stopped())


def _object(data: bytes) -> JsonObject | None:
    with contextlib.suppress(orjson.JSONDecodeError):
        found = orjson.loads(data)
        return found if isinstance(found, dict) else None
    return None
