"""The command port of the worker: how everything outside asks for a turn, and answers what a turn asks.

What belongs here: checking what was said, and durable before anyone is told. What must not be known here: channels,
Celery.
"""

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import get_args

import redis.asyncio

from worker import ids
from worker.errors import ConfigurationError, LastwordError, StoreUnavailable
from worker.observability import info, warn
from worker.output.approvals import REFUSALS, Refusal
from worker.settings import WorkerSettings
from worker.store import approvals, cancels, inbox, pending
from worker.store.approvals import Resolution
from worker.store.cancels import Cancellation
from worker.store.inbox import OnBusy, Submitted, Terms
from worker.store.records import read_turn
from worker.store.repeat import UNANSWERED, until_answered

MAX_PROMPT_BYTES = 1_000_000
MAX_LABELS = 32
MAX_LABEL_CHARACTERS = 200
MAX_KEY_CHARACTERS = 200
MAX_PERSON_CHARACTERS = 200
_LABEL = re.compile(r"[A-Za-z0-9_.:/-]{1,64}")

_NO_TURN = "turn {} is not known: it was never submitted here, or its keep_s is over"
_REPLAYABLE = ("dead", "failed", "incomplete", "cancelled")
"""The outcomes of turns that left someone without the whole answer."""

_OPTION = re.compile(r"[a-z][a-z0-9_]{0,63}")


class ApprovalRefused(LastwordError):
    """An answer to an approval request does not count. `code`: which refusal; the message is for a person."""

    def __init__(self, code: Refusal) -> None:
        super().__init__(REFUSALS[code])
        self.code: Refusal = code


class TurnNotFound(ConfigurationError):
    """There is no such turn, or not any more. The message names it."""


async def submit(  # noqa: PLR0913 - what a turn consists of, each by its name
    settings: WorkerSettings,
    client: redis.asyncio.Redis,
    *,
    prompt: str,
    source: str,
    wake: Callable[[str], None],
    agent: str = "default",
    session: str | None = None,
    labels: Mapping[str, str] | None = None,
    destinations: Sequence[str] = (),
    idempotency_key: str | None = None,
    watch_s: float = 0,
    requester: str | None = None,
    joins: bool = False,
    on_busy: OnBusy | None = None,
    interrupts: str | None = None,
    terms: Terms | None = None,
) -> Submitted:
    """Make a turn durable, then wake a turns process with `wake(session)`.

    `destinations`: names or URLs that the channels understand. `watch_s`: seconds for which live readers are
    expected from the start. `requester`: who alone may decide what the turn asks; None: anybody may. Submitting again
    with the same `idempotency_key` gives the same turn.

    `joins`: for chats: the message may join a turn that runs, after its tools, if that one was submitted so too; its
    own turn then ends as `merged`. `on_busy`: where another turn of the session runs or waits: `queue` waits behind it,
    `reject` raises `inbox.SessionBusy`, `interrupt` cancels the one at the head of the queue and waits behind the
    others; None: as the setting `turns.on_busy` says. `interrupts`: the agent whose turns alone may be cancelled so;
    None: those of all; where another one's is at the head, `inbox.InterruptBarred` is raised. Raises
    `ConfigurationError` for bad input and `inbox.IdempotencyConflict` for a key that stands for another message.
    `terms`: how long a key stands, and how many turns are taken; None: for a day, and any number. Above that it raises
    `inbox.QuotaSpent`.
    """
    session, labels = ids.new_session() if session is None else session, dict(labels or {})
    _check(settings, prompt, agent=agent, session=session, labels=labels, key=idempotency_key, requester=requester)
    new = inbox.NewTurn(
        turn=ids.new_turn(ids.partition_of_session(session, settings.partitions)),
        session=session,
        message=prompt,
        agent=agent,
        source=source,
        labels=labels,
        destinations=tuple(destinations),
        idempotency_key=idempotency_key,
        deadline_s=settings.turns.turn_deadline_s,
        watch_s=watch_s,
        requester=requester,
        joins=joins,
        on_busy=_on_busy(settings, on_busy),
        interrupts=interrupts,
        terms=terms or Terms(),
    )
    return await _stored(settings, client, new, wake)


