"""Every recorded chat stream, replayed by a real HTTP server into real worker processes, judged by what a webhook got.

The recordings are not part of this project; without them these tests are skipped.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.receiver import Receiver
from tests.support.stack import SECRET, Stack, stand_in

RECORDINGS = Path(__file__).resolve().parents[3] / "shared" / "fixtures" / "chat"

pytestmark = [
    pytest.mark.process,
    pytest.mark.timeout(240),
    pytest.mark.skipif(not RECORDINGS.is_dir(), reason="the recorded streams are not here"),
]


def settings(base_url: str, hook: str) -> str:
    return f"""
[providers.main]
base_url = "{base_url}"
model = "stand-in"
finish_grace_s = 0.5

[turns]
resume_backoff_s = 0.05

[processes]
turns_concurrency = 8

[endpoints.receiver]
url = "{hook}"
secret = "{SECRET}"
"""


def expected_end(expected: dict[str, Any]) -> tuple[str, str | None, str | None]:
    """Outcome, reason and error code in which a recording must end."""
    if not expected["complete"]:
        refused = expected["error"] is not None and 400 <= int(_status(expected["error"])) < 500
        return ("failed", None, "refused" if refused else "end_of_stream")
    ends = (
        (expected["choices"] is not None, ("failed", None, "several_choices")),
        (expected["finish_reason"] in ("length", "content_filter"), ("incomplete", expected["finish_reason"], None)),
        (expected["refusal"], ("incomplete", "refusal", None)),
        (expected["tool_calls"], ("failed", None, "unknown_tool")),
        (not expected["text"], ("failed", None, "empty_answer")),
    )
    return next((end for holds, end in ends if holds), ("completed", None, None))


def _status(error: dict[str, Any]) -> Any:
    return error.get("status_code") or error.get("code") or 0


async def test_every_recorded_stream_ends_in_the_outcome_and_the_text_that_it_holds(
    tmp_path: Path, real_url: str
) -> None:
    """Those with one choice, text and no tool call are delivered byte for byte; a dead call's text never is."""
    names = sorted(path.name.removesuffix(".sse") for path in RECORDINGS.glob("*.sse"))
    expectations = {
        name: json.loads((RECORDINGS / f"{name}.expected.json").read_text(encoding="utf-8"))["expected"]
        for name in names
    }
    script = "\n".join(
        f"[[conversations]]\nmatch = {json.dumps(f'<{name}>')}\n"
        f"calls = [ {{ steps = [ {{ raw_file = {json.dumps(str(RECORDINGS / f'{name}.sse'))} }} ] }} ]"
        for name in names
    )
    async with stand_in(script, tmp_path) as provider, Receiver() as receiver, Stack(tmp_path, real_url) as stack:
        stack.configure(settings(provider.base_url, receiver.url))
        stack.start("delivery")
        stack.start("turns")
        turns = {
            await stack.submit(f"<{name}>", destinations=("receiver",), labels={"recording": name}): name
            for name in names
        }
        await receiver.nth(len(names), within_s=180)
    got = {json.loads(each.body)["data"]["turn"]: json.loads(each.body) for each in receiver.requests}
    assert got.keys() == turns.keys()
    for turn, name in turns.items():
        expected, body = expectations[name], got[turn]["data"]
        outcome, reason, code = expected_end(expected)
        text = expected["text"] if expected["complete"] and expected["choices"] is None else ""
        assert (name, body["outcome"], body["reason"], body["text"]) == (name, outcome, reason, text)
        assert got[turn]["type"] == f"turn.{outcome}", name
        if code is not None:
            assert (name, body["error"]["code"]) == (name, code)
        if not expected["complete"]:
            resumed = 3 if code == "end_of_stream" else 1
            assert (name, body["resume"]["discarded_attempts"]) == (name, resumed)
