"""Each setting of tools, MCP servers and approvals, by whole turns in this process.

What is expected cannot come of a default.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio

from tests.support.mcp_server_running import FOLDER, PYTHON, HttpServer, Marks
from tests.support.packages import Site
from tests.support.stack import eventually, stand_in
from tests.support.tool_runs import until
from tests.support.whole_turns import WholeTurn, settings_of, whole_turn
from worker import api
from worker.output.events import ApprovalRequestOutput, ToolResultOutput
from worker.settings import WorkerSettings
from worker.store.outputs import all_outputs
from worker.store.records import TurnRecord, read_turn
from worker.wiring import TurnProcess

SLOW = """
import asyncio
from pathlib import Path

from worker.tools.decorator import tool

RUNS = Path("runs")


@tool
async def hang() -> str:
    '''Never ends.'''
    await asyncio.Event().wait()
    return "never said"


@tool
async def hang_once() -> str:
    '''Never ends the first time.'''
    with RUNS.open("a") as runs:
        runs.write("run\\n")
    if len(RUNS.read_text().splitlines()) == 1:
        await asyncio.Event().wait()
    return "done"
"""


def calls(tool: str, **arguments: str) -> str:
    """A script whose model calls one tool, and then answers."""
    given = ", ".join(f'{name} = "{value}"' for name, value in arguments.items())
    return f"""
[[calls]]
steps = [ {{ tool = "{tool}", arguments = {{ {given} }} }} ]

[[calls]]
steps = [ {{ text = "An answer." }} ]
"""


def asked_about(turn: WholeTurn) -> list[ApprovalRequestOutput]:
    return [output for output in turn.outputs if isinstance(output, ApprovalRequestOutput)]


@pytest.fixture
def _slow_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package with two tools that take their time is installed."""
    folder = tmp_path / "site"
    folder.mkdir()
    Site(folder, monkeypatch).package("slow", SLOW, "hang = hang", "hang_once = hang_once")


@pytest.fixture
def marks(tmp_path: Path) -> Marks:
    return Marks(tmp_path)


@pytest.mark.requirement("tuning:tools:approval")
async def test_a_tool_that_the_installation_wants_approved_waits_for_a_person(real_url: str, tmp_path: Path) -> None:
    turn = await whole_turn(real_url, tmp_path, calls("clock"), tools={"clock": {"approval": "ask"}})
    assert (turn.record.state, [each.name for each in asked_about(turn)]) == ("parked", ["clock"])


@pytest.mark.requirement("tuning:approvals:expire-s")
async def test_a_person_has_as_long_to_decide_as_is_set(real_url: str, tmp_path: Path) -> None:
    """By default a day."""
    turn = await whole_turn(
        real_url, tmp_path, calls("clock"), tools={"clock": {"approval": "ask"}}, approvals={"expire_s": 7}
    )
    [request] = asked_about(turn)
    assert request.expires_at_ms - request.at_ms == 7000


@pytest.mark.requirement("tuning:tools:timeout-s")
@pytest.mark.usefixtures("_slow_tools")
async def test_a_tool_is_given_up_after_the_time_of_its_own(real_url: str, tmp_path: Path) -> None:
    turn = await whole_turn(
        real_url,
        tmp_path,
        calls("hang"),
        agents={"default": {"tools": ["hang"]}},
        tools={"hang": {"timeout_s": 0.2}},
    )
    [result] = turn.tool_results
    assert (result.failure, "0.2 s" in result.result, turn.text) == ("timeout", True, "An answer.")


@pytest.mark.requirement("tuning:turns:tool-result-chars")
async def test_a_tools_result_is_as_long_as_it_may_be(real_url: str, tmp_path: Path) -> None:
    turn = await whole_turn(real_url, tmp_path, calls("clock", timezone="x" * 900), turns={"tool_result_chars": 250})
    [result] = turn.tool_results
    assert 200 < len(result.result) <= 250


