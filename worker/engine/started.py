"""How a process says that it has started: in its log, and to whoever started it and asks to be told.

What belongs here: the one word. What must not be known here: what has started, what follows from it.

A parent that asks gives an open file descriptor along and names it in `NOTIFY_STARTED_FD`; it reads a newline there.
The log is no place for this word: `log_level` may leave the line out.
"""

import os
from contextlib import suppress

from worker.observability import Field, info

STARTED_FD = "NOTIFY_STARTED_FD"
"""The name of the variable. It has no prefix of ours: it is no setting, and those are checked."""


def tell_started(event: str, **fields: Field) -> None:
    """Log `event`, and tell the parent, once: what this process starts has no part in it."""
    info(event, **fields)
    told = os.environ.pop(STARTED_FD, None)
    if told is None:
        return
    with suppress(OSError, ValueError):  # nobody is there any more, or it is no descriptor
        os.write(int(told), b"\n")
        os.close(int(told))
