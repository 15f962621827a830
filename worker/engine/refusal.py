"""What an answer that is no stream means: whether to ask again, and what a person should do.

What belongs here: statuses, error bodies, and the advice that names the provider's settings. What must not be known
here: sockets, retries, turns.
"""

from dataclasses import dataclass, field, replace

import orjson

from worker.codecs.events import Failed
from worker.codecs.foreign import error_in
from worker.codecs.messages import Request
from worker.codecs.provider_errors import TRANSIENT_STATUS, failure_of
from worker.engine.quotes import quotable, quotable_with_code
from worker.http import HttpFault, retry_after_s

_CODES = {
    401: "unauthorized",
    402: "quota",
    403: "forbidden",
    404: "not_found",
    408: "timeout",
    409: "conflict",
    425: "too_early",
    429: "rate_limited",
    503: "overloaded",
    529: "overloaded",
}
_ADVICE = {
    "unauthorized": "its key is missing or wrong, set {section}.api_key",
    "forbidden": "the key may not do this, check {section}.api_key and what it is allowed",
    "not_found": "check the model {model!r} and {section}.base_url (it often ends in /v1)",
    "quota": "the quota of {section}.api_key is spent, raise it with the provider",
    "rate_limited": "it was asked too often, run fewer turns at a time or raise the limit with the provider",
    "context_overflow": "the conversation is longer than the context of {model!r}, start a new session",
    "content_filter": "its content filter refused the request",
    "conflict": "it refuses the request",
    "refused": "it refuses the request",
}


@dataclass(frozen=True, slots=True)
class Asked:
    """Whom we asked, and what. `provider`: its `[providers.NAME]`. `secrets`: see `worker.engine.quotes.secrets_of`."""

    provider: str
    secrets: tuple[str, ...] = field(repr=False)
    request: Request = field(repr=False)

    @property
    def section(self) -> str:
        """The provider's section in the settings."""
        return f"providers.{self.provider}"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request got no stream, less the attempt it belongs to: see `worker.turn.events.NotAnswered`."""

    status: int | None
    retryable: bool
    code: str
    message: str
    retry_after: float | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """The head of an answer and the start of its body. `headers` have names in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes
    at: str


def unreached(fault: HttpFault, asked: Asked) -> Refusal:
    """The refusal of a request that got no answer at all."""
    setting = "api_key and headers" if fault.code == "bad_header" else "base_url"
    message = f"provider {asked.provider}: {fault.message}. Check {asked.section}.{setting}."
    return Refusal(None, not fault.lasting, fault.code, message)


def refused(answer: Answer, asked: Asked) -> Refusal:
    """The refusal that an HTTP error status stands for."""
    error, around = _error_of(answer.body)
    failure = failure_of(error, {"status": answer.status} | around)
    code = _code_of(answer.status, failure)
    said = _quote(failure.message if error else "", asked)
    advice = _ADVICE.get(code, "it cannot answer now").format(section=asked.section, model=asked.request.model)
    message = f"provider {asked.provider} ({answer.at}) answered {answer.status}: {advice}.{said}"
    asked_for = retry_after_s(answer.headers)
    wait = failure.retry_after if asked_for is None else asked_for
    return Refusal(answer.status, _is_retryable(answer, code), code, message, wait)


def redirected(answer: Answer, target: str, asked: Asked) -> Refusal:
    """The refusal of an answer that sends us elsewhere. `target`: the host it names."""
    message = (
        f"provider {asked.provider} ({answer.at}) answered {answer.status}, a redirect to {target}, which is not "
        f"followed: if that is right, write it into {asked.section}.base_url."
    )
    return Refusal(answer.status, retryable=False, code="redirect", message=message)


def not_a_stream(answer: Answer, asked: Asked) -> Refusal:
    """The refusal of a success that holds no event stream: an error object after all, a page, or something else."""
    error, around = _error_of(answer.body)
    if error_in(around):
        failure = failure_of(error, around)
        code = failure.failure if failure.failure in ("context_overflow", "content_filter") else "provider_error"
        said = _quote(failure.message, asked)
        message = f"provider {asked.provider} ({answer.at}) answered {answer.status} with an error.{said}"
        return Refusal(answer.status, failure.failure == "retryable", code, message, failure.retry_after)
    kind = answer.headers.get("content-type", "").partition(";")[0].strip()[:80] or "nothing that names its type"
    if kind == "text/event-stream":
        kind = "something else under the name text/event-stream"
    message = (
        f"provider {asked.provider} ({answer.at}) answered {answer.status} with {kind} where an event stream was due: "
        f"check that {asked.section}.base_url is the address of the API (it often ends in /v1)."
    )
    return Refusal(answer.status, retryable=False, code="not_a_stream", message=message)


def _error_of(body: bytes) -> tuple[object, dict[str, object]]:
    """The error in a body, and the JSON object around it; an empty text and an empty object where there is none."""
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError:
        text = body.decode("utf-8", "replace").strip()
        return ("" if text.startswith("<") else text), {}
    if isinstance(found, list) and found:  # Google's gateways wrap the object in a list
        found = found[0]
    if not isinstance(found, dict):
        return "", {}
    error = found.get("error")
    if error:
        return error, found
    error = {key: value for key, value in found.items() if key != "error"}
    detail = found.get("detail")
    if isinstance(detail, list):  # FastAPI lists what it did not like, and repeats our input
        said = [each.get("msg") for each in detail if isinstance(each, dict)]
        reasons = [each for each in said if isinstance(each, str) and each]
        error = {"message": "; ".join(reasons)} if reasons else error
    return error, found


def _code_of(status: int, failure: Failed) -> str:
    if failure.failure in ("context_overflow", "content_filter"):
        return failure.failure
    if status == 429 and failure.failure == "refused":
        return "quota"
    return _CODES.get(status, "provider_error" if status >= 500 else "refused")


def _is_retryable(answer: Answer, code: str) -> bool:
    marked = answer.headers.get("x-should-retry", "").strip().lower()
    if marked == "false" or code in ("context_overflow", "content_filter", "quota"):
        return False
    return marked == "true" or answer.status in TRANSIENT_STATUS or answer.status >= 500


def clean(failed: Failed, asked: Asked) -> Failed:
    """The same failure in words that may be shown: no secret, nothing of the conversation, one short line each."""
    message, code = quotable_with_code(failed.message, failed.code or "", asked.secrets, asked.request)
    return replace(failed, message=message or "its message may repeat the conversation", code=code or None)


def _quote(said: str, asked: Asked) -> str:
    if not said.strip():
        return ""
    words = quotable(said, asked.secrets, asked.request)
    return f" It says: {words}" if words else " Its own message may repeat the conversation and is left out."
