"""A Redis over a bad line, and what tests of the store look at.

`Lossy` stands before a client's commands: the next script may be lost on its way there (it never ran) or on its way
back (it ran, and nobody was told). It keeps every script that was sent, so that old ones can be sent again.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any, Literal

import redis
import redis.asyncio
from redis.exceptions import NoScriptError

from tests.store.turns import Redis

Fault = Literal["none", "request lost", "reply lost"]


class Lossy:
    """Wraps `client` in place. `faults`: what happens to the next scripts, one after the other."""

    def __init__(self, client: Redis) -> None:
        self.faults: deque[Fault] = deque()
        self.sent: list[tuple[Any, ...]] = []
        self.pipelines = 0
        self.execute = client.execute_command
        self._open_pipeline = client.pipeline
        client.execute_command = self._execute_command
        client.pipeline = self._pipeline

    async def _execute_command(self, *command: Any, **options: Any) -> Any:
        fault = self._next(command)
        if fault == "request lost":
            raise redis.ConnectionError(fault)
        try:
            reply = await self.execute(*command, **options)
        except NoScriptError:
            if fault != "none":
                self.faults.appendleft(fault)  # no script ran: the fault waits for the one that does
            raise
        if fault == "reply lost":
            raise redis.ConnectionError(fault)
        return reply

    def _pipeline(self, *args: Any, **options: Any) -> Any:
        pipeline = self._open_pipeline(*args, **options)
        execute = pipeline.execute

        async def lossy_execute(*args: Any, **options: Any) -> Any:
            self.pipelines += 1
            faults = [self._next(command) for command, _ in pipeline.command_stack]
            if "request lost" in faults:
                raise redis.ConnectionError("request lost")
            replies = await execute(*args, **options)
            if any(isinstance(reply, NoScriptError) for reply in replies):
                self.faults.extendleft(fault for fault in reversed(faults) if fault != "none")
                return replies
            if "reply lost" in faults:
                raise redis.ConnectionError("reply lost")
            return replies

        pipeline.execute = lossy_execute
        return pipeline

    def _next(self, command: Sequence[Any]) -> Fault:
        if command[0] not in {"EVALSHA", "EVAL"}:
            return "none"
        if command[0] == "EVALSHA":
            self.sent.append(tuple(command))
        return self.faults.popleft() if self.faults else "none"


async def dump(client: Redis, *, leave_out: Sequence[str] = ()) -> dict[str, Any]:
    """Every key: its type, its whole content, whether it expires. `leave_out`: fields of hashes, kinds of keys."""
    found: dict[str, Any] = {}
    for key in sorted([key async for key in client.scan_iter("*")]):
        name = key.decode()
        if name.rpartition("}:")[2].partition(":")[0] in leave_out:
            continue
        kind = (await client.type(key)).decode()
        if kind == "none":  # it has gone since the look at all keys
            continue
        match kind:
            case "hash":
                content: Any = await client.hgetall(key)
                content = {field: value for field, value in content.items() if field.decode() not in leave_out}
            case "list":
                content = await client.lrange(key, 0, -1)
            case "string":
                content = await client.get(key)
            case "set":
                content = await client.smembers(key)
            case "zset":
                content = await client.zrange(key, 0, -1, withscores=True)
            case "stream":
                content = await client.xrange(key)
            case _:
                raise AssertionError(f"{name} is a {kind}")
        found[name] = (kind, content, await client.ttl(key) > 0)
    return found
