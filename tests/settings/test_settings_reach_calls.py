"""Each setting of a provider that a call meets, by whole turns in this process on a real server and over real HTTP.

What is expected cannot come of a default. Those that were there before are proved through real workers, see
`tests/process/test_settings_reach_providers.py`.
"""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import redis.asyncio

from channels.rehearsal.server import StandIn
from tests.support.stack import eventually, stand_in
from tests.support.whole_turns import WIRES, settings_of, turn_with, whole_turn
from worker import api
from worker.settings import WorkerSettings
from worker.store import keys
from worker.store.health import HealthRules, Standing, standings
from worker.wiring import TurnProcess

ANSWER = '[[calls]]\nsteps = [ { text = "An answer." } ]\n'
CUT_ONCE = f'[[calls]]\nsteps = [ {{ text = "Half an " }}, {{ cut = true }} ]\n\n{ANSWER}'
THOUGHT = '[[calls]]\nsteps = [ { reasoning = "Hm. " }, { text = "An answer." } ]\n'
EMPTY = '[[calls]]\nsteps = [ { reasoning = "Hm. " } ]\n'
ONCE = {"timeout_resume_retry_budget": 0}


@pytest.mark.requirement("tuning:providers:wire")
@pytest.mark.parametrize("wire", WIRES)
async def test_a_provider_is_asked_in_its_wire_format(wire: str, real_url: str, tmp_path: Path) -> None:
    turn = await whole_turn(real_url, tmp_path, ANSWER, wire)
    assert (turn.text, [each.wire for each in turn.asked]) == ("An answer.", [wire])


@pytest.mark.requirement("tuning:providers:api-key")
@pytest.mark.parametrize(
    ("wire", "header"), [("chat", "authorization"), ("responses", "authorization"), ("anthropic", "x-api-key")]
)
async def test_the_key_of_a_provider_is_sent_as_its_wire_format_has_it(
    wire: str, header: str, real_url: str, tmp_path: Path
) -> None:
    """What is in it is looked at in `tests/process/test_settings_reach_providers.py`."""
    turn = await whole_turn(real_url, tmp_path, ANSWER, wire, api_key="sesame")
    sent = {name for name in turn.asked[0].request["headers"] if name in ("authorization", "x-api-key")}
    assert (turn.text, sent) == ("An answer.", {header})


@pytest.mark.requirement("tuning:providers:profile")
@pytest.mark.parametrize(
    ("profile", "script", "code"),
    [("compat", THOUGHT, None), ("strict", THOUGHT, "undocumented"), ("strict", ANSWER, None)],
    ids=["compat", "strict", "strict and as documented"],
)
async def test_a_strict_provider_is_held_to_what_is_documented(
    profile: str, script: str, code: str | None, real_url: str, tmp_path: Path
) -> None:
    """Reasoning is in no document of the chat format."""
    turn = await whole_turn(real_url, tmp_path, script, profile=profile, turns=ONCE)
    assert turn.code == code


