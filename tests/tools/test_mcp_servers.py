"""Tools of real MCP servers: over standard input, over HTTP, of this protocol's time and of the one before."""

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.egress import guard
from tests.support.mcp_server_running import HttpServer, Marks, by_hand, on_stdio
from tests.support.packages import Site
from tests.support.tool_runs import CONTEXT, LONG_S, PATIENCE_S, result_of, until
from worker.errors import ConfigurationError, ToolsUnavailable
from worker.sections import AgentSettings, McpSettings, ToolSettings
from worker.tools import mcp_server
from worker.tools.running import ToolResult, run_tool
from worker.tools.shelf import OfferedTool, ToolShelf

BROKE = "Error: the connection to mcp.files broke while the tool ran; whether it took effect is not known"


class Bench:
    """A shelf with one server, `files`, and what an agent offers of it."""

    def __init__(self, settings: McpSettings, marks: Marks) -> None:
        self.shelf = ToolShelf({"files": settings}, {}, guard())
        self.marks = marks

    async def tool(self, name: str) -> OfferedTool:
        """A tool by the name that the server gave it."""
        return next(iter((await self.tools(f"mcp:files/{name}")).values()))

    async def tools(self, *choices: str) -> dict[str, OfferedTool]:
        return dict(
            await self.shelf.offered("clerk", AgentSettings.model_validate({"tools": choices or ("mcp:files",)}))
        )

    async def run(
        self, name: str, /, timeout_s: float = LONG_S, result_chars: int = 1000, **arguments: object
    ) -> ToolResult:
        return await result_of(await self.tool(name), arguments, timeout_s, result_chars)


Standing = Callable[[str], Bench]
WAYS = ("stdio", "http", "http-legacy")


@pytest.fixture
def marks(tmp_path: Path) -> Marks:
    return Marks(tmp_path)


@asynccontextmanager
async def closing(bench: Bench) -> AsyncIterator[Bench]:
    try:
        yield bench
    finally:
        await bench.shelf.close()


@pytest.fixture(scope="module")
async def benches(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Standing]:
    """One bench a way, opened when it is first used and kept for all tests that do it no harm."""
    opened: dict[str, Bench] = {}
    async with AsyncExitStack() as stack:

        def bench(way: str) -> Bench:
            if way not in opened:
                folder = tmp_path_factory.mktemp(way)
                marks = Marks(folder)
                if way == "stdio":
                    settings = on_stdio(marks)
                else:
                    server = stack.enter_context(HttpServer(folder, marks, legacy=way == "http-legacy"))
                    settings = server.settings(headers={"X-Token": "sesame"})
                opened[way] = Bench(settings, marks)
                stack.push_async_callback(opened[way].shelf.close)
            opened[way].marks.anew()
            return opened[way]

        yield bench


# What a server offers and says.


@pytest.mark.requirement("tools:mcp:offered")
@pytest.mark.parametrize("way", WAYS)
async def test_an_agent_offers_the_tools_of_a_server_over_one_session(benches: Standing, way: str) -> None:
    files = benches(way)
    tools, again = await asyncio.gather(files.tools(), files.tools())
    assert list(tools) == list(again)
    add = tools["files_add"]
    assert add.spec.description == "Adds two numbers."
    assert add.spec.parameters["type"] == "object"
    assert set(add.spec.parameters["properties"]) == {"a", "b"}  # type: ignore[call-overload]
    assert add.source == "mcp.files"
    assert await result_of(add, {"a": 1, "b": 2}) == ToolResult("3")
    assert list(await files.tools("mcp:files/add")) == ["files_add"]
    assert list(await files.tools("mcp:files", "mcp:files/add")) == list(tools)


@pytest.mark.requirement("tools:mcp:offered")
async def test_a_server_is_started_when_an_agent_needs_it_and_once_for_all(marks: Marks) -> None:
    async with closing(Bench(on_stdio(marks), marks)) as files:
        assert list(await files.tools("clock")) == ["clock"]
        assert marks.lines() == []
        await asyncio.gather(files.tools(), files.tools(), files.run("add", a=1, b=2))
        assert marks.count("started") == 1
        assert marks.count("listed") == 1


