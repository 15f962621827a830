"""The Messages wire format: Anthropic's, and that of the servers that copy it.

What belongs here: the request, and how its answer is decoded. What must not be known here: HTTP, time, retries, turns;
how events are framed (`framing`), what an event adds to the answer (`anthropic_answer`).
"""

import re
from collections.abc import Iterator

from worker.codecs.anthropic_answer import MessageAnswer
from worker.codecs.call_identity import SentCalls
from worker.codecs.codec import EncodedRequest
from worker.codecs.events import ToolCall
from worker.codecs.framing import FramedDecoder
from worker.codecs.limits import DEFAULT_LIMITS, Profile, StreamLimits
from worker.codecs.messages import AssistantMessage, Message, Request, ToolMessage, ToolSpec, UserMessage
from worker.codecs.request_body import encoded

MAX_TOKENS = 4096
"""Tokens that an answer may have where the agent says nothing: this format takes no request without a number."""

_VERSION = "2023-06-01"
_IDS = re.compile(r"[a-zA-Z0-9_-]+")
_LONGEST_NAME = 128
_NO_WORDS = "(empty)"
"""Stands for a message of white space alone, which this format refuses."""

_Block = dict[str, object]


class AnthropicCodec:
    """The codec of the Messages format. `limits` and `profile` hold for each answer."""

    wire = "anthropic"

    def __init__(self, limits: StreamLimits = DEFAULT_LIMITS, profile: Profile = "compat") -> None:
        self._limits = limits
        self._profile = profile

    def authorization(self, key: str) -> dict[str, str]:
        """The header that carries the provider's key."""
        return {"x-api-key": key}

    def encode(self, request: Request) -> EncodedRequest:
        """The request that asks for a streamed answer. A null in `extra_body` takes its key out of the body."""
        body: dict[str, object] = {
            "model": request.model,
            "messages": _messages(request.messages),
            "max_tokens": MAX_TOKENS if request.max_tokens is None else request.max_tokens,
            "stream": True,
        }
        if request.instructions is not None and request.instructions.strip():
            body["system"] = request.instructions
        if request.tools:
            body["tools"] = [_tool(tool) for tool in request.tools]
        if request.temperature is not None:
            body["temperature"] = request.temperature
        return encoded("/messages", body, request.extra_body, {"anthropic-version": _VERSION})

    def decoder(self) -> FramedDecoder:
        """A decoder for the answer to one attempt."""
        return FramedDecoder(MessageAnswer(self._limits, self._profile), self._limits, self._profile)


def _messages(messages: tuple[Message, ...]) -> list[_Block]:
    """The conversation as turns of both sides: what one side says in a row is one message.

    In a user's message the results of tools come first, as the assistant's message before it asked for them.
    """
    sent = SentCalls(longest_name=_LONGEST_NAME, ids=_IDS, prefix="toolu_")
    turns: list[tuple[str, list[_Block]]] = []
    for message in messages:
        role, blocks = ("assistant" if isinstance(message, AssistantMessage) else "user"), list(_blocks(message, sent))
        if turns and turns[-1][0] == role:
            turns[-1][1].extend(blocks)
        elif blocks:
            turns.append((role, blocks))
    return [
        {"role": role, "content": sorted(blocks, key=lambda block: role == "user" and block["type"] != "tool_result")}
        for role, blocks in turns
    ]


def _blocks(message: Message, sent: SentCalls) -> Iterator[_Block]:
    if isinstance(message, AssistantMessage):
        sent.begin_answer()
    match message:
        case UserMessage(text):
            yield {"type": "text", "text": text if text.strip() else _NO_WORDS}
        case ToolMessage(tool_call_id=tool_call_id, text=text):
            result: _Block = {"type": "tool_result", "tool_use_id": sent.id_of_result(tool_call_id)}
            yield result | ({"content": text} if text.strip() else {})
        case AssistantMessage(echo=echo) if echo is not None and echo.wire == AnthropicCodec.wire:
            for item in echo.items:
                if item.get("type") == "tool_use":
                    called = {
                        "id": sent.id_of_call(str(item.get("id"))),
                        "name": sent.name(str(item.get("name") or "")),
                    }
                    yield {**item, **called}
                else:
                    yield item
        case AssistantMessage(text, tool_calls):
            if text.strip():
                yield {"type": "text", "text": text}
            for call in tool_calls:
                yield _tool_use(call, sent)


def _tool_use(call: ToolCall, sent: SentCalls) -> _Block:
    called = {"id": sent.id_of_call(call.id), "name": sent.name(call.name)}
    return {"type": "tool_use", **called, "input": call.arguments_json or {}}


def _tool(tool: ToolSpec) -> _Block:
    described = {"description": tool.description} if tool.description.strip() else {}
    return {"name": tool.name, **described, "input_schema": {"type": "object", **tool.parameters}}
