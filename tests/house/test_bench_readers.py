"""The readers of the concurrency benchmark: they lose no turn with a connection, and say what they did not see live."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from time import monotonic_ns
from typing import Any

import pytest
from aiohttp import web

from ops.bench.concurrency_readers import Readers
from tests.support.stack import eventually
from worker.output.events import Output, TextDeltaOutput, TurnCompletedOutput, encode
from worker.output.snapshot import Snapshot

TURN = "turn_1"
END = TurnCompletedOutput(outcome="completed")
Sent = tuple[int, str, bytes]
"""Seq, name and data of an event."""


def snapshot(seq: int, name: str = "snapshot") -> Sent:
    reason: Any = "joined" if name == "snapshot" else "missed"
    shown = Snapshot(turn=TURN, reason=reason, seq=seq, at_ms=1, epoch=1, state="running", marker=0, text="")
    return seq, name, shown.model_dump_json().encode()


def output(seq: int, sent: Output | None = None) -> Sent:
    """An output; a delta that is sent now, unless another one is named."""
    return seq, "output", encode(sent or TextDeltaOutput(call=1, attempt=1, text=f"@{monotonic_ns():015d} "))


@asynccontextmanager
async def reading(*connections: Sequence[Sent]) -> AsyncIterator[tuple[Readers, list[str]]]:
    """Readers of a server that cuts each connection behind these events, and the last ids that they named to it."""
    named: list[str] = []

    async def events(request: web.Request) -> web.StreamResponse:
        if request.match_info["turn"] != TURN:
            raise web.HTTPNotFound
        named.append(request.headers.get("Last-Event-ID", ""))
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        for seq, name, data in connections[len(named) - 1]:
            await answer.write(b"id: 1-%d\nevent: %s\ndata: %s\n\n" % (seq, name.encode(), data))
        assert request.transport is not None
        request.transport.abort()
        return answer

    app = web.Application()
    app.router.add_get("/v1/turns/{turn}/events", events)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    readers = Readers("redis://127.0.0.1:1/0")
    try:
        await readers.ask_web(f"http://127.0.0.1:{runner.addresses[0][1]}", "token")
        yield readers, named
    finally:
        await readers.close()
        await runner.cleanup()


async def report_of(readers: Readers) -> dict[str, Any]:
    """What was seen of one turn that was read to its end."""
    readers.begin()
    readers.measure()
    readers.follow(TURN)

    async def following() -> Any:
        return readers.report()["following"]

    await eventually(following, lambda count: count == 0, "the reader to come to the end")
    report = readers.report()
    assert report["attached"] == 1
    return report


@pytest.mark.requirement("bench:concurrency:readers")
async def test_a_reader_whose_connection_is_cut_goes_on_behind_the_last_id_that_it_saw() -> None:
    first = snapshot(1), output(2), output(3)
    async with reading(first, (output(4),), (output(5), output(6, END))) as (readers, named):
        report = await report_of(readers)
    assert named == ["", "1-3", "1-4"]
    assert (report["failed"], report["again"], report["resets"]) == (0, 2, 0)
    assert (len(report["ages_ms"]), len(report["ends_ms"])) == (4, 1)


@pytest.mark.requirement("bench:concurrency:readers")
@pytest.mark.parametrize("name", ["reset", "snapshot"])
async def test_a_second_snapshot_is_told_as_its_deltas_have_no_age(name: str) -> None:
    async with reading((snapshot(1), output(2), snapshot(5, name), output(6, END))) as (readers, _):
        report = await report_of(readers)
    assert (report["resets"], len(report["ages_ms"])) == (1, 1)


@pytest.mark.requirement("bench:concurrency:readers")
async def test_a_reader_that_is_refused_has_failed_and_the_next_load_begins_without_it() -> None:
    async with reading((snapshot(1), output(2, END))) as (readers, _):
        readers.follow("turn_2")
        await eventually(lambda: failed(readers), lambda count: count == 1, "the reader to fail")
        assert (await report_of(readers))["failed"] == 0


async def failed(readers: Readers) -> Any:
    return readers.report()["failed"]
