"""The demonstration: real processes, real HTTP, fresh random words, and a judge that never asks Redis.

A stand-in provider answers the first call whole (with a tool call) and stalls in the middle of the second. Two Celery
workers run the turn and deliver it to a webhook receiver in this process. What is right comes from the provider's own
transcript; the demonstration succeeds only if the receiver got exactly that, with a signature that an independent
library verifies.
"""

import argparse
import asyncio
import base64
import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web
from rich.console import Console
from rich.table import Table
from rich.text import Text
from standardwebhooks import Webhook, WebhookVerificationError

from channels.console.run import FOLLOW_BLOCK_S, follow
from channels.console.shown import Shown
from channels.embedded import EmbeddedServer
from worker.output.events import (
    CallCompletedOutput,
    ErrorOutput,
    Output,
    TextDeltaOutput,
    TextOutput,
    TextStreamDiscardedOutput,
    ToolCallOutput,
    ToolResultOutput,
    TurnCompletedOutput,
)
from worker.store import connect

ROOT = Path(__file__).resolve().parent.parent
LASTWORD = str(Path(sys.executable).with_name("lastword"))
LIMIT_S = 60.0
STALL_S = 1.5
CONSONANTS, VOWELS = "bdfgklmnprst", "aeio"


def word() -> str:
    """A word that nobody has seen before."""
    return "".join(secrets.choice(CONSONANTS) + secrets.choice(VOWELS) for _ in range(secrets.choice((2, 3))))


def sentence(words: int) -> str:
    """A sentence of such words."""
    return " ".join(word() for _ in range(words)).capitalize() + ". "


@dataclass(slots=True)
class Story:
    """The words of this run."""

    preamble: str = field(default_factory=lambda: sentence(6))
    dead: str = field(default_factory=lambda: sentence(9).rstrip(". "))
    answer: str = field(default_factory=lambda: sentence(7) + sentence(6).strip())

    def script(self) -> str:
        """The stand-in provider's script."""
        return f"""
[[calls]]
steps = [
  {{ text = {json.dumps(self.preamble)}, pieces = 4, every_s = 0.15 }},
  {{ tool = "clock", arguments = {{ timezone = "UTC" }} }},
]
usage = {{ prompt_tokens = 120, completion_tokens = 18 }}

[[calls]]
steps = [
  {{ text = {json.dumps(self.dead)}, pieces = 5, every_s = 0.15 }},
  {{ stall = true }},
]

[[calls]]
steps = [ {{ text = {json.dumps(self.answer)}, pieces = 6, every_s = 0.15 }} ]
usage = {{ prompt_tokens = 160, completion_tokens = 24 }}
"""


@dataclass(slots=True)
class Received:
    """What the webhook receiver got."""

    body: dict[str, object]
    verified: bool


class Receiver:
    """A webhook receiver that verifies each signature with the public library."""

    def __init__(self, secret: str) -> None:
        self._webhook = Webhook(secret)
        self.received: asyncio.Queue[Received] = asyncio.Queue()
        self.url = ""

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Listen on a free loopback port."""
        app = web.Application()
        app.router.add_post("/hook", self._hook)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}/hook"
        yield
        await runner.cleanup()

    async def _hook(self, request: web.Request) -> web.Response:
        body = await request.text()
        try:
            self._webhook.verify(body, {name.lower(): value for name, value in request.headers.items()})
            verified = True
        except WebhookVerificationError:
            verified = False
        self.received.put_nowait(Received(json.loads(body), verified))
        return web.Response(status=204)


def settings(story_url: str, hook_url: str, secret: str, folder: Path) -> str:
    """The settings file of this run."""
    return f"""
data_dir = {json.dumps(str(folder / "data"))}

[providers.main]
base_url = "{story_url}"
model = "stand-in"
stall_timeout_s = {STALL_S}

[agents.default]
instructions = "Answer in one sentence."
tools = ["clock"]

[turns]
resume_backoff_s = 0.2

[egress]
allow = ["127.0.0.0/8"]

