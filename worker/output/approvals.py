"""Approvals as people meet them: what can be answered, and what they are told when an answer does not count.

What belongs here: the keys and words of options and refusals; they are part of the wire form. What must not be known
here: who may answer, where requests are stored.
"""

from typing import Literal

from worker.output.events import ApprovalOption

APPROVE_ONCE = "approve_once"
APPROVE_SESSION = "approve_session"
DENY = "deny"
EXPIRED = "expired"
"""What stands in place of an option's key where nobody decided in time. Never offered."""

OPTIONS = (
    ApprovalOption(key=APPROVE_ONCE, label="Approve once"),
    ApprovalOption(key=APPROVE_SESSION, label="Approve for this session"),
    ApprovalOption(key=DENY, label="Deny"),
)
"""What a person may answer."""

Refusal = Literal["prompt_expired", "wrong_requester", "option_unavailable", "persist_failed", "no_history"]
"""Why an answer does not count."""

REFUSALS: dict[Refusal, str] = {
    "prompt_expired": "This request waits for no answer any more: it was decided, its time is over, or its turn ended.",
    "wrong_requester": "Only the person whose message the turn answers may decide this request.",
    "option_unavailable": "This request does not offer that option: choose one that it shows.",
    "persist_failed": "The answer could not be stored, or perhaps was without word of it: give the same answer again.",
    "no_history": "There is no such request here: it was never made, or its turn is kept no more.",
}
"""Each refusal in words for a person."""

EXPIRY = "An approval request has expired: nobody decided in time, so its tool call counts as refused."
"""The notice of an expiry."""
