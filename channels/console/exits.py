"""What the exit codes of `lastword` mean. They are the same for every command.

What belongs here: the codes. What must not be known here: who uses them.
"""

OK = 0
FAILED = 1
USAGE = 2
INCOMPLETE = 3
UNREACHABLE = 4
UNDECIDED = 5
CANCELLED = 6
SIGNALLED = 128
"""Added to the number of the signal that ended a command early."""

MEANING = {
    OK: "done; of a turn: completed",
    FAILED: "the turn or the delivery failed, a check found a fault, or a process died",
    USAGE: "a setting or an argument is wrong; the message names it and the fix",
    INCOMPLETE: "the turn ended incomplete: cut by its length, a content filter or a refusal",
    UNREACHABLE: "Redis (or Valkey) could not be reached",
    UNDECIDED: "the turn has not ended yet",
    CANCELLED: "the turn was cancelled",
    SIGNALLED + 2: "ended by Ctrl-C; the turn is kept",
    SIGNALLED + 15: "ended by SIGTERM; the turn is kept",
}

_OF_OUTCOME = {"completed": OK, "merged": OK, "incomplete": INCOMPLETE, "cancelled": CANCELLED}


def of_outcome(outcome: str | None) -> int:
    """The code for a turn's outcome; None: it has not ended."""
    return UNDECIDED if outcome is None else _OF_OUTCOME.get(outcome, FAILED)
