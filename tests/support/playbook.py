"""Playbooks: tests of the turn machine that read as its specification.

    play = Playbook(machine)
    play.given(Begin()).expect(OpenCall(call=1, ...))
    play.at(45).given(Tick()).expect(CloseCall(), ...)

Every event's commands must be expected, all of them and in order, before the next event is given. `unittest.mock.ANY`
stands for a field that the scene is not about. Time is set by hand.
"""

from collections.abc import Sequence
from typing import Any, Self

import pytest

from worker.errors import LocalProtocolError
from worker.turn.events import Event
from worker.turn.machine import TurnMachine
from worker.turn.states import State


class Playbook:
    """One scene with one machine, from second 0 on."""

    def __init__(self, machine: TurnMachine) -> None:
        self.machine = machine
        self.now = 0.0
        self.commands: list[Any] = []
        """Everything that the machine has ordered so far."""
        self._event: Any = None
        self._unseen: tuple[Any, ...] = ()

    def at(self, now: float) -> Self:
        """Set the clock, in seconds since the scene began."""
        assert now >= self.now, "time does not go back"
        self.now = now
        return self

    def given(self, event: Event) -> Self:
        """Feed one event."""
        self._nothing_is_left()
        self._event = event
        self._unseen = self.machine.handle(event, self.now)
        self.commands += self._unseen
        return self

    def expect(self, *commands: Any) -> Self:
        """The last event led to exactly these commands."""
        unseen, self._unseen = self._unseen, ()
        if list(unseen) != list(commands):
            pytest.fail(f"after {self._event!r} at {self.now:g} s:\n{aligned(commands, unseen)}", pytrace=False)
        return self

    def ignores(self, *events: Event) -> Self:
        """These events lead to nothing."""
        for event in events:
            self.given(event).expect()
        return self

    def refuses(self, event: Event) -> Self:
        """This event is a bug of whoever sent it."""
        self._nothing_is_left()
        with pytest.raises(LocalProtocolError):
            self.machine.handle(event, self.now)
        return self

    def stands(self, state: State) -> Self:
        """The machine is in this state."""
        assert self.machine.state is state
        return self

    def take(self) -> tuple[Any, ...]:
        """The last event's commands, for a scene that is about other things."""
        unseen, self._unseen = self._unseen, ()
        return unseen

    def _nothing_is_left(self) -> None:
        if self._unseen:
            pytest.fail(f"after {self._event!r} nobody expected:\n{aligned((), self._unseen)}", pytrace=False)


def aligned(expected: Sequence[Any], got: Sequence[Any]) -> str:
    """Both lists side by side, one command a line: `-` was expected and did not come, `+` came and was not expected."""
    common = [[0] * (len(got) + 1) for _ in range(len(expected) + 1)]
    for i in reversed(range(len(expected))):
        for j in reversed(range(len(got))):
            same = expected[i] == got[j]
            common[i][j] = common[i + 1][j + 1] + 1 if same else max(common[i + 1][j], common[i][j + 1])
    lines, i, j = [], 0, 0
    while i < len(expected) or j < len(got):
        if i < len(expected) and j < len(got) and expected[i] == got[j]:
            lines.append(f"    {got[j]!r}")
            i, j = i + 1, j + 1
        elif j == len(got) or (i < len(expected) and common[i + 1][j] >= common[i][j + 1]):
            lines.append(f"  - {expected[i]!r}")
            i += 1
        else:
            lines.append(f"  + {got[j]!r}")
            j += 1
    return "\n".join(lines) or "    (nothing)"
