"""The tools of one MCP server, on a session that is opened when it is first needed and again after it broke.

What belongs here: when a session is wanted, what its tools are, and calling one. What must not be known here: how a
session is opened, which agent offers what.
"""

import asyncio
import math
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from mcp import Client, MCPError, types

from worker.codecs.messages import ToolSpec
from worker.errors import ToolsUnavailable
from worker.guard import Guard
from worker.observability import info, warn
from worker.sections import McpSettings
from worker.tools.mcp_connection import Connection, Mode, Unreachable
from worker.tools.mcp_http import BROKE, NOT_SENT, SESSION_GONE
from worker.tools.mcp_text import offered_name, told
from worker.tools.tool import Approval, Arguments, BadArguments, ToolContext, ToolFailed

_FIRST_WAIT_S = 0.5
_LONGEST_WAIT_S = 30.0
_LISTING_AGE_S = 300.0
_MOST_PAGES = 100


@dataclass(frozen=True, slots=True)
class McpTool:
    """One tool of a server. `name`: as the server knows it; its spec has the name under which it is offered."""

    spec: ToolSpec
    name: str
    retry_safe: bool
    approval: Approval
    server: "McpServer" = field(repr=False)
    timeout_s: float | None = None

    async def run(self, arguments: Arguments, context: ToolContext) -> str:
        """Call it. Progress that the server tells of breaks the silence."""
        result = await self.server.call(self.name, arguments, context)
        if result.is_error:
            raise ToolFailed(told(result) or "the tool failed and said nothing")
        return told(result)


