"""The tools of an agent come from Lastword, from packages and from MCP servers, with the settings applied."""

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.egress import guard
from tests.support.packages import Site
from tests.support.tool_runs import result_of
from worker.errors import ConfigurationError
from worker.sections import AgentSettings, McpSettings, ToolSettings
from worker.tools.running import ToolResult
from worker.tools.shelf import OfferedTool, ToolShelf
from worker.tools.tool import fault_of

HEAD = """
    from collections.abc import Iterator
    from pathlib import Path
    from typing import Annotated
    from worker.tools.decorator import FunctionTool, tool
    from worker.tools.tool import Tool, ToolContext

    @tool(retry_safe=True, timeout_s=5)
    def shout(text: str) -> str:
        "Shouts."
        return text.upper()

    @tool(approval="ask")
    def whisper(text: str) -> str:
        "Whispers."
        return text.lower()

    both = [shout, whisper]

    def gives_one() -> Tool:
        return shout

    def gives_both() -> Iterator[Tool]:
        yield shout
        yield whisper

    def gives_listed() -> "list[FunctionTool | Handmade]":
        return [shout]

    def gives_annotated() -> "Annotated[list[Tool], 'all of them']":
        return [shout]

    def undecorated(text: str) -> str:
        "Is no tool."
        return text

    class Handmade:
        spec = shout.spec
        retry_safe = False
        approval = "never"
        timeout_s = None

        async def run(self, arguments, context):
            return "by hand"

    def exits() -> Tool:
        raise SystemExit(1)

    nothing = 7
    mixed = [shout, "a text"]
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    return Site(tmp_path, monkeypatch)


@pytest.fixture
async def shelf() -> AsyncIterator[ToolShelf]:
    shelf = ToolShelf({}, {}, guard())
    yield shelf
    await shelf.close()


async def offered(shelf: ToolShelf, *tools: str) -> Mapping[str, OfferedTool]:
    return await shelf.offered("clerk", AgentSettings.model_validate({"tools": tools}))


async def refusal(shelf: ToolShelf, *tools: str) -> str:
    with pytest.raises(ConfigurationError) as refused:
        await offered(shelf, *tools)
    return str(refused.value)


@pytest.mark.requirement("tools:discovery:built-in")
async def test_an_agent_offers_what_its_settings_list_in_that_order(shelf: ToolShelf, site: Site) -> None:
    site.package("loud", HEAD, "shout = both")
    assert await offered(shelf) == {}
    assert list(await offered(shelf, "whisper", "clock", "shout", "clock")) == ["whisper", "clock", "shout"]
    clock = (await offered(shelf, "clock"))["clock"]
    assert (clock.source, clock.retry_safe, clock.approval, clock.timeout_s) == ("Lastword", True, "never", None)
    assert fault_of(clock) is None


@pytest.mark.requirement("tools:discovery:entry-points")
@pytest.mark.parametrize(
    "attribute",
    ["shout", "both", "gives_one", "gives_both", "gives_listed", "gives_annotated", "Handmade", "Handmade()"],
)
async def test_an_entry_point_gives_a_tool_or_several_or_what_gives_them(
    shelf: ToolShelf, site: Site, attribute: str
) -> None:
    site.package("loud", HEAD + f"\n    value = {attribute}\n", "anything = value")
    tool = (await offered(shelf, "shout"))["shout"]
    assert tool.source == "package loud (entry point anything)"
    told = "by hand" if "Handmade" in attribute else "HI"
    assert await result_of(tool, {"text": "hi"}) == ToolResult(told)


@pytest.mark.requirement("tools:discovery:entry-points")
async def test_the_same_tool_by_two_entry_points_is_one(shelf: ToolShelf, site: Site) -> None:
    site.package("loud", HEAD, "first = both", "second = shout")
    assert list(await offered(shelf, "shout")) == ["shout"]


@pytest.mark.requirement("tools:discovery:faults")
@pytest.mark.parametrize(
    ("source", "attribute", "words"),
    [
        ("import no_such_module_anywhere", "tool", "No module named 'no_such_module_anywhere'"),
        ("raise RuntimeError('a secret')", "tool", "cannot be loaded (RuntimeError)"),
        ("import sys; sys.exit(3)", "tool", "cannot be loaded (SystemExit)"),
        (HEAD, "missing", "has no attribute 'missing'"),
        (HEAD, "exits", "cannot be loaded (SystemExit)"),
        ("raise KeyboardInterrupt", "tool", "cannot be loaded (KeyboardInterrupt)"),
        (HEAD, "undecorated", "function undecorated is no tool: decorate it with @tool"),
        (HEAD, "nothing", "gives what is no tool: a int is no Tool: decorate a function with @tool"),
        (HEAD, "mixed", "gives what is no tool: a str is no Tool"),
        (
            HEAD + "\n    def unannotated(x): 'No.'\n    tool(unannotated)",
            "unannotated",
            "has no annotation: write one",
        ),
    ],
)
async def test_a_broken_entry_point_stops_who_wants_its_tool_and_nobody_else(
    shelf: ToolShelf, site: Site, source: str, attribute: str, words: str
) -> None:
    site.package("broken-one", source, f"hammer = {attribute}")
    assert list(await offered(shelf, "clock")) == ["clock"]
    told = await refusal(shelf, "hammer")
    assert told.startswith("agents.clerk.tools: 'hammer' cannot be used: package broken-one (entry point hammer): ")
    assert words in told
    assert "a secret" not in told


@pytest.mark.requirement("tools:discovery:not-called")
@pytest.mark.parametrize("returns", ["", "-> str", "-> list[str]", "-> 'dict[str, Tool]'", "-> 'Missing'"])
async def test_a_function_whose_decorator_was_forgotten_is_not_called(
    shelf: ToolShelf, site: Site, tmp_path: Path, returns: str
) -> None:
    done = tmp_path / "done"
    source = f"\n    def delete_all() {returns}:\n        'Deletes all.'\n        Path({str(done)!r}).touch()\n"
    site.package("rash", HEAD + source, "delete_all = delete_all")
    assert list(await offered(shelf, "clock")) == ["clock"]
    told = await refusal(shelf, "delete_all")
    assert "function delete_all is no tool: decorate it with @tool" in told
    assert ("let what its annotations name be there" in told) == ("Missing" in returns)
    assert not done.exists()


@pytest.mark.requirement("tools:discovery:faults")
async def test_a_tool_that_nobody_offers_is_told_with_the_nearest_and_with_what_is_broken(
    shelf: ToolShelf, site: Site
) -> None:
    site.package("loud", HEAD, "shout = both")
    site.package("broken", "raise RuntimeError", "other = x")
    told = await refusal(shelf, "shuot")
    assert told.startswith("agents.clerk.tools: there is no tool 'shuot'; did you mean 'shout'?; package broken")


@pytest.mark.requirement("tools:discovery:clash")
async def test_a_name_that_two_packages_offer_stops_who_wants_it_and_nobody_else(shelf: ToolShelf, site: Site) -> None:
    site.package("loud", HEAD, "shout = both")
    site.package("louder", HEAD, "loud = shout")
    assert list(await offered(shelf, "clock", "whisper")) == ["clock", "whisper"]
    told = await refusal(shelf, "clock", "shout")
    assert told == (
        "agents.clerk.tools: 'shout' is offered by package loud (entry point shout) and package louder (entry point "
        "loud); uninstall one of them, or rename one"
    )


@pytest.mark.requirement("tools:discovery:clash")
async def test_no_package_takes_the_place_of_a_built_in_tool(shelf: ToolShelf, site: Site) -> None:
    site.package(
        "late", HEAD + "\n    @tool\n    def clock() -> str:\n        'Lies.'\n        return 'noon'\n", "c = clock"
    )
    assert "'clock' is offered by Lastword and package late" in await refusal(shelf, "clock")


@pytest.mark.requirement("tools:settings:decided")
@pytest.mark.parametrize(
    ("decided", "shout", "whisper"),
    [
        ({}, (True, "never", 5), (False, "ask", None)),
        (
            {"shout": {"approval": "ask", "timeout_s": 7, "retry_safe": False}, "whisper": {"approval": "never"}},
            (False, "ask", 7),
            (False, "never", None),
        ),
        ({"whisper": {"retry_safe": True, "timeout_s": 0.5}}, (True, "never", 5), (True, "ask", 0.5)),
    ],
)
async def test_what_an_installation_decides_outranks_what_a_tool_says_of_itself(
    site: Site, decided: dict[str, Any], shout: tuple[object, ...], whisper: tuple[object, ...]
) -> None:
    site.package("loud", HEAD, "shout = both")
    shelf = ToolShelf({}, {name: ToolSettings(**values) for name, values in decided.items()}, guard())
    tools = await offered(shelf, "shout", "whisper")
    for name, expected in (("shout", shout), ("whisper", whisper)):
        assert (tools[name].retry_safe, tools[name].approval, tools[name].timeout_s) == expected


@pytest.mark.requirement("tools:mcp:named")
async def test_a_server_that_is_not_set_is_told_with_the_nearest() -> None:
    shelf = ToolShelf({"files": McpSettings(command=("true",))}, {}, guard())
    told = await refusal(shelf, "mcp:fiels/read")
    assert told == "agents.clerk.tools: there is no [mcp.fiels] for 'mcp:fiels': add it; did you mean 'files'?"


@pytest.mark.requirement("tools:discovery:everything")
async def test_everything_that_can_be_offered_is_shown_with_every_fault(site: Site) -> None:
    site.package("loud", HEAD, "shout = both")
    shelf = ToolShelf({}, {"shuot": ToolSettings(approval="ask")}, guard())
    shown = await shelf.everything()
    assert [tool.spec.name for tool in shown.tools] == ["clock", "shout", "whisper"]
    assert [str(fault) for fault in shown.faults] == [
        "tools.shuot is set, but there is no such tool; did you mean 'shout'?"
    ]
    site.package("louder", HEAD, "loud = shout")
    site.package("broken", "raise RuntimeError", "other = x")
    faults = [str(fault) for fault in (await ToolShelf({}, {}, guard()).everything()).faults]
    assert len(faults) == 2
    assert faults[0].startswith("package broken (entry point other): ")
    assert faults[1].startswith("tools: 'shout' is offered by package loud")
