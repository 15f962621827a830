"""The exit codes of processes: supervisors and alerts know the numbers, so no release may change them."""

from pathlib import Path

import pytest

from worker.engine.loop import LOOP_LOST
from worker.engine.loop_watch import LOOP_HUNG
from worker.engine.shutdown import OUT_OF_TIME

RUNBOOK = Path(__file__).parents[2] / "ops" / "runbooks" / "deploys.md"


@pytest.mark.requirement("drain:codes")
def test_exit_codes_are_the_numbers_that_the_runbook_tells() -> None:
    assert {"loop lost": LOOP_LOST, "loop hung": LOOP_HUNG, "out of time": OUT_OF_TIME} == {
        "loop lost": 70,
        "loop hung": 71,
        "out of time": 75,
    }
    told = RUNBOOK.read_text(encoding="utf-8")
    assert [code for code in (LOOP_LOST, LOOP_HUNG, OUT_OF_TIME) if f"| {code} | " not in told] == []