async def _stored(
    settings: WorkerSettings, client: redis.asyncio.Redis, new: inbox.NewTurn, wake: Callable[[str], None]
) -> Submitted:
    await _ensure_meta(client, settings.partitions)
    keep_s = round(settings.turns.keep_s)
    submitted = await inbox.submit(client, new, settings.partitions, retention_s=keep_s)
    if submitted.interrupted is not None:
        info("turn_interrupted", turn=submitted.interrupted, session=submitted.session, by=submitted.turn)
    await _wake(wake, submitted.turn, submitted.session)
    return submitted


def _on_busy(settings: WorkerSettings, chosen: str | None) -> OnBusy:
    words: dict[str, OnBusy] = {word: word for word in get_args(OnBusy)}
    word = chosen if chosen is not None else settings.turns.on_busy
    if word not in words:
        raise ConfigurationError(f"on_busy {word[:80]!r} is none of {', '.join(words)}: choose one of these")
    return words[word]


async def replay_turn(
    settings: WorkerSettings,
    client: redis.asyncio.Redis,
    *,
    turn: str,
    wake: Callable[[str], None],
    force: bool = False,
) -> Submitted:
    """Ask the message of a turn that has ended anew, as a fresh turn at the end of its session's queue.

    Agent, labels, destinations and requester stay the same. A turn has one replay, however often it is asked for; to
    try once more, replay that one. `force`: also a turn that has its answer. Raises `ConfigurationError` for a turn
    that is not known, has not ended, or has its answer.
    """
    record = await read_turn(client, turn)
    if record is None:
        raise ConfigurationError(f"turn {turn} is not known: it was never submitted here, or its keep_s is over")
    if record.state != "sealed":
        raise ConfigurationError(f"turn {turn} is {record.state}: only a turn that has ended can be replayed")
    if record.outcome not in _REPLAYABLE and not force:
        fix = "to have its message answered once more, use --force (force=True)"
        raise ConfigurationError(f"turn {turn} ended as {record.outcome}: {fix}")
    fresh = ids.replay_of(turn)
    if await read_turn(client, fresh) is not None:
        return Submitted(fresh, record.session, duplicate=True)
    _check(settings, record.message, agent=record.agent, session=record.session, labels=record.labels)
    submitted = await inbox.submit(
        client,
        inbox.NewTurn(
            turn=fresh,
            session=record.session,
            message=record.message,
            agent=record.agent,
            source=record.source,
            labels=record.labels,
            destinations=record.destinations,
            idempotency_key=None,
            deadline_s=settings.turns.turn_deadline_s,
            requester=record.requester,
            replay_of=turn,
        ),
        settings.partitions,
    )
    await _wake(wake, submitted.turn, submitted.session)
    return submitted


async def resolve_approval(  # noqa: PLR0913 - an answer consists of these
    settings: WorkerSettings,
    client: redis.asyncio.Redis,
    *,
    approval: str,
    option: str,
    by: str,
    wake: Callable[[str], None],
) -> Resolution:
    """Answer an approval request, then wake a turns process with `wake(session)`.

    When this returns, the answer is on disk and counts; the same answer by the same person gives the same result again.
    `option`: key of the chosen option. `by`: who decides, as the channel that submitted the turn names people. Raises
    `ApprovalRefused` when the answer does not count, and `ConfigurationError` for bad input.
    """
    if not _OPTION.fullmatch(option):
        raise ConfigurationError(f"option {option[:80]!r} is no option's key: use one that the request offers")
    _check_person("by", by)
    place = ids.parse_approval(approval)
    if place is None or (ids.partition_of(place[0]) or 0) >= settings.partitions:
        raise ApprovalRefused("no_history")
    answer = await approvals.resolve(client, approval, option, by)
    if isinstance(answer, str):
        raise ApprovalRefused(answer)
    await _wake(wake, answer.turn, answer.session)
    return answer