@pytest.mark.requirement("tools:mcp:listing")
async def test_a_list_of_tools_that_is_old_is_asked_for_again(marks: Marks, monkeypatch: pytest.MonkeyPatch) -> None:
    async with closing(Bench(on_stdio(marks), marks)) as files:
        await files.tools()
        await files.tools()
        assert marks.count("listed") == 1
        monkeypatch.setattr(mcp_server, "_LISTING_AGE_S", 0)
        files.shelf._servers["files"]._changed()
        await files.tools()
        await files.tools()
        assert marks.count("listed") == 3
        assert marks.count("started") == 1


@pytest.mark.requirement("tools:mcp:results")
@pytest.mark.parametrize("way", WAYS)
async def test_every_kind_of_content_becomes_text(benches: Standing, way: str) -> None:
    files = benches(way)
    assert (await files.run("pieces")).text == (
        "a text\n\n[image, image/png, 5 bytes: not shown]\n\n[resource file:///a.txt]\ninside\n\n"
        "[link to resource b, file:///b.txt, of unknown kind, of unknown size]"
    )
    assert await files.run("structured") == ToolResult('{"größe": 7}')
    failed = await files.run("fail")
    assert (failed.text, failed.failure) == ("Error: Error executing tool fail", "failed")
    refused = await files.run("add", a="many")
    assert refused.text.startswith("Error: ")
    assert refused.failure == "failed"


@pytest.mark.requirement("tools:mcp:results")
@pytest.mark.parametrize("way", WAYS)
async def test_a_huge_result_is_read_and_clamped(benches: Standing, way: str) -> None:
    files = benches(way)
    result = await files.run("huge", result_chars=500, characters=3_000_000)
    assert len(result.text) <= 500
    assert re.fullmatch(r"<x+\n\[\.\.\. \d+ characters left out \.\.\.\]\nx+>", result.text)


