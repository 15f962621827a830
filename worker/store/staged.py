"""What an attempt has streamed and no reader has been sent yet.

What belongs here: keeping deltas in order and cutting off what the next flush sends. What must not be known here:
Redis, ticks, turns.

A delta costs one append, however much text there is: pieces are joined once, when they are sent.
"""

from collections import deque
from typing import Literal

Kind = Literal["d", "h"]
"""`d`: text. `h`: thinking."""

MAX_FLUSH_BYTES = 65_536
_MAX_PIECE = MAX_FLUSH_BYTES // 4
"""Characters; one takes 4 bytes of UTF-8 at most, so a piece fits into a flush whole."""


class Staged:
    """Pieces of one attempt, in runs of a kind."""

    def __init__(self) -> None:
        self._runs: deque[tuple[Kind, deque[str]]] = deque()

    def __bool__(self) -> bool:
        return bool(self._runs)

    def add(self, kind: Kind, text: str) -> None:
        """Take the next delta."""
        if not self._runs or self._runs[-1][0] != kind:
            self._runs.append((kind, deque()))
        pieces = self._runs[-1][1]
        if len(text) <= _MAX_PIECE:
            pieces.append(text)
        else:
            pieces.extend(text[at : at + _MAX_PIECE] for at in range(0, len(text), _MAX_PIECE))

    def text_bytes(self) -> int:
        """UTF-8 bytes of the text that waits."""
        return sum(len(piece.encode()) for kind, pieces in self._runs if kind == "d" for piece in pieces)

    def cut(self) -> list[tuple[Kind, bytes]]:
        """Take off the oldest runs, in UTF-8, at most `MAX_FLUSH_BYTES` together."""
        room = MAX_FLUSH_BYTES
        runs: list[tuple[Kind, bytes]] = []
        while self._runs and room > 0:
            kind, pieces = self._runs[0]
            taken: list[bytes] = []
            while pieces and len(piece := pieces[0].encode()) <= room:
                pieces.popleft()
                taken.append(piece)
                room -= len(piece)
            if taken:
                runs.append((kind, b"".join(taken)))
            if pieces:
                break
            self._runs.popleft()
        return runs
