"""Live readers over a real socket."""

import asyncio
import contextlib
import gc
import socket
import tracemalloc
from collections.abc import AsyncGenerator, Iterable
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from channels.web import live, tail, tokens
from channels.web.event_stream import EventStream
from channels.web.reader import KEEPALIVE, Reader
from tests.store.turns import Redis
from tests.support.stack import eventually
from tests.support.web import EventSource, Fold, Served, read_along, serving, web_settings
from tests.support.written_turn import WrittenTurn
from tests.web.test_web_turns import error_of
from worker.output.events import TurnCompletedOutput
from worker.output.filters import OutputFilter
from worker.store import keys, outputs
from worker.store.records import RECORD_VERSION
from worker.turn.usage import NO_USAGE

SCOPE = "events:read"


@pytest.fixture(autouse=True)
def _looked_after_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "REFRESH_S", 0.1)


async def take(events: Any, count: int) -> None:
    for _ in range(count):
        await anext(events)


async def rest_of(events: Any) -> None:
    async for _ in events:
        pass


async def discarded_once(web: Served) -> tuple[WrittenTurn, list[str]]:
    """Ten deltas, a discard, four deltas (T18); the ids of the deltas of the first attempt."""
    written = await WrittenTurn.begun(web.redis)
    written.accumulator.watched = False
    await written.open()
    written.accumulator.watched = True
    for _ in range(10):
        await deltas(written, 1)
    ids = [entry.decode() for entry, _ in await web.redis.xrange(keys.out(written.turn))]
    await written.die()
    await deltas(written, 4)
    return written, ids


async def deltas(written: WrittenTurn, count: int) -> None:
    """Text alone, without thinking."""
    await written.open()
    for _ in range(count):
        text = written.piece()
        written.streamed.append(text)
        written.accumulator.stage_text(text)
        await written.tick.flush()


def agrees(fold: Fold, written: WrittenTurn) -> bool:
    return fold.buffer.committed == written.committed and fold.buffer.staged == written.open_text


@pytest.mark.requirement("cases:t18:late-join")
async def test_who_joins_late_gets_the_living_attempt_alone_and_then_what_comes(web: Served) -> None:
    written, _ = await discarded_once(web)
    fold = Fold()
    async with await web.client(SCOPE) as client:
        events = read_along(client, written.turn, fold)
        await take(events, 1)
        assert fold.names == ["snapshot"]
        assert fold.buffer.staged == written.open_text == "[11é][12é][13é][14é]"
        await deltas(written, 2)
        await take(events, 2)
        assert fold.names == ["snapshot", "text_delta", "text_delta"]
        assert agrees(fold, written)
        await written.complete()
        await written.end()
        await rest_of(events)
    assert fold.names[-3:] == ["text", "call_completed", "turn_completed"]
    assert (fold.buffer.committed, fold.buffer.outcome) == (written.committed, "completed")


@pytest.mark.requirement("cases:t18:cursor-in-a-dead-attempt")
async def test_who_comes_back_with_an_id_of_a_dead_attempt_hears_its_discard_before_the_next_one(web: Served) -> None:
    written, ids = await discarded_once(web)
    fold = Fold()
    async with await web.client(SCOPE) as client:
        events = read_along(client, written.turn, fold, last_id=ids[4])
        await take(events, 10)
        assert fold.names == ["text_delta"] * 5 + ["text_stream_discarded"] + ["text_delta"] * 4
        assert [event.data["attempt"] for event in fold.events] == [1] * 6 + [2] * 4
        assert agrees(fold, written)
        await events.aclose()


@pytest.mark.requirement("cases:t18:trimmed-id")
@pytest.mark.requirement("streams:j:cursor-behind-the-trimmed-head")
async def test_who_comes_back_with_a_trimmed_id_is_told_to_start_afresh(web: Served) -> None:
    written, ids = await discarded_once(web)
    await written.trim(5)
    for trimmed in (ids[1], ids[4]):
        fold = Fold()
        async with await web.client(SCOPE) as client:
            events = read_along(client, written.turn, fold, last_id=trimmed)
            await take(events, 1)
            assert (fold.names, fold.events[0].data["reason"]) == (["reset"], "unknown_id")
            assert agrees(fold, written)
            await events.aclose()