@pytest.mark.requirement("tools:mcp:secrets")
async def test_a_server_is_given_the_variables_of_its_settings_and_nothing_else_of_ours(
    marks: Marks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LASTWORD_SOMETHING_SECRET", "ours")
    async with closing(Bench(on_stdio(marks, {"TOKEN": "sesame"}), marks)) as files:
        assert await files.run("environment", name="TOKEN") == ToolResult("sesame")
        assert await files.run("environment", name="LASTWORD_SOMETHING_SECRET") == ToolResult("not set")


@pytest.mark.requirement("tools:mcp:secrets")
@pytest.mark.parametrize("way", ["http", "http-legacy"])
async def test_a_server_is_sent_the_headers_of_its_settings(benches: Standing, way: str) -> None:
    assert await benches(way).run("header", name="x-token") == ToolResult("sesame")


@pytest.mark.requirement("tools:mcp:settings")
async def test_the_hints_of_a_server_and_the_settings_decide_what_may_run_again_and_what_needs_approval(
    marks: Marks,
) -> None:
    settings = {"files_wait": ToolSettings(retry_safe=True, approval="never", timeout_s=7)}
    bench = Bench(on_stdio(marks, approval="ask"), marks)
    bench.shelf = ToolShelf({"files": on_stdio(marks, approval="ask")}, settings, guard())
    async with closing(bench) as files:
        tools = await files.tools()
        said = {name: (tool.retry_safe, tool.approval, tool.timeout_s) for name, tool in tools.items()}
        assert said["files_add"] == (True, "ask", None)
        assert said["files_environment"] == (True, "ask", None)
        assert said["files_die"] == (False, "ask", None)
        assert said["files_wait"] == (True, "never", 7)


# Time.


@pytest.mark.requirement("tools:mcp:progress")
@pytest.mark.parametrize("way", WAYS)
async def test_progress_that_a_server_tells_of_is_a_sign_of_life(benches: Standing, way: str) -> None:
    files = benches(way)
    work = await files.tool("work")
    beats: list[None] = []
    context = replace(CONTEXT, alive=lambda: beats.append(None))
    assert await work.run({"steps": 3, "pause_s": 0}, context) == "worked"
    await until(lambda: len(beats) == 3)
    assert await result_of(work, {"steps": 6, "pause_s": 0.5}, timeout_s=2) == ToolResult("worked")


@pytest.mark.requirement("tools:mcp:progress")
async def test_a_tool_without_progress_has_its_time_as_a_whole(benches: Standing) -> None:
    files = benches("stdio")
    assert (await files.run("work", timeout_s=0.2, steps=1, pause_s=60)).failure == "timeout"


@pytest.mark.requirement("tools:mcp:cancelled")
@pytest.mark.parametrize("way", WAYS)
async def test_the_end_of_a_turn_is_passed_on_to_the_server(benches: Standing, way: str) -> None:
    files = benches(way)
    running = asyncio.ensure_future(run_tool(await files.tool("wait"), {}, CONTEXT, LONG_S, 1000))
    await until(lambda: files.marks.count("wait began") == 1)
    running.cancel()
    await asyncio.wait({running}, timeout=PATIENCE_S)
    assert running.cancelled()
    await until(lambda: files.marks.count("wait was cancelled") == 1)
    assert await files.run("add", a=1, b=1) == ToolResult("2")


# The session.


@pytest.mark.requirement("tools:mcp:reopened")
async def test_a_server_that_dies_fails_what_runs_and_is_started_again(marks: Marks) -> None:
    async with closing(Bench(on_stdio(marks), marks)) as files:
        waiting = asyncio.ensure_future(files.run("wait"))
        await until(lambda: marks.count("wait began") == 1)
        assert await files.run("die") == ToolResult(BROKE, "failed")
        assert await waiting == ToolResult(BROKE, "failed")
        add = await files.tool("add")
        assert marks.count("started") == 2
        # Between two turns, nobody waits for it.
        os.kill(marks.started(), signal.SIGKILL)
        connection = files.shelf._servers["files"]._connection
        assert connection is not None
        await until(lambda: connection.client is None)
        assert await result_of(add, {"a": 1, "b": 2}) == ToolResult("3")
        assert marks.count("started") == 3


@pytest.mark.requirement("tools:mcp:reopened")
@pytest.mark.parametrize("legacy", [False, True])
async def test_a_server_over_http_that_dies_and_comes_back_is_used_again(
    tmp_path: Path, marks: Marks, legacy: bool
) -> None:
    with HttpServer(tmp_path, marks, legacy=legacy) as server:
        files = Bench(server.settings(), marks)
        add = await files.tool("add")
        assert await files.run("die") == ToolResult(BROKE, "failed")
        server.kill()
        assert await result_of(add, {"a": 1, "b": 2}) == ToolResult(
            "Error: the tool did not run: mcp.files cannot be reached", "failed"
        )
        server.start()
        results = await asyncio.gather(*(result_of(add, {"a": 1, "b": 2}) for _ in range(5)))
        assert results == [ToolResult("3")] * 5
        assert files.marks.count("add") == 5
        server.kill()
        server.start()
        files.shelf._servers["files"]._changed()
        assert "files_add" in await files.tools()
        await files.shelf.close()


@pytest.mark.requirement("tools:mcp:siblings")
@pytest.mark.parametrize("way", ["http", "http-legacy"])
async def test_an_answer_that_is_lost_costs_only_its_own_call(benches: Standing, way: str) -> None:
    files = benches(way)
    waiting = asyncio.ensure_future(files.run("wait"))
    await until(lambda: files.marks.count("wait began") == 1)
    assert await files.run("cut") == ToolResult(BROKE, "failed")
    assert await files.run("add", a=1, b=2) == ToolResult("3")
    assert not waiting.done()
    waiting.cancel()
    await asyncio.wait({waiting})


@pytest.mark.requirement("tools:mcp:listing")
@pytest.mark.parametrize("way", WAYS)
async def test_a_tool_that_a_server_learns_is_offered_to_the_next_turn(benches: Standing, way: str) -> None:
    files = benches(way)
    before = await files.tools()
    assert await files.run("learn", tool="juggle") == ToolResult("learned")
    after = before
    async with asyncio.timeout(PATIENCE_S):
        while "files_juggle" not in after:
            after = await files.tools()
    assert set(after) == {*before, "files_juggle"}
    assert await files.run("juggle") == ToolResult("I am juggle")


@pytest.mark.requirement("tools:mcp:named")
async def test_a_tool_that_a_server_does_not_have_is_told_with_the_nearest(benches: Standing) -> None:
    files = benches("stdio")
    with pytest.raises(ConfigurationError, match=r"agents\.clerk\.tools: mcp\.files has no tool 'ad'; did you mean"):
        await files.tools("mcp:files/ad")


# A server of the time before.


@pytest.mark.requirement("tools:mcp:handshake-era")
@pytest.mark.parametrize("behaviour", [(), ("loud",), ("paged",)])
async def test_a_server_of_the_handshake_era_is_spoken_to(marks: Marks, behaviour: tuple[str, ...]) -> None:
    async with closing(Bench(by_hand(*behaviour), marks)) as files:
        tools = await files.tools()
        assert len(tools) == 4
        assert tools["files_echo"].spec.description == "Says it again."
        beats: list[None] = []
        context = replace(CONTEXT, alive=lambda: beats.append(None))
        assert await tools["files_echo"].run({"a": 1}, context) == '{"a": 1}'
        await until(lambda: len(beats) == 1)


@pytest.mark.requirement("tools:mcp:handshake-era")
async def test_a_server_that_leaves_unknown_questions_unanswered_is_asked_in_the_old_way_next_time(
    marks: Marks,
) -> None:
    async with closing(Bench(by_hand("shy", connect_timeout_s=1), marks)) as files:
        tools: dict[str, OfferedTool] = {}
        async with asyncio.timeout(PATIENCE_S):
            while not tools:
                shown = await files.shelf.shown("clerk", AgentSettings.model_validate({"tools": ["mcp:files"]}))
                tools = {tool.spec.name: tool for tool in shown.tools}
        assert await result_of(tools["files_echo"], {"a": 1}) == ToolResult('{"a": 1}')


@pytest.mark.requirement("tools:mcp:listing")
async def test_a_change_that_the_old_protocol_tells_of_is_seen(marks: Marks) -> None:
    async with closing(Bench(by_hand("grows"), marks)) as files:
        assert len(await files.tools()) == 4
        await files.run("echo")
        async with asyncio.timeout(PATIENCE_S):
            after = await files.tools()
            while "files_grown_5" not in after:
                after = await files.tools()
        assert len(after) == 5


@pytest.mark.requirement("tools:mcp:names")
async def test_names_that_no_provider_takes_are_made_safe_and_short_and_stay_apart(marks: Marks) -> None:
    async with closing(Bench(by_hand(), marks)) as files:
        tools = await files.tools()
        names = list(tools)
        strange = next(name for name in names if "berall" in name)
        assert re.fullmatch(r"files_read_file__berall_[0-9a-f]{8}", strange)
        assert all(re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name) for name in names)
        assert max(map(len, names)) == 64
        assert await result_of(tools[strange], {"a": 1}) == ToolResult('{"a": 1}')