async def cancel_turn(
    settings: WorkerSettings, client: redis.asyncio.Redis, *, turn: str, by: str, wake: Callable[[str], None]
) -> Cancellation:
    """Ask for the end of a turn, then wake a turns process with `wake(session)`: the session may go on.

    `by`: who wants it, as the channel names people. When this returns, the request is on disk: no call and no tool of
    the turn starts any more, and the turn ends `cancelled`, unless the answer shows that it had ended (or its whole
    answer was committed) before. Asking again changes nothing. Raises `TurnNotFound`, `ConfigurationError` for bad
    input, and `StoreUnavailable`.
    """
    _check_person("by", by)
    if (ids.partition_of(turn) or 0) >= settings.partitions:
        raise TurnNotFound(_NO_TURN.format(turn[:80]))
    answer = await cancels.cancel(client, turn, by, round(settings.turns.keep_s))
    if answer is None:
        raise TurnNotFound(_NO_TURN.format(turn))
    info("turn_cancel", turn=turn, session=answer.session, state=answer.state, outcome=answer.outcome)
    if answer.state in ("cancelled", "cancelling"):
        await _wake(wake, turn, answer.session)
    return answer


async def list_approvals(client: redis.asyncio.Redis, partitions: int) -> list[pending.PendingApproval]:
    """The approval requests that wait for a person, the one that expires first before all others."""
    return await pending.find_all(client, partitions)


async def _wake(wake: Callable[[str], None], turn: str, session: str) -> None:
    try:
        await asyncio.to_thread(wake, session)  # a broker that is silent must not stop the loop
    except Exception as error:  # noqa: BLE001 - whatever the broker says: it is durable, and the sweeper finds it
        warn("wake_up_not_sent", turn=turn, error=type(error).__name__)


async def _ensure_meta(client: redis.asyncio.Redis, partitions: int) -> None:
    limit = monotonic() + inbox.PATIENCE_S
    try:
        await until_answered(lambda: inbox.ensure_meta(client, partitions), lambda: monotonic() < limit)
    except UNANSWERED as error:
        raise StoreUnavailable(
            f"Redis did not answer within {inbox.PATIENCE_S:.0f} s; nothing was stored: submit it again"
        ) from error


def _check(  # noqa: PLR0913 - see submit
    settings: WorkerSettings,
    prompt: str,
    *,
    agent: str,
    session: str,
    labels: Mapping[str, str],
    key: str | None = None,
    requester: str | None = None,
) -> None:
    if requester is not None:
        _check_person("requester", requester)
    _check_text("prompt", prompt)
    size = len(prompt.encode())
    if not prompt.strip():
        raise ConfigurationError("prompt is empty: give the message that the agent should answer")
    if size > MAX_PROMPT_BYTES:
        raise ConfigurationError(f"prompt has {size} bytes: at most {MAX_PROMPT_BYTES} are taken; shorten it")
    settings.agent(agent)
    if not ids.is_session(session):
        rule = "use 1 to 200 printable characters without spaces or any of {}*?[]\\"
        raise ConfigurationError(f"session {session[:80]!r} is no session id: {rule}")
    if len(labels) > MAX_LABELS:
        raise ConfigurationError(f"labels: {len(labels)} given, at most {MAX_LABELS} are taken")
    for name, value in labels.items():
        if not _LABEL.fullmatch(name):
            raise ConfigurationError(f"label name {name[:80]!r}: use 1 to 64 of the characters A-Z a-z 0-9 _ . : / -")
        _check_text(f"label {name!r}", value)
        if len(value) > MAX_LABEL_CHARACTERS:
            raise ConfigurationError(
                f"label {name}: its value has {len(value)} characters, at most {MAX_LABEL_CHARACTERS} are taken"
            )
    _check_text("idempotency_key", key or "")
    if key is not None and not 1 <= len(key) <= MAX_KEY_CHARACTERS:
        raise ConfigurationError(f"idempotency_key has {len(key)} characters: use 1 to {MAX_KEY_CHARACTERS}")


def _check_person(field: str, name: str) -> None:
    _check_text(field, name)
    if not (1 <= len(name) <= MAX_PERSON_CHARACTERS and name.isprintable() and name == name.strip()):
        rule = f"use 1 to {MAX_PERSON_CHARACTERS} printable characters, without blanks at the ends"
        raise ConfigurationError(f"{field} {name[:80]!r} names nobody: {rule}")


def _check_text(field: str, text: str) -> None:
    """Text that came as bytes of another encoding holds halves of surrogate pairs, which no receiver can read."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ConfigurationError(f"{field}: character {error.start} is no valid text: send UTF-8") from None
