"""The names of everything in Redis, in one table.

What belongs here: names and their hash tags. What must not be known here: what is stored under them, and for how long.

    lw:meta                      hash: the record version and the number of partitions, fixed at the first start
    lw:{pNN}:turn:<turn>         hash: the turn record and its counters
    lw:{pNN}:journal:<turn>      list of the turn's committed facts (JSON), oldest first
    lw:{pNN}:text:<turn>         string: the committed text in UTF-8; its length is the marker
    lw:{pNN}:open:<turn>         string: what the open attempt has staged
    lw:{pNN}:out:<turn>          stream: the turn's outputs; the id of one is <ms>-<seq>
    lw:{pNN}:approvals:<turn>    hash: the turn's approval requests, and the answers they got
    lw:{pNN}:queue:<session>     list of unsealed turns; the head is the one that is driven
    lw:{pNN}:session:<session>   hash: record version, epoch, last_input_tokens; grant:<tool>, the approval that gave it
    lw:{pNN}:history:<session>   list of sealed turns, oldest first
    lw:{pNN}:due                 sorted set of typed members (`lease:<session>`, `approval:<turn>`): the ms at which
                                 someone must look
    lw:{pNN}:driven              sorted set: session with a driver, the ms at which its lease ends
    lw:{pNN}:far-look:<kind>     string: of what is due further ahead than this kind ever is, how many members of other
                                 kinds were looked past
    lw:{pNN}:watch               sorted set: turn, the ms until which readers watch it
    lw:{pNN}:live                sorted set: unsealed turn, the ms of its submit
    lw:{pNN}:cancels             sorted set: driven turn that is to end, the ms at which somebody wanted it
    lw:{pNN}:waiting             sorted set: approval that nobody has decided, the ms at which it expires
    lw:{pNN}:pulse               hash: the ms at which a process last gave a sign of life; the ms until which nobody is
                                 taken over
    lw:{pNN}:log                 stream: the partition's output log, read by the relay
    lw:{pNN}:log-aside           stream: entries of the log that a newer release wrote, until one of it has read them;
                                 the first word of each is `aside:place`: its place in the log
    lw:{pNN}:idem:<key>          hash: what an idempotency key stands for
    lw:{pNN}:quota:<name>        sorted set: turn taken under this name of late, the ms of its submit
    lw:{pNN}:ended:<outcome>     sorted set: turn that ended so, the ms of its seal
    lw:processes                 sorted set: a process that lives, the ms at which it is taken for gone
    lw:process:<process>         hash: what a process last told of itself
    lw:health                    sorted set: a provider that is left alone, the ms until which
    lw:health:<provider>         hash: of late its deaths and completions; the ms until which it is left alone
    lw:health-answer:<process>   string: the number of a process's last report on providers, and its answer

The braces are a Redis hash tag: all keys of a session share one. An idempotency key has the tag of its own text, since
it must be found again whatever session the repeated message is given; so has a quota.
"""

from worker import ids
from worker.errors import ConfigurationError

META = "lw:meta"
HEALTH = "lw:health"
PROCESSES = "lw:processes"
DUE_LEASE = "lease:"
DUE_APPROVAL = "approval:"


def _tag(partition: int) -> str:
    return f"lw:{{p{partition:02x}}}"


def beginning(partition: int) -> str:
    """What the names of a partition's keys begin with."""
    return f"{_tag(partition)}:"


def partition_of_turn(turn: str) -> int:
    """The partition in a turn id. Raises `ConfigurationError` when it is no turn id."""
    partition = ids.partition_of(turn)
    if partition is None:
        message = f"turn {turn[:80]!r} is no turn id: give one as `submit` printed it, turn_ and 22 hex digits"
        raise ConfigurationError(message)
    return partition


def _of_turn(kind: str, turn: str) -> str:
    return f"{_tag(partition_of_turn(turn))}:{kind}:{turn}"


def turn_record(turn: str) -> str:
    """The turn record."""
    return _of_turn("turn", turn)


def journal(turn: str) -> str:
    """The committed facts of a turn."""
    return _of_turn("journal", turn)


def text(turn: str) -> str:
    """The committed text of a turn."""
    return _of_turn("text", turn)


def open_text(turn: str) -> str:
    """What the open attempt of a turn has staged."""
    return _of_turn("open", turn)


def out(turn: str) -> str:
    """The outputs of a turn."""
    return _of_turn("out", turn)


def approvals(turn: str) -> str:
    """The approval requests of a turn."""
    return _of_turn("approvals", turn)


def queue(partition: int, session: str) -> str:
    """The unsealed turns of a session."""
    return f"{_tag(partition)}:queue:{session}"


def session_record(partition: int, session: str) -> str:
    """What outlives a turn in a session."""
    return f"{_tag(partition)}:session:{session}"


def history(partition: int, session: str) -> str:
    """The sealed turns of a session."""
    return f"{_tag(partition)}:history:{session}"


def due(partition: int) -> str:
    """When someone must look at what."""
    return f"{_tag(partition)}:due"


def driven(partition: int) -> str:
    """The sessions that are driven, until when."""
    return f"{_tag(partition)}:driven"


def far_look(partition: int, kind: str) -> str:
    """How far the look for what another clock has made due has come. `kind`: what its members of due begin with."""
    return f"{_tag(partition)}:far-look:{kind.rstrip(':')}"


def watch(partition: int) -> str:
    """The watched turns of a partition."""
    return f"{_tag(partition)}:watch"


def live(partition: int) -> str:
    """The unsealed turns of a partition."""
    return f"{_tag(partition)}:live"


def cancels(partition: int) -> str:
    """The driven turns of a partition that are to end."""
    return f"{_tag(partition)}:cancels"


def ended(partition: int, outcome: str) -> str:
    """The turns of a partition that ended so."""
    return f"{_tag(partition)}:ended:{outcome}"


def waiting(partition: int) -> str:
    """The approvals of a partition that nobody has decided."""
    return f"{_tag(partition)}:waiting"


def pulse(partition: int) -> str:
    """The last sign of life of any process, and how long nobody is taken over."""
    return f"{_tag(partition)}:pulse"


def log(partition: int) -> str:
    """The output log of a partition."""
    return f"{_tag(partition)}:log"


def log_aside(partition: int) -> str:
    """Those entries of the output log that were put aside for a newer release."""
    return f"{_tag(partition)}:log-aside"


def idempotency(key: str, partitions: int) -> str:
    """What an idempotency key stands for."""
    return f"{_tag(ids.partition_of_session(key, partitions))}:idem:{key}"


def quota(name: str, partitions: int) -> str:
    """The turns that were taken under a name of late."""
    return f"{_tag(ids.partition_of_session(name, partitions))}:quota:{name}"


def process(process: str) -> str:
    """What a process last told of itself."""
    return f"lw:process:{process}"


def health(provider: str) -> str:
    """What is counted of a provider."""
    return f"{HEALTH}:{provider}"


def health_answer(process: str) -> str:
    """What a process was last answered about providers."""
    return f"{HEALTH}-answer:{process}"
