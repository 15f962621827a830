"""Sending a wake-up costs whoever submits no time, whatever has become of the broker."""

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from types import SimpleNamespace

import pytest
import redis.asyncio
from kombu.exceptions import OperationalError

from tests.support.valkey import Valkey
from worker import api
from worker.app import make_app, wake_session
from worker.consumer import Consumer
from worker.pool import pool_with_room
from worker.settings import WorkerSettings


@pytest.fixture
def silent(tmp_path: Path) -> Iterator[Valkey]:
    """A server that takes connections and answers nothing."""
    with Valkey(tmp_path / "broker") as server:
        os.kill(server.pid, signal.SIGSTOP)
        yield server


@pytest.mark.requirement("faults:broker:no-wait")
@pytest.mark.parametrize("scheme", ["redis", "amqp"])
def test_a_broker_that_refuses_is_told_at_once(scheme: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        broker = f"{scheme}://127.0.0.1:{taken.getsockname()[1]}//"
        settings = WorkerSettings(redis_url="redis://127.0.0.1:1/0", broker_url=broker)
        app = make_app(settings, concurrency=1)
        with pytest.raises(OperationalError):
            wake_session(app, "room/1")  # imports the transport
        began = monotonic()
        with pytest.raises(OperationalError):
            wake_session(app, "room/1")
        assert monotonic() - began < 5


@pytest.mark.requirement("faults:broker:silent-wait")
def test_a_broker_that_is_silent_is_given_up_within_seconds(silent: Valkey) -> None:
    app = make_app(WorkerSettings(redis_url="redis://127.0.0.1:1/0", broker_url=silent.url), concurrency=1)
    for _ in range(2):
        began = monotonic()
        with pytest.raises(OperationalError):
            wake_session(app, "room/1")
        assert monotonic() - began < 8


@pytest.mark.requirement("faults:broker:silent-wait")
async def test_a_wake_up_that_hangs_does_not_stop_the_loop(fake_redis: redis.asyncio.Redis) -> None:
    going, hung = threading.Event(), asyncio.Event()
    went_on: list[bool] = []
    loop = asyncio.get_running_loop()

    def wake(_: str) -> None:
        loop.call_soon_threadsafe(hung.set)
        went_on.append(going.wait(10))

    settings = WorkerSettings.model_validate(
        {"redis_url": "redis://127.0.0.1:1/0", "providers": {"main": {"base_url": "http://127.0.0.1:1", "model": "m"}}}
    )
    async with asyncio.TaskGroup() as group:
        submitting = group.create_task(api.submit(settings, fake_redis, prompt="hello", source="test", wake=wake))
        await asyncio.wait_for(hung.wait(), 10)
        going.set()
    assert submitting.result().turn
    assert went_on == [True]


@pytest.mark.requirement("faults:broker:prefetch")
@pytest.mark.filterwarnings("ignore::celery.exceptions.CPendingDeprecationWarning")
def test_a_full_process_asks_a_broker_that_is_back_for_as_much_as_at_its_start() -> None:
    """To RabbitMQ a prefetch of 0 means any number: a full process would take all that waits."""
    pool = pool_with_room(lambda: 0)
    settings = WorkerSettings(redis_url="redis://127.0.0.1:1/0", broker_url="redis://127.0.0.1:1/0")
    app = make_app(settings, concurrency=32, pool=pool)
    controller = SimpleNamespace(use_eventloop=False, max_concurrency=None)
    consumer = Consumer(
        lambda _: None,
        app=app,
        controller=controller,
        pool=pool(32),
        hostname="x",
        initial_prefetch_count=32,
        prefetch_multiplier=1,
        timer=SimpleNamespace(),
    )
    consumer.on_connection_error_after_connected(ConnectionError("gone"))
    assert vars(consumer)["initial_prefetch_count"] == 32
