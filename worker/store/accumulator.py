"""ExecutionOutputAccumulator: the text of a turn under its four verbs, in Redis.

    stage    a view for those who watch, sent by the process's tick; unwatched turns send none
    commit   a call completed: its whole text is written at the marker, with its journal entry, usage and log entry
    discard  an attempt died: what it staged is void
    seal     the turn ends

Between calls it records tools and what people are asked, and gives a turn back: to a process (`release`) or to a person
who has to decide (`park`).

What belongs here: which script carries which verb, and what it is told. What must not be known here: what to do next
(the turn machine), numbering and repeating (`ops`), when to flush (`tick`).

Every verb is one atomic script, refused unless its sender owns the turn, and safe to repeat.
"""

from collections.abc import Callable, Sequence

import redis.asyncio

from worker import ids
from worker.errors import InboxChanged, LocalProtocolError
from worker.output.events import ApprovalRequestOutput, Outcome, Output, TextOutput, TextStreamDiscardedOutput
from worker.store import keys
from worker.store.joining import told_of, waiting_messages
from worker.store.journal import decode_decided, encode_committed, encode_fact, encode_failure, encode_totals
from worker.store.lease import Grant
from worker.store.ops import Flight, Ops
from worker.store.outputs import encode_output, encode_request, encode_text_at
from worker.store.records import RETENTION_S
from worker.store.script import Argument, Script
from worker.store.staged import Staged
from worker.turn.commands import Failure
from worker.turn.events import InboxMessage
from worker.turn.facts import ApprovalAsked, ApprovalDecided, Committed, Compacted, Joined, ToolEnded, ToolStarted
from worker.turn.usage import UsageTotals

_open_call = Script("worker.store", "open_call")
_commit = Script("worker.store", "commit")
_discard = Script("worker.store", "discard")
_tool_start = Script("worker.store", "tool_start")
_record_fact = Script("worker.store", "record")
_ask_approval = Script("worker.store", "ask_approval")
_park = Script("worker.store", "park")
_seal = Script("worker.store", "seal")
_release = Script("worker.store", "release")


