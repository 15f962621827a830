"""Bearer tokens: who may ask the web process for what.

What belongs here: making, finding and revoking tokens; what one token may do. What must not be known here: routes.

    lw:token:<id>   hash: v, name, digest, scopes (between spaces), agent, sessions, created_ms, expires_ms (0: never)
    lw:tokens       sorted set: id, the ms at which it was made

A token reads `lw_<id>_<secret>`: 16 hex digits to find it by, and 64 of a secret that is kept by nobody but its owner.
Of the secret, Redis holds the SHA-256; 256 random bits need no slow hash.
"""

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import redis
import redis.asyncio

from worker import ids
from worker.errors import ConfigurationError
from worker.store import clock

Scope = Literal[
    "turns:write", "turns:read", "events:read", "approvals:read", "approvals:decide", "approvals:act_as",
    "destinations:url", "endpoints:read", "endpoints:write", "deliveries:read",
    "deliveries:write", "metrics:read",
]  # fmt: skip
SCOPES: dict[Scope, str] = {
    "turns:write": "Submit turns and cancel them.",
    "turns:read": "Read turns: state, outcome, text.",
    "events:read": "Read along while a turn runs.",
    "approvals:read": "List what waits for a person.",
    "approvals:decide": "Decide approvals, in the name of the token.",
    "approvals:act_as": "With approvals:decide: decide in the name of another person.",
    "destinations:url": "With turns:write: let outcomes be sent to any URL. With deliveries:read: see such URLs whole.",
    "endpoints:read": "List endpoints, without secrets.",
    "endpoints:write": "Make, change, pause and delete endpoints, and have their secrets rotated.",
    "deliveries:read": "List deliveries and bulk replays, with what receivers answered; export them.",
    "deliveries:write": "Replay and cancel deliveries, one or a range of them.",
    "metrics:read": "Read /metrics from another machine.",
}
"""What a token may be made for."""

_TOKEN = re.compile(r"lw_([0-9a-f]{16})_([0-9a-f]{64})")
_ID = re.compile(r"[0-9a-f]{16}")
_NOBODY = "0" * 64
_INDEX = "lw:tokens"
_VERSION = 1
_PAGE = 500
_SYNC_LIMIT_MS = 5_000


@dataclass(frozen=True, slots=True)
class Token:
    """A token without its secret. Times are UTC milliseconds of the store's clock; `expires_ms` 0: never.

    `agent` and `sessions`: it sees and submits only turns of that agent, and of sessions that begin so; empty: of all.
    """

    id: str
    name: str
    scopes: frozenset[str]
    agent: str
    sessions: str
    created_ms: int
    expires_ms: int

    def admits(self, agent: str, session: str) -> bool:
        """Whether turns of this agent in this session are its business."""
        return self.agent in ("", agent) and session.startswith(self.sessions)


async def create(  # noqa: PLR0913 - what a token consists of
    client: redis.asyncio.Redis,
    *,
    name: str,
    scopes: frozenset[str],
    expires_s: float | None = None,
    agent: str | None = None,
    sessions: str | None = None,
) -> tuple[Token, str]:
    """Make a token; also gives its text, which nobody can ask for again. Raises `ConfigurationError`.

    `agent`, `sessions` None: of all.
    """
    _check(name, scopes)
    _check_bounds(agent, sessions)
    identifier, secret = secrets.token_hex(8), secrets.token_hex(32)
    now_ms = await clock.now_ms(client)
    expires_ms = 0 if expires_s is None else now_ms + round(expires_s * 1000)
    fields: dict[Any, Any] = {
        "v": _VERSION,
        "name": name,
        "digest": _digest(secret),
        "scopes": " ".join(sorted(scopes)),
        "agent": agent or "",
        "sessions": sessions or "",
        "created_ms": now_ms,
        "expires_ms": expires_ms,
    }
    pipeline = client.pipeline(transaction=False)
    pipeline.hset(_key(identifier), mapping=fields)
    pipeline.zadd(_INDEX, {identifier: now_ms})
    if expires_ms:
        pipeline.pexpireat(_key(identifier), expires_ms)
    await _durably(pipeline)
    token = Token(identifier, name, scopes, agent or "", sessions or "", now_ms, expires_ms)
    return token, f"lw_{identifier}_{secret}"


