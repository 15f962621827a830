"""The journal: the committed facts of a turn, in the form in which they are stored.

What belongs here: facts to JSON and back, and the messages that a session remembers. What must not be known here: who
drives a turn, when a fact is written (the scripts write it in the step that makes it true).

A fact is one JSON object with its `kind`. The text of a call is not in it: it stands once in the turn's text, and the
fact refers to it by offset and length in UTF-8 bytes. Of a tool call's arguments it holds the text that the model sent;
what they parse to is found out again by whoever reads. The version of all facts is the `v` of the turn record, so that
a worker leaves a journal that it cannot read before it claims the turn.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import redis.asyncio

from worker import ids
from worker.codecs.events import ToolCall, Usage
from worker.codecs.messages import Echo, Message
from worker.codecs.toolargs import parse_arguments
from worker.errors import StoreError
from worker.store import keys
from worker.turn.commands import Failure
from worker.turn.facts import (
    ApprovalAsked,
    ApprovalDecided,
    Committed,
    Compacted,
    Fact,
    Joined,
    ToolEnded,
    ToolStarted,
)
from worker.turn.transcript import with_turn
from worker.turn.usage import NO_USAGE, UsageTotals

_KINDS: dict[str, type[ToolStarted | ToolEnded | ApprovalAsked | ApprovalDecided | Compacted | Joined]] = {
    "tool_started": ToolStarted,
    "tool_ended": ToolEnded,
    "approval_asked": ApprovalAsked,
    "approval_decided": ApprovalDecided,
    "compacted": Compacted,
    "joined": Joined,
}
"""Of each stored kind but `committed`, whose text is elsewhere, the fact that it is."""

_ECHO_DEPTH = 100
"""Levels of nesting in what a provider wants back; a handful is usual."""


def encode_committed(fact: Committed, offset: int, length: int) -> str:
    """The stored form of a completed call whose text stands at `offset` in the turn's text."""
    return json.dumps(
        {
            "kind": "committed",
            "call": fact.call,
            "attempt": fact.attempt,
            "offset": offset,
            "length": length,
            "tool_calls": [_encode_tool_call(tool_call) for tool_call in fact.tool_calls],
            "finish_reason": fact.finish_reason,
            "usage": None if fact.usage is None else asdict(fact.usage),
            "provider": fact.provider,
            "echo": None if fact.echo is None else _encode_echo(fact.echo),
        }
    )


def encode_fact(fact: ToolStarted | ToolEnded | ApprovalAsked | Compacted | Joined) -> str:
    """The stored form of what happened between two calls. A decision is made by its script."""
    kind = next(kind for kind, made in _KINDS.items() if made is type(fact))
    return json.dumps({"kind": kind, **asdict(fact)})


def encode_decision(option: str, by: str) -> str:
    """What a person adds to the fact of a decision, as one word: replies of verbs are stored as words."""
    stored = json.dumps({"option": option, "by": by}, separators=(",", ":"))
    return stored.replace(" ", "\\u0020")  # between quotation marks is the only place where a blank can stand


def decode_decided(entry: bytes) -> ApprovalDecided:
    """Read the fact of a decision. Raises `StoreError`."""
    fact = _decode(entry, b"")
    if not isinstance(fact, ApprovalDecided):
        raise StoreError("a decision is stored as another fact")
    return fact


def decode_facts(entries: Sequence[bytes], text: bytes) -> tuple[Fact, ...]:
    """Read a journal against the turn's committed text. Raises `StoreError` for what is no fact."""
    return tuple(_decode(entry, text) for entry in entries)


def encode_totals(totals: UsageTotals) -> str:
    """The stored form of a turn's totals; what is null is left out."""
    return json.dumps({name: value for name, value in asdict(totals).items() if value is not None})


def decode_totals(stored: bytes) -> UsageTotals:
    """Read totals; a field that this version does not know is left aside."""
    known: dict[str, Any] = asdict(NO_USAGE)
    return UsageTotals(**{name: value for name, value in json.loads(stored).items() if name in known})


