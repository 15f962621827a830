"""A process that runs turns and may die at any place: the real one, on a connection that can be cut.

What belongs here: the places that a process passes, dying at one of them, what it is given instead of HTTP. What must
not be known here: which turns there are, what is right.

To die is to stop for ever at a place: the connection to the store is cut first, so nothing is cleaned up, then every
coroutine of the process is dropped. Places are told apart by what is done there and by how often it was done before:

    before OpenCall, after OpenCall      a command of the turn machine, about to be performed and performed
    commit: not sent, commit: unheard    a script: never sent, and applied without its answer being heard
    charge: to run, charge: has run      a tool: recorded as started, and done without its result being recorded
"""

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redis.exceptions import NoScriptError

from tests.store.turns import Redis
from worker.codecs.events import StreamEvent
from worker.codecs.messages import Request, UserMessage
from worker.engine.driver import TurnDriver
from worker.settings import WorkerSettings
from worker.store.cancels import REQUESTED
from worker.store.script import Script
from worker.tools.tool import Tool
from worker.turn.commands import Command, StageText, StageThinking
from worker.turn.events import DeathKind, Died, Event, Heard, NotAnswered
from worker.wiring import TurnProcess

Place = tuple[str, int]
"""What is done, and the how-many-eth time."""


def _scripts_of(package: str) -> dict[str, Script]:
    files = list(Path(__file__).parents[2].joinpath(*package.split("."), "lua").glob("*.lua"))
    texts = [file.read_text(encoding="utf-8") for file in files]
    preludes = {name for text in texts for name in re.findall(r"^-- prelude: (\w+)$", text, re.MULTILINE)}
    return {file.stem: Script(package, file.stem) for file in files if file.stem not in preludes}


SCRIPTS = _scripts_of("worker.store") | {
    f"channels/{name}": script for name, script in _scripts_of("channels.outbox").items()
}
"""By the name that a place has."""

NAMES = {
    key: name
    for name, script in SCRIPTS.items()
    for source in (script._plain, script._flagged)
    for key in (source.sha, source.text)
}


class Fate:
    """The places that a process passes, in order, and the one at which it dies; None: it does not."""

    def __init__(self, at: Place | None = None) -> None:
        self.at = at
        self.died = asyncio.Event()
        self.passed: list[Place] = []
        self._counts: Counter[str] = Counter()

    async def passes(self, what: str) -> None:
        """Be at a place: go on, or never."""
        if self.died.is_set():
            await _for_ever()
        self._counts[what] += 1
        place = (what, self._counts[what])
        self.passed.append(place)
        if place == self.at:
            self.died.set()
            await _for_ever()


async def _for_ever() -> None:
    await asyncio.Event().wait()


class Line:
    """Wraps `client` in place: each script is two places, and after death nothing is sent any more."""

    def __init__(self, client: Redis, fate: Fate) -> None:
        self._fate = fate
        self._forgotten: str | None = None
        self._execute = client.execute_command
        self._open_pipeline = client.pipeline
        client.execute_command = self._execute_command
        client.pipeline = self._pipeline

    async def _execute_command(self, *command: Any, **options: Any) -> Any:
        names = _scripts([command])
        await self._leave(names)
        try:
            reply = await self._execute(*command, **options)
        except Exception as error:
            self._forgotten = next(iter(names), None) if _is_about_the_script(error) else None
            raise
        await self._arrive(names)
        return reply

    def _pipeline(self, *args: Any, **options: Any) -> Any:
        pipeline = self._open_pipeline(*args, **options)
        execute = pipeline.execute

        async def mortal_execute(*args: Any, **options: Any) -> Any:
            names = _scripts([command for command, _ in pipeline.command_stack])
            await self._leave(names)
            replies = await execute(*args, **options)
            if any(_is_about_the_script(reply) for reply in replies):
                self._forgotten = next(iter(names), None)
                return replies
            await self._arrive(names)
            return replies

        pipeline.execute = mortal_execute
        return pipeline

    async def _leave(self, names: list[str]) -> None:
        if self._fate.died.is_set():
            await _for_ever()
        for name in names:
            if name != self._forgotten:
                await self._fate.passes(f"{name}: not sent")
        if names:
            self._forgotten = None

    async def _arrive(self, names: list[str]) -> None:
        for name in names:
            await self._fate.passes(f"{name}: unheard")


def _is_about_the_script(answer: object) -> bool:
    """It did not run: the server does not know it (yet), or not its flags. It is sent again in another form."""
    return isinstance(answer, NoScriptError) or (isinstance(answer, Exception) and "near '#'" in str(answer))


def _scripts(commands: list[Any]) -> list[str]:
    return [NAMES[command[1]] for command in commands if command and command[0] in {"EVALSHA", "EVAL"}]


# The provider: answers from a script, whoever asks.


@dataclass(frozen=True, slots=True)
class Breaks:
    """The stream breaks off."""

    kind: DeathKind = "reset"


