"""Which Redis a command talks to: the one of the settings, else the embedded one of the data folder.

What belongs here: joining the embedded server that `lastword up` runs, or starting it for the time of a command. What
must not be known here: what is stored there.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

import redis.asyncio
from redis.exceptions import RedisError

from channels.console.terminal import open_console
from channels.embedded import EmbeddedServer
from channels.settings import Settings
from worker.errors import StoreUnavailable
from worker.store import connect

Client = redis.asyncio.Redis
"""What a command asks its questions with."""

_BLOCK_S = 5.0
_PATIENCE_S = 600.0


@dataclass(frozen=True, slots=True)
class Joined:
    """`settings` name the Redis that answers; `alone`: nothing runs on it but this command."""

    settings: Settings
    alone: bool


@contextlib.contextmanager
def joined(settings: Settings) -> Iterator[Joined]:
    """Give the settings with `redis_url` set. A server that was started for this is stopped at the end.

    A Redis that fails inside becomes `StoreUnavailable`, with the fix.
    """
    server = None if settings.redis_url is not None else EmbeddedServer(settings.data_dir)
    try:
        if server is None:
            yield Joined(settings, alone=False)
        else:
            url = server.start()
            yield Joined(settings.model_copy(update={"redis_url": url}), alone=server.owned)
    except RedisError as error:
        fix = "start it, or correct redis_url; `lastword doctor` looks closer"
        raise StoreUnavailable(f"Redis did not do what it was asked ({type(error).__name__}): {fix}") from None
    finally:
        if server is not None:
            leave(server, _PATIENCE_S)


def leave(server: EmbeddedServer, patience_s: float) -> None:
    """Stop the server if it is ours to stop, but give the commands that have joined it `patience_s` to end first."""
    try:
        if server.owned and not server.died and not server.wait_for_joined(0):
            errors = open_console(stderr=True)
            errors.print(
                f"another Lastword command uses the server of this data folder: waiting up to {patience_s:g} s for its "
                "end; Ctrl-C ends the wait",
                style="yellow",
            )
            if not server.wait_for_joined(patience_s):
                errors.print("it has not ended; the server stops all the same", style="yellow")
    finally:
        server.stop()


def ask(settings: Settings, question: Callable[[Joined, Client], Awaitable[int]]) -> int:
    """Put a question to the Redis of a command; gives its exit code."""

    async def asked(there: Joined) -> int:
        client = connect.open_redis(there.settings.redis(), block_s=_BLOCK_S)
        try:
            return await question(there, client)
        finally:
            await client.aclose()

    with joined(settings) as there:
        return asyncio.run(asked(there))