class McpServer:
    """One server of the settings, for all turns of a process. To be used on one event loop."""

    def __init__(self, name: str, settings: McpSettings, guard: Guard) -> None:
        self._name = name
        self._settings = settings
        self._guard = guard
        self._mode: Mode = "auto"
        self._lock = asyncio.Lock()
        self._connection: Connection | None = None
        self._connections: set[Connection] = set()
        self._failures = 0
        self._not_before = 0.0
        self._reason = ""
        self._listed: tuple[McpTool, ...] | None = None
        self._fresh_until = -math.inf
        self._changes = 0
        self._closed = False

    async def tools(self) -> tuple[McpTool, ...]:
        """All tools of the server, as it listed them last. Raises `ToolsUnavailable`."""
        async with self._lock:
            while True:
                known = self._connection is not None and self._connection.client is not None
                connection = await self._opened()
                if self._listed is not None and monotonic() < self._fresh_until:
                    return self._listed
                try:
                    with connection.in_use() as client:
                        connection.unreadable.clear()
                        return await self._list(client)
                except Exception as error:  # noqa: BLE001 - also what the library makes of a list that is none
                    connection.retire()
                    if not known:  # a session that has just been opened; an old one may have died unnoticed
                        raise self._unavailable(_not_listed(self._name, error)) from None

    @property
    def unreadable(self) -> frozenset[str]:
        """Names of tools that it lists in a form that is not the protocol's; `tools` leaves them out."""
        return frozenset(self._connection.unreadable) if self._connection is not None else frozenset()

    @property
    def unreadable_offered(self) -> frozenset[str]:
        """The names under which those would be offered."""
        return frozenset(offered_name(self._name, tool) for tool in self.unreadable)

    async def call(self, name: str, arguments: Arguments, context: ToolContext) -> types.CallToolResult:
        """Call a tool. Raises `ToolFailed` and `BadArguments`, with words for the model."""
        connection = await self._reached()
        try:
            return await self._ask(connection, name, arguments, context)
        except MCPError as error:
            if error.code != SESSION_GONE:
                raise _refusal(self._name, error) from None
        connection.retire()  # the server knows the session no more, so it has run nothing
        try:
            return await self._ask(await self._reached(), name, arguments, context)
        except MCPError as error:
            raise _refusal(self._name, error) from None

    async def close(self) -> None:
        """End the session, and the server's process if it is ours. No other is opened after that."""
        self._closed = True
        for connection in self._connections:
            connection.end()
        await asyncio.gather(*(connection.ended() for connection in self._connections))

    async def _reached(self) -> Connection:
        if self._connection is not None and self._connection.client is not None:
            return self._connection
        try:
            async with self._lock:
                return await self._opened()
        except ToolsUnavailable as error:
            raise ToolFailed(f"the tool did not run: {error}") from None

    async def _ask(
        self, connection: Connection, name: str, arguments: Arguments, context: ToolContext
    ) -> types.CallToolResult:
        async def progressed(progress: float, total: float | None, message: str | None) -> None:
            del progress, total, message
            context.alive()

        try:
            with connection.in_use() as client:
                return await client.call_tool(name, dict(arguments), progress_callback=progressed)
        except MCPError:
            raise
        except Exception as error:  # noqa: BLE001 - an answer that is not as the protocol or its own schema has it
            kind = type(error).__name__
            warn("mcp_answer_unreadable", server=self._name, error=kind)
            words = f"the tool may have run, but the answer of mcp.{self._name} is not as it must be ({kind})"
            raise ToolFailed(words) from None

    # The session.

    async def _opened(self) -> Connection:
        """The open session, or a new one; called with the lock held."""
        if self._connection is not None and self._connection.client is not None:
            return self._connection
        if self._closed:
            raise ToolsUnavailable(f"mcp.{self._name} cannot be reached: this process shuts down")
        wait_s = self._not_before - monotonic()
        if wait_s > 0:
            raise ToolsUnavailable(self._reason, wait_s)
        connection = Connection(self._name, self._settings, self._mode, self._changed, self._guard)
        self._connection = connection
        self._connections = {each for each in self._connections if not each.has_ended} | {connection}
        self._listed = None
        try:
            client = await connection.opened()
        except Unreachable as error:
            if error.silent:
                self._mode = "legacy" if self._mode == "auto" else "auto"
            raise self._unavailable(f"mcp.{self._name} cannot be reached: {error}") from None
        info("mcp_server_connected", server=self._name, protocol=client.protocol_version)
        return connection

    def _unavailable(self, reason: str) -> ToolsUnavailable:
        """The error, after which nobody asks again for a while: twice as long as the last time."""
        wait_s = min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2**self._failures)
        self._failures += 1
        self._not_before = monotonic() + wait_s
        self._reason = reason
        warn("mcp_server_unavailable", server=self._name, failures=self._failures)
        return ToolsUnavailable(reason, wait_s)

    # The listing.

    def _changed(self) -> None:
        self._changes += 1
        self._fresh_until = -math.inf

    async def _list(self, client: Client) -> tuple[McpTool, ...]:
        changes, fresh_until = self._changes, monotonic() + _LISTING_AGE_S
        listed: dict[str, McpTool] = {}
        cursor: str | None = None
        async with asyncio.timeout(self._settings.connect_timeout_s):
            for _ in range(_MOST_PAGES):
                page = await client.list_tools(cursor=cursor)
                for tool in page.tools:
                    listed.setdefault(tool.name, self._tool(tool))
                cursor = page.next_cursor
                if not cursor:
                    break
        if self.unreadable:
            warn("mcp_tools_unreadable", server=self._name, tools=len(self.unreadable))
        self._failures = 0
        self._listed = tuple(listed.values())
        self._fresh_until = fresh_until if changes == self._changes else -math.inf
        return self._listed

    def _tool(self, tool: types.Tool) -> McpTool:
        hints = tool.annotations
        title = tool.title or (hints.title if hints else None)
        return McpTool(
            spec=ToolSpec(
                offered_name(self._name, tool.name), tool.description or title or tool.name, _parameters(tool)
            ),
            name=tool.name,
            retry_safe=hints is not None and bool(hints.read_only_hint or hints.idempotent_hint),
            approval=self._settings.approval,
            server=self,
        )


def _parameters(tool: types.Tool) -> dict[str, Any]:
    return {"type": "object", "properties": {}} | tool.input_schema


def _not_listed(name: str, error: Exception) -> str:
    kind = f"error {error.code}" if isinstance(error, MCPError) else type(error).__name__
    return f"mcp.{name} does not list its tools ({kind}); see to the server, or take it out of the agent's tools"


def _refusal(name: str, error: MCPError) -> ToolFailed | BadArguments:
    if error.code == types.INVALID_PARAMS:
        return BadArguments(f"mcp.{name} refused the arguments: {error.message}")
    if error.code == types.PARSE_ERROR:
        return ToolFailed(f"the tool may have run, but the answer of mcp.{name} is not as it must be")
    if error.code in (NOT_SENT, SESSION_GONE):
        return ToolFailed(f"the tool did not run: mcp.{name} cannot be reached")
    if error.code in (BROKE, types.CONNECTION_CLOSED):
        return ToolFailed(f"the connection to mcp.{name} broke while the tool ran; whether it took effect is not known")
    return ToolFailed(f"mcp.{name} refused the call: {error.message} (error {error.code})")
