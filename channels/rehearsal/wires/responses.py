"""OpenAI's Responses, as the stand-in provider reads them.

What belongs here: requests and refusals. What must not be known here: scripts, HTTP, time, events (`responses_answer`).
"""

from collections.abc import Mapping

from channels.rehearsal.asked import Asked, Said, ToolPairs
from channels.rehearsal.signatures import is_forged
from channels.rehearsal.wire import JsonObject, Question
from channels.rehearsal.wires.chat import LONGEST_TOOL_NAME, openai_refusal
from channels.rehearsal.wires.responses_answer import ResponsesAnswer

_ROLES = ("system", "developer", "user", "assistant")
_PARTS_OF_ANSWERS = ("output_text", "refusal")
_SEALED_REASONING = "reasoning.encrypted_content"


class ResponsesWire:
    """The wire format `responses`."""

    name = "responses"
    path = "responses"
    call_id_prefix = "call_"

    def question(self, asked: JsonObject, headers: Mapping[str, str]) -> Question:
        """Read and check a request."""
        del headers
        fields = Asked(asked)
        fields.must_stream()
        fields.whole_number("max_output_tokens")
        said, pairs = Said(), ToolPairs()
        if asked.get("instructions") is not None:
            said.take("system", fields.text("instructions"))
        if isinstance(asked.get("input"), str):
            said.take("user", asked["input"])
        else:
            _read_items(fields.parts("input"), said, pairs)
        pairs.all_answered()
        tools = fields.parts("tools")
        for tool in tools:
            tool.one_of("type", "function")
        fields.tool_names(tools, LONGEST_TOOL_NAME)
        included = asked.get("include")
        seals = isinstance(included, list) and _SEALED_REASONING in included
        prompt = said.prompt("input")
        model = fields.text("model", may_be_empty=False)
        return Question(model, prompt, said.words, said.message, said.answers, wants_sealed_reasoning=seals)

    def answer(self, number: int, question: Question, usage: JsonObject) -> ResponsesAnswer:
        """A new answer."""
        del usage
        return ResponsesAnswer(number, question.model, seals_reasoning=question.wants_sealed_reasoning)

    def refusal(self, status: int, message: str, code: str | None) -> bytes:
        """The body of an error status."""
        return openai_refusal(status, message, code)


def _read_items(items: list[Asked], said: Said, pairs: ToolPairs) -> None:
    for number, item in enumerate(items):
        match item.get("type"):
            case None | "message":
                _read_message(item, said)
            case "function_call":
                item.text("name", may_be_empty=False)
                item.json_object("arguments")
                said.answer()
                pairs.call(item.text("call_id", may_be_empty=False), item.place)
            case "function_call_output":
                pairs.result(item.text("call_id"), item.place)
                said.take("tool", _joined(item, "output"))
            case "reasoning":
                _read_reasoning(item, items[number + 1 :])
            case _:
                item.text("type")


def _read_message(message: Asked, said: Said) -> None:
    role = message.one_of("role", *_ROLES)
    if isinstance(message.get("content"), list):
        for part in message.parts("content"):
            kind = part.text("type")
            if (kind in _PARTS_OF_ANSWERS) is not (role == "assistant"):
                part.refuse("type", f"{kind} cannot be part of a message of role {role}")
    said.take(role, _joined(message, "content"))


def _read_reasoning(item: Asked, following: list[Asked]) -> None:
    if not following or (following[0].get("type") is None and following[0].get("role") != "assistant"):
        item.refuse("type", "reasoning must be followed by the item that it led to")
    summary = "".join(part.text("text") for part in item.parts("summary"))
    sealed = item.get("encrypted_content")
    if isinstance(sealed, str) and is_forged(sealed, summary):
        item.refuse("encrypted_content", "is not that of this reasoning")


def _joined(item: Asked, key: str) -> str:
    if not isinstance(item.get(key), list):
        return item.text(key)
    return "".join(str(part.get("text") or part.get("refusal") or "") for part in item.parts(key))
