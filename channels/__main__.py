"""The program `lastword`: runs a command and turns what went wrong into a line and an exit code.

What belongs here: the last words to a person. What must not be known here: any command.
"""

import sys

from redis.exceptions import RedisError

from channels.console import exits
from channels.console.cli import app
from worker.errors import ConfigurationError, LastwordError, StoreUnavailable
from worker.store.inbox import IdempotencyConflict


def main() -> None:
    """Run the command of the arguments and exit."""
    try:
        app(prog_name="lastword")
    except (ConfigurationError, IdempotencyConflict) as error:
        _end(str(error), exits.USAGE)
    except StoreUnavailable as error:
        _end(str(error), exits.UNREACHABLE)
    except RedisError as error:
        fix = "start it, or correct redis_url; `lastword doctor` looks closer"
        _end(f"Redis did not do what it was asked ({type(error).__name__}): {fix}", exits.UNREACHABLE)
    except LastwordError as error:
        _end(str(error), exits.FAILED)


def _end(words: str, code: int) -> None:
    sys.stderr.write(f"lastword: {words}\n")
    raise SystemExit(code)


if __name__ == "__main__":
    main()
