"""The Chat Completions wire format: OpenAI's, as OpenAI and the many servers that copy it really send it.

What belongs here: the request, and how its answer is decoded. What must not be known here: HTTP, time, retries, turns;
how events are framed (`framing`), what a chunk adds to the answer (`chat_answer`).
"""

import re

from worker.codecs.call_identity import SentCalls
from worker.codecs.chat_answer import ChatAnswer
from worker.codecs.codec import EncodedRequest
from worker.codecs.events import ToolCall
from worker.codecs.framing import FramedDecoder
from worker.codecs.limits import DEFAULT_LIMITS, Profile, StreamLimits
from worker.codecs.messages import AssistantMessage, Message, Request, ToolMessage, ToolSpec, UserMessage
from worker.codecs.request_body import encoded

_IDS = re.compile(r".{1,40}", re.DOTALL)
_LONGEST_NAME = 64
"""OpenAI refuses longer ones in its whole history, and the servers that copy it take what OpenAI takes."""


class ChatCodec:
    """The codec of the Chat Completions format. `limits` and `profile` hold for each answer."""

    wire = "chat"

    def __init__(self, limits: StreamLimits = DEFAULT_LIMITS, profile: Profile = "compat") -> None:
        self._limits = limits
        self._profile = profile

    def authorization(self, key: str) -> dict[str, str]:
        """The header that carries the provider's key."""
        return {"Authorization": f"Bearer {key}"}

    def encode(self, request: Request) -> EncodedRequest:
        """The request that asks for a streamed answer. A null in `extra_body` takes its key out of the body."""
        body: dict[str, object] = {
            "model": request.model,
            "messages": _messages(request),
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if request.tools:
            body["tools"] = [_tool(tool) for tool in request.tools]
        if request.max_tokens is not None:
            body["max_tokens"] = request.max_tokens
        if request.temperature is not None:
            body["temperature"] = request.temperature
        return encoded("/chat/completions", body, request.extra_body, {})

    def decoder(self) -> FramedDecoder:
        """A decoder for the answer to one attempt."""
        return FramedDecoder(ChatAnswer(self._limits, self._profile), self._limits, self._profile)


def _messages(request: Request) -> list[dict[str, object]]:
    sent = SentCalls(longest_name=_LONGEST_NAME, ids=_IDS, prefix="call_")
    messages = [_message(message, sent) for message in request.messages]
    if request.instructions is not None:
        messages.insert(0, {"role": "system", "content": request.instructions})
    return messages


def _message(message: Message, sent: SentCalls) -> dict[str, object]:
    match message:
        case UserMessage(text):
            return {"role": "user", "content": text}
        case ToolMessage(tool_call_id=tool_call_id, text=text):
            return {"role": "tool", "tool_call_id": sent.id_of_result(tool_call_id), "content": text}
        case AssistantMessage(text, ()):
            return {"role": "assistant", "content": text}
        case AssistantMessage(text, tool_calls):
            sent.begin_answer()
            return {
                "role": "assistant",
                "content": text or None,
                "tool_calls": [_tool_call(call, sent) for call in tool_calls],
            }


def _tool_call(call: ToolCall, sent: SentCalls) -> dict[str, object]:
    # Servers parse the arguments of the history: what the model left broken or empty must not break the next call.
    arguments = call.arguments if call.arguments_json else "{}"
    function = {"name": sent.name(call.name), "arguments": arguments}
    return {"id": sent.id_of_call(call.id), "type": "function", "function": function}


def _tool(tool: ToolSpec) -> dict[str, object]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}
