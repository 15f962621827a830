"""What a receiver's answer says about a delivery.

What belongs here: the meaning of a status, and the place that a redirect names, as functions of values. What must not
be known here: how an answer came, the clock, what follows from an outcome.
"""

import re
from dataclasses import dataclass

from yarl import URL

from channels.delivery.model import Delivered, Evidence, Failed, Kind

_PLACE = re.compile(r"[!-~]+:[0-9]+")
_TRANSIENT = frozenset({408, 425})


@dataclass(frozen=True, slots=True)
class Answer:
    """The head of an answer. `at`: host and port that answered. `retry_after`: seconds that it asks to wait, or None.

    `target`: where a redirect leads: host and port, or words for there being none.
    """

    status: int
    at: str
    retry_after: float | None = None
    target: str = "nowhere"


def meaning_of(answer: Answer, evidence: Evidence | None = None) -> Delivered | Failed:
    """The outcome that an answer is.

    2xx took it. 3xx would have it sent elsewhere, which is never done. 429, and 503 with a time, ask to wait. 408, 425
    and 5xx may pass. 410 wants nothing any more. Whatever else there is stays until somebody changes something.
    """
    status = answer.status
    if 200 <= status < 300:
        return Delivered(status, evidence)
    code, message = f"http_{status}", f"{answer.at} answered {status}"
    if 300 <= status < 400:
        code = "redirect"
        message += f", a redirect to {answer.target}; it is not followed: give the URL that answers itself"
    if status == 410:
        message += ": the receiver wants nothing any more"
    kind = _kind_of(status, answer.retry_after)
    wait = answer.retry_after if kind in {"throttled", "transient"} else None
    return Failed(kind, code, message, "yes", wait, gone=status == 410, evidence=evidence)


def _kind_of(status: int, retry_after: float | None) -> Kind:
    if status == 429 or (status == 503 and retry_after is not None):
        return "throttled"
    return "transient" if status >= 500 or status in _TRANSIENT else "permanent"


def leads_to(url: URL, location: str) -> str:
    """Host and port that a redirect leads to, or words for there being none.

    Only ASCII is read: to make a host of 8 kB of other letters holds up the process for a third of a second.
    """
    if not location:
        return "nowhere"
    try:
        at = place_of(url.join(URL(location))) if location.isascii() else ""
    except Exception:  # noqa: BLE001 - a receiver says what it likes, and the reader raises IndexError, too
        at = ""
    return at[:256] if _PLACE.fullmatch(at) else "an address that cannot be read"


def place_of(url: URL) -> str:
    """Host and port, as a message may name them."""
    host = url.raw_host or ""  # as it is written: not every name can be decoded
    return f"[{host}]:{url.port}" if ":" in host else f"{host}:{url.port}"
