"""The receiver in Python that ops/examples shows, over real HTTP, against what our own code signs."""

import json
import sys
from collections.abc import Iterator

import pytest

from channels.endpoints.signing_keys import encode_secret
from tests.support.example import EXAMPLES, Example
from tests.support.signed_requests import BAD, GOOD, MINE

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def receiver() -> Iterator[Example]:
    with Example([sys.executable, EXAMPLES / "receiver.py"], encode_secret(MINE)) as started:
        yield started


@pytest.mark.requirement("signing:examples:python")
@pytest.mark.parametrize("name", GOOD)
def test_it_takes_what_one_of_our_keys_signed(receiver: Example, name: str) -> None:
    receiver.takes(name)


@pytest.mark.requirement("signing:examples:python")
@pytest.mark.parametrize("name", BAD)
def test_it_refuses_everything_else_and_goes_on(receiver: Example, name: str) -> None:
    receiver.refuses(name)


@pytest.mark.requirement("signing:examples:short")
def test_both_examples_do_it_in_ten_lines() -> None:
    """From what came to what is answered."""
    python = (EXAMPLES / "receiver.py").read_text(encoding="utf-8")
    steps = python.split('"""One request', 1)[1].split('"""\n', 1)[1].split("\n\n", 1)[0]
    assert len(steps.splitlines()) == 10
    script = (EXAMPLES / "receiver.mjs").read_text(encoding="utf-8")
    steps = script.split("createServer(async", 1)[1].split("\n\n", 1)[0]
    assert len(steps.splitlines()) == 10


@pytest.mark.requirement("signing:examples:javascript")
def test_the_library_of_the_javascript_example_is_the_version_that_is_tested() -> None:
    tested = json.loads((EXAMPLES.parent / "requirements-real.npm" / "package.json").read_text(encoding="utf-8"))
    shown = json.loads((EXAMPLES / "package.json").read_text(encoding="utf-8"))
    assert shown["dependencies"].items() <= tested["dependencies"].items()
