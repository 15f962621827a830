"""Approvals over HTTP."""

import pytest

from tests.store.test_turn_listing import of_a_newer_release
from tests.store.turns import ask, driven, with_tools
from tests.support.web import Served
from tests.web.test_web_turns import error_of

SCOPES = ("approvals:read", "approvals:decide")


@pytest.mark.requirement("web:approvals")
async def test_what_waits_is_listed_and_decided_in_the_name_of_the_token(web: Served) -> None:
    accumulator = await driven(web.redis)
    await with_tools(accumulator, "mail")
    approval = await ask(accumulator)
    await accumulator.park()
    async with await web.client(*SCOPES, name="alice") as client:
        (waiting,) = (await client.get("/v1/approvals")).json()["approvals"]
        assert (waiting["approval"], waiting["tool"], waiting["turn"]) == (approval, "mail", accumulator.turn)
        assert waiting["arguments"] == '{"to": "bob@example.com"}'
        assert [option["key"] for option in waiting["options"]] == ["approve_once", "approve_session", "deny"]
        answers = [await client.post(f"/v1/approvals/{approval}", json={"option": "deny"}) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [200, 200]
        assert answers[0].json() == {
            "approval": approval,
            "turn": accumulator.turn,
            "option": "deny",
            "by": "alice",
        }
        assert (await client.get("/v1/approvals")).json()["approvals"] == []
        other = await client.post(f"/v1/approvals/{approval}", json={"option": "approve_once"})
        assert error_of(other)[:2] == (409, "refused")
        assert other.json()["error"]["reason"] == "prompt_expired"


@pytest.mark.requirement("web:approvals:pages")
async def test_what_waits_is_listed_page_by_page_and_only_what_the_token_may_see(web: Served) -> None:
    asked = []
    for number in range(7):
        accumulator = await driven(web.redis, session=f"{'team' if number % 2 else 'other'}/{number}")
        await with_tools(accumulator, "mail")
        asked.append(await ask(accumulator, expire_s=100 + number))
    seen = asked[1::2]
    async with await web.client("approvals:read", sessions="team/") as client:

        async def page(**query: str) -> tuple[list[str], bool, str | None]:
            answer = await client.get("/v1/approvals", params=query)
            assert answer.status_code == 200, answer.text
            told = answer.json()
            return [one["approval"] for one in told["approvals"]], told["truncated"], told["next"]

        assert await page() == (seen, False, None)
        first, truncated, following = await page(limit="2")
        assert (first, truncated) == (seen[:2], True)
        assert following is not None
        rest, truncated, end = await page(limit="2", after=following)
        assert rest == seen[2:]
        while truncated:  # what is left is not this token's
            assert end is not None
            rest, truncated, end = await page(limit="2", after=end)
            assert rest == []
        for query, field in (
            ({"limit": "0"}, "limit"),
            ({"limit": "1001"}, "limit"),
            ({"limit": "x"}, "limit"),
            ({"after": "x"}, "after"),
            ({"after": ""}, "after"),
            ({"after": "1-turn_00"}, "after"),
            ({"before": "x"}, "before"),
        ):
            assert error_of(await client.get("/v1/approvals", params=query)) == (422, "invalid", field)
    async with await web.client("approvals:read", agent="another") as client:
        answer = (await client.get("/v1/approvals")).json()
        assert answer == {"approvals": [], "truncated": False, "next": None}


@pytest.mark.requirement("web:approvals:pages")
async def test_a_list_that_does_not_say_how_long_is_short(web: Served) -> None:
    accumulator = await driven(web.redis)
    await with_tools(accumulator, *["mail"] * 101)
    for index in range(101):
        await ask(accumulator, index)
    async with await web.client("approvals:read") as client:
        answer = (await client.get("/v1/approvals")).json()
        assert (len(answer["approvals"]), answer["truncated"]) == (100, True)
        rest = (await client.get("/v1/approvals", params={"after": answer["next"]})).json()
        assert (len(rest["approvals"]), rest["truncated"], rest["next"]) == (1, False, None)


@pytest.mark.requirement("web:approvals:by")
async def test_only_who_may_act_for_others_decides_in_another_name(web: Served) -> None:
    accumulator = await driven(web.redis, requester="bob")
    await with_tools(accumulator, "mail")
    approval = await ask(accumulator, requester="bob")
    async with await web.client(*SCOPES, name="alice") as client:
        path = f"/v1/approvals/{approval}"
        mine = await client.post(path, json={"option": "approve_once"})
        assert error_of(mine) == (403, "forbidden", "by")
        assert mine.json()["error"]["reason"] == "wrong_requester"
        named = await client.post(path, json={"option": "approve_once", "by": "bob"})
        assert (named.status_code, named.json()["error"]["reason"]) == (403, "approvals:act_as")
    async with await web.client(*SCOPES, "approvals:act_as", name="chat bridge") as client:
        answer = await client.post(path, json={"option": "approve_once", "by": "bob"})
        assert (answer.status_code, answer.json()["by"]) == (200, "bob")


@pytest.mark.requirement("web:approvals")
async def test_answers_that_cannot_count_are_refused_by_field(web: Served) -> None:
    accumulator = await driven(web.redis)
    await with_tools(accumulator, "mail")
    approval = await ask(accumulator)
    async with await web.client(*SCOPES) as client:
        for body, field in (({}, "option"), ({"option": "perhaps"}, "option"), ({"option": "A!"}, "option")):
            answer = await client.post(f"/v1/approvals/{approval}", json=body)
            assert error_of(answer) == (422, "invalid", field)
        for name in ("appr_00" + "0" * 20 + "_1_0", "appr_ff" + "0" * 20 + "_1_0", "x", approval + "9"):
            answer = await client.post(f"/v1/approvals/{name}", json={"option": "deny"})
            assert error_of(answer) == (404, "not_found", "approval")
    async with await web.client(*SCOPES, sessions="other/") as client:
        assert (await client.get("/v1/approvals")).json()["approvals"] == []
        answer = await client.post(f"/v1/approvals/{approval}", json={"option": "deny"})
        assert error_of(answer)[:2] == (404, "not_found")


@pytest.mark.requirement("survive:newer:listed")
async def test_an_approval_of_a_newer_release_is_left_to_it(web: Served) -> None:
    accumulator = await driven(web.redis)
    await with_tools(accumulator, "mail")
    approval = await ask(accumulator)
    await of_a_newer_release(web.redis, accumulator.turn)
    async with await web.client(*SCOPES) as client:
        answer = await client.post(f"/v1/approvals/{approval}", json={"option": "deny"})
        assert error_of(answer)[0] == 503
        assert "written by a newer release" in answer.json()["error"]["message"]


@pytest.mark.requirement("web:approvals:agent")
async def test_a_token_of_another_agent_neither_sees_nor_decides_an_approval(web: Served) -> None:
    accumulator = await driven(web.redis)  # of the agent `default`
    await with_tools(accumulator, "mail")
    approval = await ask(accumulator)
    path = f"/v1/approvals/{approval}"
    async with await web.client(*SCOPES, agent="ops") as client:
        told = (await client.get("/v1/approvals")).json()
        assert (told["approvals"], told["truncated"]) == ([], False)
        answer = await client.post(path, json={"option": "approve_once"})
        assert error_of(answer)[:2] == (404, "not_found")
    async with await web.client(*SCOPES, agent="default") as client:
        (waiting,) = (await client.get("/v1/approvals")).json()["approvals"]
        assert waiting["approval"] == approval
        assert (await client.post(path, json={"option": "deny"})).json()["option"] == "deny"
