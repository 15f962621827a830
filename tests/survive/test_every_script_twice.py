"""Every script is sent twice, as after a reply that was lost: nothing changes, and the first answer comes again.

Not a list of scripts, but a line that repeats whatever passes, through whole turns with relay and outbox. A new
script fails the last line until a scenario, or the list of those that no scenario needs, sends it.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from redis.exceptions import NoScriptError, ResponseError

from channels.endpoints.record import LEAVING
from channels.outbox import leaving, owing, reading, replaying, upkeep
from channels.outbox.log import RelayLog
from tests.delivery.outboxes import made, store_as_before_lanes
from tests.store.lossy import dump
from tests.store.turns import Redis
from tests.survive.mortal import NAMES, SCRIPTS
from tests.survive.scenarios import ANY_SCENARIO
from tests.survive.stores import NewStore, Store
from tests.survive.story import Story
from worker import ids
from worker.store import claims, health, keys, lease, listing, processes
from worker.store.outputs import attach, watch
from worker.store.processes import Told

PLAYED = ("plain", "tools", "a stream that breaks", "granted", "expired", "compaction", "a drain", "joins", "cancelled")
MOVING = {
    "claim": ("lease_ms", "due", "driven"),
    "renew": ("lease_ms", "due", "driven", "watch"),
    "reserve": ("reserved_ms", "due"),
    "attach": ("watch",),
    "watch": ("watch",),
    "sweep": ("due", "driven"),
    "channels/take": ("exp",),
    "pulse": ("at_ms",),
    "report": ("seen", "processes"),
}
"""What begins afresh with each try, because it lasts for a time from now on."""


BESIDE_OTHERS = {"cancel"}
"""What is sent while somebody drives the turn: he may change something between two looks, and is looked past."""

MOST_TRIES = 5


class Twice:
    """Wraps `client` in place: each script that ran is sent again, and compared. `look`: another client.

    `seen`: the scripts that were; `wrong`: those that changed something or answered otherwise.
    """

    def __init__(self, client: Any, look: Redis, seen: set[str], wrong: list[str]) -> None:
        self._look = look
        self._seen = seen
        self._wrong = wrong
        self._execute = client.execute_command
        self._open_pipeline = client.pipeline
        client.execute_command = self._execute_command
        client.pipeline = self._pipeline

    async def _execute_command(self, *command: Any, **options: Any) -> Any:
        reply = await self._execute(*command, **options)
        await self._again(command, reply)
        return reply

    def _pipeline(self, *args: Any, **options: Any) -> Any:
        pipeline = self._open_pipeline(*args, **options)
        execute = pipeline.execute

        async def twice(*args: Any, **options: Any) -> Any:
            commands = [command for command, _ in pipeline.command_stack]
            replies = await execute(*args, **options)
            for command, reply in zip(commands, replies, strict=True):
                await self._again(command, reply)
            return replies

        pipeline.execute = twice
        return pipeline

    async def _again(self, command: Sequence[Any], reply: Any) -> None:
        if not command or command[0] not in {"EVALSHA", "EVAL"} or isinstance(reply, NoScriptError | ResponseError):
            return
        name = NAMES[command[1]]
        self._seen.add(name)
        left_out = MOVING.get(name, ())
        again, is_same = reply, False
        for _ in range(MOST_TRIES):
            before = await dump(self._look, leave_out=left_out)
            again = await self._execute(*command)
            is_same = await dump(self._look, leave_out=left_out) == before
            if is_same or name not in BESIDE_OTHERS:
                break
        if comparable(name, again) != comparable(name, reply) or not is_same:
            self._wrong.append(name)  # whoever sent it might catch an exception


class TwiceBlocking:
    """The same for the connection of a heartbeat."""

    def __init__(self, client: Any, seen: set[str], wrong: list[str]) -> None:
        self._client = client
        self._seen = seen
        self._wrong = wrong
        self._execute = client.execute_command
        self._open_pipeline = client.pipeline
        client.execute_command = self._execute_command
        client.pipeline = self._pipeline

    def _execute_command(self, *command: Any, **options: Any) -> Any:
        reply = self._execute(*command, **options)
        self._again(command, reply)
        return reply

    def _pipeline(self, *args: Any, **options: Any) -> Any:
        pipeline = self._open_pipeline(*args, **options)
        execute = pipeline.execute

        def twice(*args: Any, **options: Any) -> Any:
            commands = [command for command, _ in pipeline.command_stack]
            replies = execute(*args, **options)
            for command, reply in zip(commands, replies, strict=True):
                self._again(command, reply)
            return replies

        pipeline.execute = twice
        return pipeline

    def _again(self, command: Sequence[Any], reply: Any) -> None:
        if not command or command[0] not in {"EVALSHA", "EVAL"} or isinstance(reply, NoScriptError | ResponseError):
            return
        name = NAMES[command[1]]
        self._seen.add(name)
        before = self._dump(MOVING.get(name, ()))
        again = self._execute(*command)
        if comparable(name, again) != comparable(name, reply) or self._dump(MOVING.get(name, ())) != before:
            self._wrong.append(name)

    def _dump(self, left_out: Sequence[str]) -> dict[bytes, Any]:
        readers: dict[bytes, Callable[[bytes], Any]] = {
            b"hash": self._client.hgetall,
            b"list": lambda key: self._client.lrange(key, 0, -1),
            b"string": self._client.get,
            b"zset": lambda key: self._client.zrange(key, 0, -1, withscores=True),
            b"stream": self._client.xrange,
        }
        found = {key: readers[self._client.type(key)](key) for key in self._client.scan_iter("*")}
        for key, content in found.items():
            if isinstance(content, dict):
                found[key] = {name: value for name, value in content.items() if name.decode() not in left_out}
        return {key: each for key, each in found.items() if not key.decode().endswith(tuple(f":{n}" for n in left_out))}


def comparable(name: str, reply: Any) -> Any:
    """A reply without what tells the time."""
    if name == "claim" and reply:
        record = dict(zip(reply[0][::2], reply[0][1::2], strict=True))
        return ({**record, b"lease_ms": b""}, *reply[1:5], *reply[6:])  # between them: ms to the deadline
    if name == "channels/take":
        return reply[:2]
    if name == "channels/look":  # first of all it tells the time
        return reply[1:]
    if name in {"report", "sweep"}:  # what that gave is due again only in a while, so that no two take it up
        return ()
    if name == "health":  # who is skipped, and for how long from now
        return reply[0], reply[1][::2]
    # A stored answer is kept as words: its numbers come back as their digits.
    return [b"%d" % each if isinstance(each, int) else each for each in reply]


def twice(store: Store, look: Redis, seen: set[str], wrong: list[str]) -> Store:
    def connect() -> Redis:
        client = store.connect()
        Twice(client, look, seen, wrong)
        return client

    return Store(connect, store.sync)


async def of_readers_and_heartbeats(story: Story, turn: str) -> None:
    """What no driver, relay or sender sends."""
    await attach(story.client, turn, 30)
    await watch(story.client, turn, 30)
    nonce = (await story.client.hget(keys.turn_record(turn), "nonce")).decode()
    (renewal,) = lease.renew(story.store.sync, 0, [(turn, nonce)], 8)
    assert renewal.held
    await story.client.zadd(keys.due(0), {keys.DUE_LEASE + story.session: 1})
    assert lease.sweep(story.store.sync, 0) == [story.session]
    await story.client.hset(keys.turn_record(turn), mapping={"reserved": "n1", "reserved_ms": 1})
    assert await claims.reserve(story.client, story.session, "n1", 1)
    report = health.Report(ids.new_nonce(), 1, {"main": health.Counts(3, 1)})
    assert health.exchange(story.store.sync, report, health.HealthRules(2, 60, 60)).fresh
    assert not lease.pulse(story.store.sync, 0, 8)
    told = Told("turns", "turns@here", "here", 1, "0", turns=1, draining=False, stopped=False, loop_lag_s=0)
    processes.report(story.store.sync, "one", told, b"", 5)
    assert await listing.peek(story.client, [turn], ["state"]) == [[b"running"]]


async def of_the_outbox(client: Redis) -> None:
    """What no relay and no sender sends."""
    place = await client.xadd(keys.log_aside(0), {"aside:place": "1-0", "v": "1", "kind": "of yesterday"})
    now_ms = (await client.time())[0] * 1000
    letter = made("1-0", "", lane="", state="dead", due_ms=0, ended_ms=now_ms, turn="")
    assert await RelayLog(client, 0).readmit(place.decode(), [letter]) == 1
    assert (await replaying.replay(client, letter.id)).state == "cancelled"
    await store_as_before_lanes(client, made("evt_old", "audit"))
    assert await upkeep.adopt(client, 0) == 1
    await client.zrem("lw:{dlv}:due:audit", made("evt_old", "audit").id)
    assert await upkeep.mend(client) == 1
    assert (await replaying.cancel(client, made("evt_old", "audit").id, "enough")).state == "cancelled"
    assert (await reading.listed(client, 1)).deliveries
    await owing.owe(client, "audit", owes=True)
    await client.zadd(LEAVING, {"audit": 1})
    assert await leaving.finish(client, "audit", 1) is None


@pytest.mark.requirement("survive:repeat:every-script")
async def test_every_script_that_is_sent_again_changes_nothing_and_gives_its_first_answer(new_store: NewStore) -> None:
    seen: set[str] = set()
    wrong: list[str] = []
    blocking: set[int] = set()
    for name in PLAYED:
        scenario = ANY_SCENARIO[name]
        store = new_store()
        if id(store.sync) not in blocking:  # the real one is the same for all
            TwiceBlocking(store.sync, seen, wrong)
            blocking.add(id(store.sync))
        look = store.connect()
        story = Story(twice(store, look, seen, wrong), scenario, [("stage: unheard", 1)] if name == "plain" else [])
        turns = await story.begun()
        if name == "plain":
            await story.driven(turns, to_the_last_death=True)
            await of_readers_and_heartbeats(story, turns[0])
            await story.client.hset(keys.turn_record(turns[0]), "lease_ms", 1)
        await story.driven(turns)
        if name == "plain":
            await of_the_outbox(story.client)
        await story.ended(turns)
        await look.aclose()
    assert wrong == []
    assert set(SCRIPTS) - seen == set()