TWO_TOOLS = '{ tool = "clock", arguments = {} }, { tool = "clock", arguments = { timezone = "Asia/Tokyo" } }'
LONG_LINE = f'{{ text = "{"x" * 2000}" }}'
LONG_EVENT = '{ raw = "data: never ends\\n", times = 200 }'
LONG_STREAM = '{ raw = ": still here\\n\\n", times = 200 }'


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(
    ("limit", "value", "step", "code"),
    [
        pytest.param(
            "line_bytes",
            1024,
            LONG_LINE,
            "line_too_long",
            id="line-bytes",
            marks=pytest.mark.requirement("tuning:providers:limits:line-bytes"),
        ),
        pytest.param(
            "event_bytes",
            1024,
            LONG_EVENT,
            "event_too_long",
            id="event-bytes",
            marks=pytest.mark.requirement("tuning:providers:limits:event-bytes"),
        ),
        pytest.param(
            "stream_bytes",
            1024,
            LONG_STREAM,
            "stream_too_long",
            id="stream-bytes",
            marks=pytest.mark.requirement("tuning:providers:limits:stream-bytes"),
        ),
        pytest.param(
            "index",
            0,
            TWO_TOOLS,
            "index_too_high",
            id="index",
            marks=pytest.mark.requirement("tuning:providers:limits:index"),
        ),
        pytest.param(
            "text_chars",
            5,
            '{ text = "An answer." }',
            "text_too_long",
            id="text-chars",
            marks=pytest.mark.requirement("tuning:providers:limits:text-chars"),
        ),
        pytest.param(
            "argument_chars",
            5,
            '{ tool = "clock", arguments = { timezone = "UTC" } }',
            "arguments_too_long",
            id="argument-chars",
            marks=pytest.mark.requirement("tuning:providers:limits:argument-chars"),
        ),
        pytest.param(
            "tool_calls",
            1,
            TWO_TOOLS,
            "too_many_tool_calls",
            id="tool-calls",
            marks=pytest.mark.requirement("tuning:providers:limits:tool-calls"),
        ),
    ],
)
async def test_an_answer_that_outgrows_a_limit_ends_with_the_code_of_that_limit(
    wire: str, limit: str, value: int, step: str, code: str, real_url: str, tmp_path: Path
) -> None:
    """By default each of these answers is small."""
    script = f"[[calls]]\nsteps = [ {step} ]\n"
    turn = await whole_turn(real_url, tmp_path, script, wire, limits={limit: value}, turns=ONCE)
    assert (turn.record.outcome, turn.discards, turn.tools_run) == ("failed", ["protocol"], [])
    assert turn.record.failure is not None
    assert f"({code})" in turn.record.failure.message


@pytest.mark.requirement("tuning:providers:reasoning-timeout-s")
async def test_a_provider_that_only_reasons_is_asked_again_after_its_reasoning_timeout(
    real_url: str, tmp_path: Path
) -> None:
    script = f'[[calls]]\nsteps = [ {{ reasoning = "{"m" * 500}", pieces = 500, every_s = 0.03 }} ]\n\n{ANSWER}'
    turn = await whole_turn(real_url, tmp_path, script, reasoning_timeout_s=0.4)
    assert (turn.text, turn.discards) == ("An answer.", ["reasoning"])


@pytest.mark.requirement("tuning:providers:extra-body")
async def test_the_extra_body_of_a_provider_is_in_its_requests_below_that_of_the_agent(
    real_url: str, tmp_path: Path
) -> None:
    turn = await whole_turn(
        real_url,
        tmp_path,
        ANSWER,
        extra_body={"seed": 7, "top_p": 0.5},
        agents={"default": {"extra_body": {"seed": 8}}},
    )
    [exchange] = turn.asked
    assert (exchange.request["seed"], exchange.request["top_p"]) == (8, 0.5)


@pytest.mark.requirement("tuning:providers:fallback")
async def test_a_call_whose_first_attempt_died_is_asked_of_the_fallback(real_url: str, tmp_path: Path) -> None:
    async with stand_in(CUT_ONCE, tmp_path) as provider:
        backup = {"base_url": provider.base_url, "model": "of-the-backup", "extra_body": {"seed": 9}}
        turn = await turn_with(
            real_url, provider, fallback="backup", providers={"backup": backup}, extra_body={"seed": 7}
        )
    assert turn.text == "An answer."
    asked = [(each.request["model"], each.request["seed"]) for each in turn.asked]
    assert asked == [("stand-in", 7), ("of-the-backup", 9)]


@pytest.mark.requirement("tuning:turns:empty-answer-nudges")
async def test_an_answer_without_text_is_asked_for_as_often_as_it_may_be(real_url: str, tmp_path: Path) -> None:
    """Six times by default."""
    turn = await whole_turn(
        real_url, tmp_path, f'after_last = "last"\n{EMPTY}', turns={"empty_answer_nudges": 1, "max_calls": 20}
    )
    assert (turn.code, len(turn.asked)) == ("empty_answer", 2)


