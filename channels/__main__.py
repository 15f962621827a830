"""The program `lastword`: runs a command and turns what went wrong into a line and an exit code.

What belongs here: the last words to a person. What must not be known here: any command.
"""

import sys

from channels.console import exits
from channels.console.cli import app
from worker.errors import ConfigurationError, LastwordError, StoreUnavailable


def main() -> None:
    """Run the command of the arguments and exit."""
    try:
        app(prog_name="lastword")
    except ConfigurationError as error:
        _end(str(error), exits.USAGE)
    except StoreUnavailable as error:
        _end(str(error), exits.UNREACHABLE)
    except LastwordError as error:
        _end(str(error), exits.FAILED)


def _end(words: str, code: int) -> None:
    sys.stderr.write(f"lastword: {words}\n")
    raise SystemExit(code)


if __name__ == "__main__":
    main()
