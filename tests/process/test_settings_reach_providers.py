"""Each setting of a provider and of an agent, from the file through one real worker to what the provider saw.

One worker drives them all: a provider and an agent stand for each setting, and all turns begin at once. What is
expected cannot come of a default: those are minutes, or other counts.
"""

import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from channels.embedded import EmbeddedServer
from channels.rehearsal.server import StandIn
from tests.support.receiver import Answer, Receiver
from tests.support.stack import Stack, database, stand_in
from worker.output.events import ErrorOutput, Output, TextOutput, TextStreamDiscardedOutput, UsageOutput
from worker.store.records import read_turn

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

SCRIPT = """
after_last = "last"

[[conversations]]
match = "<prefill>"
calls = [ { steps = [ { stall = true } ] }, { steps = [ { text = "An answer." } ] } ]

[[conversations]]
match = "<first-token>"
calls = [ { steps = [ { text = "Half an " }, { stall = true } ] }, { steps = [ { text = "An answer." } ] } ]

[[conversations]]
match = "<no-progress>"
calls = [
  { steps = [ { text = "Half an " }, { keepalive_every_s = 0.05 } ] },
  { steps = [ { text = "An answer." } ] },
]

[[conversations]]
match = "<stall>"
calls = [ { steps = [ { text = "Half an " }, { stall = true } ] }, { steps = [ { text = "An answer." } ] } ]

[[conversations]]
match = "<grace>"
calls = [ { steps = [ { text = "An answer." }, { finish = "stop" }, { pause_s = 3.5 }, { done = true } ] } ]

[[conversations]]
match = "<busy"
calls = [ { status = 503 } ]

[[calls]]
steps = [ { text = "An answer." } ]
"""
STREAM = Answer(
    headers={"Content-Type": "text/event-stream"},
    body=b'data: {"choices": [{"index": 0, "delta": {"content": "An answer."}, "finish_reason": "stop"}]}\n\n'
    b"data: [DONE]\n\n",
)

PROVIDERS = {
    "prefill": "prefill_timeout_s = 1\nfirst_token_timeout_s = 1",
    "first-token": "first_token_timeout_s = 1\nstall_timeout_s = 0",
    "no-progress": "no_progress_timeout_s = 1\nfirst_token_timeout_s = 1\nstall_timeout_s = 0",
    "stall": "stall_timeout_s = 1",
    "grace": "finish_grace_s = 0.1",
    "busy": "transport_retries = 6\ntransport_backoff_s = 0.02",
    "busy-wait": "transport_retries = 5\ntransport_backoff_s = 0.02",
    "busy-longest-wait": "transport_retries = 12\ntransport_backoff_s = 0.05\ntransport_backoff_max_s = 0.05",
    "headers": 'headers = { x-team = "blue" }',
}
"""Providers that are the stand-in. An agent of the same name asks each."""
AGENTS = {
    "model": 'provider = "modelled"',
    "instructions": 'instructions = "Answer in one sentence."',
    "instructions-file": 'instructions_file = "instructions.md"',
    "another-provider": 'provider = "headers"',
    "another-model": 'model = "of-the-agent"',
    "max-tokens": "max_tokens = 77",
    "temperature": "temperature = 0.25",
    "extra-body": "extra_body = { seed = 7, top_p = 0.5 }",
    "agent-headers": 'provider = "headers"\nheaders = { X-Team = "red" }',
    "tools": 'tools = ["clock"]',
    "connect": 'provider = "connect"',
    "key": 'provider = "key"',
    "key-file": 'provider = "key-file"',
}


def settings(base_url: str, silent: str, recorder: str) -> str:
    providers = {
        **{name: f'base_url = "{base_url}"\nmodel = "stand-in"\n{lines}' for name, lines in PROVIDERS.items()},
        "main": f'base_url = "{base_url}"\nmodel = "stand-in"',
        "modelled": f'base_url = "{base_url}"\nmodel = "of-the-provider"',
        "connect": f'base_url = "{silent}"\nmodel = "stand-in"\nconnect_timeout_s = 0.3\ntransport_retries = 2\n'
        "transport_backoff_s = 0.05",
        "key": f'base_url = "{recorder}/key"\nmodel = "stand-in"\napi_key = "the-key-in-the-settings"',
        "key-file": f'base_url = "{recorder}/key-file"\nmodel = "stand-in"\napi_key_file = "the.key"',
    }
    agents = AGENTS | {name: f'provider = "{name}"' for name in PROVIDERS}
    return "\n".join(
        ["[lease]\nsweep_s = 0.1\n[turns]\nresume_backoff_s = 0.05"]
        + [f"[providers.{name}]\n{lines}" for name, lines in providers.items()]
        + [f"[agents.{name}]\n{lines}" for name, lines in agents.items()]
    )


