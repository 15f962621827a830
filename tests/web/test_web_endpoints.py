"""Endpoints over HTTP."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from standardwebhooks import Webhook

from channels.delivery.lane import OPEN_AFTER
from channels.delivery.model import Failed
from channels.endpoint_desk import EndpointDesk
from channels.endpoint_settings import Definition, EndpointFields
from channels.endpoints import record
from channels.endpoints.directory import Directory
from channels.endpoints.model import Endpoint
from channels.endpoints.rings import tell_ring
from channels.endpoints.signing_keys import decode_secret
from channels.outbox.outbox import Outbox
from channels.settings import Settings
from channels.vault_section import open_vault
from channels.web import tokens
from channels.web.process import WebProcess
from tests.delivery.outboxes import BUSY, box, inserted, tried
from tests.support.web import VAULT_KEY, Served, serving, web_settings
from tests.web.test_web_turns import error_of
from worker.errors import ConfigurationError
from worker.store import keys

BOTH = ("endpoints:read", "endpoints:write")
URL = "https://hooks.example/hush/path?token=hush"
CRM = {"name": "crm", "url": URL, "events": ["turn.*"], "headers": {"Authorization": "Bearer hush"}}

WELL = {
    "state": "active",
    "why": "",
    "since_ms": None,
    "failed": 0,
    "failing_since_ms": None,
    "open_until_ms": None,
    "not_before_ms": None,
}

FORBIDDEN = {
    "http://169.254.169.254/hush": "169.254.169.254",
    "http://[::1]/hush": "::1",
    "http://localhost/hush": "localhost",
    "http://10.0.0.1/hush": "10.0.0.1",
    "https://hooks.example:25/hush": "25",
}


def settings_of(url: str, folder: Path, **more: Any) -> Settings:
    """Those of a web process with an endpoint of its own in the settings."""
    shared = web_settings(url, **more.pop("web", {}))
    given = {"ops": {"url": "https://ops.example/hush", "headers": {"X-Team": "hush"}}}
    return Settings.model_validate(
        {**shared.model_dump(exclude_unset=True, exclude={"vault"}), "endpoints": given, "data_dir": folder, **more}
    )


@pytest.fixture
def settings(real_url: str, tmp_path: Path) -> Settings:
    return settings_of(real_url, tmp_path)


async def made(client: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    answer = await client.post("/v1/endpoints", json={**CRM, **fields})
    assert answer.status_code == 201, answer.text
    told: dict[str, Any] = answer.json()
    return told


def directory_of(web: Served) -> Directory:
    settings = web.settings
    return Directory(web.redis, open_vault(settings.vault, settings.data_dir), settings)


@pytest.mark.requirement("endpoints:http:create")
async def test_an_endpoint_is_made_and_its_secret_shown_once(settings: Settings) -> None:
    async with serving(settings) as web, await web.client(*BOTH) as client:
        answer = await client.post("/v1/endpoints", json=CRM)
        assert answer.status_code == 201
        told = answer.json()
        assert answer.headers["location"] == "/v1/endpoints/crm"
        assert (told["duplicate"], told["public_key"]) == (False, None)
        Webhook(told["secret"])  # an independent library takes it
        seen = (await client.get("/v1/endpoints/crm")).json()
        assert seen == told["endpoint"]
        assert (seen["origin"], seen["url"], seen["headers"]) == (
            "store",
            "https://hooks.example/...",
            ["Authorization"],
        )
        assert (seen["events"], seen["keys"]) == (["turn.*"], [{"scheme": "v1", "until_ms": None}])
        assert seen["standing"] == WELL
        assert "hush" not in answer.text + json.dumps(seen)
        assert told["secret"] not in json.dumps(seen) + (await client.get("/v1/endpoints")).text
        (found,) = await directory_of(web).look_up(["crm"])
        assert isinstance(found, Endpoint)
        assert (found.url, found.keys) == (URL, (decode_secret("secret", told["secret"]),))
        assert found.headers == (("Authorization", "Bearer hush"),)


@pytest.mark.requirement("endpoints:http:create")
async def test_a_secret_of_ones_own_is_taken_and_one_of_v1a_told_with_its_public_key(settings: Settings) -> None:
    async with serving(settings) as web, await web.client(*BOTH) as client:
        own = (await made(client))["secret"]
        assert (await made(client, name="own", secret=own))["secret"] == own
        pair = await made(client, name="pair", scheme="v1a")
        assert pair["secret"].startswith("whsk_")
        assert pair["public_key"].startswith("whpk_")


@pytest.mark.requirement("endpoints:http:conflict")
async def test_a_name_that_there_is_is_a_conflict_wherever_it_stands(settings: Settings) -> None:
    async with serving(settings) as web, await web.client(*BOTH) as client:
        await made(client)
        assert error_of(await client.post("/v1/endpoints", json=CRM)) == (409, "conflict", "name")
        answer = await client.post("/v1/endpoints", json={**CRM, "name": "ops"})
        assert error_of(answer) == (409, "conflict", "name")
        answers = await asyncio.gather(*(client.post("/v1/endpoints", json={**CRM, "name": "race"}) for _ in range(10)))
        assert sorted(one.status_code for one in answers) == [201, *[409] * 9]


@pytest.mark.requirement("endpoints:http:idempotent")
async def test_one_idempotency_key_makes_one_endpoint_however_often_and_at_once(settings: Settings) -> None:
    key = {"Idempotency-Key": "order 7"}
    async with serving(settings) as web, await web.client(*BOTH) as client:
        answers = await asyncio.gather(*(client.post("/v1/endpoints", json=CRM, headers=key) for _ in range(8)))
        told = [one.json() for one in answers]
        assert {one.status_code for one in answers} == {201}
        assert sorted(one["duplicate"] for one in told) == [False, *[True] * 7]
        assert len({one["secret"] for one in told}) == 1
        for other in ({**CRM, "name": "other"}, {**CRM, "headers": {"Authorization": "Bearer other"}}):
            answer = await client.post("/v1/endpoints", json=other, headers=key)
            assert error_of(answer) == (409, "conflict", "Idempotency-Key")
        assert error_of(await client.post("/v1/endpoints", json=CRM, headers={"Idempotency-Key": ""}))[0] == 422
    async with serving(settings) as web, await web.client(*BOTH) as stranger:
        assert error_of(await stranger.post("/v1/endpoints", json=CRM, headers=key)) == (409, "conflict", "name")


@pytest.mark.requirement("endpoints:http:idempotent-secret")
async def test_a_repeated_create_shows_no_secret_that_came_later(settings: Settings) -> None:
    key = {"Idempotency-Key": "order 7"}
    async with serving(settings) as web, await web.client(*BOTH) as client, await web.client(*BOTH) as other:
        first = (await client.post("/v1/endpoints", json=CRM, headers=key)).json()
        await other.patch("/v1/endpoints/crm", json={"payload": "thin"})
        again = (await client.post("/v1/endpoints", json=CRM, headers=key)).json()
        assert (again["secret"], again["duplicate"]) == (first["secret"], True)
        rotated = (await other.post("/v1/endpoints/crm/rotate", json={"overlap_s": 0})).json()
        answer = await client.post("/v1/endpoints", json=CRM, headers=key)
        told = answer.json()
        assert (answer.status_code, told["secret"], told["public_key"], told["duplicate"]) == (201, None, None, True)
        assert told["endpoint"]["name"] == "crm"
        assert rotated["secret"] not in answer.text


@pytest.mark.requirement("endpoints:http:idempotent-secret")
async def test_a_repeated_create_shows_nothing_of_what_another_made_under_the_name(settings: Settings) -> None:
    key = {"Idempotency-Key": "order 7"}
    async with serving(settings) as web, await web.client(*BOTH) as client, await web.client(*BOTH) as other:
        await made(client)
        await client.delete("/v1/endpoints/crm")
        await client.post("/v1/endpoints", json=CRM, headers=key)
        await client.delete("/v1/endpoints/crm")
        foreign = await made(other, url="https://b.example/x")
        answer = await client.post("/v1/endpoints", json=CRM, headers=key)
        assert error_of(answer) == (409, "conflict", "Idempotency-Key")
        assert foreign["secret"] not in answer.text


@pytest.mark.requirement("endpoints:http:refused")
@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"naem": "x"}, "naem", "there is no such field; remove it"),
        ({"name": "Crm"}, "name", "use 1 to 60 of a-z"),
        ({"name": "url-00"}, "name", "those of plain URLs"),
        ({"url": "ftp://hooks.example/hush"}, "url", "does not begin with http"),
        *[({"url": url}, "url", words) for url, words in FORBIDDEN.items()],
        ({"url": "https://u:hush@hooks.example"}, "url", "names a user or a password"),
        ({"secret": "v1,whsec_hush"}, "secret", "does not start with whsec_"),
        ({"secret": "whsec_hush"}, "secret", "base64"),
        ({"events": ["turn.complete"]}, "events.0", "did you mean 'turn.completed'?"),
        ({"events": [], "source": "crm"}, None, "source is set, but there are no events"),
        ({"headers": {"webhook-id": "hush"}}, "headers", "webhook-id is set by the signature"),
        ({"headers": {"X-Team": "hush\r\n"}}, "headers", "the value of X-Team holds"),
        ({"timeout_s": 301}, "timeout_s", "less than or equal to 300"),
        ({"burst": 2}, "burst", "there is no rate"),
        ({"head_wait_s": 9}, None, "nothing is in order"),
        ({"proxy": "http://hush"}, "proxy", "there is no such field"),
        ({"ca_file": "/etc/passwd"}, "ca_file", "there is no such field"),
        ({"secret_file": "/etc/passwd"}, "secret_file", "there is no such field"),
    ],
)
async def test_what_is_no_endpoint_is_refused_by_field_and_nothing_of_it_repeated(
    settings: Settings, fields: dict[str, Any], field: str | None, words: str
) -> None:
    async with serving(settings) as web, await web.client(*BOTH) as client:
        answer = await client.post("/v1/endpoints", json={**CRM, **fields})
        assert error_of(answer) == (422, "invalid", field)
        assert words in answer.json()["error"]["message"]
        assert "hush" not in answer.text
        assert (await client.get("/v1/endpoints")).json()["endpoints"][0]["name"] == "ops"
        assert await web.redis.exists(record.INDEX) == 0


@pytest.mark.requirement("endpoints:http:conflict")
async def test_a_body_that_is_too_long_is_413(real_url: str, tmp_path: Path) -> None:
    settings = settings_of(real_url, tmp_path, web={"body_bytes": 2000})
    async with serving(settings) as web, await web.client(*BOTH) as client:
        answer = await client.post("/v1/endpoints", json={**CRM, "labels": {"a": "x" * 2000}})
        assert error_of(answer)[:2] == (413, "too_large")


@pytest.mark.requirement("endpoints:http:update")
async def test_a_change_counts_from_the_next_look_on(settings: Settings) -> None:
    async with serving(settings) as web, await web.client(*BOTH) as client:
        first = await made(client, timeout_s=7)
        directory = directory_of(web)
        (before,) = await directory.look_up(["crm"])
        fields = {"url": "https://new.example/x", "headers": {"X-Team": "b"}, "timeout_s": None}
        answer = await client.patch("/v1/endpoints/crm", json=fields)
        assert answer.status_code == 200
        (after,) = await directory.look_up(["crm"])
        assert isinstance(before, Endpoint)
        assert isinstance(after, Endpoint)
        assert (after.url, after.headers, after.timeout_s) == ("https://new.example/x", (("X-Team", "b"),), 15)
        assert (after.keys, after.subscription) == (before.keys, before.subscription)
        assert answer.json()["version"] > first["endpoint"]["version"]
        assert answer.json()["timeout_s"] is None


@pytest.mark.requirement("endpoints:http:update")
async def test_null_takes_back_whatever_was_said(settings: Settings) -> None:
    said = {
        "events": ["turn.*"],
        "source": "crm",
        "labels": {"team": "ops"},
        "headers": {"X-Team": "a"},
        "timeout_s": 7,
        "retry_waits_s": [1],
        "rate_per_s": 5,
        "burst": 2,
        "concurrency": 3,
        "order": "session",
        "head_wait_s": 60,
        "payload": "thin",
        "disable_after_s": 60,
    }
    assert {*said} == {*EndpointFields.model_fields}
    async with serving(settings) as web, await web.client(*BOTH) as client:
        bare = (await client.post("/v1/endpoints", json={"name": "bare", "url": CRM["url"]})).json()["endpoint"]
        await made(client, **said)
        for field in ("source", "labels", "burst", "head_wait_s", *said):  # first what means nothing without another
            answer = await client.patch("/v1/endpoints/crm", json={field: None})
            assert (answer.status_code, answer.json().get(field)) == (200, bare[field]), answer.text
        told = (await client.get("/v1/endpoints/crm")).json()
        assert {field: told[field] for field in said} == {field: bare[field] for field in said}
        error = error_of(await client.patch("/v1/endpoints/crm", json={"events": [None], "source": None}))
        assert error == (422, "invalid", "events.0")


@pytest.mark.requirement("endpoints:http:update")
async def test_a_change_of_another_version_is_a_conflict(settings: Settings) -> None:
    async with serving(settings) as web, await web.client(*BOTH) as client:
        version = (await made(client))["endpoint"]["version"]
        assert (await client.patch("/v1/endpoints/crm", json={"burst": None, "version": version})).status_code == 200
        for answer in (
            await client.patch("/v1/endpoints/crm", json={"payload": "thin", "version": version}),
            await client.post("/v1/endpoints/crm/rotate", json={"version": version}),
            await client.delete("/v1/endpoints/crm", params={"version": version}),
        ):
            assert error_of(answer) == (409, "conflict", "version")
        for body, field in (({"url": None}, "url"), ({"head_wait_s": 9}, None), ({"secret": "x"}, "secret")):
            assert error_of(await client.patch("/v1/endpoints/crm", json=body)) == (422, "invalid", field)
        assert (await client.get("/v1/endpoints/crm")).json()["payload"] is None


@pytest.mark.requirement("endpoints:moved")
async def test_headers_do_not_follow_an_endpoint_to_another_host(settings: Settings) -> None:
    async with (
        serving(settings) as web,
        await web.client(*BOTH) as client,
        await web.client("endpoints:write") as other,
    ):
        await made(client)
        for url in ("https://attacker.example/", "http://hooks.example/", "https://hooks.example:8443/path"):
            answer = await other.patch("/v1/endpoints/crm", json={"url": url})
            assert error_of(answer) == (422, "invalid", "headers")
            assert "hush" not in answer.text
        assert (
            await other.patch("/v1/endpoints/crm", json={"url": "https://hooks.example:443/new"})
        ).status_code == 200
        told = await other.patch("/v1/endpoints/crm", json={"url": "https://new.example/", "headers": {"X-Team": "b"}})
        assert (told.json()["url"], told.json()["headers"]) == ("https://new.example/...", ["X-Team"])
        (found,) = await directory_of(web).look_up(["crm"])
        assert isinstance(found, Endpoint)
        assert found.headers == (("X-Team", "b"),)
        told = await other.patch("/v1/endpoints/crm", json={"url": "https://newer.example/", "headers": {}})
        assert told.json()["headers"] == []


@pytest.mark.requirement("endpoints:moved")
async def test_a_client_certificate_does_not_follow_an_endpoint_to_another_host(settings: Settings) -> None:
    async with serving(settings) as web, await web.client(*BOTH) as client:
        desk = EndpointDesk(web.settings, web.redis)
        await desk.create("crm", Definition.model_validate({"url": URL, "cert_file": "/etc/crm.pem"}))
        answer = await client.patch("/v1/endpoints/crm", json={"url": "https://attacker.example/"})
        assert (answer.status_code, "cert_file stands for https://hooks.example/..." in answer.text) == (422, True)
        await desk.update("crm", {"url": "https://new.example/", "cert_file": None})
        assert (await desk.show("crm")).definition.cert_file is None


@pytest.mark.requirement("endpoints:http:update")
async def test_a_change_to_a_url_that_may_not_be_reached_is_refused(settings: Settings) -> None:
    async with serving(settings) as web, await web.client(*BOTH) as client:
        await made(client, headers={})
        for url in FORBIDDEN:
            assert error_of(await client.patch("/v1/endpoints/crm", json={"url": url})) == (422, "invalid", "url")


@pytest.mark.requirement("endpoints:http:update")
async def test_what_an_update_lets_through_is_looked_at_at_once(settings: Settings) -> None:
    """A slot that was an hour away is not waited for once the rate is another one."""
    async with serving(settings) as web, await web.client(*BOTH) as client:
        await made(client, headers={}, rate_per_s=0.001)
        await inserted(web.redis, "evt_1", "evt_2")
        outbox = Outbox(web.redis, lease_s=40, rules=directory_of(web).rules, chance=lambda: 0.5)
        assert len(await outbox.claim("one", 10)) == 1
        assert await outbox.claim("two", 10) == []
        await client.patch("/v1/endpoints/crm", json={"rate_per_s": None, "concurrency": 2})
        assert len(await outbox.claim("three", 10)) == 1


@pytest.mark.requirement("endpoints:http:rotate")
async def test_a_rotation_shows_the_new_secret_once_and_the_old_one_signs_on(settings: Settings) -> None:
    async with serving(settings) as web, await web.client(*BOTH) as client:
        old = (await made(client))["secret"]
        answer = await client.post("/v1/endpoints/crm/rotate", json={"overlap_s": 600})
        told = answer.json()
        assert [key["until_ms"] is None for key in told["endpoint"]["keys"]] == [True, False]
        (found,) = await directory_of(web).look_up(["crm"])
        assert isinstance(found, Endpoint)
        texts = [decode_secret("secret", text).key for text in (told["secret"], old)]
        assert [key.key for key in found.keys] == texts
        again = await client.post("/v1/endpoints/crm/rotate", json={"secret": told["secret"]})
        assert error_of(again) == (409, "refused", None)
        for _ in range(8):
            await client.post("/v1/endpoints/crm/rotate", json={})
        assert error_of(await client.post("/v1/endpoints/crm/rotate", json={}))[:2] == (409, "refused")
        assert error_of(await client.post("/v1/endpoints/crm/rotate", json={"overlap_s": 604801})) == (
            422,
            "invalid",
            "overlap_s",
        )
        last = await client.post("/v1/endpoints/crm/rotate", json={"overlap_s": 0, "scheme": "v1a"})
        assert [key["scheme"] for key in last.json()["endpoint"]["keys"]] == ["v1a"]


@pytest.mark.requirement("endpoints:http:delete")
async def test_a_deleted_endpoint_is_gone(settings: Settings) -> None:
    async with serving(settings) as web, await web.client(*BOTH) as client:
        await made(client)
        answer = await client.delete("/v1/endpoints/crm")
        assert (answer.status_code, answer.json()) == (200, {"name": "crm"})
        for answer in (
            await client.get("/v1/endpoints/crm"),
            await client.patch("/v1/endpoints/crm", json={}),
            await client.delete("/v1/endpoints/crm"),
            await client.post("/v1/endpoints/crm/rotate", json={}),
            *[await client.post(f"/v1/endpoints/crm/{verb}") for verb in ("pause", "resume", "test")],
        ):
            assert error_of(answer) == (404, "not_found", "name")


@pytest.mark.requirement("endpoints:deleted:in-flight")
async def test_a_name_is_a_conflict_while_an_attempt_to_its_deleted_endpoint_is_under_way(settings: Settings) -> None:
    async with serving(settings) as web, await web.client(*BOTH) as client:
        await made(client)
        await inserted(web.redis, "evt_1")
        [held] = await box(web.redis).claim("one", 1)
        await client.delete("/v1/endpoints/crm")
        answer = await client.post("/v1/endpoints", json=CRM)
        assert error_of(answer) == (409, "conflict", "name")
        await box(web.redis).settle([(held, BUSY)])
        await made(client)


@pytest.mark.requirement("endpoints:http:files")
async def test_an_endpoint_of_the_settings_is_listed_and_changed_there(settings: Settings) -> None:
    async with serving(settings) as web, await web.client(*BOTH) as client:
        seen = (await client.get("/v1/endpoints/ops")).json()
        assert (seen["origin"], seen["version"], seen["keys"]) == ("file", None, [])
        assert (seen["url"], seen["headers"]) == ("https://ops.example/...", ["X-Team"])
        for answer in (
            await client.patch("/v1/endpoints/ops", json={"payload": "thin"}),
            await client.delete("/v1/endpoints/ops"),
            await client.post("/v1/endpoints/ops/rotate", json={}),
        ):
            assert error_of(answer) == (409, "refused", "name")
            assert "change [endpoints.ops] of lastword.toml" in answer.json()["error"]["message"]


@pytest.mark.requirement("endpoints:http:standing")
@pytest.mark.parametrize("name", ["crm", "ops"])
async def test_an_endpoint_is_paused_and_resumed_wherever_it_stands(settings: Settings, name: str) -> None:
    async with serving(settings) as web, await web.client(*BOTH, name="alice") as client:
        await made(client)
        paused = (await client.post(f"/v1/endpoints/{name}/pause")).json()
        assert (paused["standing"]["state"], paused["standing"]["why"]) == ("paused", "paused by alice")
        assert paused["standing"]["since_ms"] > 0
        listed = (await client.get("/v1/endpoints")).json()["endpoints"]
        assert {one["name"]: one["standing"]["state"] for one in listed}[name] == "paused"
        resumed = (await client.post(f"/v1/endpoints/{name}/resume")).json()
        assert resumed["standing"] == WELL


@pytest.mark.requirement("endpoints:http:test")
@pytest.mark.parametrize("name", ["crm", "ops"])
async def test_a_test_event_is_put_on_its_way_to_the_endpoint_alone(settings: Settings, name: str) -> None:
    async with serving(settings) as web, await web.client(*BOTH) as client:
        await made(client)
        answer = await client.post(f"/v1/endpoints/{name}/test")
        assert answer.status_code == 202
        ((_, entry),) = await web.redis.xrange(keys.log(0))
        assert (entry[b"type"], entry[b"to"]) == (b"endpoint.test", name.encode())
        assert entry[b"event"].decode() == answer.json()["event"]
        assert json.loads(entry[b"data"])["endpoint"] == name


@pytest.mark.requirement("endpoints:http:list")
async def test_endpoints_are_listed_by_name_page_by_page(settings: Settings) -> None:
    async with serving(settings) as web, await web.client(*BOTH) as client:
        names = ["aa", "ab", "crm", "pq", "zz"]
        for name in reversed(names):
            await made(client, name=name)
        seen: list[str] = []
        after: str | None = ""
        while after is not None:
            page = (await client.get("/v1/endpoints", params={"limit": 2, "after": after})).json()
            seen += [one["name"] for one in page["endpoints"]]
            after = page["next"]
        assert seen == sorted([*names, "ops"])
        for query, field in (({"limit": "0"}, "limit"), ({"before": "x"}, "before")):
            assert error_of(await client.get("/v1/endpoints", params=query)) == (422, "invalid", field)


@pytest.mark.requirement("endpoints:http:unreadable")
async def test_an_endpoint_that_cannot_be_read_is_shown_with_its_fix_beside_the_others(
    real_url: str, tmp_path: Path
) -> None:
    """A default that its definition leans on was taken away; another record is damaged."""
    async with (
        serving(settings_of(real_url, tmp_path, delivery={"rate_per_s": 5})) as web,
        await web.client(*BOTH) as a,
    ):
        await made(a, burst=5)
        await made(a, name="good")
        await made(a, name="odd")
        await web.redis.hdel(record.record_key("odd"), "config")
    async with serving(settings_of(real_url, tmp_path)) as web, await web.client(*BOTH) as client:
        listed = {one["name"]: one for one in (await client.get("/v1/endpoints")).json()["endpoints"]}
        assert listed["good"]["fault"] is None
        assert "burst is set, but there is no rate" in listed["crm"]["fault"]
        assert (listed["crm"]["burst"], listed["crm"]["events"]) == (5, ["turn.*"])
        assert (listed["odd"]["url"], "delete it" in listed["odd"]["fault"]) == ("", True)
        assert (await client.get("/v1/endpoints/odd")).json() == listed["odd"]
        assert (await client.post("/v1/endpoints/crm/pause")).status_code == 200
        mended = await client.patch("/v1/endpoints/crm", json={"burst": None})
        assert mended.json()["fault"] is None
        assert (await client.delete("/v1/endpoints/odd")).status_code == 200


@pytest.mark.requirement("endpoints:http:rotate")
async def test_a_key_that_signs_no_more_is_not_shown(settings: Settings) -> None:
    async with serving(settings) as web, await web.client(*BOTH) as client:
        await made(client)
        later = (await client.post("/v1/endpoints/crm/rotate", json={})).json()["endpoint"]["keys"][1]["until_ms"]
        for until_ms, count in ((later, 2), (1, 1)):
            ends = json.dumps([["v1", None], ["v1", until_ms]])
            await web.redis.hset(record.record_key("crm"), "key_ends", ends)
            assert len((await client.get("/v1/endpoints/crm")).json()["keys"]) == count


@pytest.mark.requirement("endpoints:http:scopes")
async def test_who_may_read_may_not_write_and_neither_may_who_speaks_for_some_turns(settings: Settings) -> None:
    """An endpoint gets what everybody's turns say."""
    async with serving(settings) as web:
        async with await web.client("endpoints:read") as reader:
            assert (await reader.get("/v1/endpoints")).status_code == 200
            for answer in (
                await reader.post("/v1/endpoints", json=CRM),
                await reader.patch("/v1/endpoints/ops", json={}),
                await reader.delete("/v1/endpoints/ops"),
                *[
                    await reader.post(f"/v1/endpoints/ops/{verb}", json={})
                    for verb in ("rotate", "pause", "resume", "test")
                ],
            ):
                assert error_of(answer)[:2] == (403, "forbidden")
        async with await web.client("endpoints:write") as writer:
            assert error_of(await writer.get("/v1/endpoints"))[:2] == (403, "forbidden")
        for narrow in ({"agent": "default"}, {"sessions": "team/"}):
            async with await web.client(*BOTH, **narrow) as some:
                for answer in (
                    await some.get("/v1/endpoints"),
                    await some.get("/v1/endpoints/ops"),
                    await some.post("/v1/endpoints", json=CRM),
                    await some.patch("/v1/endpoints/ops", json={}),
                    await some.delete("/v1/endpoints/ops"),
                    await some.post("/v1/endpoints/ops/rotate", json={}),
                    *[await some.post(f"/v1/endpoints/ops/{verb}") for verb in ("pause", "resume", "test")],
                ):
                    assert error_of(answer)[:2] == (403, "forbidden")
                    assert "speaks for some turns only" in answer.json()["error"]["message"]
        assert await web.redis.exists(record.INDEX) == 0
    assert set(BOTH) < set(tokens.SCOPES)


