"""The processes of the concurrency benchmark: started, told, counted and ended.

What belongs here: processes and what the kernel counts of them. What must not be known here: what is measured.

CPU is user and system time from /proc/PID/stat. Memory is the proportional set size (PSS): pages that processes share
are divided among them.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from channels.console.up import PROCESSES
from ops.bench.concurrency_figures import Used

ROOT = Path(__file__).resolve().parents[2]
_TICKS = os.sysconf("SC_CLK_TCK")
_END_S = 60.0


def used(pids: Iterable[int]) -> Used:
    """What these processes have used so far."""
    cpu_s = pss = rss = 0.0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
        cpu_s += (int(fields[11]) + int(fields[12])) / _TICKS
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text("ascii").splitlines():
            name, _, rest = line.partition(":")
            if name == "Pss":
                pss += int(rest.split()[0])
            elif name == "Rss":
                rss += int(rest.split()[0])
    return Used(cpu_s, pss, rss)


def machine_busy_s() -> float:
    """CPU seconds that the whole machine has spent on anything but idling, all cores together."""
    user, nice, system, _idle, _iowait, irq, softirq, steal, *_ = map(
        int, Path("/proc/stat").read_text("ascii").splitlines()[0].split()[1:]
    )
    return (user + nice + system + irq + softirq + steal) / _TICKS


def tree(pid: int) -> list[int]:
    """A process and all that descend from it."""
    found = [pid]
    for each in found:
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{each}/task").iterdir():
                found += map(int, (task / "children").read_text("ascii").split())
    return found


class Told:
    """A process of ours that does what a line says and answers with a line of JSON."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._say: IO[str] = self.process.stdin
        self._hear: IO[str] = self.process.stdout
        self.first = self._hear.readline().strip()

    def tell(self, line: str) -> None:
        """Say a line that has no answer."""
        self._say.write(line + "\n")
        self._say.flush()

    def ask(self, line: str) -> dict[str, Any]:
        """Say a line and give its answer."""
        self.tell(line)
        answer: dict[str, Any] = json.loads(self._hear.readline())
        return answer

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.communicate()


@contextlib.contextmanager
def told(*arguments: str) -> Iterator[Told]:
    """A process of ours, ended behind the block."""
    process = Told(*arguments)
    try:
        yield process
    finally:
        process.close()


class Workers:
    """Processes of one kind in a folder, their output in a log file each. `beside`: those of other kinds, by name."""

    def __init__(self, folder: Path, kind: str = "worker") -> None:
        self._folder = folder
        self._kind = kind
        self.beside: dict[str, Workers] = {}
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self, python: Path, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start one more."""
        with self._log(len(self._running)).open("wb") as log:
            paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
            whole = {**os.environ, **environment, "PYTHONPATH": paths}
            self._running.append(
                subprocess.Popen([str(python), "-m", *arguments], stdout=log, stderr=log, cwd=self._folder, env=whole)
            )

    def start_turns(self, environment: Mapping[str, str]) -> None:
        """Start one more process that runs turns, by its line of the Procfile."""
        arguments = PROCESSES["turns"].split()
        arguments[arguments.index("--hostname") + 1] = f"turns-{len(self._running)}@%h"
        self.start(Path(sys.executable), arguments, environment)

    def pids(self) -> list[int]:
        """All processes, children too."""
        return [pid for one in self._running for pid in tree(one.pid)]

    def used(self) -> Used:
        """What all of them have used so far."""
        return used(self.pids())

    def lines(self, number: int) -> list[str]:
        """What one of them has logged."""
        return self._log(number).read_text("utf-8", errors="replace").splitlines()

    def events(self) -> list[dict[str, Any]]:
        """The JSON lines that all of them have logged."""
        lines = [line for number in range(len(self._running)) for line in self.lines(number)]
        return [json.loads(line) for line in lines if line.startswith("{")]

    def wait_for(self, words: str, within_s: float = 60.0) -> None:
        """Wait until each has logged these words."""
        limit = time.monotonic() + within_s
        for number, one in enumerate(self._running):
            while not any(words in line for line in self.lines(number)):
                if one.poll() is not None or time.monotonic() > limit:
                    raise SystemExit(f"a worker did not say {words!r}:\n" + "\n".join(self.lines(number)[-30:]))
                time.sleep(0.05)

    def stop(self) -> None:
        """End all of them, by force where they do not end."""
        for one in self._running:
            one.send_signal(signal.SIGTERM)
        limit = time.monotonic() + _END_S
        for one in self._running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                one.wait(max(0.1, limit - time.monotonic()))
        self.kill()

    def kill(self) -> None:
        """End all of them at once."""
        for one in self._running:
            for pid in reversed(tree(one.pid)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            one.wait()
        self._running.clear()

    def _log(self, number: int) -> Path:
        return self._folder / f"{self._kind}-{number}.log"
