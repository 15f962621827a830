"""The section of the settings about what may be dialled.

What belongs here: its fields with unit, default, bounds and meaning, and the policies that they make. What must not be
known here: who dials, where values come from (`worker.sources`).
"""

from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field

from worker.egress import DEFAULT_PORTS, Policy, allowed_network, network_of, port_range
from worker.fields import Section, amount


def _as_text(port: object) -> object:
    return str(port) if isinstance(port, int) and not isinstance(port, bool) else port


def _checked_allowed(network: str) -> str:
    return str(allowed_network(network))


def _checked_denied(network: str) -> str:
    return str(network_of(network))


def _checked_ports(ports: str) -> str:
    port_range(ports)
    return ports


AllowedNetwork = Annotated[str, AfterValidator(_checked_allowed)]
DeniedNetwork = Annotated[str, AfterValidator(_checked_denied)]
Ports = Annotated[str, BeforeValidator(_as_text), AfterValidator(_checked_ports)]


class EgressSettings(Section):
    """Which addresses may be dialled. Metadata services of clouds never are."""

    allow: tuple[AllowedNetwork, ...] = Field(
        default=(),
        max_length=1000,
        description="Networks that webhooks may reach although they are private, loopback or otherwise special, as "
        "CIDRs. Providers and MCP servers may be in private networks without it.",
    )
    deny: tuple[DeniedNetwork, ...] = Field(
        default=(),
        max_length=1000,
        description="Networks that nothing may reach, as CIDRs: no webhook, provider, MCP server. They outrank allow.",
    )
    ports: tuple[Ports, ...] = Field(
        default=tuple(f"{low}" if low == high else f"{low}-{high}" for low, high in DEFAULT_PORTS),
        max_length=1000,
        description="Ports that webhooks may be posted to, single or as LOW-HIGH. A range leaves out those of "
        "databases and other known services; name such a port by itself.",
    )
    proxy_looks_up: bool = Field(
        default=False,
        description="Whether an endpoint's proxy is asked by name where a name is not known here, and for http:// "
        "URLs. What it then reaches, metadata services too, only the proxy can forbid.",
    )
    dns_timeout_s: float = amount(5, 0.05, 60, "seconds", "Longest lookup of a name.")

    @property
    def for_outsiders(self) -> Policy:
        """The policy for what somebody may name who only uses this installation."""
        return Policy(
            allow=tuple(map(network_of, self.allow)),
            deny=tuple(map(network_of, self.deny)),
            ports=tuple(map(port_range, self.ports)),
        )

    @property
    def for_operator(self) -> Policy:
        """The policy for what the settings file itself names: private networks too, and any port."""
        return Policy(
            allow=tuple(map(network_of, self.allow)),
            deny=tuple(map(network_of, self.deny)),
            allow_private=True,
            ports=None,
        )
