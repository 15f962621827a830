"""The tools of one turn, ready to run.

What belongs here: which tool a tool call means, and the bounds within which it runs. What must not be known here: why
it runs, where its result goes.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from worker.codecs.events import ToolCall
from worker.store.lease import Grant
from worker.tools.running import run_tool
from worker.tools.tool import Tool, ToolContext
from worker.turn.events import ToolFinished


@dataclass(frozen=True, slots=True)
class Toolbox:
    """The tools offered to the model, by name.

    `timeout_s`: how long one that does not say otherwise may be silent. `result_chars`: how long a result may be.
    `approvals_expire_s`: how long a person has to decide.
    """

    tools: Mapping[str, Tool]
    timeout_s: float
    result_chars: int
    approvals_expire_s: float

    async def run(self, grant: Grant, call: int, index: int, tool_call: ToolCall) -> ToolFinished:
        """Run a tool call of a granted turn. Never raises: what goes wrong is a result."""
        context = ToolContext(f"{grant.turn}:{call}:{index}", grant.turn, grant.session, grant.agent)
        tool, arguments = self.tools[tool_call.name], tool_call.arguments_json or {}
        result = await run_tool(tool, arguments, context, self.timeout_s, self.result_chars)
        return ToolFinished(call, index, result.text, result.failure)
