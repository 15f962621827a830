"""What a run is asked for, and the settings file that its processes read.

What belongs here: options and settings. What must not be known here: processes, what is right.

Silences, waits and leases are short, so that a run is; what strikes cost is within every budget.
"""

from dataclasses import dataclass
from pathlib import Path

from ops.chaos_run.story import TOOLS, WIRES

DELIVERY_TIMEOUT_S = 2.0
_PROVIDER = """
[providers.{wire}]
wire = "{wire}"
base_url = "{provider}"
model = "stand-in"
stall_timeout_s = 1.5
first_token_timeout_s = 3
no_progress_timeout_s = 4
prefill_timeout_s = 4
finish_grace_s = 1
transport_retries = 10
transport_backoff_s = 0.2
transport_backoff_max_s = 1

[agents.{wire}]
provider = "{wire}"
tools = [{tools}]
"""
_LEASE = """
[lease]
ttl_s = 2
renew_s = 0.5
sweep_s = 0.25
"""
_REST = """
[turns]
timeout_resume_retry_budget = 10
resume_backoff_s = 0.1
crash_cap = 20

[delivery]
timeout_s = {timeout_s}
retry_waits_s = [0.3, 0.5, 1, 1, 2, 2, 3, 3, 5, 5, 5, 5, 5, 5]

[web]
keepalive_s = 0.5
drain_s = 0.2
stop_s = 2
requests_per_minute = 100000

[egress]
allow = ["127.0.0.0/8", "::1/128"]

[endpoints.receiver]
url = "{hook}"
secret = "{secret}"
"""


@dataclass(frozen=True, slots=True)
class Options:
    """What was asked for. `broker`: redis or rabbitmq. `has_default_lease`: the product's own, else a short one.

    `deliveries`: so many of them alone, without turns that run; 0: a run of turns.
    """

    messages: int
    kills: int
    seed: int
    broker: str
    has_default_lease: bool
    deliveries: int = 0


def settings_text(options: Options, provider: str, hook: str, secret: str, folder: Path) -> str:
    """The settings file. `provider`, `hook`: URLs of the stand-in provider and of the receiver."""
    tools = ", ".join(f'"{name}"' for name in TOOLS)
    parts = [
        f'data_dir = "{folder / "data"}"',
        f"partitions = {1 + options.seed % 3}",
        "" if options.has_default_lease else _LEASE,
        *(_PROVIDER.format(wire=wire, provider=provider, tools=tools) for wire in WIRES),
        _REST.format(timeout_s=DELIVERY_TIMEOUT_S, hook=hook, secret=secret),
    ]
    return "\n".join(parts)
