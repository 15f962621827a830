"""`lastword up` with stand-in workers: modules that write down what happens to them."""

import array
import fcntl
import os
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from channels.console.up import PROCESSES, drain_limit_s
from channels.settings import Settings
from tests.support.stack import is_alive

ROOT = Path(__file__).parents[2]
LIMIT_S = 20.0

WORKER = """
import os, signal, subprocess, sys
import redis

name, manner = sys.argv[1:]
client = redis.Redis.from_url(os.environ["LASTWORD_REDIS_URL"])
runs = client.incr(f"runs:{name}")
print("ready", name, os.environ["LASTWORD_REDIS_URL"], "pid", os.getpid(), flush=True)

def stop(*_):
    if manner == "stubborn":
        print("ignores", name, flush=True)
        return
    if manner == "slow":
        client.blpop(f"go:{name}")
    client.set(f"drained:{name}", 1)  # the server must still be there
    print("drained", name, flush=True)
    sys.exit(0)

signal.signal(signal.SIGTERM, stop)
signal.signal(signal.SIGINT, lambda *_: print("interrupted", name, flush=True))
if manner == "dies":
    sys.exit(7)
if manner.startswith("poisoned"):
    os.write(int(os.environ["NOTIFY_STARTED_FD"]), b"\\n")
if manner == "crashes" or (manner == "crashes-once" and runs == 1) or (manner == "poisoned" and runs <= 2):
    os.kill(os.getpid(), signal.SIGKILL)
if manner == "poisoned-at-once" and runs == 1:
    sys.exit(1)
if manner == "chatty":
    print()
    for number in range(1024):
        print(f"line {number:04}", "x" * 1010, flush=True)
    print("a" * 300_000, "the end", flush=True)
if manner == "clinging":  # its child outlives it, in a session of its own, and holds the pipe
    child = subprocess.Popen(
        [sys.executable, "-c", "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.pause()"],
        start_new_session=True,
    )
    print("child", child.pid, flush=True)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
while True:
    signal.pause()
"""

RUN = """
import json, sys
from channels import __main__
from channels.console import up
from channels.settings import Settings

settings = Settings.model_validate(json.loads(sys.argv[1]))
__main__.app = lambda prog_name: sys.exit(up.run_up(settings, json.loads(sys.argv[2])))
__main__.main()
"""


class Up:
    """One `up` in a process of its own, and the lines that it has printed."""

    def __init__(self, folder: Path, manners: dict[str, str], settings: str, *, unread: bool = False) -> None:
        (folder / "worker_double.py").write_text(WORKER, encoding="utf-8")
        lines = "{" + ", ".join(f'"{name}": "worker_double {name} {manner}"' for name, manner in manners.items()) + "}"
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{folder}", "COLUMNS": "300"}
        self._log = folder / "log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", RUN, settings, lines],
                stdout=subprocess.PIPE if unread else log,
                stderr=log,
                env=environment,
                cwd=folder,
                start_new_session=True,
            )

    @property
    def printed(self) -> str:
        return self._log.read_text(encoding="utf-8")

    def wait_for(self, *words: str) -> None:
        self._wait(lambda: all(word in self.printed for word in words), f"{words} to be printed")

    def wait_for_end(self) -> int:
        self._wait(lambda: self.process.poll() is not None, "the end of `up`")
        code = self.process.returncode
        assert isinstance(code, int)
        return code

    def wait_until(self, fits: Callable[[], bool], awaited: str) -> None:
        self._wait(fits, awaited)

    def insist(self, number: signal.Signals) -> int:
        """Send it until `up` has ended, which takes only what comes late enough for a second one."""

        def is_killing() -> bool:
            self.process.send_signal(number)
            return "lastword | killing" in self.printed

        self._wait(is_killing, "an `up` that was told twice to kill what has not ended")
        return self.wait_for_end()

    def url(self) -> str:
        return next(word for word in self.printed.split() if word.startswith("redis://"))

    def _wait(self, fits: Callable[[], bool], awaited: str) -> None:
        limit = time.monotonic() + LIMIT_S
        while not fits():
            assert time.monotonic() < limit, f"waited {LIMIT_S} s for {awaited}; it printed:\n{self.printed}"
            time.sleep(0.02)  # a process that prints or ends gives a thread no event to wait for


Start = Callable[..., Up]


