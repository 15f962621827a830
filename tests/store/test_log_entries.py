"""The entries of the output log: what each kind tells, and which release can read it."""

from typing import Any

import pytest

from tests.store.turns import Redis, ask, commit, driven, log_of, with_tools
from worker.store import keys, reads
from worker.store.log import LogEntry, Newer, Unreadable, event_words, read_log
from worker.store.reads import read_all


@pytest.mark.requirement("events:log:place")
async def test_a_commit_tells_where_its_text_stands_and_which_output_tells_it_last(any_redis: Redis) -> None:
    accumulator = await driven(any_redis)
    spans = []
    for call, text in enumerate(["Größer", "", " \U0001f30a"], 1):
        await accumulator.open_call(call, 1, 0, True)
        await commit(accumulator, call, 1, text)
        entry = (await log_of(any_redis))[-1]
        ((place, _),) = await any_redis.xrevrange(keys.out(accumulator.turn), count=1)
        assert entry.out == place.decode()
        spans.append(entry.span)
        (stored,) = await read_all(any_redis, [reads.text(accumulator.turn, *entry.span)])
        assert stored.decode() == text
    assert spans == [(0, 8), (8, 8), (8, 13)]


@pytest.mark.requirement("events:log:place")
async def test_a_request_tells_which_output_tells_it(any_redis: Redis) -> None:
    accumulator = await driven(any_redis)
    await with_tools(accumulator, "mail")
    approval = await ask(accumulator)
    entry = (await log_of(any_redis))[-1]
    (request,) = await read_all(any_redis, [reads.request(accumulator.turn, entry.out)])
    assert (entry.kind, entry.approval, request.approval) == ("approval", approval, approval)


@pytest.mark.requirement("events:log:own")
async def test_an_event_comes_back_as_its_words_say(any_redis: Redis) -> None:
    data = '{"text":"ü\u2028","n":18446744073709551616}'.encode()
    words = event_words("evt_1", "delivery.dead", data, "ops", "turn_00" + "b" * 20)
    place = await any_redis.execute_command("XADD", keys.log(0), "*", *words)
    (entry,) = await read_log(any_redis, 0, "0-0", 10, 0)
    assert entry == LogEntry(
        id=place.decode(),
        kind="event",
        event_id="evt_1",
        turn="turn_00" + "b" * 20,
        call=0,
        at_ms=int(place.partition(b"-")[0]),
        outcome=None,
        event_type="delivery.dead",
        data=data,
        to="ops",
    )


@pytest.mark.requirement("events:log:own")
@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ({"v": 2, "kind": "event", "event": "e", "turn": "", "call": 0, "type": "t", "data": "{}", "to": ""}, LogEntry),
        ({"v": 3, "kind": "event"}, Newer),
        ({"v": 2, "kind": "event"}, Unreadable),
        ({"v": 1, "kind": "commit", "event": "e", "turn": "t", "call": 1, "begin": "x"}, Unreadable),
        ({"v": 1, "kind": "commit", "event": "e", "turn": "t", "call": 1}, LogEntry),
    ],
)
async def test_the_version_of_an_entry_says_who_reads_it(fake_redis: Any, words: dict[str, Any], kind: type) -> None:
    await fake_redis.xadd(keys.log(0), words)
    (entry,) = await read_log(fake_redis, 0, "0-0", 10, 0)
    assert isinstance(entry, kind)
