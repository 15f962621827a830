"""The names of the outbox in Redis, in one table.

What belongs here: names. What must not be known here: what is stored under them, and when.

    lw:{pNN}:dlv:<id>          string: a line for scripts (see lua/put.lua), then the delivery (JSON)
    lw:{pNN}:dlv:<id>:more     hash: evidence:<n>: what the n-th attempt showed (JSON); entry:<n>: the words of the log
                               entry that a dead letter stands for
    lw:{pNN}:content:<event>   string: what an event tells that is stored nowhere else (JSON)
    lw:{pNN}:relay             hash: the relay's lease and its cursor in the log

    lw:{dlv}:lanes             sorted set: lane by the ms at which someone must look at it
    lw:{dlv}:lane:<lane>       hash: mark (version:nonce), record (JSON), cap and free (below how many in flight, and
                               from which ms on, it lets something through), served (ms), lease (the longest, ms), owed
                               (what it holds is sent by who resumes it), nonces (of the last steps of the lane alone).
                               Of one that lets everything through, and of which nothing is left, for 30 days more
    lw:{dlv}:due:<lane>        sorted set: queued and waiting ones by when they are due; of a mailbox only the first
    lw:{dlv}:flight:<lane>     sorted set: those in flight by the end of their lease
    lw:{dlv}:held:<lane>       sorted set: held ones by when they were made
    lw:{dlv}:box:<lane>:<mailbox>  sorted set: what is queued, waiting or in flight in order; in flight with a minus
    lw:{dlv}:dead, :forget, :index  sorted sets: dead ones by the ms of their death; ended ones by when their record
                               expires; all by when they were made, and in that order
    lw:{dlv}:counts            hash: deliveries by state, and by state:lane; #ordinal: of the last one made;
                               #mended: those that were put back
    lw:{dlv}:claim:<token>     list: the ids that a claim holds, kept as long as its lease
    lw:{dlv}:clock             string: the ms of the last look, to a second
    lw:{dlv}:walk              string: how far in index the search for what stands nowhere has come

All partitions share the second table, so that what one endpoint lets through holds for all of them.
"""

from channels.delivery.model import Delivery

_OF = "lw:{dlv}:"

LANES = f"{_OF}lanes"
DEAD = f"{_OF}dead"
INDEX = f"{_OF}index"
COUNTS = f"{_OF}counts"
WALK = f"{_OF}walk"
CLOCK = f"{_OF}clock"


def partition_of(delivery: str) -> int:
    """The partition in the id of a delivery, which was checked: the scripts read it so, too."""
    return int(delivery[4:6], 16)


def record(delivery: str) -> str:
    """The record of a delivery."""
    return f"{_tag(partition_of(delivery))}dlv:{delivery}"


def more(delivery: str) -> str:
    """What else is kept of a delivery."""
    return f"{record(delivery)}:more"


def content(partition: int, event: str) -> str:
    """What an event tells."""
    return f"{_tag(partition)}content:{event}"


def content_of(delivery: Delivery) -> str:
    """What the event of a delivery tells."""
    return content(partition_of(delivery.id), delivery.event_id)


def relay(partition: int) -> str:
    """The relay's lease and cursor."""
    return f"{_tag(partition)}relay"


def lane(name: str) -> str:
    """A lane."""
    return f"{_OF}lane:{name}"


def held(name: str) -> str:
    """The held deliveries of a lane."""
    return f"{_OF}held:{name}"


def due(name: str) -> str:
    """The deliveries of a lane that are queued or waiting; of a mailbox only the first."""
    return f"{_OF}due:{name}"


def flight(name: str) -> str:
    """The deliveries of a lane that are in flight."""
    return f"{_OF}flight:{name}"


def mailbox(name: str, of: str) -> str:
    """What is in order in a mailbox of a lane."""
    return f"{_OF}box:{name}:{of}"


def former(partition: int) -> tuple[str, str, str, str]:
    """Where releases before lanes kept a partition's deliveries: due, dead, forget, index."""
    due, dead, forget, index = (f"{_tag(partition)}dlv-{name}" for name in ("due", "dead", "forget", "index"))
    return due, dead, forget, index


def _tag(partition: int) -> str:
    return f"lw:{{p{partition:02x}}}:"