@pytest.mark.requirement("cases:t18:trimmed-id")
async def test_an_id_that_is_the_last_one_and_not_there_any_more_tells_of_no_loss(web: Served) -> None:
    written, ids = await discarded_once(web)
    await written.die()
    last = (await web.redis.xrevrange(keys.out(written.turn), count=1))[0][0].decode()
    assert last not in ids
    await web.redis.xdel(keys.out(written.turn), last)
    fold = Fold()
    async with await web.client(SCOPE) as client:
        events = read_along(client, written.turn, fold, last_id=last)
        await take(events, 1)
        assert (fold.names, fold.events[0].data["reason"]) == (["reset"], "unknown_id")
        await events.aclose()


@pytest.mark.requirement("readers:rewound")
async def test_who_comes_back_with_an_id_beyond_the_last_one_is_told_that_the_store_has_lost_it(web: Served) -> None:
    """What follows may have a lower id: a server that lost its end may also have a clock that is behind."""
    written, ids = await discarded_once(web)
    ms, _, seq = ids[-1].partition("-")
    for lost in (f"{int(ms) + 10_000}-1", f"{int(ms) + 10_000}-{int(seq) + 100}"):
        fold = Fold()
        async with await web.client(SCOPE) as client:
            events = read_along(client, written.turn, fold, last_id=lost)
            await take(events, 1)
            assert (fold.names, fold.events[0].data["reason"]) == (["reset"], "rewound")
            assert agrees(fold, written)
            await events.aclose()


@pytest.mark.requirement("readers:gap")
async def test_what_was_trimmed_behind_a_known_id_is_no_silent_gap(web: Served) -> None:
    written = await WrittenTurn.begun(web.redis)
    fold = Fold()
    async with await web.client(SCOPE) as client:
        await deltas(written, 3)
        await written.complete()
        events = read_along(client, written.turn, fold)
        await take(events, 1)
        known = fold.last_id
        await events.aclose()
        await deltas(written, 20)
        await written.trim(18)
        events = read_along(client, written.turn, fold, last_id=known)
        await take(events, 1)
        assert (fold.names[-1], fold.events[-1].data["reason"]) == ("reset", "missed")
        assert agrees(fold, written)
        await events.aclose()


@pytest.mark.requirement("cases:t18:minus-one")
@pytest.mark.requirement("streams:j:malformed-last-event-id")
@pytest.mark.parametrize("named", ["-1", "0-0", "$", "1", "x" * 5000, "9999999999999-1", "1-1", "00-01", "*"])
async def test_an_id_that_was_never_sent_replays_nothing(web: Served, named: str) -> None:
    written, _ = await discarded_once(web)
    fold = Fold()
    async with await web.client(SCOPE) as client:
        events = read_along(client, written.turn, fold, last_id=named)
        await take(events, 1)
        await deltas(written, 1)
        await take(events, 1)
        assert fold.names == ["reset", "text_delta"]
        assert agrees(fold, written)
        await events.aclose()


@pytest.mark.requirement("cases:t18:after-expiry")
async def test_who_comes_back_after_the_turn_is_kept_no_more_is_told_so(web: Served) -> None:
    written, ids = await discarded_once(web)
    await written.complete()
    await written.end()
    for name in [key async for key in web.redis.scan_iter(f"*{written.turn}")]:
        await web.redis.delete(name)
    async with await web.client(SCOPE) as client:
        answer = await client.get(f"/v1/turns/{written.turn}/events", headers={"Last-Event-ID": ids[-1]})
        assert error_of(answer)[:2] == (404, "not_found")


@pytest.mark.requirement("cases:t18:ids-grow")
@pytest.mark.requirement("streams:j:ids-within-a-millisecond")
async def test_ids_grow_also_within_a_millisecond_and_over_reconnects(web: Served) -> None:
    written = await WrittenTurn.begun(web.redis)
    fold = Fold()  # which refuses an id that does not grow
    async with await web.client(SCOPE) as client:
        events = read_along(client, written.turn, fold)
        await take(events, 1)
        for _ in range(3):
            await deltas(written, 10)
            await written.complete()
            await take(events, 12)
            await events.aclose()
            events = read_along(client, written.turn, fold)
        await written.end()
        await rest_of(events)
    assert fold.names == ["snapshot", *(["text_delta"] * 10 + ["text", "call_completed"]) * 3, "turn_completed"]
    assert [event.data["seq"] for event in fold.events[1:]] == list(range(1, 38))
    assert len({event.id.split("-")[0] for event in fold.events}) < len(fold.events)


