"""What is told of an attempt to those who own an endpoint, and not the machine that it was made from."""

import errno
import socket
from typing import Any

import pytest

from channels.delivery.model import Failed
from channels.webhook.outsiders import is_held_back, told_outside
from tests.support.posting import Opened, attempts, endpoint


@pytest.mark.requirement("operating:case:superlog-154:one-word")
@pytest.mark.parametrize(
    ("number", "code"),
    [
        (errno.EHOSTUNREACH, "unreachable"),
        (errno.ENETUNREACH, "unreachable"),
        (errno.ECONNREFUSED, "connect_refused"),
        (errno.ETIMEDOUT, "connect_timeout"),
    ],
)
async def test_however_an_address_is_not_reached_neither_reason_nor_times_are_told(number: int, code: str) -> None:
    """Also where the reason has the word already that all of them have."""

    def open_socket(_: Any) -> socket.socket:
        raise OSError(number, "as the system says")

    async with attempts(direct=Opened(socket_factory=open_socket)) as made:
        outcome = await made.post(endpoint("http://127.0.0.1:9/"), {}, b"{}")
    assert isinstance(outcome, Failed)
    assert outcome.code == code
    assert told_outside(outcome.code, outcome.message) == ("unreachable", "the endpoint cannot be reached")
    assert is_held_back(outcome.code)


@pytest.mark.requirement("operating:case:superlog-154:one-word")
@pytest.mark.parametrize("code", ["http_500", "timeout", "reset", "malformed"])
def test_of_what_was_reached_all_is_told(code: str) -> None:
    assert told_outside(code, "as it was") == (code, "as it was")
    assert not is_held_back(code)
