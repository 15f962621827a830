"""A process dies at every place of a turn, and another one goes on: nobody outside can tell.

Each scenario is told once undisturbed; then once for each place that a process passed, with a death there; and for
every fourth of them again, with a second death somewhere in the takeover.
"""

from typing import get_args

import pytest

from tests.survive.judging import judge
from tests.survive.mortal import SCRIPTS, Place
from tests.survive.scenarios import SCENARIOS, Scenario
from tests.survive.stores import NewStore, Store, fake_store
from tests.survive.story import Ending, Story
from worker.turn.commands import Command

pytestmark = pytest.mark.timeout(300)
EVERY = {"fake": 4, "real": 1}
"""The fake store takes twice the time: it is asked about every fourth place."""
AGAIN_EVERY = 4
STRIDE = 7
"""Every fourth takeover dies too, the deaths spread over it: that of the n-th place is at the place n * STRIDE."""


@pytest.fixture(params=SCENARIOS, ids=lambda scenario: scenario.name.replace(" ", "-"))
def scenario(request: pytest.FixtureRequest) -> Scenario:
    chosen: Scenario = request.param
    return chosen


async def told(store: Store, scenario: Scenario, deaths: list[Place | None]) -> Ending:
    """The ending of a story with these deaths, and a note of them should it fail."""
    try:
        return await Story(store, scenario, deaths).told()
    except BaseException as error:
        error.add_note(f"in {scenario.name!r} with deaths at {deaths}")
        raise


def _verdict(calm: Ending, ending: Ending, deaths: list[Place | None]) -> str:
    died = [fate.at for fate in ending.fates if fate.died.is_set()]
    if died != [place for place in deaths if place is not None]:
        return f"{deaths}: only {died} came to pass"
    try:
        judge(calm, ending)
    except AssertionError as error:
        return f"{deaths}: {str(error)[:600]}"
    return ""


@pytest.mark.requirement("survive:crash-anywhere")
async def test_wherever_a_process_dies_the_turn_ends_as_if_it_had_not(new_store: NewStore, scenario: Scenario) -> None:
    calm = await told(new_store(), scenario, [])
    judge(calm, calm)
    wrong: list[str] = []
    for life, fate in enumerate(calm.fates):
        for number, place in list(enumerate(fate.passed))[:: EVERY[new_store.kind]]:
            deaths: list[Place | None] = [*[None] * life, place]
            once = await told(new_store(), scenario, deaths)
            wrong.append(_verdict(calm, once, deaths))
            after = once.fates[life + 1].passed if len(once.fates) > life + 1 else []
            if after and number % AGAIN_EVERY == 0:
                deaths = [*deaths, after[number * STRIDE % len(after)]]
                wrong.append(_verdict(calm, await told(new_store(), scenario, deaths), deaths))
    assert [each for each in wrong if each] == []


@pytest.mark.requirement("survive:crash-anywhere:everything")
async def test_no_command_and_no_verb_of_a_driver_is_left_out() -> None:
    """A new one needs a scenario in which it is performed."""
    passed: set[str] = set()
    for scenario in SCENARIOS:
        calm = await told(fake_store(), scenario, [])
        passed |= {what for fate in calm.fates for what, _ in fate.passed}
    commands = {command.__name__ for command in get_args(Command)}
    assert {f"{when} {command}" for command in commands for when in ("before", "after")} - passed == set()
    verbs = {"claim", *(name for name, script in SCRIPTS.items() if f"fence('{name}')" in script._plain.text)}
    assert {f"{verb}: {what}" for verb in verbs for what in ("not sent", "unheard")} - passed == set()