class ExecutionOutputAccumulator:
    """The verbs of one granted turn.

    `still_mine`: whether the lease may still be ours; an op that Redis does not answer is repeated until it is false.
    `watched`: whether readers watch the turn; set it as the heartbeat learns it. `retention_s`: seconds.

    Every verb raises `Fenced`, `Rewound` or `TurnSealed`, those that let the turn go on also `TurnCancelled`, and
    `LocalProtocolError` for what the turn's state does not allow. `open_call`, `tool_start` and `ask_approval` also
    raise `StoreFull`. Outputs are given unnumbered.
    """

    def __init__(
        self,
        redis: redis.asyncio.Redis,
        grant: Grant,
        still_mine: Callable[[], bool],
        retention_s: int = RETENTION_S,
    ) -> None:
        self.turn = grant.turn
        self.marker = grant.marker
        self.watched = grant.watched
        self._session = grant.session
        self._retention_s = retention_s
        self._ops = Ops(redis, grant.turn, grant.nonce, grant.op, still_mine)
        self._attempt = (grant.progress.call, grant.progress.attempt) if grant.progress.is_open else None
        self._staged = Staged()
        self._sent_bytes = 0
        self._decisions = sum(isinstance(fact, ApprovalDecided) for fact in grant.facts)
        partition = keys.partition_of_turn(grant.turn)
        self._record = keys.turn_record(grant.turn)
        self._text = keys.text(grant.turn)
        self._open = keys.open_text(grant.turn)
        self._journal = keys.journal(grant.turn)
        self._approvals = keys.approvals(grant.turn)
        self._out = keys.out(grant.turn)
        self._log = keys.log(partition)
        self._due = keys.due(partition)
        self._waiting = keys.waiting(partition)
        self._queue = keys.queue(partition, grant.session)
        self._session_record = keys.session_record(partition, grant.session)

    async def open_call(  # noqa: PLR0913 - all that is kept of an attempt
        self,
        call: int,
        attempt: int,
        resumes_spent: int,
        is_new_call: bool,
        provider: str = "",
        *,
        streamed: bool = False,
        carries: Sequence[str] = (),
    ) -> None:
        """Record an attempt before its request is sent to `provider`. `streamed`: it goes on where content had come.

        `carries`: the turns whose messages are in the request of a new call. Raises `InboxChanged` when they do not
        stand behind this turn as `waiting_messages` told them; nothing was recorded then.
        """
        before, self._attempt = self._attempt, (call, attempt)  # at once: it may be open although no answer came
        try:
            rest: list[Argument] = [resumes_spent, int(is_new_call), provider, int(streamed), *carries]
            await self._ops.take(_open_call, [self._record, self._queue], (call, attempt), rest)
        except (LocalProtocolError, InboxChanged):
            self._attempt = before
            raise
        self._begin((call, attempt))

    async def waiting_messages(self) -> tuple[InboxMessage, ...]:
        """What may join this turn with its next call, in order."""
        return await waiting_messages(self._ops, self.turn, self._queue)

    async def check_wanted(self) -> None:
        """Raise `TurnCancelled` when somebody wants the turn to end: before a request of which no verb tells."""
        await self._ops.check_wanted(self._record)

    def stage_text(self, text: str) -> None:
        """Take a delta of the open attempt; memory only."""
        if self._attempt is None:
            raise LocalProtocolError(f"{self.turn}: a delta came while no attempt is open")
        if text:
            self._staged.add("d", text)

    def stage_thinking(self, text: str) -> None:
        """Take a thinking delta of the open attempt; memory only, and dropped when nobody watches."""
        if self.watched and text:
            self._staged.add("h", text)

    async def commit(
        self, fact: Committed, totals: UsageTotals, outputs: Sequence[Output], joined: Sequence[Joined] = ()
    ) -> None:
        """Let the completed call's text stand: the whole of it, whatever was staged.

        `joined`: the messages that the call carried, all of them; their turns end as merged in the same step.
        """
        self._staged = Staged()
        text = fact.text.encode()
        input_tokens = None if fact.usage is None else fact.usage.input_tokens
        rest: list[Argument] = [
            self.marker,
            text,
            encode_committed(fact, self.marker, len(text)),
            encode_totals(totals),
            "" if input_tokens is None else input_tokens,
            *told_of(joined, self.turn, self._session, self._retention_s),
        ]
        names = [self._record, self._text, self._open, self._journal, self._out, self._session_record, self._log]
        encoded = [self._encode(output, fact.text, len(text)) for output in outputs]
        reply = await self._ops.take(_commit, names, (fact.call, fact.attempt), [*rest, *encoded], logged=True)
        self.marker = int(reply[1])
        self._begin(None)

    async def discard(  # noqa: PLR0913 - all that is kept of a dead attempt
        self,
        call: int,
        attempt: int,
        totals: UsageTotals,
        outputs: Sequence[Output],
        *,
        resumes_spent: int | None = None,
        streamed: bool = False,
        died: str = "",
    ) -> None:
        """Make void what the attempt staged. Nothing is emitted when no attempt is open.

        `resumes_spent`: resumes of the call with the one that follows; None: the count stays as it is. `streamed`:
        content had come, in this attempt or in the one that it resumed; kept until a new call is opened. `died`: the
        provider that it died of, when another attempt follows; kept until that one is opened.
        """
        self._staged = Staged()
        names = [self._record, self._open, self._out, self._log]
        resumes: Argument = "" if resumes_spent is None else resumes_spent
        rest: list[Argument] = [encode_totals(totals), resumes, int(streamed), died, *map(encode_output, outputs)]
        await self._ops.take(_discard, names, (call, attempt), rest, logged=True)
        self._begin(None)

    async def tool_start(self, call: int, index: int, outputs: Sequence[Output]) -> None:
        """Record that a tool is about to run; when this returns, the record is on disk and the tool may start."""
        rest = [encode_fact(ToolStarted(call, index)), *map(encode_output, outputs)]
        await self._ops.take(_tool_start, [self._record, self._journal, self._out], (call, 0), rest, durable=True)

    async def record(self, fact: ToolEnded | Compacted, outputs: Sequence[Output]) -> None:
        """Record the result of a tool, or that the conversation was made shorter."""
        call = fact.call if isinstance(fact, ToolEnded) else fact.before_call
        rest = [encode_fact(fact), *map(encode_output, outputs)]
        await self._ops.take(_record_fact, [self._record, self._journal, self._out], (call, 0), rest)

    async def ask_approval(self, fact: ApprovalAsked, request: ApprovalRequestOutput, expire_s: float) -> None:
        """Ask a person; when this returns, the request is on disk and may be shown.

        `request.approval` is `ids.approval_of(turn, fact.call, fact.index)`; `request.expires_at_ms` is filled in by
        the store, whose clock counts: `expire_s` seconds from now. Nothing is asked twice.
        """
        if request.approval != ids.approval_of(self.turn, fact.call, fact.index):
            raise LocalProtocolError(f"{self.turn}: {request.approval[:80]!r} is no approval of this tool call")
        names = [self._record, self._journal, self._out, self._approvals, self._due, self._waiting, self._log]
        rest: list[Argument] = [
            encode_fact(fact),
            ids.approvals_of(self.turn),
            f"{fact.call}_{fact.index}",
            request.name,
            " ".join(option.key for option in request.options),
            request.attempt,
            round(expire_s * 1000),
            keys.DUE_APPROVAL + self.turn,
            encode_request(request),
        ]
        await self._ops.take(_ask_approval, names, (fact.call, 0), rest, logged=True, durable=True)

    async def park(self) -> tuple[ApprovalDecided, ...]:
        """Give the turn back until a person decides. Refused while an attempt is open, and when nobody was asked.

        What has been decided since the claim (or the last `park`) is returned instead, in order, and then nothing is
        given back. Empty: the turn is parked, and no verb of this owner counts any more.
        """
        rest: list[Argument] = [self._decisions, keys.DUE_LEASE + self._session]
        reply = await self._ops.take(_park, [self._record, self._approvals, self._due], (0, 0), rest)
        decisions = tuple(map(decode_decided, reply[2:]))
        self._decisions += len(decisions)
        return decisions

    async def seal(  # noqa: PLR0913, PLR0917 - all that a turn's end says
        self,
        outcome: Outcome,
        reason: str | None,
        failure: Failure | None,
        correlation_id: str,
        totals: UsageTotals,
        outputs: Sequence[Output],
    ) -> None:
        """End the turn and let the session go on. Refused while an attempt is open."""
        rest: list[Argument] = [
            keys.beginning(keys.partition_of_turn(self.turn)),
            self._session,
            outcome,
            reason or "",
            encode_failure(failure),
            correlation_id,
            encode_totals(totals),
            self._retention_s,
            *map(encode_output, outputs),
        ]
        await self._ops.take(_seal, [self._record, self._out], (0, 0), rest, logged=True)

    async def release(self) -> None:
        """Hand the turn over, due now; what is open is discarded in the same step and counts as no crash."""
        call, attempt = self._attempt or (0, 0)
        streamed = self._sent_bytes + self._staged.text_bytes()
        discarded = TextStreamDiscardedOutput(call=call, attempt=attempt, reason="drain", discarded_bytes=streamed)
        self._staged = Staged()
        names = [self._record, self._open, self._out, self._log, self._due]
        rest: list[Argument] = [keys.DUE_LEASE + self._session, int(streamed > 0), encode_output(discarded)]
        await self._ops.take(_release, names, (call, attempt), rest, logged=True)
        self._begin(None)

    def _begin(self, attempt: tuple[int, int] | None) -> None:
        self._attempt = attempt
        self._staged = Staged()
        self._sent_bytes = 0

    def _encode(self, output: Output, text: str, length: int) -> str:
        if not isinstance(output, TextOutput) or not output.is_call_boundary:
            return encode_output(output)
        if output.text != text:
            raise LocalProtocolError(
                f"{self.turn}: the boundary of call {output.call} carries another text than the call"
            )
        return encode_text_at(output, self.marker, length)

    # What the tick asks.

    def take_off(self) -> Flight | None:
        """The stage op that should be sent now; None while a verb is under way or nobody waits for anything."""
        if not self._ops.free():
            return None
        again = self._ops.take_off_again()
        if again is not None or not self.watched or self._attempt is None:
            return again
        runs = self._staged.cut()
        if not runs:
            return None
        payload = (self._sent_bytes, *(part for run in runs for part in run))
        self._sent_bytes += sum(len(piece) for kind, piece in runs if kind == "d")
        return self._ops.take_off((self._record, self._open, self._out), self._attempt, payload)

    def stage_args(self, flight: Flight) -> list[Argument]:
        """The arguments with which a flight is sent."""
        return self._ops.stage_args(flight)

    def land(self, answer: object) -> None:
        """What the tick heard of the flight: a reply, an exception, or None for nothing."""
        self._ops.land(answer)
