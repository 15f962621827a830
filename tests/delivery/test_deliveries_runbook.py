"""The runbook of deliveries explains what the code can say."""

import re
from pathlib import Path
from typing import get_args

import pytest

from channels.delivery.model import State
from worker.http import _MEANINGS

ROOT = Path(__file__).resolve().parents[2]
RUNBOOK = (ROOT / "ops/runbooks/deliveries.md").read_text(encoding="utf-8")
CODES = (
    r'(?:Hopeless|Withdrawn|_Unusable)\(\s*"([a-z_]+)"',
    r'Failed\(\s*"[a-z]+",\s*"([a-z_]+)"',
    r'_unsent\(\s*"[a-z]+",\s*"([a-z_]+)"',
    r'dead_letter\(\s*[a-z._]+,\s*[a-z._]+,\s*"([a-z_]+)"',
    r'return "([a-z_]+)", (?:f"|last)',
    r'\("(endpoint_[a-z]+)", f',
    r'code = "([a-z_]+)" if .* else "[a-z_]+"',
    r'code = "[a-z_]+" if .* else "([a-z_]+)"',
    r'"(cancelled)", why',
)


def codes() -> set[str]:
    """Every code of an attempt or an end that is written in the code."""
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "channels").rglob("*.py") if path.parts[-2] != "web"]
    by_pattern = {pattern: {code for text in texts for code in re.findall(pattern, text)} for pattern in CODES}
    assert all(by_pattern.values()), "a call is spelled otherwise: what it says would not be looked for"
    found = set().union(*by_pattern.values())
    assert {"attempts_spent", "proxy_refused", "lease_expired", "turn_expired", "bad_tls_file"} <= found
    assert {"unreadable_entry", "unusable_turn", "unusable_event"} <= found
    return found | set(_MEANINGS) | {"endpoint_paused", "endpoint_disabled"}


@pytest.mark.requirement("operating:runbook")
def test_each_state_and_each_code_stands_in_the_runbook() -> None:
    explained = set(re.findall(r"`([a-z_0-9]+)`", RUNBOOK))
    assert not set(get_args(State)) - explained
    assert not codes() - explained
