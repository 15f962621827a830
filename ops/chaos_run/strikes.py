"""Kills, freezes and drains: when, whom, and for how long.

What belongs here: the plan, a function of the seed, and carrying it out on whoever has work in flight at that moment.
What must not be known here: how a turn runs, what is right.

A strike is due before a message of a certain number is submitted, so strikes are spread over the run however fast it
goes. It waits for a process that has such work in flight as it aims at, and then a little longer, so that it hits at
any moment of the work. `stream`: a turns process that the provider is streaming to. `commit`: one that has got the last
of an answer a few milliseconds ago. `tool`: one that runs a tool. `delivery`: a delivery process with a POST under way.
`web`: a web process, while turns are streamed. `store`: the server, while there is any of the other work. A drain is
what a deploy does: SIGTERM, and then a new process.
"""

import asyncio
import contextlib
import json
import os
import random
import signal
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from channels.rehearsal.transcript import Exchange
from ops.chaos_run.causes import STORE
from ops.chaos_run.receiver import Receiver
from ops.chaos_run.records import LEDGER, STRIKES, Strike
from ops.chaos_run.stage import HEADER, Server, Worker, until

_KILLED = ("stream", "web", "store", "delivery", "commit", "tool", "stream", "stream", "commit")
_FROZEN = ("stream", "delivery", "commit", "tool", "store", "commit")
_DRAINED = ("stream", "delivery", "tool")
_AIM_S = 5.0
_AIMS = 5
_LOOK_EVERY_S = 0.003
_DELAY_S = {"commit": 0.03}
_LONGEST_DELAY_S = 0.5


@dataclass(frozen=True, slots=True)
class Planned:
    """A strike before message `before` is submitted. `is_long`: a freeze outlasts the victim's lease.

    `delay_s`: after a victim was found. `share`: from 0 to 1, how long within what its kind allows.
    """

    before: int
    kind: str
    target: str
    is_long: bool
    delay_s: float
    share: float


@dataclass(frozen=True, slots=True)
class Leases:
    """Seconds after which a turn is taken over, and after which a delivery is attempted by another process."""

    turn_s: float
    delivery_s: float


