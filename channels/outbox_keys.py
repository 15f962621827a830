"""The names of an outbox in Redis, in one table.

What belongs here: names. What must not be known here: what is stored under them, and when.

    lw:{pNN}:dlv:<id>       hash: version, token, record (JSON); settled: the last settle, so that it can be repeated;
                            entry:<n>: the words of the log entry that a dead letter stands for
    lw:{pNN}:dlv-due        sorted set: id by the ms at which to look at it (its due time, or the end of its lease)
    lw:{pNN}:dlv-dead       sorted set: id of a dead delivery by the ms of its death
    lw:{pNN}:dlv-forget     sorted set: id of an ended delivery by the ms at which its record expires
    lw:{pNN}:dlv-index      sorted set: every id, in log order
    lw:{pNN}:claim:<token>  list: what a claim was given, kept as long as its lease
    lw:{pNN}:relay          hash: the relay's lease and its cursor in the log
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OutboxKeys:
    """The names of one partition's outbox."""

    partition: int

    def _of(self, name: str) -> str:
        return f"lw:{{p{self.partition:02x}}}:{name}"

    def record(self, delivery: str) -> str:
        """The record of a delivery."""
        return self._of(f"dlv:{delivery}")

    def memo(self, token: str) -> str:
        """What a claim was given."""
        return self._of(f"claim:{token}")

    @property
    def due(self) -> str:
        """When to look at which delivery."""
        return self._of("dlv-due")

    @property
    def dead(self) -> str:
        """The dead deliveries."""
        return self._of("dlv-dead")

    @property
    def index(self) -> str:
        """Every delivery."""
        return self._of("dlv-index")

    @property
    def relay(self) -> str:
        """The relay's lease and cursor."""
        return self._of("relay")

    @property
    def sets(self) -> tuple[str, str, str, str]:
        """What every storing script is given, in the order of put.lua."""
        return self.due, self.dead, self._of("dlv-forget"), self.index