@contextlib.contextmanager
def silent_url() -> Iterator[str]:
    """A URL on a port where somebody listens but takes no connection: its queue is full, and no handshake follows."""
    with contextlib.ExitStack() as open_sockets:
        listening = open_sockets.enter_context(socket.socket())
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        for _ in range(4):
            waiting = open_sockets.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listening.getsockname())
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1"


@dataclass(frozen=True)
class Asked:
    """One turn for each agent, asked of it by its name."""

    stack: Stack
    provider: StandIn
    recorder: Receiver
    turns: dict[str, str]

    async def outputs(self, name: str) -> list[Output]:
        """All outputs of the turn, once it has ended."""
        return await self.stack.ended(self.turns[name])

    async def requests(self, name: str) -> list[dict[str, Any]]:
        """The requests that the stand-in provider got for the turn, once it has ended."""
        await self.outputs(name)
        exchanges = self.provider.transcript.exchanges
        return [each.request for each in exchanges if each.prompt == f"<{name}>"]

    async def lasted_s(self, name: str) -> float:
        """Seconds from the submit to the end of the turn, by the store's clock."""
        await self.outputs(name)
        record = await read_turn(self.stack.client, self.turns[name])
        assert record is not None
        assert record.sealed_ms is not None
        return (record.sealed_ms - record.created_ms) / 1000

    async def authorization(self, name: str) -> str | None:
        """The credentials of the one request at the recorder's path of that name."""
        outputs = await self.outputs(name)
        assert [output.text for output in outputs if isinstance(output, TextOutput)] == ["An answer."]
        [request] = [each for each in self.recorder.requests if f"/{name}/chat" in each.path]
        return request.headers.get("authorization")


@pytest.fixture(scope="module")
async def asked(tmp_path_factory: pytest.TempPathFactory, server: EmbeddedServer) -> AsyncIterator[Asked]:
    folder = tmp_path_factory.mktemp("providers")
    (folder / "the.key").write_text("the-key-in-the-file\n", encoding="utf-8")
    (folder / "instructions.md").write_text("Answer in rhymes.\n", encoding="utf-8")
    with silent_url() as silent:
        async with (
            stand_in(SCRIPT, folder) as provider,
            Receiver(STREAM) as recorder,
            Stack(folder, database(server, 1)) as stack,
        ):
            stack.configure(settings(provider.base_url, silent, recorder.url))
            await stack.logged(stack.start("turns"), "turns_process_started")
            turns = {name: await stack.submit(f"<{name}>", agent=name) for name in stack.settings.agents}
            yield Asked(stack, provider, recorder, turns)


@pytest.mark.requirement("tuning:providers:connect-timeout-s")
async def test_a_provider_that_takes_no_connection_is_given_up_after_its_connect_timeout(asked: Asked) -> None:
    """Three tries: a second in all here, and more than half a minute by default."""
    errors = [output.code for output in await asked.outputs("connect") if isinstance(output, ErrorOutput)]
    assert errors == ["connect_timeout"]
    assert await asked.lasted_s("connect") < 20


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        pytest.param("prefill", "prefill", marks=pytest.mark.requirement("tuning:providers:prefill-timeout-s")),
        pytest.param(
            "first-token", "inter_delta", marks=pytest.mark.requirement("tuning:providers:first-token-timeout-s")
        ),
        pytest.param(
            "no-progress", "progress", marks=pytest.mark.requirement("tuning:providers:no-progress-timeout-s")
        ),
        pytest.param("stall", "stall", marks=pytest.mark.requirement("tuning:providers:stall-timeout-s")),
    ],
)
async def test_a_provider_that_falls_silent_is_asked_again_after_the_timeout_that_it_is_given(
    asked: Asked, name: str, reason: str
) -> None:
    """Without a beginning, without a byte, with keepalives alone, and in mid-stream."""
    deaths = [output.reason for output in await asked.outputs(name) if isinstance(output, TextStreamDiscardedOutput)]
    assert deaths[:1] == [reason]


@pytest.mark.requirement("tuning:providers:finish-grace-s")
async def test_usage_that_comes_after_the_finish_grace_is_not_waited_for(asked: Asked) -> None:
    """It comes after 3.5 s, which the default of 5 s would have waited for."""
    outputs = await asked.outputs("grace")
    assert [output.text for output in outputs if isinstance(output, TextOutput)] == ["An answer."]
    assert not [output for output in outputs if isinstance(output, UsageOutput)]


