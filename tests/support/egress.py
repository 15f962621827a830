"""What tests let through to the loopback, and lookups that answer as a test says.

What belongs here: guards and lookups for tests. What must not be known here: what is dialled with them.
"""

import asyncio
import json
import socket
from collections.abc import Sequence
from ipaddress import ip_network
from types import TracebackType
from typing import Self

from worker.egress import Policy
from worker.guard import Guard
from worker.lookup import Lookup, SystemLookup

LOOPBACK = {"allow": ["127.0.0.0/8", "::1/128"], "ports": ["1-65535"]}
"""The section [egress] that lets webhooks be posted to the loopback, also where nothing listens for certain."""

ALLOW_LOOPBACK = "\n".join(["[egress]", *(f"{name} = {json.dumps(value)}" for name, value in LOOPBACK.items()), ""])
OPEN = Policy(allow=tuple(ip_network(network) for network in LOOPBACK["allow"]))
CLOSED = Policy()


class Answers:
    """A lookup that answers each name with its addresses, one list after the other; the last for ever after."""

    def __init__(self, **names: Sequence[Sequence[str]]) -> None:
        self.asked: list[str] = []
        self._names = {name.replace("_", "."): list(answers) for name, answers in names.items()}

    async def addresses(self, host: str) -> Sequence[str]:
        self.asked.append(host)
        answers = self._names.get(host)
        if answers is None:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return answers.pop(0) if len(answers) > 1 else answers[0]


class Fails:
    """A lookup that fails, or, without an error, never answers."""

    def __init__(self, error: OSError | None) -> None:
        self._error = error

    async def addresses(self, host: str) -> Sequence[str]:
        del host
        if self._error is None:
            await asyncio.Event().wait()
        assert self._error is not None
        raise self._error


def guard(policy: Policy = OPEN, lookup: Lookup | None = None) -> Guard:
    """A guard of its own for each event loop. By default it lets everything public and the loopback through."""
    return Guard(policy, lookup or SystemLookup(2))


class Listener:
    """Listens on the loopback, takes every connection and counts it. It says nothing."""

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        self._host = host
        self.accepted = 0
        self.first = asyncio.Event()
        self.port = port
        self._server: asyncio.Server

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, self._host, self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        await self._server.wait_closed()

    def _accept(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        self.first.set()
        writer.close()
