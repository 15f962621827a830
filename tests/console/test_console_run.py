"""`lastword run` as a program: what a pipe gets, what `--json` prints, what a terminal shows, and the exit codes."""

import asyncio
import json
import os
import pty
import sys
from pathlib import Path

import pytest

from tests.support.stack import stand_in

SCRIPT = """
[[calls]]
steps = [ { text = "I will look. " }, { tool = "clock" } ]
usage = { prompt_tokens = 11, completion_tokens = 3 }

[[calls]]
steps = [ { text = "Half a sentence that", pieces = 4, every_s = 0.1 }, { stall = true } ]

[[calls]]
steps = [ { text = "A whole answer." } ]
usage = { prompt_tokens = 20, completion_tokens = 4 }
"""
FAILING = "[[calls]]\nstatus = 401\n"
CUT = '[[calls]]\nsteps = [ { text = "An answer that is cut" }, { finish = "length" } ]\n'
WITHIN_S = 30.0


def environment(base_url: str, folder: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LASTWORD_")}
    config = folder / "lastword.toml"
    config.write_text(
        f'data_dir = "{folder / "data"}"\n[providers.main]\nbase_url = "{base_url}"\nmodel = "stand-in"\n'
        'stall_timeout_s = 0.5\n[agents.default]\ntools = ["clock"]\n[turns]\nresume_backoff_s = 0.05\n',
        encoding="utf-8",
    )
    return {**kept, "LASTWORD_CONFIG": str(config), "TERM": "xterm", "COLUMNS": "100"}


async def run(script: str, folder: Path, *arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of `lastword run` with a pipe at its output."""
    async with stand_in(script, folder) as provider:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "channels", "run", "What time is it?", *arguments),
            env=environment(provider.base_url, folder),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await asyncio.wait_for(process.communicate(), WITHIN_S)
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


@pytest.mark.requirement("console:run:pipe")
async def test_a_pipe_gets_the_text_of_completed_calls_and_nothing_else(tmp_path: Path) -> None:
    code, out, err = await run(SCRIPT, tmp_path)
    assert (code, out, err) == (0, "I will look. A whole answer.\n", "")


@pytest.mark.requirement("console:run:json")
async def test_json_is_one_object_with_the_text_the_usage_and_what_was_discarded(tmp_path: Path) -> None:
    code, out, _ = await run(SCRIPT, tmp_path, "--json")
    said = json.loads(out)
    assert code == 0
    assert out.count("\n") == 1
    assert (said["outcome"], said["text"], said["error"]) == ("completed", "I will look. A whole answer.", None)
    assert [tool["name"] for tool in said["tool_calls"]] == ["clock"]
    assert said["usage"] == {
        "input_tokens": 31,
        "output_tokens": 7,
        "discarded_resume_attempts": 1,
        "discarded_resume_estimated_input_tokens": 11,
    }


async def test_without_a_resume_the_usage_has_no_word_of_discards(tmp_path: Path) -> None:
    """Design I11: the two fields are left out of a console line when nothing was resumed."""
    _, out, _ = await run('[[calls]]\nsteps = [ { text = "Here." } ]\n', tmp_path, "--json")
    assert not [name for name in json.loads(out)["usage"] if name.startswith("discarded")]


@pytest.mark.requirement("console:run:exit-codes")
@pytest.mark.parametrize(
    ("script", "code", "said"),
    [(FAILING, 1, "providers.main.api_key"), (CUT, 3, "")],
    ids=["failed", "incomplete"],
)
async def test_the_exit_code_tells_how_the_turn_ended(tmp_path: Path, script: str, code: int, said: str) -> None:
    ended, _, err = await run(script, tmp_path)
    assert ended == code
    assert said in err


@pytest.mark.requirement("console:run:terminal")
async def test_a_terminal_shows_the_half_sentence_and_says_that_it_is_void(tmp_path: Path) -> None:
    async with stand_in(SCRIPT, tmp_path) as provider:
        ours, theirs = pty.openpty()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "channels", "run", "What time is it?"),
            env=environment(provider.base_url, tmp_path),
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        shown = await asyncio.wait_for(asyncio.to_thread(_read_all, ours), WITHIN_S)
        assert await process.wait() == 0
    half, void, whole = shown.find("Half a sentence that"), shown.find("void"), shown.find("A whole answer.")
    assert 0 <= shown.find("I will look. ") < half < void < whole
    assert shown.count("I will look. ") == shown.count("A whole answer.") == 1


def _read_all(terminal: int) -> str:
    data = b""
    try:
        while piece := os.read(terminal, 65536):
            data += piece
    except OSError:  # the other side is closed
        pass
    finally:
        os.close(terminal)
    return data.decode()