@pytest.mark.requirement("cases:t18:ends-pass-every-filter")
@pytest.mark.parametrize("query", ["?filter=usage", "?filter=", "?filter=none", "?filter=tool_calls,processing_state"])
async def test_what_decides_about_text_passes_every_filter(web: Served, query: str) -> None:
    written = await WrittenTurn.begun(web.redis)
    fold = Fold()
    async with await web.client(SCOPE) as client:
        events = read_along(client, written.turn, fold, query=query)
        await take(events, 1)
        await deltas(written, 3)
        await written.die()
        await deltas(written, 3)
        await written.complete()
        await written.end()
        await rest_of(events)
    assert fold.names == ["snapshot", "text_stream_discarded", "call_completed", "turn_completed"]
    assert fold.buffer.committed == ""


@pytest.mark.requirement("readers:filter")
async def test_who_wants_only_text_that_stands_sees_none_that_streams(web: Served) -> None:
    written = await WrittenTurn.begun(web.redis)
    fold = Fold()
    await deltas(written, 2)
    async with await web.client(SCOPE) as client:
        events = read_along(client, written.turn, fold, query="?filter=text")
        await take(events, 1)
        assert fold.events[0].data["open_text"] == ""
        await deltas(written, 2)
        await written.complete()
        await written.end()
        await rest_of(events)
        assert fold.names == ["snapshot", "text", "call_completed", "turn_completed"]
        assert fold.buffer.committed == written.committed
        wrong = await client.get(f"/v1/turns/{written.turn}/events?filter=text,sound")
        assert error_of(wrong) == (422, "invalid", "filter")
        assert "text_streaming" in wrong.json()["error"]["message"]


