"""The server goes away for long, dies, forgets its wake-ups or is full: what waits goes on by itself, once."""

import asyncio
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import redis

from tests.faults.scene import SLOW, SLOW_TEXT, TTL_S, ends, faults_of, settings, texts
from tests.support.forwarder import Forwarder
from tests.support.receiver import Answer, Receiver
from tests.support.stack import Stack, stand_in
from tests.support.valkey import Valkey
from worker import ids
from worker.errors import StoreFull, StoreUnavailable
from worker.output.events import TextDeltaOutput, TextStreamDiscardedOutput
from worker.store import connect
from worker.store.inbox import NewTurn, submit
from worker.store.outputs import all_outputs
from worker.store.records import read_turn

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

NEXT_CALL = """
[[calls]]
steps = [ { text = "I will look, and take my time. ", pieces = 30, every_s = 0.2 }, { tool = "note" } ]

[[calls]]
steps = [ { text = "Here it is." } ]
"""
NEXT_CALL_TEXT = "I will look, and take my time. Here it is."
WAITS = "timeout_s = 1\nretry_waits_s = [6]"
LEASES = 7
"""How many lifetimes of a lease an outage lasts: a minute of the default of 8 s."""


def new_turn(key: str) -> NewTurn:
    return NewTurn(ids.new_turn(0), ids.new_session(), "Say it.", "default", "test", {}, ("receiver",), key, 7200)


@pytest.mark.requirement("faults:away:nothing-starts")
async def test_a_server_that_is_away_for_a_minute_starts_no_tool_and_no_call_and_loses_nothing(
    tmp_path: Path, real_url: str
) -> None:
    """The first call ends in the outage; its tool and the next call wait for the server, and nobody takes over."""
    port = urlsplit(real_url).port
    assert port is not None
    async with (
        stand_in(NEXT_CALL, tmp_path) as provider,
        Receiver() as receiver,
        Forwarder(port) as network,
        Stack(tmp_path, real_url) as stack,
    ):
        stack.configure(settings(provider.base_url, receiver.url))
        through = real_url.replace(str(port), str(network.port))
        cut = {"LASTWORD_REDIS_URL": through, "TOOL_RUNS": str(tmp_path / "runs")}
        processes = [
            stack.start("delivery", environment=cut),
            stack.start("turns", environment=cut),
            stack.start("turns", environment=cut),
        ]
        turn = await stack.submit("Look.", destinations=("receiver",), watch_s=60)
        await stack.until(turn, lambda output: isinstance(output, TextDeltaOutput))
        client = connect.open_redis(through)
        new = new_turn("a-key")
        async with network.away():
            with pytest.raises(StoreUnavailable, match="submit it again with an idempotency key"):
                await submit(client, new, 1, patience_s=1)
            await asyncio.sleep(LEASES * TTL_S)
            started = len(provider.transcript.exchanges)
            ran = (tmp_path / "runs").exists()
        again = [(await submit(client, new_turn("a-key"), 1)).turn for _ in range(2)]
        await client.aclose()
        await receiver.nth(2, within_s=60)
        outputs = await all_outputs(stack.client, turn)
        found = faults_of(processes)
    assert (started, ran) == (1, False)
    assert len(set(again)) == 1
    assert texts(receiver) == {turn: [("completed", NEXT_CALL_TEXT)], again[0]: [("completed", NEXT_CALL_TEXT)]}
    assert ends(provider) == ["complete"] * 4
    assert not [output for output in outputs if isinstance(output, TextStreamDiscardedOutput)]
    assert (tmp_path / "runs").read_text(encoding="utf-8") == f"{turn}:1:0\n{again[0]}:1:0\n"
    assert found == []


