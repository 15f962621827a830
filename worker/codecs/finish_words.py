"""Providers' words for how an answer finished, and what they mean in our words.

What belongs here: the words, of every wire format that has such a field. What must not be known here: where they stand.

Words are compared by their letters alone, without `finish_reason_` before them. A word that is not here is kept as it
is, and no tool call of such an answer runs: nobody knows whether it is whole.
"""

from worker.codecs.wirejson import well_formed

_LONGEST = 200
_MEANINGS = {
    "stop": (
        "stop",
        "complete",
        "completed",
        "done",
        "end",
        "end_of_text",
        "end_of_turn",
        "end_turn",
        "eos",
        "eos_found",
        "eos_token",
        "finish",
        "finished",
        "normal",
        "stop_sequence",
        "stop_token",
        "success",
    ),
    "tool_calls": ("tool_calls", "tool_call", "tool_use", "function_call", "function_calls"),
    "length": (
        "length",
        "max_length",
        "max_output_tokens",
        "max_tokens",
        "model_context_window_exceeded",
        "model_length",
    ),
    "content_filter": (
        "blocklist",
        "content_filter",
        "content_filtered",
        "guardrail_intervened",
        "image_prohibited_content",
        "image_recitation",
        "image_safety",
        "language",
        "model_armor",
        "prohibited_content",
        "recitation",
        "safety",
        "sensitive",
        "spii",
    ),
    "refusal": ("refusal",),
    "pause_turn": ("pause_turn",),
}
_ERRORS = (
    "abort",
    "aborted",
    "canceled",
    "cancelled",
    "error",
    "failed",
    "failure",
    "insufficient_system_resource",
    "internal_error",
    "malformed_function_call",
    "malformed_tool_call",
    "network_error",
    "server_error",
    "timeout",
)
_NO_WORDS = ("null", "none")
"""What some servers write in every chunk where a null is due."""


def is_no_word(word: str) -> bool:
    """Whether the word says that the answer has not finished."""
    return _plain(word) in _NO_WORDS


def bounded(word: str) -> str:
    """A provider's word as it is kept: what is longer than a word ever is, is cut."""
    return well_formed(word[:_LONGEST])


def in_our_words(word: str | None) -> str | None:
    """The word of `worker.codecs.events.Completed` for a provider's word; its own where we have none."""
    return None if word is None else _OURS.get(_plain(word), word)


def means_error(word: str | None) -> bool:
    """Whether the word stands for an error, so that the same request may succeed later."""
    return word is not None and _plain(word) in _PLAIN_ERRORS


def lets_tools_run(word: str | None) -> bool:
    """Whether tool calls of an answer that finished so may be whole. None: its end mark alone came."""
    return word is None or _plain(word) in _OURS


def _plain(word: str) -> str:
    return "".join(letter for letter in word.lower() if letter not in "-_ ").removeprefix("finishreason")


_OURS = {_plain(word): meaning for meaning, words in _MEANINGS.items() for word in words}
_PLAIN_ERRORS = frozenset(map(_plain, _ERRORS))
