"""A real MCP server, by the MCP library's own server side: over standard input, or HTTP on a free loopback port.

What belongs here: tools that behave well and badly. It knows nothing of the code under test.

    python tests/support/mcp_server.py                  over standard input
    python tests/support/mcp_server.py http PORTFILE    over streamable HTTP; writes its port to PORTFILE

What it does leaves marks: a line each in the file MCP_MARKS.
"""

import os
import signal
import socket
import sys
from pathlib import Path
from typing import Annotated, Any

import anyio
import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from mcp.types import (
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
    Tool,
    ToolAnnotations,
)
from pydantic import Field


def mark(text: str) -> None:
    """Leave a mark."""
    with Path(os.environ["MCP_MARKS"]).open("a", encoding="utf-8") as marks:
        marks.write(f"{text}\n")


class MarkingServer(MCPServer):
    """Leaves a mark when it is asked for its tools."""

    async def list_tools(self) -> list[Tool]:
        mark("listed")
        return await super().list_tools()


mcp = MarkingServer("rehearsal")


@mcp.tool(annotations=ToolAnnotations(read_only_hint=True))
def add(a: Annotated[int, Field(description="One.")], b: int) -> str:
    """Adds two numbers."""
    mark("add")
    return str(a + b)


@mcp.tool(annotations=ToolAnnotations(idempotent_hint=True))
def environment(name: str) -> str:
    """Tells a variable of its environment."""
    return os.environ.get(name, "not set")


@mcp.tool()
def header(name: str, ctx: Context) -> str:
    """Tells a header of the request."""
    return str((ctx.headers or {}).get(name.lower(), "not sent"))


@mcp.tool()
def fail() -> str:
    """Fails, and says why."""
    raise ValueError("the drawer is empty")


@mcp.tool()
async def work(ctx: Context, steps: int, pause_s: float) -> str:
    """Works for long and tells of its progress."""
    for step in range(steps):
        await anyio.sleep(pause_s)
        await ctx.report_progress(step + 1, steps, "at it")
    return "worked"


@mcp.tool()
async def wait() -> str:
    """Waits until it is cancelled."""
    mark("wait began")
    try:
        await anyio.sleep_forever()
    except anyio.get_cancelled_exc_class():
        mark("wait was cancelled")
        raise
    return "never"


@mcp.tool()
def die() -> str:
    """Kills its process."""
    mark("die")
    os.kill(os.getpid(), signal.SIGKILL)
    return "never"


@mcp.tool()
def cut() -> str:
    """Is answered with half a body, over HTTP."""
    return "never"


@mcp.tool()
def huge(characters: int) -> str:
    """Says a lot."""
    return "<" + "x" * (characters - 2) + ">"


@mcp.tool(structured_output=False)
def pieces() -> Any:
    """Gives a bit of everything."""
    return CallToolResult(
        content=[
            TextContent(text="a text"),
            ImageContent(data="aGVsbG8=", mime_type="image/png"),
            EmbeddedResource(resource=TextResourceContents(uri="file:///a.txt", text="inside")),
            ResourceLink(uri="file:///b.txt", name="b"),
        ]
    )


@mcp.tool(structured_output=False)
def structured() -> Any:
    """Gives structured content without a text."""
    return CallToolResult(content=[], structured_content={"größe": 7})


@mcp.tool()
async def learn(ctx: Context, tool: str) -> str:
    """Offers one tool more from now on."""

    def learned() -> str:
        """Was learned."""
        return f"I am {tool}"

    mcp.add_tool(learned, name=tool)
    await ctx.notify_tools_changed()
    await ctx.session.send_tool_list_changed()
    return "learned"


class OddAnswers:
    """The application, but the tool `cut` is answered with half a body, and a legacy server knows no newer protocol."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._inner(scope, receive, send)
            return
        body, more = b"", True
        while more:
            part = await receive()
            body, more = body + part.get("body", b""), part.get("more_body", False)
        if b'"server/discover"' in body and "MCP_LEGACY" in os.environ:
            await send({"type": "http.response.start", "status": 404, "headers": []})
            await send({"type": "http.response.body", "body": b"no such page"})
            return
        if b'"name":"cut"' in body:
            headers = [(b"content-type", b"application/json"), (b"content-length", b"100")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": b"{"})
            return
        parts = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def again() -> Any:
            return next(parts, None) or await receive()

        await self._inner(scope, again, send)


def serve_http(port_file: Path) -> None:
    """Serve on a free port of the loopback."""
    listening = socket.create_server(("127.0.0.1", int(os.environ.get("MCP_PORT", "0"))))
    port_file.write_text(str(listening.getsockname()[1]))
    server = uvicorn.Server(uvicorn.Config(OddAnswers(mcp.streamable_http_app()), log_level="critical"))
    server.run(sockets=[listening])


if __name__ == "__main__":
    mark(f"started {os.getpid()}")
    sys.stderr.write("noise that may hold a secret\n")
    sys.stderr.flush()
    if sys.argv[1:2] == ["http"]:
        serve_http(Path(sys.argv[2]))
    else:
        mcp.run("stdio")