# Settings that fit no tool.


def raw_shelf(*settings: str, servers: tuple[str, ...] = ("m",)) -> ToolShelf:
    """A shelf with servers that offer `echo`; each of the settings asks for approval of a tool."""
    return ToolShelf(
        {name: by_hand() for name in servers}, {name: ToolSettings(approval="ask") for name in settings}, guard()
    )


@pytest.mark.requirement("tools:mcp:unmet-settings")
@pytest.mark.parametrize("choice", ["mcp:m", "mcp:m/echo"])
async def test_a_setting_that_fits_no_tool_of_a_server_stops_who_wants_the_server(choice: str) -> None:
    words = "tools.m_ehco is set, but mcp.m offers no such tool; did you mean 'm_echo'?"
    agent = AgentSettings.model_validate({"tools": [choice]})
    shelf = raw_shelf("m_ehco", "m_echo")
    try:
        with pytest.raises(ConfigurationError) as refused:
            await shelf.offered("clerk", agent)
        assert str(refused.value) == words
        assert [str(fault) for fault in (await shelf.shown("clerk", agent)).faults] == [words]
        everything = await shelf.everything()
        assert [str(fault) for fault in everything.faults] == [words]
        assert "m_echo" in {tool.spec.name for tool in everything.tools}
        assert list(await shelf.offered("clerk", AgentSettings.model_validate({"tools": ["clock"]}))) == ["clock"]
    finally:
        await shelf.close()


