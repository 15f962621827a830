"""The wire formats that Lastword speaks, by name.

What belongs here: which codec a name stands for. What must not be known here: what a codec does.
"""

from worker.codecs.anthropic_messages import AnthropicCodec
from worker.codecs.codec import Codec
from worker.codecs.limits import DEFAULT_LIMITS, Profile, StreamLimits
from worker.codecs.openai_chat import ChatCodec
from worker.codecs.openai_responses import ResponsesCodec
from worker.errors import ConfigurationError

WIRES: tuple[str, ...] = ("chat", "responses", "anthropic")
"""OpenAI's Chat Completions, OpenAI's Responses, Anthropic's Messages."""


def codec_of(wire: str, limits: StreamLimits = DEFAULT_LIMITS, profile: Profile = "compat") -> Codec:
    """The codec of the wire format called `wire`. Raises ConfigurationError for a name that is not in `WIRES`."""
    match wire:
        case "chat":
            return ChatCodec(limits, profile)
        case "responses":
            return ResponsesCodec(limits, profile)
        case "anthropic":
            return AnthropicCodec(limits, profile)
        case _:
            raise ConfigurationError(f"wire {wire!r} is not known: use {', '.join(WIRES[:-1])} or {WIRES[-1]}")
