"""Signatures of the reasoning that a client may send back unchanged.

What belongs here: making and checking them. What must not be known here: wire formats.
A signature that was not made here is taken for granted: a script may have replayed another server's stream.
"""

import base64
import hashlib

_OURS = "c3RhbmQtaW4"


def signature_of(reasoning: str) -> str:
    """The signature of a text."""
    return _OURS + base64.b64encode(hashlib.sha256(reasoning.encode()).digest()).decode()


def is_forged(signature: str, reasoning: str) -> bool:
    """Whether a signature of ours is that of another text."""
    return signature.startswith(_OURS) and signature != signature_of(reasoning)
