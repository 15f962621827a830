"""Bodies as JSON, and the prompts and sessions that are made of them."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels.hooks.payload import (
    ABSENT,
    GLANCE_BYTES,
    MAX_DEPTH,
    NotJson,
    Pointer,
    found,
    glance,
    is_too_deep,
    parse_pointer,
    read_payload,
)
from channels.hooks.template import Event, Template, Unfillable, parse_session, parse_template, render, render_session
from worker import ids
from worker.errors import ConfigurationError

MISSING = "(not given)"


def event(value: Any, kind: str | None = "issue.opened") -> Event:
    return Event(read_payload(json.dumps(value).encode()), kind)


def filled(template: str, of: Event, missing: str | None = MISSING, most_bytes: int = 1000) -> str:
    return render(parse_template("prompt", template), of, missing=missing, most_bytes=most_bytes)


def named(template: str, value: Any) -> str:
    return render_session(parse_session("session", template), event(value))


@pytest.mark.requirement("hooks:template:pointers")
@pytest.mark.parametrize(
    ("pointer", "expected"),
    [
        ("/foo", ["bar", "baz"]),
        ("/foo/0", "bar"),
        ("/", 0),
        ("/a~1b", 1),
        ("/c%d", 2),
        ("/e^f", 3),
        ("/g|h", 4),
        ("/i\\j", 5),
        ('/k"l', 6),
        ("/ ", 7),
        ("/m~0n", 8),
    ],
)
def test_pointers_find_what_the_examples_of_rfc_6901_find(pointer: str, expected: Any) -> None:
    text = (
        r'{"foo": ["bar", "baz"], "": 0, "a/b": 1, "c%d": 2, "e^f": 3, "g|h": 4, "i\\j": 5, "k\"l": 6, " ": 7,'
        r' "m~n": 8}'
    )
    value = found(read_payload(text.encode()), parse_pointer("at", pointer))
    assert value == (str(expected) if isinstance(expected, int) else expected)


@pytest.mark.requirement("hooks:template:pointers")
def test_a_pointer_to_what_is_not_there_finds_nothing() -> None:
    payload = read_payload(b'{"list": [1, 2], "text": "abc", "null": null}')
    for text in ("/list/2", "/list/-", "/list/-1", "/list/01", "/list/+1", "/list/1e0", "/list/" + "9" * 400, "/text/0",
                 "/null/x", "/List", "/list/\u0661"):  # fmt: skip
        assert found(payload, parse_pointer("at", text)) is ABSENT, text
    assert found(payload, parse_pointer("at", "/null")) is None


@pytest.mark.requirement("hooks:template:refused")
@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("Hi {title}", "{title} is not known: use {/a/json/pointer}, {body}, {event}"),
        ("Hi {}", "{} is not known"),
        ("Hi {/a~2}", "'/a~2' is no JSON pointer"),
        ("Hi {/a", "the '{' at character 3 is never closed"),
        ("Hi }", "the '}' at character 3 closes nothing"),
        ("{{/a}", "the '}' at character 4 closes nothing"),
        ("{/" + "a" * 600 + "}", "a pointer has at most 500"),
        ("x" * 100_001, "a template has at most"),
    ],
)
def test_a_template_that_cannot_be_meant_so_is_refused_with_its_fix(template: str, words: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_template("prompt", template)
    assert str(caught.value).startswith("prompt")
    assert words in str(caught.value)


@pytest.mark.requirement("hooks:template:values")
def test_placeholders_stand_for_what_the_event_holds() -> None:
    of = event({"issue": {"title": "It {/burns} {{so}}", "n": 7, "open": True, "who": None, "tags": ["a", "ü"]}})
    assert filled("{event}: {/issue/title}", of) == "issue.opened: It {/burns} {{so}}"
    assert filled("{/issue/n} {/issue/open} {/issue/who} {/issue/tags}", of) == '7 true null ["a", "ü"]'
    assert filled("{{{/issue/n}}}, {{/issue/n}}", of) == "{7}, {/issue/n}"
    assert filled("{/issue/none}", of) == MISSING
    assert filled("{event}", event({}, None)) == MISSING


@pytest.mark.requirement("hooks:template:values")
def test_the_body_and_its_numbers_come_as_they_were_sent() -> None:
    text = '{ "big": 18446744073709551616, "small": 1.7976931348623157e+308, "money": 1.10,\n "deep": [-0.0, 1E2] }'
    of = Event(read_payload(text.encode()), None)
    assert filled("{body}", of) == text
    assert (
        filled("{/big} {/small} {/money} {/deep}", of)
        == "18446744073709551616 1.7976931348623157e+308 1.10 [-0.0, 1E2]"
    )
    digits = "9" * 5000
    assert filled("{/n}", Event(read_payload(f'{{"n": {digits}}}'.encode()), None), most_bytes=5000) == digits


@pytest.mark.requirement("hooks:template:missing")
def test_what_is_missing_is_refused_where_that_is_set() -> None:
    with pytest.raises(Unfillable, match="nothing at /a/b"):
        filled("{/a/b}", event({"a": "secret words"}), missing=None)
    with pytest.raises(Unfillable, match=r"nothing at \{event\}"):
        filled("{event}", event({}, None), missing=None)
    assert filled("{/a}", event({"a": None}), missing=None) == "null"


@pytest.mark.requirement("hooks:template:cap")
def test_a_prompt_that_is_too_long_or_empty_is_refused() -> None:
    assert filled("{/a}", event({"a": "ü" * 10}), most_bytes=20) == "ü" * 10
    with pytest.raises(Unfillable, match=r"20 bytes, more than 19 \(prompt_bytes\)"):
        filled("{/a}", event({"a": "ü" * 10}), most_bytes=19)
    with pytest.raises(Unfillable, match="empty"):
        filled("{/a}\n", event({"a": " "}))


@pytest.mark.requirement("hooks:template:session")
def test_a_session_is_made_of_texts_and_numbers_and_of_nothing_else() -> None:
    assert named("crm/{/customer/id}", {"customer": {"id": 42}}) == "crm/42"
    assert named("crm/{/a}/{/b}", {"a": "x/y", "b": "z"}) == "crm/x%2Fy/z"
    assert named("crm/{/a}/{/b}", {"a": "x", "b": "y/z"}) == "crm/x/y%2Fz"
    assert named("{event}/{/a}", {"a": False}) == "issue.opened/false"
    wrongs: list[dict[str, Any]] = [{}, {"a": ""}, {"a": None}, {"a": []}, {"a": {}}]
    for wrong in wrongs:
        with pytest.raises(Unfillable, match="/a, which names the session"):
            named("crm/{/a}", wrong)


SCALARS = st.text() | st.integers() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)


VALUES = st.text(min_size=1) | st.text(":/-._~%ax", min_size=1, max_size=4)
"""Any texts, and those that may be taken for what stands between them."""


@pytest.mark.requirement("hooks:template:session")
@given(st.text(":/-._~%ax", max_size=4), VALUES, VALUES, VALUES, VALUES)
def test_different_values_never_meet_in_one_session(between: str, a: str, b: str, c: str, d: str) -> None:
    template = f"crm/{{/0}}{between}{{/1}}"
    try:
        one, other = (named(template, pair) for pair in ([a, b], [c, d]))
    except ConfigurationError:
        assert not {*between} & {*":/"}
        return
    assert ids.is_session(one)
    assert (one == other) is ((a, b) == (c, d))


@pytest.mark.requirement("hooks:template:session")
@pytest.mark.parametrize("between", ["", "-", ".", "_", "~", "%", "x", "7", "%2F"])
def test_a_session_is_refused_where_nothing_tells_its_values_apart(between: str) -> None:
    for template in (f"crm/{{/a}}{between}{{/b}}", f"{{event}}{between}{{/a}}", f"{{/x}}:{{/a}}{between}{{/b}}/"):
        with pytest.raises(ConfigurationError) as caught:
            parse_session("session", template)
        assert "session: nothing tells where" in str(caught.value)
        assert "put a / or : between them" in str(caught.value)


@pytest.mark.requirement("hooks:template:session")
def test_halves_of_surrogate_pairs_never_meet_in_one_session() -> None:
    made = {named("crm/{/a}", {"a": value}) for value in ("\ud800", "\ud801", "\ufffd", "\ud800" * 30, "\ud801" * 30)}
    assert len(made) == 5
    assert all(map(ids.is_session, made))


@pytest.mark.requirement("hooks:template:session")
def test_a_long_value_becomes_a_hash_that_no_value_can_be_given_as() -> None:
    long = named("crm/{/a}", {"a": "x" * 61})
    assert ids.is_session(long)
    assert len(long) == len("crm/~") + 32
    assert named("crm/{/a}", {"a": long.removeprefix("crm/")}) != long
    assert named("crm/{/a}", {"a": "x" * 62}) != long


@pytest.mark.requirement("hooks:template:never-raises")
@given(st.text(max_size=60), JSON, st.none() | st.text(max_size=10))
def test_no_template_and_no_payload_raise_anything_else(text: str, value: Any, missing: str | None) -> None:
    try:
        template = parse_template("prompt", text)
    except ConfigurationError:
        return
    try:
        made = render(template, event(value), missing=missing, most_bytes=500)
    except Unfillable:
        return
    assert len(made.encode()) <= 500


@pytest.mark.requirement("hooks:template:never-raises")
@given(JSON, st.lists(st.text(max_size=5) | st.integers(-2, 5).map(str), min_size=1, max_size=4))
def test_a_place_shows_nothing_but_what_is_there(value: Any, steps: list[str]) -> None:
    """Names that Python knows of a value, such as __class__, are names like all others."""
    expected: Any = value
    for step in steps:
        if isinstance(expected, dict) and step in expected:
            expected = expected[step]
        elif isinstance(expected, list) and step.isascii() and step.isdigit() and str(int(step)) == step:
            expected = expected[int(step)] if int(step) < len(expected) else ABSENT
        else:
            expected = ABSENT
        if expected is ABSENT:
            break
    of = event(value)
    template = Template((Pointer("/x", tuple(steps)),))
    shown = render(template, of, missing="(absent)", most_bytes=10_000) if expected != "" else ""
    if expected is ABSENT:
        assert shown == "(absent)"
    elif isinstance(expected, str):
        assert shown == expected or not expected.strip()
    else:
        assert json.loads(shown) == expected


@pytest.mark.requirement("hooks:template:never-raises")
@given(st.binary(max_size=300))
def test_any_bytes_are_json_or_said_to_be_none(body: bytes) -> None:
    try:
        payload = read_payload(body)
    except NotJson:
        return
    json.loads(body)
    assert payload.text.encode() == body


@pytest.mark.requirement("hooks:json")
@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "no JSON text"),
        (b"{", "no JSON text"),
        (b"{} {}", "no JSON text"),
        (b"payload=%7B%7D", "no JSON text"),
        (b'{"a": NaN}', "no JSON text"),
        (b"-Infinity", "no JSON text"),
        (b"{'a': 1}", "no JSON text"),
        (b"\xef\xbb\xbf{}", "no JSON text"),
        (b'{"a": "\xff"}', "not UTF-8"),
        ('{"a": "ü"}'.encode("latin-1"), "not UTF-8"),
        ("{}".encode("utf-16"), "not UTF-8"),
        (b"[" * 101 + b"1" + b"]" * 101, "nested deeper than 100"),
        (b'{"a":' * 101 + b"1" + b"}" * 101, "nested deeper than 100"),
        (b"[" * 500_000 + b"]" * 500_000, "nested deeper than 100"),
        (b"[" * 500_000, "J"),
    ],
    ids=lambda value: repr(value)[:20] + (str(len(value)) if isinstance(value, bytes) else ""),
)
def test_what_is_no_json_is_said_to_be_none(body: bytes, words: str) -> None:
    with pytest.raises(NotJson, match=words) if words != "J" else pytest.raises(NotJson):
        read_payload(body)


@pytest.mark.requirement("hooks:json")
def test_what_is_json_is_read_however_odd() -> None:
    assert read_payload(b"[" * MAX_DEPTH + b"1" + b"]" * MAX_DEPTH).text
    assert filled("{/a}", Event(read_payload(b'{"a": 1, "a": 2}'), None)) == "2"
    assert filled("{/a}{/b}", Event(read_payload(b'{"a": "\\ud83d\\ude00", "b": "\\ud83d"}'), None)) == "😀\ufffd"
    assert filled("{/a}", Event(read_payload(b'{"a": {"\\udc00": "\\udc00"}}'), None)) == '{"\ufffd": "\ufffd"}'
    assert read_payload(b' "text" ').value == "text"


def unparsed(*_: Any, **__: Any) -> None:
    """Stands for the parser where nothing may be parsed."""
    raise AssertionError("it was parsed")


def nested(depth: int, inner: str = "1") -> str:
    return "".join("[" if level % 2 else '{"a": ' for level in range(depth)) + inner + "".join(
        "]" if level % 2 else "}" for level in reversed(range(depth))
    )  # fmt: skip


@pytest.mark.requirement("hooks:json:depth")
@given(st.integers(0, 2 * MAX_DEPTH + 2), st.text(alphabet='[]{}"\\a,: ', max_size=60), st.booleans())
def test_depth_is_counted_of_brackets_outside_of_texts(depth: int, words: str, as_list: bool) -> None:
    inner = json.dumps([words] * 30 if as_list else words)
    body = nested(depth, inner).encode()
    assert json.loads(body) is not None
    assert is_too_deep(body) is (depth + as_list > MAX_DEPTH)


@pytest.mark.requirement("hooks:json:depth")
def test_what_is_too_deep_is_refused_without_being_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json, "loads", unparsed)
    for body in (nested(MAX_DEPTH + 1).encode(), b"[" * 1_000_000, b'["\\"]",' * 1000 + b"[" * 1000):
        with pytest.raises(NotJson, match="nested deeper than 100"):
            read_payload(body)


@pytest.mark.requirement("hooks:json:glance")
def test_of_a_long_body_that_proves_nothing_only_the_ends_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    short, long = b"[" + b"1," * 100 + b"x]", b"[" + b"1," * GLANCE_BYTES + b"x]"
    with pytest.raises(NotJson, match="no JSON text"):
        glance(short)
    monkeypatch.setattr(json, "loads", unparsed)
    glance(long)
    glance(b" \r\n\t" + long + b"\n")
    for wrong, why in ((long[1:], "no JSON text"), (b"a=" + long, "no JSON text"), (long + b"\xff]", "not UTF-8")):
        with pytest.raises(NotJson, match=why):
            glance(wrong)
