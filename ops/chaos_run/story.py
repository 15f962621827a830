"""What every message of a run is answered with: a function of the seed, the message, the call and the attempt alone.

What belongs here: which session and wire format a message has, what each call says, where a provider fails. What must
not be known here: processes, files, time, what came of it.

A request names its message in words (`message 17.`), and how many answers follow these words says which of its calls
it asks for. So calls of any number of turns may interleave and be asked again at any time. Each attempt of a call has
words of its own, and each word says which attempt it belongs to: `rofi⟨17.2.1.4⟩` is the fourth word of the first
attempt of call 2 of message 17. What is glued together, lost or mixed up can be seen.

A provider fails in the first two attempts of a call at most, so every turn can be completed.
"""

import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from channels.rehearsal.cues import Cue
from channels.rehearsal.steps import (
    FOREVER,
    Call,
    CallTool,
    Cut,
    Done,
    Finish,
    KeepAlive,
    Page,
    Pause,
    Reset,
    Say,
    SendError,
    Stall,
    Step,
    Truncate,
)
from channels.rehearsal.wire import Question, RequestRefused

WIRES = ("chat", "responses", "anthropic")
TOOLS = ("book", "look")
"""What the model may call: the first must not run twice, the second may."""

SESSION_TURNS = 3
FAULTS = (
    "stall",
    "silence",
    "keepalives",
    "reset",
    "cut",
    "cut_at_the_end",
    "truncated",
    "error",
    "503",
    "429",
    "held",
)
_FAULTY_ATTEMPTS = 2
_FAULT_SHARE = 0.2
_SHARED_SESSIONS = 0.3
_MESSAGE = re.compile(r"message (\d+)\.")
_SYLLABLES = ("ba", "di", "fo", "gu", "ka", "lé", "mö", "ña", "ro", "si", "тю", "日", "🙂")


@dataclass(frozen=True, slots=True)
class Plan:
    """What belongs to one message. `tools`: for each call, those that it asks for; the last one asks for none."""

    number: int
    session: str
    wire: str
    tools: tuple[tuple[str, ...], ...]

    @property
    def prompt(self) -> str:
        """The words of the message."""
        return f"Answer message {self.number}."


def plan_of(seed: int, number: int) -> Plan:
    """The plan of a message. Neighbours share a session now and then."""
    group = number // SESSION_TURNS
    of_group, own = random.Random(f"{seed}/session/{group}"), random.Random(f"{seed}/message/{number}")
    session = f"chaos-{seed}-{group}" if of_group.random() < _SHARED_SESSIONS else f"chaos-{seed}-{group}-{number}"
    calls = own.choice((1, 2, 2, 3, 4))
    asked = [tuple(own.choices(TOOLS, k=own.choice((1, 1, 2)))) for _ in range(calls - 1)]
    return Plan(number, session, of_group.choice(WIRES), (*asked, ()))


class Story:
    """Answers each request of a run: what `StandIn` asks for its calls."""

    models: tuple[str, ...] = ()

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._asked: Counter[tuple[int, int]] = Counter()

    def next(self, question: Question) -> Cue:
        """The next attempt of the call that is asked for. Raises RequestRefused for a question of no message."""
        named = _MESSAGE.search(question.message)
        if named is None:
            raise RequestRefused("the last user message is none of this run", code="no_message")
        number, call = int(named[1]), question.answers + 1
        plan = plan_of(self._seed, number)
        if call > len(plan.tools):
            raise RequestRefused(f"message {number} is answered in {len(plan.tools)} calls", code="story_over")
        self._asked[number, call] += 1
        return Cue(_answer(self._seed, plan, call, self._asked[number, call]), str(number), call)


def _answer(seed: int, plan: Plan, call: int, attempt: int) -> Call:
    chance = random.Random(f"{seed}/{plan.number}/{call}/{attempt}")
    tools = plan.tools[call - 1]
    is_silent = bool(tools) and chance.random() < 0.2
    text = "" if is_silent else _text(chance, f"{plan.number}.{call}.{attempt}")
    every_s = chance.uniform(0.02, 0.1)
    before: list[Step] = [Pause(chance.uniform(0, 0.3))]
    if chance.random() < 0.3:
        before.append(Say((_word(chance), " never to be delivered"), every_s, is_reasoning=True))
    says = [Say(_pieces(chance, text), every_s)] if text else []
    calls = [CallTool(name, _arguments(chance, name), every_s) for name in tools]
    fault = chance.choice(FAULTS) if attempt <= _FAULTY_ATTEMPTS and chance.random() < _FAULT_SHARE else None
    if fault is None:
        return Call((*before, *says, *calls))
    if fault in {"503", "429"}:
        return Call(page=_page(int(fault)))
    return Call((*before, *_faulty(fault, chance, plan.wire, says, calls)))


def _faulty(fault: str, chance: random.Random, wire: str, says: list[Say], calls: list[CallTool]) -> Sequence[Step]:
    """The steps of an answer that goes wrong; `held` is whole before, `cut_at_the_end` in chat sometimes."""
    begun = [Say(say.pieces[: chance.randint(1, len(say.pieces))], say.every_s) for say in says]
    if fault == "held":
        return [*says, *calls, Done(), Stall(FOREVER)]
    if fault == "cut_at_the_end":
        finish = [Finish("tool_calls" if calls else "stop")] if wire == "chat" and chance.random() < 0.5 else []
        return [*says, *calls, *finish, Cut()]
    if fault == "silence":
        return [Stall(FOREVER)]
    kind = "overloaded_error" if wire == "anthropic" else "server_error"
    breaks: dict[str, Step] = {
        "stall": Stall(FOREVER),
        "keepalives": KeepAlive(0.3, FOREVER, None),
        "reset": Reset(),
        "cut": Cut(),
        "truncated": Truncate(),
        "error": SendError({"message": "a rehearsed error", "type": kind, "code": None}, None),
    }
    return [*begun, breaks[fault]]


def _page(status: int) -> Page:
    headers = {"Retry-After": "1"} if status == 429 else {}
    return Page(status, headers, "application/json", None, f"rehearsed status {status}")


def _arguments(chance: random.Random, name: str) -> tuple[str, ...]:
    """JSON in pieces: how long the tool takes, in milliseconds."""
    whole = f'{{"wait_ms": {chance.randint(20, 500 if name == "book" else 300)}}}'
    at = chance.randint(1, len(whole) - 1)
    return whole[:at], whole[at:]


def _text(chance: random.Random, mark: str) -> str:
    """Words that say whose they are. White space at both ends is part of it."""
    words = [f"{_word(chance)}⟨{mark}.{number}⟩" for number in range(1, chance.randint(3, 14))]
    return chance.choice(("", "", "\n", " ")) + chance.choice((" ", " ", "\n\n")).join(words) + chance.choice(("", " "))


def _word(chance: random.Random) -> str:
    return "".join(chance.choices(_SYLLABLES, k=chance.randint(2, 3)))


def _pieces(chance: random.Random, text: str) -> tuple[str, ...]:
    """The text, cut anywhere into at most sixteen pieces."""
    cuts = sorted({chance.randint(1, len(text) - 1) for _ in range(15)})
    return tuple(text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True))
