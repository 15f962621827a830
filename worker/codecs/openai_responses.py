"""The Responses wire format: OpenAI's, as OpenAI and the servers that copy it really send it.

What belongs here: the request's body. What must not be known here: HTTP, time, retries, turns; how an answer is framed
(`framing`) and what it says (`responses_answer`).

Nothing is stored at the provider: each request holds the whole conversation, and the reasoning that the provider
encrypted goes back to it with the items around it.
"""

import orjson

from worker.codecs.codec import EncodedRequest
from worker.codecs.events import ToolCall
from worker.codecs.framing import FramedDecoder
from worker.codecs.limits import DEFAULT_LIMITS, Profile, StreamLimits
from worker.codecs.messages import AssistantMessage, Message, Request, ToolMessage, ToolSpec, UserMessage
from worker.codecs.responses_answer import ResponsesAnswer
from worker.codecs.responses_parts import CUSTOM, FUNCTION
from worker.codecs.toolargs import parse_arguments

_NO_ARGUMENTS = "{}"


class ResponsesCodec:
    """The codec of the Responses format. `limits` hold for each answer, `profile` for how strictly it is read."""

    wire = "responses"

    def __init__(self, limits: StreamLimits = DEFAULT_LIMITS, profile: Profile = "compat") -> None:
        self._limits = limits
        self._profile = profile

    def authorization(self, key: str) -> dict[str, str]:
        """The header that carries the provider's key."""
        return {"authorization": f"Bearer {key}"}

    def encode(self, request: Request) -> EncodedRequest:
        """The request that asks for a streamed answer. A null in `extra_body` takes its key out of the body."""
        body: dict[str, object] = {
            "model": request.model,
            "input": _input(request.messages),
            "stream": True,
            "store": False,
            "include": ["reasoning.encrypted_content"],
            "instructions": request.instructions,
            "tools": [_tool(tool) for tool in request.tools] or None,
            "max_output_tokens": request.max_tokens,
            "temperature": request.temperature,
        }
        body |= request.extra_body
        sent = {key: value for key, value in body.items() if value is not None}
        headers = {"content-type": "application/json", "accept": "text/event-stream"}
        return EncodedRequest("/responses", orjson.dumps(sent), headers)

    def decoder(self) -> FramedDecoder:
        """A decoder for the answer to one attempt."""
        return FramedDecoder(ResponsesAnswer(self._limits, self._profile), self._limits, self._profile)


def _input(messages: tuple[Message, ...]) -> list[dict[str, object]]:
    items: list[dict[str, object]] = []
    custom: set[object] = set()
    for message in messages:
        match message:
            case UserMessage(text):
                items.append({"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]})
            case AssistantMessage():
                answer = _answer(message)
                custom |= {item.get("call_id") for item in answer if item.get("type") == CUSTOM}
                items += answer
            case ToolMessage(tool_call_id=call_id, text=text):
                kind = CUSTOM if call_id in custom else FUNCTION
                items.append({"type": f"{kind}_output", "call_id": call_id, "output": text})
    return items


def _answer(message: AssistantMessage) -> list[dict[str, object]]:
    if message.echo is not None and message.echo.wire == ResponsesCodec.wire:
        return [_echoed(item) for item in message.echo.items]
    items: list[dict[str, object]] = []
    if message.text:
        content = [{"type": "output_text", "text": message.text}]
        items.append({"type": "message", "role": "assistant", "content": content})
    return items + [_tool_call(call) for call in message.tool_calls]


def _tool_call(call: ToolCall) -> dict[str, object]:
    # Servers parse the arguments of the history: what the model left broken or empty must not break the next call.
    arguments = call.arguments if call.arguments_json else _NO_ARGUMENTS
    return {"type": FUNCTION, "call_id": call.id, "name": call.name, "arguments": arguments}


def _echoed(item: dict[str, object]) -> dict[str, object]:
    arguments = item.get("arguments")
    broken = isinstance(arguments, str) and not parse_arguments(arguments)
    return {**item, "arguments": _NO_ARGUMENTS} if broken and item.get("type") == FUNCTION else item


def _tool(tool: ToolSpec) -> dict[str, object]:
    return {"type": "function", "name": tool.name, "description": tool.description, "parameters": tool.parameters}
