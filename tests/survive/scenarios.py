"""The turns that are crashed anywhere: what is submitted, what the provider answers, what people decide.

What belongs here: the scripts. What must not be known here: crashes, and what is right.

A provider answers by what it is asked, never by how often it is asked, unless it dies: else an undisturbed turn could
not be compared with one that was taken over.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tests.survive.mortal import Answers, Asked, Breaks, Cancelled, Drains, Silence, Step, Unreachable
from worker.codecs.events import Completed, Failed, ReasoningDelta, TextDelta, ToolCall, Usage
from worker.codecs.messages import UserMessage
from worker.settings import WorkerSettings
from worker.turn.transcript import NUDGE

USAGE = Usage(input_tokens=70, output_tokens=7, total_tokens=77)


@dataclass(frozen=True, slots=True)
class Scenario:
    """`messages`: submitted together, to one session. `before`: turns that the session has ended undisturbed before.

    `decision`: what a person says to each approval request, or `expired`; `at_once`: as soon as it is asked, be the
    driver alive or not, rather than once the turn is parked. `joins`: of each message, that it may join a turn that
    runs. `while_waiting`: what happens while the tool `wait` runs. `changes`: of the settings.
    """

    name: str
    answers: Answers
    messages: tuple[str, ...] = ("When is low tide?",)
    before: tuple[str, ...] = ()
    decision: Literal["approve_once", "deny", "expired"] | None = None
    at_once: bool = False
    joins: bool = False
    while_waiting: Literal["cancel", "drain is over"] | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)


def says(*pieces: str) -> list[Step]:
    """A whole answer."""
    return [*map(TextDelta, pieces), Completed("stop", (), USAGE)]


def calls(text: str, *names: str) -> list[Step]:
    """An answer that calls these tools."""
    called = tuple(
        ToolCall(f"t{at}", name, f'{{"cents": {at + 5}}}', {"cents": at + 5}) for at, name in enumerate(names)
    )
    return [TextDelta(text), Completed("tool_calls", called, USAGE)]


def _plain(asked: Asked) -> list[Step]:
    del asked
    return [ReasoningDelta("the sea …"), *says("The tide is ", "low at four.")]


def _tools(asked: Asked) -> list[Step]:
    match asked.call:
        case 1:
            return calls("I will look. ", "charge", "look")
        case 2:
            return calls("And once more. ", "charge")
        case _:
            return says("It is ", "done.")


def _dies_once(asked: Asked) -> list[Step]:
    match asked.call, asked.nth:
        case 1, 1:
            return calls("Let me see. ", "charge")
        case 2, 1:
            return [Unreachable()]
        case 2, 2:
            return [TextDelta("Half a sen"), TextDelta("tence"), Breaks()]
        case 2, _:
            return says("The whole ", "sentence.")
        case _:
            return calls("Let me see. ", "charge")


def _stalls_once(asked: Asked) -> list[Step]:
    if asked.nth == 1:
        return [TextDelta("Half a sen"), Silence()]
    return says("The whole sentence.")


def _dies_always(asked: Asked) -> list[Step]:
    if asked.call == 1:
        return calls("Let me see. ", "look")
    return [TextDelta("Half a sen"), Breaks("end_of_stream")]


def _falls_back(asked: Asked) -> list[Step]:
    if asked.provider == "main":
        return [TextDelta("Half a sen"), Breaks()]
    return says("From the other ", "one.")


def _asks_a_person(asked: Asked) -> list[Step]:
    if asked.call == 1:
        return calls("May I? ", "refund", "look")
    return says("That is ", "that.")


def _overflows(asked: Asked) -> list[Step]:
    if asked.message.startswith("Tell"):
        return says("Once upon a time. " * 200)
    if asked.call == 0:
        return [Breaks()] if asked.nth == 1 else says("A tale was told.")
    if sum(len(message.text) for message in asked.request.messages) > 2000:
        return [Failed("context_overflow", "too long", "context_length_exceeded")]
    return says("The ", "end.")


def _says_nothing(asked: Asked) -> list[Step]:
    told = [message.text for message in asked.request.messages if isinstance(message, UserMessage)]
    if NUDGE in told:
        return says("Now in ", "words.")
    return [ReasoningDelta("hm"), Completed("stop", (), USAGE)]


def _remembers(asked: Asked) -> list[Step]:
    if asked.call == 1:
        return calls(f"So: {asked.message} ", "charge")
    return says(f"After {len(asked.request.messages)} messages.")


def _drains(asked: Asked) -> list[Step]:
    if asked.call == 1 and asked.nth == 1:
        return [TextDelta("Half a sen"), Drains(), Silence()]
    if asked.call == 1:
        return calls("The whole sentence. ", "charge")
    return says("And its ", "end.")


def _is_joined(asked: Asked) -> list[Step]:
    if asked.call == 1:
        return calls(f"To {asked.message} ", "charge", "look")
    if asked.call == 2:
        return calls(f"And to {asked.message} ", "charge")
    return says(f"After {len(asked.request.messages)} messages.")


def _breaks_when_joined(asked: Asked) -> list[Step]:
    if asked.call == 2 and asked.nth == 1:
        return [TextDelta("Half a sen"), Breaks()]
    return _is_joined(asked)


def _is_cancelled(asked: Asked) -> list[Step]:
    if asked.call == 1:
        return calls("Let me see. ", "charge")
    return [TextDelta("Half a sen"), Cancelled(), Silence()]


def _is_cancelled_unheard(asked: Asked) -> list[Step]:
    if asked.call == 1:
        return calls("Let me see. ", "charge")
    return [TextDelta("The whole sen"), Cancelled(is_told=False), *says("tence.")]


def _waits(asked: Asked) -> list[Step]:
    match asked.call:
        case 1:
            return calls("Let me see. ", "charge")
        case 2:
            return calls("One moment. ", "wait")
        case _:
            return says("That is ", "that.")


BACKUP = {"base_url": "http://127.0.0.1:9/v1", "model": "other"}

SCENARIOS = (
    Scenario("plain", _plain),
    Scenario("tools", _tools),
    Scenario("a stream that breaks", _dies_once),
    Scenario("a stall", _stalls_once),
    Scenario("beyond recovery", _dies_always),
    Scenario("a fallback", _falls_back, changes={"fallback": True}),
    Scenario("granted", _asks_a_person, decision="approve_once"),
    Scenario("granted at once", _asks_a_person, decision="approve_once", at_once=True),
    Scenario("denied", _asks_a_person, decision="deny"),
    Scenario("expired", _asks_a_person, decision="expired"),
    Scenario("compaction", _overflows, ("How does it end?",), ("Tell me a tale.",)),
    Scenario("an empty answer", _says_nothing),
    Scenario("an earlier turn", _remembers, ("And now?",), ("First this.",)),
    Scenario("two queued turns", _remembers, ("First this.", "And now?")),
    Scenario("a drain", _drains),
    Scenario("a drain that is over with tools", _waits, while_waiting="drain is over"),
    Scenario("joins", _is_joined, ("When is low tide?", "And high tide?", "And the moon?"), joins=True),
    Scenario("joins a call that breaks", _breaks_when_joined, ("When is low tide?", "And high tide?"), joins=True),
    # On a busy machine a short silence would be over before the cancel came.
    Scenario("cancelled", _is_cancelled, ("When is low tide?", "And high tide?"), changes={"stall_timeout_s": 10}),
    Scenario("cancelled before a commit", _is_cancelled_unheard),
    Scenario("cancelled with tools", _waits, while_waiting="cancel"),
)

ANY_SCENARIO = {
    scenario.name: scenario
    for scenario in (*SCENARIOS, Scenario("three queued turns", _plain, ("One?", "Two?", "Three?")))
}
"""By name; with those that are recorded alone."""


def settings_of(scenario: Scenario) -> WorkerSettings:
    """Settings in which nothing takes long."""
    provider = {
        "base_url": "http://127.0.0.1:9/v1",
        "model": "stand-in",
        "stall_timeout_s": scenario.changes.get("stall_timeout_s", 0.05),
        "transport_backoff_s": 0.01,
        "transport_backoff_max_s": 0.02,
    }
    providers = {"main": provider}
    if scenario.changes.get("fallback"):
        providers = {"main": {**provider, "fallback": "backup"}, "backup": dict(BACKUP)}
    return WorkerSettings.model_validate(
        {
            "redis_url": "redis://127.0.0.1:9",
            "providers": providers,
            "agents": {"default": {}},
            "turns": {"resume_backoff_s": 0},
        }
    )
