"""A script file, read and checked.

What belongs here: the keys of a script and what they stand for. What must not be known here: HTTP, time, wire formats.
One script serves every wire format. Finish reasons and usage are written in the words of Chat Completions.

    after_last = "repeat"                 # or "last", "refuse": what follows the last call of a conversation
    models = ["stand-in"]                 # a request for another model is answered 404; left out: any model is known

    [[calls]]                             # in order, per conversation: the first user message tells them apart
    steps = [
      { text = "Let me look. ", pieces = 3, every_s = 0.1 },
      { tool = "clock", arguments = { timezone = "UTC" } },
    ]
    usage = { prompt_tokens = 12, completion_tokens = 5 }

    [[calls]]
    status = 429
    retry_after = 2

    [[conversations]]                     # other calls where the first user message holds these words
    match = "stall"
    calls = [ { steps = [ { text = "It is " }, { stall = true } ] } ]
"""

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import cast

import orjson

from channels.rehearsal.steps import (
    AfterLast,
    Call,
    CallTool,
    Conversation,
    Cut,
    Done,
    EndlessLine,
    Finish,
    KeepAlive,
    Page,
    Pause,
    Raw,
    Reset,
    Say,
    Script,
    SendError,
    Stall,
    Step,
    Truncate,
)
from channels.rehearsal.table import Table
from worker.errors import ConfigurationError

_AFTER_LAST = ("repeat", "last", "refuse")
_CALL_KEYS = ("steps", "usage", "delay_s", "cut_at_byte", "status", "retry_after", "headers", "body", "html")
_PAGE_KEYS = ("status", "html")
_PAGE_DETAILS = ("retry_after", "headers", "body")


