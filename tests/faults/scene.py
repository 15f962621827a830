"""What the tests of faults have in common: a turn that streams through a fault, and what must be true of it after.

What belongs here: settings with short leases, scripts of the stand-in, looking at what came of it. What must not be
known here: the faults.
"""

import json
from collections.abc import Sequence
from typing import Any

from channels.rehearsal.server import StandIn
from tests.support.receiver import Receiver
from tests.support.stack import SECRET, Process

TTL_S = 1.2
SLOW = """
[[calls]]
steps = [ { text = "I will look. " }, { tool = "note" } ]

[[calls]]
steps = [ { text = "An answer that is spoken through a fault.", pieces = 40, every_s = 0.08 } ]
"""
SLOW_TEXT = "I will look. An answer that is spoken through a fault."


def settings(base_url: str, hook: str, more: str = "") -> str:
    """One provider, one tool that leaves a trace, one receiver; a lease that is over in a moment."""
    return f"""
[providers.main]
base_url = "{base_url}"
model = "stand-in"

[agents.default]
tools = ["note"]

[lease]
ttl_s = {TTL_S}
renew_s = 0.3
sweep_s = 0.2

[delivery]
timeout_s = 1

[endpoints.receiver]
url = "{hook}"
secret = "{SECRET}"
{more}
"""


def told(receiver: Receiver) -> dict[str, list[tuple[str, str, str]]]:
    """Of each turn, what a receiver that knows a message by its id was told: id, outcome and text."""
    found: dict[str, list[tuple[str, str, str]]] = {}
    seen: set[str] = set()
    for request in receiver.requests:
        name = request.headers["webhook-id"]
        if name not in seen:
            seen.add(name)
            data: dict[str, Any] = json.loads(request.body)["data"]
            found.setdefault(data["turn"], []).append((name, data["outcome"], data["text"]))
    return found


def texts(receiver: Receiver) -> dict[str, list[tuple[str, str]]]:
    """The same without the ids."""
    return {turn: [(outcome, text) for _, outcome, text in one] for turn, one in told(receiver).items()}


def ends(provider: StandIn) -> list[str | None]:
    """How the requests to the provider ended, in order."""
    return [exchange.ended for exchange in provider.transcript.exchanges]


def faults_of(processes: Sequence[Process]) -> list[dict[str, Any]]:
    """What the processes took for a fault of Lastword's own, what Celery could not cope with, and who ended."""
    faults = [line for process in processes for line in process.lines() if line["level"] == "error"]
    texts = [process.log.read_text(encoding="utf-8", errors="replace") for process in processes]
    lines = [line for text in texts for line in text.splitlines()]
    faults += [{"celery": line} for line in lines if "Unrecoverable error" in line or "Frequent restarts" in line]
    ended = [{"ended": process.name} for process in processes if process.returncode is not None]
    return faults + ended