@pytest.mark.requirement("tools:mcp:unmet-settings")
async def test_a_setting_may_be_for_a_server_whose_name_begins_like_another() -> None:
    shelf = raw_shelf("m_echo", "m_old_echo", "m_wait_echo", servers=("m", "m_old"))
    try:
        for choice, names in (("mcp:m_old/echo", ["m_old_echo"]), ("mcp:m_old", None)):
            tools = await shelf.offered("clerk", AgentSettings.model_validate({"tools": [choice]}))
            assert names is None or list(tools) == names
            assert tools["m_old_echo"].approval == "ask"
        with pytest.raises(ConfigurationError, match=r"^tools\.m_wait_echo is set, but mcp\.m offers no such tool; "):
            await shelf.offered("clerk", AgentSettings.model_validate({"tools": ["mcp:m"]}))
    finally:
        await shelf.close()


@pytest.mark.requirement("tools:mcp:unmet-settings")
@pytest.mark.parametrize("server", ["m", "m_old"])
async def test_a_mistyped_guard_stops_who_wants_any_of_the_servers_it_may_be_meant_for(server: str) -> None:
    shelf = raw_shelf("m_old_ehco", servers=("m", "m_old"))
    try:
        with pytest.raises(ConfigurationError, match=rf"^tools\.m_old_ehco is set, but mcp\.{server} offers no such "):
            await shelf.offered("clerk", AgentSettings.model_validate({"tools": [f"mcp:{server}"]}))
        assert len((await shelf.everything()).faults) == 1
    finally:
        await shelf.close()


@pytest.mark.requirement("tools:mcp:unmet-settings")
@pytest.mark.parametrize(("up", "down"), [("m", "m_old"), ("m_old", "m")])
async def test_a_server_that_is_away_does_not_take_along_the_one_that_is_named_alike(up: str, down: str) -> None:
    away = McpSettings(command=("false",), connect_timeout_s=PATIENCE_S)
    shelf = ToolShelf({up: by_hand(), down: away}, {"m_old_other": ToolSettings(approval="ask")}, guard())
    try:
        assert await shelf.offered("clerk", AgentSettings.model_validate({"tools": [f"mcp:{up}"]}))
        shown = await shelf.everything()
        assert f"{up}_echo" in {tool.spec.name for tool in shown.tools}
        assert [type(fault) for fault in shown.faults] == [ToolsUnavailable]
    finally:
        await shelf.close()


@pytest.mark.requirement("tools:mcp:unmet-settings")
async def test_a_setting_for_a_tool_of_a_package_that_is_named_like_one_of_a_server_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = """
        from worker.tools.decorator import tool

        @tool
        def m_own() -> str:
            "Is no tool of the server."
            return "own"
    """
    Site(tmp_path, monkeypatch).package("own", source, "own = m_own")
    shelf = raw_shelf("m_own")
    try:
        agent = AgentSettings.model_validate({"tools": ["mcp:m/echo", "m_own"]})
        assert list(await shelf.offered("clerk", agent)) == ["m_echo", "m_own"]
    finally:
        await shelf.close()
