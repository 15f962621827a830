"""Every figure of the verdict on deliveries rises for a record that deserves it, and none for those that do not."""

import pytest

from ops.chaos_run.delivery_judge import EXPLAINED_S, DeliveryVerdict, Kill, Post, judge


def post(*, turn: str = "t1", process: str = "d-1.1", at: float = 1.0, taken: bool = True, **more: object) -> Post:
    values = {"id": f"dlv_{turn}", "ended": at + 0.1, "verified": True, **more}
    return Post(turn=turn, process=process, came=at, acknowledged=taken, **values)  # type: ignore[arg-type]


def wrong(verdict: DeliveryVerdict) -> dict[str, int]:
    names = ("lost", "unexplained_duplicates", "several_ids", "bad_signatures")
    return {name: getattr(verdict, name) for name in names if getattr(verdict, name)}


@pytest.mark.requirement("chaos:deliveries:judge")
def test_a_delivery_that_was_taken_once_after_refusals_is_clean() -> None:
    verdict = judge(["t1"], [post(taken=False), post(at=2.0)], [])
    assert (verdict.is_clean, verdict.delivered, verdict.refused, verdict.duplicates) == (True, 1, 1, 0)


@pytest.mark.requirement("chaos:deliveries:judge")
def test_a_delivery_that_nobody_took_is_lost() -> None:
    assert wrong(judge(["t1", "t2"], [post(taken=False), post(turn="t2")], [])) == {"lost": 1}


@pytest.mark.requirement("chaos:deliveries:judge")
@pytest.mark.parametrize("at", [0.9, 1.0, 1.1 + EXPLAINED_S])
def test_a_repeat_is_explained_by_a_kill_of_its_sender_around_the_first_answer(at: float) -> None:
    """Also by one before it came: the receiver reads what the dead process had written."""
    verdict = judge(["t1"], [post(), post(at=9.0, process="d-2.1")], [Kill("d-1.1", at, 1)])
    assert (verdict.is_clean, verdict.duplicates) == (True, 1)


@pytest.mark.requirement("chaos:deliveries:judge")
@pytest.mark.parametrize("kill", [Kill("d-2.1", 1.05, 1), Kill("d-1.1", 1.2 + EXPLAINED_S, 1)])
def test_a_repeat_without_such_a_kill_is_not(kill: Kill) -> None:
    verdict = judge(["t1"], [post(), post(at=9.0, process="d-2.1")], [kill])
    assert wrong(verdict) == {"unexplained_duplicates": 1}


@pytest.mark.requirement("chaos:deliveries:judge")
def test_more_repeats_than_deliveries_were_in_flight_at_kills_are_not_clean() -> None:
    repeats = [post(), post(at=1.01), post(at=1.02)]
    assert not judge(["t1"], repeats, [Kill("d-1.1", 1.05, 1)]).is_clean
    assert judge(["t1"], repeats, [Kill("d-1.1", 1.05, 2)]).is_clean


@pytest.mark.requirement("chaos:deliveries:judge")
def test_a_second_id_and_a_bad_signature_are_found() -> None:
    assert wrong(judge(["t1"], [post(taken=False), post(at=2.0, id="dlv_other")], [])) == {"several_ids": 1}
    assert wrong(judge(["t1"], [post(verified=False)], [])) == {"bad_signatures": 1}


@pytest.mark.requirement("chaos:deliveries:judge")
@pytest.mark.parametrize(("asked", "missed"), [(1, 0), (3, 2)])
def test_a_run_with_fewer_kills_than_were_asked_for_is_not_clean(asked: int, missed: int) -> None:
    verdict = judge(["t1"], [post()], [Kill("d-1.1", 1.0, 1)], asked)
    assert (verdict.is_clean, verdict.figures()["missed_kills"]) == (not missed, missed)
    assert [finding.split(":")[0] for finding in verdict.findings] == ["missed_kills"] * bool(missed)
