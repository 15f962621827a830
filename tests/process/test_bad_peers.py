"""Providers and receivers that misbehave: each turn and each delivery ends in bounded time, with words to act on."""

import json
from pathlib import Path
from typing import Any

import pytest

from channels.outbox import replaying
from tests.support.receiver import Answer, Hang, Receiver, refusing_url
from tests.support.stack import SECRET, Stack, stand_in

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

PROVIDERS = """
models = ["stand-in"]

[[conversations]]
match = "<key>"
calls = [ { status = 401 } ]

[[conversations]]
match = "<model>"
calls = [ { status = 404, body = { error = { message = "no such model", code = "model_not_found" } } } ]

[[conversations]]
match = "<page>"
calls = [ { html = "<html><body>Welcome to nginx</body></html>" } ]

[[conversations]]
match = "<line>"
calls = [ { steps = [ { text = "Half an " }, { endless_line = true } ] } ]

[[conversations]]
match = "<comments>"
calls = [ { steps = [ { raw = ": still here\\n\\n", times = 75000 }, { text = "Here at last." }, { done = true } ] } ]

[[conversations]]
match = "<types>"
calls = [ { steps = [
  { text = "Half an " },
  { raw = "data: {\\"choices\\": [{\\"index\\": 0, \\"delta\\": {\\"content\\": 7}}]}\\n\\n" },
] } ]

[[conversations]]
match = "<throttled>"
calls = [ { status = 429, retry_after = 0 } ]

[[conversations]]
match = "<overloaded>"
calls = [ { status = 503 }, { steps = [ { text = "Back again." } ] } ]

[[conversations]]
match = "<redirect>"
calls = [ { status = 307, headers = { location = "http://elsewhere.example/v1" } } ]
"""


def settings(base_url: str, refusing: str, endpoints: str) -> str:
    return f"""
[providers.main]
base_url = "{base_url}"
model = "stand-in"
transport_retries = 2
transport_backoff_s = 0.05

[providers.unreachable]
base_url = "{refusing}"
model = "stand-in"
transport_retries = 2
transport_backoff_s = 0.05

[agents.default]

[agents.unreachable]
provider = "unreachable"

[turns]
resume_backoff_s = 0.05

[delivery]
timeout_s = 0.5
retry_waits_s = [0.1, 0.1]

{endpoints}
"""


def endpoint(name: str, url: str) -> str:
    return f'[endpoints.{name}]\nurl = "{url}"\nsecret = "{SECRET}"\n'


@pytest.mark.requirement("bad-input:provider")
async def test_every_way_a_provider_misbehaves_ends_the_turn_with_words_to_act_on(
    tmp_path: Path, real_url: str
) -> None:
    """What the turn delivers: outcome, text, error code, and what the message must name."""
    expected: dict[str, tuple[str, str, str | None, str]] = {
        "<key>": ("failed", "", "unauthorized", "providers.main.api_key"),
        "<model>": ("failed", "", "not_found", "stand-in"),
        "<page>": ("failed", "", "not_a_stream", "base_url"),
        "<line>": ("failed", "", "line_too_long", "longer than"),
        "<comments>": ("completed", "Here at last.", None, ""),
        "<types>": ("failed", "", "wrong_type", "content"),
        "<throttled>": ("failed", "", "rate_limited", "429"),
        "<overloaded>": ("completed", "Back again.", None, ""),
        "<redirect>": ("failed", "", "redirect", "elsewhere.example"),
        "<unreachable>": ("failed", "", "connect_refused", "127.0.0.1"),
    }
    with refusing_url() as refusing:
        async with (
            stand_in(PROVIDERS, tmp_path) as provider,
            Receiver() as receiver,
            Stack(tmp_path, real_url) as stack,
        ):
            stack.configure(settings(provider.base_url, refusing, endpoint("receiver", receiver.url)))
            stack.start("delivery")
            stack.start("turns")
            turns = {}
            for prompt in expected:
                agent = "unreachable" if prompt == "<unreachable>" else "default"
                turns[await stack.submit(prompt, agent=agent, destinations=("receiver",))] = prompt
            await receiver.nth(len(expected), within_s=60)
    for received in receiver.requests:
        data: dict[str, Any] = json.loads(received.body)["data"]
        prompt = turns[data["turn"]]
        outcome, text, code, named = expected[prompt]
        error = data["error"] or {"code": None, "message": ""}
        assert (prompt, data["outcome"], data["text"], error["code"]) == (prompt, outcome, text, code)
        assert named in error["message"], prompt


@pytest.mark.requirement("bad-input:receiver")
async def test_every_way_a_receiver_misbehaves_ends_in_a_dead_letter_with_its_reason_and_a_replay_delivers_it(
    tmp_path: Path, real_url: str
) -> None:
    with refusing_url() as refusing:
        async with (
            stand_in('[[calls]]\nsteps = [ { text = "An answer." } ]', tmp_path) as provider,
            Receiver(Hang()) as hanging,
            Receiver(Answer(500), Answer(500), Answer(500), Answer(204)) as failing,
            Receiver(Answer(302, {"location": "http://elsewhere.example/"})) as redirecting,
            Stack(tmp_path, real_url) as stack,
        ):
            receivers = {
                "refusing": refusing,
                "hanging": hanging.url,
                "failing": failing.url,
                "redirecting": redirecting.url,
            }
            endpoints = "".join(endpoint(name, url) for name, url in receivers.items())
            stack.configure(settings(provider.base_url, refusing, endpoints))
            stack.start("delivery")
            stack.start("turns")
            turn = await stack.submit("Say something.", destinations=tuple(receivers))
            dead = await stack.deliveries(lambda each: each.state == "dead", count=len(receivers))
            reasons = {each.destination: (each.attempts, each.code, each.log[-1].code) for each in dead}
            await replaying.replay(stack.client, next(each.id for each in dead if each.destination == "failing"))
            replayed = await failing.nth(4)
    assert reasons == {
        "refusing": (3, "attempts_spent", "connect_refused"),
        "hanging": (3, "attempts_spent", "timeout"),
        "failing": (3, "attempts_spent", "http_500"),
        "redirecting": (3, "redirect", "redirect"),
    }
    assert {json.loads(each.body)["data"]["turn"] for each in failing.requests} == {turn}
    assert len({each.headers["webhook-id"] for each in failing.requests}) == 1
    assert json.loads(replayed.body)["data"]["text"] == "An answer."
