"""What the README says of the files can be checked, so it is."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
WALK = README.split("## The walk", 1)[1].split("\n## ", 1)[0]
MAP = README.split("## The map", 1)[1].split("\n## ", 1)[0]


def test_every_file_that_the_readme_names_exists() -> None:
    named = set(re.findall(r"`((?:worker|channels|tests|ops)/[\w./-]+)`", README))
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_every_script_that_the_walk_names_exists() -> None:
    scripts = {path.name for path in ROOT.glob("*/**/lua/*.lua")}
    named = set(re.findall(r"`(\w+\.lua)`", WALK))
    assert named
    assert named - scripts == set()


def test_the_walk_names_each_file_once_and_in_its_numbered_order() -> None:
    rows = re.findall(r"^\| (\d+) \| `([^`]+)`", WALK, re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, len(rows) + 1))
    files = [file for _, file in rows]
    assert len(files) == len(set(files))


def test_the_map_shows_every_folder_of_the_source() -> None:
    folders = {path.parent for top in ("worker", "channels") for path in (ROOT / top).rglob("*.py")}
    shown = re.findall(r"^\| `([^`]+)`", MAP, re.MULTILINE)
    tops = {ROOT / "worker", ROOT / "channels"}
    assert sorted(str(folder.relative_to(ROOT)) for folder in folders - tops) == sorted(
        name for name in shown if name.startswith(("worker/", "channels/"))
    )