def encode_failure(failure: Failure | None) -> str:
    """The stored form of a turn's failure; empty when it had none."""
    return "" if failure is None else json.dumps(asdict(failure))


def decode_failure(stored: bytes) -> Failure | None:
    """Read a failure back."""
    return Failure(**json.loads(stored)) if stored else None


async def history(
    redis: redis.asyncio.Redis, session: str, before_turn: str, limit: int, partitions: int
) -> tuple[Message, ...]:
    """What a session's last `limit` sealed turns before `before_turn` said, oldest first.

    A turn whose time to be kept is over is forgotten whole. A message that joined another turn is told there, also
    where its own turn was cancelled meanwhile.
    """
    if limit <= 0:
        return ()
    name = keys.history(ids.partition_of_session(session, partitions), session)
    stored: Any = await redis.lrange(name, -limit, -1)
    turns = [turn.decode() for turn in stored]
    if before_turn in turns:
        turns = turns[: turns.index(before_turn)]
    pipeline = redis.pipeline(transaction=False)
    for turn in turns:
        pipeline.hget(keys.turn_record(turn), "message")
        pipeline.lrange(keys.journal(turn), 0, -1)
        pipeline.get(keys.text(turn))
    answers = iter(await pipeline.execute())
    told = [
        (turn, message.decode(), decode_facts(entries, text or b""))
        for turn, message, entries, text in zip(turns, answers, answers, answers, strict=True)
        if message is not None
    ]
    joined = {fact.turn for _, _, facts in told for fact in facts if isinstance(fact, Joined)}
    messages: tuple[Message, ...] = ()
    for turn, message, facts in told:
        if turn not in joined:
            messages = with_turn(messages, message, facts)
    return messages


def _encode_echo(echo: Echo) -> dict[str, Any] | None:
    """Nothing of items that no JSON reader may be able to read again: the conversation goes on without them."""
    level: list[object] = list(echo.items)
    for _ in range(_ECHO_DEPTH):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return {"provider": echo.provider, "wire": echo.wire, "items": echo.items}
    return None


def _encode_tool_call(tool_call: ToolCall) -> dict[str, object]:
    stored: dict[str, object] = {"id": tool_call.id, "name": tool_call.name, "arguments": tool_call.arguments}
    if tool_call.arguments_json is None and parse_arguments(tool_call.arguments) is not None:
        stored["is_cut"] = True  # the text would parse, but its provider never said that it is whole
    return stored


def _tool_call(id: str, name: str, arguments: str, *, is_cut: bool = False) -> ToolCall:  # noqa: A002 - the stored name
    return ToolCall(id, name, arguments, None if is_cut else parse_arguments(arguments))


def _decode(entry: bytes, text: bytes) -> Fact:
    try:
        stored = json.loads(entry)
        kind = stored.pop("kind")
        if kind == "committed":
            return _committed(stored, text)
        if kind not in _KINDS:
            raise StoreError(f"the journal holds a fact of kind {kind!r}, which this version does not know")
        return _KINDS[kind](**stored)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreError(f"the journal holds what is no fact: {type(error).__name__}") from error


def _committed(stored: dict[str, Any], text: bytes) -> Committed:
    start, end = stored["offset"], stored["offset"] + stored["length"]
    if end > len(text):
        raise StoreError(f"the journal refers to {end} bytes of text, but {len(text)} are stored")
    return Committed(
        call=stored["call"],
        attempt=stored["attempt"],
        text=text[start:end].decode(),
        tool_calls=tuple(_tool_call(**tool_call) for tool_call in stored["tool_calls"]),
        finish_reason=stored["finish_reason"],
        usage=None if stored["usage"] is None else Usage(**stored["usage"]),
        provider=stored.get("provider", ""),
        echo=_echo(stored.get("echo")),
    )


def _echo(stored: dict[str, Any] | None) -> Echo | None:
    return None if stored is None else Echo(stored["provider"], stored["wire"], tuple(stored["items"]))
