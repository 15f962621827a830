"""What waits for room beside a process, and what the process counts for those that have ended."""

import json
import threading
from collections import defaultdict

import pytest

from worker import metrics
from worker.engine.suspects import Suspects
from worker.store.lease import Suspected

WITHIN_S = 10.0
FOUND = Suspected("turn_1", 2, reserved=False)


async def reserve(_session: str, _nonce: str) -> None:
    raise AssertionError("no process was started")


@pytest.mark.requirement("survive:suspect:waits")
async def test_who_waits_is_looked_at_once_there_is_room_in_a_thread_that_may_block() -> None:
    looked: list[tuple[str, int]] = []
    all_looked = threading.Semaphore(0)

    def look(session: str) -> None:
        looked.append((session, threading.get_ident()))
        all_looked.release()
        if session == "fails":
            raise RuntimeError("the broker is away")

    suspects = Suspects(1, look, reserve)
    assert suspects.promise()
    assert not suspects.promise()
    assert [suspects.wait(session, FOUND) for session in ("fails", "other", "fails")] == [True, True, False]
    for _ in range(2):
        suspects.unneeded()
        assert suspects.promise()
    await suspects.stop(WITHIN_S)
    assert [session for session, _ in looked] == ["fails", "other"]
    assert threading.get_ident() not in {thread for _, thread in looked}
    assert not suspects.promise()


@pytest.mark.requirement("metrics:labels:bounded")
def test_many_processes_of_suspects_together_bring_no_more_words_than_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "_words", defaultdict(set))
    for process in range(3):
        counts = [["verbs_refused", {"why": f"w{process}-{number}"}, 1.0] for number in range(90)]
        metrics.add(json.dumps(counts).encode())
    every: list[tuple[str, dict[str, str], float]] = json.loads(metrics.counted())
    told = {labels["why"]: value for name, labels, value in every if name == "verbs_refused"}
    assert len([why for why in told if why.startswith("w")]) == 100
    assert told["other"] == 170


@pytest.mark.requirement("metrics:suspects")
def test_what_another_process_has_counted_is_counted_here() -> None:
    def counted(name: str, **labels: str) -> float:
        every: list[tuple[str, dict[str, str], float]] = json.loads(metrics.counted())
        return sum(value for each, with_labels, value in every if each == name and with_labels == labels)

    def seen() -> tuple[float, float]:
        return counted("turns_sealed", **dead), counted("turns_parked")

    dead = {"outcome": "dead", "code": "crash_cap", "agent": "default"}
    sealed, parked = seen()
    metrics.turn_sealed("dead", "crash_cap", "default", 1.0)
    assert seen() == (sealed + 1, parked)
    metrics.add(json.dumps([["turns_sealed", dead, 2.0], ["turns_parked", {}, 3.0]]).encode())
    assert seen() == (sealed + 3, parked + 3)
