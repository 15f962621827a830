"""What is wrong in a survey and needs a person: pure.

What belongs here: what is too many, too long, or missing, and what to do about it. What must not be known here: how a
survey is made and shown.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from channels.survey import Survey, hangs

WAITS_TOO_LONG_S = 60.0
"""A turn or delivery that should go on at once waits a second or two, after a crash some ten."""

ASIDE_TOO_LONG_S = 600.0
"""What a newer release wrote waits until the deploy has come to the delivery processes."""

FAILS_TOO_LONG_S = 600.0
"""A receiver that is started anew takes again within minutes."""

MEMORY_SHARE = 0.9

_NAMED = 5
"""So many endpoints are named in a line."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that does not mend itself. `code` for programs; `message` says what and what to do."""

    code: str
    message: str


def faults(survey: Survey) -> list[Fault]:
    """All that is wrong; none: nothing needs a person."""
    return [*_of_processes(survey), *_of_ends(survey), *_of_endpoints(survey), *_of_waits(survey), *_of_servers(survey)]


def _of_processes(survey: Survey) -> Iterator[Fault]:
    hanging = [each for each in survey.processes if hangs(each) and not each.told.stopped]
    if hanging:
        names = ", ".join(each.told.name for each in hanging)
        longest = max(each.told.loop_lag_s for each in hanging)
        yield Fault("process_hangs", f"the loop of {names} has not answered for up to {longest:.0f} s: restart it")
    waiting = sum(each.waiting for each in survey.turns)
    if waiting and not survey.taking("turns"):
        yield Fault("no_turns_process", f"{waiting} turns wait and no turns process takes them: start one")
    lag = max((each.relay_lag_s for each in survey.logs), default=0.0)
    if (survey.deliveries.ripe or lag) and not survey.taking("delivery"):
        yield Fault("no_delivery_process", "outcomes wait and no delivery process reads or sends them: start one")


def _of_ends(survey: Survey) -> Iterator[Fault]:
    dead = survey.lately().get("dead", 0)
    if dead:
        yield Fault(
            "dead_turns", f"{dead} turns took down their processes within a day: `lastword turns list --state dead`"
        )
    letters = survey.deliveries.lately
    if letters:
        yield Fault(
            "dead_letters", f"{letters} deliveries were given up within a day: `lastword deliveries list --state dead`"
        )


def _of_endpoints(survey: Survey) -> Iterator[Fault]:
    deliveries = survey.deliveries
    shut = sorted(name for name, standing in deliveries.stopped.items() if standing == "disabled")
    holding = [name for name in shut if deliveries.held.get(name)]
    if holding:
        held = sum(deliveries.held[name] for name in holding)
        yield Fault(
            "endpoint_disabled",
            f"{held} deliveries are held for disabled endpoints ({_named(holding)}): once a receiver takes again, "
            f"`lastword endpoints enable {holding[0]} --replay`",
        )
    since_ms = {name: one.failing_since_ms or survey.now_ms for name, one in deliveries.failing.items()}
    failing = sorted(name for name, at_ms in since_ms.items() if survey.now_ms - at_ms > FAILS_TOO_LONG_S * 1000)
    if failing:
        longest = (survey.now_ms - min(since_ms[name] for name in failing)) / 1000
        yield Fault(
            "endpoints_fail",
            f"{_named(failing)} took nothing for up to {longest:.0f} s while deliveries wait: ask the receiver; "
            "`lastword deliveries list --state waiting` and `show` tell what it answers",
        )


def _named(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")


def _of_waits(survey: Survey) -> Iterator[Fault]:
    longest = max((each.waiting_oldest_s for each in survey.turns), default=0.0)
    if longest > WAITS_TOO_LONG_S and survey.taking("turns"):
        yield Fault("turns_wait", f"a turn has waited {longest:.0f} s for a process: start more turns processes")
    late = max((each.due_oldest_s for each in survey.turns), default=0.0)
    if late > WAITS_TOO_LONG_S and survey.taking("turns"):
        yield Fault(
            "due_late",
            f"a session should have been looked at {late:.0f} s ago: look into the log of the turns "
            "processes, or start more of them",
        )
    due = survey.deliveries.ripe_oldest_s
    if due > WAITS_TOO_LONG_S and survey.taking("delivery"):
        yield Fault("deliveries_wait", f"a delivery is {due:.0f} s late: start more delivery processes")
    lag = max((each.relay_lag_s for each in survey.logs), default=0.0)
    if lag > WAITS_TOO_LONG_S and survey.taking("delivery"):
        yield Fault(
            "relay_lags", f"the relay is {lag:.0f} s behind: look for relay_ in the log of the delivery processes"
        )
    aside = max((each.aside_oldest_s for each in survey.logs), default=0.0)
    if aside > ASIDE_TOO_LONG_S:
        yield Fault(
            "newer_release",
            f"what a newer release of Lastword wrote {aside:.0f} s ago cannot be delivered by this one: start a "
            "delivery process of that release",
        )


def _of_servers(survey: Survey) -> Iterator[Fault]:
    if not survey.redis.persists:
        yield Fault("not_persistent", "Redis writes no append-only file, or could not: `lastword doctor` looks closer")
    if survey.redis.limit_bytes and survey.redis.memory_bytes > MEMORY_SHARE * survey.redis.limit_bytes:
        share = survey.redis.memory_bytes / survey.redis.limit_bytes
        yield Fault("memory", f"Redis has used {share:.0%} of its maxmemory: raise it, or let deliveries drain")
    if survey.broker is None:
        yield Fault("no_broker", "the broker does not answer: start it, or correct broker_url")
