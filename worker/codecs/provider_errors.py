"""What a provider's error object means for the request that it answers.

What belongs here: the classification, one for all wire formats, inside a stream or as an HTTP body. What must not be
known here: HTTP, retries, turns.

In order: a context that is too long; a content filter; a spent quota; an HTTP-like status; a word that says the
request itself is at fault. What says none of these may succeed when asked again.
"""

from collections.abc import Mapping

import orjson

from worker.codecs.events import Failed, FailureClass

_LONGEST_MESSAGE = 2000
_TRANSIENT_STATUS = (408, 429)
_CONTEXT_WORDS = (
    "contextlength",
    "contextsize",
    "contextwindow",
    "exceedcontextlimit",
    "inputistoolong",
    "inputtokencount",
    "maximumcontext",
    "maximumpromptlength",
    "promptistoolong",
    "prompttoolong",
    "reducethelengthofthemessages",
    "requesttoolarge",
)
_FILTER_WORDS = ("contentfilter", "contentmanagementpolicy", "contentpolicy", "responsibleaipolicy")
_QUOTA_WORDS = ("insufficientquota", "billing")
_REFUSAL_WORDS = (
    "authentication",
    "badrequest",
    "forbidden",
    "invalid",
    "notfound",
    "permission",
    "unauthorized",
    "unprocessable",
    "unsupported",
)


def failure_of(error: object, around: Mapping[str, object] | None = None) -> Failed:
    """The `Failed` that an error object stands for. `around`: the object it was found in, which may hold a status.

    `error` may have any JSON type: an object, a sentence, or nonsense.
    """
    fields = error if isinstance(error, dict) else {}
    sources = (fields, around or {})
    status = _status_of(sources)
    code = _code_of(fields, status)
    message = _message_of(error, fields)
    return Failed(_class_of(fields, status, message), message[:_LONGEST_MESSAGE], code, _retry_after_of(sources))


def _class_of(fields: Mapping[str, object], status: int | None, message: str) -> FailureClass:
    words = _squeezed(" ".join(str(fields.get(key) or "") for key in ("code", "type", "status")))
    said = words if status == 429 or "ratelimit" in words else words + _squeezed(message)
    if _has(said, _CONTEXT_WORDS):
        return "context_overflow"
    if _has(said, _FILTER_WORDS):
        return "content_filter"
    if _has(words, _QUOTA_WORDS):
        return "refused"
    if status is not None:
        return "retryable" if status >= 500 or status in _TRANSIENT_STATUS else "refused"
    return "refused" if _has(words, _REFUSAL_WORDS) else "retryable"


def _status_of(sources: tuple[Mapping[str, object], ...]) -> int | None:
    for source in sources:
        for key in ("status_code", "status", "http_status", "code"):
            value = source.get(key)
            if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) == 3:
                value = int(value)
            if type(value) is int and 400 <= value <= 599:
                return value
    return None


def _code_of(fields: Mapping[str, object], status: int | None) -> str | None:
    for key in ("code", "type", "status"):
        value = fields.get(key)
        if value and isinstance(value, str | int):
            return str(value)
    return None if status is None else str(status)


def _message_of(error: object, fields: Mapping[str, object]) -> str:
    for key in ("message", "detail", "msg"):
        value = fields.get(key)
        if value and isinstance(value, str):
            return value
    if error and isinstance(error, str):
        return error
    return f"the provider sent an error without a message: {_shown(error)}"


def _shown(error: object) -> str:
    try:
        return orjson.dumps(error).decode()
    except orjson.JSONEncodeError:  # nested too deeply to be shown at all
        return "an object"


def _retry_after_of(sources: tuple[Mapping[str, object], ...]) -> float | None:
    for source in sources:
        value = source.get("retry_after")
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf"):
            return float(value)
    return None


def _squeezed(text: str) -> str:
    """Lower case, letters and digits only: `RateLimitError`, `rate_limit` and `rate limit` read alike."""
    return "".join(filter(str.isalnum, text[:_LONGEST_MESSAGE].lower()))


def _has(text: str, words: tuple[str, ...]) -> bool:
    return any(word in text for word in words)
