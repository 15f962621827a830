"""`lastword tools list` shows what agents can offer, where it comes from, and what is wrong."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from channels.console import exits
from tests.support.mcp_server_running import FOLDER, PYTHON
from tests.support.packages import Site

Lastword = Callable[..., Any]

LOUD = """
    from worker.tools.decorator import tool

    @tool(approval="ask", timeout_s=2.5)
    def shout(text: str) -> str:
        '''Shouts [bold]loudly[/bold].

        More that a list does not show.
        '''
        return text.upper()
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    folder = tmp_path / "site"
    folder.mkdir()
    return Site(folder, monkeypatch)


def settings(text: str) -> None:
    provider = '[providers.main]\nbase_url = "http://127.0.0.1:1/v1"\nmodel = "m"\n'
    Path("lastword.toml").write_text(provider + text, encoding="utf-8")


def server(name: str, *arguments: str) -> str:
    return f"[mcp.{name}]\ncommand = {json.dumps([PYTHON, str(FOLDER / 'mcp_server_raw.py'), *arguments])}\n"


@pytest.mark.requirement("tools:list:shown")
def test_every_tool_is_listed_with_its_source_and_what_was_decided_about_it(lastword: Lastword, site: Site) -> None:
    site.package("loud", LOUD, "shout = shout")
    settings(f"[tools.clock]\napproval = 'ask'\ntimeout_s = 7\n{server('files')}connect_timeout_s = 30\n")
    ran = lastword("tools", "list")
    assert (ran.code, ran.err) == (exits.OK, "")
    lines = [re.split(r" {2,}", line.rstrip()) for line in ran.out.splitlines()]
    assert lines[0] == ["name", "from", "approval", "retry-safe", "timeout", "description"]
    assert lines[1] == ["clock", "Lastword", "ask", "yes", "7 s", "Tells the current date and time in a timezone."]
    source = "package loud (entry point shout)"
    assert lines[2] == ["shout", source, "ask", "no", "2.5 s", "Shouts [bold]loudly[/bold]."]
    assert lines[3] == ["files_echo", "mcp.files", "never", "no", "90 s", "Says it again."]
    assert len(lines) == 7


@pytest.mark.requirement("tools:list:shown")
def test_the_tools_of_one_agent_are_listed_alone(lastword: Lastword, site: Site) -> None:
    site.package("loud", LOUD, "shout = shout")
    settings(f'[agents.clerk]\ntools = ["shout", "mcp:files/echo"]\n{server("files")}connect_timeout_s = 30\n')
    ran = lastword("tools", "list", "--agent", "clerk", "--json")
    assert (ran.code, ran.err) == (exits.OK, "")
    found = json.loads(ran.out)
    assert [tool["name"] for tool in found["tools"]] == ["shout", "files_echo"]
    assert found["tools"][0] == {
        "name": "shout",
        "source": "package loud (entry point shout)",
        "approval": "ask",
        "retry_safe": False,
        "timeout_s": 2.5,
        "description": "Shouts [bold]loudly[/bold].\n\nMore that a list does not show.",
    }
    assert found["faults"] == []
    assert lastword("tools", "list", "--agent", "nobody").code == exits.USAGE
    settings("[agents.clerk]\n")
    assert lastword("tools", "list", "--agent", "clerk").out == "no tools\n"


@pytest.mark.requirement("tools:list:faults")
def test_what_is_wrong_is_told_for_each_source_and_the_rest_is_listed(lastword: Lastword, site: Site) -> None:
    site.package("broken", "raise RuntimeError", "hammer = x")
    settings('[mcp.gone]\ncommand = ["no-such-program"]\n')
    ran = lastword("tools", "list")
    assert ran.code == exits.USAGE
    assert "clock" in ran.out
    faults = ran.err.splitlines()
    assert len(faults) == 2
    assert faults[0].startswith("fault: package broken (entry point hammer): ")
    assert faults[1].startswith("fault: mcp.gone cannot be reached: the program 'no-such-program' cannot be started")


@pytest.mark.requirement("tools:list:faults")
def test_a_server_that_is_away_is_no_wrong_setting(lastword: Lastword) -> None:
    settings('[agents.clerk]\ntools = ["clock", "mcp:gone"]\n[mcp.gone]\ncommand = ["no-such-program"]\n')
    ran = lastword("tools", "list", "--agent", "clerk")
    assert ran.code == exits.FAILED
    assert "clock" in ran.out
    assert ran.err.startswith("fault: mcp.gone cannot be reached: ")


@pytest.mark.requirement("tools:list:faults")
def test_a_setting_for_a_tool_that_does_not_exist_is_told(lastword: Lastword) -> None:
    settings("[tools.clokc]\napproval = 'ask'\n")
    ran = lastword("tools", "list", "--json")
    assert ran.code == exits.USAGE
    assert json.loads(ran.out)["faults"] == ["tools.clokc is set, but there is no such tool; did you mean 'clock'?"]
