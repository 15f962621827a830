"""Packages that were never installed by pip: a module and its dist-info folder, on the import path of one test.

What belongs here: files. It knows nothing of what is in a module.
"""

import textwrap
from pathlib import Path

import pytest


class Site:
    """A folder of packages. Each module gets a name that no other test has imported."""

    _made = 0

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        monkeypatch.syspath_prepend(str(folder))

    def package(self, name: str, source: str, *entry_points: str, group: str = "lastword.tools") -> str:
        """Write a distribution; each entry point of `group` is `NAME = ATTRIBUTE`. Gives its module's name."""
        Site._made += 1
        module = f"{name.replace('-', '_')}_{Site._made}"
        (self._folder / f"{module}.py").write_text(textwrap.dedent(source), encoding="utf-8")
        info = self._folder / f"{name.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", encoding="utf-8")
        lines = []
        for entry_point in entry_points:
            entry, attribute = entry_point.split(" = ")
            lines.append(f"{entry} = {module}:{attribute}" if attribute else f"{entry} = {module}")
        (info / "entry_points.txt").write_text(f"[{group}]\n" + "\n".join(lines) + "\n", encoding="utf-8")
        return module
