"""The manifest in tests/requirements and the tests that prove it: neither may lack the other."""

import ast
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]


def declared() -> list[dict[str, str]]:
    return [
        entry
        for file in sorted((TESTS / "requirements").glob("*.toml"))
        for entry in tomllib.loads(file.read_text(encoding="utf-8"))["requirement"]
    ]


def proven() -> Iterator[tuple[str, str]]:
    """(requirement, file) of each `pytest.mark.requirement(...)` under tests."""
    for file in sorted(TESTS.rglob("test_*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.requirement":
                [name] = node.args
                assert isinstance(name, ast.Constant), f"{file.name}:{node.lineno}: give the id as a literal"
                yield str(name.value), file.name


def test_every_requirement_is_proven_by_a_test() -> None:
    marked = {name for name, _ in proven()}
    assert [entry["id"] for entry in declared() if entry["id"] not in marked] == []


def test_every_marked_test_proves_a_requirement_of_the_manifest() -> None:
    known = {entry["id"] for entry in declared()}
    assert sorted({f"{file}: {name}" for name, file in proven() if name not in known}) == []


def test_a_requirement_is_stated_once_with_source_and_text() -> None:
    entries = declared()
    assert [name for name, count in Counter(entry["id"] for entry in entries).items() if count > 1] == []
    for entry in entries:
        assert entry.keys() == {"id", "source", "text"}, entry["id"]
        assert entry["source"], entry["id"]
        assert entry["text"].endswith("."), entry["id"]