@pytest.mark.requirement("tuning:turns:empty-answer-nudges-after-tools")
async def test_an_answer_without_text_after_a_tool_is_asked_for_as_often_as_it_may_be_then(
    real_url: str, tmp_path: Path
) -> None:
    """Nine times by default, after the call that ran the tool."""
    script = f'after_last = "last"\n[[calls]]\nsteps = [ {{ tool = "clock", arguments = {{}} }} ]\n\n{EMPTY}'
    turn = await whole_turn(real_url, tmp_path, script, turns={"empty_answer_nudges_after_tools": 1, "max_calls": 20})
    assert (turn.code, len(turn.asked)) == ("empty_answer", 3)


# What all processes together know of a provider.


@contextlib.asynccontextmanager
async def one_death(
    url: str, folder: Path, client: redis.asyncio.Redis, **health: float
) -> AsyncIterator[WorkerSettings]:
    """A provider died of one attempt, its fallback answered, and the process that saw it goes on."""
    async with stand_in(CUT_ONCE, folder) as provider:
        settings = settings_with_backup(url, provider, health)
        process = TurnProcess(settings)
        await process.start()
        try:
            submitted = await api.submit(settings, client, prompt="When?", source="test", wake=lambda _: None)
            await process.run_session(submitted.session)
            yield settings
        finally:
            await process.stop()


def settings_with_backup(url: str, provider: StandIn, health: dict[str, float]) -> WorkerSettings:
    backup = {"base_url": provider.base_url, "model": "of-the-backup"}
    lease = {"ttl_s": 0.8, "renew_s": 0.1}
    return settings_of(
        url, provider.base_url, fallback="backup", providers={"backup": backup}, provider_health=health, lease=lease
    )


@pytest.mark.requirement("tuning:provider-health:deaths")
@pytest.mark.requirement("tuning:provider-health:skip-s")
async def test_a_provider_is_skipped_after_as_many_deaths_and_for_as_long_as_is_set(
    real_url: str, real_redis: redis.asyncio.Redis, tmp_path: Path
) -> None:
    """By default after five, and for a minute."""
    async with one_death(real_url, tmp_path, real_redis, deaths=1, skip_s=600) as settings:
        rules = HealthRules(1, settings.provider_health.window_s, 600)

        async def look() -> Standing:
            return (await standings(real_redis, ["main"], rules))["main"]

        seen = await eventually(look, lambda standing: standing.left_s is not None, "the provider to be skipped")
    assert seen.left_s is not None
    assert 500 < seen.left_s <= 600


@pytest.mark.requirement("tuning:provider-health:window-s")
async def test_deaths_are_counted_as_long_as_the_window_says(
    real_url: str, real_redis: redis.asyncio.Redis, tmp_path: Path
) -> None:
    """For a minute by default."""
    async with one_death(real_url, tmp_path, real_redis, deaths=9, window_s=600):

        async def kept_s() -> float:
            return (await real_redis.pttl(keys.health("main"))) / 1000

        assert 500 < await eventually(kept_s, lambda seconds: seconds > 0, "the death to be counted") <= 600


@pytest.mark.requirement("tuning:providers:omit-body")
@pytest.mark.parametrize("wire", WIRES)
async def test_a_key_that_a_server_refuses_is_left_out_of_its_requests(
    wire: str, real_url: str, tmp_path: Path
) -> None:
    key = {"chat": "stream_options", "responses": "store", "anthropic": "max_tokens"}[wire]
    sent = await whole_turn(real_url, tmp_path, ANSWER, wire)
    assert key in sent.asked[0].request
    left_out = await whole_turn(real_url, tmp_path, ANSWER, wire, omit_body=[key])
    assert key not in left_out.asked[-1].request
