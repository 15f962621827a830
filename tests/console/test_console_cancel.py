"""`lastword turns cancel`, and what `submit` says of a session that is busy."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import redis.asyncio

from channels.console import exits
from tests.store.turns import commit, completed, driver_of, outputs_of_commit, seal, taken, with_tools
from worker.store import connect, keys
from worker.store.accumulator import ExecutionOutputAccumulator
from worker.turn.facts import Joined
from worker.turn.usage import NO_USAGE

Lastword = Callable[..., Any]
pytestmark = pytest.mark.usefixtures("provider")


@pytest.fixture
def store(real_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("LASTWORD_REDIS_URL", real_url)
    return real_url


def submitted(lastword: Lastword, *more: str) -> str:
    ran = lastword("submit", "hello", "--session", "chat/1", "--json", *more)
    assert ran.code == exits.OK
    turn: str = json.loads(ran.out)["turn"]
    return turn


def driving(url: str, act: Callable[[ExecutionOutputAccumulator], Awaitable[None]]) -> None:
    """Claim the turn and do something with it."""

    async def work() -> None:
        client = connect.open_redis(url)
        await act(driver_of(client, await taken(client)))
        await client.aclose()

    asyncio.run(work())


async def open_a_call(accumulator: ExecutionOutputAccumulator) -> None:
    await accumulator.open_call(1, 1, 0, True)


async def answer(accumulator: ExecutionOutputAccumulator) -> None:
    await open_a_call(accumulator)
    await commit(accumulator, 1, 1, "hi")
    await seal(accumulator)


@pytest.mark.requirement("cancel:console")
def test_a_turn_that_waits_is_cancelled_and_shows_who_wanted_it(lastword: Lastword, store: str) -> None:
    turn = submitted(lastword)
    ran = lastword("turns", "cancel", turn, "--by", "jo")
    assert (ran.code, ran.out) == (exits.OK, f"{turn} cancelled\n")
    shown = lastword("turns", "show", turn, "--json")
    assert shown.code == exits.CANCELLED
    head = json.loads(shown.out)
    assert (head["outcome"], head["reason"], head["cancelled_by"]) == ("cancelled", "requested", "jo")
    again = lastword("turns", "cancel", turn)
    assert (again.code, again.out) == (exits.OK, f"{turn} ended: cancelled\n")
    assert store


@pytest.mark.requirement("cancel:console")
def test_a_turn_that_runs_is_being_cancelled_and_a_wait_that_is_over_says_so(lastword: Lastword, store: str) -> None:
    turn = submitted(lastword)
    driving(store, open_a_call)
    ran = lastword("turns", "cancel", turn)
    assert (ran.code, ran.out) == (exits.OK, f"{turn} is being cancelled by the process that runs it\n")
    ran = lastword("turns", "cancel", turn, "--wait", "0.1", "--json")
    assert ran.code == exits.UNDECIDED
    assert json.loads(ran.out) == {"turn": turn, "state": "cancelling", "outcome": None}


@pytest.mark.requirement("cancel:console")
def test_a_turn_that_had_ended_tells_how_and_the_code_is_1(lastword: Lastword, store: str) -> None:
    turn = submitted(lastword)
    driving(store, answer)
    ran = lastword("turns", "cancel", turn)
    assert (ran.code, ran.out) == (exits.FAILED, f"{turn} ended: completed\n")


@pytest.mark.requirement("cancel:console")
@pytest.mark.parametrize(("turn", "named"), [("turn_1", "is no turn id"), ("turn_00" + "a" * 20, "is not known")])
def test_what_is_no_turn_is_named_and_the_code_is_2(lastword: Lastword, store: str, turn: str, named: str) -> None:
    ran = lastword("turns", "cancel", turn)
    assert ran.code == exits.USAGE
    assert turn in ran.err
    assert named in " ".join(ran.err.split())
    assert store


@pytest.mark.requirement("cancel:console")
def test_without_a_worker_the_answer_says_that_the_turn_waits_for_one(lastword: Lastword) -> None:
    turn = submitted(lastword)
    ran = lastword("turns", "cancel", turn)
    assert (ran.code, ran.out) == (exits.OK, f"{turn} cancelled\n")


@pytest.mark.requirement("cancel:console")
def test_what_a_newer_version_has_written_is_not_cancelled(lastword: Lastword, store: str) -> None:
    turn = submitted(lastword)

    async def age() -> None:
        client: Any = redis.asyncio.Redis.from_url(store)
        await client.hset(keys.turn_record(turn), "v", 99)
        await client.aclose()

    asyncio.run(age())
    ran = lastword("turns", "cancel", turn)
    assert ran.code == exits.FAILED
    assert "newer version" in ran.out


@pytest.mark.requirement("sessions:console")
def test_a_message_that_will_not_wait_is_refused_with_the_turn_in_its_way(lastword: Lastword, store: str) -> None:
    turn = submitted(lastword)
    ran = lastword("submit", "no", "--session", "chat/1", "--on-busy", "reject")
    assert (ran.code, ran.out) == (exits.FAILED, "")
    assert f"session chat/1 is busy with {turn}" in ran.err
    assert store


@pytest.mark.requirement("sessions:console")
def test_a_message_that_interrupts_tells_which_turn_it_ended(lastword: Lastword, store: str) -> None:
    turn = submitted(lastword)
    ran = lastword("submit", "now", "--session", "chat/1", "--on-busy", "interrupt", "--json")
    told = json.loads(ran.out)
    assert (ran.code, told["interrupted"]) == (exits.OK, turn)
    head = json.loads(lastword("turns", "show", turn, "--json").out)
    assert (head["outcome"], head["reason"], head["cancelled_by"]) == ("cancelled", "interrupted", told["turn"])
    assert store


@pytest.mark.requirement("sessions:console")
def test_a_way_that_there_is_not_is_refused_before_anything_is_asked(lastword: Lastword) -> None:
    ran = lastword("submit", "now", "--on-busy", "wait")
    assert ran.code == exits.USAGE
    assert "'queue', 'reject', 'interrupt'" in " ".join(ran.err.split())


@pytest.mark.requirement("sessions:console")
def test_a_message_that_joined_shows_where_it_went(lastword: Lastword, store: str) -> None:
    first, second = submitted(lastword, "--join"), submitted(lastword, "--join")

    async def carry(accumulator: ExecutionOutputAccumulator) -> None:
        await with_tools(accumulator, "mail")
        messages = await accumulator.waiting_messages()
        await accumulator.open_call(2, 1, 0, True, carries=[message.turn for message in messages])
        fact, joined = completed(2, 1, "Both."), [Joined(2, message.turn, message.text) for message in messages]
        await accumulator.commit(fact, NO_USAGE, outputs_of_commit(fact), joined)

    driving(store, carry)
    shown = lastword("turns", "show", second)
    assert shown.code == exits.OK
    assert re.search(rf"merged_into +{first}", shown.out)
    assert f"turn merged into {first}" in shown.out
