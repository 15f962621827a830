"""Console tests run the program in this process, and see no variable and no file but their own."""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from channels.__main__ import main


@dataclass(frozen=True, slots=True)
class Ran:
    """What one run of `lastword` left behind."""

    code: int
    out: str
    err: str


Lastword = Callable[..., Ran]


@pytest.fixture(autouse=True)
def _nothing_ambient(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.upper().startswith("LASTWORD_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("LASTWORD_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> None:
    """A provider that is set and never asked."""
    monkeypatch.setenv("LASTWORD_PROVIDERS__MAIN__BASE_URL", "http://127.0.0.1:1/v1")
    monkeypatch.setenv("LASTWORD_PROVIDERS__MAIN__MODEL", "m")


@pytest.fixture
def lastword(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Lastword:
    """Runs `lastword ARGUMENTS`."""

    def run(*arguments: str) -> Ran:
        monkeypatch.setattr(sys, "argv", ["lastword", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        code = ended.value.code
        assert isinstance(code, int)
        out, err = capsys.readouterr()
        return Ran(code, out, err)

    return run
