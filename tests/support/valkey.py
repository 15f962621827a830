"""A real server on a port of its own, that is stopped, killed, started again and robbed of its last writes.

What belongs here: the server's process and its append-only file as a row of commands. What must not be known here: what
the commands mean to Lastword.
"""

import contextlib
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import redis

from channels.embedded import die_with_parent, find_binary
from tests.support.ports import free_port

_WITHIN_S = 20.0


class Valkey:
    """A server in `folder`, from `start` to the end of its `with`. `options`: lines of its configuration."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            error.add_note(f"--- server ---\n{self.log()}")
        if self._process is not None:
            self.kill()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it and wait until it answers."""
        lines = [
            "bind 127.0.0.1",
            f"port {self.port}",
            f"dir {self.folder}",
            "appendonly yes",
            "appendfsync everysec",
            'save ""',
            "auto-aof-rewrite-percentage 0",
            f"logfile {self.folder / 'server.log'}",
            *self._options,
        ]
        self._process = subprocess.Popen(
            [find_binary(), "-"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=die_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509 - one system call
        )
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self._process.stdin as stdin:
            stdin.write("\n".join([*lines, ""]).encode())
        self._wait_ready()

    def stop(self) -> None:
        """SIGTERM: what it holds is written to its file before it ends."""
        assert self._process is not None
        self._process.terminate()
        self._process.wait(_WITHIN_S)

    def kill(self) -> None:
        """SIGKILL."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def log(self) -> str:
        """The end of its log."""
        with contextlib.suppress(FileNotFoundError):
            return (self.folder / "server.log").read_text(encoding="utf-8", errors="replace")[-2000:]
        return "(there is none)"

    def steps(self) -> list["Step"]:
        """What its file holds since it was begun, in order."""
        return list(_steps(self._file().read_bytes()))

    def cut(self, end: int) -> None:
        """Drop what its file holds from this byte on. To be called while it does not run."""
        with self._file().open("rb+") as file:
            file.truncate(end)

    def _file(self) -> Path:
        """The one file that it appends to."""
        (found,) = (self.folder / "appendonlydir").glob("*.incr.aof")
        return found

    def _wait_ready(self) -> None:
        limit = time.monotonic() + _WITHIN_S
        assert self._process is not None
        with redis.Redis.from_url(self.url, socket_timeout=1, socket_connect_timeout=1) as client:
            while time.monotonic() < limit and self._process.poll() is None:
                try:
                    client.ping()
                except redis.RedisError:
                    time.sleep(0.01)
                else:
                    return
        raise AssertionError(f"the server did not start:\n{self.log()}")


@dataclass(frozen=True, slots=True)
class Step:
    """What one command or one script wrote: the file may end behind it, at the byte `end`, and nowhere within it."""

    end: int
    commands: tuple[tuple[bytes, ...], ...]

    def wrote(self, name: bytes, *parts: bytes) -> bool:
        """Whether one of its commands is of that name, and has each of `parts` in one of its words."""
        return any(
            words[0].upper() == name and all(any(part in word for word in words[1:]) for part in parts)
            for words in self.commands
        )


def _steps(data: bytes) -> "list[Step]":
    """RESP commands; what a script wrote is between MULTI and EXEC. A last command that is cut off is left out."""
    found: list[Step] = []
    open_commands: list[tuple[bytes, ...]] | None = None
    at = 0
    while (read := _command(data, at)) is not None:
        words, at = read
        name = words[0].upper()
        if name == b"MULTI":
            open_commands = []
        elif name == b"EXEC":
            found.append(Step(at, tuple(open_commands or ())))
            open_commands = None
        elif open_commands is not None:
            open_commands.append(words)
        else:
            found.append(Step(at, (words,)))
    return found


def _command(data: bytes, at: int) -> tuple[tuple[bytes, ...], int] | None:
    head, at = _line(data, at)
    if head is None:
        return None
    assert head[:1] == b"*", f"the file holds {head[:20]!r} where a command should begin"
    words = []
    for _ in range(int(head[1:])):
        size, start = _line(data, at)
        if size is None or start + int(size[1:]) + 2 > len(data):
            return None
        at = start + int(size[1:]) + 2
        words.append(data[start : at - 2])
    return tuple(words), at


def _line(data: bytes, at: int) -> tuple[bytes | None, int]:
    end = data.find(b"\r\n", at)
    return (None, at) if end < 0 else (data[at:end], end + 2)
