"""The real thing, small: real processes, real kills; and how it ends when it is told to."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from ops.chaos_run.__main__ import UNCLEAN, main
from ops.chaos_run.run import Stage, faults_in

ROOT = Path(__file__).resolve().parents[2]
CHAOS = [sys.executable, "-m", "ops.chaos_run"]
PATIENCE_S = 240.0


@pytest.mark.requirement("chaos:run:faults")
def test_a_fault_that_a_process_reports_is_found_in_its_log(tmp_path: Path) -> None:
    lines = [
        '{"level": "info", "event": "turn_sealed"}',
        "{not json",
        '{"level": "error", "event": "turn_crashed", "error": "NameError", "place": "call.py:97"}',
        "[celery] ERROR: a line of another program",
    ]
    (tmp_path / "turns-1.1.log").write_text("\n".join(lines), encoding="utf-8")
    (tmp_path / "delivery-1.1.log").write_text("", encoding="utf-8")
    (fault,) = faults_in(tmp_path)
    assert fault.startswith("turns-1.1 reported ")
    assert "turn_crashed" in fault


def environment(folder: Path) -> dict[str, str]:
    """What the run needs; its files are below `folder`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LASTWORD_")}
    return {**kept, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder)}


def processes_of(folder: Path) -> list[str]:
    """The command lines of living processes whose working directory is in that folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if str((process / "cwd").readlink()).startswith(str(folder)):
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:  # it has ended, or is somebody else's
            continue
    return found


@pytest.mark.requirement("chaos:run:keeps")
@pytest.mark.parametrize("error", [RuntimeError("the server did not come back"), KeyError("a fault"), SystemExit(3)])
def test_a_run_that_comes_to_no_end_keeps_its_logs_and_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: BaseException
) -> None:
    async def fails(stage: Stage) -> None:
        (stage._folder / "turns-1.1.log").write_text("what happened", encoding="utf-8")
        raise error

    monkeypatch.setattr(Stage, "run", fails)
    monkeypatch.setattr(sys, "argv", ["ops/chaos", "--turns", "1"])
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    if isinstance(error, RuntimeError):
        assert main() == UNCLEAN
    else:
        with pytest.raises(type(error)):
            main()
    (folder,) = tmp_path.iterdir()
    assert (folder / "turns-1.1.log").read_text(encoding="utf-8") == "what happened"
    assert f"kept in {folder}" in capsys.readouterr().err


@pytest.mark.process
@pytest.mark.timeout(300)
@pytest.mark.requirement("chaos:run:clean")
@pytest.mark.requirement("chaos:run:web")
def test_a_small_run_is_clean_and_tells_its_figures(tmp_path: Path) -> None:
    arguments = ["--turns", "12", "--kills", "2", "--seed", "1", "--json"]
    run = subprocess.run(
        [*CHAOS, *arguments],
        env=environment(tmp_path),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    report = json.loads(run.stdout)
    zero = (
        "own_faults",
        "wrong_readings",
        "failed",
        "dead",
        "lost",
        "partial",
        "wrong_text",
        "duplicate_ids",
        "tool_calls_twice",
    )
    assert {name: report[name] for name in zero} == dict.fromkeys(zero, 0), run.stderr
    assert (report["turns"], report["completed"], report["kills"], report["clean"]) == (12, 12, 2, True)
    assert {"duplicate_deliveries", "kills_mid_stream", "freezes", "elapsed_s"} <= set(report)
    assert run.returncode == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.process
@pytest.mark.timeout(180)
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.requirement("chaos:run:cleans-up")
def test_an_interrupted_run_leaves_nothing_behind(tmp_path: Path, number: signal.Signals) -> None:
    with subprocess.Popen(
        [*CHAOS, "--turns", "200", "--kills", "20"],
        env=environment(tmp_path),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as run:
        assert run.stderr is not None
        told = ""
        for line in run.stderr:
            told += line
            if "processes are up" in line:
                break
        assert len(processes_of(tmp_path)) >= 5, told
        run.send_signal(number)
        _, rest = run.communicate(timeout=110)
    assert run.returncode == 130, told + rest
    limit = time.monotonic() + 30
    while processes_of(tmp_path) and time.monotonic() < limit:
        time.sleep(0.05)  # processes that are not ours give nobody an event when they are gone
    assert processes_of(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.requirement("chaos:run:usage")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--turns", "many"], "'many': give a whole number from 0 to 1000000"),
        (["--kills", "-1"], "'-1': give a whole number"),
        (["--broker", "rabbitmq"], "--broker rabbitmq needs rabbitmq-server and epmd on PATH"),
    ],
)
def test_wrong_usage_is_told_with_its_fix(tmp_path: Path, arguments: list[str], said: str) -> None:
    bare = {**environment(tmp_path), "PATH": str(tmp_path)}
    run = subprocess.run([*CHAOS, *arguments], env=bare, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert said in run.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.process
@pytest.mark.timeout(PATIENCE_S)
@pytest.mark.requirement("chaos:deliveries:clean")
def test_no_delivery_is_lost_while_their_processes_are_killed(tmp_path: Path) -> None:
    command = [*CHAOS, "--deliveries", "300", "--kills", "6", "--seed", "5", "--json"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["clean"] is True
    assert (report["delivered"], report["lost"], report["unexplained_duplicates"]) == (300, 0, 0)
    assert report["kills"] >= 3
    assert not processes_of(tmp_path)
