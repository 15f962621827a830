"""To which call a piece belongs, and when arguments are whole."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.codecs.toolargs import MAX_DEPTH, ToolCallPieces, parse_arguments


def calls_of(*pieces: tuple[int | None, str | None, str | None, str]) -> list[tuple[str, str, str]]:
    open_calls = ToolCallPieces()
    for piece in pieces:
        open_calls.add(*piece)
    return [(call.id, call.name, call.arguments) for call in open_calls.calls("answer")]


def test_an_id_at_an_index_that_two_calls_share_finds_its_own_call() -> None:
    pieces = [(0, "a", "f", "{"), (0, "b", "g", "["), (0, "a", None, "}"), (0, "b", None, "]")]
    assert calls_of(*pieces) == [("a", "f", "{}"), ("b", "g", "[]")]


def test_an_id_that_comes_late_is_kept() -> None:
    assert calls_of((0, None, "f", "{"), (0, "a", None, "}")) == [("a", "f", "{}")]


@pytest.mark.requirement("codecs:chat:made-up-id")
def test_the_same_id_at_two_indexes_is_two_calls_and_the_second_gets_an_id_of_its_own() -> None:
    pieces = [(0, "null", "f", "{}"), (1, "null", "g", "{"), (1, None, None, "}")]
    (first, *_), (second, *rest) = calls_of(*pieces)
    assert (first, rest) == ("null", ["g", "{}"])
    assert second.startswith("call_")
    assert calls_of(*pieces) == calls_of(*pieces)


def test_an_id_that_another_index_has_does_not_find_its_call() -> None:
    pieces = [(0, "a", "f", "{}"), (1, "b", "g", "{"), (0, "b", "h", "{}"), (1, None, None, "}")]
    assert [(name, arguments) for _, name, arguments in calls_of(*pieces)] == [("f", "{}"), ("h", "{}"), ("g", "{}")]


def test_another_name_at_one_index_without_ids_opens_another_call() -> None:
    pieces = [(0, None, "f", '{"x"'), (0, None, None, ":1}"), (0, None, "g", "{"), (0, None, None, "}")]
    assert [call[1:] for call in calls_of(*pieces)] == [("f", '{"x":1}'), ("g", "{}")]
    repeated = [(0, "a", "f", "{"), (0, None, "f", "}"), (0, "a", "f2", "")]
    assert calls_of(*repeated) == [("a", "f", "{}")]


def test_another_name_at_one_index_is_no_other_call_where_the_first_has_an_id() -> None:
    pieces = [(0, "a", "clock", ""), (0, None, "_utc", ""), (0, None, None, '{"x":1}')]
    assert calls_of(*pieces) == [("a", "clock", '{"x":1}')]
    assert [call[1] for call in calls_of((0, None, "f", "{}"), (0, "b", "g", "{}"))] == ["f", "g"]


def test_a_name_without_index_and_id_opens_a_call() -> None:
    calls = calls_of((None, None, "f", "{}"), (None, None, "f", "{}"))
    assert [(name, arguments) for _, name, arguments in calls] == [("f", "{}"), ("f", "{}")]


@pytest.mark.requirement("codecs:chat:end-flush")
@pytest.mark.parametrize("whole", ["{}", '{"a": [1, {"b": "}"}]}'])
def test_whole_arguments_that_are_repeated_count_once(whole: str) -> None:
    pieces = [(0, "a", "f", letter) for letter in whole]
    assert calls_of(*pieces, (0, None, None, whole), (0, None, None, whole)) == [("a", "f", whole)]


@pytest.mark.requirement("codecs:chat:end-flush")
def test_a_piece_that_only_resembles_what_came_is_kept() -> None:
    assert calls_of((0, "a", "f", '{"a'), (0, None, None, '{"a')) == [("a", "f", '{"a{"a')]
    assert calls_of((0, "a", "f", '{"a":1}'), (0, None, None, '{"a":2}')) == [("a", "f", '{"a":1}{"a":2}')]
    assert calls_of((0, "a", "f", "1"), (0, None, None, "1")) == [("a", "f", "11")]


def test_a_piece_is_told_the_place_of_its_call_in_the_order_of_opening() -> None:
    pieces = ToolCallPieces()
    places = [
        pieces.add(*piece) for piece in [(5, "a", "f", ""), (0, "b", "g", ""), (0, "c", "h", ""), (5, None, None, "{}")]
    ]
    assert places == [0, 1, 2, 0]
    assert [call.id for call in pieces.calls("answer")] == ["b", "c", "a"]


def test_without_repairs_arguments_that_are_repeated_are_kept_as_they_came() -> None:
    pieces = ToolCallPieces(repairs=False)
    pieces.add(0, "a", "f", "{}")
    pieces.add(0, None, None, "{}")
    assert [call.arguments for call in pieces.calls("answer")] == ["{}{}"]


def test_the_size_counts_every_piece_once() -> None:
    pieces = ToolCallPieces()
    pieces.add(0, "a", "f", '{"a"')
    pieces.add(0, None, None, ":1}")
    pieces.add(0, None, None, '{"a":1}')
    assert (len(pieces), pieces.size) == (1, 7)


ARGUMENTS = st.dictionaries(
    st.text(max_size=5), st.integers() | st.text(max_size=5) | st.lists(st.booleans(), max_size=2)
)


@pytest.mark.requirement("codecs:chat:strict-arguments")
@settings(deadline=None)
@given(ARGUMENTS, st.data())
def test_arguments_are_the_object_they_parse_to_and_nothing_when_cut(
    arguments: dict[str, object], draw: st.DataObject
) -> None:
    text = json.dumps(arguments)
    assert parse_arguments(text) == arguments
    cut = draw.draw(st.integers(1, len(text) - 1))
    assert parse_arguments(text[:cut]) is None


@pytest.mark.requirement("codecs:chat:strict-arguments")
@pytest.mark.parametrize(
    "text", ["[]", "7", '"x"', "true", "{} {}", '{"a":NaN}', "{'a':1}", '{"a":"\\ud83e"}', "[" * 100_000, "\ufeff{}"]
)
def test_arguments_that_are_no_json_object_are_never_repaired(text: str) -> None:
    assert parse_arguments(text) is None


@pytest.mark.requirement("codecs:chat:nested-arguments")
def test_arguments_may_be_nested_up_to_the_limit_and_no_deeper() -> None:
    def nested(depth: int) -> str:
        return '{"a":' * (depth - 1) + "{}" + "}" * (depth - 1)

    assert parse_arguments(nested(MAX_DEPTH)) is not None
    assert parse_arguments(nested(MAX_DEPTH + 1)) is None
    for depth in (1_000, 10_000, 300_000):
        assert parse_arguments('{"a":' + "[" * depth + "]" * depth + "}") is None


@pytest.mark.requirement("codecs:chat:nested-arguments")
@pytest.mark.parametrize("brackets", ["[{" * 5_000, '\\"[' * 5_000, "\\\\" + "[" * 5_000])
def test_brackets_inside_a_string_nest_nothing(brackets: str) -> None:
    text = '{"a": "' + brackets + '", "b": [[]]}'
    assert parse_arguments(text) == json.loads(text)


@pytest.mark.requirement("codecs:chat:nested-arguments")
def test_many_brackets_side_by_side_are_not_deep() -> None:
    text = '{"a": [' + ",".join(["[{}]"] * 5_000) + "]}"
    assert parse_arguments(text) == json.loads(text)


def test_numbers_beyond_64_bits_keep_every_digit() -> None:
    assert parse_arguments('{"wei": 123456789012345678901234567890}') == {"wei": 123456789012345678901234567890}


@pytest.mark.parametrize("text", ["", " \n", "null", "{}"])
def test_empty_arguments_are_an_empty_object(text: str) -> None:
    assert parse_arguments(text) == {}
