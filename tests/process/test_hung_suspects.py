"""A suspect whose loop hangs when the process that started it is gone: nobody is left to end it but itself."""

from pathlib import Path

import pytest

from tests.process.scene import gone, lines_of, settings, suspect_of
from tests.support.stack import Stack, eventually, stand_in
from worker.output.events import TextDeltaOutput

pytestmark = [pytest.mark.process, pytest.mark.timeout(150)]

SCRIPT = """
after_last = "last"

[[calls]]
steps = [ { text = "Wait, and then wait. ", pieces = 20, every_s = 0.3 }, { tool = "freeze_again" } ]
"""


@pytest.mark.requirement("survive:hung:suspect")
async def test_a_suspect_that_hangs_without_a_parent_ends_itself_and_says_where_it_hung(
    tmp_path: Path, real_url: str
) -> None:
    """The parent is killed while the answer is streamed, long before the tool hangs the loop."""
    async with stand_in(SCRIPT, tmp_path) as provider, Stack(tmp_path, real_url) as stack:
        more = "[turns]\nsuspect_after = 1"
        stack.configure(settings(provider.base_url, more).replace('"poison"', '"freeze_again"'))
        first = stack.start("turns")
        turn = await stack.submit("Say something.", watch_s=60)
        await stack.until(turn, lambda output: isinstance(output, TextDeltaOutput))
        first.kill()
        parent = stack.start("turns")
        pid = await suspect_of(turn, parent)
        parent.kill()
        await gone(pid)

        async def cut_off() -> list[dict[str, object]]:
            return lines_of([parent], "process_cut_off")

        [line] = await eventually(cut_off, bool, "the word of the suspect that it ends itself")
    assert line["why"] == "loop_hangs"
    assert str(line["place"]).endswith(" freeze_again")
