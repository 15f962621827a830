"""What a streamed answer says, read in the plainest way and without the code under test: a second opinion for judges.

What belongs here: the three wire formats as their documents have them, and what llama-server, llmock and aimock do
otherwise. It knows no profiles, no limits and no repairs.
"""

import json
import re
from dataclasses import dataclass, field
from typing import Any

_BLANK_LINE = re.compile(rb"\r\n\r\n|\n\n|\r\r")


@dataclass(slots=True)
class Plain:
    """`finish`: the provider's own word. `complete`: the wire format's end was seen. `error`: what was sent as one.

    `broken`: a line was no JSON; nothing after it was read.
    """

    text: str = ""
    reasoning: str = ""
    tool_calls: list[dict[str, str]] = field(default_factory=list)
    finish: str | None = None
    usage: dict[str, Any] | None = None
    error: Any = None
    complete: bool = False
    broken: bool = False
    signatures: list[str] = field(default_factory=list)


def read(wire: str, body: bytes) -> Plain:
    """What the body of an answer says; it may break off anywhere."""
    plain = Plain()
    take = {"chat": _take_chat, "responses": _take_response, "anthropic": _take_message}[wire]
    places: dict[Any, Any] = {}
    for name, data, is_whole in _events(body):
        if data == b"[DONE]":
            plain.complete = plain.complete or wire == "chat"
            continue
        try:
            fields = json.loads(data)
        except ValueError:
            plain.broken = is_whole
            break
        take(plain, places, name, fields)
    return plain


def body_of(answer: bytes | bytearray) -> bytes:
    """The body of a recorded HTTP/1.1 answer that came in chunks, as far as it came."""
    head, _, rest = bytes(answer).partition(b"\r\n\r\n")
    if b"transfer-encoding: chunked" not in head.lower():
        return rest
    body = b""
    while match := re.match(rb"([0-9a-fA-F]+)[^\r\n]*\r\n", rest):
        size = int(match[1], 16)
        body += rest[match.end() : match.end() + size]
        rest = rest[match.end() + size + 2 :]
    return body


def _events(body: bytes) -> list[tuple[str, bytes, bool]]:
    """(event name, data, whether its blank line came) of each event."""
    found = []
    *whole, rest = _BLANK_LINE.split(body)
    for event, is_whole in [*((each, True) for each in whole), (rest, False)]:
        lines = event.splitlines()
        data = b"\n".join(line[5:].strip() for line in lines if line.startswith(b"data:"))
        name = next((line[6:].strip().decode() for line in lines if line.startswith(b"event:")), "")
        if data:
            found.append((name, data, is_whole))
    return found


def _take_chat(plain: Plain, _: dict[Any, Any], name: str, chunk: dict[str, Any]) -> None:
    if chunk.get("error") or name == "error":
        plain.error = chunk.get("error") or chunk
    plain.usage = chunk.get("usage") or plain.usage
    for choice in (choice for choice in chunk.get("choices") or () if not choice.get("index")):
        delta = choice.get("delta") or {}
        plain.text += delta.get("content") or ""
        plain.reasoning += delta.get("reasoning_content") or delta.get("reasoning") or ""
        for piece in delta.get("tool_calls") or ():
            function = piece.get("function") or {}
            if piece["index"] == len(plain.tool_calls):
                plain.tool_calls.append({"id": piece["id"], "name": function["name"], "arguments": ""})
            plain.tool_calls[piece["index"]]["arguments"] += function.get("arguments") or ""
        plain.finish = choice.get("finish_reason") or plain.finish
    plain.complete = plain.complete or plain.finish is not None


def _take_response(plain: Plain, calls: dict[Any, Any], name: str, event: dict[str, Any]) -> None:
    kind = event.get("type") or name
    match kind:
        case "response.output_text.delta":
            plain.text += event["delta"]
        case "response.reasoning_text.delta" | "response.reasoning_summary_text.delta":
            plain.reasoning += event["delta"]
        case "response.output_item.added" if event["item"]["type"] == "function_call":
            item = event["item"]
            call = {"id": item["call_id"], "name": item["name"], "arguments": item.get("arguments") or ""}
            calls[event.get("output_index", item.get("id"))] = call
            plain.tool_calls.append(call)
        case "response.function_call_arguments.delta":
            calls[event.get("output_index", event.get("item_id"))]["arguments"] += event["delta"]
        case "response.output_item.done" if event["item"]["type"] == "reasoning":
            plain.signatures.append(event["item"].get("encrypted_content") or "")
        case "response.completed" | "response.incomplete":
            response = event["response"]
            plain.finish = (response.get("incomplete_details") or {}).get("reason") or response["status"]
            plain.usage = response.get("usage")
            plain.complete = True
        case "response.failed":
            plain.error = plain.error or event["response"]["error"]
        case _ if kind == "error" or event.get("error"):
            plain.error = event.get("error") or event


def _take_message(plain: Plain, blocks: dict[Any, Any], name: str, event: dict[str, Any]) -> None:
    match event.get("type") or name:
        case "message_start":
            plain.usage = {**event["message"].get("usage", {})}
        case "content_block_start" if event["content_block"]["type"] == "tool_use":
            block = event["content_block"]
            blocks[event["index"]] = {"id": block["id"], "name": block["name"], "arguments": ""}
            plain.tool_calls.append(blocks[event["index"]])
        case "content_block_delta":
            delta = event["delta"]
            plain.text += delta.get("text", "")
            plain.reasoning += delta.get("thinking", "")
            if delta["type"] == "input_json_delta":
                blocks[event["index"]]["arguments"] += delta["partial_json"]
            if delta["type"] == "signature_delta":
                plain.signatures.append(delta["signature"])
        case "message_delta":
            plain.finish = event["delta"].get("stop_reason") or plain.finish
            plain.usage = {**(plain.usage or {}), **(event.get("usage") or {})}
        case "message_stop":
            plain.complete = True
        case _ if name == "error" or event.get("type") == "error":
            plain.error = event.get("error") or event
