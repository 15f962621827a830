"""A turn that a test writes step by step with the real verbs, and what its text must be by now.

What belongs here: the steps of a driver, a takeover, a trim and a store that is put back to an earlier state.
"""

from dataclasses import dataclass, field
from typing import Any

from tests.store.turns import SESSION, Redis, commit, discard, driver_of, granted, taken
from worker.output.events import TurnCompletedOutput
from worker.store import keys
from worker.store.tick import StagingTick
from worker.turn.usage import NO_USAGE


@dataclass
class _Saved:
    """What the store holds of a turn, and what its text is then."""

    record: dict[bytes, bytes]
    text: bytes | None
    open_text: bytes | None
    journal: list[bytes]
    out: list[tuple[bytes, dict[bytes, bytes]]]
    model: tuple[int, int, bool, list[str], str]


@dataclass
class WrittenTurn:
    """A driven turn. `committed`: the text that stands; `streamed`: what the open attempt has said."""

    client: Redis
    accumulator: Any
    tick: StagingTick
    call: int = 1
    attempt: int = 0
    is_open: bool = False
    streamed: list[str] = field(default_factory=list)
    committed: str = ""
    pieces: int = 0

    @classmethod
    async def begun(cls, client: Redis, session: str = SESSION) -> "WrittenTurn":
        turn = cls(client, driver_of(client, await granted(client, session=session, watch_s=60)), StagingTick(client))
        turn.accumulator.watched = True
        turn.tick.add(turn.accumulator)
        return turn

    @property
    def turn(self) -> str:
        name: str = self.accumulator.turn
        return name

    @property
    def open_text(self) -> str:
        return "".join(self.streamed)

    def piece(self, size: int = 0) -> str:
        """A piece of text unlike all others."""
        self.pieces += 1
        return f"[{self.pieces}é]" + "x" * size

    async def open(self) -> None:
        if not self.is_open:
            self.attempt += 1
            await self.accumulator.open_call(self.call, self.attempt, self.attempt - 1, self.attempt == 1)
            self.is_open = True

    async def say(self, count: int = 1, size: int = 0) -> None:
        """Deltas of the open attempt, each in a flush of its own."""
        await self.open()
        for _ in range(count):
            text = self.piece(size)
            self.streamed.append(text)
            self.accumulator.stage_text(text)
            self.accumulator.stage_thinking("hm")
            await self.tick.flush()

    async def die(self) -> None:
        if self.is_open:
            await discard(self.accumulator, self.call, self.attempt)
            self.is_open, self.streamed = False, []

    async def complete(self, tail: str = "") -> None:
        """The call completes: with what it has streamed, and perhaps more."""
        await self.open()
        text = self.open_text + tail
        await commit(self.accumulator, self.call, self.attempt, text)
        self.committed += text
        self.call, self.attempt, self.is_open, self.streamed = self.call + 1, 0, False, []

    async def end(self) -> None:
        await self.die()
        await self.accumulator.seal("completed", None, None, "", NO_USAGE, [TurnCompletedOutput(outcome="completed")])

    async def be_taken_over(self) -> None:
        """The driver vanishes; another one discards what was open."""
        await self.client.hset(keys.turn_record(self.turn), "lease_ms", 0)
        watched = self.accumulator.watched
        self.tick.remove(self.accumulator)
        self.accumulator = driver_of(self.client, await taken(self.client))
        self.accumulator.watched = watched
        self.tick.add(self.accumulator)
        await self.die()

    async def trim(self, count: int) -> None:
        """The oldest deltas go, as they do when they are too many; the last one always stays."""
        entries = await self.client.xrange(keys.out(self.turn))
        deltas = [entry for entry, fields in entries if b"o" not in fields]
        if oldest := deltas[:-1][:count]:
            await self.client.xdel(keys.out(self.turn), *oldest)

    async def save(self) -> _Saved:
        names = self._names()
        return _Saved(
            await self.client.hgetall(names[0]),
            await self.client.get(names[1]),
            await self.client.get(names[2]),
            await self.client.lrange(names[3], 0, -1),
            await self.client.xrange(names[4]),
            (self.call, self.attempt, self.is_open, list(self.streamed), self.committed),
        )

    async def be_put_back(self, saved: _Saved) -> None:
        """The store loses all that came after `saved`, and the driver takes the turn up anew."""
        record, text, open_text, journal, out = self._names()
        await self.client.delete(record, text, open_text, journal, out)
        await self.client.hset(record, mapping=saved.record)
        if saved.text is not None:
            await self.client.set(text, saved.text)
        if saved.open_text is not None:
            await self.client.set(open_text, saved.open_text)
        if saved.journal:
            await self.client.rpush(journal, *saved.journal)
        for entry, fields in saved.out:
            await self.client.xadd(out, fields, id=entry)
        self.call, self.attempt, self.is_open, streamed, self.committed = saved.model
        self.streamed = list(streamed)
        await self.be_taken_over()

    def _names(self) -> tuple[str, str, str, str, str]:
        turn = self.turn
        return keys.turn_record(turn), keys.text(turn), keys.open_text(turn), keys.journal(turn), keys.out(turn)
