"""A table of a script that checks what it is asked for.

What belongs here: types, limits, and errors that name file, place, value and fix. What must not be known here: what
the keys mean.
"""

import difflib
import math
from collections.abc import Iterable
from typing import Any, NoReturn, cast

from channels.rehearsal.steps import FOREVER
from worker.errors import ConfigurationError

LONGEST_WAIT_S = 86400.0
_SHOWN = 60


class Table:
    """One TOML table. `place` says where it stands, for people. Each getter raises `ConfigurationError`."""

    def __init__(self, source: str, place: str, values: object) -> None:
        self._source = source
        self.place = place
        if not isinstance(values, dict):
            self._refuse_value(values, 'write a table here, as in { text = "Hello" }')
        self._values = cast("dict[str, Any]", values)

    def has(self, key: str) -> bool:
        """Whether the key is there."""
        return key in self._values

    def only(self, known: Iterable[str]) -> None:
        """Refuse any key that is not known."""
        names = sorted(known)
        for key in self._values:
            if key not in names:
                near = difflib.get_close_matches(key, names, n=1)
                fix = f"did you mean {near[0]}?" if near else f"known here: {', '.join(names)}"
                self.refuse(key, f"there is no such key; {fix}")

    def text(self, key: str, default: str | None = None) -> str:
        """A text."""
        value = self._get(key, default)
        if not isinstance(value, str):
            self.refuse(key, "write a text in quotes")
        return value

    def seconds(self, key: str, default: float | None = None) -> float:
        """Seconds, 0 or more."""
        value = self._get(key, default)
        if not _is_number(value) or not 0 <= value <= LONGEST_WAIT_S:
            self.refuse(key, f"write seconds as a number from 0 to {LONGEST_WAIT_S:g}")
        return float(value)

    def seconds_or_forever(self, key: str, default: float | None = None) -> float:
        """Seconds, or `true` for ever."""
        value = self._get(key, default)
        if value is True or value == FOREVER:
            return FOREVER
        if not _is_number(value) or not 0 <= value <= LONGEST_WAIT_S:
            self.refuse(key, f"write true (for ever) or seconds as a number from 0 to {LONGEST_WAIT_S:g}")
        return float(value)

    def count(self, key: str, default: int | None = None, least: int = 1, most: int = 10_000_000) -> int:
        """A whole number from `least` to `most`."""
        value = self._get(key, default)
        if type(value) is not int or not least <= value <= most:
            self.refuse(key, f"write a whole number from {least} to {most}")
        return value

    def yes(self, key: str) -> None:
        """The word `true`, for a step that has no value."""
        if self._values[key] is not True:
            self.refuse(key, f"write {key} = true, or leave the step out")

    def one_of(self, key: str, words: tuple[str, ...], default: str) -> str:
        """One of the words."""
        value = self._get(key, default)
        if value not in words:
            self.refuse(key, f"write one of {', '.join(words)}")
        return cast("str", value)

    def mapping(self, key: str) -> dict[str, object]:
        """A table that is sent as a JSON object."""
        value = self._values[key]
        if not isinstance(value, dict):
            self.refuse(key, "write a table")
        return cast("dict[str, object]", value)

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of texts; empty where the key is missing."""
        value = self._values.get(key, [])
        if not isinstance(value, list) or not all(isinstance(each, str) and each for each in value):
            self.refuse(key, "write a list of texts in quotes")
        return tuple(value)

    def tables(self, key: str, name: str) -> list["Table"]:
        """The tables of a list, each placed under `name` and its number."""
        value = self._values.get(key, [])
        if not isinstance(value, list):
            self.refuse(key, f"write a list of tables, as with [[{key}]]")
        prefix = f"{self.place}, " if self.place else ""
        return [Table(self._source, f"{prefix}{name} {number}", each) for number, each in enumerate(value, 1)]

    def value(self, key: str) -> Any:
        """The value as it stands."""
        return self._values[key]

    def refuse(self, key: str, fix: str) -> NoReturn:
        """Raise, naming the key and its value if it has one."""
        found = f" = {_shown(self._values[key])}" if key in self._values else " is missing"
        raise ConfigurationError(f"{self._where()}{key}{found}: {fix}")

    def refuse_all(self, fix: str) -> NoReturn:
        """Raise for the table as a whole."""
        self._refuse_value(self._values, fix)

    def _get(self, key: str, default: object) -> Any:
        if key not in self._values and default is None:
            self.refuse(key, "add it")
        return self._values.get(key, default)

    def _refuse_value(self, value: object, fix: str) -> NoReturn:
        raise ConfigurationError(f"{self._where()}{_shown(value)}: {fix}")

    def _where(self) -> str:
        return f"{self._source}: {self.place}: " if self.place else f"{self._source}: "


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)


def _shown(value: object) -> str:
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
