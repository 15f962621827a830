"""MCP servers that cannot be reached: what is told, what is logged, and what is left behind."""

import asyncio
import os
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.support.egress import guard
from tests.support.mcp_server_running import FOLDER, PYTHON, HttpServer, Marks, by_hand, on_stdio
from tests.support.tool_runs import PATIENCE_S, result_of, until
from worker.errors import ConfigurationError, ToolsUnavailable
from worker.sections import AgentSettings, McpSettings, ToolSettings
from worker.tools import mcp_server
from worker.tools.mcp_text import offered_name
from worker.tools.running import ToolResult
from worker.tools.shelf import ToolShelf

AGENT = AgentSettings.model_validate({"tools": ["mcp:files"]})


@pytest.fixture
def marks(tmp_path: Path) -> Marks:
    return Marks(tmp_path)


@asynccontextmanager
async def shelf_of(settings: McpSettings) -> AsyncIterator[ToolShelf]:
    shelf = ToolShelf({"files": settings}, {}, guard())
    try:
        yield shelf
    finally:
        await shelf.close()


def commanded(*command: str, **more: object) -> McpSettings:
    return McpSettings.model_validate({"command": command, "connect_timeout_s": 30, **more})


@pytest.mark.requirement("tools:mcp:unavailable")
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (commanded("no-such-program"), "the program 'no-such-program' cannot be started (No such file or directory); "),
        (
            commanded("/etc/passwd"),
            "the program '/etc/passwd' cannot be started (Permission denied); correct mcp.files",
        ),
        (commanded(PYTHON, "-c", "pass"), "its program ended before it was ready; run mcp.files.command by hand"),
        (commanded(PYTHON, "-c", "print('hello')"), "its program ended before it was ready"),
        (
            by_hand("mute", connect_timeout_s=0.5),
            "it did not answer within 0.5 s; see to the server, or raise mcp.files",
        ),
    ],
)
async def test_a_program_that_cannot_be_a_server_is_told_with_the_fix(settings: McpSettings, words: str) -> None:
    async with shelf_of(settings) as shelf:
        with pytest.raises(ToolsUnavailable) as unavailable:
            await shelf.offered("clerk", AGENT)
        assert str(unavailable.value).startswith(f"mcp.files cannot be reached: {words}")
        assert unavailable.value.retry_after_s > 0


@pytest.mark.requirement("tools:mcp:unavailable")
async def test_a_server_that_does_not_list_its_tools_is_told_without_its_words() -> None:
    async with shelf_of(by_hand("unlisted")) as shelf:
        with pytest.raises(
            ToolsUnavailable, match=r"mcp\.files does not list its tools \(error -32603\)"
        ) as unavailable:
            await shelf.offered("clerk", AGENT)
        assert "secret" not in str(unavailable.value)


@pytest.mark.requirement("tools:mcp:unavailable")
async def test_an_address_without_a_server_is_told_without_its_path(unused_port: int) -> None:
    settings = McpSettings.model_validate({"url": f"http://127.0.0.1:{unused_port}/s3cret/mcp"})
    async with shelf_of(settings) as shelf:
        with pytest.raises(ToolsUnavailable) as unavailable:
            await shelf.offered("clerk", AGENT)
    assert str(unavailable.value) == (
        f"mcp.files cannot be reached: no connection to http://127.0.0.1:{unused_port} (ConnectError); start the "
        "server, or correct mcp.files.url"
    )


