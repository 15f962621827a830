"""`ops/chaos`: the arguments, the report, the exit code."""

import argparse
import asyncio
import json
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ops.chaos_run import deliveries, delivery_judge
from ops.chaos_run.broker import find_rabbitmq
from ops.chaos_run.configuration import Options
from ops.chaos_run.judge import judge
from ops.chaos_run.run import Outcome, Stage
from ops.chaos_run.verdict import Verdict

CLEAN, UNCLEAN, USAGE, INTERRUPTED = 0, 1, 2, 130
FIRST = ("turns", "completed", "failed", "lost", "partial", "wrong_text", "duplicate_deliveries", "duplicate_ids")
_SHOWN = 20


def main() -> int:
    """Run, judge, report; 0 only if nothing was found."""
    options, as_json, keeps = _options()
    run = _run_deliveries if options.deliveries else _run_turns
    if options.broker == "rabbitmq" and find_rabbitmq() is None:
        sys.stderr.write("ops/chaos: --broker rabbitmq needs rabbitmq-server and epmd on PATH: install them\n")
        return USAGE
    folder = Path(tempfile.mkdtemp(prefix="lastword-chaos-"))
    try:
        report, wrong, findings = asyncio.run(run(options, folder))
        keeps |= not report["clean"]
        _tell(wrong, findings, folder if keeps else None)
        sys.stdout.write(json.dumps(report) + "\n" if as_json else _shown(report))
        return CLEAN if report["clean"] else UNCLEAN
    except (KeyboardInterrupt, asyncio.CancelledError):
        sys.stderr.write("ops/chaos: interrupted; everything that it started has ended\n")
        return INTERRUPTED
    except BaseException as error:
        keeps = True
        for sentence in _sentences(error):
            sys.stderr.write(f"ops/chaos: {sentence}\n")
        sys.stderr.write(f"ops/chaos: the run did not come to its end; its logs are kept in {folder}\n")
        if isinstance(error, TimeoutError | RuntimeError | ExceptionGroup):
            return UNCLEAN
        raise  # a fault of its own
    finally:
        if not keeps:
            shutil.rmtree(folder, ignore_errors=True)


async def _run_turns(options: Options, folder: Path) -> tuple[dict[str, Any], list[str], list[str]]:
    """The report, what processes did wrong, and the findings."""
    outcome = await Stage(options, folder, _said()).run()
    verdict = judge(outcome.records)
    report = {**_report(options, verdict, outcome), "clean": verdict.is_clean and not outcome.faults}
    return report, [*outcome.ended_by_itself, *outcome.faults[:_SHOWN]], verdict.findings


async def _run_deliveries(options: Options, folder: Path) -> tuple[dict[str, Any], list[str], list[str]]:
    """The same, of deliveries alone."""
    told = await deliveries.run(folder, options.deliveries, options.kills, options.seed, _said())
    verdict = delivery_judge.judge(told.turns, told.posts, told.kills, options.kills)
    figures = {**verdict.figures(), "elapsed_s": round(told.elapsed_s, 1), "own_faults": len(told.faults)}
    report = {**figures, "seed": options.seed, "clean": verdict.is_clean and not told.faults}
    return report, told.faults[:_SHOWN], verdict.findings


def _said() -> Callable[[str], None]:
    """Says on standard error what happens and when; a SIGTERM from now on ends the run."""
    started = time.monotonic()

    def say(words: str) -> None:
        sys.stderr.write(f"{time.monotonic() - started:7.1f} s  {words}\n")

    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return say


def _options() -> tuple[Options, bool, bool]:
    parser = argparse.ArgumentParser(
        prog="ops/chaos", description="Kill and freeze what works, and judge what is delivered."
    )
    parser.add_argument("--turns", type=_count, default=300, help="messages to submit (default: 300)")
    parser.add_argument("--deliveries", type=_count, default=0, help="kill only delivery processes, with so many to do")
    parser.add_argument("--kills", type=_count, default=40, help="kills; freezes and drains come on top (40)")
    parser.add_argument("--seed", type=int, default=1, help="of the script, the faults and the strikes (1)")
    parser.add_argument("--broker", choices=("redis", "rabbitmq"), default="redis", help="of Celery (redis)")
    parser.add_argument("--default-lease", action="store_true", help="the product's own lease instead of one of 2 s")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else on standard output")
    parser.add_argument("--keep", action="store_true", help="keep records and logs, also of a clean run")
    given = parser.parse_args()
    options = Options(
        given.turns, given.kills, given.seed, given.broker, given.default_lease, deliveries=given.deliveries
    )
    return options, given.json, given.keep


def _count(text: str) -> int:
    if not text.isdigit() or int(text) > 1_000_000:
        raise argparse.ArgumentTypeError(f"{text!r}: give a whole number from 0 to 1000000")
    return int(text)


def _report(options: Options, verdict: Verdict, outcome: Outcome) -> dict[str, Any]:
    figures, strikes = verdict.figures(), outcome.strikes
    kills = [strike for strike in strikes if strike.kind == "kill"]
    return {
        **{name: figures.pop(name) for name in FIRST},
        "tool_calls_twice": figures.pop("tool_calls_twice"),
        "kills": len(kills),
        "kills_mid_stream": sum(strike.mid_stream for strike in kills),
        "takeovers": figures.pop("takeovers"),
        "elapsed_s": round(outcome.elapsed_s, 1),
        "freezes": sum(strike.kind == "freeze" for strike in strikes),
        "drains": sum(strike.kind == "drain" for strike in strikes),
        **figures,
        "ended_by_themselves": len(outcome.ended_by_itself),
        "own_faults": len(outcome.faults),
        "seed": options.seed,
        "broker": options.broker,
    }


def _sentences(error: BaseException) -> list[str]:
    if isinstance(error, BaseExceptionGroup):
        return [sentence for each in error.exceptions for sentence in _sentences(each)]
    return [f"{type(error).__name__}: {error}"]


def _tell(wrong: Sequence[str], findings: Sequence[str], folder: Path | None) -> None:
    for sentence in [*wrong, *findings[:_SHOWN]]:
        sys.stderr.write(f"ops/chaos: {sentence}\n")
    if folder is not None:
        sys.stderr.write(f"ops/chaos: {len(findings)} findings; records and logs are kept in {folder}\n")


def _shown(report: dict[str, Any]) -> str:
    lines = [f"{name.replace('_', ' '):<24}{value!s:>10}" for name, value in report.items() if name != "clean"]
    right = "each turn's end came, once, with the text of its completed calls"
    if "deliveries" in report:
        right = "each delivery was taken, under one id, and again only where a kill explains it"
    end = f"clean: {right}" if report["clean"] else "NOT clean"
    return "\n".join([*lines, end, ""])


if __name__ == "__main__":
    sys.exit(main())
