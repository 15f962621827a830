"""Settings tests see no variable and no file but their own."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

Write = Callable[[str], Path]


@pytest.fixture(autouse=True)
def _nothing_ambient(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.upper().startswith("LASTWORD_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes lastword.toml into the working directory."""

    def written(text: str) -> Path:
        file = tmp_path / "lastword.toml"
        file.write_text(text, encoding="utf-8")
        return file

    return written
