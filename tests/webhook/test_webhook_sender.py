"""The sender against a real receiver on the loopback: every answer, and every way of not answering."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from aiohttp.abc import AbstractResolver
from standardwebhooks.webhooks import Webhook

from channels.delivery.model import Deferred, Delivered, Delivery, Outcome, Rejected, Unsent
from channels.webhook.payload import Resume, TokensUsed, TurnEnd, render
from channels.webhook.sender import MAX_BODY_BYTES, Sealed, Target, WebhookSender
from tests.support.receiver import Act, Answer, Drip, Flood, Hang, HangUp, Receiver, refusing_url
from worker.errors import ConfigurationError
from worker.http import open_client

KEY = b"k" * 32
DEADLINE_S = 5.0
TEXT = "Grüße aus 東京 🚀\n"

END = TurnEnd(
    turn="turn_00" + "b" * 20,
    session="room/1",
    agent="default",
    source="cli",
    outcome="completed",
    reason=None,
    text=TEXT,
    usage=TokensUsed(12, 3, 15, None, None, None),
    resume=Resume(0, None, 0),
    labels={},
    error=None,
)
DELIVERY = Delivery(
    id="dlv_00" + "a" * 20,
    event_id="evt_1",
    turn=END.turn,
    event_type="turn.completed",
    destination="crm",
    created_ms=1,
    due_ms=1,
    state="in_flight",
    attempts=1,
)


def now_s() -> float:
    return datetime.now(UTC).timestamp()  # noqa: TID251 - the verifying package has its own clock


@asynccontextmanager
async def sending(
    url: str,
    *,
    deadline_s: float = DEADLINE_S,
    clock: Callable[[], float] = now_s,
    headers: dict[str, str] | None = None,
    resolver: AbstractResolver | None = None,
) -> AsyncIterator[WebhookSender]:
    async def sealed(_turn: str) -> Sealed | None:
        return Sealed(1_790_000_000_000, END)

    async with open_client(connect_timeout_s=60, resolver=resolver) as client:
        target = Target(url, (KEY,), headers or {})
        yield WebhookSender(client, deadline_s=deadline_s, target=lambda _: target, sealed=sealed, clock=clock)


async def attempt(sender: WebhookSender, *, lease_s: float = 1000.0) -> Outcome | Unsent:
    return await sender.send(DELIVERY, asyncio.get_running_loop().time() + lease_s)


async def outcome_of(*acts: Act, deadline_s: float = DEADLINE_S) -> Outcome | Unsent:
    async with Receiver(*acts) as receiver, sending(receiver.url, deadline_s=deadline_s) as sender:
        return await attempt(sender)


@pytest.mark.requirement("webhook:sender:delivered")
@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
async def test_any_2xx_is_delivered(status: int) -> None:
    assert await outcome_of(Answer(status, body=b"")) == Delivered(status)


@pytest.mark.requirement("webhook:sender:deferred")
@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504, 599])
async def test_an_answer_that_may_pass_is_deferred(status: int) -> None:
    outcome = await outcome_of(Answer(status))
    assert isinstance(outcome, Deferred)
    assert (outcome.code, outcome.sent, outcome.retry_after) == (f"http_{status}", "yes", None)
    assert outcome.message.startswith("127.0.0.1:")
    assert f"answered {status}" in outcome.message


@pytest.mark.requirement("webhook:sender:rejected")
@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 410, 413, 422, 499])
async def test_an_answer_that_will_not_change_is_rejected(status: int) -> None:
    outcome = await outcome_of(Answer(status))
    assert isinstance(outcome, Rejected)
    assert outcome.code == f"http_{status}"
    assert ("gone for good" in outcome.message) == (status == 410)


@pytest.mark.requirement("webhook:sender:retry-after")
@pytest.mark.parametrize("status", [429, 503])
async def test_the_wait_that_a_receiver_asks_for_is_passed_on(status: int) -> None:
    outcome = await outcome_of(Answer(status, {"Retry-After": "120"}))
    assert isinstance(outcome, Deferred)
    assert outcome.retry_after == 120


@pytest.mark.requirement("webhook:sender:no-redirect")
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_a_failure_that_names_where_it_leads(status: int) -> None:
    async with Receiver() as elsewhere, Receiver(Answer(status, {"Location": elsewhere.url})) as receiver:
        async with sending(receiver.url) as sender:
            outcome = await attempt(sender)
        assert isinstance(outcome, Rejected)
        assert outcome.code == "redirect"
        assert f"a redirect to {elsewhere.url.split('/')[2]};" in outcome.message
        assert (len(receiver.requests), elsewhere.requests) == (1, [])


@pytest.mark.parametrize("location", ["", "http://[::1", "http://a b:99999/", "//"])
async def test_a_redirect_to_nowhere_is_the_same_failure(location: str) -> None:
    headers = {"Location": location} if location else {}
    outcome = await outcome_of(Answer(302, headers))
    assert isinstance(outcome, Rejected)
    assert outcome.code in {"redirect", "bad_redirect"}


@pytest.mark.requirement("webhook:sender:deadline")
async def test_a_receiver_that_never_answers_costs_one_deadline_and_is_deferred() -> None:
    before = asyncio.get_running_loop().time()
    outcome = await outcome_of(Hang(), deadline_s=0.3)
    assert isinstance(outcome, Deferred)
    assert (outcome.code, outcome.sent) == ("timeout", "perhaps")
    assert "gave no answer within 0.3 s" in outcome.message
    assert 0.3 <= asyncio.get_running_loop().time() - before < 5


class DeafResolver(AbstractResolver):
    async def resolve(self, *_: Any, **__: Any) -> Any:
        await asyncio.Event().wait()

    async def close(self) -> None:
        pass


async def test_the_deadline_covers_the_lookup_of_the_name() -> None:
    async with sending("http://hooks.example/", deadline_s=0.3, resolver=DeafResolver()) as sender:
        outcome = await attempt(sender)
    assert isinstance(outcome, Deferred)
    assert outcome.message == "hooks.example:80 gave no answer within 0.3 s"


@pytest.mark.requirement("webhook:sender:endless-body")
async def test_a_body_that_drips_for_ever_does_not_hold_the_sender() -> None:
    assert await outcome_of(Drip(200)) == Delivered(200)
    outcome = await outcome_of(Drip(503))
    assert isinstance(outcome, Deferred)
    assert outcome.code == "http_503"


async def test_a_body_that_drips_beyond_the_deadline_does_not_undo_the_status() -> None:
    assert await outcome_of(Drip(200), deadline_s=0.3) == Delivered(200)


@pytest.mark.requirement("webhook:sender:huge-body")
async def test_of_a_huge_body_no_more_than_a_little_is_read() -> None:
    async with Receiver(Flood(200), Answer(200)) as receiver, sending(receiver.url) as sender:
        assert await attempt(sender) == Delivered(200)
        assert receiver.bytes_flooded < 20 * 1024**2  # what the sockets between the two may hold, not a body
        assert await attempt(sender) == Delivered(200)


def test_the_limit_on_bodies_is_64_kb() -> None:
    assert MAX_BODY_BYTES == 64 * 1024


@pytest.mark.requirement("webhook:sender:refused")
async def test_a_refused_connection_is_deferred_and_surely_not_sent() -> None:
    with refusing_url() as url:
        async with sending(url) as sender:
            outcome = await attempt(sender)
    assert isinstance(outcome, Deferred)
    assert (outcome.code, outcome.sent) == ("connect_refused", "no")
    assert url.split("/")[2] in outcome.message


@pytest.mark.requirement("webhook:sender:hung-up")
async def test_a_receiver_that_hangs_up_after_the_request_is_deferred_and_perhaps_has_it() -> None:
    outcome = await outcome_of(HangUp())
    assert isinstance(outcome, Deferred)
    assert (outcome.code, outcome.sent) == ("reset", "perhaps")


@pytest.mark.requirement("webhook:sender:signed")
async def test_the_receiver_verifies_the_very_bytes_that_arrive() -> None:
    async with Receiver() as receiver, sending(receiver.url) as sender:
        await attempt(sender)
        request = await receiver.nth(1)
    assert request.body == render("turn.completed", 1_790_000_000_000, END)
    verified = Webhook("whsec_" + base64.b64encode(KEY).decode()).verify(request.body, request.headers)
    assert verified["data"]["text"] == TEXT
    assert request.headers["webhook-id"] == DELIVERY.id
    assert request.headers["content-type"] == "application/json"
    assert request.headers["accept-encoding"] == "identity"
    assert "cookie" not in request.headers


@pytest.mark.requirement("webhook:sender:stable-id")
async def test_each_attempt_has_the_same_id_and_body_with_a_timestamp_and_signature_of_its_own() -> None:
    seconds = iter([1_790_000_000.9, 1_790_000_300.2])
    async with Receiver(Answer(500), Answer(200)) as receiver:
        async with sending(receiver.url, clock=lambda: next(seconds)) as sender:
            await attempt(sender)
            await attempt(sender)
        first, second = await receiver.nth(1), await receiver.nth(2)
    assert first.body == second.body
    assert first.headers["webhook-id"] == second.headers["webhook-id"] == DELIVERY.id
    assert (first.headers["webhook-timestamp"], second.headers["webhook-timestamp"]) == ("1790000000", "1790000300")
    assert first.headers["webhook-signature"] != second.headers["webhook-signature"]


async def test_headers_of_the_subscriber_are_sent_but_never_replace_the_signature() -> None:
    headers = {"X-Team": "a", "Webhook-Id": "forged", "Content-Type": "text/plain"}
    async with Receiver() as receiver, sending(receiver.url, headers=headers) as sender:
        await attempt(sender)
        request = await receiver.nth(1)
    assert request.headers["x-team"] == "a"
    assert request.headers["webhook-id"] == DELIVERY.id
    assert request.headers["content-type"] == "application/json"


async def test_a_header_that_cannot_be_sent_is_rejected_with_its_reason() -> None:
    async with Receiver() as receiver, sending(receiver.url, headers={"X-Team": "a\r\nX-Evil: 1"}) as sender:
        outcome = await attempt(sender)
        assert receiver.requests == []
    assert isinstance(outcome, Rejected)
    assert (outcome.code, outcome.sent) == ("bad_header", "no")


async def test_cookies_of_one_answer_do_not_reach_the_next_request() -> None:
    async with Receiver(Answer(200, {"Set-Cookie": "who=crm"})) as receiver, sending(receiver.url) as sender:
        await attempt(sender)
        await attempt(sender)
        assert "cookie" not in (await receiver.nth(2)).headers


@pytest.mark.requirement("webhook:sender:lease-too-short")
async def test_nothing_is_sent_when_the_lease_could_end_before_the_deadline() -> None:
    async with Receiver() as receiver, sending(receiver.url) as sender:
        assert isinstance(await attempt(sender, lease_s=DEADLINE_S - 0.1), Unsent)
        assert receiver.requests == []
        assert await attempt(sender, lease_s=DEADLINE_S + 10) == Delivered(200)


@pytest.mark.requirement("webhook:sender:nothing-to-send")
async def test_a_destination_or_a_turn_that_is_not_known_any_more_is_rejected_unsent() -> None:
    def unknown(_destination: str) -> Target:
        raise ConfigurationError("destination 'crm' is not a subscriber; add [subscribers.crm]")

    async def expired(_turn: str) -> Sealed | None:
        return None

    async with open_client(connect_timeout_s=1) as client:
        sender = WebhookSender(client, deadline_s=1, target=unknown, sealed=expired, clock=now_s)
        assert await attempt(sender) == Rejected(
            "unknown_destination", "destination 'crm' is not a subscriber; add [subscribers.crm]", "no"
        )
        known = Target("http://127.0.0.1:9/", (KEY,), {})
        sender = WebhookSender(client, deadline_s=1, target=lambda _: known, sealed=expired, clock=now_s)
        outcome = await attempt(sender)
        assert isinstance(outcome, Rejected)
        assert outcome.code == "turn_expired"


@pytest.mark.requirement("webhook:sender:cannot-sign")
async def test_an_attempt_that_cannot_be_signed_for_want_of_a_file_is_deferred_with_its_reason() -> None:
    def locked(_destination: str) -> Target:
        raise PermissionError(13, "Permission denied", "/data/webhook-secret")

    async def sealed(_turn: str) -> Sealed | None:
        return Sealed(1_790_000_000_000, END)

    async with open_client(connect_timeout_s=1) as client:
        sender = WebhookSender(client, deadline_s=1, target=locked, sealed=sealed, clock=now_s)
        outcome = await attempt(sender)
    assert isinstance(outcome, Deferred)
    assert (outcome.code, outcome.sent) == ("cannot_sign", "no")
    assert "/data/webhook-secret" in outcome.message


def test_a_target_keeps_its_secrets_out_of_its_repr() -> None:
    shown = repr(Target("http://hooks.example/?token=s3cret", (b"s3cret" * 5,), {"Authorization": "s3cret"}))
    assert "s3cret" not in shown
    assert "s3cret" not in repr(DELIVERY.__class__(**{**json.loads(json.dumps(fields())), "destination": "s3cret"}))


def fields() -> dict[str, object]:
    return {name: getattr(DELIVERY, name) for name in DELIVERY.__slots__ if name != "log"}
