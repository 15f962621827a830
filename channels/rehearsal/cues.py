"""Which call of the script answers a request.

What belongs here: reading a request, telling conversations apart, counting calls, refusing. What must not be known
here: HTTP servers, how a call is performed.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from channels.rehearsal.steps import Call, Page, Script


@dataclass(frozen=True, slots=True)
class Cue:
    """The call that is due. `conversation`: a hash of the first user message. `number`: of the call in its list."""

    call: Call
    conversation: str | None = None
    number: int | None = None


class Cues:
    """Gives each request its call. Calls are taken in order, for each conversation on its own."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._taken: dict[str, int] = {}

    def next(self, asked: Mapping[str, Any]) -> Cue:
        """The call that answers this request body; a call with an error status where none does."""
        prompt = prompt_of(asked)
        if prompt is None:
            return _refusal(400, "messages holds no user message", "invalid_request_error")
        if asked.get("stream") is not True:
            return _refusal(400, "stream is not true: the stand-in provider only streams", "invalid_request_error")
        if self._script.models and asked.get("model") not in self._script.models:
            return _refusal(404, f"the model {asked.get('model')!r} does not exist", "model_not_found")
        conversation = self._script.conversation_for(prompt)
        if conversation is None:
            return _refusal(400, "no conversation of the script fits the first user message", "no_conversation")
        key = hashlib.sha256(prompt.encode()).hexdigest()[:16]
        taken = self._taken.get(key, 0)
        self._taken[key] = taken + 1
        calls = conversation.calls
        if taken >= len(calls) and conversation.after_last == "refuse":
            message = f"the script has {len(calls)} calls for this conversation, and this is request {taken + 1}"
            return Cue(_refusal(400, message, "script_over").call, key)
        index = min(taken, len(calls) - 1) if conversation.after_last == "last" else taken % len(calls)
        return Cue(calls[index], key, index + 1)


def prompt_of(asked: Mapping[str, Any]) -> str | None:
    """The text of the first user message."""
    return next((text for role, text in _texts(asked) if role == "user"), None)


def words_of(asked: Mapping[str, Any]) -> int | None:
    """The words of all messages, where the request asks for usage; else None."""
    options = asked.get("stream_options")
    if not isinstance(options, dict) or options.get("include_usage") is not True:
        return None
    return sum(len(text.split()) for _, text in _texts(asked))


def _texts(asked: Mapping[str, Any]) -> list[tuple[object, str]]:
    messages = asked.get("messages")
    if not isinstance(messages, list):
        return []
    return [(each.get("role"), _text(each.get("content"))) for each in messages if isinstance(each, dict)]


def _text(content: object) -> str:
    if isinstance(content, list):  # a message in parts
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _refusal(status: int, message: str, code: str) -> Cue:
    error = {"message": message, "type": "invalid_request_error", "code": code}
    return Cue(Call(page=Page(status, {}, "application/json", orjson.dumps({"error": error}))))
