"""Standard base64, read strictly.

What belongs here: the one way in which bytes are written as text. What must not be known here: what they are.
"""

import base64
import binascii


def to_base64(data: bytes) -> str:
    """The bytes as standard base64, padded, on one line."""
    return base64.b64encode(data).decode("ascii")


def from_base64(text: str) -> bytes:
    """The bytes of a text that `to_base64` gives. Raises ValueError for any other spelling, without repeating it.

    A lenient decoder drops what it does not know, and reads bits after the last byte as nothing: then two texts would
    stand for the same bytes, and another library might read others.
    """
    try:
        data = base64.b64decode(text.encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError):
        raise ValueError("not standard base64") from None
    if to_base64(data) != text:
        raise ValueError("not standard base64")
    return data
