"""`lastword tools`: what agents can offer to a model, where it comes from, and what is wrong with it.

What belongs here: the form of the answer. What must not be known here: how tools are found or run.
"""

import asyncio
import json
import sys
from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from channels.console import exits
from channels.console.terminal import cleaner, open_console
from channels.settings import Settings
from worker.errors import ConfigurationError
from worker.guard import guard_operator
from worker.tools.shelf import OfferedTool, Shown, ToolShelf


def run_list(settings: Settings, agent: str | None, *, as_json: bool) -> int:
    """Print the tools of an agent, or all that there are; returns the exit code.

    It starts the MCP servers that are asked for their tools, and ends them again.
    """
    shown = asyncio.run(_shown(settings, agent))
    rows = [_row(tool, settings.turns.tool_timeout_s) for tool in shown.tools]
    if as_json:
        sys.stdout.write(json.dumps({"tools": rows, "faults": [str(fault) for fault in shown.faults]}) + "\n")
    else:
        _print(rows, shown)
    if any(isinstance(fault, ConfigurationError) for fault in shown.faults):
        return exits.USAGE
    return exits.FAILED if shown.faults else exits.OK


async def _shown(settings: Settings, agent: str | None) -> Shown:
    shelf = ToolShelf(settings.mcp, settings.tools, guard_operator(settings.egress))
    try:
        return await (shelf.everything() if agent is None else shelf.shown(agent, settings.agent(agent)))
    finally:
        await shelf.close()


def _row(tool: OfferedTool, timeout_s: float) -> dict[str, object]:
    return {
        "name": tool.spec.name,
        "source": tool.source,
        "approval": tool.approval,
        "retry_safe": tool.retry_safe,
        "timeout_s": timeout_s if tool.timeout_s is None else tool.timeout_s,
        "description": tool.spec.description,
    }


def _print(rows: Sequence[dict[str, object]], shown: Shown) -> None:
    console = open_console()
    clean = cleaner(console)
    table = Table(box=None, pad_edge=False)
    table.add_column("name", no_wrap=True)
    table.add_column("from", overflow="fold")
    for name in ("approval", "retry-safe", "timeout"):
        table.add_column(name, no_wrap=True)
    table.add_column("description", no_wrap=True)
    for row in rows:
        described = str(row["description"]).strip().partition("\n")[0]
        safe = "yes" if row["retry_safe"] else "no"
        cells = (row["name"], row["source"], row["approval"], safe, f"{row['timeout_s']:g} s", described)
        table.add_row(*(Text(clean(str(cell))) for cell in cells))
    console.print(table if rows else "no tools")
    errors = open_console(stderr=True)
    for fault in shown.faults:
        errors.print(Text.assemble(("fault: ", "bold red"), cleaner(errors)(str(fault))), soft_wrap=True)
