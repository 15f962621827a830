"""What operators see of a process: one JSON log line per thing that happened, and Sentry for our own faults.

What belongs here: the form of a line, and what must never be in it. What must not be known here: turns, Redis, HTTP.

Lines hold ids, counts, codes and times. Prompts, answers, tool arguments, results and secrets never reach a line, an
exception report or a metric: callers pass named fields, and a report keeps the type and the place of an exception but
not its words.
"""

import json
import logging
import sys
import traceback
from datetime import UTC, datetime
from pathlib import PurePath
from typing import Any

import sentry_sdk

Field = str | int | float | bool | None

_log = logging.getLogger("lastword")
_log.addHandler(logging.NullHandler())  # a command that configures nothing prints nothing
_log.propagate = False


class _JsonLine(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
        }
        line.update(getattr(record, "lastword", {}))
        return json.dumps(line, ensure_ascii=False, default=str)


def configure_logging(level: str) -> None:
    """Write our lines at `level` and above to standard error, one JSON object each."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLine())
    _log.handlers[:] = [handler]
    _log.setLevel(level.upper())


def configure_sentry(dsn: str | None) -> None:
    """Report our own faults to Sentry; does nothing without a DSN."""
    if not dsn:
        return
    sentry_sdk.init(
        dsn=dsn,
        include_local_variables=False,
        max_request_body_size="never",
        max_breadcrumbs=0,
        default_integrations=False,
        before_send=_without_words,
    )


def info(event: str, **fields: Field) -> None:
    """One line about something that went as it should."""
    _log.info(event, extra={"lastword": fields})


def warn(event: str, **fields: Field) -> None:
    """One line about something that an operator may want to know."""
    _log.warning(event, extra={"lastword": fields})


def fault(event: str, error: BaseException, **fields: Field) -> None:
    """Report a fault of our own: one line with its type and place, and a Sentry event. Its words stay out of both."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f"{PurePath(frames[-1].filename).name}:{frames[-1].lineno}" if frames else None
    _log.error(event, extra={"lastword": {**fields, "error": type(error).__name__, "place": place}})
    with sentry_sdk.new_scope() as scope:
        for name, value in fields.items():
            scope.set_tag(name, str(value))
        sentry_sdk.capture_exception(error)


def flush_reports(limit_s: float = 2.0) -> None:
    """Let reports that are under way leave, before a process ends without further ado."""
    sentry_sdk.flush(limit_s)


def _without_words(event: Any, _hint: dict[str, Any]) -> Any:
    for exception in event.get("exception", {}).get("values", []):
        exception["value"] = ""
        for frame in exception.get("stacktrace", {}).get("frames", []):
            frame.pop("vars", None)
    for part in ("request", "extra", "breadcrumbs", "logentry", "message", "server_name", "user"):
        event.pop(part, None)
    return event
