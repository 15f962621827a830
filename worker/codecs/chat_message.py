"""A whole message in a chunk, where a delta was due, as the delta that it stands for.

What belongs here: what of a message was said before. What must not be known here: chunks, what a delta adds.

Some servers send the whole message at the end, or all of it so far in every chunk. What the deltas said stands: the
message adds what they lacked, and must not contradict them.
"""

from typing import NamedTuple

from worker.codecs.chat_fields import REASONING_FIELDS, ToolPiece
from worker.codecs.limits import RuleBrokenError
from worker.codecs.toolargs import SaidCall, parse_arguments


class CallRest(NamedTuple):
    """What a message adds to the call at `place`."""

    place: int
    call_id: str | None
    name: str | None
    rest: str


def unsaid(message: dict[str, object], content: str, refusal: str, *, has_reasoned: bool) -> dict[str, object]:
    """The delta that is left of `message` after what was said: `content`, `refusal`, reasoning. Tool calls are kept.

    Raises RuleBrokenError for a message that contradicts it.
    """
    delta = dict(message)
    if content:
        delta["content"] = _rest("content", content, _text_of(message.get("content")))
    if refusal:
        delta["refusal"] = _rest("refusal", refusal, message.get("refusal"))
    if has_reasoned:
        delta = {key: value for key, value in delta.items() if key not in REASONING_FIELDS}
    return delta


def unsaid_of_calls(given: list[ToolPiece], said: list[SaidCall]) -> list[CallRest]:
    """What the calls of a message add to those that were said, call by call.

    Raises RuleBrokenError where they contradict them, or are more.
    """
    if len(given) > len(said):
        raise _changed("tool_calls")
    rests = [_rest_of_call(position, *call, said) for position, call in enumerate(given)]
    if len({rest.place for rest in rests}) < len(rests):  # which of them is whose, nobody knows
        raise _changed("tool_calls")
    return rests


def _rest_of_call(  # noqa: PLR0913, PLR0917 - the four are one piece
    position: int, index: int | None, call_id: str | None, name: str | None, whole: str, said: list[SaidCall]
) -> CallRest:
    place = _place(position, call_id, index, said)
    if name and said[place].name not in (None, name):
        raise _changed("tool_calls")
    return CallRest(place, call_id, name, _rest_of_arguments(said[place].arguments, whole))


def _place(position: int, call_id: str | None, index: int | None, said: list[SaidCall]) -> int:
    """By its id; else by an index that one call alone has; else by its position."""
    by_id = [place for place, call in enumerate(said) if call_id and call.call_id == call_id]
    by_index = [place for place, call in enumerate(said) if call.order == index]
    return next((found[0] for found in (by_id, by_index) if len(found) == 1), position)


def _rest_of_arguments(said: str, whole: str) -> str:
    if not whole.strip():
        return ""
    if whole.startswith(said):
        return whole[len(said) :]
    parsed = parse_arguments(said)
    if parsed is None or parsed != parse_arguments(whole):
        raise _changed("tool_calls")
    return ""


def _rest(field: str, said: str, whole: object) -> object:
    if not isinstance(whole, str):
        return whole  # of the wrong type, or null
    if whole.startswith(said):
        return whole[len(said) :]
    if not whole or whole.strip() == said.strip():
        return None
    raise _changed(field)


def _text_of(content: object) -> object:
    """The text of a message's content, where it is a list of parts."""
    if not isinstance(content, list):
        return content
    texts = [part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "text"]
    return "".join(text for text in texts if isinstance(text, str))


def _changed(field: str) -> RuleBrokenError:
    message = f"chat chunk: choices[].message.{field} must be what the deltas said, and perhaps more"
    return RuleBrokenError("message_changed", message)
