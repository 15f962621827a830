"""The identifiers of Lastword and their grammar.

What belongs here: what an id looks like and what it tells. What must not be known here: where ids are stored.

    turn      turn_PPxxxxxxxxxxxxxxxxxxxx   PP: the partition, two hex digits; then 20 random hex digits (of a replay: a
                                              hash of the turn that is replayed)
    delivery  dlv_PPxxxxxxxxxxxxxxxxxxxx    the same; the digits are a hash of what is told and of the destination
    correlation  32 hex digits              a hash of turn and nonce: one for all that a driver's failure leaves behind
    event     evt_xxxxxxxxxxxxxxxxxxxxxxxx  a hash of turn, nonce and op number: the same however often it is worked out
                                              (of a decision: what follows appr_ in the id of its approval)
    approval  appr_PPxxxxxxxxxxxxxxxxxxxx_C_I  the digits of its turn, then call and index of the tool call, as numbers
    session   any text of 1 to 200 printable characters without spaces, braces or wildcards
"""

import hashlib
import re
import secrets
import zlib

SOLO = "solo/"
"""What the id of a session that was made up for one turn begins with."""

_SESSION = re.compile(r"[^\s{}*?\[\]\\]{1,200}")
_PARTITIONED = re.compile(r"(?:turn|dlv)_([0-9a-f]{2})[0-9a-f]{20}")
_APPROVAL = re.compile(r"appr_([0-9a-f]{22})_([1-9][0-9]{0,8})_(0|[1-9][0-9]{0,8})")


def partition_of_session(session: str, partitions: int) -> int:
    """The partition that holds all keys of a session: CRC-32 of its UTF-8 bytes, modulo `partitions`."""
    return zlib.crc32(session.encode()) % partitions


def partition_of(identifier: str) -> int | None:
    """The partition written into a turn or delivery id, or None when it is no such id."""
    match = _PARTITIONED.fullmatch(identifier)
    return int(match[1], 16) if match else None


def is_session(session: str) -> bool:
    """Whether a text may name a session."""
    return _SESSION.fullmatch(session) is not None and session.isprintable()


def new_turn(partition: int) -> str:
    """A fresh turn id."""
    return f"turn_{partition:02x}{secrets.token_hex(10)}"


def replay_of(turn: str) -> str:
    """The id of the one replay of a turn, in the same partition."""
    digest = hashlib.sha256(f"replay\n{turn}".encode()).hexdigest()
    return f"turn_{turn.removeprefix('turn_')[:2]}{digest[:20]}"


def new_session() -> str:
    """A fresh session id, for a turn that belongs to no conversation."""
    return f"{SOLO}{secrets.token_hex(10)}"


def new_nonce() -> str:
    """A fence: unequal to every other one ever made."""
    return secrets.token_hex(16)


def end_of(turn: str) -> str:
    """What names the end of a turn in `delivery_of`: it has one, whoever sealed it and however often that was lost."""
    return f"{turn}:end"


def delivery_of(partition: int, told: str, destination: str) -> str:
    """The id of the one delivery that tells a destination of `told`."""
    digest = hashlib.sha256(f"{told}\n{destination}".encode()).hexdigest()
    return f"dlv_{partition:02x}{digest[:20]}"


def approvals_of(turn: str) -> str:
    """What the id of each approval of a turn begins with; call and index follow, as `<call>_<index>`."""
    return f"appr_{turn.removeprefix('turn_')}_"


def approval_of(turn: str, call: int, index: int) -> str:
    """The id of the approval of a call's `index`-th tool call, counted from 0."""
    return f"{approvals_of(turn)}{call}_{index}"


def parse_approval(approval: str) -> tuple[str, int, int] | None:
    """The turn, call and index in an approval id, or None when it is none."""
    match = _APPROVAL.fullmatch(approval)
    return (f"turn_{match[1]}", int(match[2]), int(match[3])) if match else None


def event_of(turn: str, nonce: str, op: int) -> str:
    """The id of the event that op number `op` of the owner `nonce` put into the log."""
    return "evt_" + hashlib.sha256(f"{turn}\n{nonce}\n{op}".encode()).hexdigest()[:24]


def correlation_of(turn: str, nonce: str) -> str:
    """The id by which a failure is found in outputs, deliveries and logs alike."""
    return hashlib.sha256(f"{turn}\n{nonce}".encode()).hexdigest()[:32]
