"""One session, from the submit of its turns to their ends, through as many processes as it takes.

What belongs here: submitting, the processes one after the other, time, people, relay and deliveries, and what is there
in the end. What must not be known here: which scripts, and what is right.

Nothing sleeps: a lease runs out and a request expires because their times are put into the past, as the server keeps
them.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

from tests.survive.mortal import Asked, Fate, MortalProcess, Place, ScriptedProvider
from tests.survive.outside import DESTINATION, Outside
from tests.survive.scenarios import Scenario, settings_of
from tests.survive.stores import Store
from worker import api
from worker.output.events import Output, TextStreamDiscardedOutput
from worker.store import approvals, keys, pending
from worker.store.journal import decode_facts
from worker.store.log import LogEntry, read_log
from worker.store.outputs import all_outputs
from worker.store.records import TurnRecord, read_text, read_turn
from worker.tools.decorator import tool
from worker.tools.tool import Tool, ToolContext
from worker.turn.facts import Fact, ToolEnded, ToolStarted

MOST_LIVES = 12
NOT_OF_THE_PROVIDER = ("takeover", "drain", "cancelled")
MOST_DEATHS = 3
"""Attempts of one call that may die of the provider: the first, and the two resumes of the default budget."""

_WATCH_S = 600


@dataclass(frozen=True, slots=True)
class TurnEnd:
    """What is stored of a turn that has ended."""

    record: TurnRecord
    text: str
    facts: tuple[Fact, ...]
    outputs: tuple[Output, ...]


@dataclass(frozen=True, slots=True)
class Ending:
    """What came of it all. `fates`: of each process. `running`: tool calls (turn, call, index) that a death cut.

    `tool_runs`: tools that took effect, as (name, idempotency key), in order. `sent`: what receivers got, as (turn,
    event, text). Of each turn: `crashes`, processes that died while they drove it; `spent`, those that died after the
    last permitted attempt of a call and before they had ended the turn.
    """

    turns: tuple[TurnEnd, ...]
    fates: tuple[Fate, ...]
    log: tuple[LogEntry, ...]
    sent: tuple[tuple[str, str, str], ...]
    tool_runs: tuple[tuple[str, str], ...]
    asked: tuple[Asked, ...]
    running: frozenset[tuple[str, int, int]]
    crashes: tuple[int, ...]
    spent: tuple[int, ...]


@dataclass
class Story:
    """Everything outside the processes. `deaths`: where the first process dies, the second, and so on.

    `relays`: the log is relayed after each of them, and not only in the end.
    """

    store: Store
    scenario: Scenario
    deaths: list[Place | None]
    session: str = "chat/1"
    relays: bool = True
    fates: list[Fate] = field(default_factory=list)
    tool_runs: list[tuple[str, str]] = field(default_factory=list)
    running: set[tuple[str, int, int]] = field(default_factory=set)
    crashes: Counter[str] = field(default_factory=Counter)
    spent: Counter[str] = field(default_factory=Counter)
    entries: dict[str, LogEntry] = field(default_factory=dict)
    unreadable: set[str] = field(default_factory=set)
    """Entries of the log that no release before theirs can read."""
    _is_out_of_time: bool = False

    def __post_init__(self) -> None:
        self.deaths = list(self.deaths)
        self.client = self.store.connect()
        self.provider = ScriptedProvider(self.scenario.answers)
        self.settings = settings_of(self.scenario)

    async def told(self) -> Ending:
        """The session from its first submit to the delivery of its last turn."""
        turns = await self.begun()
        await self.driven(turns)
        ending = await self.ended(turns)
        assert not self.unreadable
        return ending

    async def begun(self) -> list[str]:
        """Turns that were submitted to a session with a past."""
        for message in self.scenario.before:
            await self.driven([await self.submit(message)], undisturbed=True)
        self.fates.clear()
        return [await self.submit(message) for message in self.scenario.messages]

    async def ended(self, turns: Sequence[str]) -> Ending:
        """What came of turns that have ended, with their deliveries."""
        await self._read_log()
        outside = Outside(self.client)
        await outside.relayed()
        sent = await outside.delivered()
        ends = [await self._end_of(turn) for turn in turns]
        log = [entry for entry in self.entries.values() if entry.turn in turns]
        await self.client.aclose()
        return Ending(
            tuple(ends),
            tuple(self.fates),
            tuple(log),
            tuple(each for each in sent if each[0] in turns),
            tuple(self.tool_runs),
            tuple(self.provider.asked),
            frozenset(self.running),
            tuple(self.crashes[turn] for turn in turns),
            tuple(self.spent[turn] for turn in turns),
        )

    async def submit(self, message: str) -> str:
        submitted = await api.submit(
            self.settings,
            self.client,
            prompt=message,
            source="test",
            wake=lambda _: None,
            session=self.session,
            idempotency_key=f"{self.session}: {message}",
            destinations=(DESTINATION,),
            watch_s=_WATCH_S,
            joins=self.scenario.joins,
        )
        return submitted.turn

    async def cancel(self, turn: str) -> None:
        await api.cancel_turn(self.settings, self.client, turn=turn, by="ana", wake=lambda _: None)

    async def driven(self, turns: Sequence[str], *, undisturbed: bool = False, to_the_last_death: bool = False) -> None:
        """Drive until all these turns have ended; or just to the last of the deaths, before anything follows."""
        deaths = [] if undisturbed else self.deaths
        for _ in range(MOST_LIVES):
            if all([await self._state(turn) == b"sealed" for turn in turns]):
                return
            if await self._is_due():
                fate = Fate(deaths.pop(0) if deaths else None)
                self.fates.append(fate)
                has_died = await self.process(fate).run(self.session)
                if has_died and to_the_last_death and not deaths:
                    return
                if self.relays:
                    await self._read_log()
                    await Outside(self.client).relayed()
                if has_died:
                    await self.lapse(turns)
                if self.scenario.at_once:
                    await self.decide()
            else:
                await self.decide()
        raise AssertionError(f"the turns did not end: {[await self._state(turn) for turn in turns]}")

    def process(self, fate: Fate) -> MortalProcess:
        """A process that will die as it must."""
        process = MortalProcess(self.store.connect(), self.settings, self.provider, self.cancel, fate)
        process.tools = self._tools(process, fate)
        return process

    async def _state(self, turn: str) -> bytes:
        state: bytes = await self.client.hget(keys.turn_record(turn), "state")
        return state

    async def _is_due(self) -> bool:
        """Whether a sweep would find the session, now or after the end of a lease."""
        return await self.client.zscore(keys.due(0), keys.DUE_LEASE + self.session) is not None

    async def lapse(self, turns: Sequence[str]) -> None:
        """The lease of the process that died runs out."""
        for turn in turns:
            facts = await self._facts(turn)
            ended = {(fact.call, fact.index) for fact in facts if isinstance(fact, ToolEnded)}
            state, lease = await self.client.hmget(keys.turn_record(turn), "state", "lease_ms")
            if state != b"running" or lease == b"1":  # not claimed, or not by this one
                continue
            self.crashes[turn] += 1
            deaths = deaths_of_the_provider(await all_outputs(self.client, turn))
            self.spent[turn] += any(count >= MOST_DEATHS for count in deaths.values())
            await self.client.hset(keys.turn_record(turn), "lease_ms", 1)
            self.running |= {
                (turn, fact.call, fact.index)
                for fact in facts
                if isinstance(fact, ToolStarted) and (fact.call, fact.index) not in ended
            }

    async def decide(self) -> None:
        """People answer what waits, or its time runs out."""
        for waiting in await pending.find_all(self.client, 1):
            if self.scenario.decision == "expired":
                name = "_".join(waiting.approval.rsplit("_", 2)[-2:])
                await self.client.hset(keys.approvals(waiting.turn), f"{name}:expires", 1)
                await self.client.zadd(keys.due(0), {keys.DUE_APPROVAL + waiting.turn: 1})
                approvals.expire_due(self.store.sync, 0)
            else:
                assert self.scenario.decision is not None, "nobody was to be asked"
                await approvals.resolve(self.client, waiting.approval, self.scenario.decision, "ana")

    # What is there in the end.

    async def _read_log(self) -> None:
        """Before a relay drops what it has dealt with."""
        for entry in await read_log(self.client, 0, "0-0", 10_000, 0):
            if isinstance(entry, LogEntry):
                self.entries[entry.id] = entry
            else:
                self.unreadable.add(entry.id)

    async def _facts(self, turn: str) -> tuple[Fact, ...]:
        text = await self.client.get(keys.text(turn))
        return decode_facts(await self.client.lrange(keys.journal(turn), 0, -1), text or b"")

    async def _end_of(self, turn: str) -> TurnEnd:
        record = await read_turn(self.client, turn)
        assert record is not None
        outputs = tuple(await all_outputs(self.client, turn))
        return TurnEnd(record, await read_text(self.client, turn), await self._facts(turn), outputs)

    # The tools, which keep a ledger of what they did.

    def _tools(self, process: MortalProcess, fate: Fate) -> dict[str, Tool]:
        async def effect(name: str, context: ToolContext) -> str:
            await fate.passes(f"{name}: to run")
            self.tool_runs.append((name, context.key))
            await fate.passes(f"{name}: has run")
            return f"{name} did it"

        @tool
        async def charge(cents: Annotated[int, Field(description="How much.")], context: ToolContext) -> str:
            """Takes money: never twice."""
            return await effect(f"charge {cents}", context)

        @tool(retry_safe=True)
        async def look(cents: Annotated[int, Field(description="How much.")], context: ToolContext) -> str:
            """Looks something up."""
            return await effect(f"look {cents}", context)

        @tool(approval="ask")
        async def refund(cents: Annotated[int, Field(description="How much.")], context: ToolContext) -> str:
            """Gives money back."""
            return await effect(f"refund {cents}", context)

        @tool(retry_safe=True)
        async def wait(cents: Annotated[int, Field(description="How much.")]) -> str:
            """Waits until its turn or its process is to end; where a process came to that end, it need not wait."""
            await fate.passes("wait: to run")
            if self.scenario.while_waiting == "cancel":
                await process.cancelled(is_told=True)
            elif not self._is_out_of_time:
                self._is_out_of_time = True
                process.out_of_time()
            else:
                return f"waited for {cents}"
            await asyncio.Event().wait()
            raise AssertionError

        return {"charge": charge, "look": look, "refund": refund, "wait": wait}


def deaths_of_the_provider(outputs: Iterable[Output]) -> Counter[int]:
    """By call, how many of its attempts the provider let die."""
    discards = [output for output in outputs if isinstance(output, TextStreamDiscardedOutput)]
    return Counter(output.call for output in discards if output.reason not in NOT_OF_THE_PROVIDER)
