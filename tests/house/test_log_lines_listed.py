"""The runbook of log lines and the code tell of the same lines: each event with its level and its fields."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RUNBOOK = ROOT / "ops" / "runbooks" / "log-lines.md"
LEVELS = {"info": "info", "warn": "warning", "fault": "error"}
OF_A_FAULT = {"error", "place"}
OF_A_WARNING_OF_A_TURN = {"turn", "session"}
"""What the driver adds to a line that the machine of a turn asks for."""

HANDED_ON = {
    "worker/engine/driver.py",
    "worker/engine/started.py",
    "worker/observability.py",
    "channels/web/live.py",
    "channels/loops.py",
}
"""Modules that write a line whose name another place gives them: that place is looked at."""


@dataclass
class Line:
    """What the code says of an event. `is_open`: it may have other fields, too, which cannot be read off here."""

    levels: set[str] = field(default_factory=set)
    fields: set[str] = field(default_factory=set)
    is_open: bool = False


Said = tuple[str, str, set[str], bool]


def said_in(path: str, tree: ast.Module) -> Iterator[Said]:
    """Name, level, fields and whether there are more, of each line that a module writes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            match _called(node):
                case "info" | "warn" | "fault" as how if isinstance(node.func, ast.Name):
                    yield from _of_call(path, node, how)
                case "tell" if isinstance(node.func, ast.Name):
                    yield from _of_call(path, node, "info")
                    yield from _of_call(path, node, "warn")
                case "tell_started":
                    yield from _of_call(path, node, "info")
                case "Warn":
                    yield _constant(node.args[0]), "warning", OF_A_WARNING_OF_A_TURN, True
                case "keep_going":  # of a loop, by its name
                    name = _constant(node.args[0])
                    yield f"{name}_lost_redis", "warning", {"error"}, False
                    yield f"{name}_failed", "error", OF_A_FAULT, False
                case "_keep_going":
                    yield _constant(node.args[1]), "warning", {"error"}, False
                    yield _constant(node.args[1]), "error", OF_A_FAULT, False
                case "Thread" if (written := _written_by_thread(node)) is not None:
                    yield written, "warning", set(), True


def _called(node: ast.Call) -> str:
    return node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")


def _of_call(path: str, node: ast.Call, how: str) -> Iterator[Said]:
    fields = {each.arg for each in node.keywords if each.arg is not None} | (OF_A_FAULT if how == "fault" else set())
    is_open = any(each.arg is None for each in node.keywords)
    first = node.args[0]
    names = [first.body, first.orelse] if isinstance(first, ast.IfExp) else [first]
    if all(isinstance(name, ast.Constant) for name in names):
        for name in names:
            yield _constant(name), LEVELS[how], fields, is_open
    else:
        assert path in HANDED_ON, f"{path}:{node.lineno}: the name of a line is not written where the line is"


def _constant(node: ast.expr) -> str:
    assert isinstance(node, ast.Constant), ast.unparse(node)
    assert isinstance(node.value, str), ast.unparse(node)
    return node.value


def _written_by_thread(node: ast.Call) -> str | None:
    given = {each.arg: each.value for each in node.keywords}
    target, args = given.get("target"), given.get("args")
    if isinstance(target, ast.Name) and target.id in LEVELS and isinstance(args, ast.Tuple):
        return _constant(args.elts[0])
    return None


def written() -> dict[str, Line]:
    """All lines that the code writes."""
    lines: dict[str, Line] = {}
    for file in sorted([*(ROOT / "worker").rglob("*.py"), *(ROOT / "channels").rglob("*.py")]):
        path = file.relative_to(ROOT).as_posix()
        for event, level, fields, is_open in said_in(path, ast.parse(file.read_text(encoding="utf-8"))):
            line = lines.setdefault(event, Line())
            line.levels.add(level)
            line.fields |= fields
            line.is_open |= is_open
    return lines


def listed() -> dict[str, tuple[set[str], set[str]]]:
    """Level and fields of each event in the runbook."""
    text = RUNBOOK.read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| ([\w, ]+) \| .+ \| ([^|]*) \|$", text, re.MULTILINE)
    assert len(rows) == len({event for event, _, _ in rows}), "an event is listed twice"
    return {event: (set(levels.split(", ")), set(re.findall(r"`(\w+)`", fields))) for event, levels, fields in rows}


@pytest.mark.requirement("seeing:lines:all-listed")
def test_the_runbook_lists_every_line_that_is_written_and_no_other() -> None:
    assert len(written()) > 70
    assert written().keys() - listed().keys() == set()
    assert listed().keys() - written().keys() == set()


@pytest.mark.requirement("seeing:lines:all-listed")
def test_the_runbook_tells_level_and_fields_of_each_line() -> None:
    told = listed()
    for event, line in written().items():
        levels, fields = told[event]
        if "turn_taken_over" not in event and "turn_resumed" not in event:  # one place writes both, each at its level
            assert levels == line.levels, event
        assert line.fields - fields == set(), event
        assert line.is_open or fields == line.fields, event


@pytest.mark.requirement("seeing:lines:all-listed")
def test_a_line_whose_name_is_made_up_elsewhere_is_found() -> None:
    said = said_in("channels/new.py", ast.parse('warn("a", b=1)\nfault("c", error, d=2)\nself._keep_going(step, "e")'))
    assert list(said) == [
        ("a", "warning", {"b"}, False),
        ("c", "error", {"d", *OF_A_FAULT}, False),
        ("e", "warning", {"error"}, False),
        ("e", "error", OF_A_FAULT, False),
    ]
    with pytest.raises(AssertionError, match="not written where the line is"):
        list(said_in("channels/new.py", ast.parse("warn(name)")))
