"""Sending a wake-up costs whoever submits no time, whatever has become of the broker."""

import socket
from time import monotonic

import pytest
from kombu.exceptions import OperationalError

from worker.app import make_app, wake_session
from worker.settings import WorkerSettings


@pytest.mark.requirement("faults:broker:no-wait")
@pytest.mark.parametrize("scheme", ["redis", "amqp"])
def test_a_broker_that_refuses_is_told_at_once(scheme: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        broker = f"{scheme}://127.0.0.1:{taken.getsockname()[1]}//"
        settings = WorkerSettings(redis_url="redis://127.0.0.1:1/0", broker_url=broker)
        app = make_app(settings, concurrency=1)
        for _ in range(2):
            began = monotonic()
            with pytest.raises(OperationalError):
                wake_session(app, "room/1")
            assert monotonic() - began < 2
