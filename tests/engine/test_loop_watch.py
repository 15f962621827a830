"""A process whose event loop hangs ends by itself, and one that only stood still does not; real processes."""

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from time import monotonic, sleep

import pytest

from worker.engine.loop import LoopThread
from worker.engine.loop_watch import LOOP_HUNG, LoopWatch, hung_after_s
from worker.engine.seats import Seats

pytestmark = pytest.mark.timeout(150)

LIMIT_S = 8.0
WITHIN_S = 60.0

PROGRAM = f"""
import asyncio, os, sys, time
from worker.engine.loop import LoopThread
from worker.engine.loop_watch import LoopWatch
from worker.observability import configure_logging

async def careless():
    while not watch.is_late:  # so that the loop owes a sign
        time.sleep(0.01)
    os.write(1, b"hangs\\n")
    os.read(0, 1)

configure_logging("info")
loop = LoopThread()
loop.start()
watch = LoopWatch(loop.loop, {LIMIT_S})
watch.start()
loop.run(asyncio.sleep(0.6))
while True:
    os.write(1, b"runs\\n")
    os.read(0, 1)
    loop.run(careless())
    loop.run(asyncio.sleep(0.6))
"""


@contextlib.contextmanager
def program() -> Iterator[subprocess.Popen[str]]:
    """A process with a watched loop, which has turned by now."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            assert said(process) == "runs"
            yield process
        finally:
            process.send_signal(signal.SIGCONT)
            process.kill()


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def go_on(process: subprocess.Popen[str]) -> None:
    """Let it hang if it runs, and run if it hangs."""
    assert process.stdin is not None
    process.stdin.write(".")
    process.stdin.flush()


@pytest.mark.requirement("engine:loop-watch:ends")
def test_a_process_whose_loop_hangs_ends_and_says_where() -> None:
    with program() as process:
        go_on(process)
        assert said(process) == "hangs"
        assert process.wait(WITHIN_S) == LOOP_HUNG
        assert process.stderr is not None
        [line] = [json.loads(line) for line in process.stderr]
    assert (line["event"], line["why"]) == ("process_cut_off", "loop_hangs")
    assert line["place"].endswith(" careless")
    assert line["for_s"] >= LIMIT_S


@pytest.mark.requirement("engine:loop-watch:stood-still")
def test_a_process_that_stood_still_for_longer_goes_on() -> None:
    with program() as process:
        go_on(process)
        assert said(process) == "hangs"
        process.send_signal(signal.SIGSTOP)
        with pytest.raises(subprocess.TimeoutExpired):  # it is the time that passes which is tested
            process.wait(LIMIT_S)
        process.send_signal(signal.SIGCONT)
        go_on(process)
        assert said(process) == "runs"
        go_on(process)
        assert said(process) == "hangs"
        go_on(process)
        assert said(process) == "runs"
        assert process.poll() is None


@pytest.mark.requirement("engine:loop-watch:ends")
def test_a_loop_among_many_turns_may_hang_for_longer_than_a_lease_and_than_a_busy_machine_takes() -> None:
    assert [hung_after_s(ttl_s) for ttl_s in (0.4, 8, 300)] == [10, 16, 600]


@pytest.mark.requirement("engine:loop-watch:no-work")
def test_work_that_a_hung_loop_does_not_begin_is_given_back_and_never_begun() -> None:
    loop = LoopThread("hung-test")
    loop.start()
    watch = LoopWatch(loop.loop, 600)
    watch.start()
    seats, goes, ran = Seats(loop, 1), threading.Event(), threading.Event()

    async def work() -> None:
        ran.set()

    assert not watch.is_late
    loop.loop.call_soon_threadsafe(goes.wait, WITHIN_S)
    assert not seats.take(work, lambda _: None)
    limit = monotonic() + WITHIN_S
    while not watch.is_late:
        assert monotonic() < limit, f"waited {WITHIN_S} s for the watch to see that the loop is late"
        sleep(0.05)
    assert not seats.take(work, lambda _: None)  # its seat is still taken by the first
    goes.set()
    seats.wait()
    assert not ran.is_set()
    assert seats.take(work, lambda _: None)
    assert ran.wait(WITHIN_S)
    loop.run(asyncio.sleep(0))
    watch.stop()
    loop.stop()
