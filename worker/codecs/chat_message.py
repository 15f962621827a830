"""A whole message in a chunk, where a delta was due, as the delta that it stands for.

What belongs here: what of a message was said before. What must not be known here: chunks, what a delta adds.

Some servers send the whole message at the end, or all of it so far in every chunk. What the deltas said stands: the
message adds what they lacked, and must not contradict them.
"""

from worker.codecs.chat_fields import REASONING_FIELDS
from worker.codecs.limits import RuleBrokenError


def unsaid(
    message: dict[str, object], content: str, refusal: str, *, has_reasoned: bool, calls: int
) -> dict[str, object]:
    """The delta that is left of `message` after what was said: `content`, `refusal`, reasoning, so many tool calls.

    Raises RuleBrokenError for a message that contradicts it.
    """
    delta = dict(message)
    if content:
        delta["content"] = _rest("content", content, _text_of(message.get("content")))
    if refusal:
        delta["refusal"] = _rest("refusal", refusal, message.get("refusal"))
    if has_reasoned:
        delta = {key: value for key, value in delta.items() if key not in REASONING_FIELDS}
    if calls:
        given = delta.pop("tool_calls", None)
        delta.pop("function_call", None)
        if isinstance(given, list) and len(given) > calls:
            raise _changed("tool_calls")
    return delta


def _rest(field: str, said: str, whole: object) -> object:
    if not isinstance(whole, str):
        return whole  # of the wrong type, or null
    if not whole or whole.strip() == said.strip():
        return None
    if not whole.startswith(said):
        raise _changed(field)
    return whole[len(said) :]


def _text_of(content: object) -> object:
    """The text of a message's content, where it is a list of parts."""
    if not isinstance(content, list):
        return content
    texts = [part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "text"]
    return "".join(text for text in texts if isinstance(text, str))


def _changed(field: str) -> RuleBrokenError:
    message = f"chat chunk: choices[].message.{field} must be what the deltas said, and perhaps more"
    return RuleBrokenError("message_changed", message)
