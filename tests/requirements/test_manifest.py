"""Every promise has a test, and every test that claims to prove one names a promise that was made.

The manifest is every `*.toml` beside this file; the proofs are the `requirement` marks of all tests, read from their
source without running it.
"""

import ast
import re
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

MANIFEST = Path(__file__).parent
TESTS = MANIFEST.parent
ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*(:[a-z0-9]+(-[a-z0-9]+)*)+")

Entry = dict[str, Any]


def entries(file: Path) -> list[Entry]:
    """The promises of one area."""
    content = tomllib.loads(file.read_text(encoding="utf-8"))
    assert set(content) == {"requirement"}, f"{file.name} holds [[requirement]] entries and nothing else"
    promised: list[Entry] = content["requirement"]
    return promised


def marks(source: str) -> list[ast.Call]:
    """The calls of `pytest.mark.requirement` in a test file."""
    return [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "requirement"
    ]


def proved_id(mark: ast.Call) -> str | None:
    """The id that a mark carries, or None when it is not one literal text."""
    match mark:
        case ast.Call(args=[ast.Constant(value=str(value))], keywords=[]):
            return value
        case _:
            return None


FILES = sorted(MANIFEST.glob("*.toml"))
ENTRIES = [(file, entry) for file in FILES for entry in entries(file)]
MARKS = [
    (f"{file.relative_to(TESTS)}:{mark.lineno}", proved_id(mark))
    for file in sorted(TESTS.rglob("*.py"))
    for mark in marks(file.read_text(encoding="utf-8"))
]


def test_every_entry_has_an_id_of_its_area_a_source_and_one_sentence() -> None:
    faults = [
        f"{file.name}: {entry}"
        for file, entry in ENTRIES
        if set(entry) != {"id", "source", "text"}
        or not all(isinstance(value, str) and value for value in entry.values())
        or not ID.fullmatch(entry["id"])
        or entry["id"].split(":")[0] != file.stem
        or not entry["text"].endswith(".")
    ]
    assert faults == []


def test_no_promise_is_made_twice() -> None:
    counts = Counter(entry["id"] for _, entry in ENTRIES)
    assert [name for name, count in counts.items() if count > 1] == []


def test_every_mark_carries_one_literal_id() -> None:
    assert [place for place, name in MARKS if name is None] == []


def test_every_promise_has_a_test() -> None:
    proved = {name for _, name in MARKS}
    assert [entry["id"] for _, entry in ENTRIES if entry["id"] not in proved] == []


def test_every_test_that_claims_to_prove_something_names_a_promise() -> None:
    promised = {entry["id"] for _, entry in ENTRIES}
    assert [(place, name) for place, name in MARKS if name is not None and name not in promised] == []


@pytest.mark.parametrize(
    ("source", "ids"),
    [
        ('@pytest.mark.requirement("a:b")\ndef test_a(): ...', ["a:b"]),
        ('pytestmark = [pytest.mark.requirement("a:b")]', ["a:b"]),
        ('pytest.param(1, marks=pytest.mark.requirement("a:b"))', ["a:b"]),
        ("@pytest.mark.requirement(NAME)\ndef test_a(): ...", [None]),
        ('@pytest.mark.requirement("a:b", "c:d")\ndef test_a(): ...', [None]),
        ("@pytest.mark.process\ndef test_a(): ...", []),
    ],
)
def test_marks_are_found_wherever_they_stand(source: str, ids: list[str | None]) -> None:
    assert [proved_id(mark) for mark in marks(source)] == ids
