"""The tools of a process: what each agent offers, with the settings applied.

What belongs here: resolving the names in `agents.NAME.tools`, and what an installation decides about a tool. What must
not be known here: turns, how tools are run, how MCP is spoken.
"""

import asyncio
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from worker.codecs.messages import ToolSpec
from worker.errors import ConfigurationError, ToolsUnavailable
from worker.guard import Guard
from worker.sections import AgentSettings, McpSettings, ToolSettings
from worker.sources import nearest
from worker.tools.discovery import Catalogue, discover
from worker.tools.threads import in_thread
from worker.tools.tool import Approval, Arguments, Tool, ToolContext

if TYPE_CHECKING:
    from worker.tools.mcp_server import McpServer, McpTool

_MCP = "mcp:"

ToolFault = ConfigurationError | ToolsUnavailable
"""A setting or a package is wrong; or a server cannot be reached now."""


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A tool as this installation offers it: what it says of itself, with the settings over it.

    `source`: where it came from, for people.
    """

    spec: ToolSpec
    retry_safe: bool
    approval: Approval
    timeout_s: float | None
    source: str
    tool: Tool

    async def run(self, arguments: Arguments, context: ToolContext) -> object:
        """Run the tool."""
        return await self.tool.run(arguments, context)


@dataclass(frozen=True, slots=True)
class Shown:
    """What can be offered, and what went wrong in finding it."""

    tools: tuple[OfferedTool, ...]
    faults: tuple[ToolFault, ...]


class ToolShelf:
    """Where a process keeps its tools, and its sessions with MCP servers. Used and closed on one event loop.

    `mcp`, `tools`: those sections of the settings. `guard`: what may be dialled to reach an MCP server.
    """

    def __init__(self, mcp: Mapping[str, McpSettings], tools: Mapping[str, ToolSettings], guard: Guard) -> None:
        self._mcp = mcp
        self._guard = guard
        self._settings = tools
        self._lock = asyncio.Lock()
        self._catalogue: Catalogue | None = None
        self._servers: dict[str, McpServer] = {}

    async def offered(self, name: str, agent: AgentSettings) -> Mapping[str, OfferedTool]:
        """The tools of an agent by the name under which the model knows them, in the order of its settings.

        `name`: of the agent. Raises `ConfigurationError` for what no waiting helps, and `ToolsUnavailable` where an MCP
        server cannot be reached, which may pass.
        """
        field = f"agents.{name}.tools"
        tools: list[OfferedTool] = []
        for resolved in await self._choices(field, agent):
            if isinstance(resolved, BaseException):
                raise resolved
            tools += resolved
        for fault in _clashes(field, tools):
            raise fault
        return {tool.spec.name: tool for tool in tools}

    async def shown(self, name: str, agent: AgentSettings) -> Shown:
        """As `offered`, for people: what can be offered, and every fault."""
        field = f"agents.{name}.tools"
        tools, faults = _sorted_out(await self._choices(field, agent))
        return Shown(tuple({tool.spec.name: tool for tool in tools}.values()), (*faults, *_clashes(field, tools)))

    async def everything(self) -> Shown:
        """All tools that any agent could offer, and every fault, also of settings for tools that do not exist."""
        catalogue = await self._found()
        tools = [self._offered(each.tool, each.source) for each in catalogue.found]
        listings = await _all(self._all_of_server(name) for name in self._mcp)
        of_servers, unreached = _sorted_out(listings)
        tools += of_servers
        faults: list[ToolFault] = [ConfigurationError(broken.message) for broken in catalogue.unusable]
        faults += [*_clashes("tools", tools), *unreached]
        unmet: dict[str, ConfigurationError] = {}
        for server, listed in zip(self._mcp, listings, strict=True):
            if not isinstance(listed, BaseException):
                faults += [_unreadable(server, tool) for tool in sorted(self._servers[server].unreadable)]
                unmet |= await self._unmet(server, [tool.spec.name for tool in listed])
        faults += unmet.values()
        if not faults:  # else the tool may be among those that could not be found
            known = sorted({tool.spec.name for tool in tools})
            faults += [
                ConfigurationError(f"tools.{name} is set, but there is no such tool; {nearest(name, known)}")
                for name in self._settings
                if name not in known
            ]
        return Shown(tuple(tools), tuple(faults))

    async def close(self) -> None:
        """End every session with an MCP server, and the processes that were started for them."""
        await asyncio.gather(*(server.close() for server in self._servers.values()))

    async def _choices(self, field: str, agent: AgentSettings) -> list[list[OfferedTool] | BaseException]:
        return await _all(self._resolved(field, choice) for choice in dict.fromkeys(agent.tools))

    async def _resolved(self, field: str, choice: str) -> list[OfferedTool]:
        """The tools of one entry of an agent's list."""
        if not choice.startswith(_MCP):
            found = (await self._found()).named(field, choice)
            return [self._offered(found.tool, found.source)]
        server, _, tool = choice.removeprefix(_MCP).partition("/")
        return await self._of_server(field, server, tool or None)

    async def _found(self) -> Catalogue:
        async with self._lock:
            if self._catalogue is None:
                self._catalogue = await in_thread("discovery", discover)
            return self._catalogue

    async def _of_server(self, field: str, server: str, tool: str | None) -> list[OfferedTool]:
        """The tools of an MCP server, or one of them."""
        listed = await self._listed(field, server)
        for fault in (await self._unmet(server, [each.spec.name for each in listed])).values():
            raise fault
        if tool is not None:
            listed = self._picked(field, server, tool, listed)
        return [self._offered(each, f"mcp.{server}") for each in listed]

    async def _all_of_server(self, server: str) -> list[OfferedTool]:
        return [self._offered(each, f"mcp.{server}") for each in await self._listed("mcp", server)]

    async def _unmet(self, server: str, offered: Sequence[str]) -> dict[str, ConfigurationError]:
        """Settings for tools of a server that it does not offer: a mistyped `approval = "ask"` would guard nothing.

        Of the servers `a` and `a_b` either may offer `a_b_c`, and so may a package.
        """
        known = {*offered, *self._servers[server].unreadable_offered}
        unmet = [name for name in self._settings if name not in known and server in self._fitting(name)]
        if unmet:
            known = {each.tool.spec.name for each in (await self._found()).found}
            unmet = [name for name in unmet if name not in known and not await self._elsewhere(name, server)]
        return {
            name: ConfigurationError(
                f"tools.{name} is set, but mcp.{server} offers no such tool; {nearest(name, offered)}"
            )
            for name in unmet
        }

    async def _elsewhere(self, name: str, server: str) -> bool:
        """Another server offers the tool; one that is away now may, and must not take its neighbour along."""
        for other in self._fitting(name):
            if other != server:
                try:
                    offered = {each.spec.name for each in await self._listed("mcp", other)}
                except ToolsUnavailable:
                    return True
                if name in offered | self._servers[other].unreadable_offered:
                    return True
        return False

    def _fitting(self, name: str) -> list[str]:
        """The servers that may offer a tool of that name."""
        return [server for server in self._mcp if name.startswith(f"{server}_")]

    async def _listed(self, field: str, server: str) -> tuple["McpTool", ...]:
        if server not in self._mcp:
            raise ConfigurationError(
                f"{field}: there is no [mcp.{server}] for 'mcp:{server}': add it; {nearest(server, list(self._mcp))}"
            )
        if server not in self._servers:
            self._servers[server] = await self._made(server)
        return await self._servers[server].tools()

    def _picked(self, field: str, server: str, tool: str, listed: Sequence["McpTool"]) -> tuple["McpTool", ...]:
        picked = tuple(each for each in listed if each.name == tool)
        if not picked and tool in self._servers[server].unreadable:
            raise _unreadable(server, tool)
        if not picked:
            known = [each.name for each in listed]
            raise ConfigurationError(f"{field}: mcp.{server} has no tool {tool!r}; {nearest(tool, known)}")
        return picked

    async def _made(self, server: str) -> "McpServer":
        def imported() -> type["McpServer"]:
            from worker.tools.mcp_server import McpServer  # noqa: PLC0415 - half a second, for those who need it

            return McpServer

        kind = await in_thread("mcp", imported)
        return self._servers.get(server) or kind(server, self._mcp[server], self._guard)

    def _offered(self, tool: Tool, source: str) -> OfferedTool:
        decided = self._settings.get(tool.spec.name, ToolSettings())
        return OfferedTool(
            spec=tool.spec,
            retry_safe=tool.retry_safe if decided.retry_safe is None else decided.retry_safe,
            approval=decided.approval or tool.approval,
            timeout_s=tool.timeout_s if decided.timeout_s is None else decided.timeout_s,
            source=source,
            tool=tool,
        )


