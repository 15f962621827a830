"""The fields of a request, checked as a provider checks them.

What belongs here: types, and which tool call waits for which result. What must not be known here: any wire format.
A fault raises `RequestRefused` that names the field.
"""

import re
from typing import Any, NoReturn, cast

import orjson

from channels.rehearsal.wire import JsonObject, RequestRefused


class Asked:
    """One JSON object of a request. `place`: where it stands."""

    def __init__(self, values: object, place: str = "") -> None:
        self.place = place
        if not isinstance(values, dict):
            raise RequestRefused(f"{place or 'the body'}: must be a JSON object")
        self._values = cast("JsonObject", values)

    def get(self, key: str) -> Any:
        """The value as it stands; None where there is none."""
        return self._values.get(key)

    def text(self, key: str, *, may_be_empty: bool = True) -> str:
        """A text that must be there."""
        value = self.get(key)
        if not isinstance(value, str):
            self.refuse(key, "must be a string")
        if not may_be_empty and not value.strip():
            self.refuse(key, "must not be empty")
        return value

    def one_of(self, key: str, *words: str) -> str:
        """One of these words."""
        value = self.get(key)
        if value not in words:
            self.refuse(key, f"must be one of {', '.join(words)}; it is {value!r}")
        return cast("str", value)

    def whole_number(self, key: str, *, required: bool = False) -> None:
        """A whole number from 1, or nothing where it is not required."""
        value = self.get(key)
        if (required or value is not None) and (type(value) is not int or value < 1):
            self.refuse(key, "must be a whole number from 1")

    def part(self, key: str) -> "Asked":
        """An object below this one."""
        return Asked(self.get(key), self._at(key))

    def parts(self, key: str) -> list["Asked"]:
        """The objects of a list below this one; none where it is missing."""
        value = self.get(key)
        if value is None:
            return []
        if not isinstance(value, list):
            self.refuse(key, "must be a list")
        return [Asked(each, f"{self._at(key)}[{number}]") for number, each in enumerate(value)]

    def tool_names(self, named: list["Asked"], longest: int) -> None:
        """The names of the tools that are offered: well-formed, of at most `longest` characters, none twice."""
        form = rf"[a-zA-Z0-9_-]{{1,{longest}}}"
        names = [each.text("name") for each in named]
        for each, name in zip(named, names, strict=True):
            if not re.fullmatch(form, name):
                each.refuse("name", f"must match {form}; it is {name!r}")
        if len(set(names)) < len(names):
            self.refuse("tools", "names must be unique")

    def json_object(self, key: str) -> None:
        """A text that holds a JSON object."""
        try:
            value = orjson.loads(self.text(key))
        except orjson.JSONDecodeError:
            value = None
        if not isinstance(value, dict):
            self.refuse(key, "must hold a JSON object")

    def must_stream(self) -> None:
        """A stream must be asked for."""
        if self.get("stream") is not True:
            self.refuse("stream", "must be true: the stand-in provider only streams")

    def refuse(self, key: str, fault: str) -> NoReturn:
        """Raise for a field."""
        raise RequestRefused(f"{self._at(key)}: {fault}")

    def _at(self, key: str) -> str:
        return f"{self.place}.{key}" if self.place else key


class ToolPairs:
    """The tool calls of a conversation that wait for their result, in order."""

    def __init__(self) -> None:
        self._open: dict[str, str] = {}

    def call(self, call_id: str, place: str) -> None:
        """A tool was called."""
        if call_id in self._open:
            raise RequestRefused(f"{place}: the tool call id {call_id!r} stands for two calls")
        self._open[call_id] = place

    def result(self, call_id: str, place: str) -> None:
        """A tool's result."""
        if self._open.pop(call_id, None) is None:
            raise RequestRefused(f"{place}: there is no open tool call {call_id!r} that this is the result of")

    def all_answered(self) -> None:
        """From here on no call may wait."""
        for call_id, place in self._open.items():
            raise RequestRefused(f"{place}: the tool call {call_id!r} has no result where it must have one")


class Said:
    """What the messages of a request say: all words are counted, the first and the last user message are kept.

    `answers`: of the model, behind the last user message. What the model says between two others is one answer.
    """

    def __init__(self) -> None:
        self.words = 0
        self.message = ""
        self.answers = 0
        self._prompt: str | None = None
        self._is_answer = False

    def take(self, role: str, text: str) -> None:
        """One message, or one part of the same message's text."""
        self.words += len(text.split())
        if role == "assistant":
            self.answer()
            return
        self._is_answer = False
        if role == "user":
            self.message, self.answers = text, 0
            if self._prompt is None:
                self._prompt = text

    def answer(self) -> None:
        """A part of an answer, also one without text."""
        self.answers += not self._is_answer
        self._is_answer = True

    def prompt(self, key: str) -> str:
        """The first user message, which must be there."""
        if self._prompt is None:
            raise RequestRefused(f"{key} holds no user message")
        return self._prompt
