"""How words reach a person: consoles, and text of others that must not command a terminal.

What belongs here: what every command's printing shares. What must not be known here: what is printed.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from rich.console import Console
from rich.text import Text

from worker.output.events import ErrorOutput

_WIDE = 10_000
_KEPT = "\n\t"
_SIGNS = {code: 0x2400 + code for code in range(0x20) if chr(code) not in _KEPT} | {0x7F: 0x2421}
_SIGNS |= dict.fromkeys(range(0x80, 0xA0), 0xFFFD)


def open_console(*, stderr: bool = False) -> Console:
    """A console that leaves a table as wide as it is where no terminal limits it."""
    console = Console(stderr=stderr, highlight=False)
    if not console.is_terminal:
        console.width = _WIDE
    return console


def for_terminal(text: str) -> str:
    """A text with each control character but line breaks and tabs as a sign: a terminal would obey it."""
    return text.translate(_SIGNS)


def cleaner(console: Console) -> Callable[[str], str]:
    """What text of others must go through before it is printed there. Only a terminal needs it changed."""
    return for_terminal if console.is_terminal else str


def print_rows(console: Console, rows: Mapping[str, object], width: int = 12) -> None:
    """One thing, a line for each of its properties that says anything."""
    clean = cleaner(console)
    for name, value in rows.items():
        if value not in (None, "", [], {}):
            console.print(Text.assemble((f"{name:<{width}} ", "dim"), clean(str(value))), soft_wrap=True)


def time_of(at_ms: int | None) -> str:
    """A moment as people read it, in UTC; nothing of None, and of 0, which stands for no moment."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds") if at_ms else ""


def error_line(error: ErrorOutput) -> str:
    """The error of a turn, for a person."""
    return f"error: {error.message} [{error.code}, reference {error.correlation_id[:8]}]"


def error_object(error: ErrorOutput) -> dict[str, str]:
    """The error of a turn, for a program."""
    return error.model_dump(include={"category", "code", "message", "correlation_id"})
