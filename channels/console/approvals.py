"""`lastword approvals`: what waits for a person, and a person's answer.

What belongs here: the form of these answers, and asking the person at the terminal. What must not be known here: how
requests are stored, who may answer them.
"""

import asyncio
import contextlib
import getpass
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from functools import partial

from rich.console import Console
from rich.table import Table
from rich.text import Text

from channels.console import exits
from channels.console.joined import Client, Joined, ask
from channels.console.terminal import cleaner, for_terminal, open_console, time_of
from channels.settings import Settings
from worker import api
from worker.app import make_app, wake_session
from worker.output.approvals import APPROVE_ONCE, APPROVE_SESSION, DENY
from worker.output.events import ApprovalRequestOutput
from worker.store.pending import PendingApproval

try:
    import termios
except ImportError:  # no terminal of this kind, and nothing to discard
    termios = None  # type: ignore[assignment]

_WORDS = {
    APPROVE_ONCE: ("o", "once", "y", "yes"),
    APPROVE_SESSION: ("s", "session"),
    DENY: ("n", "no", "d", "deny"),
}
"""What a person may type for each option."""

_LOOK_AGAIN_S = 0.2
_LONGEST_LINE = 4096


def run_list(settings: Settings, *, as_json: bool) -> int:
    """Print the requests that wait; returns the exit code."""

    async def listed(there: Joined, client: Client) -> int:
        waiting = await api.list_approvals(client, there.settings.partitions)
        if as_json:
            sys.stdout.writelines(json.dumps(_object(one), ensure_ascii=False) + "\n" for one in waiting)
        else:
            console = open_console()
            console.print(_table(waiting, cleaner(console)) if waiting else "nothing waits for a person")
        return exits.OK

    return ask(settings, listed)


def run_decide(settings: Settings, approval: str, option: str, by: str | None) -> int:
    """Answer a request and wake a turns process; returns the exit code. `by` None: the person who is logged in."""

    async def decide(there: Joined, client: Client) -> int:
        app = make_app(there.settings, concurrency=1)
        errors = open_console(stderr=True)
        try:
            resolution = await api.resolve_approval(
                there.settings,
                client,
                approval=approval,
                option=option,
                by=by if by is not None else person(),
                wake=partial(wake_session, app),
            )
        except api.ApprovalRefused as refused:
            errors.print(f"refused: {refused} [{refused.code}]", style="red", markup=False, soft_wrap=True)
            return exits.FAILED
        if there.alone:
            errors.print(
                "no `lastword up` runs on this data folder: the answer is stored, and the turn waits for one",
                style="yellow",
                soft_wrap=True,
            )
        sys.stdout.write(f"{resolution.approval} {resolution.option} by {resolution.by}\n")
        return exits.OK

    return ask(settings, decide)


def person() -> str:
    """Who sits here: the name of the login."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a user id without a name
        return "cli"


def say_what_waits(waiting: Iterable[ApprovalRequestOutput]) -> None:
    """Tell on standard error which tool calls wait for a person, and the command that lets each run."""
    errors = open_console(stderr=True)
    clean = cleaner(errors)
    for request in waiting:
        words = f"waits for a person: tool {request.name} {request.arguments}\n"
        fix = f"  lastword approvals grant {request.approval}     (or: deny)"
        errors.print(Text.assemble((clean(words), "yellow"), fix), soft_wrap=True)


async def answer_at_terminal(request: ApprovalRequestOutput, waits: Callable[[], bool]) -> str | None:
    """The key of the option that the person at the terminal chooses.

    None: the terminal says nothing more, or `waits` says that the request was decided elsewhere. The question may then
    stand at the end of the last line. What was typed before a question stood there answers nothing: it is discarded.
    """
    console = open_console()
    offered = {key: words for key, words in _WORDS.items() if key in {option.key for option in request.options}}
    console.print(Text(for_terminal(f"tool {request.name} {request.arguments}"), "bold"), soft_wrap=True)
    while True:
        is_fresh = _discard_typed(sys.stdin.fileno())
        _put_question(console, request, offered)
        line = await _typed_while(waits)
        if line is None:
            return None
        for key, words in offered.items() if is_fresh else ():
            if line.strip().lower() in words:
                return key


async def _typed_while(waits: Callable[[], bool]) -> str | None:
    typing = asyncio.get_running_loop().create_task(_line(sys.stdin.fileno()))
    try:
        while waits():
            await asyncio.wait([typing], timeout=_LOOK_AGAIN_S)
            if typing.done():
                return typing.result()
        return None
    finally:
        typing.cancel()


def _discard_typed(terminal: int) -> bool:
    """Nobody may let a tool run unseen. `_line` takes one line and keeps none, so all else is still in the terminal.

    False: nothing was discarded, as this process runs in the background, where trying would stop it.
    """
    if termios is None:
        return True
    try:
        if os.tcgetpgrp(terminal) != os.getpgrp():
            return False
    except OSError:  # not the terminal that this process was started from: nothing stops us
        pass
    with contextlib.suppress(termios.error):  # no terminal, or it is gone: reading it will tell
        termios.tcflush(terminal, termios.TCIFLUSH)
    return True


def _put_question(console: Console, request: ApprovalRequestOutput, offered: dict[str, tuple[str, ...]]) -> None:
    labels = {option.key: option.label for option in request.options}
    console.print(
        ", ".join(f"{words[0]}: {labels[key]}" for key, words in offered.items()) + "? ", end="", markup=False
    )


async def _line(terminal: int) -> str | None:
    """The next line that is typed; None when nothing more can come."""
    loop = asyncio.get_running_loop()
    typed: asyncio.Future[bytes] = loop.create_future()

    def read() -> None:
        loop.remove_reader(terminal)
        try:
            typed.set_result(os.read(terminal, _LONGEST_LINE))
        except OSError:  # the terminal is gone
            typed.set_result(b"")

    loop.add_reader(terminal, read)
    try:
        return (await typed).decode(errors="replace") or None
    finally:
        loop.remove_reader(terminal)


def _object(one: PendingApproval) -> dict[str, object]:
    return asdict(one) | {"options": [option.model_dump() for option in one.options]}


def _table(waiting: Sequence[PendingApproval], clean: Callable[[str], str]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("approval", no_wrap=True, min_width=max(len(one.approval) for one in waiting))
    for name in ("tool", "arguments", "only", "session", "expires"):
        table.add_column(name, overflow="fold")
    for one in waiting:
        expires = time_of(one.expires_ms)
        cells = (one.approval, one.tool, one.arguments, one.requester or "", one.session, expires)
        table.add_row(*(Text(clean(cell)) for cell in cells))
    return table