@pytest.mark.requirement("tuning:tools:retry-safe")
@pytest.mark.usefixtures("_slow_tools")
@pytest.mark.parametrize(("retry_safe", "runs", "failure"), [(True, 2, None), (None, 1, "outcome_unknown")])
async def test_a_tool_whose_process_vanished_runs_again_only_if_it_may(
    retry_safe: bool | None,
    runs: int,
    failure: str | None,
    real_url: str,
    real_redis: redis.asyncio.Redis,
    tmp_path: Path,
) -> None:
    """The tool says nothing of itself."""
    async with stand_in(calls("hang_once"), tmp_path) as provider:
        settings = settings_of(
            real_url,
            provider.base_url,
            agents={"default": {"tools": ["hang_once"]}},
            tools={"hang_once": {"retry_safe": retry_safe}},
            lease={"ttl_s": 0.4, "renew_s": 0.1},
        )
        submitted = await api.submit(settings, real_redis, prompt="When?", source="test", wake=lambda _: None)
        async with running(settings) as vanishing:
            driving = asyncio.ensure_future(vanishing.run_session(submitted.session))
            await until(lambda: len(tool_runs()) == 1)
            driving.cancel()
            await asyncio.wait({driving})
        async with running(settings) as following:

            async def ended() -> TurnRecord | None:
                await following.run_session(submitted.session)
                return await read_turn(real_redis, submitted.turn)

            await eventually(ended, lambda seen: seen is not None and seen.outcome == "completed", "the turn to end")
    outputs = await all_outputs(real_redis, submitted.turn)
    [result] = [output for output in outputs if isinstance(output, ToolResultOutput)]
    assert (len(tool_runs()), result.failure) == (runs, failure)


def tool_runs() -> list[str]:
    file = Path("runs")
    return file.read_text(encoding="utf-8").splitlines() if file.exists() else []


@contextlib.asynccontextmanager
async def running(settings: WorkerSettings) -> AsyncIterator[TurnProcess]:
    process = TurnProcess(settings)
    await process.start()
    try:
        yield process
    finally:
        await process.stop()


# MCP servers.


async def turn_of_server(url: str, folder: Path, script: str, server: dict[str, Any]) -> WholeTurn:
    """A turn of an agent that offers all tools of one server."""
    agents = {"default": {"tools": ["mcp:files"]}}
    return await whole_turn(url, folder, script, agents=agents, mcp={"files": {"connect_timeout_s": 30, **server}})


def started(marks: Marks, **more: object) -> dict[str, Any]:
    """A server that is started as a program."""
    env = {"MCP_MARKS": str(marks.file), "TOKEN": "sesame"}
    return {"command": [PYTHON, str(FOLDER / "mcp_server.py")], "env": env, **more}


@pytest.mark.requirement("tuning:mcp:command")
@pytest.mark.requirement("tuning:mcp:env")
async def test_a_server_is_started_by_its_command_with_its_environment(
    real_url: str, tmp_path: Path, marks: Marks
) -> None:
    script = calls("files_environment", name="TOKEN")
    turn = await turn_of_server(real_url, tmp_path, script, started(marks))
    assert [(result.result, result.failure) for result in turn.tool_results] == [("sesame", None)]


@pytest.mark.requirement("tuning:mcp:url")
@pytest.mark.requirement("tuning:mcp:headers")
async def test_a_server_is_asked_at_its_url_with_its_headers(real_url: str, tmp_path: Path, marks: Marks) -> None:
    with HttpServer(tmp_path, marks) as server:
        reached = {"url": f"http://127.0.0.1:{server.port}/mcp", "headers": {"X-Token": "sesame"}}
        turn = await turn_of_server(real_url, tmp_path, calls("files_header", name="x-token"), reached)
    assert [(result.result, result.failure) for result in turn.tool_results] == [("sesame", None)]


@pytest.mark.requirement("tuning:mcp:approval")
async def test_a_tool_of_a_server_that_wants_approval_waits_for_a_person(
    real_url: str, tmp_path: Path, marks: Marks
) -> None:
    script = calls("files_environment", name="TOKEN")
    turn = await turn_of_server(real_url, tmp_path, script, started(marks, approval="ask"))
    assert (turn.record.state, [each.name for each in asked_about(turn)]) == ("parked", ["files_environment"])


@pytest.mark.requirement("tuning:mcp:connect-timeout-s")
async def test_a_server_that_says_nothing_is_given_up_after_its_connect_timeout(real_url: str, tmp_path: Path) -> None:
    """After ten seconds by default."""
    mute = {"command": [PYTHON, str(FOLDER / "mcp_server_raw.py"), "mute"], "connect_timeout_s": 0.3}
    script = calls("files_echo")
    agents = {"default": {"tools": ["mcp:files"]}}
    turns = {"tool_timeout_s": 0.5}
    turn = await whole_turn(real_url, tmp_path, script, agents=agents, mcp={"files": mute}, turns=turns)
    assert turn.code == "tools_unavailable"
    assert turn.record.failure is not None
    assert "within 0.3 s" in turn.record.failure.message
