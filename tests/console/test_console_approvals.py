"""A tool call that waits for a person: at the terminal of `lastword run`, and with `lastword approvals`."""

import asyncio
import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Self

import pytest
import redis
import redis.asyncio
from rich.console import Console

from channels.console.approvals import person
from channels.console.turns import table_of
from tests.console.conftest import Lastword
from tests.store.turns import ask, driven, new_turn, with_tools
from tests.support.stack import eventually, stand_in
from worker import api, ids
from worker.errors import ConfigurationError
from worker.output.approvals import EXPIRY, OPTIONS, REFUSALS
from worker.output.events import ApprovalDecidedOutput, ApprovalRequestOutput, CompactionOutput, Output, TextOutput
from worker.settings import WorkerSettings, load_settings
from worker.store.inbox import submit
from worker.store.pending import PendingApproval
from worker.store.records import read_text, read_turn
from worker.wiring import TurnProcess

SCRIPT = """
[[calls]]
steps = [ { text = "I will look. " }, { tool = "clock", arguments = { timezone = "Europe/Oslo" } } ]

[[calls]]
steps = [ { text = "I have looked." } ]
"""
TWO_TOOLS = SCRIPT.replace(" ]\n", ', { tool = "clock", arguments = { timezone = "Asia/Tokyo" } } ]\n', 1)
WITHIN_S = 30.0


def environment(base_url: str, url: str, folder: Path, expire_s: float = 3600) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LASTWORD_")}
    config = folder / "lastword.toml"
    config.write_text(
        f'redis_url = "{url}"\ndata_dir = "{folder / "data"}"\n[providers.main]\nbase_url = "{base_url}"\n'
        'model = "stand-in"\n[agents.default]\ntools = ["clock"]\n[tools.clock]\napproval = "ask"\n'
        f"[approvals]\nexpire_s = {expire_s}\n",
        encoding="utf-8",
    )
    return {**kept, "LASTWORD_CONFIG": str(config), "TERM": "xterm", "COLUMNS": "200"}


