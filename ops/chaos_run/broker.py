"""A RabbitMQ of the machine, on free loopback ports and in a folder of its own.

What belongs here: starting, stopping, killing and emptying it. What must not be known here: what passes through it.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from channels.embedded import die_with_parent
from ops.chaos_run.stage import free_ports

_WITHIN_S = 90.0


def find_rabbitmq() -> str | None:
    """The program `rabbitmq-server` on PATH, or where packages put it; None also where its `epmd` is not on PATH."""
    if shutil.which("epmd") is None:
        return None
    return shutil.which("rabbitmq-server") or shutil.which("rabbitmq-server", path="/usr/sbin:/usr/lib/rabbitmq/bin")


class RabbitMQ:
    """A broker from `start` to the end of its `with`; `url` is what Celery is told."""

    def __init__(self, program: str, folder: Path) -> None:
        self.folder = folder
        self.port, *self._names = free_ports(3)
        self.url = f"amqp://guest:guest@127.0.0.1:{self.port}//"
        self._program = program
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            error.add_note(f"--- rabbitmq ---\n{self.log()}")
        self._end()

    def start(self) -> None:
        """Start it and wait until it takes connections. Raises `RuntimeError` when it does not."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "rabbitmq.conf").touch()  # instead of the machine's
        with (self.folder / "out.log").open("ab") as out:
            self._process = subprocess.Popen(
                [self._program],
                env=self._environment(),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                preexec_fn=die_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509 - one system call
            )
        limit = time.monotonic() + _WITHIN_S
        while time.monotonic() < limit and self._process.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1) as probe:
                probe.sendall(b"AMQP\x00\x00\x09\x01")
                if probe.recv(7)[:1] == b"\x01":  # its first frame: it has begun to speak
                    return
            time.sleep(0.1)
        raise RuntimeError(f"rabbitmq-server did not start, or not within {_WITHIN_S:g} s:\n{self.log()}")

    def kill(self) -> None:
        """SIGKILL to all of its processes, and wait until they are gone."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, 9)
            self._process.wait()

    def wipe(self) -> None:
        """Forget everything that it has stored. To be called while it does not run."""
        shutil.rmtree(self.folder / "mnesia")

    def log(self) -> str:
        """The end of what it has written."""
        return (self.folder / "out.log").read_text(encoding="utf-8", errors="replace")[-3000:]

    def _end(self) -> None:
        """The daemon by which the nodes of a machine find each other outlives them, and ends once it knows of none."""
        self.kill()
        limit = time.monotonic() + _WITHIN_S
        while _listens(self._names[0]):
            subprocess.run(["epmd", "-kill"], env=self._environment(), capture_output=True, check=False)
            if time.monotonic() > limit:
                raise RuntimeError("epmd does not end")
            time.sleep(0.1)

    def _environment(self) -> dict[str, str]:
        names, distribution = self._names
        return {
            **os.environ,
            "HOME": str(self.folder),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(names),
            "RABBITMQ_NODENAME": f"lastword{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(distribution),
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq.conf"),
            "RABBITMQ_CONF_ENV_FILE": str(self.folder / "none"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "plugins"),
            "RABBITMQ_GENERATED_CONFIG_DIR": str(self.folder / "config"),
            "RABBITMQ_MNESIA_BASE": str(self.folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(self.folder / "log"),
            "RABBITMQ_PID_FILE": str(self.folder / "pid"),
        }


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0
