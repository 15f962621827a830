import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from channels.console import exits
from channels.events.content import CONTENTS
from channels.events.schema import schema_of

Lastword = Callable[..., Any]


@pytest.mark.requirement("events:schema:printed")
def test_the_schemas_are_printed_one_or_all(lastword: Lastword) -> None:
    assert json.loads(lastword("webhook", "schema", "call.completed").out) == schema_of("call.completed")
    assert list(json.loads(lastword("webhook", "schema").out)) == list(CONTENTS)


@pytest.mark.requirement("events:schema:printed")
def test_the_schemas_are_written_to_a_folder(lastword: Lastword, tmp_path: Path) -> None:
    assert lastword("webhook", "schema", "--folder", str(tmp_path / "new")).code == exits.OK
    kept = json.loads((tmp_path / "new" / "turn.failed.json").read_text(encoding="utf-8"))
    assert kept == schema_of("turn.failed")


@pytest.mark.requirement("events:schema:printed")
def test_an_unknown_type_and_a_folder_that_cannot_be_written_to_are_told_with_the_fix(lastword: Lastword) -> None:
    ran = lastword("webhook", "schema", "turn.complete")
    assert ran.code == exits.USAGE
    assert "TYPE = 'turn.complete'" in ran.err
    assert "turn.completed" in ran.err
    ran = lastword("webhook", "schema", "--folder", "/dev/null/x")
    assert ran.code == exits.USAGE
    assert "--folder '/dev/null/x'" in ran.err
