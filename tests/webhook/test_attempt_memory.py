"""What attempts cost in memory, measured from outside: in a process that does nothing else."""

import asyncio
import json
import os
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import trustme

from tests.support import bad_receivers as bad
from tests.support.bad_receivers import answering
from tests.support.certificates import ca_file, server_context
from tests.support.peer import Act, Conversation, Peer, hang

LATE_S = 0.5
LIMIT_KB = 2048
ACTS: dict[str, Act] = {
    "drip_head": bad.drip_head,
    "drip_hints": bad.drip_hints,
    "flood_hints": bad.flood_hints,
    "flood_answers": bad.flood_answers,
    "huge_head": bad.huge_head,
    "drip_body": bad.drip_body,
    "flood_body": bad.flood_body,
    "gzip_bomb": bad.gzip_bomb(),
    "reset_in_body": bad.reset_in_body,
    "half_open": bad.half_open,
    "hang": hang,
}

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="the peak of a process is read from /proc"
)


async def said(*arguments: str) -> Any:
    """What a measured process says."""
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.support.attempt_memory",
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parents[2],
        env={**os.environ},
    )
    output, _ = await child.communicate()
    return json.loads(output)


@pytest.mark.requirement("attempt:memory")
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
async def test_no_receiver_costs_an_attempt_2_mb_or_more_than_its_deadline(loop: str) -> None:
    async with AsyncExitStack() as stack:
        good = await stack.enter_async_context(Peer(answering(body=b"y" * 65536)))
        peers = [await stack.enter_async_context(Peer(act)) for act in ACTS.values()]
        told = await said("bad", loop, good.url, *(peer.url for peer in peers))
    grown = dict(zip(ACTS, (each["grown_kb"] for each in told["attempts"]), strict=True))
    took = dict(zip(ACTS, (each["took_s"] for each in told["attempts"]), strict=True))
    assert {act: kb for act, kb in grown.items() if kb >= LIMIT_KB} == {}
    # A body that only drips is given a second, by an answer that has come.
    assert {act: s for act, s in took.items() if s > told["deadline_s"] + LATE_S} == {}


@pytest.mark.requirement("hostile:unasked")
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
async def test_nobody_costs_2_mb_or_the_loop_who_goes_on_after_the_answer(loop: str) -> None:
    async with AsyncExitStack() as stack:
        peers = [await stack.enter_async_context(Peer(act)) for act in bad.LATE.values()]
        told = dict(zip(bad.LATE, (await said("idle", loop, *(peer.url for peer in peers)))["attempts"], strict=True))
    assert {act for act, each in told.items() if each["is_taken"]} == set(bad.LATE)
    assert {act: each["grown_kb"] for act, each in told.items() if each["grown_kb"] >= LIMIT_KB} == {}
    assert {act: each["held_up_s"] for act, each in told.items() if each["held_up_s"] > LATE_S} == {}


@pytest.mark.requirement("attempt:tls-contexts")
async def test_10000_attempts_over_tls_leave_no_memory_behind_and_make_one_context(tmp_path: Path) -> None:
    authority = trustme.CA()

    async def answer_20(peer: Conversation) -> None:
        for left in reversed(range(20)):
            await peer.request()
            close = b"" if left else b"Connection: close\r\n"
            await peer.send(b"HTTP/1.1 200 OK\r\n%bContent-Length: 2\r\n\r\nok" % close)

    async with Peer(answer_20, server_context(authority)) as peer:
        told = await said("many", "uvloop", peer.url, ca_file(authority, tmp_path), "10000")
        assert len(peer.conversations) == 500
    assert told["delivered"] == 10000
    assert told["contexts"] == 1
    assert told["grown_kb"] < LIMIT_KB
