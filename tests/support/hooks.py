"""Inbound routes in tests: their settings, and senders who sign by themselves.

What belongs here: signing as a sender's own documents say it, with nothing of Lastword's, and posting.
"""

import base64
import hashlib
import hmac
from typing import Any

from channels.hooks.route import Faulty, Filtered, Route, Wanted, fault_of_stranger, judge
from channels.hooks.settings import HookSettings
from channels.hooks.verification import Headers, is_genuine
from channels.settings import Settings

SECRET = "a secret of more than sixteen bytes"
OTHER = "another secret of more than 16 bytes"
STANDARD = "whsec_" + base64.b64encode(bytes(range(32))).decode()

LONG_ENOUGH = {"keep_s": 2_592_000}
"""`turns.keep_s` that outlives every delivery."""


def hook(**fields: Any) -> dict[str, Any]:
    """The settings of a route that takes events signed by `by_hmac`."""
    return {
        "verification": "hmac",
        "secrets": {"current": {"value": SECRET}},
        "prompt": "An event came: {body}",
        **fields,
    }


def route(**fields: Any) -> Route:
    return HookSettings.model_validate(hook(**fields)).route("crm")


def judged_by(one: Route, headers: Headers, body: bytes, now_s: float) -> Wanted | Filtered | Faulty:
    """What becomes of an event, genuine or not."""
    return judge(one, headers, body) if is_genuine(one.verification, headers, body, now_s) else fault_of_stranger(body)


def hook_settings(url: str, hooks: dict[str, dict[str, Any]], **more: Any) -> Settings:
    return Settings.model_validate(
        {
            "redis_url": url,
            "providers": {"main": {"base_url": "http://127.0.0.1:9/v1", "model": "stand-in"}},
            "agents": {"default": {"provider": "main"}, "clerk": {"provider": "main"}},
            "endpoints": {"ops": {"url": "https://ops.example/ops"}},
            "turns": LONG_ENOUGH,
            "hooks": hooks,
            **more,
        }
    )


def by_hmac(body: bytes, secret: str = SECRET, **more: str) -> dict[str, str]:
    return {"X-Webhook-Signature": hmac.new(secret.encode(), body, hashlib.sha256).hexdigest(), **more}


def by_time(body: bytes, at: float, secret: str = SECRET) -> dict[str, str]:
    seconds = str(int(at))
    digest = hmac.new(secret.encode(), seconds.encode() + b"." + body, hashlib.sha256).hexdigest()
    return {"X-Webhook-Signature": f"t={seconds},v1={digest}"}


def raw(headers: dict[str, str]) -> dict[str, list[bytes]]:
    """Headers as the checks take them."""
    return {name.lower(): [value.encode()] for name, value in headers.items()}
