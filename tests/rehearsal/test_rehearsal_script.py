"""Script files: each mistake is told with its file, its place, its value and its fix."""

from pathlib import Path

import pytest

from channels.rehearsal.script import load_script
from channels.rehearsal.steps import FOREVER, Call, Conversation, Cut, Pause, Raw, Say, Script, Stall
from worker.errors import ConfigurationError


def load(folder: Path, text: str) -> Script:
    """The script of this text."""
    path = folder / "script.toml"
    path.write_text(text, encoding="utf-8")
    return load_script(path)


def call(keys: str) -> str:
    """A script with one call."""
    return f"[[calls]]\n{keys}\n"


def step(keys: str) -> str:
    """A script whose second call has this step after another one."""
    return f'[[calls]]\nsteps = []\n[[calls]]\nsteps = [ {{ text = "x" }}, {{ {keys} }} ]\n'


def test_a_script_is_read_as_it_is_written(tmp_path: Path) -> None:
    (tmp_path / "captured.sse").write_bytes(b"\xff\x00")
    text = """
    after_last = "last"
    models = ["m"]
    [[calls]]
    delay_s = 2
    cut_at_byte = 9
    usage = { prompt_tokens = 1 }
    steps = [ { text = "abc", pieces = 2, every_s = 0.5 }, { pause_s = 1 }, { stall = true }, { cut = true } ]
    [[conversations]]
    match = "storm"
    after_last = "refuse"
    calls = [ { steps = [ { raw_file = "captured.sse", times = 2, chunk_bytes = 3 } ] } ]
    """
    plain = Call((Say(("a", "bc"), 0.5), Pause(1), Stall(FOREVER), Cut()), None, 2, 9, {"prompt_tokens": 1})
    storm = Conversation("storm", (Call((Raw(b"\xff\x00", 2, 3),)),), "refuse")
    assert load(tmp_path, text) == Script((storm, Conversation("", (plain,), "last")), ("m",))


MISTAKES = [
    ("", "calls is missing: add at least one [[calls]]"),
    ('after_last = "stop"\n' + call("steps = []"), "after_last = 'stop': write one of repeat, last, refuse"),
    ("models = [1]\n" + call("steps = []"), "models = [1]: write a list of texts in quotes"),
    ("cals = []", "cals = []: there is no such key; did you mean calls?"),
    ("zzz = 1", "zzz = 1: there is no such key; known here: after_last, calls, conversations, models"),
    ("calls = 3", "calls = 3: write a list of tables, as with [[calls]]"),
    ("calls = [3]", 'call 1: 3: write a table here, as in { text = "Hello" }'),
    (call("delay_s = 1"), "call 1: steps is missing: add steps, or a status, or html"),
    (call("steps = []\ndelay_s = -1"), "call 1: delay_s = -1: write true (for ever) or seconds as a number from 0 to"),
    (call('steps = []\ncut_at_byte = "9"'), "call 1: cut_at_byte = '9': write a whole number from 0 to"),
    (call("steps = []\nusage = 3"), "call 1: usage = 3: write a table"),
    (call(f"steps = []\nusage = {{ n = {2**70} }}"), "write only what JSON can hold"),
    (call("steps = []\nretry_after = 3"), "call 1: retry_after = 3: it belongs to a call with a status"),
    (call("status = 99"), "call 1: status = 99: write a whole number from 200 to 599"),
    (call("status = 500\nsteps = []"), "call 1: status = 500: a call has either this or steps: leave one out"),
    (call("status = 500\nheaders = { A = 1 }"), "write the value of 'A' as a text of printable ASCII"),
    (call('status = 500\nheaders = { A = "x\\n" }'), "write the value of 'A' as a text of printable ASCII"),
    (call("html = 5"), "call 1: html = 5: write a text in quotes"),
    (step("text = 5"), "call 2, step 2: text = 5: write a text in quotes"),
    (step('text = "x", pieces = 0'), "call 2, step 2: pieces = 0: write a whole number from 1 to 100000"),
    (step('text = "x", pieces = true'), "call 2, step 2: pieces = true: write a whole number"),
    (step('text = "x", every_s = "1"'), "call 2, step 2: every_s = '1': write seconds as a number from 0 to 86400"),
    (step('text = "x", evry_s = 1'), "call 2, step 2: evry_s = 1: there is no such key; did you mean every_s?"),
    (step('text = "x", stall = true'), "call 2, step 2: {'text': 'x', 'stall': True}: a step has exactly one of text,"),
    (step('txt = "x"'), "call 2, step 2: {'txt': 'x'}: a step has exactly one of text,"),
    (step("pause_s = nan"), "call 2, step 2: pause_s = nan: write seconds"),
    (step("pause_s = inf"), "call 2, step 2: pause_s = inf: write seconds"),
    (step("stall = false"), "call 2, step 2: stall = false: write true (for ever) or seconds"),
    (step("cut = false"), "call 2, step 2: cut = false: write cut = true, or leave the step out"),
    (step("tool = 1"), "call 2, step 2: tool = 1: write a text in quotes"),
    (step("error = 1"), "call 2, step 2: error = 1: write a table"),
    (step('raw_file = "none.sse"'), "none.sse cannot be read (No such file or directory); paths start at the script's"),
    ("[[conversations]]\ncalls = []", "conversation 1: match is missing: add it"),
    ('[[conversations]]\nmatch = ""', "conversation 1: match = '': write words of the first user message"),
    ('[[conversations]]\nmatch = "a"', "conversation 1: calls is missing: add at least one call"),
    (
        '[[conversations]]\nmatch = "a"\n[[conversations.calls]]\nsteps = [ { pause_s = -1 } ]',
        "conversation 1, call 1, step 1: pause_s = -1: write seconds",
    ),
    ("calls = [", "script.toml: "),
]


@pytest.mark.requirement("rehearsal:script:mistakes")
@pytest.mark.parametrize(("text", "told"), MISTAKES, ids=[f"{n}" for n in range(len(MISTAKES))])
def test_a_mistake_is_told_with_its_place_its_value_and_its_fix(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(tmp_path, text)
    message = str(caught.value)
    assert message.startswith(str(tmp_path / "script.toml"))
    assert told in message


@pytest.mark.requirement("rehearsal:script:mistakes")
def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"none\.toml cannot be read: No such file"):
        load_script(tmp_path / "none.toml")


@pytest.mark.requirement("rehearsal:script:mistakes")
def test_a_file_that_is_not_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "script.toml").write_bytes(b"# \xff")
    with pytest.raises(ConfigurationError, match=r"script\.toml: byte 2 is not UTF-8"):
        load_script(tmp_path / "script.toml")


def test_a_place_in_the_file_is_given_for_bad_toml(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"script\.toml: .*line 2"):
        load(tmp_path, "models = []\nmodels = oops")
