"""The command port and sessions that are busy: what a caller may choose, and how a turn is ended from outside."""

from typing import Any

import pytest
import redis.asyncio

from worker import api
from worker.errors import ConfigurationError
from worker.settings import WorkerSettings, load_settings
from worker.store.inbox import SessionBusy, Submitted
from worker.store.records import read_turn

PROVIDERS = {"main": {"base_url": "http://127.0.0.1:9/v1", "model": "stand-in"}}
SETTINGS = WorkerSettings.model_validate({"providers": PROVIDERS})


async def submit(client: redis.asyncio.Redis, settings: WorkerSettings = SETTINGS, **more: Any) -> Submitted:
    return await api.submit(
        settings, client, prompt="hello", source="test", wake=lambda _: None, **{"session": "chat/1", **more}
    )


@pytest.mark.requirement("tuning:turns:on-busy")
async def test_the_setting_says_what_becomes_of_a_message_for_a_busy_session(
    fake_redis: redis.asyncio.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LASTWORD_PROVIDERS__MAIN__BASE_URL", "http://127.0.0.1:9/v1")
    monkeypatch.setenv("LASTWORD_PROVIDERS__MAIN__MODEL", "stand-in")
    monkeypatch.setenv("LASTWORD_TURNS__ON_BUSY", "reject")
    settings = load_settings()
    first = await submit(fake_redis, settings)
    with pytest.raises(SessionBusy, match=first.turn):
        await submit(fake_redis, settings)
    assert (await submit(fake_redis, settings, on_busy="queue")).interrupted is None
    monkeypatch.setenv("LASTWORD_TURNS__ON_BUSY", "interrupt")
    assert (await submit(fake_redis, load_settings())).interrupted == first.turn


@pytest.mark.requirement("sessions:on-busy:bad-input")
async def test_a_word_that_names_no_way_is_refused_with_those_that_do(fake_redis: redis.asyncio.Redis) -> None:
    with pytest.raises(ConfigurationError, match="on_busy 'wait' is none of queue, reject, interrupt"):
        await submit(fake_redis, on_busy="wait")
    assert await fake_redis.keys("*") == []


@pytest.mark.requirement("cancel:port")
async def test_a_turn_is_cancelled_and_its_session_woken(fake_redis: redis.asyncio.Redis) -> None:
    turn = (await submit(fake_redis)).turn
    woken: list[str] = []
    answer = await api.cancel_turn(SETTINGS, fake_redis, turn=turn, by="jo", wake=woken.append)
    assert (answer.state, answer.outcome, answer.session, woken) == ("cancelled", "cancelled", "chat/1", ["chat/1"])
    record = await read_turn(fake_redis, turn)
    assert record is not None
    assert (record.outcome, record.cancelled_by) == ("cancelled", "jo")
    again = await api.cancel_turn(SETTINGS, fake_redis, turn=turn, by="jo", wake=woken.append)
    assert (again.state, again.outcome, woken) == ("ended", "cancelled", ["chat/1"])


@pytest.mark.requirement("cancel:port")
@pytest.mark.parametrize(
    ("turn", "by", "named"),
    [
        ("turn_00" + 20 * "a", "jo", "is not known"),
        ("turn_09" + 20 * "a", "jo", "is not known"),
        ("turn_1", "jo", "'turn_1' is no turn id"),
        ("turn_00" + 20 * "b", " jo", "by ' jo' names nobody"),
    ],
)
async def test_a_cancel_that_cannot_be_says_what_is_wrong(
    fake_redis: redis.asyncio.Redis, turn: str, by: str, named: str
) -> None:
    with pytest.raises(ConfigurationError, match=named) as refused:
        await api.cancel_turn(SETTINGS, fake_redis, turn=turn, by=by, wake=lambda _: None)
    assert isinstance(refused.value, api.TurnNotFound) == (named == "is not known")
