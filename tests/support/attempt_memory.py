"""A process that makes attempts and says in JSON how its memory grew by them.

    bad LOOP GOOD_URL BAD_URL...   one attempt at each bad receiver: its peak above what there was before, and its time
    idle LOOP URL...               one attempt at each, then the peak within 1 s, and how long the loop was held up
    many LOOP URL CA_FILE COUNT    so many at a TLS server: what there is after them above what there is after a tenth

What belongs here: measuring. What must not be known here: how much is too much.
"""

import asyncio
import gc
import json
import sys
from pathlib import Path
from typing import Any

import uvloop

from channels.delivery.model import Delivered
from channels.endpoints.model import Tls
from tests.support.posting import Opened, attempts, endpoint

DEADLINE_S = 0.5
IDLE_S = 1.0


def _memory_kb(field: str) -> int:
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def _forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5", "ascii")


async def bad(good_url: str, *bad_urls: str) -> dict[str, Any]:
    """Attempts at bad receivers."""
    loop = asyncio.get_running_loop()
    told = []
    async with attempts() as made:
        for _ in range(50):
            await made.post(endpoint(good_url), {}, b"{}" * 500)
        for url in bad_urls:
            _forget_peak()
            before_kb, began = _memory_kb("VmRSS"), loop.time()
            await made.post(endpoint(url, timeout_s=DEADLINE_S), {}, b"{}" * 500)
            took_s = loop.time() - began
            told.append({"grown_kb": _memory_kb("VmHWM") - before_kb, "took_s": took_s})
    return {"attempts": told, "deadline_s": DEADLINE_S}


async def idle(*urls: str) -> dict[str, Any]:
    """What peers cost that go on when their answer has been taken."""
    loop = asyncio.get_running_loop()
    told = []
    async with attempts() as made:
        for url in urls:
            _forget_peak()
            before_kb = _memory_kb("VmRSS")
            outcome = await made.post(endpoint(url, timeout_s=5), {}, b"{}")
            longest_s, ends = 0.0, loop.time() + IDLE_S
            while (now := loop.time()) < ends:
                await asyncio.sleep(0.01)
                longest_s = max(longest_s, loop.time() - now)
            grown_kb = _memory_kb("VmHWM") - before_kb
            told.append({"grown_kb": grown_kb, "held_up_s": longest_s, "is_taken": isinstance(outcome, Delivered)})
    return {"attempts": told}


async def many(url: str, ca_file: str, count: str) -> dict[str, Any]:
    """Attempts over TLS, of which the server ends a connection now and then."""
    opened, delivered, after = Opened(), 0, []
    async with attempts(direct=opened) as made:
        to = endpoint(url, tls=Tls(ca_file=ca_file))
        for number in range(int(count)):
            delivered += isinstance(await made.post(to, {}, b"{}" * 500), Delivered)
            if number in (int(count) // 10, int(count) - 1):
                gc.collect()
                after.append(_memory_kb("VmRSS"))
    return {"grown_kb": after[1] - after[0], "contexts": len(opened.contexts), "delivered": delivered}


if __name__ == "__main__":
    _, what, loop, *arguments = sys.argv
    run = uvloop.run if loop == "uvloop" else asyncio.run
    told = run(idle(*arguments) if what == "idle" else bad(*arguments) if what == "bad" else many(*arguments))
    print(json.dumps(told))  # noqa: T201 - its answer