@dataclass(frozen=True, slots=True)
class Silence:
    """Nothing more comes, and nothing ends."""


@dataclass(frozen=True, slots=True)
class Unreachable:
    """No stream comes; the same request may succeed later."""


@dataclass(frozen=True, slots=True)
class Drains:
    """The process that asks is told to shut down."""


@dataclass(frozen=True, slots=True)
class Cancelled:
    """Somebody wants the turn to end, once the text before this is staged. `is_told`: its driver hears of it."""

    is_told: bool = True


Step = StreamEvent | Breaks | Silence | Unreachable | Drains | Cancelled


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as the provider got it. `nth`: how often this call of this turn was asked of anybody, from 1."""

    provider: str
    message: str
    call: int
    attempt: int
    nth: int
    request: Request


Answers = Callable[[Asked], list[Step]]


class ScriptedProvider:
    """Remembers, as a server does, what it was asked before, by processes that are dead by now."""

    def __init__(self, answers: Answers) -> None:
        self.asked: list[Asked] = []
        self._answers = answers

    def ask(self, provider: str, request: Request, call: int, attempt: int) -> list[Step]:
        message = [each.text for each in request.messages if isinstance(each, UserMessage)][-1]
        nth = 1 + sum((each.message, each.call) == (message, call) for each in self.asked)
        asked = Asked(provider, message, call, attempt, nth, request)
        self.asked.append(asked)
        return self._answers(asked)


class MortalProcess:
    """A process that runs turns, with a scripted provider. `cancel`: asks for the end of a turn, from outside.

    `tools`: what it offers, by name; nothing, until it is set.
    """

    def __init__(
        self,
        client: Redis,
        settings: WorkerSettings,
        provider: ScriptedProvider,
        cancel: Callable[[str], Awaitable[None]],
        fate: Fate,
    ) -> None:
        self.tools: Mapping[str, Tool] = {}
        self._client = client
        self._fate = fate
        self._provider = provider
        self._cancel = cancel
        self._has_staged = asyncio.Event()
        Line(client, fate)
        self._process = TurnProcess(settings)
        self._process._redis = self._process._claimant._redis = client
        self._process._tick._redis = client
        maker: Any = self._process._maker
        maker._providers = self
        maker._shelf = self
        self._made = maker._driver
        maker._driver = self._driver

    async def run(self, session: str) -> bool:
        """Run the session's turns until none is left for this process, or it dies. Gives whether it died."""
        await self._process._maker.start()
        running = asyncio.ensure_future(self._process.run_session(session))
        dying = asyncio.ensure_future(self._fate.died.wait())
        async with asyncio.timeout(20):
            await asyncio.wait([running, dying], return_when=asyncio.FIRST_COMPLETED)
        has_died = self._fate.died.is_set()
        for each in (running, dying):
            if not each.done():
                each.cancel()
        await asyncio.wait([running, dying])
        await self._client.aclose()
        if not has_died:
            running.result()
        return has_died

    async def cancelled(self, *, is_told: bool) -> None:
        """Somebody wants the turn that runs to end."""
        for driver in tuple(self._process._drivers):
            await self._cancel(driver._grant.turn)
            if is_told:
                driver.cancel(REQUESTED)

    def out_of_time(self) -> None:
        """It is told to shut down, and has no more time to."""
        self._process.drain()
        self._process.cut_off()

    def _driver(self, *parts: Any) -> TurnDriver:
        driver: Any = self._made(*parts)
        perform = driver._perform

        async def mortal_perform(command: Command) -> None:
            name = type(command).__name__
            await self._fate.passes(f"before {name}")
            await perform(command)
            if isinstance(command, StageText | StageThinking):
                await self._process._tick.flush()
                self._has_staged.set()
            await self._fate.passes(f"after {name}")

        driver._perform = mortal_perform
        made: TurnDriver = driver
        return made

    # In place of the providers over HTTP.

    def attempt(self, agent: object) -> Callable[[str, Request, int, int], AsyncIterator[list[Event]]]:
        del agent
        return self._attempt

    async def _attempt(self, provider: str, request: Request, call: int, attempt: int) -> AsyncIterator[list[Event]]:
        self._has_staged.clear()
        for step in self._provider.ask(provider, request, call, attempt):
            match step:
                case Breaks(kind):
                    yield [Died(call, attempt, kind, "it broke off")]
                case Unreachable():
                    yield [NotAnswered(call, attempt, 503, True, "overloaded", "later")]
                case Silence():
                    await _for_ever()
                case Drains():
                    self._process.drain()
                case Cancelled(is_told):
                    await self._has_staged.wait()
                    await self.cancelled(is_told=is_told)
                case event:
                    yield [Heard(call, attempt, event)]

    # In place of the installed tools.

    async def offered(self, name: str, agent: object) -> Mapping[str, Tool]:
        del name, agent
        return self.tools

    async def close(self) -> None:
        """Nothing is open."""