def _takes_no_more(pipe: int) -> Iterator[bool]:
    """Whether the bytes that wait in a pipe have stopped growing, each time anew."""
    seen = [0]
    while True:
        count = array.array("i", [0])
        fcntl.ioctl(pipe, termios.FIONREAD, count)
        seen = [*seen[-20:], count[0]]
        yield count[0] > 0 and len(seen) > 20 and len(set(seen)) == 1


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts `up` with stand-in workers: names and manners. `url`: the Redis of the settings."""
    started: list[Up] = []

    def up(url: str | None = None, *, unread: bool = False, **manners: str) -> Up:
        settings = (
            f'{{"data_dir": "{tmp_path / "data"}", "redis_url": {f"{chr(34)}{url}{chr(34)}" if url else "null"}}}'
        )
        started.append(Up(tmp_path, manners, settings, unread=unread))
        return started[-1]

    yield up
    for one in started:
        if one.process.poll() is None:
            os.killpg(one.process.pid, signal.SIGKILL)
            one.process.wait()


@pytest.mark.requirement("console:up:procfile")
def test_up_starts_exactly_the_lines_of_the_procfile() -> None:
    lines = (ROOT / "Procfile").read_text(encoding="utf-8").splitlines()
    assert dict(line.split(": ", 1) for line in lines) == PROCESSES


@pytest.mark.requirement("console:up:drain-then-stop")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_workers_drain_before_the_server_stops(start: Start, number: signal.Signals) -> None:
    up = start(one="drains", two="drains")
    up.wait_for("ready one", "ready two")
    url = up.url()
    os.killpg(up.process.pid, number)  # as Ctrl-C in a terminal does
    assert up.wait_for_end() == 0
    assert "one | drained one" in up.printed
    assert "two | drained two" in up.printed
    assert "interrupted" not in up.printed
    with redis.Redis.from_url(url) as client, pytest.raises(redis.ConnectionError):
        client.ping()


@pytest.mark.requirement("console:up:death-stops-all")
def test_one_that_dies_is_named_and_all_are_stopped(start: Start) -> None:
    up = start(one="drains", two="dies")
    assert up.wait_for_end() == 1
    assert "died: two (exit code 7)" in up.printed
    assert "Traceback" not in up.printed


@pytest.mark.requirement("console:up:starts-again")
def test_one_that_was_killed_is_started_again_and_the_others_go_on(start: Start) -> None:
    up = start(one="drains", two="crashes-once")
    up.wait_for("two died (killed by SIGKILL); starting it again in 1 s")
    up.wait_until(lambda: up.printed.count("ready two") == 2, "two to be started again")
    assert up.printed.count("ready one") == 1
    up.process.terminate()
    assert up.wait_for_end() == 0
    assert "one | drained one" in up.printed
    assert "two | drained two" in up.printed


@pytest.mark.requirement("console:up:starts-again")
@pytest.mark.parametrize(("manner", "waits"), [("poisoned", ["1 s", "2 s"]), ("poisoned-at-once", ["1 s"])])
def test_one_that_had_started_is_never_given_up_and_waits_longer_each_time(
    manner: str, waits: list[str], start: Start
) -> None:
    """As turns do that take down one process after the other, each a moment after it has started."""
    up = start(one="drains", two=manner)
    up.wait_until(lambda: up.printed.count("ready two") == len(waits) + 1, "two to be started again")
    told = [line.rsplit(" in ", 1)[1] for line in up.printed.splitlines() if "starting it again" in line]
    assert told == waits
    up.process.terminate()
    assert up.wait_for_end() == 0


@pytest.mark.requirement("console:up:starts-again")
def test_one_that_never_starts_stops_all(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.LIMIT_S", 90.0)
    up = start(one="drains", two="crashes")
    assert up.wait_for_end() == 1
    assert up.printed.count("starting it again") == 5
    assert "died: two (killed by SIGKILL); stopping everything" in up.printed
    assert "one | drained one" in up.printed


@pytest.mark.requirement("console:up:death-stops-all")
def test_a_server_that_dies_is_named_and_all_are_stopped(start: Start) -> None:
    up = start(one="stubborn")
    up.wait_for("ready one")
    with redis.Redis.from_url(up.url()) as client:
        os.kill(client.info("server")["process_id"], signal.SIGKILL)
    up.wait_for("died: the embedded server")
    up.wait_for("ignores one")
    assert up.insist(signal.SIGTERM) == 1
    assert "killing one" in up.printed


@pytest.mark.requirement("console:up:second-signal-kills")
def test_a_second_signal_kills_what_does_not_end(start: Start) -> None:
    up = start(one="drains", two="stubborn")
    up.wait_for("ready one", "ready two")
    up.process.send_signal(signal.SIGINT)
    up.wait_for("drained one", "ignores two")
    assert up.insist(signal.SIGTERM) == 0
    assert "killing two, which has not ended" in up.printed


@pytest.mark.requirement("console:up:second-signal-kills")
def test_ctrl_c_twice_kills_at_once(start: Start) -> None:
    """No supervisor sends it: it is a person, who has read that once more kills."""
    up = start(one="stubborn")
    up.wait_for("ready one")
    up.process.send_signal(signal.SIGINT)
    up.wait_for("once more kills them")
    up.process.send_signal(signal.SIGINT)
    assert up.wait_for_end() == 0
    assert "killing one, which has not ended" in up.printed


@pytest.mark.requirement("console:up:second-signal-kills")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_comes_twice_at_once_kills_nobody(number: signal.Signals, start: Start) -> None:
    """As from a supervisor that signals every process of a unit, where another of them passes it on."""
    up = start(one="slow")
    up.wait_for("ready one")
    with redis.Redis.from_url(up.url()) as client:
        up.process.send_signal(number)
        up.wait_for("lastword | stopping")
        up.process.send_signal(number)
        client.rpush("go:one", 1)
        assert up.wait_for_end() == 0
    assert "drained one" in up.printed
    assert "killing" not in up.printed


@pytest.mark.requirement("console:up:drain-limit")
@pytest.mark.parametrize(
    ("more", "limit_s"),
    [
        ({"processes": {"drain_s": 300}}, 305),
        ({"delivery": {"timeout_s": 200}}, 2 * 200 + 10 + 5),
        ({"web": {"drain_s": 250, "stop_s": 60}}, 315),
    ],
)
def test_up_waits_as_long_as_any_process_may_drain(more: dict[str, object], limit_s: float) -> None:
    settings = Settings.model_validate({"redis_url": "redis://127.0.0.1:1/0", **more})
    assert drain_limit_s(settings) == limit_s


@pytest.mark.requirement("console:up:ends-in-time")
def test_all_that_a_worker_prints_comes_through_and_up_ends(start: Start) -> None:
    """A blank line once ended the echo: the pipe filled, and the worker and `up` waited for ever."""
    up = start(one="chatty")
    up.wait_for("the end")
    up.process.terminate()
    assert up.wait_for_end() == 0
    lines = up.printed.splitlines()
    assert "one | " in lines
    assert [line[6:15] for line in lines if line.startswith("one | line")] == [
        f"line {each:04}" for each in range(1024)
    ]
    assert sum(line.count("a") for line in lines if line.startswith("one | aaa")) == 300_000
    assert "one | drained one" in lines


@pytest.mark.requirement("console:up:unread")
def test_up_ends_though_nobody_reads_what_it_prints(start: Start) -> None:
    """As behind a pager, or after Ctrl-S: the workers go on, a signal is heard, and the end is a good one."""
    up = start(unread=True, one="chatty")
    assert up.process.stdout is not None
    full = _takes_no_more(up.process.stdout.fileno())
    with up.process.stdout:
        up.wait_until(lambda: next(full), "the pipe of the reader to be full")
        up.process.terminate()
        assert up.wait_for_end() == 0


@pytest.mark.requirement("console:up:ends-in-time")
def test_up_ends_though_a_grandchild_holds_the_pipe(start: Start) -> None:
    up = start(one="clinging")
    up.wait_for("one | child ")
    child = int(up.printed.split("one | child ", 1)[1].split()[0])
    try:
        up.process.terminate()
        up.wait_for("lastword | stopping")
        assert up.insist(signal.SIGTERM) == 0
        assert "killing one, which has not ended" in up.printed
    finally:
        os.kill(child, signal.SIGKILL)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can take children along")
@pytest.mark.requirement("console:up:dies-with-all")
def test_a_kill_of_up_takes_the_workers_and_the_server_along(start: Start) -> None:
    up = start(one="drains")
    up.wait_for("ready one")
    worker = int(up.printed.split("ready one", 1)[1].split("pid ", 1)[1].split()[0])
    with redis.Redis.from_url(up.url()) as client:
        server = int(client.info("server")["process_id"])
    up.process.kill()
    up.process.wait()
    up.wait_until(lambda: not is_alive(worker), "the end of the worker")
    up.wait_until(lambda: not is_alive(server), "the end of the server")


@pytest.mark.requirement("console:exits:unreachable")
def test_a_redis_that_is_away_ends_up_with_4_before_anything_is_started(start: Start, unused_port: int) -> None:
    up = start(url=f"redis://127.0.0.1:{unused_port}/0", one="drains")
    assert up.wait_for_end() == 4
    assert "Redis" in up.printed
    assert "redis_url" in up.printed
    assert "ready one" not in up.printed
    assert "Traceback" not in up.printed


def test_no_server_is_started_where_one_is_set(start: Start, real_url: str) -> None:
    up = start(url=real_url, one="drains")
    up.wait_for(f"ready one {real_url}")
    up.process.terminate()
    assert up.wait_for_end() == 0
    with redis.Redis.from_url(real_url) as client:
        assert client.get("drained:one") == b"1"


def test_a_second_up_on_the_same_folder_is_refused(start: Start) -> None:
    first = start(one="drains")
    first.wait_for("ready one")
    second = start(two="drains")
    assert second.wait_for_end() != 0
    assert "another Lastword command runs its server" in second.printed
    assert f"(process {first.process.pid})" in second.printed
    assert "LASTWORD_DATA_DIR" in second.printed