def plan_strikes(seed: int, messages: int, kills: int) -> list[Planned]:
    """`kills` kills, a third as many freezes, two thirds of them long, and a tenth as many drains."""
    chance = random.Random(f"{seed}/strikes")
    freezes = max(1, kills // 3) if kills else 0
    aims = [("kill", _KILLED[number % len(_KILLED)], False) for number in range(kills)]
    aims += [("freeze", _FROZEN[number % len(_FROZEN)], number % 3 != 1) for number in range(freezes)]
    aims += [("drain", _DRAINED[number % len(_DRAINED)], False) for number in range(kills // 10)]
    chance.shuffle(aims)
    times = sorted(chance.randint(1, max(1, messages - 1)) for _ in aims)
    return [
        Planned(before, *aim, chance.uniform(0, _DELAY_S.get(aim[1], _LONGEST_DELAY_S)), chance.random())
        for before, aim in zip(times, aims, strict=True)
    ]


class Striker:
    """Carries strikes out, and writes each down when it is over. `say` is told of each."""

    def __init__(  # noqa: PLR0913, PLR0917 - all that can be struck, and all that shows what is in flight
        self,
        folder: Path,
        workers: Sequence[Worker],
        server: Server,
        exchanges: Sequence[Exchange],
        receiver: Receiver,
        leases: Leases,
        clock: Callable[[], float],
        say: Callable[[str], None],
    ) -> None:
        self.strikes: list[Strike] = []
        self.last_end = 0.0
        self.leases = leases
        self._file = folder / STRIKES
        self._ledger = _Ledger(folder / LEDGER)
        self._workers = workers
        self._server = server
        self._exchanges = exchanges
        self._receiver = receiver
        self._clock = clock
        self._say = say
        self._store = asyncio.Lock()
        self._last_seen = 0

    async def strike(self, planned: Planned, group: asyncio.TaskGroup) -> None:
        """Strike as planned; a freeze ends in a task of `group`. Where nobody has work for long, nobody is struck."""
        for _ in range(_AIMS):
            if await self._has_struck(planned, group):
                return
        self._say(f"nobody to {planned.kind}: no process has had work for long")

    async def _has_struck(self, planned: Planned, group: asyncio.TaskGroup) -> bool:
        """Aim and strike once; the victim may have died by itself meanwhile."""
        self._last_seen = max((each.n for each in self._exchanges if each.ended is not None), default=0)
        victims = {each.name: each for each in await self._found(planned.target)}
        await asyncio.sleep(planned.delay_s)
        living = [each for name, each in victims.items() if each.name == name and each.pid is not None]
        if planned.target == "store":
            await self._strike_store(planned, group)
        elif living:
            self._strike_worker(living[int(planned.share * len(living))], planned, group)
        return bool(living) or planned.target == "store"

    async def _found(self, target: str) -> list[Worker]:
        """Who has such work, as soon as there is any; after a while, whoever the provider is streaming to."""
        for aim in dict.fromkeys((target, "stream")):
            with contextlib.suppress(TimeoutError):
                await until(partial(self._victims, aim), aim, _AIM_S, _LOOK_EVERY_S)
                return self._victims(aim)
        return []

    def _strike_worker(self, victim: Worker, planned: Planned, group: asyncio.TaskGroup) -> None:
        name, at, streams = victim.name, self._clock(), victim.name in self._streaming()
        if planned.kind != "freeze":
            victim.send(signal.SIGKILL if planned.kind == "kill" else signal.SIGTERM)
            self._note(Strike(planned.kind, name, at, at, streams))
            return
        lease_s = self.leases.turn_s if victim.kind == "turns" else self.leases.delivery_s
        victim.send(signal.SIGSTOP)
        group.create_task(self._thaw(victim, Strike("freeze", name, at, at, streams), _hold_s(planned, lease_s)))

    async def _thaw(self, victim: Worker, strike: Strike, hold_s: float) -> None:
        self._say(f"freeze {strike.process} for {hold_s:.1f} s")
        with contextlib.suppress(TimeoutError):  # it may be killed meanwhile, and is frozen no longer
            await until(lambda: victim.name != strike.process or victim.pid is None, "its death", hold_s)
        if victim.name == strike.process:
            victim.send(signal.SIGCONT)
        self._note(Strike("freeze", strike.process, strike.at, self._clock(), strike.mid_stream))

    async def _strike_store(self, planned: Planned, group: asyncio.TaskGroup) -> None:
        async with self._store:
            at = self._clock()
            if planned.kind == "kill":
                self._server.kill()
                await asyncio.sleep(planned.share)
                await self._server.revive()
                self._note(Strike("kill", STORE, at, self._clock(), mid_stream=False))
                return
        group.create_task(self._freeze_store(_hold_s(planned, self.leases.turn_s)))

    async def _freeze_store(self, hold_s: float) -> None:
        async with self._store:
            at, process = self._clock(), self._server.pid
            self._say(f"freeze {STORE} for {hold_s:.1f} s")
            os.kill(process, signal.SIGSTOP)
            try:
                await asyncio.sleep(hold_s)
            finally:
                os.kill(process, signal.SIGCONT)
            self._note(Strike("freeze", STORE, at, self._clock(), mid_stream=False))

    def _victims(self, target: str) -> list[Worker]:
        match target:
            case "stream":
                return self._named(self._streaming())
            case "commit":
                ended = [each for each in self._exchanges if each.n > self._last_seen and each.ended == "complete"]
                return self._named({_process_of(each) for each in ended[-1:]})
            case "tool":
                running = self._ledger.running()
                return [each for each in self._workers if each.pid in running]
            case "web":
                living = [each for each in self._workers if each.kind == "web" and each.pid is not None]
                return living if self._streaming() else []
            case "delivery":
                return self._named(set(self._receiver.open.values()))
            case _:
                return self._named(self._streaming()) or self._victims("tool") or self._victims("delivery")

    def _named(self, names: set[str]) -> list[Worker]:
        return [each for each in self._workers if each.pid is not None and each.name in names]

    def _streaming(self) -> set[str]:
        """The processes that have got a part of an answer that goes on."""
        return {
            _process_of(each)
            for each in self._exchanges
            if each.ended is None and (each.sent.text or each.sent.reasoning or each.sent.tool_calls)
        }

    def _note(self, strike: Strike) -> None:
        self.strikes.append(strike)
        self.last_end = strike.until
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(strike)) + "\n")
        self._say(f"{strike.kind} {strike.process}{' in mid-stream' if strike.mid_stream else ''} is over")


def _process_of(exchange: Exchange) -> str:
    return str(exchange.request["headers"].get(HEADER, ""))


def _hold_s(planned: Planned, lease_s: float) -> float:
    """How long a freeze lasts: up to three quarters of the lease, or longer than it by a quarter to the whole of it."""
    return lease_s * (1.25 + 0.75 * planned.share if planned.is_long else 0.2 + 0.55 * planned.share)


class _Ledger:
    """Which processes run a tool, from the lines of the ledger as they come."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._open: dict[str, int] = {}

    def running(self) -> set[int]:
        """The processes with a tool that has started and not ended."""
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._offset)
                for line in file.read().splitlines(keepends=True):
                    if line.endswith(b"\n"):
                        self._offset += len(line)
                        self._take(json.loads(line))
        return set(self._open.values())

    def _take(self, line: dict[str, object]) -> None:
        if line["event"] == "start":
            self._open[str(line["key"])] = int(str(line["pid"]))
        else:
            self._open.pop(str(line["key"]), None)
