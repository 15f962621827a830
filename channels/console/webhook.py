"""`lastword webhook`: secrets that are made, and signatures that are looked at.

What belongs here: where body, headers and secrets are read from, and the form of the answers. What must not be known
here: what makes a signature right.
"""

import json
import os
import re
import secrets
import sys
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from channels.console import exits
from channels.console.terminal import for_terminal
from channels.endpoints.signing_keys import (
    Scheme,
    VerifyingKey,
    decode_verifying_key,
    encode_secret,
    fresh_key,
    public_key,
)
from channels.webhook.signature import ID, SIGNATURE, TIMESTAMP, Verified, verify
from worker.errors import ConfigurationError

SECRET_VARIABLE = "WEBHOOK_SECRET"  # noqa: S105 - the name of a variable

_HEADER = re.compile(r"([A-Za-z0-9!#$%&'*+.^_`|~-]+):[ \t]*(.*?)[ \t]*")


@dataclass(frozen=True, slots=True)
class Given:
    """What came with a body: headers in a file or one by one, and where the secrets are."""

    headers: Path | None
    id: str | None
    timestamp: str | None
    signature: str | None
    secret_file: Path | None


def run_verify(body: Path, given: Given, tolerance_s: int, *, as_json: bool) -> int:
    """Print whether the body is signed rightly; returns the exit code."""
    keys = _keys(given.secret_file)
    headers = _headers(given)
    data = sys.stdin.buffer.read() if str(body) == "-" else _read("BODY", body)
    now_s = int(datetime.now(UTC).timestamp())  # noqa: TID251 - as a receiver counts, by the clock of its machine
    verdict = verify(keys, headers, data, now_s, tolerance_s)
    verified = isinstance(verdict, Verified)
    if as_json:
        sys.stdout.write(json.dumps({"verified": verified, **asdict(verdict)}) + "\n")
    elif isinstance(verdict, Verified):
        which = "" if len(keys) == 1 else f", of the secrets number {verdict.key + 1}"
        sys.stdout.write(f"verified: {verdict.scheme}{which}, {verdict.age_s} s old\n")
    else:
        sys.stdout.write(f"not verified ({verdict.reason}): {for_terminal(verdict.message)}\n")
    return exits.OK if verified else exits.FAILED


def run_secret(scheme: Scheme, *, as_json: bool) -> int:
    """Make a secret and print it; returns the exit code."""
    key = fresh_key(scheme, secrets.token_bytes)
    made = {"secret": encode_secret(key)} | ({} if scheme == "v1" else {"public_key": public_key(key)})
    sys.stdout.write(json.dumps(made) + "\n" if as_json else "".join(f"{line}\n" for line in made.values()))
    return exits.OK


def _keys(file: Path | None) -> list[VerifyingKey]:
    if file is not None:
        place = f"--secret-file {str(file)!r}"
        text = _read("--secret-file", file).decode("utf-8", errors="replace")
    else:
        place = f"${SECRET_VARIABLE}"
        text = os.environ.get(SECRET_VARIABLE, "")
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), start=1)]
    keys = [decode_verifying_key(f"{place}, line {number}", line) for number, line in lines if line]
    if not keys:
        fix = f"name a file with --secret-file, or set {SECRET_VARIABLE}; `lastword webhook secret` makes secrets"
        raise ConfigurationError(f"{place} holds no secret: {fix}")
    return keys


def _headers(given: Given) -> dict[str, str]:
    options = {ID: given.id, TIMESTAMP: given.timestamp, SIGNATURE: given.signature}
    single = {name: value for name, value in options.items() if value is not None}
    if given.headers is None:
        if not single:
            raise ConfigurationError("there are no headers: give --headers FILE, or --id, --timestamp and --signature")
        return single
    if single:
        raise ConfigurationError("--headers and --id, --timestamp or --signature are both given: leave one out")
    headers: dict[str, str] = {}
    text = _read("--headers", given.headers).decode("utf-8", errors="replace")
    for line in text.splitlines():
        # What is no header, such as the line of the request, is passed over: captures begin in many ways.
        match = _HEADER.fullmatch(line)
        if match is None or match[1].lower() not in options:
            continue
        name = match[1].lower()
        if name in headers:
            raise ConfigurationError(
                f"--headers {str(given.headers)!r}: {name} is there twice: keep that of one request"
            )
        headers[name] = match[2]
    return headers


def _read(name: str, file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{name} {str(file)!r} cannot be read: {error.strerror}; correct the path") from None
