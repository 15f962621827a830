"""What a request shows of the turn that it belongs to: the model's answers so far, and the results of their tools.

What belongs here: reading the three wire formats' requests, behind their last user message. What must not be known
here: files, what is right.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Answer:
    """One answer of the model as a request shows it. `calls`: ids of its tool calls. `results`: by the same ids."""

    text: str = ""
    calls: list[str] = field(default_factory=list)
    results: dict[str, str] = field(default_factory=dict)


def turns_of(wire: str, request: dict[str, Any]) -> list[list[Answer]]:
    """The answers behind each user message. The first list: before any, so it is empty."""
    turns: list[list[Answer]] = [[]]
    is_answer = False
    for kind, key, text in _READERS[wire](request):
        if kind == "user":
            turns.append([])
        elif kind == "result":
            turns[-1][-1].results[key] = text
        else:
            if not is_answer:
                turns[-1].append(Answer())
            answer = turns[-1][-1]
            answer.text += text
            answer.calls += [key] if kind == "call" else []
        is_answer = kind in {"text", "call"}
    return turns


_Parts = Iterator[tuple[str, str, str]]
"""(kind, key, text): `user`, `text` of the model, `call` with its id, `result` with the id of its call."""


def _of_chat(request: dict[str, Any]) -> _Parts:
    for message in request["messages"]:
        text = _joined(message.get("content"))
        match message["role"]:
            case "user":
                yield "user", "", text
            case "tool":
                yield "result", message["tool_call_id"], text
            case "assistant":
                yield "text", "", text
                for call in message.get("tool_calls") or ():
                    yield "call", call["id"], ""


def _of_responses(request: dict[str, Any]) -> _Parts:
    for item in request["input"]:
        match item.get("type", "message"):
            case "message":
                role = item["role"]
                if role in {"user", "assistant"}:
                    yield "user" if role == "user" else "text", "", _joined(item["content"])
            case "function_call":
                yield "call", item["call_id"], ""
            case "function_call_output":
                yield "result", item["call_id"], _joined(item["output"])


def _of_anthropic(request: dict[str, Any]) -> _Parts:
    for message in request["messages"]:
        content, said = message["content"], "user" if message["role"] == "user" else "text"
        for block in [{"type": "text", "text": content}] if isinstance(content, str) else content:
            match block["type"]:
                case "text":
                    yield said, "", block["text"]
                case "tool_use":
                    yield "call", block["id"], ""
                case "tool_result":
                    yield "result", block["tool_use_id"], _joined(block.get("content"))


_READERS = {"chat": _of_chat, "responses": _of_responses, "anthropic": _of_anthropic}


def _joined(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part.get("text") or "" for part in content)
