"""Messages that join a running turn: which ones may, and what the store is told when they have.

What belongs here: looking at what waits behind a turn, and what a commit says of what it carried. What must not be
known here: when messages join (the turn machine's).
"""

from collections.abc import Sequence

from worker.output.events import TurnCompletedOutput
from worker.store import keys
from worker.store.journal import encode_fact
from worker.store.ops import Ops
from worker.store.outputs import encode_output
from worker.store.records import RECORD_VERSION
from worker.store.script import Argument, Script
from worker.turn.events import InboxMessage
from worker.turn.facts import Joined

MOST_JOINED = 20
MOST_JOINED_BYTES = 65_536
"""Messages that one call takes along, and their UTF-8 bytes: what is longer is answered by itself."""

_waiting = Script("worker.store", "waiting")


async def waiting_messages(ops: Ops, turn: str, queue: str) -> tuple[InboxMessage, ...]:
    """What may join a turn with its next call, in order. `queue`: the key of its session's."""
    beginning = keys.beginning(keys.partition_of_turn(turn))
    args: list[Argument] = [turn, beginning, RECORD_VERSION, MOST_JOINED, MOST_JOINED_BYTES]
    reply = await ops.ask(_waiting, [queue], args)
    return tuple(InboxMessage(each.decode(), text.decode()) for each, text in zip(reply[::2], reply[1::2], strict=True))


def told_of(joined: Sequence[Joined], turn: str, session: str, retention_s: int) -> list[Argument]:
    """What the commit of a call says of the messages that it carried; none, as a rule."""
    return [
        keys.beginning(keys.partition_of_turn(turn)),
        session,
        retention_s,
        encode_output(TurnCompletedOutput(outcome="merged", merged_into=turn)),
        len(joined),
        *(message.turn for message in joined),
        *map(encode_fact, joined),
    ]
