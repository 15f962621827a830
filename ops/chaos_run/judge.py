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

**A call that was answered completely** is asked again only where a strike explains that the answer was not committed
(`unexplained_requests`). Once a request for a later call has shown it, it was: then only a process that was frozen with
the request in its hands may still send it. Another process goes on with a turn only after a strike, too
(`unexplained_takeovers`).
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

from ops.chaos_run.causes import Causes, Moment
from ops.chaos_run.records import Exchange, Post, Reading, Records
from ops.chaos_run.tool_runs import judge_asked, judge_starts, judge_told
from ops.chaos_run.verdict import Verdict

_MARK = re.compile(r"⟨(\d+)\.(\d+\.\d+)\.\d+⟩")


def judge(records: Records) -> Verdict:
    """The verdict over a run."""
    verdict = Verdict(records.messages, requests=len(records.exchanges))
    exchanges: dict[int, list[Exchange]] = defaultdict(list)
    posts: dict[int, list[Post]] = defaultdict(list)
    readings: dict[int, list[Reading]] = defaultdict(list)
    causes = Causes(records.strikes, records.lease_s)
    for reading in records.readings:
        readings[reading.message].append(reading)
    for exchange in sorted(records.exchanges, key=lambda each: each.n):
        exchanges[exchange.message].append(exchange)
    for post in records.posts:
        if post.message is None or not 0 <= post.message < records.messages:
            verdict.find("wrong_text", f"a POST for no message of this run ({post.message})")
        else:
            posts[post.message].append(post)
    for message in range(records.messages):
        _judge_end(verdict, message, exchanges[message], posts[message])
        _judge_repeats(verdict, message, posts[message], causes)
        _judge_requests(verdict, message, exchanges[message], causes)
        _judge_takeovers(verdict, message, exchanges[message], causes)
        if message in records.read:
            _judge_readings(verdict, message, readings[message], posts[message])
        turn = next((post.turn for post in posts[message]), None)
        if turn is not None:
            judge_told(verdict, message, turn, exchanges[message], records.runs, causes)
            judge_asked(verdict, message, turn, exchanges[message], records.runs)
    judge_starts(verdict, records.runs, causes)
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


def _judge_repeats(verdict: Verdict, message: int, posts: Sequence[Post], causes: Causes) -> None:
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
        if not causes.explain_post(answered[-1], repeat):
            verdict.find("unexplained_duplicates", f"message {message}: {repeat.identity} again at {repeat.came:.1f} s")


def _judge_requests(verdict: Verdict, message: int, exchanges: Sequence[Exchange], causes: Causes) -> None:
    """Each request, in order, against the last complete answer of its call before it, and against later calls."""
    for number, each in enumerate(exchanges):
        before = exchanges[:number]
        answered = [other for other in before if other.call == each.call and other.is_complete]
        later = [other for other in before if other.call > each.call]
        then = Moment(each.process, each.came)
        if later:
            is_explained = causes.explain_freeze(Moment(later[0].process, later[0].came), then)
        else:
            is_explained = not answered or causes.explain(Moment(answered[-1].process, answered[-1].came), then)
        if not is_explained:
            sentence = f"message {message}: its call {each.call}, which was answered, again in request {each.n}"
            verdict.find("unexplained_requests", sentence)


def _judge_takeovers(verdict: Verdict, message: int, exchanges: Sequence[Exchange], causes: Causes) -> None:
    for before, after in pairwise(exchanges):
        if before.process == after.process:
            continue
        verdict.takeovers += 1
        if not causes.explain(Moment(before.process, before.came), Moment(after.process, after.came)):
            sentence = f"message {message}: {after.process} goes on with it at {after.came:.1f} s, not {before.process}"
            verdict.find("unexplained_takeovers", sentence)


def _judge_readings(verdict: Verdict, message: int, readings: Sequence[Reading], posts: Sequence[Post]) -> None:
    if len(readings) != 1:
        said = f"its live reader saw {len(readings)} ends" if readings else "its live reader never saw its end"
        verdict.find("wrong_readings", f"message {message}: {said}")
        return
    (reading,) = readings
    delivered = {post.text for post in posts}
    if delivered != {reading.text} or reading.staged or reading.gaps:
        left = f"{reading.text!r}, {len(reading.staged)} characters that still run, {reading.gaps} gaps"
        verdict.find("wrong_readings", f"message {message}: its reader was left with {left}; delivered: {delivered!r}")


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
