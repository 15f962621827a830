"""The Responses wire format: OpenAI's, as OpenAI and the servers that copy it really send it.

What belongs here: the request's body. What must not be known here: HTTP, time, retries, turns; how an answer is framed
(`framing`) and what it says (`responses_answer`).

Nothing is stored at the provider: each request holds the whole conversation, and the reasoning that the provider
encrypted goes back to it with the items around it. It encrypts reasoning only when asked to, and models that do not
reason refuse to be asked: set `include = ["reasoning.encrypted_content"]` in `extra_body` for one that does.
"""

import re

from worker.codecs.call_identity import SentCalls
from worker.codecs.codec import EncodedRequest
from worker.codecs.events import ToolCall
from worker.codecs.framing import FramedDecoder
from worker.codecs.limits import DEFAULT_LIMITS, Profile, StreamLimits
from worker.codecs.messages import AssistantMessage, Message, Request, ToolMessage, ToolSpec, UserMessage
from worker.codecs.request_body import encoded
from worker.codecs.responses_answer import ResponsesAnswer
from worker.codecs.responses_parts import CALLS, CUSTOM, FUNCTION
from worker.codecs.toolargs import parse_arguments

_NO_ARGUMENTS = "{}"
_IDS = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_LONGEST_NAME = 64


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
            "instructions": request.instructions,
            "tools": [_tool(tool) for tool in request.tools] or None,
            "max_output_tokens": request.max_tokens,
            "temperature": request.temperature,
        }
        return encoded("/responses", body, request.extra_body, {})

    def decoder(self) -> FramedDecoder:
        """A decoder for the answer to one attempt."""
        return FramedDecoder(ResponsesAnswer(self._limits, self._profile), self._limits, self._profile)


def _input(messages: tuple[Message, ...]) -> list[dict[str, object]]:
    items: list[dict[str, object]] = []
    sent = SentCalls(longest_name=_LONGEST_NAME, ids=_IDS, prefix="call_")
    custom: set[object] = set()
    for message in messages:
        match message:
            case UserMessage(text):
                items.append({"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]})
            case AssistantMessage():
                answer = _answer(message, sent)
                custom |= {item.get("call_id") for item in answer if item.get("type") == CUSTOM}
                items += answer
            case ToolMessage(tool_call_id=call_id, text=text):
                call_id = sent.id_of_result(call_id)
                kind = CUSTOM if call_id in custom else FUNCTION
                items.append({"type": f"{kind}_output", "call_id": call_id, "output": text})
    return items


def _answer(message: AssistantMessage, sent: SentCalls) -> list[dict[str, object]]:
    sent.begin_answer()
    if message.echo is not None and message.echo.wire == ResponsesCodec.wire:
        return [_echoed(item, sent) for item in message.echo.items]
    items: list[dict[str, object]] = []
    if message.text:
        content = [{"type": "output_text", "text": message.text}]
        items.append({"type": "message", "role": "assistant", "content": content})
    return items + [_tool_call(call, sent) for call in message.tool_calls]


def _tool_call(call: ToolCall, sent: SentCalls) -> dict[str, object]:
    # Servers parse the arguments of the history: what the model left broken or empty must not break the next call.
    arguments = call.arguments if call.arguments_json else _NO_ARGUMENTS
    return {
        "type": FUNCTION,
        "call_id": sent.id_of_call(call.id),
        "name": sent.name(call.name),
        "arguments": arguments,
    }


def _echoed(item: dict[str, object], sent: SentCalls) -> dict[str, object]:
    if item.get("type") not in CALLS:
        return item
    call_id, arguments = item.get("call_id") or item.get("id") or "", item.get("arguments")
    echoed = {**item, "call_id": sent.id_of_call(str(call_id)), "name": sent.name(str(item.get("name") or ""))}
    broken = isinstance(arguments, str) and not parse_arguments(arguments)
    return {**echoed, "arguments": _NO_ARGUMENTS} if broken and item.get("type") == FUNCTION else echoed


def _tool(tool: ToolSpec) -> dict[str, object]:
    return {"type": "function", "name": tool.name, "description": tool.description, "parameters": tool.parameters}
