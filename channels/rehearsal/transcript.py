"""What the stand-in provider was asked and what it sent, written down at once.

What belongs here: the record of one request, the file, waiting for a record. What must not be known here: scripts,
HTTP. The file holds one JSON object a line:

    {"event": "started", "at", "n", "wire", "prompt", "conversation", "call", "request"}
    {"event": "ended", "at", "n", "wire", "prompt", "conversation", "call", "request", "sent", "ended"}

`at`: UTC, ISO 8601. `n`: the request's number, from 1. `wire`: the wire format of the path that was asked. `prompt`:
the first user message; `conversation`: its hash. `call`: which call of the conversation's list answers, from 1; null
where none does. `request`: the body's fields, and `headers`; of those that hold keys only the names. `sent`: what was
really handed to the network, piece by piece.
"""

import asyncio
import json
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TextIO

from worker.errors import ConfigurationError

Ended = Literal["complete", "truncated", "error", "raw", "stall", "cut", "reset", "status", "client_left", "stopped"]
"""How an answer ended. `complete`: all went out that its wire format wants of a whole answer, whatever came later.
`stall`: it was silent until the client left. `raw`: bytes of the script went out as they are. `stopped`: the server was
stopped."""

_KEPT = 1000


@dataclass(slots=True)
class Sent:
    """What went out. `finish_reason`: as the script has it. `usage`: as it was sent. `bytes`: of the body."""

    text: str = ""
    reasoning: str = ""
    tool_calls: list[dict[str, str]] = field(default_factory=list)
    finish_reason: str | None = None
    usage: dict[str, object] | None = None
    bytes: int = 0


@dataclass(slots=True)
class Exchange:
    """One request and its answer. `prompt`: its first user message. `ended` None: the answer still goes on."""

    n: int
    wire: str
    prompt: str = field(repr=False)
    conversation: str | None
    call: int | None
    request: dict[str, Any] = field(repr=False)
    sent: Sent = field(default_factory=Sent, repr=False)
    ended: Ended | None = None


class Transcript:
    """The exchanges of one server; the last thousand are kept in memory. `path` None: no file."""

    def __init__(self, path: Path | None) -> None:
        self.exchanges: deque[Exchange] = deque(maxlen=_KEPT)
        self._changed = asyncio.Event()
        self._file: TextIO | None = None
        if path is not None:
            try:
                self._file = path.open("a", encoding="utf-8")
            except OSError as error:
                message = f"transcript {path} cannot be written: {error.strerror}. Give a path in a folder that exists"
                raise ConfigurationError(message) from error

    def start(self, exchange: Exchange) -> None:
        """Record that a request has come."""
        self.exchanges.append(exchange)
        self._write("started", _told(exchange, "n", "wire", "prompt", "conversation", "call", "request"))

    def end(self, exchange: Exchange, ended: Ended) -> None:
        """Record how its answer ended."""
        exchange.ended = ended
        told = _told(exchange, "n", "wire", "prompt", "conversation", "call", "request", "ended")
        self._write("ended", {**told, "sent": asdict(exchange.sent)})

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    async def wait_for_request(self, n: int, within_s: float = 10.0) -> Exchange:
        """The `n`-th request, from 1, as soon as it has come. Raises TimeoutError that names what was awaited."""
        return await self._wait(lambda each: each.n == n, f"request {n} to come", within_s)

    async def wait_for_end(self, n: int, within_s: float = 10.0) -> Exchange:
        """The `n`-th request as soon as its answer has ended. Raises TimeoutError that names what was awaited."""
        return await self._wait(lambda each: each.n == n and each.ended is not None, f"answer {n} to end", within_s)

    async def _wait(self, fits: Callable[[Exchange], bool], awaited: str, within_s: float) -> Exchange:
        try:
            async with asyncio.timeout(within_s):
                while True:
                    changed = self._changed
                    for exchange in self.exchanges:
                        if fits(exchange):
                            return exchange
                    await changed.wait()
        except TimeoutError:
            seen = [(each.n, each.ended) for each in self.exchanges]
            raise TimeoutError(f"waited {within_s:g} s for {awaited}; requests so far: {seen}") from None

    def _write(self, event: str, record: dict[str, Any]) -> None:
        if self._file is not None:
            now = datetime.now(UTC)  # noqa: TID251 - read beside the logs of other programs
            line = {"event": event, "at": now.isoformat(timespec="milliseconds"), **record}
            self._file.write(json.dumps(line, ensure_ascii=False) + "\n")
            self._file.flush()
        self._changed.set()
        self._changed = asyncio.Event()


def _told(exchange: Exchange, *names: str) -> dict[str, Any]:
    return {name: getattr(exchange, name) for name in names}
