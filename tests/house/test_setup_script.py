"""`ops/setup` on machines that lack something: it names what, and the fix."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

WITHOUT_VENV = f"""#!/bin/sh
case "$2" in *ensurepip*) exit 1 ;; esac
exec {sys.executable} "$@"
"""
TOO_OLD = "#!/bin/sh\nexit 1\n"


def setup(folder: Path, python: str) -> subprocess.CompletedProcess[str]:
    (folder / "ops").mkdir()
    for name in ("ops/setup", "ops/requirements-dev.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, folder / name)
    double = folder / "python-double"
    double.write_text(python, encoding="utf-8")
    double.chmod(0o755)
    return subprocess.run(
        [folder / "ops" / "setup"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env={**os.environ, "PYTHON": str(double)},
    )


@pytest.mark.requirement("project:setup:names-the-fix")
def test_a_python_without_venv_is_told_what_to_install(tmp_path: Path) -> None:
    ran = setup(tmp_path, WITHOUT_VENV)
    assert ran.returncode == 2
    assert f"apt-get install python{sys.version_info[0]}.{sys.version_info[1]}-venv" in ran.stderr
    assert not (tmp_path / ".venv").exists()


@pytest.mark.requirement("project:setup:names-the-fix")
def test_a_python_that_is_too_old_is_refused(tmp_path: Path) -> None:
    ran = setup(tmp_path, TOO_OLD)
    assert ran.returncode == 2
    assert "no Python 3.11 or newer" in ran.stderr
    assert "PYTHON=" in ran.stderr
