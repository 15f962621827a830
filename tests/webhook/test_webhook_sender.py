"""The sender against a real receiver on the loopback: what is asked for a batch, what is signed, what is poison."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from standardwebhooks.webhooks import Webhook

from channels.delivery.model import Delivered, Delivery, Failed, Hopeless, Unsent, Withdrawn
from channels.endpoints.directory import Directory
from channels.endpoints.headers import check_headers
from channels.endpoints.model import Endpoint, SigningKey
from channels.endpoints.vault import MasterKey, Ring, Vault
from channels.settings import Settings
from channels.webhook.sender import Found, Parcel, WebhookSender
from tests.support import posting
from tests.support.ports import free_port
from tests.support.posting import KEY, attempts, endpoint
from tests.support.receiver import Answer, Hang, Receiver
from worker.errors import ConfigurationError, NewerRecord, StoreUnavailable
from worker.store import connect

BODY = '{"type":"turn.completed","data":{"text":"Grüße aus 東京 🚀"}}'.encode()
DELIVERY = Delivery(
    id="dlv_00" + "a" * 20,
    event_id="evt_1",
    turn="turn_00" + "b" * 20,
    event_type="turn.completed",
    destination="crm",
    created_ms=1,
    due_ms=1,
    state="in_flight",
    attempts=1,
)


def now_s() -> float:
    return datetime.now(UTC).timestamp()  # noqa: TID251 - the verifying package has its own clock


async def nobody(_: object) -> list[Any]:
    raise AssertionError


@asynccontextmanager
async def sending(
    clock: Callable[[], float] = now_s, find: Any = nobody, bodies: Any = nobody
) -> AsyncIterator[WebhookSender]:
    async with attempts() as made:
        yield WebhookSender(made, find=find, bodies=bodies, clock=clock)


async def send(
    sender: WebhookSender, to: Endpoint, body: bytes = BODY, *, lease_s: float = 1000.0
) -> Delivered | Failed | Unsent:
    return await sender.send(DELIVERY, Parcel(to, body), asyncio.get_running_loop().time() + lease_s)


@pytest.mark.requirement("webhook:sender:signed")
async def test_the_receiver_verifies_the_very_bytes_that_arrive() -> None:
    async with Receiver() as receiver, sending() as sender:
        assert isinstance(await send(sender, endpoint(receiver.url)), Delivered)
        request = await receiver.nth(1)
    assert request.body == BODY
    verified = Webhook("whsec_" + base64.b64encode(KEY).decode()).verify(request.body, request.headers)
    assert verified == json.loads(BODY)
    assert request.headers["webhook-id"] == DELIVERY.id


@pytest.mark.requirement("webhook:sender:headers")
async def test_a_request_has_these_headers_and_no_others() -> None:
    own = (("X-Team", "a"), ("Authorization", "Bearer s3cret"))
    async with Receiver() as receiver, sending() as sender:
        await send(sender, endpoint(receiver.url, headers=own))
        headers = (await receiver.nth(1)).headers
    assert headers.pop("webhook-signature").startswith("v1,")
    assert headers.pop("webhook-timestamp").isdecimal()
    assert headers == {
        "host": receiver.url.split("/")[2],
        "content-length": str(len(BODY)),
        "content-type": "application/json",
        "webhook-id": DELIVERY.id,
        "user-agent": "lastword",
        "accept": "*/*",
        "accept-encoding": "identity",
        "x-team": "a",
        "authorization": "Bearer s3cret",
    }


@pytest.mark.requirement("webhook:sender:stable-id")
async def test_each_attempt_has_the_same_id_and_body_with_a_timestamp_and_signature_of_its_own() -> None:
    seconds = iter([1_790_000_000.9, 1_790_000_300.2])
    async with Receiver(Answer(500), Answer(200)) as receiver, sending(lambda: next(seconds)) as sender:
        await send(sender, endpoint(receiver.url))
        await send(sender, endpoint(receiver.url))
        first, second = await receiver.nth(1), await receiver.nth(2)
    assert first.body == second.body
    assert first.headers["webhook-id"] == second.headers["webhook-id"] == DELIVERY.id
    assert (first.headers["webhook-timestamp"], second.headers["webhook-timestamp"]) == ("1790000000", "1790000300")
    assert first.headers["webhook-signature"] != second.headers["webhook-signature"]


@pytest.mark.requirement("webhook:sender:keys-that-count")
@pytest.mark.requirement("hostile:clocks")
async def test_those_keys_sign_that_count_at_the_moment_of_the_attempt_by_a_clock_up_to_5_minutes_ahead() -> None:
    seconds = iter([1299.999, 1300.0])
    keys = (SigningKey("v1", b"n" * 32), SigningKey("v1", b"o" * 32, until_ms=1_000_000))
    async with Receiver() as receiver, sending(lambda: next(seconds)) as sender:
        await send(sender, endpoint(receiver.url, keys=keys))
        await send(sender, endpoint(receiver.url, keys=keys))
        before, after = await receiver.nth(1), await receiver.nth(2)
    assert len(before.headers["webhook-signature"].split(" ")) == 2
    assert len(after.headers["webhook-signature"].split(" ")) == 1


@pytest.mark.requirement("webhook:sender:cannot-sign")
@pytest.mark.parametrize("keys", [(), (SigningKey("v1", KEY, until_ms=1),)])
async def test_nothing_is_sent_unsigned(keys: tuple[SigningKey, ...]) -> None:
    async with Receiver() as receiver, sending() as sender:
        outcome = await send(sender, endpoint(receiver.url, keys=keys))
        assert receiver.requests == []
    assert isinstance(outcome, Failed)
    assert (outcome.kind, outcome.code, outcome.sent) == ("ours", "cannot_sign", "no")


@pytest.mark.requirement("webhook:sender:lease-too-short")
async def test_nothing_is_sent_when_the_lease_could_end_before_the_endpoints_deadline() -> None:
    async with Receiver() as receiver, sending() as sender:
        to = endpoint(receiver.url, timeout_s=7.0)
        assert isinstance(await send(sender, to, lease_s=7.0), Unsent)
        assert receiver.requests == []
        assert isinstance(await send(sender, to, lease_s=7.5), Delivered)


@pytest.mark.requirement("webhook:sender:lease-too-short")
async def test_an_attempt_ends_before_the_lease_that_admitted_it() -> None:
    loop = asyncio.get_running_loop()
    async with Receiver(Hang()) as receiver, sending() as sender:
        lease_ends = loop.time() + 0.9
        outcome = await sender.send(DELIVERY, Parcel(endpoint(receiver.url, timeout_s=0.3), BODY), lease_ends)
        assert isinstance(outcome, Failed)
        assert loop.time() < lease_ends


@pytest.mark.requirement("hostile:reserved-headers")
@pytest.mark.parametrize(
    "name",
    [
        *(
            "Host",
            "User-Agent",
            "Accept-Encoding",
            "Expect",
            "Date",
            "Connection",
            "Keep-Alive",
            "Proxy-Connection",
            "TE",
        ),
        *("Trailer", "Transfer-Encoding", "Upgrade", "Proxy-Authenticate", "Proxy-Authorization", "Content-Type"),
        *("Content-Length", "Content-Encoding", "Content-MD5", "Webhook-Id", "Webhook-Anything"),
    ],
)
async def test_a_header_that_no_endpoint_may_be_given_is_sent_by_none(name: str) -> None:
    with pytest.raises(ConfigurationError, match=name):
        check_headers("headers", {name: "x"})
    async with Receiver() as receiver, sending() as sender:
        outcome = await send(sender, endpoint(receiver.url, headers=((name, "x"),)))
        assert receiver.requests == []
    assert isinstance(outcome, Failed)
    assert (outcome.kind, outcome.code) == ("permanent", "bad_header")


@pytest.mark.requirement("webhook:sender:poison")
@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({"headers": (("X-Team", "s3cret\r\nX-Evil: 1"),)}, "bad_header"),
        ({"headers": (("X-Team", "s3cret\x00"),)}, "bad_header"),
        ({"headers": (("X-Team", "s3crét"),)}, "bad_header"),
        ({"headers": (("X Team", "s3cret"),)}, "bad_header"),
        ({"headers": (("", "s3cret"),)}, "bad_header"),
        ({"headers": (("Content-Length", "3"),)}, "bad_header"),
        ({"headers": (("Transfer-Encoding", "s3cret"),)}, "bad_header"),
        ({"headers": (("Webhook-Signature", "s3cret"),)}, "bad_header"),
        ({"headers": (("HOST", "s3cret"),)}, "bad_header"),
        ({"url": "http://[s3cret/"}, "invalid_url"),
        ({"url": "http://u:s3cret@127.0.0.1/"}, "invalid_url"),
    ],
)
async def test_what_cannot_be_sent_fails_its_own_delivery_with_a_reason(values: dict[str, Any], code: str) -> None:
    async with Receiver() as receiver, sending() as sender:
        outcome = await send(sender, endpoint(**({"url": receiver.url} | values)))
        assert receiver.requests == []
        assert isinstance(await send(sender, endpoint(receiver.url)), Delivered)
    assert isinstance(outcome, Failed)
    assert (outcome.kind, outcome.code, outcome.sent) == ("permanent", code, "no")
    assert "s3cr" not in outcome.message


def delivery(number: int, destination: str) -> Delivery:
    return replace(DELIVERY, id=f"dlv_{number}", destination=destination)


GONE = Withdrawn("endpoint_removed", "endpoint old was removed")
LOCKED = Failed("ours", "no_master_key", "its secret cannot be read", "no")


class Stores:
    """What is asked for, and answered."""

    def __init__(self, endpoints: dict[str, Found], bodies: dict[str, bytes | Hopeless | Unsent]) -> None:
        self.asked: list[Sequence[Any]] = []
        self._endpoints = endpoints
        self._bodies = bodies

    async def find(self, destinations: Sequence[str]) -> Sequence[Found]:
        self.asked.append(list(destinations))
        return [self._endpoints[name] for name in destinations]

    async def bodies(self, wanted: Sequence[tuple[Delivery, bool]]) -> Sequence[bytes | Hopeless | Unsent]:
        self.asked.append([(each.id, full) for each, full in wanted])
        return [self._bodies[each.id] for each, _ in wanted]


@pytest.mark.requirement("webhook:sender:nothing-to-send")
@pytest.mark.requirement("webhook:sender:batch")
async def test_a_batch_is_made_ready_with_two_questions() -> None:
    crm, thin = endpoint("http://crm.example/"), endpoint("http://thin.example/", name="thin", full=False)
    expired, later = Hopeless("turn_expired", "it is not stored any more"), Unsent("later", 3)
    stores = Stores(
        {"crm": crm, "thin": thin, "old": GONE, "locked": LOCKED},
        {"dlv_1": b"1", "dlv_3": b"3", "dlv_5": expired, "dlv_6": later},
    )
    names = ["crm", "old", "thin", "locked", "crm", "crm"]
    batch = [delivery(number, name) for number, name in enumerate(names, 1)]
    async with sending(find=stores.find, bodies=stores.bodies) as sender:
        ready = await sender.prepare(batch)
    assert ready == [Parcel(crm, b"1"), GONE, Parcel(thin, b"3"), LOCKED, expired, later]
    assert stores.asked == [
        ["crm", "old", "thin", "locked"],
        [("dlv_1", True), ("dlv_3", False), ("dlv_5", True), ("dlv_6", True)],
    ]


@pytest.mark.requirement("webhook:sender:batch")
async def test_where_nobody_is_left_no_body_is_asked_for() -> None:
    stores = Stores({"old": GONE}, {})
    async with sending(find=stores.find, bodies=stores.bodies) as sender:
        assert await sender.prepare([delivery(1, "old")]) == [GONE]
        assert stores.asked == [["old"]]
        assert await sender.prepare([]) == []


@pytest.mark.requirement("webhook:sender:store-away")
@pytest.mark.parametrize("error", [StoreUnavailable("Redis does not answer"), NewerRecord("a newer release")])
@pytest.mark.parametrize("when", ["find", "bodies"])
async def test_what_cannot_be_read_just_now_costs_no_attempt(error: Exception, when: str) -> None:
    async def fail(_: object) -> Any:
        raise error

    stores = Stores({"crm": endpoint("http://crm.example/")}, {"dlv_1": b"1"})
    find, bodies = (fail, stores.bodies) if when == "find" else (stores.find, fail)
    async with sending(find=find, bodies=bodies) as sender:
        ready = await sender.prepare([delivery(1, "crm"), delivery(2, "crm")])
    assert [type(each) for each in ready] == [Unsent, Unsent]
    waits = {each.after_s for each in ready if isinstance(each, Unsent)}
    assert waits == ({5.0} if isinstance(error, NewerRecord) else {0})


@pytest.mark.requirement("webhook:sender:store-away")
async def test_where_the_store_of_endpoints_is_away_nothing_is_charged() -> None:
    async with connect.open_redis(f"redis://127.0.0.1:{free_port()}/0") as away:
        directory = Directory(away, Vault(Ring((MasterKey("k1", b"k" * 32),), "vault.keys"), bytes), Settings())
        async with sending(find=directory.look_up) as sender:
            ready = await sender.prepare([delivery(1, "crm"), delivery(2, "crm")])
    assert ready == [Unsent("Redis did not answer")] * 2


async def test_the_sender_closes_what_it_opened() -> None:
    opened = posting.Opened()
    async with Receiver() as receiver, attempts(direct=opened) as made:
        sender = WebhookSender(made, find=nobody, bodies=nobody, clock=now_s)
        await send(sender, endpoint(receiver.url))
        await sender.close()
        assert opened.still_open == []


def test_a_parcel_keeps_secrets_out_of_its_repr() -> None:
    to = endpoint("http://h.example/?token=s3cret", keys=(SigningKey("v1", b"s3cret" * 5),), headers=(("A", "s3cret"),))
    assert "s3cret" not in repr(Parcel(to, b"s3cret"))
