"""The embedded server: who may read it, who may join it, and what it dies with."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from channels.embedded import EmbeddedServer
from worker.errors import ConfigurationError

ROOT = Path(__file__).parents[2]
LIMIT_S = 20.0
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only Linux can take children along, and only it has /proc")

HOLD = """
import signal, sys
from pathlib import Path
from channels.embedded import EmbeddedServer
server = EmbeddedServer(Path(sys.argv[1]), fsync="everysec")
print(server.start(), flush=True)
signal.pause()
"""


def answers(url: str) -> bool:
    with redis.Redis.from_url(url) as client:
        try:
            return bool(client.ping())
        except redis.ConnectionError:
            return False


def wait_until(fits: Callable[[], bool], awaited: str) -> None:
    limit = time.monotonic() + LIMIT_S
    while not fits():
        assert time.monotonic() < limit, f"waited {LIMIT_S} s for {awaited}"
        time.sleep(0.02)


@contextlib.contextmanager
def started(folder: Path, *extra: str) -> Iterator[EmbeddedServer]:
    server = EmbeddedServer(folder, fsync="everysec", extra=extra)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@contextlib.contextmanager
def holder(folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process that started or joined the server of the folder, and its URL."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    arguments = [sys.executable, "-c", HOLD, str(folder)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def process_id(url: str) -> int:
    with redis.Redis.from_url(url) as client:
        return int(client.info("server")["process_id"])


@pytest.mark.requirement("console:embedded:private")
def test_the_data_folder_and_what_the_server_writes_are_for_its_owner_alone(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "data"
    with started(folder) as server:
        with redis.Redis.from_url(server.url) as client:
            client.set("a", "b")
        modes = {path.name: path.stat().st_mode & 0o077 for path in [folder, *folder.rglob("*")]}
    assert "server.json" in modes
    assert "appendonlydir" in modes
    assert set(modes.values()) == {0}


@LINUX
@pytest.mark.requirement("console:embedded:private")
def test_the_password_is_not_in_the_arguments_of_the_server(tmp_path: Path) -> None:
    with started(tmp_path, "--set-proc-title", "no") as server:  # else it writes over what it was started with
        password = server.url.split("@", maxsplit=1)[0].rsplit(":", 1)[1]
        arguments = Path(f"/proc/{process_id(server.url)}/cmdline").read_bytes()
        environment = Path(f"/proc/{process_id(server.url)}/environ").read_bytes()
        bare = redis.Redis.from_url(server.url.replace(f":{password}@", ""))
        with bare, pytest.raises(redis.AuthenticationError):
            bare.ping()
    assert len(password) > 20
    assert b"--set-proc-title" in arguments
    assert password.encode() not in arguments + environment


def test_the_server_evicts_nothing_and_writes_what_it_is_told(tmp_path: Path) -> None:
    with started(tmp_path) as server, redis.Redis.from_url(server.url) as client:
        said = {name: client.config_get(name)[name] for name in ("maxmemory-policy", "appendonly", "bind")}
    assert said == {"maxmemory-policy": "noeviction", "appendonly": "yes", "bind": "127.0.0.1"}


@pytest.mark.requirement("console:embedded:any-folder")
@pytest.mark.parametrize(
    "name", ['with "quotes"', "with blanks in it", "with\na line break", "back\\slash", "grün", "#hash$(x)"]
)
def test_a_folder_of_any_name_holds_what_was_stored_and_the_log(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    with started(folder) as server, redis.Redis.from_url(server.url) as client:
        client.set("kept", "1")
    assert (folder / "server.log").is_file()
    assert (folder / "appendonlydir").is_dir()
    with started(folder) as server, redis.Redis.from_url(server.url) as client:
        assert client.get("kept") == b"1"


@pytest.mark.requirement("console:embedded:any-folder")
def test_a_relative_folder_is_that_of_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with started(Path("rel")) as server:
        assert answers(server.url)
    assert sorted(path.name for path in (tmp_path / "rel").iterdir()) == [
        "appendonlydir",
        "lock",
        "server.log",
    ]


@pytest.mark.requirement("console:embedded:any-folder")
def test_a_folder_that_cannot_be_used_is_named_with_the_fix(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    for wrong in (tmp_path / "file", tmp_path / "file" / "below", tmp_path / "loop", Path("zero\0byte")):
        with pytest.raises(ConfigurationError, match=r"data_dir .* cannot be used .*LASTWORD_DATA_DIR"):
            EmbeddedServer(wrong).start()


@LINUX
@pytest.mark.requirement("console:embedded:any-folder")
def test_a_folder_that_nobody_may_write_is_named_with_the_fix() -> None:
    with pytest.raises(ConfigurationError, match=r"data_dir '/proc/.* cannot be used"):
        EmbeddedServer(Path("/proc/self")).start()


@pytest.mark.requirement("console:embedded:joined")
def test_the_owner_waits_for_those_who_joined(tmp_path: Path) -> None:
    with started(tmp_path) as owner:
        joiner = EmbeddedServer(tmp_path)
        assert joiner.start() == owner.url
        assert (joiner.owned, joiner.owner) == (False, os.getpid())
        assert not owner.wait_for_joined(0.1)
        leaving = threading.Timer(0.2, joiner.stop)
        leaving.start()
        assert owner.wait_for_joined(LIMIT_S)
        leaving.join()
        assert answers(owner.url)


@pytest.mark.requirement("console:embedded:joined")
def test_one_that_comes_while_the_owner_leaves_starts_a_server_of_its_own(tmp_path: Path) -> None:
    with started(tmp_path) as owner, contextlib.ExitStack() as leaving:
        first = owner.url
        assert owner.wait_for_joined(0)
        late = EmbeddedServer(tmp_path, fsync="everysec")
        coming = threading.Thread(target=late.start)
        coming.start()
        leaving.callback(late.stop)
        leaving.callback(coming.join)
        coming.join(0.3)
        assert coming.is_alive()
        owner.stop()
        coming.join(LIMIT_S)
        assert late.owned
        assert late.url != first
        assert answers(late.url)


@pytest.mark.requirement("console:embedded:joined")
def test_the_owner_is_named_as_the_process_that_started_the_server(tmp_path: Path) -> None:
    with holder(tmp_path) as (process, url), started(tmp_path) as joiner:
        assert joiner.url == url
        assert joiner.owner == process.pid != process_id(url)


@LINUX
@pytest.mark.requirement("console:embedded:dies-with-its-starter")
def test_a_kill_of_the_starter_takes_the_server_along(tmp_path: Path) -> None:
    with holder(tmp_path) as (process, url):
        assert answers(url)
        process.send_signal(signal.SIGKILL)
        process.wait(LIMIT_S)
        wait_until(lambda: not answers(url), "the end of the server")
    with started(tmp_path) as next_one:
        assert next_one.owned
