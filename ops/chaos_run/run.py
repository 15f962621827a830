"""One run, from the first process to the last record.

What belongs here: the course of a run: start, submit and strike, wait, stop. What must not be known here: how a strike
is carried out, what is right.

At most `WINDOW` turns are under way at once. A strike is due before the message that it was planned for, so all of them
meet work. When nothing has come for `patience_s`, what is missing is lost.
"""

import asyncio
import base64
import contextlib
import json
import os
import queue
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic

import redis.asyncio

from channels.delivery.lane import lease_for
from channels.rehearsal.server import StandIn
from channels.settings import Settings, load_settings
from ops.chaos_run.broker import RabbitMQ, find_rabbitmq
from ops.chaos_run.configuration import DELIVERY_TIMEOUT_S, Options, settings_text
from ops.chaos_run.readers import WATCH_S, Readers, is_read
from ops.chaos_run.receiver import Receiver
from ops.chaos_run.records import LEDGER, READINGS, RECEIVED, TRANSCRIPT, Course, Records, Strike, read_records
from ops.chaos_run.stage import Server, Worker, free_ports, install_tools, python_path, until, without_settings
from ops.chaos_run.story import Plan, Story, plan_of
from ops.chaos_run.strikes import Leases, Striker, plan_strikes
from ops.chaos_run.web import WebClient, is_by_http
from worker import api
from worker.app import make_app, wake_session
from worker.errors import StoreUnavailable
from worker.store import connect

ROOT = Path(__file__).resolve().parents[2]
PLACES = {"turns": 2, "delivery": 2, "web": 2}
WINDOW = 16
_START_S = 120.0
_QUIET_S = 3.0


@dataclass(slots=True)
class Outcome:
    """What a run left behind, beside its records.

    `ended_by_itself`: a sentence for each process that nobody killed. `faults`: the lines with which processes reported
    faults of Lastword's own. A turn survives those as it survives a kill, so the judge would not see them.
    """

    records: Records
    strikes: list[Strike]
    elapsed_s: float
    ended_by_itself: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


def faults_in(folder: Path) -> Iterator[str]:
    """The log lines of level error of all processes."""
    for log in sorted(folder.glob("*.log")):
        for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
            with contextlib.suppress(ValueError, AttributeError):  # a kill may cut a line, and Celery writes some, too
                if json.loads(line).get("level") == "error":
                    yield f"{log.stem} reported {line}"


