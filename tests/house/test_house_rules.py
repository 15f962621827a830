"""Rules about the code itself that no linter knows."""

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted([*(ROOT / "worker").rglob("*.py"), *(ROOT / "channels").rglob("*.py")])
MODULE_LINES = 300
FUNCTION_LINES = 40
LINE_WIDTH = 120

LONG_MODULES: dict[str, str] = {}
"""Modules over the limit, each with its reason."""

LONG_FUNCTIONS: dict[str, str] = {}
"""Functions over the limit (`path:name`), each with its reason."""


def named(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


def functions(file: Path) -> Iterator[tuple[str, int]]:
    """(path:name, lines) of every function of a module, less its docstring."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = (ast.get_docstring(node, clean=False) or "").count("\n") + 1 if ast.get_docstring(node) else 0
            assert node.end_lineno is not None
            yield f"{named(file)}:{node.name}", node.end_lineno - node.lineno + 1 - docstring


def test_packages_open_with_a_docstring_and_hold_nothing_else() -> None:
    """A re-export would let a pure package reach what it must not know."""
    for file in SOURCES:
        if file.name == "__init__.py":
            body = ast.parse(file.read_text(encoding="utf-8")).body
            assert len(body) == 1, named(file)
            assert isinstance(body[0], ast.Expr), named(file)
            assert isinstance(body[0].value, ast.Constant), named(file)


def test_every_module_says_what_belongs_in_it_and_what_it_must_not_know() -> None:
    for file in SOURCES:
        text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
        if file.name == "__init__.py":
            assert text, named(file)
            continue
        flat = " ".join(text.split())
        assert "What belongs here:" in flat, named(file)
        assert re.search(r"What must not be known here", flat), named(file)


def test_no_module_is_long_without_a_reason() -> None:
    long = {named(file) for file in SOURCES if len(file.read_text(encoding="utf-8").splitlines()) > MODULE_LINES}
    assert long == LONG_MODULES.keys()


def test_no_function_is_long_without_a_reason() -> None:
    long = {name for file in SOURCES for name, lines in functions(file) if lines > FUNCTION_LINES}
    assert long == LONG_FUNCTIONS.keys()


SCRIPTS = sorted(ROOT.glob("*/**/lua/*.lua"))
PRELUDES = {
    match[1]
    for script in SCRIPTS
    if (match := re.search(r"^-- prelude: (\w+)$", script.read_text("utf-8"), re.MULTILINE))
}


@pytest.mark.parametrize("script", SCRIPTS, ids=named)
def test_every_script_opens_with_its_contract(script: Path) -> None:
    lines = script.read_text(encoding="utf-8").splitlines()
    assert max(map(len, lines)) <= LINE_WIDTH, "a line is too long"
    header = "\n".join(itertools.takewhile(lambda line: line.startswith(("--", "#!")), lines))
    assert f"-- {script.stem}: " in header, "it says what it is"
    assert re.search(r"^-- KEYS +\d", header, re.MULTILINE), "it lists its keys"
    if script.stem not in PRELUDES:
        assert re.search(r"^-- ARGV +\d", header, re.MULTILINE), "it lists its arguments"
        assert re.search(r"^-- (Replies|Gives)\b", header, re.MULTILINE), "it says what it answers"


def test_test_files_have_names_of_their_own() -> None:
    names = [file.name for file in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))


def test_words_that_name_nothing_name_no_module() -> None:
    for file in SOURCES:
        assert not re.search(r"manager|helper|util|common|base|misc", file.stem), named(file)