@pytest.mark.requirement("endpoints:http:destinations")
async def test_a_turn_may_name_an_endpoint_that_was_made_over_http(settings: Settings) -> None:
    async with serving(settings) as web, await web.client(*BOTH, "turns:write") as client:
        body = {"prompt": "hello", "destinations": ["crm", "ops"]}
        assert error_of(await client.post("/v1/turns", json=body)) == (422, "invalid", "destinations")
        await made(client)
        assert (await client.post("/v1/turns", json=body)).status_code == 202


@pytest.mark.requirement("endpoints:secrets:lost-key")
async def test_a_process_whose_master_key_is_lost_does_not_start_and_says_which_is_missing(
    real_url: str, tmp_path: Path
) -> None:
    async with serving(settings_of(real_url, tmp_path / "one")) as web, await web.client(*BOTH) as client:
        await made(client)
    process = WebProcess(settings_of(real_url, tmp_path / "two"))
    try:
        with pytest.raises(ConfigurationError, match="stored secrets of endpoints crm are encrypted with the key k"):
            await process.start()
    finally:
        await process.stop()


@pytest.mark.requirement("endpoints:secrets:lost-key")
async def test_a_process_without_stored_endpoints_needs_no_master_key(real_url: str, tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file where a folder should be")
    async with serving(settings_of(real_url, tmp_path / "data")) as web, await web.client(*BOTH) as client:
        assert (await client.get("/readyz")).status_code == 200
        answer = await client.post("/v1/endpoints", json=CRM)
        assert error_of(answer)[:2] == (503, "unavailable")
        assert "the master key" in answer.json()["error"]["message"]


@pytest.mark.requirement("operating:failing")
@pytest.mark.parametrize("name", ["crm", "ops"])
async def test_an_endpoint_that_fails_tells_since_when_and_when_it_is_tried_next(settings: Settings, name: str) -> None:
    async with serving(settings) as web, await web.client(*BOTH) as client:
        await made(client)
        asked = Failed("throttled", "http_429", "too many", "yes", retry_after=600.0)
        await tried(web.redis, *[BUSY] * OPEN_AFTER, asked, destination=name)
        one = (await client.get(f"/v1/endpoints/{name}")).json()["standing"]
        assert (one["state"], one["failed"]) == ("active", OPEN_AFTER)
        assert 0 < one["failing_since_ms"] < one["open_until_ms"] < one["not_before_ms"]
        listed = (await client.get("/v1/endpoints")).json()["endpoints"]
        assert {each["name"]: each["standing"] for each in listed}[name] == one


@pytest.mark.requirement("endpoints:http:keys")
async def test_master_keys_that_will_not_do_are_told_to_the_log_and_not_to_who_asks(
    real_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ring = tmp_path / "ring"
    ring.write_text(VAULT_KEY, encoding="utf-8")
    settings = settings_of(real_url, tmp_path, vault={"keys_file": ring})
    async with serving(settings) as web, await web.client(*BOTH) as client:
        await tell_ring(web.redis, "theirs", ["of-another-machine"])
        answer = await client.post("/v1/endpoints", json=CRM)
        assert error_of(answer) == (503, "unavailable", None)
        assert "Retry-After" not in answer.headers, "it does not pass by itself"
        for hidden in (str(ring), "of-another-machine", VAULT_KEY.partition(":")[0]):
            assert hidden not in answer.text
        [line] = [one for one in caplog.records if one.message == "endpoint_secrets_unreadable"]
        assert str(ring) in str(vars(line))


@pytest.mark.requirement("endpoints:http:full")
async def test_a_full_store_is_answered_as_such_and_as_the_document_says(settings: Settings) -> None:
    async with serving(settings) as web, await web.client(*BOTH) as client:
        document = (await client.get("/v1/openapi.json")).json()
        await made(client)
        asked = [
            ("POST", "/v1/endpoints", {**CRM, "name": "other"}),
            ("PATCH", "/v1/endpoints/{name}", {"concurrency": 3}),
            ("POST", "/v1/endpoints/{name}/rotate", {}),
            ("POST", "/v1/endpoints/{name}/test", None),
            ("DELETE", "/v1/endpoints/{name}", None),
        ]
        await web.redis.config_set("maxmemory", 1)
        try:
            for method, path, body in asked:
                answer = await client.request(method, path.replace("{name}", "crm"), json=body)
                assert error_of(answer) == (503, "store_full", None), (method, path)
                told = document["paths"][path][method.lower()]["responses"]["503"]
                assert "store_full" in json.dumps(told)
            for verb in ("pause", "resume"):
                assert (await client.post(f"/v1/endpoints/crm/{verb}")).status_code == 200
        finally:
            await web.redis.config_set("maxmemory", 0)
