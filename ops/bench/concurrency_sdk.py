"""What Lastword is compared with: the openai SDK in a plain Celery worker, one slot a stream.

What belongs here: the task that a reader of the SDK's own pages would write. What must not be known here: what is
measured. It stages nothing for readers, journals nothing and survives nothing: it joins the text, and that is all.
"""

import importlib
import os
from functools import cache
from typing import Any

import redis
from celery import Celery

app = Celery("bench", broker=os.environ["BENCH_BROKER"])
app.conf.update(
    task_ignore_result=True,
    worker_prefetch_multiplier=1,
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
    broker_transport_options={"socket_timeout": 30, "max_connections": 1000},
)
_openai: Any = importlib.import_module("openai")  # no dependency of this project
_redis = redis.Redis.from_url(os.environ["BENCH_BROKER"])


@cache
def _client() -> Any:
    """Made in the process that uses it."""
    return _openai.OpenAI(base_url=os.environ["BENCH_PROVIDER"], api_key="k", max_retries=0, timeout=600)


@app.task(name="bench.stream")
def stream(model: str) -> None:
    """Read one stream to its end."""
    texts: list[str] = []
    messages = [{"role": "user", "content": "Say something."}]
    for chunk in _client().chat.completions.create(model=model, messages=messages, stream=True):
        texts += [choice.delta.content for choice in chunk.choices if choice.delta.content]
    assert "".join(texts)
    _redis.incr("bench:done")
