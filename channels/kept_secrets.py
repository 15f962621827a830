"""Secrets that are made once and kept in a file of the data folder.

What belongs here: making such a file so that all processes find the same one, whoever was first. What must not be known
here: what the secrets are for.
"""

import contextlib
import os
import secrets
from collections.abc import Callable
from pathlib import Path

from worker.observability import warn


def openness(path: Path, forbidden: int = 0o077) -> str:
    """What is wrong with the rights of a file that holds a secret, and the fix; empty: nothing, or it is not there.

    `forbidden`: the bits of its mode that none but its owner should have.
    """
    try:
        mode = path.stat().st_mode & 0o777
    except OSError:
        return ""
    return f"{path} can be read or changed by others (mode {mode:04o}): chmod 600 {path}" if mode & forbidden else ""


def kept_secret(path: Path, make: Callable[[], str], what: str, fix: str) -> str:
    """The text in `path`; at the first call it is what `make` gives. Only its owner can read the file.

    Of several processes that make it at the same time one wins, and all get its text. Once anybody has it, it is on
    disk. Raises OSError with `what` it is, its path and the `fix` when it can be neither read nor made.
    """
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            _make(path, make())
        warn_if_open(path)
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError as error:
        raise OSError(f"{what} {path} can be neither read nor made ({error.strerror}); {fix}") from error


def warn_if_open(path: Path, forbidden: int = 0o077) -> None:
    """Tell in the log of a file with `openness`."""
    if fault := openness(path, forbidden):
        warn("secret_file_open_to_others", reason=fault)


def _make(path: Path, text: str) -> None:
    fresh = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(fresh, path)  # the first of several processes wins, and no reader sees half a secret
        # What is sealed with a key must not outlive it in a crash of the machine.
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    finally:
        fresh.unlink()
