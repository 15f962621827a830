"""The lock files: every package at one version with its hashes, and nothing about where packages come from."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
LOCKS = ("requirements.lock", "requirements-dev.lock", "requirements-real.lock")


def pins(name: str) -> Iterator[tuple[str, Version, str]]:
    """(package, version, the whole entry) of each package in a lock file."""
    text = (ROOT / "ops" / name).read_text(encoding="utf-8").replace("\\\n", " ")
    for line in text.splitlines():
        if line and not line.startswith("#"):
            requirement = Requirement(line.split(" --hash")[0])
            [exact] = requirement.specifier
            assert exact.operator == "==", line
            yield canonicalize_name(requirement.name), Version(exact.version), line


@pytest.mark.requirement("project:locks:hashes-and-no-addresses")
@pytest.mark.parametrize("name", LOCKS)
def test_every_pin_has_hashes_and_no_address_is_named(name: str) -> None:
    for package, _, line in pins(name):
        assert re.search(r"--hash=sha256:[0-9a-f]{64}\b", line), package
    text = (ROOT / "ops" / name).read_text(encoding="utf-8")
    assert not re.search(r"://|--(extra-)?index|--find-links|--trusted-host|file:|(^|\s)/\w", text)


@pytest.mark.requirement("project:locks:complete")
def test_what_the_project_asks_for_is_pinned_as_it_asks() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    asked = {
        "requirements.lock": project["project"]["dependencies"],
        "requirements-dev.lock": project["project"]["dependencies"] + project["dependency-groups"]["dev"],
    }
    for name, requirements in asked.items():
        pinned = {package: version for package, version, _ in pins(name)}
        for requirement in map(Requirement, requirements):
            version = pinned.get(canonicalize_name(requirement.name))
            assert version is not None, f"{requirement.name} is missing in ops/{name}; run ops/lock"
            assert version in requirement.specifier, f"{requirement} is not met by {version}; run ops/lock"


def test_development_and_production_run_the_same_versions() -> None:
    production, development = ({package: version for package, version, _ in pins(name)} for name in LOCKS[:2])
    assert production.items() <= development.items()


@pytest.mark.requirement("project:dependencies:reasons")
def test_every_dependency_has_its_reason_beside_it() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    project = tomllib.loads(text)
    for requirement in project["project"]["dependencies"] + project["dependency-groups"]["dev"]:
        assert re.search(rf'^ +"{re.escape(requirement)}", +# \w', text, re.MULTILINE), requirement
