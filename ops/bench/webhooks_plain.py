"""What the webhook benchmark compares with: a Celery task for each delivery, which posts with httpx and retries itself.

What belongs here: the task as most programs have it. What must not be known here: Lastword.

Nothing is recorded before it is sent but the Celery message. Started as `celery --app ops.bench.webhooks_plain worker`.
"""

import base64
import hashlib
import hmac
import os
import time
from typing import Any

import celery
import httpx

app = celery.Celery("plain", broker=os.environ.get("PLAIN_BROKER", "memory://"))
app.conf.update(task_acks_late=True, worker_prefetch_multiplier=4, task_ignore_result=True)
_client = httpx.Client(timeout=15)


@app.task(bind=True, max_retries=9)
def post(self: Any, url: str, identity: str, body: str) -> None:
    """One delivery, signed."""
    now = str(int(time.time()))  # noqa: TID251 - what receivers compare with
    digest = hmac.digest(b"k" * 32, f"{identity}.{now}.{body}".encode(), hashlib.sha256)
    headers = {
        "content-type": "application/json",
        "webhook-id": identity,
        "webhook-timestamp": now,
        "webhook-signature": f"v1,{base64.b64encode(digest).decode()}",
    }
    try:
        _client.post(url, content=body.encode(), headers=headers).raise_for_status()
    except httpx.HTTPError as error:
        raise self.retry(exc=error, countdown=5 * 2**self.request.retries) from error