class Terminal:
    """A terminal at which `lastword run` runs; what it shows is kept, and typing is possible."""

    def __init__(self, settings: dict[str, str], *arguments: str) -> None:
        self._settings = settings
        self._arguments = arguments
        self._shown = b""

    async def __aenter__(self) -> Self:
        self._ours, theirs = pty.openpty()
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "channels", "run", "What time is it?", *self._arguments),
            env=self._settings,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        asyncio.get_running_loop().add_reader(self._ours, self._read)
        return self

    async def __aexit__(self, *_: object) -> None:
        asyncio.get_running_loop().remove_reader(self._ours)
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        os.close(self._ours)

    def _read(self) -> None:
        try:
            self._shown += os.read(self._ours, 65536)
        except OSError:  # the other side is closed
            asyncio.get_running_loop().remove_reader(self._ours)

    @property
    def shown(self) -> str:
        return self._shown.decode(errors="replace")

    async def until(self, words: str, times: int = 1) -> None:
        async def look() -> bool:
            return self.shown.count(words) >= times

        await eventually(look, bool, f"{words!r} on the terminal, which shows {self.shown!r}", WITHIN_S)

    @property
    def is_blocking(self) -> bool:
        """Whether who reads or writes there waits, as everybody expects of a terminal."""
        flags = Path(f"/proc/{self._process.pid}/fdinfo/0").read_text(encoding="ascii")
        (octal,) = (line.split()[1] for line in flags.splitlines() if line.startswith("flags:"))
        return not int(octal, 8) & os.O_NONBLOCK

    def type(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    async def end(self) -> int:
        return await asyncio.wait_for(self._process.wait(), WITHIN_S)


@contextlib.asynccontextmanager
async def at_terminal(
    url: str, folder: Path, *, script: str = SCRIPT, typed_ahead: str = "", **more: Any
) -> AsyncIterator[Terminal]:
    """A terminal that asks its first question. `typed_ahead`: what is typed before there is anything to see."""
    async with (
        stand_in(script, folder) as provider,
        Terminal(environment(provider.base_url, url, folder, **more)) as terminal,
    ):
        terminal.type(typed_ahead)
        await terminal.until("n: Deny? ")
        yield terminal


def asked_of_the_model(folder: Path) -> str:
    """All that the provider was sent."""
    return (folder / "transcript.jsonl").read_text(encoding="utf-8")


async def waiting(client: redis.asyncio.Redis) -> list[PendingApproval]:
    return await api.list_approvals(client, 1)


# At the terminal of `lastword run`.


@pytest.mark.requirement("approvals:run:asks-here")
@pytest.mark.parametrize(
    ("typed", "decided", "is_run"),
    [("o\n", "approve_once", True), ("Session\n", "approve_session", True), ("n\n", "deny", False)],
)
async def test_the_person_at_the_terminal_decides_and_the_turn_goes_on(
    real_url: str, tmp_path: Path, typed: str, decided: str, is_run: bool
) -> None:
    async with at_terminal(real_url, tmp_path) as terminal:
        assert 'tool clock {"timezone":"Europe/Oslo"}' in terminal.shown
        assert "o: Approve once, s: Approve for this session, n: Deny?" in terminal.shown
        terminal.type(typed)
        assert await terminal.end() == 0
    assert f"decided: {decided} by {person()}" in terminal.shown
    assert ("tool clock: done" in terminal.shown) == is_run
    assert terminal.shown.index("I will look. ") < terminal.shown.index("decided:") < terminal.shown.index("I have")


@pytest.mark.requirement("approvals:run:asks-here")
async def test_what_is_no_answer_is_asked_again(real_url: str, tmp_path: Path) -> None:
    async with at_terminal(real_url, tmp_path) as terminal:
        terminal.type("perhaps\n")
        await terminal.until("n: Deny? ", times=2)
        terminal.type("yes\n")
        assert await terminal.end() == 0
    assert "decided: approve_once" in terminal.shown


@pytest.mark.requirement("approvals:run:asks-here")
@pytest.mark.skipif(sys.platform != "linux", reason="how a file is open is read from /proc")
async def test_the_terminal_is_left_as_it_was_for_others_who_have_it_open(real_url: str, tmp_path: Path) -> None:
    async with at_terminal(real_url, tmp_path) as terminal:
        assert terminal.is_blocking
        terminal.type("n\n")
        assert await terminal.end() == 0


@pytest.mark.requirement("approvals:run:type-ahead")
@pytest.mark.skipif(sys.platform == "win32", reason="there are no process groups")
def test_a_question_from_the_background_does_not_stop_the_process() -> None:
    program = "import os; from channels.console.approvals import _discard_typed; _discard_typed(0); os._exit(7)"
    shell = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
asked = os.posix_spawn(sys.executable, [sys.executable, "-c", sys.argv[1]], os.environ, setpgroup=0)
_, status = os.waitpid(asked, os.WUNTRACED)
if os.WIFSTOPPED(status):
    os.kill(asked, 9)
    sys.exit("it was stopped")
sys.exit(os.waitstatus_to_exitcode(status))
"""
    command = [sys.executable, "-c", shell, program]
    ours, theirs = pty.openpty()
    try:
        ended = subprocess.run(command, stdin=theirs, start_new_session=True, timeout=WITHIN_S, check=False)
    finally:
        os.close(ours)
        os.close(theirs)
    assert ended.returncode == 7


@pytest.mark.requirement("approvals:run:type-ahead")
@pytest.mark.parametrize("typed_ahead", ["y\n", "y", "s\ny\n"])
async def test_what_was_typed_before_the_question_stood_there_answers_nothing(
    real_url: str, tmp_path: Path, typed_ahead: str
) -> None:
    async with at_terminal(real_url, tmp_path, typed_ahead=typed_ahead) as terminal:
        terminal.type("n\n")
        assert await terminal.end() == 0
    assert terminal.shown.count("n: Deny? ") == 1
    assert f"decided: deny by {person()}" in terminal.shown
    assert "tool clock: done" not in terminal.shown


@pytest.mark.requirement("approvals:run:type-ahead")
@pytest.mark.parametrize("typed", ["y\ny\n", "perhaps\ny\ny\n"])
async def test_a_line_answers_one_question_and_what_follows_it_answers_no_other(
    real_url: str, tmp_path: Path, typed: str
) -> None:
    first = len(typed.split()) - 1  # the lines that the first request takes, each at a question of its own
    async with at_terminal(real_url, tmp_path, script=TWO_TOOLS) as terminal:
        terminal.type(typed)
        await terminal.until("n: Deny? ", times=2)
        if first > 1:
            assert "decided:" not in terminal.shown
            terminal.type("y\n")
            await terminal.until("n: Deny? ", times=3)
        terminal.type("n\n")
        assert await terminal.end() == 0
    assert (terminal.shown.count("decided: approve_once"), terminal.shown.count("decided: deny")) == (1, 1)


@pytest.mark.requirement("approvals:run:elsewhere")
async def test_the_turn_goes_on_when_it_is_decided_elsewhere_while_the_terminal_waits(
    real_url: str, real_redis: redis.asyncio.Redis, tmp_path: Path
) -> None:
    async with at_terminal(real_url, tmp_path) as terminal:
        (one,) = await waiting(real_redis)
        settings = WorkerSettings(redis_url=real_url)
        await api.resolve_approval(
            settings, real_redis, approval=one.approval, option="approve_once", by="Jo Doe", wake=lambda _: None
        )
        assert await terminal.end() == 0
    assert "decided: approve_once by Jo Doe" in terminal.shown
    assert "I have looked." in terminal.shown


@pytest.mark.requirement("approvals:run:expires")
async def test_a_request_that_nobody_answers_expires_in_front_of_the_terminal_too(
    real_url: str, tmp_path: Path
) -> None:
    async with at_terminal(real_url, tmp_path, expire_s=1) as terminal:
        assert await terminal.end() == 0
    assert "decided: expired" in terminal.shown
    assert EXPIRY in terminal.shown
    assert "I have looked." in terminal.shown


@pytest.mark.requirement("approvals:run:left")
@pytest.mark.parametrize(
    ("leave", "code"),
    [(lambda terminal: terminal.type("\x04"), 5), (lambda terminal: terminal.signal(signal.SIGINT), 130)],
    ids=["end of input", "SIGINT"],
)
async def test_who_leaves_the_terminal_is_told_how_to_decide_later(
    real_url: str, real_redis: redis.asyncio.Redis, tmp_path: Path, leave: Callable[[Terminal], None], code: int
) -> None:
    async with at_terminal(real_url, tmp_path) as terminal:
        leave(terminal)
        assert await terminal.end() == code
    (one,) = await waiting(real_redis)
    assert f"lastword approvals grant {one.approval}" in terminal.shown
    record = await read_turn(real_redis, one.turn)
    assert record is not None
    assert record.state == "parked"


@pytest.mark.requirement("approvals:run:left")
async def test_who_leaves_at_the_first_of_two_questions_is_not_asked_the_second(
    real_url: str, real_redis: redis.asyncio.Redis, tmp_path: Path
) -> None:
    async with at_terminal(real_url, tmp_path, script=TWO_TOOLS) as terminal:
        terminal.signal(signal.SIGINT)
        assert await terminal.end() == 130
    assert terminal.shown.count("n: Deny? ") == 1
    for one in await waiting(real_redis):
        assert f"lastword approvals grant {one.approval}" in terminal.shown
    assert terminal.shown.count("lastword approvals grant ") == 2


# Where nobody can be asked.


@pytest.mark.requirement("approvals:run:nobody-here")
@pytest.mark.parametrize("as_json", [False, True], ids=["pipe", "json"])
async def test_without_a_terminal_the_turn_is_kept_until_somebody_decides(
    real_url: str, real_redis: redis.asyncio.Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_json: bool
) -> None:
    async with stand_in(SCRIPT, tmp_path) as provider:
        settings = environment(provider.base_url, real_url, tmp_path)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "channels", "run", "What time is it?", *(["--json"] if as_json else [])),
            env=settings,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = [said.decode() for said in await asyncio.wait_for(process.communicate(), WITHIN_S)]
        (one,) = await waiting(real_redis)
        assert process.returncode == 5
        assert 'waits for a person: tool clock {"timezone":"Europe/Oslo"}' in err
        assert f"lastword approvals grant {one.approval}" in err
        assert f"turn {one.turn} is kept" in err
        if as_json:
            told = json.loads(out)
            assert (told["outcome"], told["text"]) == (None, "I will look. ")
            (request,) = told["approvals"]
            assert (request["approval"], request["tool"]) == (one.approval, "clock")
            assert request["expires_at_ms"] == one.expires_ms
        else:
            assert out == "I will look. "
        granted, _ = await said_by(settings, "approvals", "grant", one.approval, "--by", "Jo")
        assert granted == f"{one.approval} approve_once by Jo\n"
        monkeypatch.setenv("LASTWORD_CONFIG", settings["LASTWORD_CONFIG"])
        turns = TurnProcess(load_settings())
        await turns.start()
        await turns.run_session(one.session)
        await turns.stop()
    record = await read_turn(real_redis, one.turn)
    assert record is not None
    assert record.outcome == "completed"
    assert await read_text(real_redis, one.turn) == "I will look. I have looked."


async def said_by(settings: dict[str, str], *arguments: str) -> tuple[str, int | None]:
    """Standard output and exit code of `lastword ARGUMENTS`, with a pipe at its output."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "channels", *arguments), env=settings, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await asyncio.wait_for(process.communicate(), WITHIN_S)
    return out.decode(), process.returncode


# `lastword approvals` and `lastword turns`.


@pytest.fixture
def store(real_url: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Runs work on a store that the commands of the test talk to."""
    monkeypatch.setenv("LASTWORD_REDIS_URL", real_url)

    def run(work: Callable[[Any], Any]) -> Any:
        async def with_client() -> Any:
            client = redis.asyncio.Redis.from_url(real_url)
            try:
                return await work(client)
            finally:
                await client.aclose()

        return asyncio.run(with_client())

    return run


async def parked(client: Any, requester: str | None = None, session: str = "chat/1") -> str:
    """The approval for which a turn waits."""
    accumulator = await driven(client, requester=requester, session=session)
    await with_tools(accumulator, "mail")
    approval = await ask(accumulator, requester=requester)
    assert await accumulator.park() == ()
    return approval


@pytest.mark.requirement("approvals:command:list")
def test_what_waits_is_listed_for_people_and_for_programs(store: Callable[..., Any], lastword: Lastword) -> None:
    assert lastword("approvals", "list").out == "nothing waits for a person\n"
    assert lastword("approvals", "list", "--json").out == ""
    approval = store(lambda client: parked(client, requester="U1"))
    ran = lastword("approvals", "list")
    assert ran.code == 0
    for words in (approval, "mail", "bob@example.com", "U1", "chat/1"):
        assert words in ran.out
    (line,) = lastword("approvals", "list", "--json").out.splitlines()
    told = json.loads(line)
    assert (told["approval"], told["tool"], told["requester"]) == (approval, "mail", "U1")
    assert [option["key"] for option in told["options"]] == ["approve_once", "approve_session", "deny"]


@pytest.mark.requirement("approvals:command:decide")
@pytest.mark.parametrize(
    ("arguments", "option", "by"),
    [
        (["grant"], "approve_once", person()),
        (["grant", "--session", "--by", "Jo Doe"], "approve_session", "Jo Doe"),
        (["deny", "--by", "U1"], "deny", "U1"),
    ],
)
def test_an_answer_is_stored_and_told(
    store: Callable[..., Any], lastword: Lastword, arguments: list[str], option: str, by: str
) -> None:
    approval = store(parked)
    ran = lastword("approvals", arguments[0], approval, *arguments[1:])
    assert (ran.code, ran.out, ran.err) == (0, f"{approval} {option} by {by}\n", "")
    assert lastword("approvals", "list").out == "nothing waits for a person\n"
    again = lastword("approvals", arguments[0], approval, *arguments[1:])
    assert (again.code, again.out) == (0, ran.out)
    shown = lastword("turns", "show", ids.parse_approval(approval)[0]).out  # type: ignore[index]
    assert f"approval {approval}: {option} by {by}" in shown


@pytest.mark.requirement("approvals:command:refused")
def test_an_answer_that_does_not_count_ends_with_1_and_says_why(store: Callable[..., Any], lastword: Lastword) -> None:
    approval = store(lambda client: parked(client, requester="U1"))
    wrong = lastword("approvals", "grant", approval, "--by", "U2")
    assert (wrong.code, wrong.out) == (1, "")
    assert wrong.err == f"refused: {REFUSALS['wrong_requester']} [wrong_requester]\n"
    assert lastword("approvals", "deny", approval, "--by", "U1").code == 0
    late = lastword("approvals", "grant", approval, "--by", "U1")
    assert (late.code, "[prompt_expired]" in late.err) == (1, True)
    for unknown in ("appr_x", ids.approval_of(ids.new_turn(0), 1, 0), ids.approval_of(ids.new_turn(7), 1, 0)):
        ran = lastword("approvals", "grant", unknown)
        assert (ran.code, "[no_history]" in ran.err) == (1, True)
    nobody = lastword("approvals", "grant", approval, "--by", " ")
    assert (nobody.code, "by ' ' names nobody" in nobody.err) == (2, True)


@pytest.mark.requirement("approvals:turns:list")
def test_turns_that_go_on_are_listed_with_their_state(store: Callable[..., Any], lastword: Lastword) -> None:
    assert lastword("turns", "list").out == "no turns that go on\n"

    async def some(client: Any) -> list[str]:
        approval = await parked(client)
        behind = new_turn(session="chat/2")
        await submit(client, behind, 1)
        return [ids.parse_approval(approval)[0], behind.turn]  # type: ignore[index]

    waits, behind = store(some)
    lines = lastword("turns", "list").out.splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [[waits, "parked"], [behind, "queued"]]
    told = [json.loads(line) for line in lastword("turns", "list", "--json").out.splitlines()]
    assert [(one["turn"], one["state"]) for one in told] == [(waits, "parked"), (behind, "queued")]
    assert len(lastword("turns", "list", "--limit", "1", "--json").out.splitlines()) == 1


@pytest.mark.requirement("approvals:turns:show")
def test_requests_answers_notices_and_compactions_have_a_row_each() -> None:
    approval = ids.approval_of("turn_" + "0" * 22, 1, 0)
    outputs: list[Output] = [
        ApprovalRequestOutput(
            call=1, attempt=1, approval=approval, tool_call_id="a", name="mail", arguments="{}", requester="U1"
        ),
        TextOutput(text="Only they may.", is_call_boundary=False, notice="wrong_requester"),
        ApprovalDecidedOutput(call=1, attempt=1, approval=approval, option="expired"),
        CompactionOutput(messages_before=12, messages_after=4, results_cleared=3, summarised=True, forced=True),
        CompactionOutput(messages_before=5, messages_after=5, failure="timeout"),
    ]
    console = Console(width=200)
    shown = "".join(segment.text for segment in console.render(table_of(outputs)))
    for words in (
        f"approval {approval} of tool mail {{}}, U1 alone may decide",
        "notice (wrong_requester): Only they may.",
        f"approval {approval}: expired",
        "conversation made shorter: the context overflowed, 12 messages became 4, 3 tool results dropped, the rest",
        "no summary could be had (timeout)",
    ):
        assert words in shown


# The port.

SETTINGS = WorkerSettings.model_validate(
    {"providers": {"main": {"base_url": "http://127.0.0.1:9/v1", "model": "stand-in"}}}
)


async def resolve(client: redis.asyncio.Redis, approval: str, option: str, by: str) -> tuple[Any, list[str]]:
    woken: list[str] = []
    answer = await api.resolve_approval(SETTINGS, client, approval=approval, option=option, by=by, wake=woken.append)
    return answer, woken


@pytest.mark.requirement("approvals:port")
async def test_an_answer_that_counts_wakes_the_session_and_one_that_does_not_raises_its_reason(
    any_redis: redis.asyncio.Redis,
) -> None:
    approval = await parked(any_redis, requester="U1")
    with pytest.raises(api.ApprovalRefused) as refused:
        await resolve(any_redis, approval, "deny", "U2")
    assert (refused.value.code, str(refused.value)) == ("wrong_requester", REFUSALS["wrong_requester"])
    answer, woken = await resolve(any_redis, approval, "deny", "U1")
    assert (answer.option, answer.session, woken) == ("deny", "chat/1", ["chat/1"])
    assert [option.key for option in OPTIONS] == ["approve_once", "approve_session", "deny"]


@pytest.mark.requirement("approvals:port")
async def test_a_wake_up_that_cannot_be_sent_costs_no_answer(any_redis: redis.asyncio.Redis) -> None:
    def wake(session: str) -> None:
        raise ConnectionError(session)

    approval = await parked(any_redis)
    answer = await api.resolve_approval(SETTINGS, any_redis, approval=approval, option="deny", by="Jo", wake=wake)
    assert answer.option == "deny"


@pytest.mark.requirement("approvals:port:bad-input")
@pytest.mark.parametrize(
    ("option", "by", "named"),
    [
        ("Approve Once", "Jo", "option 'Approve Once'"),
        ("", "Jo", "option ''"),
        ("deny", "", "by ''"),
        ("deny", "x" * 201, "by 'xxx"),
        ("deny", "two\nlines", "by 'two"),
        ("deny", "Gr\udcfc\udcdfe", "by: character 2"),
    ],
)
async def test_what_can_be_no_answer_is_refused_by_its_field(
    fake_redis: redis.asyncio.Redis, option: str, by: str, named: str
) -> None:
    approval = await parked(fake_redis)
    with pytest.raises(ConfigurationError) as refused:
        await resolve(fake_redis, approval, option, by)
    assert named in str(refused.value)


@pytest.mark.requirement("approvals:port:requester")
async def test_a_requester_is_stored_with_the_turn_and_checked_like_all_else(
    fake_redis: redis.asyncio.Redis,
) -> None:
    for wrong in ("", " U1", "x" * 201, "Gr\udcfc\udcdfe"):
        with pytest.raises(ConfigurationError, match="requester"):
            await api.submit(SETTINGS, fake_redis, prompt="hello", source="test", wake=lambda _: None, requester=wrong)
    assert await fake_redis.keys("*") == []
    submitted = await api.submit(
        SETTINGS, fake_redis, prompt="hello", source="test", wake=lambda _: None, requester="Jo Doe"
    )
    record = await read_turn(fake_redis, submitted.turn)
    assert record is not None
    assert record.requester == "Jo Doe"
