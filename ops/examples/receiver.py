"""Receives webhooks, and takes those that the secret in WEBHOOK_SECRET signed. Needs: pip install standardwebhooks."""

import os
from collections.abc import Callable
from typing import Any
from wsgiref.simple_server import make_server

from standardwebhooks.webhooks import Webhook, WebhookVerificationError

webhook = Webhook(os.environ["WEBHOOK_SECRET"])


def receive(request: dict[str, Any], answer: Callable[..., object]) -> list[bytes]:
    """One request; 2xx only for what is verified and kept: what is refused comes again."""
    body = request["wsgi.input"].read(int(request.get("CONTENT_LENGTH") or 0))
    headers = {name[5:].replace("_", "-"): text for name, text in request.items() if name.startswith("HTTP_")}
    try:
        event = webhook.verify(body, headers)
    except (WebhookVerificationError, ValueError):
        answer("400 Bad Request", [])
        return [b"not signed by the secret of this receiver\n"]
    print(headers["WEBHOOK-ID"], event["type"], flush=True)  # the id is the same on every attempt: drop a second one
    answer("204 No Content", [])
    return []


if __name__ == "__main__":
    with make_server("127.0.0.1", int(os.environ.get("PORT", "8080")), receive) as server:
        print(f"http://127.0.0.1:{server.server_port}", flush=True)
        server.serve_forever()
