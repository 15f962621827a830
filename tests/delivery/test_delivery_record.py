"""The stored form of a delivery: whole, of this release or the one before, and no secret where lanes are named."""

from dataclasses import astuple, fields, replace
from typing import Any, get_args

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels.delivery import model
from channels.delivery.model import Attempt, Delivery, Sent, State, lane_of, well_formed

texts = st.text(st.characters(codec=None, exclude_categories=()), max_size=20)
"""Any text that Python holds, with halves of surrogate pairs."""
counts = st.integers(0, 2**53)
attempts = st.builds(
    Attempt, counts, counts, code=texts, message=texts, sent=st.sampled_from(get_args(Sent)), took_ms=counts
)
deliveries = st.builds(
    Delivery,
    **{one.name: texts if one.type is str else counts for one in fields(Delivery) if one.type in {str, int}},
    state=st.sampled_from(get_args(State)),
    log=st.lists(attempts, max_size=3).map(tuple),
)


def readable(delivery: Delivery) -> Delivery:
    """What is left where texts have lone surrogates."""
    values = {one.name: getattr(delivery, one.name) for one in fields(delivery)}
    kept: dict[str, Any] = {
        name: well_formed(value) if isinstance(value, str) else value for name, value in values.items()
    }
    log = tuple(replace(one, code=well_formed(one.code), message=well_formed(one.message)) for one in delivery.log)
    return replace(delivery, **kept | {"log": log})


@pytest.mark.requirement("delivery:record:round-trip")
@given(deliveries)
def test_any_stored_delivery_reads_back_whole(delivery: Delivery) -> None:
    stored = model.encode(delivery)
    assert stored.decode("utf-8").startswith("[2,")
    assert model.decode(stored) == readable(delivery)


@pytest.mark.requirement("delivery:record:round-trip")
def test_a_reason_that_no_utf_8_holds_is_stored_with_a_mark_in_its_place() -> None:
    delivery = Delivery("dlv_1", "evt_1", "turn_1", "turn.failed", "crm", 1, 0, message="cannot read /data/\udcff")
    assert model.decode(model.encode(delivery)) == replace(delivery, message="cannot read /data/\ufffd")


@pytest.mark.requirement("delivery:record:first-version")
@pytest.mark.parametrize("missing", [1, 2])
def test_a_record_from_before_a_field_was_added_is_read_with_its_default(missing: int) -> None:
    delivery = Delivery("dlv_1", "evt_1", "turn_1", "turn.failed", "crm", 1, 0, message="busy")
    *values, log = orjson.loads(model.encode(delivery))
    assert model.decode(orjson.dumps([*values[:-missing], log])) == delivery
    assert model.decode(orjson.dumps([*values[:-3], log])) is None
    assert model.decode(orjson.dumps([*values, 0, log])) is None


FIRST = {
    "id": "dlv_1",
    "event_id": "evt_1",
    "turn": "turn_1",
    "event_type": "turn.completed",
    "destination": "https://Hooks.example/T0/secret",
    "created_ms": 5,
    "due_ms": 7,
    "state": "waiting",
    "attempts": 1,
    "version": 3,
    "token": "",
    "ended_ms": 0,
    "code": "http_503",
    "message": "busy",
    "log": [{"number": 1, "at_ms": 6, "code": "http_503", "message": "busy", "sent": "yes"}],
}


@pytest.mark.requirement("delivery:record:first-version")
def test_a_record_of_the_first_version_reads_as_one_in_the_lane_of_its_destination() -> None:
    read = model.decode(orjson.dumps({"v": 1, "delivery": FIRST}))
    assert read is not None
    assert (read.lane, read.mailbox) == (lane_of("https://hooks.example/"), "")
    assert (read.state, read.attempts, read.due_ms, read.version, read.first_ms) == ("waiting", 1, 7, 3, 7)
    assert read.log == (Attempt(1, 6, "http_503", "busy", "yes"),)
    assert model.decode(model.encode(read)) == read
    fresh = model.decode(orjson.dumps({"v": 1, "delivery": FIRST | {"attempts": 0, "log": []}}))
    assert fresh is not None
    assert fresh.first_ms == 0


