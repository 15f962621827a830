import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from channels.console import exits

Lastword = Callable[..., Any]
SCRIPT = '[[calls]]\nsteps = [ { text = "Hello." } ]\n'


@pytest.mark.requirement("console:provider:serves")
def test_the_stand_in_provider_prints_its_base_url_and_ends_on_a_signal(tmp_path: Path) -> None:
    (tmp_path / "script.toml").write_text(SCRIPT, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    arguments = [sys.executable, "-m", "channels", "provider", "script.toml", "--transcript", "seen.jsonl"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=environment, cwd=tmp_path) as process:
        try:
            assert process.stdout is not None
            base_url = process.stdout.readline().strip()
            with urllib.request.urlopen(f"{base_url}/models", timeout=10) as answer:
                models = json.load(answer)
            process.send_signal(signal.SIGTERM)
            code = process.wait(10)
        finally:
            process.kill()
    assert models["data"][0]["id"] == "stand-in"
    assert code == exits.OK
    assert (tmp_path / "seen.jsonl").is_file()


def test_a_script_that_is_wrong_is_named(lastword: Lastword, tmp_path: Path) -> None:
    (tmp_path / "script.toml").write_text("[[calls]]\nstep = 1\n", encoding="utf-8")
    for name, words in (("script.toml", "step"), ("none.toml", "cannot be read")):
        ran = lastword("provider", name)
        assert ran.code == exits.USAGE
        assert name in ran.err
        assert words in ran.err