[endpoints.receiver]
url = "{hook_url}"
secret = "{secret}"
"""


class Stage:
    """The processes of a run, and the lines that say what happens."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.console = Console(highlight=False, soft_wrap=True)
        self.started = time.monotonic()
        self.redis_url = ""
        self._processes: list[tuple[str, subprocess.Popen[bytes]]] = []
        self._streaming = False

    def say(self, who: str, words: str, style: str = "") -> None:
        """One line, with the time since the start."""
        self.end_stream()
        line = Text(f"{time.monotonic() - self.started:6.2f}s  {who:<10}", style="dim")
        self.console.print(line.append(words, style=style or "default"))

    def stream(self, words: str) -> None:
        """A piece of a line that is still streaming."""
        if words and not self._streaming:
            self.console.print(Text(f"{time.monotonic() - self.started:6.2f}s  {'deltas':<10}", style="dim"), end="")
            self._streaming = True
        self.console.out(words, end="", highlight=False)
        sys.stdout.flush()

    def end_stream(self) -> None:
        """End the line that streams."""
        if self._streaming:
            self.console.print()
            self._streaming = False

    def start(self, name: str, arguments: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
        """Start a process whose output goes to a log file."""
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(arguments, stdout=log, stderr=log, cwd=self.folder, env=environment)
        self._processes.append((name, process))
        return process

    def check(self) -> None:
        """Fail when one of the processes has ended."""
        for name, process in self._processes:
            if process.poll() is not None:
                raise SystemExit(f"{name} ended with code {process.returncode}\n{self.logs()}")

    def logs(self) -> str:
        """The end of every process's log."""
        texts = {name: (self.folder / f"{name}.log").read_text(encoding="utf-8") for name, _ in self._processes}
        return "\n".join(f"--- {name}\n{text[-2000:]}" for name, text in texts.items())

    def stop(self) -> None:
        """Stop the processes, last started first; what does not end is killed."""
        for _, process in reversed(self._processes):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for _, process in reversed(self._processes):
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


async def provider_url(stage: Stage) -> str:
    """The base URL that the stand-in provider printed."""
    log = stage.folder / "provider.log"
    async with asyncio.timeout(LIMIT_S):
        while True:
            stage.check()
            for token in log.read_text(encoding="utf-8").split():
                if token.startswith("http://127.0.0.1:"):
                    return token.rstrip(".,")
            await asyncio.sleep(0.05)


def show(stage: Stage, shown: Shown, output: Output) -> None:
    """One output, as a live reader is told of it."""
    shown.take(output)
    match output:
        case TextDeltaOutput() | TextOutput():
            stage.stream(shown.unseen)
        case TextStreamDiscardedOutput():
            stage.say("stall", f"call {output.call}, attempt {output.attempt}: {output.reason}", "yellow")
            stage.say("discard", f"{output.discarded_bytes} bytes of the dead attempt are void", "yellow")
        case ToolCallOutput():
            stage.say("tool", f"{output.name}({output.arguments})")
        case ToolResultOutput():
            stage.say("tool", f"{output.name} → {output.result}")
        case CallCompletedOutput():
            resumed = f", attempt {output.attempt}: the resume" if output.attempt > 1 else ""
            stage.say("commit", f"call {output.call} completed{resumed}", "green")
        case ErrorOutput():
            stage.say("error", f"{output.code}: {output.message}", "red")
        case TurnCompletedOutput():
            stage.say("seal", f"the turn ended: {output.outcome}", "green")
        case _:
            pass


@dataclass(slots=True)
class Truth:
    """What the provider's transcript says."""

    completed: str
    naive: str
    dead: str


def read_truth(transcript: Path) -> Truth:
    """Completed calls' text, all text glued together, and the text of the calls that died."""
    lines = [json.loads(line) for line in transcript.read_text(encoding="utf-8").splitlines()]
    calls = [line for line in lines if line["event"] == "ended"]
    return Truth(
        completed="".join(line["sent"]["text"] for line in calls if line["ended"] == "complete"),
        naive="".join(line["sent"]["text"] for line in calls),
        dead="".join(line["sent"]["text"] for line in calls if line["ended"] != "complete"),
    )


async def perform(stage: Stage) -> tuple[Truth, Received]:
    """The whole run: from a message to the webhook."""
    secret = "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()
    receiver = Receiver(secret)
    script, transcript = stage.folder / "script.toml", stage.folder / "transcript.jsonl"
    script.write_text(Story().script(), encoding="utf-8")
    async with receiver.running():
        environment = {k: v for k, v in os.environ.items() if not k.startswith("LASTWORD_")}
        stage.start("provider", [LASTWORD, "provider", str(script), "--transcript", str(transcript)], environment)
        url = await provider_url(stage)
        stage.say("provider", f"stand-in LLM provider at {url}")
        config = stage.folder / "lastword.toml"
        config.write_text(settings(url, receiver.url, secret, stage.folder), encoding="utf-8")
        environment |= {
            "LASTWORD_CONFIG": str(config),
            "LASTWORD_REDIS_URL": stage.redis_url,
            "LASTWORD_WEB__PORT": "0",  # another one may run here
        }
        stage.start("up", [LASTWORD, "up"], environment)
        stage.say("workers", "Celery processes for turns and delivery are starting")
        client = connect.open_redis(stage.redis_url, block_s=FOLLOW_BLOCK_S)
        try:
            turn = await submit(stage, environment)
            async with asyncio.timeout(LIMIT_S):
                shown = Shown(turn, "")
                async for output in follow(client, turn):
                    stage.check()
                    show(stage, shown, output)
                received = await receiver.received.get()
        except TimeoutError:
            raise SystemExit(f"nothing arrived within {LIMIT_S:.0f} s\n{stage.logs()}") from None
        finally:
            await client.aclose()
        signed = "verified" if received.verified else "WRONG"
        stage.say("webhook", f"{received.body['type']} arrived, signature {signed}", "green")
    stage.stop()
    return read_truth(transcript), received


async def submit(stage: Stage, environment: dict[str, str]) -> str:
    """Hand the message in by the command line, as a user would; gives the turn's id."""
    arguments = [LASTWORD, "submit", "What time is it?", "--to", "receiver", "--label", "demo=yes", "--json"]
    process = await asyncio.create_subprocess_exec(
        *arguments, cwd=stage.folder, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await process.communicate()
    if process.returncode:
        raise SystemExit(f"lastword submit ended with code {process.returncode}:\n{err.decode()}")
    turn = str(json.loads(out)["turn"])
    stage.say("submit", f"{turn} is durable and waits for a worker")
    return turn


def judge(stage: Stage, truth: Truth, received: Received) -> tuple[bool, dict[str, object]]:
    """Compare what arrived with what the provider says it sent; print both sides."""
    data = received.body["data"]
    assert isinstance(data, dict)
    delivered = str(data["text"])
    resumes = data["resume"]["resumes"]
    resumed = resumes >= 1 and truth.dead != ""
    right = received.verified and resumed and delivered == truth.completed and received.body["type"] == "turn.completed"
    width = max(40, (stage.console.width - 3) // 2)
    stage.console.print()
    naive = Text(truth.naive)
    at = truth.naive.find(truth.dead)
    naive.stylize("strike red", at, at + len(truth.dead))
    table = Table(show_lines=True, width=min(width * 2, 120))
    table.add_column("a naive consumer would have delivered", ratio=1)
    table.add_column("Lastword delivered", ratio=1)
    table.add_row(naive, Text(delivered, style="green" if right else "red"))
    stage.console.print(table)
    verdict = "exactly the completed calls' text, signature verified" if right else "NOT what the provider completed"
    stage.console.print(Text(verdict, style="bold green" if right else "bold red"))
    report: dict[str, object] = {
        "delivered": delivered,
        "naive": truth.naive,
        "discarded": truth.dead,
        "resumes": resumes,
        "signature_verified": received.verified,
        "elapsed_s": round(time.monotonic() - stage.started, 2),
    }
    return right, report


def main() -> int:
    """Run the demonstration; 0 only if what arrived is right."""
    parser = argparse.ArgumentParser(prog="ops/demo", description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lastword-demo-") as name:
        stage = Stage(Path(name))
        server = EmbeddedServer(stage.folder / "valkey")
        stage.redis_url = server.start()
        stage.say("valkey", "embedded server is up, every write on disk before it is answered")
        try:
            truth, received = asyncio.run(perform(stage))
        finally:
            stage.stop()
            server.stop()
        right, report = judge(stage, truth, received)
    if options.json:
        sys.stdout.write(json.dumps(report, ensure_ascii=False) + "\n")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
