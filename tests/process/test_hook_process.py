"""Inbound routes as an operator runs them: an event comes in, and its outcome goes out; a web process is killed."""

import asyncio
import signal
from pathlib import Path

import httpx
import pytest
from standardwebhooks import Webhook

from channels.console import hooks
from tests.support.hooks import OTHER, SECRET
from tests.support.receiver import Receiver
from tests.support.stack import SECRET as SIGNING
from tests.support.stack import Process, Stack, eventually, stand_in
from worker.store import keys
from worker.store.records import read_turn

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

BODY = '{"customer": {"id": 7}, "words": "secret words: zażółć"}'.encode()

SCRIPT = """
[[calls]]
steps = [ { text = "Customer 7 is well." } ]
"""


def settings(base_url: str, hook: str = "http://127.0.0.1:9/ops") -> str:
    return f"""
[providers.main]
base_url = "{base_url}"
model = "stand-in"

[turns]
keep_s = 2592000

[web]
drain_s = 3

[endpoints.receiver]
url = "{hook}"
secret = "{SIGNING}"

[hooks.crm]
verification = "hmac_timestamped"
prompt = "How is customer {{/customer/id}}? {{body}}"
session = "crm/{{/customer/id}}"
to = ["receiver"]
labels_from = {{ customer = "/customer/id" }}

[hooks.crm.secrets.current]
value = "{SECRET}"

[hooks.crm.secrets.before]
value = "{OTHER}"
"""


async def address_of(stack: Stack, process: Process) -> str:
    line = await stack.logged(process, "web_process_started")
    return f"http://{line['host']}:{line['port']}"


def signed(stack: Stack, delivery: str = "d-1") -> dict[str, str]:
    return hooks.headers_of(stack.settings.hooks["crm"], "crm", BODY, "changed", delivery, hooks._unix_s)


async def posted(url: str, headers: dict[str, str]) -> httpx.Response:
    async with httpx.AsyncClient(base_url=url, timeout=60) as sender:
        return await sender.post("/hooks/crm", content=BODY, headers=headers)


@pytest.mark.requirement("hooks:whole")
async def test_a_signed_event_is_answered_and_the_outcome_reaches_the_receiver(tmp_path: Path, real_url: str) -> None:
    async with stand_in(SCRIPT, tmp_path) as provider, Receiver() as receiver, Stack(tmp_path, real_url) as stack:
        stack.configure(settings(provider.base_url, receiver.url))
        for name in ("turns", "delivery"):
            stack.start(name)
        web = stack.start("web")
        url = await address_of(stack, web)
        headers = signed(stack)
        first, again = [(await posted(url, headers)).json() for _ in range(2)]
        request = await receiver.nth(1, 60)
        assert web.end() == 0
    assert (first["status"], again["reason"], again["turn"]) == ("accepted", "duplicate_delivery", first["turn"])
    event = Webhook(SIGNING).verify(request.body, request.headers)
    assert event["type"] == "turn.completed"
    assert (event["data"]["turn"], event["data"]["session"]) == (first["turn"], "crm/7")
    assert event["data"]["text"] == "Customer 7 is well."
    assert (event["data"]["source"], event["data"]["labels"]) == ("hook/crm", {"customer": "7"})
    assert len(receiver.requests) == 1
    assert provider.transcript.exchanges[0].prompt == f"How is customer 7? {BODY.decode()}"
    for word in ("secret words", SECRET, "d-1", "customer"):
        assert word not in web.log.read_text(encoding="utf-8")


@pytest.mark.requirement("hooks:killed")
@pytest.mark.parametrize(("when", "then"), [("before", "accepted"), ("after", "ignored")])
async def test_an_event_whose_process_was_killed_is_one_turn_when_it_comes_again(
    tmp_path: Path, real_url: str, when: str, then: str
) -> None:
    """Killed with SIGKILL when it was about to store the event, and when that was stored but not answered."""
    async with Stack(tmp_path, real_url) as stack:
        stack.configure(settings("http://127.0.0.1:9/v1"))
        line = ["web_dies_at_a_verb", "web", "--port", "0"]
        dying = stack._start("dying", line, {"DIES_AT": f"submit {when} 1"})
        living = stack.start("web")
        headers = signed(stack)
        with pytest.raises(httpx.TransportError):
            await posted(await address_of(stack, dying), headers)
        assert await asyncio.to_thread(dying.exit_code) == -signal.SIGKILL
        url = await address_of(stack, living)
        again = (await posted(url, headers)).json()
        last = (await posted(url, headers)).json()
        assert (again["status"], last["status"]) == (then, "ignored")
        assert again["turn"] == last["turn"]
        assert await stack.client.zrange(keys.live(0), 0, -1) == [again["turn"].encode()]
        record = await read_turn(stack.client, again["turn"])
        assert record is not None
        assert record.message.startswith("How is customer 7?")


@pytest.mark.requirement("hooks:drain")
async def test_a_process_that_drains_takes_events_until_it_listens_no_more(tmp_path: Path, real_url: str) -> None:
    async with Stack(tmp_path, real_url) as stack:
        stack.configure(settings("http://127.0.0.1:9/v1"))
        web = stack.start("web")
        url = await address_of(stack, web)
        web.send(signal.SIGTERM)
        await stack.logged(web, "web_process_draining")
        taken = (await posted(url, signed(stack))).json()
        assert taken["status"] == "accepted"

        async def refused() -> bool:
            try:
                await posted(url, signed(stack, "d-2"))
            except httpx.ConnectError:
                return True
            return False

        assert await eventually(refused, bool, "a web process that listens no more")
        assert web.exit_code() == 0
        record = await read_turn(stack.client, taken["turn"])
        assert record is not None
        assert record.state == "queued"