@pytest.mark.requirement("tools:mcp:unavailable")
@pytest.mark.parametrize(
    ("status", "words"),
    [
        ("401 Unauthorized", "refused us (HTTP 401); correct mcp.files.headers"),
        ("404 Not Found", "there is no MCP server there (HTTP 404); correct mcp.files.url, it often ends in /mcp"),
        ("503 Service Unavailable", "answered HTTP 503; see to the server, or correct mcp.files.url"),
    ],
)
async def test_a_status_is_told_with_the_fix(status: str, words: str) -> None:
    async def answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
        await writer.drain()
        writer.close()

    listening = await asyncio.start_server(answered, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    async with listening, shelf_of(McpSettings.model_validate({"url": f"http://127.0.0.1:{port}/mcp"})) as shelf:
        with pytest.raises(ToolsUnavailable) as unavailable:
            await shelf.offered("clerk", AGENT)
    assert words in str(unavailable.value)


@pytest.mark.requirement("tools:mcp:backoff")
async def test_a_server_that_cannot_be_reached_is_not_asked_again_at_once(marks: Marks) -> None:
    program = f"open({str(marks.file)!r}, 'a').write('tried\\n')"
    async with shelf_of(commanded(PYTHON, "-c", program)) as shelf:
        waits = []
        for expected in (1, 1, 1):
            with pytest.raises(ToolsUnavailable) as unavailable:
                await shelf.offered("clerk", AGENT)
            waits.append(unavailable.value.retry_after_s)
            assert marks.count("tried") == expected
        assert waits[0] > waits[1] > waits[2] > 0


@pytest.mark.requirement("tools:mcp:backoff")
async def test_each_failure_doubles_the_wait(marks: Marks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_server, "_FIRST_WAIT_S", 0.01)
    monkeypatch.setattr(mcp_server, "_LONGEST_WAIT_S", 0.03)
    program = f"open({str(marks.file)!r}, 'a').write('tried\\n')"
    waits: list[float] = []
    async with shelf_of(commanded(PYTHON, "-c", program)) as shelf, asyncio.timeout(PATIENCE_S):
        while len(waits) < 4:
            with pytest.raises(ToolsUnavailable) as unavailable:
                await shelf.offered("clerk", AGENT)
            if marks.count("tried") > len(waits):
                waits.append(unavailable.value.retry_after_s)
    assert waits == [0.01, 0.02, 0.03, 0.03]


@pytest.mark.requirement("tools:mcp:closed")
async def test_the_end_of_a_process_ends_its_servers_and_starts_none(marks: Marks) -> None:
    async with shelf_of(on_stdio(marks)) as shelf:
        await shelf.offered("clerk", AGENT)
        assert is_running(marks.started())
    await until(lambda: not is_running(marks.started()))
    with pytest.raises(ToolsUnavailable, match="shuts down"):
        await shelf.offered("clerk", AGENT)
    assert marks.count("started") == 1


STUBBORN = (
    "import os, sys, time; print('started', os.getpid(), file=open(sys.argv[1], 'a'), flush=True); time.sleep(600)"
)


@pytest.mark.requirement("tools:mcp:closed")
async def test_a_server_that_is_not_ready_in_time_is_ended_at_once(marks: Marks) -> None:
    async with shelf_of(commanded(PYTHON, "-c", STUBBORN, str(marks.file), connect_timeout_s=2)) as shelf:
        with pytest.raises(ToolsUnavailable):
            await shelf.offered("clerk", AGENT)
        await until(lambda: not is_running(marks.started()))


@pytest.mark.requirement("tools:mcp:closed")
async def test_a_turn_that_ends_while_its_server_starts_leaves_none_behind(marks: Marks) -> None:
    async with shelf_of(commanded(PYTHON, "-c", STUBBORN, str(marks.file))) as shelf:
        asking = asyncio.ensure_future(shelf.offered("clerk", AGENT))
        await until(lambda: marks.count("started") == 1)
        asking.cancel()
        await until(lambda: not is_running(marks.started()))


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.requirement("tools:mcp:secrets")
async def test_nothing_that_a_server_is_told_or_says_reaches_the_logs(tmp_path: Path, marks: Marks) -> None:
    program = textwrap.dedent("""
        import asyncio, logging, sys
        logging.basicConfig(level=logging.DEBUG, stream=sys.stderr)
        from tests.support.egress import guard
        from tests.support.tool_runs import CONTEXT, result_of
        from worker.observability import configure_logging
        from worker.sections import AgentSettings, McpSettings
        from worker.tools.shelf import ToolShelf

        configure_logging("debug")

        async def main():
            stdio = {"command": [sys.executable, sys.argv[1]], "env": {"MCP_MARKS": sys.argv[2], "TOKEN": "sesame"}}
            http = {"url": sys.argv[3], "headers": {"X-Token": "sesame"}}
            raw = {"command": [sys.executable, sys.argv[4], "loud", "sesame"]}
            gone = {"url": "http://127.0.0.1:1/sesame"}
            settings = {"a": stdio, "b": http, "c": raw, "d": gone}
            servers = {name: McpSettings.model_validate(values) for name, values in settings.items()}
            shelf = ToolShelf(servers, {}, guard())
            shown = await shelf.everything()
            tools = {tool.spec.name: tool for tool in shown.tools}
            for server in ("a", "b"):
                assert (await result_of(tools[f"{server}_add"], {"a": 1, "b": 2})).text == "3"
                await result_of(tools[f"{server}_fail"])
                await result_of(tools[f"{server}_environment"], {"name": "sesame"})
            await result_of(tools["c_echo"], {"said": "sesame"})
            await shelf.close()
            print(len(shown.faults))

        asyncio.run(main())
    """)
    with HttpServer(tmp_path, marks) as server:
        url = f"http://127.0.0.1:{server.port}/mcp"
        arguments = (str(FOLDER / "mcp_server.py"), str(marks.file), url, str(FOLDER / "mcp_server_raw.py"))
        ended = await asyncio.to_thread(
            subprocess.run, [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=50
        )
    assert (ended.returncode, ended.stdout) == (0, "1\n"), ended.stderr
    assert "mcp_server_connected" in ended.stderr
    for secret in ("sesame", "noise", "drawer", "no JSON", "mcp-session-id", "/mcp"):
        assert secret not in ended.stderr


@pytest.mark.requirement("tools:mcp:unreadable")
async def test_a_listed_tool_that_is_none_costs_only_itself_and_is_named() -> None:
    words = "mcp.files lists 'bad' in a form that is not MCP's: correct the server"
    guards = ("files_bad", offered_name("files", "read.it"))
    shelf = ToolShelf({"files": by_hand("odd")}, {name: ToolSettings(approval="ask") for name in guards}, guard())
    try:
        for choice in ("mcp:files", "mcp:files/echo"):
            tools = await shelf.offered("clerk", AgentSettings.model_validate({"tools": [choice]}))
            assert "files_echo" in tools
            assert "files_bad" not in tools
        with pytest.raises(ConfigurationError) as refused:
            await shelf.offered("clerk", AgentSettings.model_validate({"tools": ["mcp:files/bad"]}))
        assert str(refused.value) == words
        faults = [str(fault) for fault in (await shelf.everything()).faults]
        assert faults == [words.replace("bad", name) for name in ("a tool without a name", "bad", "read.it")]
    finally:
        await shelf.close()


@pytest.mark.requirement("tools:mcp:unreadable")
async def test_what_a_server_lists_no_more_is_named_no_more() -> None:
    async with shelf_of(by_hand("odd", "mends")) as shelf:
        tools = {tool.spec.name: tool for tool in (await shelf.everything()).tools}
        await result_of(tools["files_echo"], {})
        async with asyncio.timeout(PATIENCE_S):
            while (await shelf.everything()).faults:
                pass


@pytest.mark.requirement("tools:mcp:unreadable")
async def test_an_answer_that_is_none_is_told_at_once() -> None:
    agent = AgentSettings.model_validate({"tools": ["mcp:files/echo"]})
    async with shelf_of(by_hand("wordy")) as shelf:
        tools = await shelf.offered("clerk", agent)
        told = "Error: the tool may have run, but the answer of mcp.files is not as it must be"
        assert await result_of(tools["files_echo"], {}) == ToolResult(told, "failed")
