"""The JavaScript library: the receiver of ops/examples over real HTTP, and our vectors and rotations verified by it."""

import base64
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from channels.endpoints.signing_keys import encode_secret
from channels.webhook.signature import signed_headers
from tests.real.program import NODE_MODULES
from tests.support.example import EXAMPLES, Example
from tests.support.signed_requests import BAD, GOOD, MINE, NEW, OLD, PAIR, now

pytestmark = [pytest.mark.real, pytest.mark.process]

VERIFIER = """
import { Webhook } from "standardwebhooks";
const verdicts = JSON.parse((await process.stdin.toArray()).join("")).map(({ secret, headers, body }) => {
  try { new Webhook(secret).verify(Buffer.from(body, "base64"), headers, { jsonParse: false }); return true; }
  catch { return false; }
});
console.log(JSON.stringify(verdicts));
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which Node finds the library. Skips where there is no Node, or where it was not installed."""
    if shutil.which("node") is None or not (NODE_MODULES / "standardwebhooks").is_dir():
        pytest.skip("there is no Node, or ops/test --real found no npm to install standardwebhooks with")
    made = tmp_path_factory.mktemp("node")
    (made / "node_modules").symlink_to(NODE_MODULES)
    shutil.copy(EXAMPLES / "receiver.mjs", made)
    (made / "verifier.mjs").write_text(VERIFIER, encoding="utf-8")
    return made


@pytest.fixture(scope="module")
def receiver(folder: Path) -> Iterator[Example]:
    with Example(["node", folder / "receiver.mjs"], encode_secret(MINE)) as started:
        yield started


@pytest.mark.requirement("signing:examples:javascript")
@pytest.mark.parametrize("name", GOOD)
def test_it_takes_what_one_of_our_keys_signed(receiver: Example, name: str) -> None:
    receiver.takes(name)


@pytest.mark.requirement("signing:examples:javascript")
@pytest.mark.parametrize("name", BAD)
def test_it_refuses_everything_else_and_goes_on(receiver: Example, name: str) -> None:
    receiver.refuses(name)


@pytest.mark.requirement("signing:wire:javascript")
def test_the_javascript_library_verifies_each_key_of_a_list_and_no_other(folder: Path) -> None:
    bodies = [b"{}", b"", "Grüße 🚀\n".encode(), b"x" * 100_000]
    lists = [(MINE,), (NEW, OLD), (PAIR, MINE), (NEW, PAIR, OLD)]
    asked, expected = [], []
    for body in bodies:
        for keys in lists:
            headers = signed_headers(keys, "dlv_1", now(), body, 0)
            for key in (MINE, NEW, OLD):
                text = base64.b64encode(body).decode()
                asked.append({"secret": encode_secret(key), "headers": headers, "body": text})
                expected.append(key in keys)
    ran = subprocess.run(
        ["node", folder / "verifier.mjs"],
        input=json.dumps(asked),
        text=True,
        capture_output=True,
        check=True,
        timeout=50,
    )
    assert json.loads(ran.stdout) == expected
    assert expected.count(True) == 24