def with_version(version: object) -> bytes:
    of_this = orjson.loads(model.encode(Delivery("dlv_1", "evt_1", "turn_1", "turn.failed", "crm", 1, 0)))
    return orjson.dumps([version, *of_this[1:]])


@pytest.mark.requirement("delivery:record:newer-version")
@pytest.mark.parametrize(
    "stored",
    [
        with_version(model.RECORD_VERSION + 1),
        with_version("2"),
        with_version(None),
        with_version(model.RECORD_VERSION)[:-1] + b",1]",
        orjson.dumps({"v": 2, "delivery": FIRST}),
        b'{"v":1,"delivery":{"id":"dlv_00"}}',
        b'{"v":1,"delivery":[]}',
        b'{"v":1}',
        b'{"v":"x"}',
        b"{}",
        b"[]",
        b"[2]",
        b"7",
        b"null",
        b'"text"',
        b"{",
        b"\xff",
        b"",
    ],
)
def test_a_record_that_cannot_be_read_is_left_alone(stored: bytes) -> None:
    assert model.decode(stored) is None


@pytest.mark.requirement("delivery:record:newer-version")
@pytest.mark.parametrize("name", [one.name for one in fields(Delivery)])
@pytest.mark.parametrize("value", [None, 1.5, True, [], ["x"], [["x"]], "of tomorrow", 7])
def test_a_record_with_a_value_that_this_release_does_not_know_is_left_alone(name: str, value: object) -> None:
    delivery = Delivery("dlv_1", "evt_1", "turn_1", "turn.failed", "crm", 1, 0, log=(Attempt(1, 1, "x", "y", "no"),))
    stored = orjson.loads(model.encode(delivery))
    place = 1 + [one.name for one in fields(Delivery)].index(name)
    is_known = (type(value) is type(stored[place]) and name not in {"state", "log"}) or (name == "log" and value == [])
    stored[place] = value
    assert (model.decode(orjson.dumps(stored)) is not None) == is_known


def test_of_a_new_delivery_nothing_has_happened() -> None:
    read = model.decode(with_version(model.RECORD_VERSION))
    assert read is not None
    happened = [value for value in astuple(read)[7:] if value]
    assert happened == ["queued", 1]
    assert Attempt(1, 1, "code", "message", "no").took_ms == 0


@pytest.mark.requirement("delivery:record:newer-version")
@given(st.binary(max_size=40) | st.recursive(st.integers() | texts | st.none(), st.lists).map(model.json_bytes))
def test_whatever_is_stored_in_its_place_nothing_raises(stored: bytes) -> None:
    assert model.decode(stored) is None


@pytest.mark.requirement("delivery:record:lane")
def test_urls_of_one_scheme_host_and_port_share_a_lane() -> None:
    one = lane_of("https://hooks.example/T0/secret?x=1")
    same = [
        "https://hooks.example",
        "HTTPS://HOOKS.Example:443/other",
        "https://hooks.example./",
        "https://u:p@hooks.example/",
    ]
    others = ["http://hooks.example/", "https://hooks.example:8443/", "https://example/"]
    assert {lane_of(url) for url in same} == {one}
    assert len({one, *map(lane_of, others)}) == 4
    assert lane_of("http://hooks.example:80/") == lane_of("http://hooks.example/")


@pytest.mark.requirement("delivery:record:lane")
@given(texts)
def test_the_lane_of_a_url_shows_nothing_of_it_and_no_url_is_too_broken_for_one(text: str) -> None:
    lane = lane_of(f"https://{text}")
    assert lane.startswith("url-")
    assert len(lane) == 20
    assert lane_of(text) == text or "://" in text