@pytest.mark.requirement("readers:unwatched")
async def test_a_turn_is_watched_for_those_who_read_streams_and_for_nobody_else(
    web: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that is silent for longer than a watch lasts is still watching: the process says so for it."""
    monkeypatch.setattr("channels.web.live.WATCH_S", 0.4)
    monkeypatch.setattr("channels.web.reader.WATCH_S", 0.4)
    written = await WrittenTurn.begun(web.redis)
    await web.redis.delete(keys.watch(0))

    async def left_ms() -> float:
        seconds, micros = await web.redis.time()
        until = await web.redis.zscore(keys.watch(0), written.turn)
        return -1.0 if until is None else until - (seconds * 1000 + micros // 1000)

    async with await web.client(SCOPE) as client:
        events = read_along(client, written.turn, Fold(), query="?filter=text")
        await take(events, 1)
        assert await left_ms() == -1.0
        streaming = read_along(client, written.turn, Fold())
        await take(streaming, 1)
        first = await web.redis.zscore(keys.watch(0), written.turn)
        assert await left_ms() > 0

        async def until() -> float:
            return float(await web.redis.zscore(keys.watch(0), written.turn))

        await eventually(until, lambda seen: seen > first + 800, "a watch that goes on")
        await streaming.aclose()
        await eventually(left_ms, lambda left: left < 0, "the end of the watch")
        await events.aclose()


@pytest.mark.requirement("readers:sealed")
async def test_a_turn_that_has_ended_can_be_read_and_is_not_read_twice(web: Served) -> None:
    written = await WrittenTurn.begun(web.redis)
    await written.complete("All of it.")
    await written.end()
    fold = Fold()
    async with await web.client(SCOPE) as client:
        await rest_of(read_along(client, written.turn, fold))
        assert fold.names == ["snapshot", "turn_completed"]
        assert (fold.buffer.committed, fold.buffer.outcome) == ("All of it.", "completed")
        again = await client.get(f"/v1/turns/{written.turn}/events", headers={"Last-Event-ID": fold.last_id})
        assert again.status_code == 204


@pytest.mark.requirement("readers:waiting")
async def test_a_turn_that_nobody_drives_yet_can_be_read(web: Served) -> None:
    fold = Fold()
    async with await web.client(SCOPE, "turns:write") as client:
        turn = (await client.post("/v1/turns", json={"prompt": "hi"})).json()
        events = read_along(client, turn["turn"], fold)
        await take(events, 1)
        assert (fold.events[0].data["state"], fold.events[0].id) == ("queued", "")
        await client.post(turn["urls"]["cancel"])
        await rest_of(events)
    assert fold.names == ["snapshot", "turn_completed"]
    assert fold.buffer.outcome == "cancelled"


@pytest.mark.requirement("readers:takeover")
async def test_a_takeover_is_seen_as_a_discard(web: Served) -> None:
    written = await WrittenTurn.begun(web.redis)
    fold = Fold()
    async with await web.client(SCOPE) as client:
        events = read_along(client, written.turn, fold)
        await take(events, 1)
        await deltas(written, 3)
        await written.be_taken_over()
        await deltas(written, 2)
        await written.complete()
        await written.end()
        await rest_of(events)
    assert fold.names.index("text_stream_discarded") == 4
    assert fold.buffer.committed == written.committed == "[4é][5é]"


@pytest.mark.requirement("readers:rewound")
@pytest.mark.requirement("streams:j:rolled-back-store")
async def test_a_store_that_was_put_back_is_told_and_what_was_lost_is_forgotten(web: Served) -> None:
    written = await WrittenTurn.begun(web.redis)
    fold = Fold()
    async with await web.client(SCOPE) as client:
        events = read_along(client, written.turn, fold)
        await take(events, 1)
        await deltas(written, 3)
        await written.complete()
        saved = await written.save()
        # What is lost was written by a server whose clock was ahead: what comes then has smaller ids.
        seconds, _ = await web.redis.time()
        await web.redis.hset(keys.turn_record(written.turn), "at", (seconds + 60) * 1000)
        await deltas(written, 5)
        await written.complete()
        await take(events, 12)
        assert agrees(fold, written)
        lost = written.committed
        await written.be_put_back(saved)
        await take(events, 1)
        assert (fold.names[-1], fold.events[-1].data["reason"]) == ("reset", "rewound")
        assert agrees(fold, written)
        assert len(written.committed) < len(lost)
        await deltas(written, 2)
        await written.complete()
        await written.end()
        await rest_of(events)
        assert fold.buffer.committed == written.committed
        assert fold.names.count("reset") == 1
        # An id of what was lost is none any more, though the turn has as many outputs again.
        late = Fold()
        gone = next(event.id for event in fold.events if event.data.get("seq") == 8)
        await rest_of(read_along(client, written.turn, late, last_id=gone))
        assert late.names[0] == "reset"
        assert late.buffer.committed == written.committed


@pytest.mark.requirement("readers:many")
async def test_many_readers_of_many_turns_take_one_reading_connection(web: Served) -> None:
    turns = [await WrittenTurn.begun(web.redis, f"chat/{number}") for number in range(4)]
    folds = [(written, Fold()) for written in turns for _ in range(10)]
    async with await web.client(SCOPE) as client:
        streams = [read_along(client, written.turn, fold) for written, fold in folds]
        for stream in streams:
            await take(stream, 1)
        reading = [one for one in await web.redis.client_list() if one["cmd"] == "xread"]
        assert len(reading) <= 1
        for _ in range(5):
            for written in turns:
                await deltas(written, 2)
        for written in turns:
            await written.complete()
            await written.end()
        await asyncio.gather(*(rest_of(stream) for stream in streams))
    for written, fold in folds:
        assert fold.buffer.committed == written.committed
        assert fold.names == ["snapshot", *["text_delta"] * 10, "text", "call_completed", "turn_completed"]


class SlowReader:
    """A reader that takes nothing until it is told to: a socket with a small buffer."""

    def __init__(self, web: Served, token: str, turn: str) -> None:
        self._request = (
            f"GET /v1/turns/{turn}/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n".encode()
        )
        self._address = (urlsplit(web.url).hostname, urlsplit(web.url).port)
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._socket.setblocking(False)

    async def connect(self) -> None:
        loop = asyncio.get_running_loop()
        await loop.sock_connect(self._socket, self._address)
        await loop.sock_sendall(self._socket, self._request)

    async def read(self, fold: Fold) -> None:
        """Take everything, to the end of the answer."""
        loop = asyncio.get_running_loop()
        source, raw, body = EventSource(), b"", b""
        async with asyncio.timeout(30):
            while not raw.endswith(b"0\r\n\r\n"):
                data = await loop.sock_recv(self._socket, 65536)
                if not data:
                    break
                raw += data
        body = raw.partition(b"\r\n\r\n")[2]
        while body:
            size, _, body = body.partition(b"\r\n")
            for event in source.feed(body[: int(size, 16)]):
                fold.take(event)
            body = body[int(size, 16) + 2 :]

    def close(self) -> None:
        self._socket.close()


@pytest.mark.requirement("readers:slow")
@pytest.mark.requirement("streams:j:unbounded-queue")
async def test_a_slow_reader_costs_itself_its_place_and_nobody_else_anything(
    web: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail, "_MOST_BYTES", 200_000)
    written = await WrittenTurn.begun(web.redis)
    token = await web.token(SCOPE)
    slow, slow_fold, quick_fold = SlowReader(web, token, written.turn), Fold(), Fold()
    await slow.connect()
    async with await web.client(SCOPE) as client:
        events = read_along(client, written.turn, quick_fold)
        await take(events, 1)
        turn = web.process._live._turns[written.turn]

        async def tails() -> int:
            return len(turn.tails)

        await eventually(tails, lambda count: count == 2, "the slow reader's arrival")
        written.accumulator.watched = True
        for _ in range(250):  # 15 MB: more than every buffer on the way holds
            await written.open()
            text = written.piece(60_000)
            written.streamed.append(text)
            written.accumulator.stage_text(text)
            await written.tick.flush()
            await anext(events)
            assert max(one._bytes for one in turn.tails) <= 200_000
        assert quick_fold.names.count("reset") == 0
        assert any(one.missed for one in turn.tails)
        await written.die()
        await written.complete("In short: yes.")
        await written.end()
        await rest_of(events)
    assert quick_fold.buffer.committed == "In short: yes."
    await slow.read(slow_fold)
    slow.close()
    reset = next(event for event in slow_fold.events if event.name == "reset")
    assert reset.data["reason"] == "missed"
    assert slow_fold.names[-1] == "turn_completed"
    assert (slow_fold.buffer.committed, slow_fold.buffer.staged) == ("In short: yes.", "")


@pytest.mark.requirement("tuning:web:write-timeout-s")
@pytest.mark.requirement("readers:gone")
async def test_a_reader_that_takes_nothing_for_too_long_or_hangs_up_is_given_up(real_url: str) -> None:
    async with serving(web_settings(real_url, write_timeout_s=0.5)) as web:
        written = await WrittenTurn.begun(web.redis)
        token = await web.token(SCOPE)
        stuck, gone = (SlowReader(web, token, written.turn) for _ in range(2))
        for reader in (stuck, gone):
            await reader.connect()

        async def readers() -> int:
            return sum(len(turn.tails) for turn in web.process._live._turns.values())

        await eventually(readers, lambda count: count == 2, "two readers")
        gone.close()
        await eventually(readers, lambda count: count == 1, "the end of the reader that hung up")
        for _ in range(250):
            await written.say(1, 60_000)
        await eventually(readers, lambda count: count == 0, "the end of the reader that takes nothing")
        stuck.close()


@pytest.mark.requirement("readers:gone:place")
async def test_a_reader_that_is_gone_is_let_go_also_where_its_cancel_is_lost_on_the_way() -> None:
    """As in `asyncio.wait_for` of Python 3.11, when what it waits for has just ended."""
    lost = 0

    async def events() -> AsyncGenerator[bytes, None]:
        nonlocal lost
        yield b"x"
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        lost += 1
        await asyncio.Event().wait()

    taken = asyncio.Event()

    async def send(message: Any) -> None:
        if message.get("body"):
            taken.set()

    async def receive() -> Any:
        await taken.wait()
        return {"type": "http.disconnect"}

    ended: list[bool] = []
    async with asyncio.timeout(20):
        await EventStream(events(), 5, lambda: ended.append(True))({"type": "http"}, receive, send)
    assert (lost, ended) == (1, [True])


@pytest.mark.requirement("tuning:web:readers")
@pytest.mark.requirement("tuning:web:readers-per-token")
@pytest.mark.requirement("readers:caps")
async def test_there_are_no_more_readers_than_may_be(real_url: str) -> None:
    async with serving(web_settings(real_url, readers=3, readers_per_token=2)) as web:
        written = await WrittenTurn.begun(web.redis)
        path = f"/v1/turns/{written.turn}/events"
        async with await web.client(SCOPE) as one, await web.client(SCOPE) as two:
            streams = [read_along(one, written.turn, Fold()) for _ in range(2)]
            for stream in streams:
                await take(stream, 1)
            refused = await one.get(path)
            assert error_of(refused)[:2] == (503, "too_many_readers")
            assert "readers_per_token" in refused.json()["error"]["message"]
            assert refused.headers["retry-after"]
            third = read_along(two, written.turn, Fold())
            await take(third, 1)
            assert error_of(await two.get(path))[:2] == (503, "too_many_readers")
            await streams[0].aclose()

            async def status() -> str:
                with contextlib.suppress(httpx.ReadTimeout):
                    answer = await two.get(path, timeout=httpx.Timeout(20, read=0.2))
                    return error_of(answer)[1]
                return "taken"

            assert await eventually(status, lambda seen: seen == "taken", "room for another reader")
            for stream in (streams[1], third):
                await stream.aclose()


@pytest.mark.requirement("tuning:web:keepalive-s")
@pytest.mark.requirement("readers:keepalive")
async def test_a_silent_turn_is_kept_alive_by_comments_also_where_a_filter_hides_what_comes(real_url: str) -> None:
    async with serving(web_settings(real_url, keepalive_s=0.1)) as web:
        written = await WrittenTurn.begun(web.redis)
        source = EventSource()
        async with (
            await web.client(SCOPE) as client,
            client.stream("GET", f"/v1/turns/{written.turn}/events?filter=usage") as answer,
            asyncio.timeout(20),
        ):
            events = []
            async for data in answer.aiter_bytes():
                events += source.feed(data)
                await deltas(written, 1)
                if len(source.comments) >= 5:
                    break
    assert source.comments[:5] == ["keepalive"] * 5
    assert [event.name for event in events] == ["snapshot"]


@pytest.mark.requirement("readers:drain")
async def test_a_process_that_ends_sends_its_readers_on_and_they_miss_nothing(real_url: str) -> None:
    settings = web_settings(real_url)
    async with serving(settings) as one, serving(settings) as two:
        written = await WrittenTurn.begun(one.redis)
        fold = Fold()
        text = await one.token(SCOPE)
        async with httpx.AsyncClient(headers={"Authorization": f"Bearer {text}"}, timeout=20) as client:
            client.base_url = httpx.URL(one.url)
            source = EventSource()
            async with client.stream("GET", f"/v1/turns/{written.turn}/events") as answer:
                async for data in answer.aiter_bytes():
                    for event in source.feed(data):
                        fold.take(event)
                    if fold.names == ["snapshot"]:
                        await deltas(written, 2)
                    if fold.names == ["snapshot", "text_delta", "text_delta"]:
                        one.process.drain()
            assert source.retries == [1000]
            assert fold.buffer.outcome is None
            refused = await client.get(f"/v1/turns/{written.turn}/events")
            assert error_of(refused)[:2] == (503, "draining")
            ready = await client.get("/readyz")
            assert (ready.status_code, ready.json()["reasons"]) == (503, ["draining"])
            assert (await client.get("/livez")).status_code == 200
            await deltas(written, 2)
            await written.complete()
            await written.end()
            client.base_url = httpx.URL(two.url)
            await rest_of(read_along(client, written.turn, fold))
        assert "reset" not in fold.names
        assert fold.names.count("text_delta") == 4
        assert fold.buffer.committed == written.committed


@pytest.mark.requirement("readers:forgotten")
async def test_a_turn_that_the_store_forgets_ends_its_readers(web: Served) -> None:
    written = await WrittenTurn.begun(web.redis)
    fold = Fold()
    async with await web.client(SCOPE) as client:
        events = read_along(client, written.turn, fold)
        await take(events, 1)
        await web.redis.flushall()
        await rest_of(events)
    assert fold.names == ["snapshot"]
    assert fold.buffer.outcome is None


@pytest.mark.requirement("streams:j:readerless-events")
async def test_what_was_said_while_nobody_read_is_in_the_snapshot(web: Served) -> None:
    written = await WrittenTurn.begun(web.redis)
    await written.complete("Said to nobody. ")
    written.accumulator.watched = False
    await written.open()
    written.streamed.append("And this too")
    written.accumulator.stage_text("And this too")
    await written.tick.flush()
    fold = Fold()
    async with await web.client(SCOPE) as client:
        events = read_along(client, written.turn, fold)
        await take(events, 1)
        assert fold.buffer.committed == "Said to nobody. "
        written.accumulator.watched = True
        await written.tick.flush()
        await take(events, 1)
        assert agrees(fold, written)
        await written.accumulator.discard(2, 1, NO_USAGE, [])
        await written.accumulator.seal("failed", "x", None, "", NO_USAGE, [TurnCompletedOutput(outcome="failed")])
        await rest_of(events)
    assert fold.buffer.outcome == "failed"


@pytest.mark.requirement("readers:other-versions")
@pytest.mark.parametrize(
    "stored",
    [{"z1.1": "a new kind"}, {"h": "no place"}, {"o": "{"}, {"o": '{"type": "text", "text_at": ["here"]}'}],
    ids=["kind", "place", "no JSON", "form"],
)
async def test_what_a_newer_version_wrote_in_one_turn_holds_up_no_reader(web: Served, stored: dict[str, str]) -> None:
    one, two = await WrittenTurn.begun(web.redis, "one"), await WrittenTurn.begun(web.redis, "two")
    one_fold, two_fold = Fold(), Fold()
    async with await web.client(SCOPE) as client:
        of_one, of_two = read_along(client, one.turn, one_fold), read_along(client, two.turn, two_fold)
        for written, events in ((one, of_one), (two, of_two)):
            await deltas(written, 1)
            while "text_delta" not in (one_fold if written is one else two_fold).names:
                if (await anext(events)).data.get("open_text"):
                    break
        at, seq = await web.redis.hmget(keys.turn_record(one.turn), "at", "seq")
        await web.redis.xadd(keys.out(one.turn), stored, id=f"{int(at)}-{int(seq) + 1}")
        await web.redis.hset(keys.turn_record(one.turn), "seq", int(seq) + 1)
        for written, events, fold in ((two, of_two, two_fold), (one, of_one, one_fold)):
            await deltas(written, 2)
            await take(events, 2)
            assert agrees(fold, written)
            await events.aclose()


@pytest.mark.requirement("readers:other-versions:end")
async def test_a_turn_whose_end_this_version_cannot_read_ends_its_readers(web: Served) -> None:
    written, fold, source = await WrittenTurn.begun(web.redis), Fold(), EventSource()
    path = f"/v1/turns/{written.turn}/events"
    async with await web.client(SCOPE) as client, asyncio.timeout(20), client.stream("GET", path) as answer:
        async for data in answer.aiter_bytes():
            for event in source.feed(data):
                fold.take(event)
                if fold.names == ["snapshot"]:
                    await deltas(written, 1)
                if fold.names == ["snapshot", "text_delta"]:
                    at, seq = await web.redis.hmget(keys.turn_record(written.turn), "at", "seq")
                    end = {"o": '{"type": "turn_completed", "outcome": "paused", "v": 99}'}
                    await web.redis.xadd(keys.out(written.turn), end, id=f"{int(at)}-{int(seq) + 1}")
                    sealed = {"state": "sealed", "outcome": "completed", "seq": int(seq) + 1}
                    await web.redis.hset(keys.turn_record(written.turn), mapping=sealed)
    assert fold.names == ["snapshot", "text_delta"]
    assert fold.buffer.outcome is None
    assert source.retries == [5000]
    assert "cannot read how" in source.comments[-1]


@pytest.mark.requirement("readers:other-versions:record")
async def test_who_would_start_with_what_a_newer_release_wrote_is_sent_there(real_redis: Redis) -> None:
    written = await WrittenTurn.begun(real_redis)
    await real_redis.hset(keys.turn_record(written.turn), "v", RECORD_VERSION + 1)

    async def all_count(admissions: Iterable[str]) -> set[str]:
        return set(admissions)

    outputs = live.LiveOutputs(real_redis, real_redis, tail.Held(10**9), all_count)
    queue = tail.Tail(written.turn, outputs.held, admission="one", deltas=True)
    events = Reader(real_redis, outputs, queue, OutputFilter.FULL).events(None, is_anew=True, keepalive_s=300)
    told = [event async for event in events]
    assert len(told) == 1
    assert told[0].startswith(b": a newer release writes this turn")
    assert b"retry: 5000" in told[0]


@pytest.mark.requirement("readers:held:pieces")
async def test_a_long_event_is_handed_to_the_server_in_pieces_that_it_waits_between() -> None:
    async def events() -> AsyncGenerator[bytes, None]:
        yield b"x" * 200_000
        yield b"yz"

    sent: list[bytes] = []

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))

    never = asyncio.Event()

    async def receive() -> Any:
        await never.wait()

    await EventStream(events(), 5, lambda: None)({"type": "http"}, receive, send)
    assert b"".join(sent) == b"x" * 200_000 + b"yz"
    assert max(map(len, sent)) <= 65_536


@pytest.mark.requirement("tuning:web:held-bytes")
@pytest.mark.requirement("readers:held")
async def test_readers_that_take_nothing_hold_a_bounded_sum_and_the_same_snapshot_once(real_url: str) -> None:
    size = 9_000_000
    async with serving(web_settings(real_url, held_bytes=size + 2_000_000)) as web:
        one, two = await WrittenTurn.begun(web.redis, "one"), await WrittenTurn.begun(web.redis, "two")
        for written in (one, two):
            await written.complete("z" * size)
        held = web.process._live.held
        token = await web.token(SCOPE)
        stuck = [SlowReader(web, token, one.turn) for _ in range(3)]
        for reader in stuck:
            await reader.connect()

        async def users() -> int:
            return sum(shared.users for shared in held._shared.values())

        await eventually(users, lambda count: count == 3, "three readers of one snapshot")
        assert size < held.total < size + 1_000_000
        source = EventSource()
        async with await web.client(SCOPE) as client, client.stream("GET", f"/v1/turns/{two.turn}/events") as answer:
            events = [event async for data in answer.aiter_bytes() for event in source.feed(data)]
        assert (events, source.retries) == ([], [5000])
        for reader in stuck:
            reader.close()

        async def total() -> int:
            return held.total

        await eventually(total, lambda count: count == 0, "nothing to be held any more")
        fold = Fold()
        async with await web.client(SCOPE) as client:
            events_of_two = read_along(client, two.turn, fold)
            await take(events_of_two, 1)
            assert fold.buffer.committed == "z" * size
            await events_of_two.aclose()


@pytest.mark.requirement("readers:barred")
@pytest.mark.parametrize("how", ["expired", "revoked"])
async def test_a_token_that_counts_no_more_reads_on_no_more(web: Served, how: str) -> None:
    written = await WrittenTurn.begun(web.redis)
    made, text = await tokens.create(web.redis, name="t", scopes=frozenset({SCOPE}))
    source = EventSource()
    headers = {"Authorization": f"Bearer {text}"}
    async with httpx.AsyncClient(base_url=web.url, headers=headers, timeout=20) as client:
        async with asyncio.timeout(20), client.stream("GET", f"/v1/turns/{written.turn}/events") as answer:
            async for data in answer.aiter_bytes():
                if source.feed(data):
                    if how == "revoked":
                        await tokens.revoke(web.redis, made.id)
                    else:
                        await web.redis.pexpire(f"lw:token:{made.id}", 1)
        assert source.comments == ["the token counts no more"]
        assert (await client.get(f"/v1/turns/{written.turn}/events")).status_code == 401


@pytest.mark.requirement("readers:drain:joining")
async def test_a_reader_that_is_just_joining_when_the_process_ends_is_sent_on_at_once(
    real_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    attach = outputs.attach
    came, go_on = asyncio.Event(), asyncio.Event()

    async def attach_slowly(*arguments: Any) -> Any:
        found = await attach(*arguments)
        came.set()
        await go_on.wait()
        return found

    async with serving(web_settings(real_url, keepalive_s=300)) as web:
        written = await WrittenTurn.begun(web.redis)
        monkeypatch.setattr(outputs, "attach", attach_slowly)
        source = EventSource()

        async def read() -> None:
            path = f"/v1/turns/{written.turn}/events"
            async with await web.client(SCOPE) as client, client.stream("GET", path) as answer:
                async for data in answer.aiter_bytes():
                    source.feed(data)

        async with asyncio.timeout(20), asyncio.TaskGroup() as group:
            group.create_task(read())
            await came.wait()
            web.process.drain()
            go_on.set()
        assert source.retries == [1000]


@pytest.mark.requirement("readers:joins-what-is-read")
async def test_who_joins_a_turn_that_the_process_has_read_further_misses_nothing(real_redis: Redis) -> None:
    """Between its snapshot and its place in the queue, another reader's reading has gone on."""
    written = await WrittenTurn.begun(real_redis)
    await deltas(written, 2)

    async def all_count(admissions: Iterable[str]) -> set[str]:
        return set(admissions)

    outputs = live.LiveOutputs(real_redis, real_redis, tail.Held(10**9), all_count)
    tails = [tail.Tail(written.turn, outputs.held, admission="one", deltas=True) for _ in range(2)]
    first, second = (
        Reader(real_redis, outputs, each, OutputFilter.FULL).events(None, is_anew=True, keepalive_s=0.1)
        for each in tails
    )
    assert b"event: snapshot" in await anext(first)
    assert await anext(first) == KEEPALIVE  # it has joined
    assert b"event: snapshot" in await anext(second)
    await deltas(written, 1)
    assert await outputs.read_once() == 1
    for events in (second, first):
        assert '"text":"[3é]"'.encode() in await anext(events)
        await events.aclose()


@pytest.mark.requirement("readers:held")
async def test_a_reader_that_has_taken_its_snapshot_holds_it_no_more(web: Served) -> None:
    written = await WrittenTurn.begun(web.redis)
    await written.complete("z" * 3_000_000)
    async with await web.client(SCOPE) as client:
        tracemalloc.start()
        try:
            readers = [read_along(client, written.turn, Fold()) for _ in range(10)]
            for reader in readers:
                await take(reader, 1)

            async def kept() -> int:
                gc.collect()
                traces = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, "*/channels/web/*")])
                return sum(trace.size for trace in traces.traces)

            await eventually(kept, lambda size: size < 3_000_000, "snapshots that were taken to be let go")
        finally:
            tracemalloc.stop()
        for reader in readers:
            await reader.aclose()