@pytest.mark.requirement("faults:restart:goes-on")
@pytest.mark.parametrize("how", ["stopped", "killed", "loading"])
async def test_a_server_that_is_started_again_on_its_file_goes_on_where_it_was(tmp_path: Path, how: str) -> None:
    """`loading`: it reads its file for longer than a lease, and says so to all who ask."""
    slowly = ("key-load-delay 500", "loading-process-events-interval-bytes 1024") if how == "loading" else ()
    with Valkey(tmp_path / "valkey", *slowly) as server:
        with redis.Redis.from_url(server.url) as client:
            pipeline = client.pipeline(transaction=False)
            for number in range(4000 if slowly else 0):
                pipeline.set(f"of-somebody-else:{number}", "x" * 100)
            pipeline.execute()
        async with (
            stand_in(SLOW, tmp_path) as provider,
            Receiver(Answer(503), Answer(200)) as receiver,
            Stack(tmp_path, server.url) as stack,
        ):
            stack.configure(settings(provider.base_url, receiver.url).replace("timeout_s = 1", WAITS))
            runs = {"TOOL_RUNS": str(tmp_path / "runs")}
            processes = [stack.start("delivery"), *(stack.start("turns", environment=runs) for _ in range(2))]
            first = await stack.submit("Look.", destinations=("receiver",))
            await receiver.nth(1, within_s=30)  # refused: its delivery waits
            second = await stack.submit("Look.", destinations=("receiver",), watch_s=60)
            await stack.until(second, lambda output: isinstance(output, TextDeltaOutput) and output.call == 2)
            (server.kill if how == "killed" else server.stop)()
            await asyncio.sleep(0.5)
            await asyncio.to_thread(server.start)
            await receiver.nth(3, within_s=40)
            found = faults_of(processes)
            answers = {line.get("error") for process in processes for line in process.lines()}
    assert ("BusyLoadingError" in answers) == (how == "loading")
    assert texts(receiver) == {turn: [("completed", SLOW_TEXT)] for turn in (first, second)}
    assert ends(provider) == ["complete"] * 4
    assert (tmp_path / "runs").read_text(encoding="utf-8") == f"{first}:1:0\n{second}:1:0\n"
    assert found == []


@pytest.mark.requirement("faults:broker:flushed")
async def test_a_broker_whose_database_is_flushed_loses_wake_ups_and_no_turn(tmp_path: Path) -> None:
    """Wake-ups are gone, and with them all that Celery had declared; the next ones pass all the same."""
    with Valkey(tmp_path / "valkey") as server:
        broker = server.url.replace("/0", "/1")
        async with stand_in(SLOW, tmp_path) as provider, Receiver() as receiver, Stack(tmp_path, server.url) as stack:
            stack.configure(settings(provider.base_url, receiver.url))
            there = {"LASTWORD_BROKER_URL": broker, "TOOL_RUNS": str(tmp_path / "runs")}
            processes = [stack.start("delivery", environment=there), stack.start("turns", environment=there)]
            turns = [await stack.submit("Look.", destinations=("receiver",), watch_s=60)]
            await stack.until(turns[0], lambda output: isinstance(output, TextDeltaOutput) and output.call == 2)
            with redis.Redis.from_url(broker) as client:
                assert client.keys("*")
                client.flushdb()
            await receiver.nth(1, within_s=30)
            turns.append(await stack.submit("Look.", destinations=("receiver",)))
            await receiver.nth(2, within_s=30)
            found = faults_of(processes)
    assert texts(receiver) == {turn: [("completed", SLOW_TEXT)] for turn in turns}
    assert ends(provider) == ["complete"] * 4
    assert found == []


@pytest.mark.requirement("faults:broker:away")
async def test_a_broker_that_is_away_holds_up_wake_ups_and_nothing_that_runs(tmp_path: Path, real_url: str) -> None:
    """A server of its own: down as the processes start, up, down in mid-stream, and up again."""
    with Valkey(tmp_path / "valkey") as broker:
        broker.stop()
        async with stand_in(SLOW, tmp_path) as provider, Receiver() as receiver, Stack(tmp_path, real_url) as stack:
            stack.configure(settings(provider.base_url, receiver.url))
            there = {"LASTWORD_BROKER_URL": broker.url, "TOOL_RUNS": str(tmp_path / "runs")}
            processes = [stack.start("delivery", environment=there), stack.start("turns", environment=there)]
            first = await stack.submit("Look.", destinations=("receiver",), watch_s=60)
            await stack.logged(processes[1], "wake_up_not_sent")
            broker.start()
            await stack.until(first, lambda output: isinstance(output, TextDeltaOutput) and output.call == 2)
            broker.kill()
            await receiver.nth(1, within_s=30)
            second = await stack.submit("Look.", destinations=("receiver",))
            broker.start()
            await receiver.nth(2, within_s=40)
            found = faults_of(processes)
    assert texts(receiver) == {turn: [("completed", SLOW_TEXT)] for turn in (first, second)}
    assert ends(provider) == ["complete"] * 4
    assert found == []


