"""One session with an MCP server: opened, kept and closed in one task of its own.

What belongs here: starting the server or reaching it, and knowing when the session is over. What must not be known
here: tools, turns, when a session is wanted again.

anyio wants every scope to be left by the task that entered it, so a session cannot be opened by one turn and closed by
another. Requests may come from any task.
"""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any, Literal, Self

from mcp import Client, MCPError, StdioServerParameters, stdio_client, types
from mcp.client.streamable_http import streamable_http_client
from mcp.types.version import MODERN_PROTOCOL_VERSIONS

from worker.guard import Guard
from worker.sections import McpSettings
from worker.tools.mcp_http import AnsweringTransport, open_client, place_of
from worker.tools.mcp_reading import readable

Mode = Literal["auto", "legacy"]
"""auto asks for the newest protocol first; a server that never answers what it does not know needs legacy."""

Transport = AbstractAsyncContextManager[tuple[Any, Any]]
"""What gives the two streams of a session within its `async with`."""

_LONGEST_EVENT_BYTES = 64 * 1024 * 1024
_NO_MORE_THAN_S = 10.0

# They write addresses, session ids and what servers say.
for _name in ("mcp", "client", "httpx2", "httpcore2"):
    logging.getLogger(_name).addHandler(logging.NullHandler())
    logging.getLogger(_name).propagate = False


class Unreachable(Exception):
    """The session could not be opened; the words say why, with the fix. `silent`: nothing was answered in time."""

    def __init__(self, words: str, *, silent: bool = False) -> None:
        super().__init__(words)
        self.silent = silent


