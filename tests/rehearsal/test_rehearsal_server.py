"""Which call answers which request, what the transcript holds, starting and stopping."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from channels.rehearsal.script import load_script
from channels.rehearsal.server import StandIn, serve
from tests.support.asking import Asking, ask
from worker.errors import ConfigurationError

THREE = "\n".join(f'[[calls]]\nsteps = [ {{ text = "{word}" }} ]' for word in ("one", "two", "three"))


def provider(folder: Path, script: str) -> StandIn:
    """A stand-in provider with this script; not started."""
    path = folder / "script.toml"
    path.write_text(script, encoding="utf-8")
    return StandIn(load_script(path), transcript_path=folder / "transcript.jsonl")


def lines(folder: Path) -> list[dict[str, object]]:
    """The transcript file."""
    return [json.loads(line) for line in (folder / "transcript.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.mark.requirement("rehearsal:calls:in-order")
async def test_each_conversation_takes_the_calls_in_order(tmp_path: Path) -> None:
    async with provider(tmp_path, THREE) as stand_in:
        prompts = ("a", "a", "b", "a", "b")
        texts = [(await ask(stand_in.base_url, prompt)).text for prompt in prompts]
    assert texts == ["one", "two", "one", "three", "two"]


async def test_later_messages_do_not_change_the_conversation(tmp_path: Path) -> None:
    first = {"role": "user", "content": [{"type": "text", "text": "a"}]}
    later = [{"role": "system", "content": "x"}, {"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    async with provider(tmp_path, THREE) as stand_in:
        assert (await ask(stand_in.base_url, messages=[first])).text == "one"
        assert (await ask(stand_in.base_url, messages=later)).text == "two"


@pytest.mark.requirement("rehearsal:calls:in-order")
@pytest.mark.parametrize(("after_last", "fourth"), [("repeat", "one"), ("last", "three"), ("refuse", "")])
async def test_what_follows_the_last_call_is_the_scripts_choice(tmp_path: Path, after_last: str, fourth: str) -> None:
    async with provider(tmp_path, f'after_last = "{after_last}"\n{THREE}') as stand_in:
        for _ in range(3):
            await ask(stand_in.base_url)
        answer = await ask(stand_in.base_url)
    assert answer.text == fourth
    assert answer.status == (400 if after_last == "refuse" else 200)
    if after_last == "refuse":
        assert b"3 calls" in answer.body


@pytest.mark.requirement("rehearsal:calls:by-prompt")
async def test_words_of_the_prompt_choose_the_calls(tmp_path: Path) -> None:
    script = f"""{THREE}
    [[conversations]]
    match = "storm"
    calls = [ {{ steps = [ {{ text = "wind" }} ] }} ]
    """
    async with provider(tmp_path, script) as stand_in:
        assert (await ask(stand_in.base_url, "a storm comes")).text == "wind"
        assert (await ask(stand_in.base_url, "a calm day")).text == "one"


async def test_a_prompt_that_fits_no_conversation_is_refused(tmp_path: Path) -> None:
    script = '[[conversations]]\nmatch = "storm"\ncalls = [ { steps = [] } ]\n'
    async with provider(tmp_path, script) as stand_in:
        answer = await ask(stand_in.base_url, "a calm day")
    assert (answer.status, json.loads(answer.body)["error"]["code"]) == (400, "no_conversation")


@pytest.mark.parametrize(
    ("fields", "status", "words"),
    [
        ({"stream": False}, 400, "stream: must be true"),
        ({"messages": []}, 400, "no user message"),
        ({"model": "other"}, 404, "'other' does not exist"),
    ],
)
async def test_a_request_that_no_call_can_answer_is_refused(
    tmp_path: Path, fields: dict[str, object], status: int, words: str
) -> None:
    async with provider(tmp_path, f'models = ["m"]\n{THREE}') as stand_in:
        answer = await ask(stand_in.base_url, **fields)  # type: ignore[arg-type]
        assert (answer.status, (await stand_in.transcript.wait_for_end(1)).call) == (status, None)
        assert (await ask(stand_in.base_url)).text == "one"
    assert words in json.loads(answer.body)["error"]["message"]


async def test_models_and_health_can_be_asked(tmp_path: Path) -> None:
    async with provider(tmp_path, f'models = ["m", "n"]\n{THREE}') as stand_in, httpx.AsyncClient() as client:
        models = (await client.get(f"{stand_in.base_url}/models")).json()
        health = await client.get(stand_in.base_url.removesuffix("/v1") + "/health")
        nonsense = await client.post(f"{stand_in.base_url}/chat/completions", content=b"[1")
    assert [each["id"] for each in models["data"]] == ["m", "n"]
    assert health.json() == {"status": "ok"}
    assert nonsense.status_code == 400


@pytest.mark.requirement("rehearsal:transcript:exact")
async def test_the_transcript_tells_what_was_asked_and_what_was_sent(tmp_path: Path) -> None:
    script = '[[calls]]\nsteps = [ { text = "grün" }, { tool = "clock" } ]\nusage = { prompt_tokens = 3 }\n'
    tools = [{"type": "function", "function": {"name": "clock"}}]
    async with provider(tmp_path, script) as stand_in:
        answer = await ask(stand_in.base_url, "what now", tools=tools, temperature=0.5)
    started, ended = lines(tmp_path)
    assert (started["event"], started["n"], started["wire"], started["call"]) == ("started", 1, "chat", 1)
    assert started["request"] == ended["request"]
    request = started["request"]
    assert isinstance(request, dict)
    assert request["messages"] == [{"role": "user", "content": "what now"}]
    assert (request["model"], request["temperature"], request["tools"]) == ("m", 0.5, tools)
    assert (request["headers"]["x-team"], request["headers"]["authorization"]) == ("blue", "withheld")
    assert (ended["event"], ended["ended"], ended["conversation"]) == ("ended", "complete", started["conversation"])
    assert ended["wire"] == "chat"
    sent = ended["sent"]
    assert isinstance(sent, dict)
    assert (sent["text"], sent["finish_reason"], sent["usage"]) == ("grün", "tool_calls", {"prompt_tokens": 3})
    assert [(call["name"], call["arguments"]) for call in sent["tool_calls"]] == [("clock", "{}")]
    assert sent["bytes"] == len(answer.body)
    assert str(ended["at"]).endswith("+00:00")


@pytest.mark.requirement("rehearsal:transcript:no-keys")
async def test_keys_never_reach_the_transcript(tmp_path: Path) -> None:
    async with provider(tmp_path, THREE) as stand_in, httpx.AsyncClient() as client:
        await ask(stand_in.base_url)
        await client.post(
            f"{stand_in.base_url}/chat/completions",
            json={"model": "m", "stream": True, "messages": [{"role": "user", "content": "hello"}]},
            headers={"API-Key": "sk-secret", "X-Api-Key": "sk-secret", "Cookie": "a=sk-secret"},
        )
    text = (tmp_path / "transcript.jsonl").read_text(encoding="utf-8")
    assert "sk-secret" not in text
    assert "two" in text


@pytest.mark.requirement("rehearsal:transcript:at-once")
async def test_the_start_of_a_request_is_written_before_its_end(tmp_path: Path) -> None:
    script = '[[calls]]\nsteps = [ { text = "half" }, { stall = true } ]\n'
    async with provider(tmp_path, script) as stand_in:
        async with Asking(stand_in.base_url) as asking:
            await asking.until(b'"half"')
            assert [line["event"] for line in lines(tmp_path)] == ["started"]
        await stand_in.transcript.wait_for_end(1)
        assert [line["event"] for line in lines(tmp_path)] == ["started", "ended"]


async def test_a_wait_for_a_request_that_does_not_come_names_it(tmp_path: Path) -> None:
    async with provider(tmp_path, THREE) as stand_in:
        await ask(stand_in.base_url)
        await stand_in.transcript.wait_for_end(1)
        with pytest.raises(TimeoutError, match=r"waited 0.01 s for request 2 to come; .*\(1, 'complete'\)"):
            await stand_in.transcript.wait_for_request(2, within_s=0.01)


@pytest.mark.requirement("rehearsal:server:stops")
async def test_stopping_ends_the_answers_that_still_go_on(tmp_path: Path) -> None:
    stand_in = provider(tmp_path, '[[calls]]\nsteps = [ { text = "half" }, { stall = true } ]\n')
    await stand_in.start()
    async with Asking(stand_in.base_url) as asking:
        await asking.until(b'"half"')
        async with asyncio.timeout(5):
            await stand_in.stop()
        assert (await asking.answer()).end != "whole"
    assert lines(tmp_path)[-1]["ended"] == "stopped"


async def test_an_address_that_is_taken_is_named(tmp_path: Path) -> None:
    async with provider(tmp_path, THREE) as stand_in:
        port = int(stand_in.base_url.split(":")[2].split("/")[0])
        with pytest.raises(ConfigurationError, match=f"port {port}: .*Choose another port"):
            await serve(load_script(tmp_path / "script.toml"), port=port)


def test_a_transcript_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    path = tmp_path / "script.toml"
    path.write_text(THREE, encoding="utf-8")
    with pytest.raises(ConfigurationError, match=r"transcript .*nowhere.* cannot be written"):
        StandIn(load_script(path), transcript_path=tmp_path / "nowhere" / "transcript.jsonl")


@pytest.mark.requirement("rehearsal:server:stops")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_process_serves_until_it_is_told_to_stop(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "script.toml").write_text(THREE, encoding="utf-8")
    program = (
        "from pathlib import Path; from channels.rehearsal.server import run; "
        "run(Path('script.toml'), '127.0.0.1', 0, Path('transcript.jsonl'), lambda url: print(url, flush=True))"
    )
    root = str(Path(__file__).parents[2])
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=tmp_path, env={**os.environ, "PYTHONPATH": root}, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        url = process.stdout.readline().decode().strip()
        answer = asyncio.run(ask(url))
        process.send_signal(number)
        assert process.wait(10) == 0
    assert answer.text == "one"
    assert [line["event"] for line in lines(tmp_path)] == ["started", "ended"]