class Stage:
    """A run on its way. `say` is told what happens."""

    def __init__(self, options: Options, folder: Path, say: Callable[[str], None]) -> None:
        self._options = options
        self._folder = folder
        self._say = say
        self._started = monotonic()
        self._began = datetime.now(UTC)  # noqa: TID251 - the transcript has the time of day
        self._server = Server(folder / "valkey")
        self._workers: list[Worker] = []

    async def run(self) -> Outcome:
        """All of it. Whatever was started has ended when this returns or raises."""
        options, sessions = self._options, dict[str, list[int]]()
        for number in range(options.messages):
            sessions.setdefault(plan_of(options.seed, number).session, []).append(number)
        async with AsyncExitStack() as open_:
            open_.callback(self._server.stop)
            self._server.start()
            striker = await self._perform(open_)
        ended = [sentence for worker in self._workers for sentence in worker.ended_by_itself]
        numbers = tuple(tuple(session) for session in sessions.values())
        read = frozenset(filter(is_read, range(options.messages)))
        records = read_records(
            self._folder, Course(options.messages, numbers, read, striker.leases.turn_s, self._began)
        )
        return Outcome(records, striker.strikes, self._clock(), ended, list(faults_in(self._folder)))

    async def _perform(self, open_: AsyncExitStack) -> Striker:
        options = self._options
        secret = "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()
        receiver = Receiver(options.seed, secret, self._folder / RECEIVED, self._clock, DELIVERY_TIMEOUT_S * 1.5)
        await open_.enter_async_context(receiver.running())
        provider = StandIn(Story(options.seed), transcript_path=self._folder / TRANSCRIPT)
        await open_.enter_async_context(provider)
        environment = {"LASTWORD_CONFIG": str(self._folder / "lastword.toml"), "LASTWORD_REDIS_URL": self._server.url}
        if options.broker == "rabbitmq":
            program = find_rabbitmq()
            assert program is not None, "looked for before the run"
            broker = open_.enter_context(RabbitMQ(program, self._folder / "rabbitmq"))
            environment["LASTWORD_BROKER_URL"] = broker.url
        text = settings_text(options, provider.base_url, receiver.url, secret, self._folder)
        (self._folder / "lastword.toml").write_text(text, encoding="utf-8")
        settings = self._settings(environment)
        leases = Leases(settings.lease.ttl_s, lease_for(settings.delivery.timeout_s))
        exchanges = provider.transcript.exchanges
        ports = free_ports(PLACES["web"])
        web = WebClient(ports)
        open_.push_async_callback(web.close)
        await web.log_in(settings.redis())
        async with asyncio.TaskGroup() as group:
            readers = Readers(settings.redis(), self._folder / READINGS, group, web)
            try:
                await self._start_workers(environment, group, ports)
                striker = Striker(
                    self._folder, self._workers, self._server, exchanges, receiver, leases, self._clock, self._say
                )
                await self._submit_all(settings, receiver, striker, readers, web)
                await self._wait(receiver, striker, leases)
                await readers.end(_QUIET_S)
                await asyncio.gather(*(worker.stop() for worker in self._workers))
            finally:
                await readers.end(0)
                for worker in self._workers:
                    worker.kill()
        return striker

    def _settings(self, environment: dict[str, str]) -> Settings:
        """The settings as the processes of the run read them."""
        mine = without_settings(os.environ)
        os.environ.clear()
        os.environ.update({**mine, **environment})
        return load_settings()

    async def _start_workers(self, environment: dict[str, str], group: asyncio.TaskGroup, ports: list[int]) -> None:
        path = python_path(install_tools(self._folder), ROOT)
        ours = {**without_settings(os.environ), **environment}
        ours |= {"PYTHONPATH": path, "CHAOS_LEDGER": str(self._folder / LEDGER)}
        for kind, count in PLACES.items():
            for number in range(1, count + 1):
                worker = Worker(kind, number, self._folder, ours, ports[number - 1] if kind == "web" else 0)
                self._workers.append(worker)
                group.create_task(worker.keep_alive())
        await until(lambda: all(worker.is_ready() for worker in self._workers), "the processes to start", _START_S)
        self._say(f"{len(self._workers)} processes are up")

    async def _submit_all(
        self, settings: Settings, receiver: Receiver, striker: Striker, readers: Readers, web: WebClient
    ) -> None:
        options = self._options
        planned = plan_strikes(options.seed, options.messages, options.kills)
        wakes = _Wakes(settings)
        client = connect.open_redis(settings.redis())
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(options.messages):
                    while planned and planned[0].before <= number:
                        await striker.strike(planned.pop(0), group)
                    await self._wait_for_room(receiver, number)
                    plan = plan_of(options.seed, number)
                    by_http = is_by_http(number)
                    turn = await (web.submit(plan) if by_http else self._submit(settings, client, wakes, plan))
                    if is_read(number):
                        readers.start(number, turn)
                while planned:
                    await striker.strike(planned.pop(0), group)
        finally:
            await client.aclose()
        self._say(f"all {options.messages} messages are submitted")

    async def _wait_for_room(self, receiver: Receiver, number: int) -> None:
        patience = _Patience(self._clock, self._patience_s)
        while number - len(receiver.acknowledged) >= WINDOW and patience.lasts(len(receiver.acknowledged)):  # noqa: ASYNC110 - see `until`
            await asyncio.sleep(0.02)

    async def _submit(self, settings: Settings, client: redis.asyncio.Redis, wakes: "_Wakes", plan: Plan) -> str:
        """Submit as anybody would: where nothing was answered, again with the same key. Gives the turn."""
        while True:
            try:
                submitted = await api.submit(
                    settings,
                    client,
                    prompt=plan.prompt,
                    source="chaos",
                    wake=wakes.put,
                    agent=plan.wire,
                    session=plan.session,
                    labels={"message": str(plan.number)},
                    destinations=("receiver",),
                    idempotency_key=str(plan.number),
                    watch_s=WATCH_S if is_read(plan.number) else 0,
                )
            except StoreUnavailable:
                await asyncio.sleep(0.2)
            else:
                return submitted.turn

    async def _wait(self, receiver: Receiver, striker: Striker, leases: Leases) -> None:
        """Until every end has come, or nothing comes any more; and then until repeats would have come, too."""
        patience = _Patience(self._clock, self._patience_s)
        while len(receiver.acknowledged) < self._options.messages and patience.lasts(len(receiver.acknowledged)):  # noqa: ASYNC110 - see `until`
            await asyncio.sleep(0.05)
        self._say(f"{len(receiver.acknowledged)} ends have come; waiting for repeats")
        while self._clock() < max(receiver.last_at + _QUIET_S, striker.last_end + leases.delivery_s):  # noqa: ASYNC110 - see `until`
            await asyncio.sleep(0.05)

    @property
    def _patience_s(self) -> float:
        return 120.0 if self._options.has_default_lease else 60.0

    def _clock(self) -> float:
        return monotonic() - self._started


class _Patience:
    """Lasts as long as a count goes on changing within so many seconds."""

    def __init__(self, clock: Callable[[], float], within_s: float) -> None:
        self._clock = clock
        self._within_s = within_s
        self._count = -1
        self._since = clock()

    def lasts(self, count: int) -> bool:
        """Whether to wait on, now that the count is this."""
        if count != self._count:
            self._count, self._since = count, self._clock()
        return self._clock() - self._since < self._within_s


class _Wakes:
    """Sends wake-ups in a thread of its own: a broker that is frozen must not hold up the run."""

    def __init__(self, settings: Settings) -> None:
        self._app = make_app(settings, concurrency=1)
        self._queue: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="chaos-wakes", daemon=True).start()

    def put(self, session: str) -> None:
        """Wake this session some time."""
        self._queue.put(session)

    def _run(self) -> None:
        while True:
            try:
                wake_session(self._app, self._queue.get())
            except Exception:  # noqa: BLE001 - the sweepers find the session, as in production
                continue
