"""Lines on their way to a reader that may stop reading.

What belongs here: printing that never blocks whoever has something to say. What must not be known here: what is said.
"""

import queue
import threading

from rich.console import Console
from rich.text import Text

_CAPACITY = 10_000
"""Lines that wait for a slow reader: some seconds of busy workers. What comes beyond them is dropped and counted."""


class Lines:
    """Prints lines from a thread of its own. A pager that is not read from must stop neither turns nor signals."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._waiting: queue.Queue[Text | None] = queue.Queue(_CAPACITY)
        self._dropped = 0
        self._thread = threading.Thread(target=self._print, name="lastword-lines", daemon=True)
        self._thread.start()

    def say(self, line: Text) -> None:
        """Print this line after those before it, or drop it."""
        try:
            self._waiting.put_nowait(line)
        except queue.Full:
            self._dropped += 1

    def end(self, within_s: float) -> bool:
        """Print what waits. False: the reader has not taken it within that time, and the thread hangs in its write."""
        try:
            self._waiting.put(None, timeout=within_s)
        except queue.Full:
            return False
        self._thread.join(within_s)
        return not self._thread.is_alive()

    def _print(self) -> None:
        while (line := self._waiting.get()) is not None:
            dropped, self._dropped = self._dropped, 0
            if dropped:
                self._console.print(Text(f"… {dropped} lines were dropped: nobody read them", "dim"), soft_wrap=True)
            self._console.print(line, soft_wrap=True)