async def _all(
    lookups: Iterable[Coroutine[Any, Any, list[OfferedTool]]],
) -> list[list[OfferedTool] | BaseException]:
    """What each lookup gave or raised, in order. They run at the same time: servers may be slow to start."""
    return await asyncio.gather(*lookups, return_exceptions=True)


def _sorted_out(results: Iterable[list[OfferedTool] | BaseException]) -> tuple[list[OfferedTool], list[ToolFault]]:
    tools: list[OfferedTool] = []
    faults: list[ToolFault] = []
    for result in results:
        if isinstance(result, ConfigurationError | ToolsUnavailable):
            faults.append(result)
        elif isinstance(result, BaseException):
            raise result
        else:
            tools += result
    return tools, faults


def _unreadable(server: str, tool: str) -> ConfigurationError:
    return ConfigurationError(f"mcp.{server} lists {tool!r} in a form that is not MCP's: correct the server")


def _clashes(field: str, tools: Iterable[OfferedTool]) -> Iterator[ConfigurationError]:
    """Names that two places offer. One place may be listed twice: an MCP server, and one of its tools."""
    first: dict[str, OfferedTool] = {}
    for tool in tools:
        name = tool.spec.name
        other = first.setdefault(name, tool)
        if other.source != tool.source:
            yield ConfigurationError(
                f"{field}: {name!r} is offered by {other.source} and by {tool.source}; take one out, or rename one"
            )
