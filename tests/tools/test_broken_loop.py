"""A process whose event loop broke ends at once: it could do nothing any more, and would go on to take work."""

import asyncio
import gc
import subprocess
import sys
import textwrap

import pytest

from worker.engine.loop import LOOP_LOST, new_event_loop

PROGRAM = textwrap.dedent("""
    import asyncio
    from worker.engine.loop import LoopThread
    from worker.observability import configure_logging

    async def breaks():
        raise {error}

    async def task():
        asyncio.create_task(breaks())
        await asyncio.Event().wait()

    configure_logging("info")
    loop = LoopThread()
    loop.start()
    loop.submit(task()).result(20)
    print("went on")
""")


@pytest.mark.requirement("tools:result:broken-loop")
@pytest.mark.parametrize("error", ["KeyboardInterrupt()", "SystemExit(0)"])
def test_a_process_whose_loop_broke_ends_at_once_and_says_so(error: str) -> None:
    program = PROGRAM.format(error=error)
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=50, check=False)
    assert (ended.returncode, ended.stdout) == (LOOP_LOST, "")
    assert "event_loop_broke" in ended.stderr
    assert error.partition("(")[0] in ended.stderr


@pytest.mark.requirement("tools:run:background-task")
def test_what_a_background_task_of_a_tool_raises_is_reported_without_its_words(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    async def forgotten() -> None:
        raise ValueError("the private letter")

    async def tool() -> None:
        asyncio.ensure_future(forgotten())  # noqa: RUF006 - as careless code does
        await asyncio.sleep(0)
        gc.collect()
        await asyncio.sleep(0)

    loop = new_event_loop()
    try:
        loop.run_until_complete(tool())
        gc.collect()
    finally:
        loop.close()
    assert "background_task_failed" in [record.message for record in caplog.records]
    assert "private letter" not in "".join(capfd.readouterr()) + caplog.text
