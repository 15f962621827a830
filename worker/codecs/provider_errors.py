"""What a provider's error object means for the request that it answers.

What belongs here: the classification, one for all wire formats, inside a stream or as an HTTP body. What must not be
known here: HTTP, retries, turns.

In order: a body or a context that is too long; a content filter; a spent quota; an HTTP-like status; a type that says
the fault is the server's; a word that says the request itself is at fault. What says none of these may succeed when
asked again. Codes and types are believed before sentences: a message is only asked about contexts and filters, and not
even that where a rate limit or the server's own fault explains it.
"""

from collections.abc import Mapping

import orjson

from worker.codecs.events import Failed, FailureClass

TRANSIENT_STATUS = (408, 425, 429)
"""The statuses below 500 after which the same request may succeed."""

LONGEST_MESSAGE = 2000
"""Of a peer's message so many characters are kept."""

_LONGEST_WAIT_S = 1e9
_LARGEST_CODE = 10**9
_SAID_IN = ("message", "detail", "msg")
_CONTEXT_WORDS = (
    "contextlength",
    "contextsize",
    "contextwindow",
    "exceedcontextlimit",
    "exceedsmaximuminputlength",
    "inputistoolong",
    "inputsmusthavelessthan",
    "inputstokensmaxnewtokensmustbe",
    "inputtokencount",
    "inputtokensexceed",
    "maximumcontext",
    "maximummodellength",
    "maximumpromptlength",
    "maxmodellen",
    "maxprompttokensexceeded",
    "modeltokenlimit",
    "promptexceedsmaxlength",
    "promptistoolong",
    "prompttokencount",
    "prompttoolong",
    "rangeofinputlengthshouldbe",
    "reducethelengthofthemessages",
    "requesttoolarge",
    "toomanytokens",
)
_RATE_WORDS = (
    "perday",
    "perhour",
    "perminute",
    "persecond",
    "pleasewait",
    "ratelimit",
    "requestspermin",
    "throttl",
    "tokenspermin",
    "toomanyrequests",
)
_FILTER_WORDS = ("contentfilter", "contentmanagementpolicy", "contentpolicy", "responsibleaipolicy")
_QUOTA_WORDS = (
    "arrearage",
    "billing",
    "exceededcurrentquota",
    "insufficientbalance",
    "insufficientcredit",
    "insufficientfunds",
    "insufficientquota",
    "paymentrequired",
    "usagenotincluded",
)
_SERVER_WORDS = ("internal", "overloaded", "servererror", "unavailable")
_REFUSAL_WORDS = (
    "authenticat",
    "badrequest",
    "denied",
    "forbidden",
    "invalid",
    "notfound",
    "permission",
    "policy",
    "unauthorized",
    "unprocessable",
    "unsupported",
)


def failure_of(error: object, around: Mapping[str, object] | None = None) -> Failed:
    """The `Failed` that an error stands for. `around`: the object it was found in, which may hold a status.

    `error` may have any JSON type and depth: an object, a sentence, or nonsense. Where it is no object, what stands
    beside it in `around` is read as if it stood inside. Never raises. `message` and `code` are the peer's own words,
    the message cut at 2000 characters: who shows them cleans them.
    """
    beside = around or {}
    fields = error if isinstance(error, dict) else beside
    sources = (fields, beside)
    status = _status_of(sources)
    message = _message_of(error, fields)
    return Failed(_class_of(fields, status, message), message, _code_of(fields, status), _retry_after_of(sources))


def _class_of(fields: Mapping[str, object], status: int | None, message: str) -> FailureClass:
    kind = _squeezed(_word(fields.get("type")))
    words = _squeezed(" ".join(_word(fields.get(key)) for key in ("code", "type", "status")))
    sentence = _squeezed(message)
    is_rate = status == 429 or _has(words, _RATE_WORDS)
    is_servers = (status is not None and status >= 500) or _has(kind, _SERVER_WORDS)
    says_too_long = not is_rate and not _has(sentence, _RATE_WORDS) and _has(sentence, _CONTEXT_WORDS)
    if status == 413 or _has(words, _CONTEXT_WORDS) or says_too_long:
        return "context_overflow"
    if _has(words, _FILTER_WORDS) or (not is_rate and not is_servers and _has(sentence, _FILTER_WORDS)):
        return "content_filter"
    if _has(words, _QUOTA_WORDS):
        return "refused"
    if status is not None:
        return "retryable" if status >= 500 or status in TRANSIENT_STATUS else "refused"
    if is_rate or is_servers:
        return "retryable"
    return "refused" if _has(words, _REFUSAL_WORDS) else "retryable"


def _status_of(sources: tuple[Mapping[str, object], ...]) -> int | None:
    for source in sources:
        for key in ("status_code", "statusCode", "status", "http_status", "code"):
            value = source.get(key)
            if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) == 3:
                value = int(value)
            if type(value) is int and 400 <= value <= 599:
                return value
    return None


def _word(value: object) -> str:
    """A code, a type or a status as text; empty where it is neither text nor a number that a person would write."""
    if isinstance(value, str):
        return value[:LONGEST_MESSAGE]
    return str(value) if type(value) is int and abs(value) < _LARGEST_CODE else ""


def _code_of(fields: Mapping[str, object], status: int | None) -> str | None:
    for key in ("code", "type", "status"):
        value = fields.get(key)
        if value and (word := _word(value)):
            return word
    return None if status is None else str(status)


def _message_of(error: object, fields: Mapping[str, object]) -> str:
    said = next((value for key in _SAID_IN if (value := fields.get(key)) and isinstance(value, str)), "")
    sentence = error if isinstance(error, str) else ""
    message = ": ".join(dict.fromkeys(filter(None, (sentence[:LONGEST_MESSAGE], said[:LONGEST_MESSAGE]))))
    return (message or f"the provider sent an error without a message: {_shown(error)}")[:LONGEST_MESSAGE]


def _shown(error: object) -> str:
    try:
        return orjson.dumps(error).decode()
    except orjson.JSONEncodeError:  # nested too deeply to be shown at all, or half a character
        return "an object"


def _retry_after_of(sources: tuple[Mapping[str, object], ...]) -> float | None:
    for source in sources:
        value = source.get("retry_after")
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _LONGEST_WAIT_S:
            return float(value)
    return None


def _squeezed(text: str) -> str:
    """Lower case, letters and digits only: `RateLimitError`, `rate_limit` and `rate limit` read alike."""
    return "".join(filter(str.isalnum, text[:LONGEST_MESSAGE].lower()))


def _has(text: str, words: tuple[str, ...]) -> bool:
    return any(word in text for word in words)
