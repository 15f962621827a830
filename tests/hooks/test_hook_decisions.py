"""What becomes of an event, and in which order it is looked at."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels.hooks.route import NOT_GENUINE, Faulty, Filtered, Route, Wanted, judge
from tests.support.hooks import OTHER, SECRET, by_hmac, by_time, judged_by, raw, route

NOW = 1_764_590_400.0
GOOD = b'{"customer": {"id": 7}, "type": "paid", "n": "d-1"}'


def judged(body: bytes = GOOD, headers: dict[str, str] | None = None, **fields: Any) -> Wanted | Filtered | Faulty:
    return judged_by(route(**fields), raw(by_hmac(body) if headers is None else headers), body, NOW)


def wanted(body: bytes = GOOD, headers: dict[str, str] | None = None, **fields: Any) -> Wanted:
    met = judged(body, headers, **fields)
    assert isinstance(met, Wanted), met
    return met


def fault_of(met: Wanted | Filtered | Faulty) -> str:
    return met.fault if isinstance(met, Faulty) else type(met).__name__


@pytest.mark.requirement("hooks:order")
def test_of_two_faults_the_earlier_one_answers() -> None:
    """Faults in the order of the checks; with each one all later ones are there, too."""
    strict = {"events": ["paid"], "prompt": "{/none}", "on_missing": "refuse"}
    other = {"X-Webhook-Event": "other"}
    steps = [
        judged(b"{", by_hmac(b"{", OTHER, **other), **strict),
        judged(GOOD, by_hmac(GOOD, OTHER, **other), **strict),
        judged(GOOD, by_hmac(GOOD, **other), **strict),
        judged(GOOD, by_hmac(GOOD, **{"X-Webhook-Event": "paid"}), **strict),
        judged(GOOD, by_hmac(GOOD)),
    ]
    assert [fault_of(met) for met in steps] == [
        "invalid_json",
        "verification_failed",
        "Filtered",
        "payload_refused",
        "Wanted",
    ]


@pytest.mark.requirement("hooks:verification:same-answer")
def test_whatever_does_not_prove_itself_is_told_the_same() -> None:
    timed = {"verification": "hmac_timestamped"}
    assert judged(GOOD, {}) == judged(GOOD, by_hmac(GOOD, OTHER)) == judged(GOOD, {"X-Webhook-Signature": "x"})
    assert judged(GOOD, by_time(GOOD, NOW - 9999), **timed) == judged(GOOD, by_hmac(GOOD), **timed) == NOT_GENUINE
    assert fault_of(judged(GOOD, by_time(GOOD, NOW), **timed)) == "Wanted"


@pytest.mark.requirement("hooks:filter")
def test_types_of_events_are_told_by_a_header_or_by_the_payload() -> None:
    def kind(headers: dict[str, str], **fields: Any) -> str | None:
        return wanted(GOOD, by_hmac(GOOD, **headers), **fields).event_type

    assert kind({"X-Webhook-Event": "push"}) == "push"
    assert kind({"x-webhook-event": " push "}) == "push"
    assert kind({}) is None
    assert kind({"X-GitHub-Event": "push"}, event_header="X-GitHub-Event") == "push"
    assert kind({"X-Webhook-Event": "push"}, event_pointer="/type") == "paid"
    assert kind({"X-Webhook-Event": "push"}, event_pointer="/customer") is None


@pytest.mark.requirement("hooks:filter")
def test_only_the_types_that_were_set_are_taken() -> None:
    for given_type, taken in (("paid", True), ("Paid", False), ("paid.late", False), ("", False)):
        headers = by_hmac(GOOD, **{"X-Webhook-Event": given_type, "X-Webhook-Delivery": "d-9"})
        met = judged(GOOD, headers, events=["paid", "opened"])
        assert isinstance(met, Wanted if taken else Filtered), given_type
        assert (met.event_type, met.delivery_id) == (given_type or None, "d-9")
    assert fault_of(judged(GOOD, by_hmac(GOOD), events=["paid"])) == "Filtered"


@pytest.mark.requirement("hooks:dedupe:id")
def test_a_delivery_is_known_by_its_id_on_its_route() -> None:
    first = wanted(GOOD, by_hmac(GOOD, **{"X-Webhook-Delivery": "d-1"}))
    other_body = GOOD.replace(b"paid", b"open")
    again = wanted(other_body, by_hmac(other_body, **{"X-Webhook-Delivery": "d-1"}))
    other = wanted(GOOD, by_hmac(GOOD, **{"X-Webhook-Delivery": "d-2"}))
    assert first.key == again.key != other.key
    assert first.key is not None
    assert (first.delivery_id, first.key_s) == ("d-1", 86400)
    assert wanted(GOOD, by_hmac(GOOD), delivery_pointer="/n").key == first.key
    assert wanted(GOOD, by_hmac(GOOD, **{"X-Hub-Delivery": "d-1"}), delivery_header="X-Hub-Delivery").key == first.key
    assert wanted(GOOD, by_hmac(GOOD, **{"X-Webhook-Delivery": "d-1"}), dedupe_s=60).key_s == 60


@pytest.mark.requirement("hooks:dedupe:bytes")
def test_ids_that_are_no_utf_8_are_told_alike_and_are_different_deliveries() -> None:
    def of(*ids: bytes) -> Wanted:
        met = judge(route(), {**raw(by_hmac(GOOD)), "x-webhook-delivery": list(ids)}, GOOD)
        assert isinstance(met, Wanted)
        return met

    one, other = of(b"d-\xe9"), of(b"d-\xe8")
    assert one.delivery_id == other.delivery_id == "d-\ufffd"
    assert len({one.key, other.key, of("d-\ufffd".encode()).key, of(b"d-").key}) == 4
    assert of(b" d-\xe9 ").key == one.key
    assert of(b"a", b"b").key == of(b"a, b").key
    bodies = [b'{"n": "d-\\ud800"}', b'{"n": "d-\\ud801"}', b'{"n": "d-\\ufffd"}']
    halves = [wanted(body, by_hmac(body), delivery_pointer="/n") for body in bodies]
    assert len({each.key for each in halves}) == 3
    assert {each.delivery_id for each in halves} <= {"d-\ufffd", "d-\ufffd\ufffd\ufffd"}


def vars_of(one: Route) -> dict[str, Any]:
    return {name: getattr(one, name) for name in Route.__dataclass_fields__}


@pytest.mark.requirement("hooks:dedupe:id")
def test_the_same_id_on_another_route_is_another_delivery() -> None:
    headers = raw(by_hmac(GOOD, **{"X-Webhook-Delivery": "d-1"}))
    one, other = (judged_by(Route(**{**vars_of(route()), "name": name}), headers, GOOD, NOW) for name in ("a", "b"))
    assert isinstance(one, Wanted)
    assert isinstance(other, Wanted)
    assert one.key != other.key


@pytest.mark.requirement("hooks:dedupe:without-id")
def test_a_delivery_without_an_id_is_known_by_its_body_only_where_that_is_set() -> None:
    assert wanted(GOOD).key is None
    by_body = wanted(GOOD, dedupe_body_s=60)
    assert by_body.key is not None
    assert (by_body.delivery_id, by_body.key_s) == (None, 60)
    assert wanted(GOOD + b" ", dedupe_body_s=60).key != by_body.key
    with_id = wanted(GOOD, by_hmac(GOOD, **{"X-Webhook-Delivery": "d-1"}), dedupe_body_s=60)
    assert with_id.key_s == 86400


@pytest.mark.requirement("hooks:dedupe:id")
def test_the_signed_id_of_standard_webhooks_is_the_delivery() -> None:
    standard = {"verification": "standard", "secrets": {"current": {"value": "whsec_" + "A" * 40}}}
    made = route(**standard)
    assert made.delivery.header == "webhook-id"
    assert route(**standard, header="svix").delivery.header == "svix-id"


@pytest.mark.requirement("hooks:labels")
def test_labels_are_fixed_or_of_the_payload() -> None:
    body = json.dumps({"id": 7, "text": "ü" * 300, "half": "a\ud800", "list": [], "empty": "", "yes": True}).encode()
    places = {name: f"/{name}" for name in ("id", "text", "half", "list", "empty", "yes", "none")}
    labels = wanted(body, labels={"team": "ops"}, labels_from=places, label_characters=5).labels
    assert labels == {"team": "ops", "id": "7", "text": "ü" * 5, "half": "a\ufffd", "yes": "true"}


@pytest.mark.requirement("hooks:order")
def test_what_an_answer_repeats_has_a_length() -> None:
    headers = by_hmac(GOOD, **{"X-Webhook-Event": "e" * 1000, "X-Webhook-Delivery": "d" * 1000})
    met = wanted(GOOD, headers)
    assert (met.event_type, met.delivery_id) == ("e" * 200, "d" * 200)
    longer = by_hmac(GOOD, **{"X-Webhook-Delivery": "d" * 1001})
    assert wanted(GOOD, longer).key != met.key


@pytest.mark.requirement("hooks:order")
@given(
    st.dictionaries(
        st.sampled_from(["x-webhook-signature", "x-webhook-event", "x-webhook-delivery", "content-type"]),
        st.lists(st.binary(max_size=50), max_size=2),
    ),
    st.binary(max_size=100) | st.sampled_from([GOOD, b"{}", b"[1]", b'"x"']),
    st.booleans(),
)
def test_no_request_raises(headers: dict[str, list[bytes]], body: bytes, signs: bool) -> None:
    signed = {**headers, **raw(by_hmac(body, SECRET))} if signs else headers
    fields = {"session": "s/{/customer/id}", "labels_from": {"a": "/type"}, "event_pointer": "/type"}
    judged_by(route(**fields), signed, body, NOW)
