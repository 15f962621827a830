"""Requests that a receiver must take and requests that it must refuse, over real HTTP.

What belongs here: both kinds, signed by our own code and then spoilt. What must not be known here: any receiver.
"""

from collections.abc import Mapping
from datetime import UTC, datetime

import httpx

from channels.endpoints.model import SigningKey
from channels.webhook.signature import signed_headers

MINE, OLD, NEW, PAIR = (
    SigningKey("v1", b"m" * 32),
    SigningKey("v1", b"o" * 24),
    SigningKey("v1", b"n" * 64),
    SigningKey("v1a", b"p" * 32),
)
NUMBERS = "[18446744073709551616, 1.7976931348623157e+308]"
BODY = f'{{"type": "turn.completed", "text": "Grüße aus 東京 🚀", "n": {NUMBERS}}}\n'.encode()
"""Numbers that a receiver who writes the JSON anew would change, and a line end that he would drop."""

GOOD = {
    "one key": (MINE,),
    "rotated from it": (NEW, MINE),
    "rotated to it": (MINE, OLD),
    "v1a before it": (PAIR, MINE),
    "v1a around it": (PAIR, NEW, MINE, SigningKey("v1a", b"q" * 32)),
    "ten keys": (*(SigningKey("v1", bytes([n]) * 32) for n in range(9)), MINE),
}
"""Keys that sign, `MINE` always among them."""

BAD = (
    "another key",
    "v1a alone",
    "another body",
    "another id",
    "another time",
    "too old",
    "too early",
    "no id",
    "no time",
    "no signature",
    "nothing but a scheme",
    "two spaces",
)


def now() -> int:
    """Unix seconds, as receivers count them."""
    return int(datetime.now(UTC).timestamp())  # noqa: TID251 - receivers compare it with their own clocks


def post(url: str, headers: Mapping[str, str], body: bytes = BODY) -> httpx.Response:
    """Post a body with headers, as webhooks are posted."""
    with httpx.Client(trust_env=False, timeout=30) as client:
        return client.post(url, content=body, headers={"content-type": "application/json", **headers})


def good(name: str, message_id: str = "dlv_1") -> dict[str, str]:
    """Headers of `BODY` that a receiver with the secret `MINE` must take."""
    return signed_headers(GOOD[name], message_id, now(), BODY, 0)


def bad(name: str) -> tuple[dict[str, str], bytes]:
    """Headers and a body that it must refuse."""
    headers, body = signed_headers([MINE], "dlv_1", now(), BODY, 0), BODY
    match name:
        case "another key":
            headers = signed_headers([OLD, NEW], "dlv_1", now(), BODY, 0)
        case "v1a alone":
            headers = signed_headers([PAIR], "dlv_1", now(), BODY, 0)
        case "another body":
            body = BODY.replace(b"completed", b"cancelled")
        case "another id":
            headers["webhook-id"] = "dlv_2"
        case "another time":
            headers["webhook-timestamp"] = str(now() + 1)
        case "too old" | "too early":
            headers = signed_headers([MINE], "dlv_1", now() + (-330 if name == "too old" else 330), BODY, 0)
        case "no id" | "no time" | "no signature":
            part = {"no id": "id", "no time": "timestamp", "no signature": "signature"}[name]
            del headers[f"webhook-{part}"]
        case "nothing but a scheme":
            headers["webhook-signature"] = "v1,"
        case "two spaces":
            headers["webhook-signature"] = "v1,AAAA  v1,AAAA"
        case _:
            raise AssertionError(name)
    return headers, body
