"""Every way in which a turn fails, said to a person who can act.

What belongs here: category, code and message of each failure. What must not be known here: when a turn fails.

A message says what happened, the number, and the setting that changes it. It holds nothing of prompts and answers;
what a provider wrote about its own error is kept, on one line and cut to a length.
"""

import re
from dataclasses import replace

from worker.codecs.events import Failed
from worker.output.events import ErrorCategory
from worker.turn.commands import Failure
from worker.turn.events import DeathKind, Died, NotAnswered
from worker.turn.watchdog import Budget

_QUOTE_LIMIT = 300
_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,64}")

_SILENCES: dict[Budget, tuple[str, str]] = {
    "stall": ("sent no text, reasoning or tool call for {:g} s in mid-stream", "stall_timeout_s"),
    "inter_delta": ("sent nothing at all for {:g} s in mid-stream", "first_token_timeout_s"),
    "prefill": ("did not begin to answer within {:g} s", "prefill_timeout_s"),
    "progress": ("sent nothing but keepalives for {:g} s", "no_progress_timeout_s"),
    "reasoning": ("reasoned for {:g} s without a word of its answer", "reasoning_timeout_s"),
}

_BREAKS: dict[DeathKind, tuple[ErrorCategory, str]] = {
    "timeout": ("timeout", "stopped answering in mid-stream"),
    "reset": ("stream_failure", "dropped the connection in mid-stream"),
    "end_of_stream": ("stream_failure", "ended its stream without saying that the answer was whole"),
    "protocol": ("stream_failure", "broke its wire format"),
    "provider_error": ("provider_failure", "reported an error in mid-stream"),
}


def silence(provider: str, budget: Budget, waited_s: float) -> Failure:
    """The watchdog's: a budget of `waited_s` seconds ran out."""
    what, setting = _SILENCES[budget]
    message = f"Provider {provider} {what.format(waited_s)} (providers.{provider}.{setting})."
    return Failure("timeout", f"{budget}_timeout", message)


def broken_stream(provider: str, death: Died) -> Failure:
    """The stream broke off."""
    category, what = _BREAKS[death.kind]
    return Failure(category, death.kind, f"Provider {provider} {what}{_quoted(death.message)}.")


def kind_of(error: Failed) -> DeathKind:
    """How an attempt died whose stream ended in an error."""
    return "protocol" if error.failure == "protocol" else "provider_error"


def error_in_stream(provider: str, error: Failed) -> Failure:
    """The provider ended its stream with an error that may pass, or with bytes outside its format."""
    kind = kind_of(error)
    category, what = _BREAKS[kind]
    code = error.code if kind == "protocol" and error.code else kind
    return Failure(category, code, f"Provider {provider} {what}{_coded(error)}{_quoted(error.message)}.")


def refused_in_stream(provider: str, error: Failed) -> Failure:
    """The provider ended its stream with an error that the same request will always meet."""
    what = {
        "context_overflow": "says that the conversation is longer than the model's context",
    }.get(error.failure, "refused the request in mid-stream")
    message = f"Provider {provider} {what}{_coded(error)}{_quoted(error.message)}."
    return Failure("provider_failure", error.failure, message)


def not_answered(answer: NotAnswered) -> Failure:
    """The request got no stream; the reader of the answer has already found the words."""
    return Failure("provider_failure", answer.code, answer.message)


def turn_deadline() -> Failure:
    """The turn took too long as a whole."""
    return Failure(
        "timeout",
        "turn_deadline",
        "The turn reached its deadline, counted from when a process first took it up (turns.turn_deadline_s).",
    )


def max_calls(cap: int) -> Failure:
    """The model went on asking for tools, or answered without a word."""
    calls = "call" if cap == 1 else "calls"
    message = f"The turn made {cap} {calls} and was not done (turns.max_calls = {cap})."
    return Failure("provider_failure", "max_calls", message)


def crash_cap(crashes: int, cap: int) -> Failure:
    """Process after process vanished while it ran this turn and no other."""
    message = (
        f"The turn took down its own process {_times(crashes)}, more often than turns.crash_cap = {cap} allows; no "
        "other turn ran in it. Submit it again with `lastword turns replay` once the cause is mended."
    )
    return Failure("internal", "crash_cap", message)


def several_choices(provider: str, choices: int) -> Failure:
    """More answers than one came, and none of them is the answer."""
    message = f"Provider {provider} sent {choices} answers instead of one; remove n from the agent's extra_body."
    return Failure("provider_failure", "several_choices", message)


def unknown_tool(name: str) -> Failure:
    """The model called a tool although none was offered."""
    message = f"The model called a tool{_named(name)}, but the agent offers none; see the agent's tools setting."
    return Failure("provider_failure", "unknown_tool", message)


def tool_loop(name: str) -> Failure:
    """The model called the same tool with the same arguments and the same result over and over."""
    message = (
        f"The model went on calling the tool{_named(name)} with the same arguments although the result was the same "
        "each time and it had been told so."
    )
    return Failure("provider_failure", "tool_loop", message)


def empty_answer(provider: str, finish_reason: str | None) -> Failure:
    """The call completed without a word, and asking again did not help."""
    message = (
        f"Provider {provider} ended its answer without any text (finish reason: {finish_reason or 'none'}), however "
        "often it was asked again (turns.empty_answer_nudges, turns.empty_answer_nudges_after_tools)."
    )
    return Failure("provider_failure", "empty_answer", message)


def still_too_long(failure: Failure) -> Failure:
    """The same, told that the conversation had been made shorter, or could not be."""
    return _because(failure, "The conversation could not be made short enough; begin a new session.")


def budget_spent(failure: Failure, attempts: int, budget: int) -> Failure:
    """The same, told that the call was asked as often as it may be."""
    return _because(
        failure,
        f"The call was not tried again after {attempts} attempts (turns.timeout_resume_retry_budget = {budget}).",
    )


def retries_spent(failure: Failure, provider: str, requests: int, retries: int) -> Failure:
    """The same, told that the request was sent as often as it may be."""
    return _because(failure, f"It was sent {_times(requests)} (providers.{provider}.transport_retries = {retries}).")


def no_time_left(failure: Failure, wait_s: float) -> Failure:
    """The same, told that the turn's deadline comes before the next try."""
    return _because(
        failure, f"The next try would come in {wait_s:.3g} s, after the turn's deadline (turns.turn_deadline_s)."
    )


def drain_over() -> Failure:
    """The process had to end while the turn was under way, and turns are not handed over."""
    message = (
        'The process that ran the turn had to shut down (turns.on_drain = "fail"), and the turn was not done within '
        "processes.drain_s."
    )
    return Failure("internal", "drained", message)


def draining(failure: Failure) -> Failure:
    """The same, told that this process is shutting down."""
    return _because(failure, 'It was not tried again, as this process is shutting down (turns.on_drain = "fail").')


def _because(failure: Failure, why: str) -> Failure:
    stop = "" if failure.message.endswith((".", "!", "?", "…")) else "."
    return replace(failure, message=f"{failure.message}{stop} {why}")


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def _coded(error: Failed) -> str:
    return f" ({' '.join(error.code.split())[:64]})" if error.code else ""


def _named(tool: str) -> str:
    """A name that a tool could have; what a model writes beyond that is its text."""
    return f" {tool}" if _NAME.fullmatch(tool) else ""


def _quoted(text: str) -> str:
    line = " ".join(text.split())
    if not line:
        return ""
    return f": {line[:_QUOTE_LIMIT].rstrip('.')}" if len(line) <= _QUOTE_LIMIT else f": {line[:_QUOTE_LIMIT]}…"
