"""The bytes of the streams that are measured: one answer of many small deltas in each wire format.

What belongs here: events as the providers send them, with all the fields that nobody reads. What must not be known
here: HTTP, pace, who reads them.
"""

import json
from collections.abc import Iterator

WIRES = ("chat", "responses", "anthropic")
PATHS = {"/chat/completions": "chat", "/responses": "responses", "/messages": "anthropic"}
"""What the path of a request ends in, and the wire format that is spoken there."""

_WORDS = (" the", " stream", " of", " a", " model", " comes", " word", " by", " word", ",", " and", " none", " is lost")


def words(count: int) -> Iterator[str]:
    """The text of the answer, delta by delta."""
    for number in range(count):
        yield _WORDS[number % len(_WORDS)]


def text(count: int) -> str:
    """The text of the whole answer."""
    return "".join(words(count))


def events(wire: str, count: int) -> list[bytes]:
    """The events of an answer of `count` deltas."""
    return list({"chat": _chat, "responses": _responses, "anthropic": _anthropic}[wire](count))


def _event(value: dict[str, object], name: str = "") -> bytes:
    data = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {data}\n\n".encode()


def _chat(count: int) -> Iterator[bytes]:
    def chunk(delta: dict[str, object], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return _event(_chat_chunk([choice]))

    yield chunk({"role": "assistant", "content": "", "refusal": None})
    for word in words(count):
        yield chunk({"content": word})
    yield chunk({}, "stop")
    usage = {"prompt_tokens": 9, "completion_tokens": count, "total_tokens": 9 + count}
    yield _event(_chat_chunk([]) | {"usage": usage})
    yield b"data: [DONE]\n\n"


def _chat_chunk(choices: list[dict[str, object]]) -> dict[str, object]:
    return {
        "id": "chatcmpl-BrX1k9cQwzJ2m4T7uVh8NpLs3DfGy",
        "object": "chat.completion.chunk",
        "created": 1752148231,
        "model": "gpt-4.1-mini-2025-04-14",
        "service_tier": "default",
        "system_fingerprint": "fp_6f2eabb9a5",
        "choices": choices,
        "usage": None,
    }


def _anthropic(count: int) -> Iterator[bytes]:
    message: dict[str, object] = {
        "id": "msg_01XFDUDYJgAACzvnptvVoYEL",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-4-20250514",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 9, "output_tokens": 1},
    }

    def named(name: str, **fields: object) -> bytes:
        return _event({"type": name, **fields}, name)

    yield named("message_start", message=message)
    yield named("content_block_start", index=0, content_block={"type": "text", "text": ""})
    yield named("ping")
    for word in words(count):
        yield named("content_block_delta", index=0, delta={"type": "text_delta", "text": word})
    yield named("content_block_stop", index=0)
    end = {"stop_reason": "end_turn", "stop_sequence": None}
    yield named("message_delta", delta=end, usage={"output_tokens": count})
    yield named("message_stop")


def _responses(count: int) -> Iterator[bytes]:
    item_id, numbers = "msg_68a1b2c3d4e5f60718293a4b5c6d7e8f", iter(range(count + 20))

    def named(name: str, **fields: object) -> bytes:
        return _event({"type": name, "sequence_number": next(numbers), **fields}, name)

    def response(status: str, **fields: object) -> dict[str, object]:
        return {
            "id": "resp_68a1b2c3d4e5f60718293a4b5c6d7e8e",
            "object": "response",
            "created_at": 1752148231,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "metadata": {},
            "model": "gpt-4.1-mini-2025-04-14",
            "output": [],
            "parallel_tool_calls": True,
            "temperature": 1.0,
            "tool_choice": "auto",
            "tools": [],
            "top_p": 1.0,
            "usage": None,
            **fields,
        }

    def item(status: str, content: list[dict[str, object]]) -> dict[str, object]:
        return {"id": item_id, "type": "message", "status": status, "role": "assistant", "content": content}

    place: dict[str, object] = {"item_id": item_id, "output_index": 0, "content_index": 0}
    empty: dict[str, object] = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    yield named("response.created", response=response("in_progress"))
    yield named("response.in_progress", response=response("in_progress"))
    yield named("response.output_item.added", output_index=0, item=item("in_progress", []))
    yield named("response.content_part.added", **place, part=empty)
    for word in words(count):
        yield named("response.output_text.delta", **place, delta=word, logprobs=[])
    whole = text(count)
    part = empty | {"text": whole}
    yield named("response.output_text.done", **place, text=whole, logprobs=[])
    yield named("response.content_part.done", **place, part=part)
    done = item("completed", [part])
    yield named("response.output_item.done", output_index=0, item=done)
    usage = {
        "input_tokens": 9,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": count,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 9 + count,
    }
    yield named("response.completed", response=response("completed", output=[done], usage=usage))
