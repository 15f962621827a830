"""A Lua script in a file of its own, as a typed callable.

What belongs here: loading a script, running it, and what is peculiar to running scripts (a server that has forgotten
it, one that does not know its flags, a full one, durability). What must not be known here: what any script does.

A file's header comment is its contract. Two of its lines are read here:

    #!lua flags=allow-oom    the first line, optional: the script also runs when Redis is at maxmemory
    -- prelude: fence        the text of fence.lua stands in front of the script

A script is sent once and never repeated here. Whether the reply was lost or the script never ran, only the one who
sent it can tell what to do; build the client without retries of its own (`worker.store.connect`).
"""

import hashlib
import re
from collections.abc import Sequence
from importlib.resources import files
from typing import Any
from weakref import WeakSet

import redis
import redis.asyncio
from redis.exceptions import NoScriptError, OutOfMemoryError, ResponseError

from worker.errors import StoreFull
from worker.store.repeat import is_unanswered

Argument = str | bytes | int
_PRELUDE = re.compile(r"^-- prelude: (\w+)$", re.MULTILINE)
_SHEBANG = re.compile(r"#![^\n]*\n")
_SYNC_LIMIT_MS = 5_000
_plain_servers: WeakSet[Any] = WeakSet()
"""The connection pools of servers older than script flags."""


class _Source:
    """A script's text as one kind of server takes it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


class Script:
    """The script `name`.lua in the folder `lua` of `package`."""

    def __init__(self, package: str, name: str) -> None:
        folder = files(package) / "lua"
        text = (folder / f"{name}.lua").read_text(encoding="utf-8")
        shebang = _SHEBANG.match(text)
        body = text[shebang.end() :] if shebang else text
        for prelude in _PRELUDE.findall(body):
            body = (folder / f"{prelude}.lua").read_text(encoding="utf-8") + body
        self.name = name
        self._plain = _Source(body)
        self._flagged = _Source((shebang[0] if shebang else "") + body)

    async def __call__(
        self, client: redis.asyncio.Redis, keys: Sequence[str], args: Sequence[Argument], *, durable: bool = False
    ) -> list[Any]:
        """Run it and give its reply. `durable`: only after the server has the write on its disk, where it can tell.

        Raises `StoreFull` at maxmemory, and redis-py's exceptions; `redis.TimeoutError` also when the disk was late.
        """
        try:
            return await self._send(client, self._source(client), keys, args, durable=durable)
        except ResponseError as error:
            if not self._knows_no_flags(client, error):
                raise
        return await self._send(client, self._plain, keys, args, durable=durable)

    def run(self, client: redis.Redis, keys: Sequence[str], args: Sequence[Argument]) -> list[Any]:
        """The same on a blocking client."""
        try:
            return self._run(client, self._source(client), keys, args)
        except ResponseError as error:
            if not self._knows_no_flags(client, error):
                raise
        return self._run(client, self._plain, keys, args)

    def run_each(
        self, client: redis.Redis, calls: Sequence[tuple[Sequence[str], Sequence[Argument]]]
    ) -> list[list[Any] | ResponseError]:
        """Run it for each (keys, arguments), all in one round trip; where one is refused, that in place of its reply.

        Raises redis-py's exceptions when the server says that it can do nothing just now.
        """
        pipeline: Any = client.pipeline(transaction=False)
        for names, args in calls:
            pipeline.execute_command(*_command("EVALSHA", self._source(client).sha, names, args))
        answers: list[Any] = pipeline.execute(raise_on_error=False) if calls else []
        for place, (names, args) in enumerate(calls):
            if isinstance(answers[place], NoScriptError):  # the first one that is sent whole teaches the server
                answers[place] = self._run_or_refusal(client, names, args)
            if isinstance(answers[place], Exception) and is_unanswered(answers[place]):
                raise answers[place]
        return answers

    def _run_or_refusal(
        self, client: redis.Redis, keys: Sequence[str], args: Sequence[Argument]
    ) -> list[Any] | ResponseError:
        try:
            return self.run(client, keys, args)
        except ResponseError as error:
            return error

    def queue(self, pipeline: "redis.asyncio.client.Pipeline", keys: Sequence[str], args: Sequence[Argument]) -> None:
        """Put it into a pipeline. An answer that is a `NoScriptError` says: `load` it and send it again."""
        pipeline.execute_command(*_command("EVALSHA", self._source(pipeline).sha, keys, args))

    async def load(self, client: redis.asyncio.Redis) -> None:
        """Teach the server the script."""
        try:
            await client.script_load(self._source(client).text)
        except ResponseError as error:
            if not self._knows_no_flags(client, error):
                raise
            await client.script_load(self._plain.text)

    def _source(self, client: "redis.Redis | redis.asyncio.Redis | redis.asyncio.client.Pipeline") -> _Source:
        return self._plain if client.connection_pool in _plain_servers else self._flagged

    def _knows_no_flags(self, client: redis.Redis | redis.asyncio.Redis, error: ResponseError) -> bool:
        if "near '#'" not in str(error):
            return False
        _plain_servers.add(client.connection_pool)
        return True

    def _run(self, client: redis.Redis, source: _Source, keys: Sequence[str], args: Sequence[Argument]) -> list[Any]:
        execute: Any = client.execute_command
        try:
            return _checked(execute(*_command("EVALSHA", source.sha, keys, args)))
        except NoScriptError:
            return _checked(execute(*_command("EVAL", source.text, keys, args)))

    async def _send(
        self,
        client: redis.asyncio.Redis,
        source: _Source,
        keys: Sequence[str],
        args: Sequence[Argument],
        *,
        durable: bool,
    ) -> list[Any]:
        execute = _execute_durably if durable else _execute
        try:
            return await execute(client, _command("EVALSHA", source.sha, keys, args))
        except NoScriptError:
            return await execute(client, _command("EVAL", source.text, keys, args))


async def _execute(client: redis.asyncio.Redis, command: tuple[Argument, ...]) -> list[Any]:
    execute: Any = client.execute_command
    try:
        return _checked(await execute(*command))
    except OutOfMemoryError as error:
        raise StoreFull(_FULL) from error


async def _execute_durably(client: redis.asyncio.Redis, command: tuple[Argument, ...]) -> list[Any]:
    pipeline = client.pipeline(transaction=False)
    pipeline.execute_command(*command)
    pipeline.execute_command("WAITAOF", 1, 0, _SYNC_LIMIT_MS)
    reply, synced = await pipeline.execute(raise_on_error=False)
    if isinstance(reply, OutOfMemoryError):
        raise StoreFull(_FULL) from reply
    if isinstance(reply, Exception):
        raise reply
    _check_synced(synced)
    return _checked(reply)


_FULL = "Redis is at its maxmemory and takes no new work: raise maxmemory, or let deliveries drain"


def _command(verb: str, source: str, keys: Sequence[str], args: Sequence[Argument]) -> tuple[Argument, ...]:
    return (verb, source, len(keys), *keys, *args)


def _checked(reply: Any) -> list[Any]:
    assert isinstance(reply, list), f"a script answered {type(reply).__name__}: every script of ours answers a list"
    return reply


def _check_synced(answer: Any) -> None:
    """A server without WAITAOF or without a file answers with an error: then nothing better is to be had."""
    if isinstance(answer, list) and not answer[0]:
        raise redis.TimeoutError(f"the server did not bring its append-only file to disk within {_SYNC_LIMIT_MS} ms")
