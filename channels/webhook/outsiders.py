"""What is shown of an attempt to those who own an endpoint, and not the machine that it was made from.

What belongs here: which words and times would show them what is where inside of its network, or how it is set up. What
must not be known here: HTTP, who asks.
"""

from channels.delivery.model import Delivery
from worker.http import HttpFault

_OF_THE_SETUP = frozenset({"bad_proxy", "bad_tls_file", "proxy_failed", "proxy_refused", "proxy_unreachable"})
"""Their messages name proxies and files."""

_NOT_SENT = ("internal_error", "Lastword itself could not send it")


def told_outside(code: str, message: str) -> tuple[str, str]:
    """Code and message of an attempt: one word for what is blocked, refused, silent and not found."""
    if code in _OF_THE_SETUP:
        return _NOT_SENT
    fault = HttpFault(code, "no", message)
    return fault.public_code, fault.public


def is_held_back(code: str) -> bool:
    """Whether of such an attempt nothing else is shown, since its times tell the same."""
    return told_outside(code, "")[0] != code or code == "unreachable"


def told_of_delivery(delivery: Delivery) -> tuple[str, str]:
    """Its code and message: those of its last attempt, where that is why it waits or was given up."""
    last = delivery.log[-1] if delivery.log else None
    if last is not None and is_held_back(last.code) and delivery.state in {"waiting", "dead"}:
        return told_outside(last.code, last.message)
    return told_outside(delivery.code, delivery.message)