async def find(client: redis.asyncio.Redis, text: str) -> Token | None:
    """The token whose text this is, or None: it is none, was revoked, or has expired.

    One that a newer version has made is none here, too: it may be restricted by what this version does not know.
    """
    match = _TOKEN.fullmatch(text)
    identifier, secret = (match[1], match[2]) if match else (_NOBODY[:16], _NOBODY)
    pipeline = client.pipeline(transaction=False)
    pipeline.hgetall(_key(identifier))
    pipeline.time()
    stored, time = await pipeline.execute()
    # Compared also when there is nothing to compare with: the time of an answer tells nobody which ids there are.
    is_equal = hmac.compare_digest(stored.get(b"digest", _NOBODY.encode()), _digest(secret).encode())
    if not match or not stored or not is_equal or not _is_ours(stored):
        return None
    token = _read(identifier, stored)
    now_ms = clock.ms(time)
    return None if 0 < token.expires_ms <= now_ms else token


async def still_counting(client: redis.asyncio.Redis, identifiers: Iterable[str]) -> set[str]:
    """Those of some tokens, by their ids, that were not revoked and have not expired."""
    asked = list(identifiers)
    pipeline = client.pipeline(transaction=False)
    for identifier in asked:
        pipeline.exists(_key(identifier))
    found = zip(asked, await pipeline.execute(), strict=True)
    return {identifier for identifier, is_there in found if is_there}


async def listed(client: redis.asyncio.Redis) -> list[Token]:
    """The tokens that count, the oldest first."""
    found: list[Token] = []
    expired: list[str] = []
    begin = 0
    while True:
        names: Any = await client.zrange(_INDEX, begin, begin + _PAGE - 1)
        if not names:
            break
        begin += len(names)
        identifiers = [name.decode() for name in names]
        pipeline = client.pipeline(transaction=False)
        for identifier in identifiers:
            pipeline.hgetall(_key(identifier))
        for identifier, stored in zip(identifiers, await pipeline.execute(), strict=True):
            if stored:
                found.append(_read(identifier, stored))
            else:
                expired.append(identifier)
    if expired:
        await client.zrem(_INDEX, *expired)
    return found


async def revoke(client: redis.asyncio.Redis, identifier: str) -> bool:
    """Let a token count no more; False: none has this id. Raises `ConfigurationError` for what is no id."""
    if not _ID.fullmatch(identifier):
        raise ConfigurationError(
            f"id {identifier[:20]!r} is no token's id: give the 16 hex digits that `lastword token list` prints"
        )
    pipeline = client.pipeline(transaction=False)
    pipeline.delete(_key(identifier))
    pipeline.zrem(_INDEX, identifier)
    return bool((await _durably(pipeline))[0])


async def _durably(pipeline: Any) -> list[Any]:
    """What was sent is on disk, where the server can tell: no token that was revoked comes back after a crash."""
    pipeline.execute_command("WAITAOF", 1, 0, _SYNC_LIMIT_MS)
    answers: list[Any] = await pipeline.execute(raise_on_error=False)
    synced = answers.pop()
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    if isinstance(synced, list) and not synced[0]:
        raise redis.TimeoutError(f"the server did not bring its append-only file to disk within {_SYNC_LIMIT_MS} ms")
    return answers


def _check(name: str, scopes: frozenset[str]) -> None:
    if not (1 <= len(name) <= 200 and name.isprintable() and name == name.strip()):
        raise ConfigurationError(f"name {name[:80]!r}: use 1 to 200 printable characters, without blanks at the ends")
    known = get_args(Scope)
    for scope in sorted(scopes):
        if scope not in known:
            raise ConfigurationError(f"scope {scope[:80]!r} is none: use some of {', '.join(known)}")
    if not scopes:
        raise ConfigurationError(
            f"scope is missing: a token without one may do nothing; use some of {', '.join(known)}"
        )


def _check_bounds(agent: str | None, sessions: str | None) -> None:
    if agent == "":
        raise ConfigurationError("agent is empty: name one, or leave it out for a token of all agents")
    if sessions == "":
        raise ConfigurationError("sessions is empty: give a beginning, or leave it out for a token of all sessions")
    if sessions is not None and not ids.is_session(sessions):
        rule = "use 1 to 200 printable characters without spaces or any of {}*?[]\\"
        raise ConfigurationError(f"sessions {sessions[:80]!r} is no beginning of a session id: {rule}")


def _is_ours(stored: dict[bytes, bytes]) -> bool:
    told = stored.get(b"v", b"")
    return told.isdigit() and int(told) <= _VERSION


def _key(identifier: str) -> str:
    return f"lw:token:{identifier}"


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _read(identifier: str, stored: dict[bytes, bytes]) -> Token:
    def told(name: str) -> str:
        return stored.get(name.encode(), b"").decode()

    return Token(
        id=identifier,
        name=told("name"),
        scopes=frozenset(told("scopes").split()),
        agent=told("agent"),
        sessions=told("sessions"),
        created_ms=int(told("created_ms") or 0),
        expires_ms=int(told("expires_ms") or 0),
    )