class Connection:
    """A session, from its beginning to its end. `changed`: called when the server's tools have changed.

    `unreadable`: names of tools that the server lists in a form that is not the protocol's, and that are left out.
    """

    def __init__(self, name: str, settings: McpSettings, mode: Mode, changed: Callable[[], None], guard: Guard) -> None:
        self._name = name
        self._settings = settings
        self._guard = guard
        self._mode = mode
        self._changed = changed
        self._client: Client | None = None
        self._http: AnsweringTransport | None = None
        self._error: Exception | None = None
        self.unreadable: set[str] = set()
        self._users = 0
        self._retired = False
        self._settled = asyncio.Event()
        self._over = asyncio.Event()
        self._task = asyncio.create_task(self._own())  # noqa: TID251 - awaited by `ended`, told to end by `end`

    @property
    def client(self) -> Client | None:
        """The session, or None when it is not open yet, or not for new requests any more."""
        return None if self._over.is_set() or self._retired else self._client

    @property
    def has_ended(self) -> bool:
        """The session is closed, and nothing of it is left."""
        return self._task.done()

    async def opened(self) -> Client:
        """Wait until the session is open. Raises `Unreachable`."""
        try:
            async with asyncio.timeout(self._settings.connect_timeout_s):
                await self._settled.wait()
        except TimeoutError:
            words = f"it did not answer within {self._settings.connect_timeout_s:g} s"
            fix = f"see to the server, or raise mcp.{self._name}.connect_timeout_s"
            raise Unreachable(f"{words}; {fix}", silent=True) from None
        finally:
            if self._client is None:
                self.end()
        if self._client is None:
            raise Unreachable(self._words())
        return self._client

    @contextmanager
    def in_use(self) -> Iterator[Client]:
        """The open session, for one request."""
        if self._client is None:
            raise MCPError(types.CONNECTION_CLOSED, "the session is closed")
        self._users += 1
        try:
            yield self._client
        finally:
            self._users -= 1
            if self._retired:
                self.retire()

    def retire(self) -> None:
        """Take no new requests, and close the session once those under way have their answers."""
        self._retired = True
        if not self._users:
            self.end()

    def end(self) -> None:
        """Close the session, soon. Requests under way are answered with an error."""
        if not self._settled.is_set() and not self._over.is_set():  # once: a second time would cut off the closing
            self._task.cancel()
        self._over.set()

    async def ended(self) -> None:
        """Wait until the session is closed and the server's process, if it is ours, has ended; at most 10 s."""
        _, slow = await asyncio.wait({self._task}, timeout=_NO_MORE_THAN_S)
        if slow:
            self._task.cancel()

    async def _own(self) -> None:
        try:
            async with self._session() as client:
                self._client = client
                self._settled.set()
                listening = asyncio.create_task(self._listen(client))  # noqa: TID251 - cancelled below
                try:
                    await self._over.wait()
                finally:
                    listening.cancel()
        except Exception as error:  # noqa: BLE001 - whatever ends a session is told to who asks for it
            self._error = error
        finally:
            self._client = None
            self._over.set()
            self._settled.set()

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[Client]:
        settings = self._settings
        if settings.url is not None:
            headers = {name: value.get_secret_value() for name, value in settings.headers.items()}
            http, self._http = open_client(headers, settings.connect_timeout_s, self._guard)
            async with http:
                reached = streamable_http_client(
                    settings.url, http_client=http, max_sse_event_size=_LONGEST_EVENT_BYTES
                )
                async with self._entered(reached) as client:
                    yield client
            return
        parameters = StdioServerParameters(
            command=settings.command[0],
            args=list(settings.command[1:]),
            env={name: value.get_secret_value() for name, value in settings.env.items()},
            encoding_error_handler="replace",
        )
        with Path(os.devnull).open("w", encoding="utf-8") as nowhere:  # noqa: ASYNC230 - it never blocks
            # What a server writes to its standard error may hold secrets.
            async with self._entered(stdio_client(parameters, errlog=nowhere)) as client:
                yield client

    def _entered(self, transport: Transport) -> Client:
        return Client(
            _watched(transport, self._read, self._over.set),
            mode=self._mode,
            cache=None,
            client_info=types.Implementation(name="lastword", version=version_of("lastword")),
            message_handler=self._heard,
        )

    def _read(self, item: object) -> object:
        return readable(item, self._client.protocol_version if self._client is not None else None, self.unreadable)

    async def _heard(self, message: object) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self._changed()

    async def _listen(self, client: Client) -> None:
        """Ask to be told of changes, where the protocol wants to be asked. Without it a listing ends by its age."""
        if client.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            return
        with suppress(MCPError, RuntimeError):
            async with client.listen(tools_list_changed=True) as changes:
                with suppress(RuntimeError):  # it was lost, and perhaps a change with it
                    async for _ in changes:
                        self._changed()
                self._changed()

    def _words(self) -> str:
        """Why the session could not be opened."""
        name, error = self._name, self._error
        while isinstance(error, ExceptionGroup):  # what one of anyio's tasks raised
            error = error.exceptions[0]
        if error is None:
            return "it was closed before it was ready"
        if self._http is not None and self._http.fault is not None:
            return self._http.fault.words(name)
        if isinstance(error, OSError):
            if not self._settings.command:
                return f"TLS cannot be set up ({error.strerror}); correct SSL_CERT_FILE and its like"
            program = self._settings.command[0]
            return f"the program {program!r} cannot be started ({error.strerror}); correct mcp.{name}.command"
        if isinstance(error, MCPError) and error.code == types.CONNECTION_CLOSED and self._settings.command:
            return f"its program ended before it was ready; run mcp.{name}.command by hand to see why"
        place = place_of(self._settings.url) if self._settings.url else repr(self._settings.command[0])
        kind = f"error {error.code}" if isinstance(error, MCPError) else type(error).__name__
        return f"{place} does not speak MCP as it should ({kind}); see to the server, or correct mcp.{name}"


@asynccontextmanager
async def _watched(
    transport: Transport, read: Callable[[object], object], ended: Callable[[], None]
) -> AsyncIterator[Any]:
    async with transport as (incoming, outgoing):
        yield _Watched(incoming, read, ended), outgoing


class _Watched:
    """A stream of messages that tells of its end: a Client whose server has died only says so when it is asked.

    `read`: gives each message in the form that the Client is to have it.
    """

    def __init__(self, stream: Any, read: Callable[[object], object], ended: Callable[[], None]) -> None:
        self._stream = stream
        self._read = read
        self._ended = ended

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self._stream.__aexit__(*raised)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        try:
            return self._read(await self._stream.__anext__())
        except BaseException:
            self._ended()
            raise
