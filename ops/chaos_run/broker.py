"""RabbitMQ as the broker of a run: a node of its own, in the run's folder, on free ports.

What belongs here: starting and ending it. What must not be known here: what is sent through it.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path

from channels.embedded import die_with_parent
from ops.chaos_run.stage import free_ports

_START_S = 90.0
_END_S = 30.0


def is_installed() -> bool:
    """Whether `rabbitmq-server` can be started here."""
    return shutil.which("rabbitmq-server") is not None and shutil.which("epmd") is not None


def start_rabbitmq(folder: Path, open_: AsyncExitStack) -> str:
    """Start a node that ends with `open_`; gives its URL."""
    home = folder / "rabbitmq"
    home.mkdir()
    port, names_port, peers_port = free_ports(3)
    (home / "rabbitmq.conf").write_text(f"listeners.tcp.local = 127.0.0.1:{port}\n", encoding="utf-8")
    (home / "enabled_plugins").write_text("[].\n", encoding="utf-8")
    environment = {
        **os.environ,
        "HOME": str(home),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "ERL_EPMD_PORT": str(names_port),
        "RABBITMQ_NODENAME": f"chaos{port}@localhost",
        "RABBITMQ_DIST_PORT": str(peers_port),
        "RABBITMQ_CONFIG_FILE": str(home / "rabbitmq.conf"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "enabled_plugins"),
        "RABBITMQ_MNESIA_BASE": str(home / "data"),
        "RABBITMQ_LOG_BASE": str(home / "log"),
        "RABBITMQ_PID_FILE": str(home / "pid"),
    }
    log = (home / "output.log").open("wb")
    open_.callback(log.close)
    for program in (["epmd", "-address", "127.0.0.1", "-port", str(names_port)], ["rabbitmq-server"]):
        process = subprocess.Popen(
            program,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,
            preexec_fn=die_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509 - one system call
        )
        open_.callback(_end, process)
    limit = time.monotonic() + _START_S
    while not _listens(port):
        if time.monotonic() > limit:
            end = (home / "output.log").read_text(encoding="utf-8", errors="replace")[-2000:]
            raise RuntimeError(f"rabbitmq-server did not listen within {_START_S:g} s:\n{end}")
        time.sleep(0.1)
    return f"amqp://guest:guest@127.0.0.1:{port}//"


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the whole group: the program is a script that starts the node."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_S)
            return


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0
