"""Who may ask the web process for what."""

import asyncio
from typing import Any

import httpx
import pytest

from channels.web import tokens
from tests.support.stack import eventually
from tests.support.web import Served, serving, web_settings
from tests.web.test_web_turns import error_of, submitted
from worker.errors import ConfigurationError
from worker.settings import TurnSettings

Redis = Any


@pytest.mark.requirement("tokens:stored")
async def test_of_a_token_only_a_digest_is_kept(real_redis: Redis) -> None:
    token, text = await tokens.create(real_redis, name="crm", scopes=frozenset({"turns:read"}))
    secret = text.split("_")[2]
    assert len(secret) == 64
    async for key in real_redis.scan_iter("*"):
        kind = await real_redis.type(key)
        stored = await (real_redis.hgetall(key) if kind == b"hash" else real_redis.zrange(key, 0, -1))
        assert secret not in str(stored)
        assert secret not in str(key)
    assert await tokens.find(real_redis, text) == token
    assert await tokens.listed(real_redis) == [token]
    assert secret not in repr(token)


@pytest.mark.requirement("tokens:refused")
async def test_a_token_that_is_none_was_revoked_or_has_expired_counts_for_nothing(real_redis: Redis) -> None:
    scopes = frozenset({"turns:read"})
    token, text = await tokens.create(real_redis, name="crm", scopes=scopes)
    other, _ = await tokens.create(real_redis, name="crm", scopes=scopes)
    short, short_text = await tokens.create(real_redis, name="crm", scopes=scopes, expires_s=0.05)
    swapped = f"lw_{other.id}_{text.split('_')[2]}"
    for wrong in ("", "lw_", text[:-1], text + "0", text.upper(), swapped, f"lw_{'0' * 16}_{'0' * 64}", "é" * 84):
        assert await tokens.find(real_redis, wrong) is None

    async def look() -> Any:
        return await tokens.find(real_redis, short_text)

    assert await eventually(look, lambda found: found is None, "the end of a token") is None
    assert short.id not in [one.id for one in await tokens.listed(real_redis)]
    assert await tokens.revoke(real_redis, token.id)
    assert await tokens.find(real_redis, text) is None
    assert not await tokens.revoke(real_redis, token.id)
    for words in ("", "turn_1", "../x"):
        with pytest.raises(ConfigurationError, match="16 hex digits"):
            await tokens.revoke(real_redis, words)


