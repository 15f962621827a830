"""Anthropic's Messages, as the stand-in provider reads them.

What belongs here: requests and refusals. What must not be known here: scripts, HTTP, time, events (`anthropic_answer`).
"""

import re
from collections.abc import Mapping

import orjson

from channels.rehearsal.asked import Asked, Said, ToolPairs
from channels.rehearsal.signatures import is_forged
from channels.rehearsal.wire import JsonObject, Question, RequestRefused
from channels.rehearsal.wires.anthropic_answer import AnthropicAnswer

_TOOL_CALL_ID = re.compile(r"[a-zA-Z0-9_-]+")
_LONGEST_TOOL_NAME = 128
_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}


class AnthropicWire:
    """The wire format `anthropic`."""

    name = "anthropic"
    path = "messages"
    call_id_prefix = "toolu_"

    def question(self, asked: JsonObject, headers: Mapping[str, str]) -> Question:
        """Read and check a request."""
        if not headers.get("anthropic-version"):
            raise RequestRefused("anthropic-version: header is required")
        fields = Asked(asked)
        fields.must_stream()
        fields.whole_number("max_tokens", required=True)
        said, pairs = Said(), ToolPairs()
        _read_system(fields, said)
        messages = fields.parts("messages")
        if messages and messages[0].get("role") != "user":
            messages[0].refuse("role", "the first message must be of role user")
        for message in messages:
            _read_message(message, said, pairs)
        pairs.all_answered()
        tools = fields.parts("tools")
        for tool in tools:
            tool.part("input_schema").one_of("type", "object")
        fields.tool_names(tools, _LONGEST_TOOL_NAME)
        model = fields.text("model", may_be_empty=False)
        return Question(model, said.prompt("messages"), said.words, said.message, said.answers)

    def answer(self, number: int, question: Question, usage: JsonObject) -> AnthropicAnswer:
        """A new answer."""
        return AnthropicAnswer(number, question.model, usage)

    def refusal(self, status: int, message: str, code: str | None) -> bytes:
        """The body of an error status."""
        del code
        kind = _KINDS.get(status, "invalid_request_error" if status < 500 else "api_error")
        return orjson.dumps({"type": "error", "error": {"type": kind, "message": message}})


def _read_system(fields: Asked, said: Said) -> None:
    system = fields.get("system")
    if isinstance(system, list):
        for block in fields.parts("system"):
            said.take("system", block.text("text", may_be_empty=False))
    elif system is not None:
        said.take("system", fields.text("system"))


def _read_message(message: Asked, said: Said, pairs: ToolPairs) -> None:
    role = message.one_of("role", "user", "assistant")
    if not isinstance(message.get("content"), list):
        pairs.all_answered()
        said.take(role, message.text("content", may_be_empty=False))
        return
    blocks = message.parts("content")
    if not blocks:
        message.refuse("content", "must not be empty")
    for block in blocks:
        if block.get("type") != "tool_result":
            break
        if role != "user":
            block.refuse("type", "a tool_result belongs to a message of role user")
        pairs.result(block.text("tool_use_id"), block.place)
        said.take("tool", _result(block))
    pairs.all_answered()
    if role == "assistant":
        said.answer()
    texts = [_read_block(block, role, pairs) for block in blocks if block.get("type") != "tool_result"]
    for text in texts:  # a client joins messages of one role; the first block is what its first message said
        if text is not None:
            said.take(role, text)
    results = [block for block in blocks if block.get("type") == "tool_result"]
    if results != blocks[: len(results)]:
        message.refuse("content", "tool_result blocks must come first")


def _result(block: Asked) -> str:
    content = block.get("content")
    if isinstance(content, list):
        return "".join(part.text("text") for part in block.parts("content") if part.get("type") == "text")
    return "" if content is None else block.text("content")


def _read_block(block: Asked, role: str, pairs: ToolPairs) -> str | None:
    """The text of a block that is text."""
    kind = block.text("type")
    if kind == "text":
        return block.text("text", may_be_empty=False)
    if kind in {"tool_use", "thinking", "redacted_thinking"} and role != "assistant":
        block.refuse("type", f"{kind} belongs to a message of role assistant")
    if kind == "tool_use":
        call_id = block.text("id")
        if not _TOOL_CALL_ID.fullmatch(call_id):
            block.refuse("id", f"must match {_TOOL_CALL_ID.pattern}; it is {call_id!r}")
        block.text("name", may_be_empty=False)
        block.part("input")
        pairs.call(call_id, block.place)
    elif kind == "thinking" and is_forged(block.text("signature"), block.text("thinking")):
        block.refuse("signature", "is not that of this thinking")
    return None
