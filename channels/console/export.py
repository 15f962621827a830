"""`lastword deliveries export`: all deliveries of a range, for programs.

What belongs here: writing them, whole or not at all where it is a file. What must not be known here: how they
are found.
"""

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import TextIO

from channels.console import exits
from channels.console.deliveries import Asked, object_of
from channels.console.joined import Client, Joined, ask
from channels.console.terminal import open_console
from channels.outbox import exporting
from channels.settings import Settings
from worker.errors import ConfigurationError
from worker.store import clock


def run_export(settings: Settings, asked: Asked, out: Path | None) -> int:
    """Write all that is chosen, a line each; returns the exit code. A file is there only when it is whole."""

    async def export(_: Joined, client: Client) -> int:
        wanted, count = asked.wanted(await clock.now_ms(client)), 0
        try:
            with _written(out) as file:
                async with aclosing(exporting.exported(client, wanted)) as found:
                    async for one, shown in found:
                        file.write(json.dumps(object_of(one, shown)) + "\n")
                        count += 1
                file.flush()
        except BrokenPipeError:  # who reads has seen enough, and so has what is left in the buffer
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return exits.OK
        open_console(stderr=True).print(f"{count} deliveries")
        return exits.OK

    return ask(settings, export)


@contextlib.contextmanager
def _written(out: Path | None) -> Iterator[TextIO]:
    if out is None:
        yield sys.stdout
        return
    part = out.with_name(f"{out.name}.part")
    try:
        with part.open("w", encoding="utf-8") as file:
            yield file
        part.replace(out)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise ConfigurationError(f"--out {str(out)!r} cannot be written: {error.strerror}; give another path") from None
    finally:
        part.unlink(missing_ok=True)
