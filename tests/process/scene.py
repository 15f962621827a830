"""What tests of several processes have in common: suspects in processes of their own, and what a turn came to.

What belongs here: settings with short leases, waiting, looking. What must not be known here: what is right.
"""

from tests.support.stack import Process, Stack, eventually, is_alive
from worker.output.events import Output, TextDeltaOutput, TextOutput
from worker.store.records import TurnRecord, read_turn


def settings(base_url: str, more: str = "") -> str:
    """Settings in which the dead are found soon. `base_url`: of a stand-in; `more`: sections behind them."""
    return f"""
[providers.main]
base_url = "{base_url}"
model = "stand-in"
stall_timeout_s = 20

[agents.default]
tools = ["note", "poison"]

[lease]
ttl_s = 2
renew_s = 0.4
sweep_s = 0.2
{more}
"""


def text_of(outputs: list[Output]) -> str:
    """The text of the completed calls."""
    return "".join(output.text for output in outputs if isinstance(output, TextOutput) and output.is_call_boundary)


def lines_of(processes: list[Process], event: str) -> list[dict[str, object]]:
    """The lines of an event. A suspect's process writes into the log of the process that started it."""
    return [line for process in processes for line in process.lines() if line["event"] == event]


async def record_of(stack: Stack, turn: str) -> TurnRecord:
    """What is stored of a turn."""
    record = await read_turn(stack.client, turn)
    assert record is not None
    return record


async def suspected(stack: Stack) -> tuple[str, Process, int]:
    """A turn that runs as a suspect, where `suspect_after` is 1: its first process is killed.

    Gives the turn, the process that has it now, and the pid of the suspect's own. `<slow>` is answered for long.
    """
    turn = await stack.submit("<slow>", watch_s=60)
    first = stack.start("turns")
    await stack.until(turn, lambda output: isinstance(output, TextDeltaOutput))
    first.kill()
    second = stack.start("turns")
    return turn, second, await suspect_of(turn, second)


async def suspect_of(turn: str, parent: Process) -> int:
    """The process of a suspect turn, once it has claimed it."""

    async def look() -> list[object]:
        taken = [line for line in lines_of([parent], "turn_taken_over") if line["turn"] == turn and line["suspect"]]
        return [line["pid"] for line in lines_of([parent], "suspect_process_started")] if taken else []

    return int(str((await eventually(look, bool, f"a process of its own for {turn}"))[-1]))


async def gone(pid: int) -> None:
    """Return once a process has ended."""

    async def look() -> bool:
        return is_alive(pid)

    await eventually(look, lambda alive: not alive, f"the end of process {pid}")
