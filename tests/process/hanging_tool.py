"""`worker.tasks` with a tool that never ends."""

import asyncio
from dataclasses import replace

from worker.tasks import app
from worker.tools import BUILT_IN, Arguments

__all__ = ["app"]


async def _hang(_arguments: Arguments, _key: str) -> str:
    await asyncio.Event().wait()
    return "never said"


BUILT_IN["clock"] = replace(BUILT_IN["clock"], run=_hang)