@pytest.mark.requirement("tokens:bad-input")
async def test_a_token_needs_scopes_that_exist_and_a_name(real_redis: Redis) -> None:
    for name, scopes, words in (
        ("crm", {"everything"}, "turns:write"),
        ("crm", set[str](), "scope is missing"),
        ("", {"turns:read"}, "name"),
        ("a\nb", {"turns:read"}, "name"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            await tokens.create(real_redis, name=name, scopes=frozenset(scopes))
    bounds: Any
    for bounds, words in (
        ({"sessions": ""}, "sessions is empty: give a beginning"),
        ({"agent": ""}, "agent is empty: name one"),
        ({"sessions": "a b{*"}, "sessions 'a b{\\*' is no beginning of a session id: use 1 to 200"),
        ({"sessions": "\udcff"}, "is no beginning of a session id"),
        ({"sessions": "x" * 201}, "is no beginning of a session id"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            await tokens.create(real_redis, name="crm", scopes=frozenset({"turns:read"}), **bounds)
    assert await tokens.listed(real_redis) == []


@pytest.mark.requirement("tokens:newer")
async def test_a_token_of_a_newer_version_counts_for_nothing(real_redis: Redis) -> None:
    token, text = await tokens.create(real_redis, name="crm", scopes=frozenset({"turns:read"}))
    for version, counts in (("2", False), ("1", True), ("", False), ("x", False)):
        await real_redis.hset(f"lw:token:{token.id}", "v", version)
        assert (await tokens.find(real_redis, text) is not None) is counts, version


@pytest.mark.requirement("tokens:listed")
async def test_all_tokens_are_listed_however_many(real_redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "_PAGE", 2)
    scopes = frozenset({"turns:read"})
    made = [(await tokens.create(real_redis, name=f"n{number}", scopes=scopes))[0] for number in range(5)]
    await real_redis.delete(f"lw:token:{made[1].id}")
    assert {one.id for one in await tokens.listed(real_redis)} == {one.id for one in made if one is not made[1]}
    assert await real_redis.zcard("lw:tokens") == 4


ROUTES = [
    ("POST", "/v1/turns", "turns:write"),
    ("GET", "/v1/turns", "turns:read"),
    ("GET", "/v1/turns/turn_00" + "0" * 20, "turns:read"),
    ("POST", "/v1/turns/turn_00" + "0" * 20 + "/cancel", "turns:write"),
    ("GET", "/v1/turns/turn_00" + "0" * 20 + "/events", "events:read"),
    ("GET", "/v1/approvals", "approvals:read"),
    ("POST", "/v1/approvals/appr_00" + "0" * 20 + "_1_0", "approvals:decide"),
]


@pytest.mark.requirement("tokens:scopes")
@pytest.mark.parametrize(("method", "path", "scope"), ROUTES)
async def test_each_route_wants_its_scope_and_says_which(web: Served, method: str, path: str, scope: str) -> None:
    body: dict[str, Any] = {"json": {"prompt": "hi"}} if path == "/v1/turns" and method == "POST" else {}
    if path.startswith("/v1/approvals/"):
        body = {"json": {"option": "deny"}}
    others = sorted(set(tokens.SCOPES) - {scope})
    async with await web.client(*others) as client:
        answer = await client.request(method, path, **body)
        assert error_of(answer)[:2] == (403, "forbidden")
        assert answer.json()["error"]["reason"] == scope
        assert scope in answer.json()["error"]["message"]
        assert f'scope="{scope}"' in answer.headers["www-authenticate"]
    async with await web.client(scope) as client:
        assert (await client.request(method, path, **body)).status_code in (200, 202, 404)
    async with httpx.AsyncClient(base_url=web.url) as stranger:
        for authorization in (
            "",
            "Bearer",
            "Bearer nonsense",
            "Basic dXNlcjpwdw==",
            f"Bearer lw_{'0' * 16}_{'0' * 64}",
        ):
            answer = await stranger.request(method, path, **body, headers={"Authorization": authorization})
            assert error_of(answer)[:2] == (401, "unauthorized")
            assert answer.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.requirement("tokens:scopes")
async def test_a_token_counts_no_more_from_the_moment_it_was_revoked(web: Served) -> None:
    async with await web.client("turns:read") as client:
        assert (await client.get("/v1/turns")).status_code == 200
        (token,) = await tokens.listed(web.redis)
        await tokens.revoke(web.redis, token.id)
        assert (await client.get("/v1/turns")).status_code == 401


@pytest.mark.requirement("tokens:limited")
async def test_a_token_of_an_agent_or_of_sessions_sees_nothing_else(real_url: str) -> None:
    settings = web_settings(real_url).model_copy(
        update={
            "agents": {
                "default": web_settings(real_url).agent("default"),
                "ops": web_settings(real_url).agent("default"),
            }
        }
    )
    scopes = ("turns:write", "turns:read", "events:read")
    async with serving(settings) as web:
        async with await web.client(*scopes) as all_of_it:
            mine = await submitted(all_of_it, agent="ops", session="crm/1")
            of_agent = await submitted(all_of_it, agent="default", session="crm/2")
            of_session = await submitted(all_of_it, agent="ops", session="erp/1")
        async with await web.client(*scopes, agent="ops", sessions="crm/") as client:
            listed = (await client.get("/v1/turns")).json()["turns"]
            assert [turn["turn"] for turn in listed] == [mine["turn"]]
            assert (await client.get(mine["urls"]["turn"])).status_code == 200
            for other in (of_agent, of_session):
                assert (await client.get(other["urls"]["turn"])).status_code == 404
                assert (await client.get(other["urls"]["events"])).status_code == 404
                assert (await client.post(other["urls"]["cancel"])).status_code == 404
            for body, field in (
                ({"prompt": "hi", "agent": "default", "session": "crm/9"}, "agent"),
                ({"prompt": "hi", "agent": "ops", "session": "erp/9"}, "session"),
                ({"prompt": "hi", "agent": "ops"}, "session"),
            ):
                assert error_of(await client.post("/v1/turns", json=body)) == (403, "forbidden", field)
            await submitted(client, agent="ops", session="crm/9")


@pytest.mark.requirement("tokens:limited:sessions")
async def test_a_token_of_one_agent_alone_gets_into_no_session_of_another(real_url: str) -> None:
    default = web_settings(real_url).agent("default")
    settings = web_settings(real_url).model_copy(update={"agents": {"default": default, "ops": default}})
    scopes = ("turns:write", "turns:read")
    async with serving(settings) as web:
        async with await web.client(*scopes) as all_of_it:
            theirs = await submitted(all_of_it, agent="default", session="shared")
        async with await web.client(*scopes, agent="ops") as client:
            for on_busy in ("queue", "interrupt", "reject"):
                for session in ("shared", theirs["session"], "solo/" + "0" * 20):
                    body = {"prompt": "hi", "agent": "ops", "session": session, "on_busy": on_busy}
                    answer = await client.post("/v1/turns", json=body)
                    assert error_of(answer) == (403, "forbidden", "session")
                    assert "--sessions" in answer.json()["error"]["message"]
            own = await submitted(client, agent="ops")
            assert own["session"] not in ("shared", theirs["session"])
            assert [turn["turn"] for turn in (await client.get("/v1/turns")).json()["turns"]] == [own["turn"]]
        async with await web.client(*scopes) as all_of_it:
            assert (await all_of_it.get(theirs["urls"]["turn"])).json()["state"] == "queued"


@pytest.mark.requirement("tokens:limited:interrupt")
@pytest.mark.parametrize("by_setting", [False, True])
async def test_a_token_of_an_agent_interrupts_no_turn_of_another_in_a_session_of_both(
    real_url: str, by_setting: bool
) -> None:
    default = web_settings(real_url).agent("default")
    turns = TurnSettings(on_busy="interrupt" if by_setting else "queue")
    settings = web_settings(real_url).model_copy(
        update={"agents": {"default": default, "ops": default}, "turns": turns}
    )
    how: dict[str, Any] = {} if by_setting else {"on_busy": "interrupt"}
    scopes = ("turns:write", "turns:read")
    async with (
        serving(settings) as web,
        await web.client(*scopes) as boss,
        await web.client(*scopes, agent="ops", sessions="crm/") as client,
    ):
        theirs = await submitted(boss, agent="default", session="crm/1", on_busy="queue")
        body = {"prompt": "hi", "agent": "ops", "session": "crm/1", **how}
        assert error_of(await client.post("/v1/turns", json=body)) == (403, "forbidden", "on_busy")
        assert [turn["turn"] for turn in (await boss.get("/v1/turns")).json()["turns"]] == [theirs["turn"]]
        assert (await boss.get(theirs["urls"]["turn"])).json()["state"] == "queued"
        own = await submitted(client, agent="ops", session="crm/2")
        later = await submitted(client, agent="ops", session="crm/2", **how)
        assert (await boss.get(own["urls"]["turn"])).json()["outcome"] == "cancelled"
        last = await submitted(boss, agent="default", session="crm/2", on_busy="interrupt")
        assert (await boss.get(later["urls"]["turn"])).json()["outcome"] == "cancelled"
        assert (await boss.get(last["urls"]["turn"])).json()["state"] == "queued"


@pytest.mark.requirement("web:list:all-of-it")
async def test_a_list_is_whole_behind_many_turns_of_others_and_says_when_it_is_not(web: Served) -> None:
    scopes = ("turns:write", "turns:read")
    async with await web.client(*scopes) as client:
        for number in range(8):
            await submitted(client, session=f"erp/{number}")
        mine = [(await submitted(client, session=f"crm/{number}"))["turn"] for number in range(3)]
    async with await web.client(*scopes, sessions="crm/") as client:
        for limit, shown, truncated in ((1, mine[:1], True), (2, mine[:2], True), (3, mine, False), (100, mine, False)):
            told = (await client.get("/v1/turns", params={"limit": limit})).json()
            assert ([turn["turn"] for turn in told["turns"]], told["truncated"]) == (shown, truncated), limit


@pytest.mark.requirement("tokens:destinations")
async def test_outcomes_go_to_any_url_only_with_the_scope_for_it(web: Served) -> None:
    body = {"prompt": "hi", "destinations": ["https://example.com/hook"]}
    async with await web.client("turns:write") as client:
        answer = await client.post("/v1/turns", json=body)
        assert error_of(answer)[:2] == (403, "forbidden")
        assert answer.json()["error"]["reason"] == "destinations:url"
    async with await web.client("turns:write", "destinations:url") as client:
        assert (await client.post("/v1/turns", json=body)).status_code == 202


@pytest.mark.requirement("tuning:web:requests-per-minute")
@pytest.mark.requirement("web:rates")
async def test_a_token_that_asks_too_often_waits_and_others_do_not(real_url: str) -> None:
    async with serving(web_settings(real_url, requests_per_minute=5)) as web:
        async with await web.client("turns:read") as client:
            codes = [(await client.get("/v1/turns")).status_code for _ in range(7)]
            assert codes == [200] * 5 + [429] * 2
            answer = await client.get("/v1/turns")
            assert error_of(answer)[:2] == (429, "rate_limited")
            assert 1 <= int(answer.headers["retry-after"]) <= 60
        async with await web.client("turns:read") as other:
            assert (await other.get("/v1/turns")).status_code == 200


@pytest.mark.requirement("tuning:web:failures-per-minute")
@pytest.mark.requirement("web:rates")
async def test_who_guesses_tokens_is_slowed_down_and_who_has_one_is_not(real_url: str) -> None:
    async with serving(web_settings(real_url, failures_per_minute=3)) as web, await web.client("turns:read") as client:
        wrong = {"Authorization": "Bearer guess"}
        answers = [await client.get("/v1/turns", headers=wrong) for _ in range(5)]
        assert [answer.status_code for answer in answers] == [401] * 3 + [429] * 2
        assert int(answers[-1].headers["retry-after"]) >= 1
        assert (await client.get("/v1/turns")).status_code == 200


@pytest.mark.requirement("web:rates")
async def test_processes_count_together(real_url: str) -> None:
    settings = web_settings(real_url, requests_per_minute=4)
    async with serving(settings) as one, serving(settings) as two:
        text = await one.token("turns:read")
        async with httpx.AsyncClient(headers={"Authorization": f"Bearer {text}"}) as client:
            answers = await asyncio.gather(*(client.get(f"{web.url}/v1/turns") for web in (one, two) * 4))
    assert sorted(answer.status_code for answer in answers) == [200] * 4 + [429] * 4


@pytest.mark.requirement("tuning:web:trusted-proxies")
@pytest.mark.requirement("web:settings:proxies")
@pytest.mark.parametrize("trusted", [True, False])
async def test_the_address_of_a_client_is_what_a_trusted_proxy_says(real_url: str, trusted: bool) -> None:
    proxies = ("127.0.0.1",) if trusted else ()
    settings = web_settings(real_url, failures_per_minute=2, trusted_proxies=proxies)
    async with serving(settings) as web, httpx.AsyncClient(base_url=web.url) as client:
        codes = [
            (await client.get("/v1/turns", headers={"X-Forwarded-For": f"192.0.2.{number}"})).status_code
            for number in range(4)
        ]
    assert codes == ([401] * 4 if trusted else [401, 401, 429, 429])
