"""The documented lifecycle of a Chat Completions stream, which the profile `strict` holds a peer to.

What belongs here: OpenAI's rules, each with the code and the words of its failure. What must not be known here: what
the answer says, and the repairs of the profile `compat`.

Fields that are not documented are passed over: OpenAI itself adds some now and then. Known deviations of other servers
that the answer depends on break a rule instead, as passing over them would lose a part of it. The finish reason is
what ends an answer; `[DONE]` before it breaks a rule, and a stream that ends after it without `[DONE]` is whole.
"""

from worker.codecs.chat_fields import REASONING_FIELDS, wrong_type
from worker.codecs.limits import RuleBrokenError

_FINISHES = ("stop", "length", "tool_calls", "content_filter", "function_call")
_CHUNK_FIELDS: tuple[tuple[str, type, str], ...] = (
    ("id", str, "text"),
    ("object", str, "text"),
    ("created", int, "a number"),
    ("model", str, "text"),
    ("choices", list, "a list"),
)
_DELTA = "choices[].delta"
_CALL = f"{_DELTA}.tool_calls[]"


class ChatRules:
    """Checks the chunks of one stream, in order."""

    def __init__(self) -> None:
        self._id: str | None = None
        self._finished: set[object] = set()
        self._call_ids: dict[tuple[object, object], object] = {}

    def check(self, chunk: dict[str, object]) -> None:
        """Raises RuleBrokenError for the first rule that `chunk` breaks."""
        for field, kind, words in _CHUNK_FIELDS:
            _require(field, chunk.get(field), kind, words)
        if chunk["object"] != "chat.completion.chunk":
            raise _broken("object", "object must be chat.completion.chunk")
        if self._id not in (None, chunk["id"]):
            raise _broken("id", "id must be the same in every chunk")
        self._id = str(chunk["id"])
        choices, usage = chunk["choices"], chunk.get("usage")
        assert isinstance(choices, list)
        if usage is not None:
            _require("usage", usage, dict, "an object or null")
            if choices:
                raise _broken("usage", "usage comes in a chunk of its own, whose choices are empty")
        elif not choices:
            raise _broken("choices", "choices are empty only in the chunk with usage")
        for choice in choices:
            self._check_choice(choice)

    def check_done(self) -> None:
        """`[DONE]` came. Raises RuleBrokenError."""
        if 0 not in self._finished:
            raise _broken("done_without_finish", "[DONE] comes after a finish_reason")

    def _check_choice(self, choice: object) -> None:
        _require("choices[]", choice, dict, "an object")
        assert isinstance(choice, dict)
        index = choice.get("index")
        _require("choices[].index", index, int, "a number")
        if index in self._finished:
            raise _broken("after_finish", "nothing of a choice comes after its finish_reason")
        _require(_DELTA, choice.get("delta"), dict, "an object")
        self._check_delta(index, choice["delta"])
        if "finish_reason" not in choice:
            raise _broken("finish_reason", "choices[].finish_reason must be there, or null")
        finish = choice["finish_reason"]
        if finish is None:
            return
        if finish not in _FINISHES:
            raise _broken("finish_reason", f"choices[].finish_reason must be null or one of {', '.join(_FINISHES)}")
        self._finished.add(index)

    def _check_delta(self, index: object, delta: dict[str, object]) -> None:
        for field in ("content", "refusal"):
            if delta.get(field) is not None:
                _require(f"{_DELTA}.{field}", delta[field], str, "text or null")
        for field in (*REASONING_FIELDS, "function_call"):
            if delta.get(field):
                raise _broken("undocumented", f"{_DELTA}.{field} is not, or no longer, documented")
        calls = delta.get("tool_calls")
        if calls is None:
            return
        _require(f"{_DELTA}.tool_calls", calls, list, "a list")
        assert isinstance(calls, list)
        for call in calls:
            self._check_call(index, call)

    def _check_call(self, choice: object, call: object) -> None:
        _require(_CALL, call, dict, "an object")
        assert isinstance(call, dict)
        _require(f"{_CALL}.index", call.get("index"), int, "a number")
        function = call.get("function", {})
        _require(f"{_CALL}.function", function, dict, "an object")
        if function.get("arguments") is not None:
            _require(f"{_CALL}.function.arguments", function["arguments"], str, "text")
        place = (choice, call["index"])
        if place not in self._call_ids:
            _require(f"{_CALL}.id", call.get("id"), str, "text in the first delta of a tool call")
            _require(f"{_CALL}.function.name", function.get("name"), str, "text in the first delta of a tool call")
            self._call_ids[place] = call["id"]
        elif call.get("id") or function.get("name"):
            raise _broken("tool_call_repeated", f"{_CALL}: id and name come in the first delta of a tool call alone")


def _require(where: str, value: object, kind: type, words: str) -> None:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise wrong_type(where, words, value)


def _broken(code: str, message: str) -> RuleBrokenError:
    return RuleBrokenError(code, f"chat chunk: {message}")