def load_script(path: Path) -> Script:
    """Read a script file. Raises `ConfigurationError` that names the file, the place, the value and the fix."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"script {path} cannot be read: {error.strerror}. Give the path of a file") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path}: byte {error.start} is not UTF-8: save the file as UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{path}: {error}: correct the TOML there") from error
    return _script(Table(str(path), "", values), path.parent)


def _script(table: Table, folder: Path) -> Script:
    table.only(("after_last", "models", "calls", "conversations"))
    after_last = table.one_of("after_last", _AFTER_LAST, "repeat")
    conversations = [_conversation(each, folder, after_last) for each in table.tables("conversations", "conversation")]
    calls = tuple(_call(each, folder) for each in table.tables("calls", "call"))
    if calls:
        conversations.append(Conversation("", calls, cast("AfterLast", after_last)))
    if not conversations:
        table.refuse("calls", "add at least one [[calls]]")
    return Script(tuple(conversations), table.texts("models"))


def _conversation(table: Table, folder: Path, after_last: str) -> Conversation:
    table.only(("match", "calls", "after_last"))
    match = table.text("match")
    if not match:
        table.refuse("match", "write words of the first user message")
    calls = tuple(_call(each, folder) for each in table.tables("calls", "call"))
    if not calls:
        table.refuse("calls", "add at least one call")
    return Conversation(match, calls, cast("AfterLast", table.one_of("after_last", _AFTER_LAST, after_last)))


def _call(table: Table, folder: Path) -> Call:
    table.only(_CALL_KEYS)
    page = _page(table)
    if page is None and not table.has("steps"):
        table.refuse("steps", "add steps, or a status, or html")
    return Call(
        steps=tuple(_step(each, folder) for each in table.tables("steps", "step")),
        page=page,
        delay_s=table.seconds_or_forever("delay_s", 0.0),
        cut_at_byte=table.count("cut_at_byte", least=0) if table.has("cut_at_byte") else None,
        usage=_json_object(table, "usage") if table.has("usage") else None,
    )


def _page(table: Table) -> Page | None:
    named = [key for key in _PAGE_KEYS if table.has(key)]
    if not named:
        for key in _PAGE_DETAILS:
            if table.has(key):
                table.refuse(key, "it belongs to a call with a status")
        return None
    if table.has("steps"):
        table.refuse(named[0], "a call has either this or steps: leave one out")
    if table.has("html"):
        status = table.count("status", 200, least=200, most=599)
        return Page(status, _page_headers(table), "text/html; charset=utf-8", table.text("html").encode())
    status = table.count("status", least=200, most=599)
    if not table.has("body"):
        return Page(status, _page_headers(table), "application/json", None, f"rehearsed status {status}")
    body = table.value("body")
    if isinstance(body, str):
        return Page(status, _page_headers(table), "text/plain; charset=utf-8", body.encode())
    return Page(status, _page_headers(table), "application/json", _json(table, "body"))


def _page_headers(table: Table) -> dict[str, str]:
    headers = table.mapping("headers") if table.has("headers") else {}
    for name, value in headers.items():
        if not isinstance(value, str) or not (name + value).isprintable() or not (name + value).isascii():
            table.refuse("headers", f"write the value of {name!r} as a text of printable ASCII")
    if table.has("retry_after"):
        headers = {"Retry-After": str(table.value("retry_after")), **headers}
    return {name: str(value) for name, value in headers.items()}


def _json(table: Table, key: str) -> bytes:
    try:
        return orjson.dumps(table.value(key))
    except TypeError:
        table.refuse(key, "write only what JSON can hold")


def _json_object(table: Table, key: str) -> dict[str, object]:
    value = table.mapping(key)
    _json(table, key)
    return value


# The steps. Each has one key that names it; the reader of that key takes the options beside it.


def _say(table: Table, _: Path) -> Say:
    key = "reasoning" if table.has("reasoning") else "text"
    return Say(_pieces(table, table.text(key)), table.seconds("every_s", 0.0), key == "reasoning")


def _tool(table: Table, _: Path) -> CallTool:
    arguments = "{}"
    if table.has("arguments"):
        value = table.value("arguments")
        arguments = value if isinstance(value, str) else _json(table, "arguments").decode()
    return CallTool(
        table.text("tool"),
        _pieces(table, arguments),
        table.seconds("every_s", 0.0),
        table.text("id") if table.has("id") else None,
    )


def _raw(table: Table, folder: Path) -> Raw:
    if table.has("raw_file"):
        path = folder / table.text("raw_file")
        try:
            data = path.read_bytes()
        except OSError as error:
            table.refuse("raw_file", f"{path} cannot be read ({error.strerror}); paths start at the script's folder")
    else:
        data = table.text("raw").encode()
    return Raw(data, table.count("times", 1), table.count("chunk_bytes", 0, least=0), table.seconds("every_s", 0.0))


def _error(table: Table, _: Path) -> SendError:
    event = table.text("event") if table.has("event") else None
    if isinstance(table.value("error"), str):
        return SendError({"message": table.text("error"), "type": "server_error", "code": None}, event)
    return SendError(_json_object(table, "error"), event)


def _keepalive(table: Table, _: Path) -> KeepAlive:
    every_s = table.seconds("keepalive_every_s")
    comment = table.text("comment") if table.has("comment") else None
    return KeepAlive(every_s, table.seconds_or_forever("for_s", float("inf")), comment)


def _pieces(table: Table, text: str) -> tuple[str, ...]:
    count = min(table.count("pieces", 1, most=100_000), max(1, len(text)))
    return tuple(text[len(text) * at // count : len(text) * (at + 1) // count] for at in range(count))


def _bare(step: Step) -> Callable[[Table, Path], Step]:
    def read(table: Table, _: Path) -> Step:
        table.yes(_name_of(table))
        return step

    return read


_STEPS: dict[str, tuple[Callable[[Table, Path], Step], tuple[str, ...]]] = {
    "text": (_say, ("pieces", "every_s")),
    "reasoning": (_say, ("pieces", "every_s")),
    "tool": (_tool, ("arguments", "id", "pieces", "every_s")),
    "pause_s": (lambda table, _: Pause(table.seconds("pause_s")), ()),
    "stall": (lambda table, _: Stall(table.seconds_or_forever("stall")), ()),
    "keepalive_every_s": (_keepalive, ("for_s", "comment")),
    "raw": (_raw, ("times", "chunk_bytes", "every_s")),
    "raw_file": (_raw, ("times", "chunk_bytes", "every_s")),
    "endless_line": (_bare(EndlessLine()), ()),
    "error": (_error, ("event",)),
    "finish": (lambda table, _: Finish(table.text("finish")), ()),
    "done": (_bare(Done()), ()),
    "truncate": (_bare(Truncate()), ()),
    "cut": (_bare(Cut()), ()),
    "reset": (_bare(Reset()), ()),
}


def _step(table: Table, folder: Path) -> Step:
    name = _name_of(table)
    read, options = _STEPS[name]
    table.only((name, *options))
    return read(table, folder)


def _name_of(table: Table) -> str:
    names = [name for name in _STEPS if table.has(name)]
    if len(names) != 1:
        found = " and ".join(names) or "none"
        table.refuse_all(f"a step has exactly one of {', '.join(_STEPS)}; found {found}")
    return names[0]
