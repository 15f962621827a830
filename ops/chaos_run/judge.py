"""What is right, and what is not: from the provider's transcript, the receiver's file and the tools' ledger alone.

What belongs here: the verdict over the records of a run. What must not be known here: files, processes, Redis.

**The right text of a turn** is the text of its calls, one attempt of each, in order. Which attempt of a call counts is
decided by a commit, which only the product sees; but what it committed it has to show:

- Every request for a later call shows the answers before it. So for each call but the last, the attempt that counts is
  the one whose text stands in the requests behind it. It must be one that the provider sent completely, with the same
  tool calls; and all requests of the turn, whichever process they come from, must show the same.
- Behind the last call there is no request. A process may die between the end of a stream and the commit; then the call
  is asked again, and either answer may be the one that was committed. So any attempt of the last call that was sent
  completely is right, and no other.

An attempt without a finish reason has died, however much of it was sent. `earlier` turns of a session must be shown
with the text that was delivered for them.

**A live reader** must be left with the text that was delivered, with nothing that still runs, and have got every output
once, in order.

**A repeated POST** is right where the sender cannot know of the answer: it, or the store that it writes the answer to,
was killed or frozen between the first POST and the repeat. Any other is `unexplained_duplicates`. All POSTs of one
message tell the same end, even where two would be right: else they are `contradictions`.

**A tool** may run for an answer that counts, and for no other.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

from ops.chaos_run.records import Exchange, Post, Reading, Records, Run, Strike

STORE = "valkey"
MUST_NOT_REPEAT = "book"
UNKNOWN = "outcome is unknown"
"""What the model is told of a tool call that may have run."""

_MARK = re.compile(r"⟨(\d+)\.(\d+\.\d+)\.\d+⟩")


@dataclass(slots=True)
class Verdict:
    """The figures of a run. `findings`: a sentence for each thing that is wrong, with the number of its message.

    `takeovers`: requests of a turn that came from another process than the one before them, be it after a death, a
    freeze or a drain; who took a turn over and had nothing to ask is not counted.
    """

    turns: int
    completed: int = 0
    failed: int = 0
    dead: int = 0
    lost: int = 0
    partial: int = 0
    wrong_text: int = 0
    wrong_history: int = 0
    wrong_readings: int = 0
    duplicate_deliveries: int = 0
    unexplained_duplicates: int = 0
    duplicate_ids: int = 0
    contradictions: int = 0
    bad_signatures: int = 0
    tool_calls_twice: int = 0
    wrong_results: int = 0
    unasked_tool_runs: int = 0
    unknown_outcomes: int = 0
    tool_runs: int = 0
    requests: int = 0
    takeovers: int = 0
    findings: list[str] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        """Nothing was found, and every turn was completed."""
        return not self.findings and self.completed == self.turns

    def figures(self) -> dict[str, Any]:
        """All but the findings."""
        return {name: value for name, value in asdict(self).items() if name != "findings"}

    def find(self, figure: str, sentence: str) -> None:
        """Something is wrong."""
        setattr(self, figure, getattr(self, figure) + 1)
        self.findings.append(f"{figure}: {sentence}")


def judge(records: Records) -> Verdict:
    """The verdict over a run."""
    verdict = Verdict(records.messages, requests=len(records.exchanges))
    exchanges: dict[int, list[Exchange]] = defaultdict(list)
    posts: dict[int, list[Post]] = defaultdict(list)
    readings = {reading.message: reading for reading in records.readings}
    for exchange in sorted(records.exchanges, key=lambda each: each.n):
        exchanges[exchange.message].append(exchange)
    for post in records.posts:
        if post.message is None or not 0 <= post.message < records.messages:
            verdict.find("wrong_text", f"a POST for no message of this run ({post.message})")
        else:
            posts[post.message].append(post)
    for message in range(records.messages):
        _judge_end(verdict, message, exchanges[message], posts[message])
        _judge_repeats(verdict, message, posts[message], records.strikes)
        if message in records.read:
            _judge_reading(verdict, message, readings.get(message), posts[message])
        verdict.takeovers += _changes([each.process for each in exchanges[message]])
    _judge_tools(verdict, records, exchanges, posts)
    for session in records.sessions:
        _judge_history(verdict, session, exchanges, posts)
    return verdict


def _judge_end(verdict: Verdict, message: int, exchanges: Sequence[Exchange], posts: Sequence[Post]) -> None:
    if not any(post.is_acknowledged for post in posts):
        verdict.find("lost", f"message {message}: {len(posts)} POSTs, none of them acknowledged")
        return
    outcomes = {post.outcome for post in posts}
    if outcomes == {"completed"}:
        verdict.completed += 1
    else:
        figure = "dead" if "dead" in outcomes else "failed"
        verdict.find(figure, f"message {message} ended {', '.join(sorted(outcomes))}")
    right, fault = right_texts(exchanges)
    if fault is not None:
        verdict.find("wrong_text", f"message {message}: {fault}")
        return
    for text in {post.text for post in posts if post.outcome == "completed"} - right:
        verdict.find(_kind_of(text, message, right), f"message {message}: delivered {text!r}, right: {sorted(right)!r}")
        break


def right_texts(exchanges: Sequence[Exchange]) -> tuple[set[str], str | None]:
    """The texts that may have been delivered for a turn, and what is wrong with its requests, if anything is."""
    last = max((each.call for each in exchanges), default=0)
    committed = ""
    for call in range(1, last):
        shown = {(each.history[call - 1].text, *each.history[call - 1].calls) for each in exchanges if each.call > call}
        if len(shown) > 1:
            return set(), f"its requests show {len(shown)} different answers of call {call}"
        (answer,) = shown
        sent = {(each.text, *each.tools) for each in exchanges if each.call == call and each.is_complete}
        if answer not in sent:
            return set(), f"its requests show an answer of call {call} that the provider never completed: {answer!r}"
        committed += answer[0]
    ends = {each.text for each in exchanges if each.call == last and each.is_complete and not each.tools}
    return {committed + text for text in ends}, None


def _kind_of(text: str, message: int, right: set[str]) -> str:
    """`partial`: a part of what is right, or with words of an attempt of the same turn that does not count."""
    counts = {mark for each in right for mark in _MARK.findall(each)}
    has_dead = any(of == str(message) and (of, attempt) not in counts for of, attempt in _MARK.findall(text))
    return "partial" if has_dead or any(text in each for each in right) else "wrong_text"


def _judge_repeats(verdict: Verdict, message: int, posts: Sequence[Post], strikes: Sequence[Strike]) -> None:
    unsigned = sum(not post.is_signed for post in posts)
    if unsigned:
        verdict.find("bad_signatures", f"message {message}: {unsigned} POSTs without a valid signature")
    if len({(post.identity, post.turn) for post in posts}) > 1:
        verdict.find("duplicate_ids", f"message {message}: {len({post.identity for post in posts})} ids for one end")
    told = {(post.outcome, post.text) for post in posts}
    if len(told) > 1:
        verdict.find("contradictions", f"message {message}: its POSTs tell {len(told)} different ends")
    ordered = sorted(posts, key=lambda post: post.came)
    for number, repeat in enumerate(ordered):
        answered = [each for each in ordered[:number] if each.identity == repeat.identity and each.is_acknowledged]
        if not answered:
            continue
        verdict.duplicate_deliveries += 1
        if not any(_explains(strike, answered[-1], repeat) for strike in strikes):
            verdict.find("unexplained_duplicates", f"message {message}: {repeat.identity} again at {repeat.came:.1f} s")


def _explains(strike: Strike, answered: Post, repeat: Post) -> bool:
    meets = strike.at <= repeat.came and strike.until >= answered.came
    return meets and strike.process in {STORE, answered.process}


def _judge_reading(verdict: Verdict, message: int, reading: Reading | None, posts: Sequence[Post]) -> None:
    if reading is None:
        verdict.find("wrong_readings", f"message {message}: its live reader never saw its end")
        return
    delivered = {post.text for post in posts}
    if delivered != {reading.text} or reading.staged or reading.gaps:
        left = f"{reading.text!r}, {len(reading.staged)} characters that still run, {reading.gaps} gaps"
        verdict.find("wrong_readings", f"message {message}: its reader was left with {left}; delivered: {delivered!r}")


def _judge_tools(
    verdict: Verdict,
    records: Records,
    exchanges: dict[int, list[Exchange]],
    posts: dict[int, list[Post]],
) -> None:
    starts = Counter(run.key for run in records.runs if run.event == "start")
    ended = {run.key for run in records.runs if run.event == "end"}
    verdict.tool_runs = starts.total()
    for key in {run.key for run in records.runs if run.tool == MUST_NOT_REPEAT}:
        if starts[key] > 1:
            verdict.find("tool_calls_twice", f"{key} was started {starts[key]} times")
    for message, asked in exchanges.items():
        turn = next((post.turn for post in posts[message]), None)
        if turn is not None:
            _judge_results(verdict, message, turn, asked, ended)
            _judge_asked(verdict, message, turn, asked, records.runs)


def _judge_results(verdict: Verdict, message: int, turn: str, exchanges: Iterable[Exchange], ended: set[str]) -> None:
    """What the model was told of each tool call: its result, or, of a tool that must not repeat, that it is unknown."""
    names = {call: name for each in exchanges for call, name in each.tools.items()}
    told = {
        (call, index, identity, answer.results.get(identity, ""))
        for each in exchanges
        for call, answer in enumerate(each.history, 1)
        for index, identity in enumerate(answer.calls)
    }
    for call, index, identity, result in sorted(told):
        key = f"{turn}:{call}:{index}"
        if names.get(identity) == MUST_NOT_REPEAT and UNKNOWN in result:
            verdict.unknown_outcomes += 1
        elif result != f"done {key}" or key not in ended:
            verdict.find("wrong_results", f"message {message}: of {names.get(identity)} {key} it was told {result!r}")


def _judge_asked(verdict: Verdict, message: int, turn: str, exchanges: Sequence[Exchange], runs: Iterable[Run]) -> None:
    """No tool ran that the answers shown later, or the complete ones of the last call, had not asked for."""
    last = max(each.call for each in exchanges)
    names = {identity: name for each in exchanges for identity, name in each.tools.items()}
    answers = [(call, answer.calls) for each in exchanges for call, answer in enumerate(each.history, 1)]
    answers += [(last, list(each.tools)) for each in exchanges if each.call == last and each.is_complete]
    asked = {
        (f"{turn}:{call}:{index}", names.get(identity))
        for call, calls in answers
        for index, identity in enumerate(calls)
    }
    ran = {(run.key, run.tool) for run in runs if run.key.startswith(f"{turn}:")}
    for key, tool in sorted(ran - asked):
        verdict.find(
            "unasked_tool_runs", f"message {message}: {tool} {key} ran, and no answer that counts asked for it"
        )


def _judge_history(
    verdict: Verdict,
    session: Sequence[int],
    exchanges: dict[int, list[Exchange]],
    posts: dict[int, list[Post]],
) -> None:
    """The turns of a session, in the order in which they were submitted, with what was delivered for each."""
    delivered = [next((post.text for post in posts[message]), "") for message in session]
    for place, message in enumerate(session):
        for each in exchanges[message]:
            shown = ["".join(answer.text for answer in turn) for turn in each.earlier]
            if shown != delivered[:place]:
                verdict.find("wrong_history", f"message {message}: its request {each.n} shows {shown!r} before it")
                break


def _changes(names: Sequence[str]) -> int:
    return sum(before != after for before, after in pairwise(names))