@pytest.mark.requirement("faults:full:ends-and-delivers")
async def test_a_full_server_takes_nothing_new_and_ends_and_delivers_what_it_has(tmp_path: Path) -> None:
    """The broker is on it, too: no wake-up can be sent. What streams is committed, sealed and delivered meanwhile, by a
    delivery process that starts only now."""
    with Valkey(tmp_path / "valkey") as server, redis.Redis.from_url(server.url) as client:
        async with stand_in(SLOW, tmp_path) as provider, Receiver() as receiver, Stack(tmp_path, server.url) as stack:
            stack.configure(settings(provider.base_url, receiver.url))
            runs = {"TOOL_RUNS": str(tmp_path / "runs")}
            processes = [stack.start("turns", environment=runs)]
            first = await stack.submit("Look.", destinations=("receiver",), watch_s=60)
            await stack.until(first, lambda output: isinstance(output, TextDeltaOutput) and output.call == 2)
            waiting = await stack.submit("Look.", destinations=("receiver",))
            client.config_set("maxmemory", 1)
            with pytest.raises(StoreFull, match="raise maxmemory"):
                await submit(stack.client, new_turn("a-key"), 1)
            processes.append(stack.start("delivery"))
            await receiver.nth(1, within_s=30)
            told = texts(receiver)
            client.config_set("maxmemory", 0)
            await receiver.nth(2, within_s=40)
            found = faults_of(processes)
    assert told == {first: [("completed", SLOW_TEXT)]}
    assert texts(receiver) == told | {waiting: [("completed", SLOW_TEXT)]}
    assert (tmp_path / "runs").read_text(encoding="utf-8") == f"{first}:1:0\n{waiting}:1:0\n"
    assert found == []


@pytest.mark.requirement("faults:full:waits-for-room")
async def test_a_turn_that_needs_another_call_in_a_full_server_waits_for_room_and_goes_on(tmp_path: Path) -> None:
    """Its call is committed; the tool that it asks for starts once there is room, and runs once. Nobody is a victim."""
    with Valkey(tmp_path / "valkey") as server, redis.Redis.from_url(server.url) as client:
        async with (
            stand_in(NEXT_CALL, tmp_path) as provider,
            Receiver() as receiver,
            Stack(tmp_path, server.url) as stack,
        ):
            # A lease that lasts: on a busy machine a short one may end by itself, which counts as a crash, too.
            stack.configure(settings(provider.base_url, receiver.url).replace(f"ttl_s = {TTL_S}", "ttl_s = 12"))
            runs = {"TOOL_RUNS": str(tmp_path / "runs")}
            processes = [stack.start("delivery"), stack.start("turns", environment=runs)]
            turn = await stack.submit("Look.", destinations=("receiver",), watch_s=60)
            await stack.until(turn, lambda output: isinstance(output, TextDeltaOutput))
            client.config_set("maxmemory", 1)
            await stack.logged(processes[1], "turn_waits_for_room")
            ran = (tmp_path / "runs").exists()
            client.config_set("maxmemory", 0)
            await receiver.nth(1, within_s=40)
            record = await read_turn(stack.client, turn)
            found = faults_of(processes)
    assert not ran
    assert record is not None
    assert record.crashes == 0
    assert texts(receiver) == {turn: [("completed", NEXT_CALL_TEXT)]}
    assert ends(provider) == ["complete"] * 2
    assert (tmp_path / "runs").read_text(encoding="utf-8") == f"{turn}:1:0\n"
    assert found == []
