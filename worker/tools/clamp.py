"""Results that are too long for a conversation.

What belongs here: shortening a text and saying so. What must not be known here: tools. Pure.
"""

import unicodedata

_JOINER = "\u200d"
_SKIN_TONES = range(0x1F3FB, 0x1F400)
_LONGEST_CLUSTER = 32
_LINE = "\n[... {} characters left out ...]\n"


def clamped(text: str, limit: int) -> str:
    """`text`, or both its ends with a line between them that says how much was left out; at most `limit` characters.

    `limit`: 100 or more. A letter keeps its accents, and an emoji its parts, on either side of the cut.
    """
    if len(text) <= limit:
        return text
    room = limit - len(_LINE.format(len(text)))
    start, end = (room + 1) // 2, len(text) - room // 2
    for _ in range(_LONGEST_CLUSTER):
        if start == 0 or not _joined(text, start):
            break
        start -= 1
    for _ in range(_LONGEST_CLUSTER):
        if end == len(text) or not _joined(text, end):
            break
        end += 1
    return text[:start] + _LINE.format(end - start) + text[end:]


def _joined(text: str, at: int) -> bool:
    """Whether the characters before and after `at` are one for a reader."""
    before, after = text[at - 1], text[at]
    return (
        unicodedata.category(after).startswith("M")
        or _JOINER in (before, after)
        or ord(after) in _SKIN_TONES
        or (before == "\r" and after == "\n")
    )
