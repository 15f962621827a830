"""The calls of a turn, one after the other: which one is next, what it carries, and sending it.

What belongs here: the number of a call, the waiting messages that it takes along, what its first attempt begins with.
What must not be known here: what becomes of a call (`call`), what came before it (tools, compaction).
"""

from dataclasses import replace
from functools import partial

from worker.turn import verdict
from worker.turn.asking import request_to
from worker.turn.call import Call
from worker.turn.commands import AskInbox, Command, CommitCall, OpenCall
from worker.turn.events import InboxMessage
from worker.turn.facts import Joined
from worker.turn.start import CallTerms, TurnStart
from worker.turn.states import State
from worker.turn.transcript import Transcript
from worker.turn.usage import Tally


class Calls:
    """The calls so far, and the next one.

    `current`: the call that is waited for. `opened`: how many there were so far, with those of other drivers. `state`:
    JOINING while the inbox is asked, else that of the call when it was opened.

    A message that joins the turn is carried by a new call; the transcript shows it to the model from then on, and it
    stands once that call has completed.
    """

    def __init__(self, start: TurnStart, terms: CallTerms, tally: Tally, transcript: Transcript) -> None:
        self.current: Call | None = None
        self.state = State.READY
        self.opened = start.progress.calls
        self._start = start
        self._terms = terms
        self._tally = tally
        self._transcript = transcript
        number, is_new = self.next()
        transcript.carried = () if is_new else tuple(each for each in start.carried if each.call == number)

    def next(self) -> tuple[int, bool]:
        """Number of the next call, and whether it is new; else the next attempt of one that was opened before."""
        last = self._transcript.last
        number = last.call + 1 if last is not None else 1
        return number, number > self._start.progress.call and (self.current is None or self.current.number < number)

    def preferred(self) -> str:
        """Name of the provider that answered last; empty: none has."""
        return "" if self._transcript.last is None else self._transcript.last.provider

    def begin(self, now: float, *, draining: bool) -> list[Command]:
        """Send the next attempt; where messages may join with it, ask for them first."""
        return self._ask() if self._may_join() else self.open(now, draining=draining)

    def open(self, now: float, messages: tuple[InboxMessage, ...] = (), *, draining: bool) -> list[Command]:
        """Send the next attempt. `messages`: those that join with it; what a call carries that was opened stays."""
        number, is_new = self.next()
        if is_new:
            self._transcript.carried = tuple(Joined(number, message.turn, message.text) for message in messages)
        request = partial(request_to, self._start, self._transcript)
        call = Call(number, request, self._terms, self._tally, draining=draining)
        if is_new:
            self.opened += 1
            carries = tuple(message.turn for message in messages)
            first = call.open(1, 0, now, preferred=self.preferred())
            commands = [replace(each, carries=carries) if isinstance(each, OpenCall) else each for each in first]
        elif self.current is not None:  # the provider said that it was too long: the same call once more, made shorter
            commands = call.open_after(self.current, now)
        else:  # a driver that came before had opened it; its attempts and resumes are not forgotten
            progress = self._start.progress
            commands = call.open(
                progress.attempt + 1,
                progress.resumes_spent,
                now,
                streamed=progress.streamed,
                preferred=progress.provider or self.preferred(),
                died=progress.died,
                before=progress.provider,
            )
        self.current, self.state = call, call.state
        return commands

    def look_again(self) -> list[Command]:
        """The call could not be opened as it was, and nothing was recorded or sent: ask for the messages anew."""
        self.current = None
        self.opened -= 1
        self._transcript.carried = ()
        return self._ask()

    def completed(self, commands: list[Command]) -> list[Command]:
        """The current call has completed by these commands: what it carried stands with it."""
        self.current = None
        joined = self._transcript.carried
        return [replace(each, joined=joined) if isinstance(each, CommitCall) else each for each in commands]

    def _ask(self) -> list[Command]:
        self.state = State.JOINING
        return [AskInbox()]

    def _may_join(self) -> bool:
        """A new call, after tools, of a turn that takes any."""
        last = self._transcript.last
        had_tools = last is not None and bool(last.tool_calls) and not verdict.is_empty(last)
        return self._start.joins and had_tools and self.next()[1]
