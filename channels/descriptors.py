"""How many descriptors a process may have open.

What belongs here: the limit of the system, and raising it. What must not be known here: what the descriptors are for.
"""

import resource


def raised(wanted: int) -> int:
    """How many this process may have, `wanted` at most. Raises its own limit as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    reached = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (reached, hard))
    except (OSError, ValueError):  # some systems allow less than they say
        return soft
    return reached
