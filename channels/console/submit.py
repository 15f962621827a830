"""`lastword submit`: hands a message in, for the turns processes to answer and the delivery processes to deliver.

What belongs here: what the arguments mean, and waiting for the outcome. What must not be known here: how a turn runs.
"""

import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial

from channels.console import exits
from channels.console.joined import Client, Joined, ask
from channels.console.terminal import cleaner, error_line, error_object, open_console
from channels.destinations import check_destinations
from channels.settings import Settings
from worker import api
from worker.app import make_app, wake_session
from worker.errors import ConfigurationError
from worker.output.events import ErrorOutput, TurnCompletedOutput
from worker.store.inbox import IdempotencyConflict, OnBusy, SessionBusy, Submitted
from worker.store.outputs import outputs_after

_BLOCK_MS = 2000


@dataclass(frozen=True, slots=True)
class Message:
    """A message as the command line gave it. `wait_s`: seconds to wait for its outcome; 0: not at all."""

    prompt: str
    agent: str
    session: str | None
    to: tuple[str, ...]
    labels: dict[str, str]
    idempotency_key: str | None
    wait_s: float
    on_busy: OnBusy | None = None
    joins: bool = False


def labels_of(pairs: Sequence[str]) -> dict[str, str]:
    """Labels from `NAME=VALUE` each. Raises ConfigurationError."""
    labels: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or name in labels:
            fault = "is given twice" if equals else "has no '='"
            raise ConfigurationError(f"--label {pair!r} {fault}: give NAME=VALUE, each name once")
        labels[name] = value
    return labels


def run_submit(settings: Settings, message: Message, *, as_json: bool) -> int:
    """Check, submit, tell the ids, and wait if that was asked for; returns the exit code."""
    settings.agent(message.agent)
    return ask(settings, partial(_submit, message, as_json))


async def _submitted(message: Message, there: Joined, client: Client) -> Submitted:
    await check_destinations(client, there.settings, message.to)
    app = make_app(there.settings, concurrency=1)
    try:
        return await api.submit(
            there.settings,
            client,
            prompt=message.prompt,
            source="cli",
            wake=partial(wake_session, app),
            agent=message.agent,
            session=message.session,
            labels=message.labels,
            destinations=message.to,
            idempotency_key=message.idempotency_key,
            joins=message.joins,
            on_busy=message.on_busy,
        )
    except IdempotencyConflict as conflict:
        raise ConfigurationError(str(conflict)) from None


async def _submit(message: Message, as_json: bool, there: Joined, client: Client) -> int:
    errors = open_console(stderr=True)
    try:
        submitted = await _submitted(message, there, client)
    except SessionBusy as busy:
        errors.print(str(busy), style="red", markup=False, soft_wrap=True)
        return exits.FAILED
    told: dict[str, object] = asdict(submitted)
    if there.alone:
        errors.print(
            "no `lastword up` runs on this data folder: the turn is stored and waits for one",
            style="yellow",
            soft_wrap=True,
        )
    if not message.wait_s:
        sys.stdout.write((json.dumps(told) if as_json else submitted.turn) + "\n")
        return exits.OK
    if not as_json:
        errors.print(f"{submitted.turn} submitted; waiting for its outcome", style="dim")
    end, error = await _outcome(client, submitted.turn, message.wait_s)
    told |= {"outcome": end.outcome if end else None, "reason": end.reason if end else None}
    told["error"] = error_object(error) if error else None
    if error is not None:
        errors.print(cleaner(errors)(error_line(error)), markup=False, soft_wrap=True)
    sys.stdout.write((json.dumps(told) if as_json else f"{submitted.turn} {told['outcome'] or 'has not ended'}") + "\n")
    return exits.of_outcome(end.outcome if end else None)


async def _outcome(client: Client, turn: str, wait_s: float) -> tuple[TurnCompletedOutput | None, ErrorOutput | None]:
    """How the turn ended and what went wrong, as far as it has come within `wait_s` seconds."""
    last, error = "0-0", None
    try:
        async with asyncio.timeout(wait_s):
            while True:
                for entry, output in await outputs_after(client, turn, last, _BLOCK_MS):
                    if isinstance(output, TurnCompletedOutput):
                        return output, error
                    if isinstance(output, ErrorOutput):
                        error = output
                    last = entry
    except TimeoutError:
        return None, error
