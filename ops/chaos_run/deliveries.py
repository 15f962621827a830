"""`ops/chaos --deliveries N`: many deliveries, a receiver that fails at random, and delivery processes that are killed.

What belongs here: the run. What must not be known here: what is right.

The turns are ended beforehand by the product's verbs, without a model; then the delivery processes start, and one that
has a POST under way is killed again and again, at any moment of its work and spread over all deliveries, until the
kills are spent or all was taken.
"""

import asyncio
import json
import os
import random
import signal
import time
from base64 import b64encode
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from ops.bench.webhooks_filler import Filler
from ops.chaos_run.delivery_judge import EXPLAINED_S, Kill, Post
from ops.chaos_run.receiver import Receiver
from ops.chaos_run.run import faults_in
from ops.chaos_run.stage import HEADER_SETTINGS, Server, Worker, python_path, until, without_settings

_ROOT = Path(__file__).resolve().parents[2]
_PROCESSES = 3
_AT_ONCE = 50
_HANG_S = 3.0
_LATEST_KILL_S = 0.1
_WITHIN_S = 900.0
_QUIET_S = 1.0
_SETTINGS = """
data_dir = "{folder}/data"
egress.allow = ["127.0.0.0/8"]

[delivery]
timeout_s = 2
concurrency = {places}
retry_waits_s = [0.3, 0.5, 1, 1, 2, 2, 3, 3, 5, 5, 5, 5, 5, 5, 5, 5]

[endpoints.receiver]
url = "{hook}"
secret = "{secret}"
concurrency = {at_once}
"""


@dataclass(frozen=True, slots=True)
class Told:
    """What a run leaves for the judge. `faults`: what processes reported of Lastword itself, or ended of."""

    turns: list[str]
    posts: list[Post]
    kills: list[Kill]
    faults: list[str]
    elapsed_s: float


async def run(folder: Path, deliveries: int, kills: int, seed: int, say: Callable[[str], None]) -> Told:
    """A whole run."""
    began = time.monotonic()

    def clock() -> float:
        return time.monotonic() - began

    chance = random.Random(f"{seed}/deliveries")
    secret = "whsec_" + b64encode(chance.randbytes(32)).decode()
    receiver = Receiver(seed, secret, folder / "posts.jsonl", clock, _HANG_S)
    server = Server(folder / "server")
    url = await asyncio.to_thread(server.start)
    try:
        async with receiver.running():
            config = folder / "lastword.toml"
            places = {"at_once": _AT_ONCE, "places": 2 * _AT_ONCE}
            text = _SETTINGS.format(folder=folder, hook=receiver.url, secret=secret, **places)
            config.write_text(text, "utf-8")
            filler = Filler(url)
            await filler.fill(deliveries, ["receiver"])
            await filler.close()
            say(f"{deliveries} turns have ended")
            environment = {
                **without_settings(os.environ),
                "LASTWORD_CONFIG": str(config),
                "LASTWORD_REDIS_URL": url,
                "PYTHONPATH": python_path(_ROOT),
            }
            workers = [
                Worker("delivery", number, folder, environment, headers=HEADER_SETTINGS[-1:])
                for number in range(_PROCESSES)
            ]
            struck = await _delivered(workers, receiver, set(filler.turns), kills, chance, clock, say)
    finally:
        server.stop()
    (folder / "kills.jsonl").write_text("".join(f"{json.dumps(asdict(kill))}\n" for kill in struck), "utf-8")
    ended = [sentence for worker in workers for sentence in worker.ended_by_itself]
    posts = [_post(json.loads(line)) for line in (folder / "posts.jsonl").read_text("utf-8").splitlines()]
    return Told(filler.turns, posts, struck, [*ended, *faults_in(folder)], clock())


async def _delivered(  # noqa: PLR0913, PLR0917 - what strikes, whom, and when
    workers: list[Worker],
    receiver: Receiver,
    turns: set[str],
    kills: int,
    chance: random.Random,
    clock: Callable[[], float],
    say: Callable[[str], None],
) -> list[Kill]:
    """Let the processes work, kill them `kills` times, and wait until all turns were taken and nobody posts."""
    struck: list[Kill] = []
    async with asyncio.TaskGroup() as group:
        living = [group.create_task(worker.keep_alive()) for worker in workers]
        while len(struck) < kills and not turns <= receiver.acknowledged:
            due = len(turns) * len(struck) // kills
            await until(lambda: _is_time(receiver, turns, due), "a POST under way", _WITHIN_S, 0.005)  # noqa: B023 - awaited
            await asyncio.sleep(chance.uniform(0, _LATEST_KILL_S))
            names = set(receiver.open.values()) - {kill.process for kill in struck}
            victims = [worker for worker in workers if worker.name in names and worker.pid is not None]
            if victims:
                victim = chance.choice(victims)
                victim.send(signal.SIGKILL)
                struck.append(Kill(victim.name, clock(), min(_AT_ONCE, receiver.lately(victim.name, EXPLAINED_S))))
                if len(struck) % 20 == 0:
                    say(f"{len(struck)} kills, {len(receiver.acknowledged)} of {len(turns)} taken")
        await until(lambda: turns <= receiver.acknowledged, "the last delivery", _WITHIN_S)
        await until(lambda: not receiver.open and clock() - receiver.last_at > _QUIET_S, "silence", _WITHIN_S)
        await asyncio.gather(*(worker.stop() for worker in workers))
        for task in living:
            task.cancel()
    return struck


def _is_time(receiver: Receiver, turns: set[str], due: int) -> bool:
    """Whether the next kill is due, or none can come any more: `due` deliveries were taken, and a POST is under way."""
    return (bool(receiver.open) and len(receiver.acknowledged) >= due) or turns <= receiver.acknowledged


def _post(line: dict[str, object]) -> Post:
    body = line["body"]
    assert isinstance(body, dict)
    return Post(
        id=str(line["id"]),
        turn=str(body["data"]["turn"]),
        process=str(line["process"]),
        came=float(str(line["came"])),
        ended=float(str(line["ended"])),
        acknowledged=bool(line["acknowledged"]),
        verified=bool(line["verified"]),
    )