@pytest.mark.requirement("tuning:providers:transport-retries")
async def test_a_request_without_an_answer_is_sent_as_often_as_the_provider_allows(asked: Asked) -> None:
    assert len(await asked.requests("busy")) == 7


@pytest.mark.requirement("tuning:providers:transport-backoff-s")
async def test_the_first_retry_comes_after_the_providers_backoff(asked: Asked) -> None:
    """Five waits, each twice the one before: less than a second here, and at least 23 s by default."""
    assert len(await asked.requests("busy-wait")) == 6
    assert await asked.lasted_s("busy-wait") < 15


@pytest.mark.requirement("tuning:providers:transport-backoff-max-s")
async def test_no_retry_waits_longer_than_the_providers_longest_backoff(asked: Asked) -> None:
    """Twelve waits of 0.05 s, and almost two minutes where they may double up to the default."""
    assert len(await asked.requests("busy-longest-wait")) == 13
    assert await asked.lasted_s("busy-longest-wait") < 20


@pytest.mark.requirement("tuning:providers:api-key")
async def test_the_key_in_the_settings_is_sent_as_a_bearer_token(asked: Asked) -> None:
    assert await asked.authorization("key") == "Bearer the-key-in-the-settings"


@pytest.mark.requirement("tuning:providers:api-key-file")
async def test_the_key_in_a_file_beside_the_settings_is_sent_as_a_bearer_token(asked: Asked) -> None:
    assert await asked.authorization("key-file") == "Bearer the-key-in-the-file"


@pytest.mark.requirement("tuning:providers:headers")
async def test_the_headers_of_a_provider_are_sent(asked: Asked) -> None:
    [request] = await asked.requests("headers")
    assert request["headers"]["x-team"] == "blue"


@pytest.mark.requirement("tuning:providers:model")
async def test_an_agent_without_a_model_asks_for_the_providers(asked: Asked) -> None:
    [request] = await asked.requests("model")
    assert request["model"] == "of-the-provider"


@pytest.mark.requirement("tuning:agents:instructions")
async def test_the_instructions_of_an_agent_stand_before_the_message(asked: Asked) -> None:
    [request] = await asked.requests("instructions")
    assert request["messages"] == [
        {"role": "system", "content": "Answer in one sentence."},
        {"role": "user", "content": "<instructions>"},
    ]


@pytest.mark.requirement("tuning:agents:instructions-file")
async def test_the_instructions_in_a_file_stand_before_the_message(asked: Asked) -> None:
    [request] = await asked.requests("instructions-file")
    assert request["messages"][0] == {"role": "system", "content": "Answer in rhymes."}


@pytest.mark.requirement("tuning:agents:provider")
async def test_an_agent_asks_its_provider(asked: Asked) -> None:
    [request] = await asked.requests("another-provider")
    assert request["headers"]["x-team"] == "blue"


@pytest.mark.requirement("tuning:agents:headers")
async def test_a_header_of_an_agent_stands_in_place_of_its_providers(asked: Asked) -> None:
    """However the two are spelled."""
    [request] = await asked.requests("agent-headers")
    assert request["headers"]["x-team"] == "red"


@pytest.mark.parametrize(
    ("name", "sent"),
    [
        pytest.param(
            "another-model", {"model": "of-the-agent"}, marks=pytest.mark.requirement("tuning:agents:model"), id="model"
        ),
        pytest.param(
            "max-tokens",
            {"max_tokens": 77},
            marks=pytest.mark.requirement("tuning:agents:max-tokens"),
            id="max_tokens",
        ),
        pytest.param(
            "temperature",
            {"temperature": 0.25},
            marks=pytest.mark.requirement("tuning:agents:temperature"),
            id="temperature",
        ),
        pytest.param(
            "extra-body",
            {"seed": 7, "top_p": 0.5},
            marks=pytest.mark.requirement("tuning:agents:extra-body"),
            id="extra_body",
        ),
    ],
)
async def test_what_an_agent_sets_is_in_the_body_of_its_requests(
    asked: Asked, name: str, sent: dict[str, object]
) -> None:
    [request] = await asked.requests(name)
    assert {key: request.get(key) for key in sent} == sent


@pytest.mark.requirement("tuning:agents:tools")
async def test_the_tools_of_an_agent_are_offered(asked: Asked) -> None:
    [request] = await asked.requests("tools")
    assert [tool["function"]["name"] for tool in request["tools"]] == ["clock"]
