"""The arithmetic of the concurrency benchmark: what it says of counts that are known."""

import json
import math
from typing import Any

import pytest

from ops.bench.concurrency_figures import (
    AGE_P99_MS,
    Used,
    cpu_us,
    holds,
    memory_kb,
    next_load,
    percentile,
    spread,
    without_nan,
)

FOUND: dict[str, Any] = {
    "age_ms": {"p50": 30.0, "p99": AGE_P99_MS, "max": 900.0},
    "resumes": 0,
    "discards_seen": 0,
    "completed": 500,
    "turns": 500,
    "deltas_per_s": 9_900,
    "nominal_per_s": 10_000,
    "watched": 50,
    "seconds": 30.0,
    "ages": 29_200,
    "readers_failed": 0,
    "readers_reset": 0,
}


@pytest.mark.requirement("bench:concurrency:figures")
def test_a_percentile_is_a_value_that_was_seen() -> None:
    values = [float(number) for number in range(100, 0, -1)]
    assert [percentile(values, share) for share in (0, 0.5, 0.99, 0.995, 1)] == [1, 50, 99, 100, 100]
    assert percentile([7], 0.99) == 7
    assert math.isnan(percentile([], 0.5))


@pytest.mark.requirement("bench:concurrency:figures")
def test_what_was_not_seen_is_null_in_json() -> None:
    found = {"age_ms": spread([]), "tried": [{"p99": float("nan"), "turns": 3}]}
    none = {"p50": None, "p99": None, "max": None}
    assert json.loads(json.dumps(without_nan(found), allow_nan=False)) == {
        "age_ms": none,
        "tried": [{"p99": None, "turns": 3}],
    }


@pytest.mark.requirement("bench:concurrency:figures")
@pytest.mark.parametrize(
    "worse",
    [
        {"age_ms": {"p99": AGE_P99_MS + 1}},
        {"age_ms": {"p99": float("nan")}},
        {"resumes": 1},
        {"discards_seen": 1},
        {"completed": 499},
        {"deltas_per_s": 9_700},
        {"readers_failed": 1},
        {"readers_reset": 1},
        {"ages": 29_000},
        {"ages": 10, "readers_failed": 49},
    ],
)
def test_a_load_is_borne_only_if_nothing_is_wrong(worse: dict[str, Any]) -> None:
    assert holds(FOUND)
    assert not holds(FOUND | worse)


@pytest.mark.requirement("bench:concurrency:figures")
@pytest.mark.parametrize("borne", [30, 260, 333, 500, 1_000])
def test_the_search_ends_at_the_highest_whole_step_that_is_borne(borne: int) -> None:
    held, failed = 0, None
    while (load := next_load(held, failed, start=250, step=25)) is not None:
        held, failed = (load, failed) if load <= borne else (held, load)
    assert held == borne // 25 * 25


@pytest.mark.requirement("bench:concurrency:figures")
def test_what_is_shared_out_is_what_was_added() -> None:
    before, after = Used(1.0, 1_000, 2_000), Used(3.0, 6_000, 9_000)
    assert cpu_us(before, after, 1_000) == 2_000
    assert memory_kb(before, after, 100) == 50
