"""OpenAI's Chat Completions, as the stand-in provider reads and sends it.

What belongs here: requests, refusals, chunks. What must not be known here: scripts, HTTP, time.
"""

from collections.abc import Mapping

import orjson

from channels.rehearsal.asked import Asked, Said, ToolPairs
from channels.rehearsal.wire import JsonObject, Question, comment, framed

_ROLES = ("system", "developer", "user", "assistant", "tool")
LONGEST_TOOL_NAME = 64
_END_MARK = b"data: [DONE]\n\n"


class ChatWire:
    """The wire format `chat`."""

    name = "chat"
    path = "chat/completions"
    call_id_prefix = "call_"

    def question(self, asked: JsonObject, headers: Mapping[str, str]) -> Question:
        """Read and check a request."""
        del headers
        fields = Asked(asked)
        fields.must_stream()
        said, pairs = Said(), ToolPairs()
        for message in fields.parts("messages"):
            _read_message(message, said, pairs)
        pairs.all_answered()
        tools = fields.parts("tools")
        for tool in tools:
            tool.one_of("type", "function")
        fields.tool_names([tool.part("function") for tool in tools], LONGEST_TOOL_NAME)
        for limit in ("max_tokens", "max_completion_tokens"):
            fields.whole_number(limit)
        options = asked.get("stream_options")
        wants_usage = isinstance(options, dict) and options.get("include_usage") is True
        prompt = said.prompt("messages")
        model = fields.text("model", may_be_empty=False)
        return Question(model, prompt, said.words, said.message, said.answers, wants_usage)

    def answer(self, number: int, question: Question, usage: JsonObject) -> "ChatAnswer":
        """A new answer."""
        del usage
        return ChatAnswer(number, question.model)

    def refusal(self, status: int, message: str, code: str | None) -> bytes:
        """The body of an error status."""
        return openai_refusal(status, message, code)


class ChatAnswer:
    """The chunks of one answer."""

    is_whole_at_finish = True

    def __init__(self, number: int, model: str) -> None:
        self.usage: JsonObject | None = None
        self._head = {"id": f"chatcmpl-{number}", "object": "chat.completion.chunk", "created": 0, "model": model}
        self._has_role = False
        self._tool = -1

    def text(self, piece: str) -> bytes:
        """A piece of the answer."""
        return self._delta({"content": piece})

    def reasoning(self, piece: str) -> bytes:
        """A piece of the model's thinking."""
        return self._delta({"reasoning_content": piece})

    def open_tool(self, call_id: str, name: str) -> bytes:
        """The head of a tool call."""
        self._tool += 1
        function = {"name": name, "arguments": ""}
        call = {"index": self._tool, "id": call_id, "type": "function", "function": function}
        return self._delta({"tool_calls": [call]})

    def arguments(self, piece: str) -> bytes:
        """A piece of the arguments of the tool call that is open."""
        return self._delta({"tool_calls": [{"index": self._tool, "function": {"arguments": piece}}]})

    def close_tool(self) -> bytes:
        """Nothing: a tool call ends with the answer."""
        return b""

    def keepalive(self, words: str | None) -> bytes:
        """A comment."""
        return comment("keep-alive" if words is None else words)

    def error(self, error: JsonObject, event: str | None) -> bytes:
        """A chunk that holds an error object, or the bare object under an event name."""
        return framed(event, {"error": error} if event is None else error)

    def finish(self, reason: str, usage: JsonObject) -> bytes:
        """The chunk with the finish reason."""
        del usage
        return self._with_role(self._chunk({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}))

    def report_usage(self, usage: JsonObject) -> bytes:
        """The chunk that holds usage and no choice."""
        self.usage = usage
        return self._chunk({"choices": [], "usage": usage})

    def end(self) -> bytes:
        """The end mark."""
        return _END_MARK

    def _delta(self, delta: JsonObject) -> bytes:
        return self._with_role(self._chunk({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}))

    def _with_role(self, chunk: bytes) -> bytes:
        if self._has_role:
            return chunk
        self._has_role = True
        return self._delta({"role": "assistant", "content": ""}) + chunk

    def _chunk(self, fields: JsonObject) -> bytes:
        return framed(None, {**self._head, **fields})


def openai_refusal(status: int, message: str, code: str | None) -> bytes:
    """The body of an error status of OpenAI's interfaces."""
    del status
    kind = "rehearsed" if code is None else "invalid_request_error"
    return orjson.dumps({"error": {"message": message, "type": kind, "param": None, "code": code}})


def _read_message(message: Asked, said: Said, pairs: ToolPairs) -> None:
    role = message.one_of("role", *_ROLES)
    if role == "tool":
        pairs.result(message.text("tool_call_id"), message.place)
    else:
        pairs.all_answered()
    calls = message.parts("tool_calls")
    if calls and role != "assistant":
        message.refuse("tool_calls", f"a message of role {role} cannot call tools")
    for call in calls:
        call.one_of("type", "function")
        function = call.part("function")
        function.text("name", may_be_empty=False)
        function.json_object("arguments")
        pairs.call(call.text("id", may_be_empty=False), call.place)
    if calls:
        said.answer()
    content = message.get("content")
    if isinstance(content, list):
        said.take(role, "".join(_part(part) for part in message.parts("content")))
    elif content is not None or not calls:
        said.take(role, message.text("content"))


def _part(part: Asked) -> str:
    return part.text("text") if part.text("type") == "text" else ""
