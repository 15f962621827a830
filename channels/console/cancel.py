"""`lastword turns cancel`: asks for the end of a turn.

What belongs here: the form of the answer, and waiting for the end. What must not be known here: how a turn is ended.
"""

import asyncio
import json
import sys
from functools import partial
from time import monotonic

from channels.console import exits
from channels.console.approvals import person
from channels.console.joined import Client, Joined, ask
from channels.console.terminal import open_console
from channels.settings import Settings
from worker import api
from worker.app import make_app, wake_session
from worker.errors import ConfigurationError
from worker.store.records import read_turn

_LOOK_AGAIN_S = 0.1

_SAID = {
    "cancelled": "cancelled",
    "cancelling": "is being cancelled by the process that runs it",
    "newer": "was not cancelled: a newer version of Lastword has written it; use that one",
}


def run_cancel(settings: Settings, turn: str, by: str | None, wait_s: float, *, as_json: bool) -> int:
    """Ask for the end of a turn; returns the exit code. `by` None: the person who is logged in. `wait_s`: for its end.

    The code is 0 when the turn is cancelled, or will be; 1 when it has ended otherwise; 5 when it has not ended within
    the wait.
    """
    return ask(settings, partial(_cancel, turn, by, wait_s, as_json))


async def _cancel(  # noqa: PLR0913, PLR0917 - the arguments of the command
    turn: str, by: str | None, wait_s: float, as_json: bool, there: Joined, client: Client
) -> int:
    app = make_app(there.settings, concurrency=1)
    answer = await api.cancel_turn(
        there.settings,
        client,
        turn=turn,
        by=by if by is not None else person(),
        wake=partial(wake_session, app),
    )
    outcome: str | None = answer.outcome
    if answer.state == "cancelling":
        if there.alone:
            open_console(stderr=True).print(
                "no `lastword up` runs on this data folder: the turn ends as soon as one does",
                style="yellow",
                soft_wrap=True,
            )
        outcome = await _outcome(client, turn, wait_s)
    said = _SAID.get(answer.state, "") if outcome is None or answer.state == "cancelled" else f"ended: {outcome}"
    told = {"turn": turn, "state": answer.state, "outcome": outcome}
    sys.stdout.write((json.dumps(told) if as_json else f"{turn} {said}") + "\n")
    if answer.state == "newer" or outcome not in (None, "cancelled"):
        return exits.FAILED
    return exits.UNDECIDED if wait_s and outcome is None else exits.OK


async def _outcome(client: Client, turn: str, wait_s: float) -> str | None:
    """How the turn has ended, within `wait_s` seconds; None: it has not."""
    patience_ends = monotonic() + wait_s
    while True:
        record = await read_turn(client, turn)
        if record is None:
            raise ConfigurationError(f"turn {turn} is not known any more")
        if record.outcome is not None or monotonic() >= patience_ends:
            return record.outcome
        await asyncio.sleep(_LOOK_AGAIN_S)
