"""The OpenAPI document says what the server does, and nothing else."""

import json
import re
from typing import Any

import httpx
import jsonschema
import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator
from pydantic import BaseModel
from starlette.requests import Request
from starlette.types import Message

from channels.web.body import read_model
from channels.web.errors import Refused
from channels.web.openapi import OUTPUTS, document
from channels.web.operations import OPERATIONS
from channels.web.tokens import SCOPES
from tests.delivery.outboxes import insert, known, made
from tests.store.turns import ask, driver_of, taken, with_tools
from tests.support.hooks import by_hmac, hook, hook_settings
from tests.support.web import Fold, Served, read_along, serving
from tests.support.written_turn import WrittenTurn

EVERYTHING = tuple(SCOPES)
HOOKS = {
    "one": hook(body_bytes=100, prompt="{body}", labels_from={"a": "/a"}),
    "busy": hook(session="one", on_busy="reject"),
    "rated": hook(rate_per_minute=1),
    "refused": hook(prompt="{/none}", on_missing="refuse"),
}


class Checked:
    """Holds every answer against the document; `seen`: operation and status of each."""

    def __init__(self, told: dict[str, Any]) -> None:
        self.told = told
        self.seen: set[tuple[str, str]] = set()

    async def __call__(self, answer: httpx.Response) -> None:
        if answer.headers.get("content-type", "").startswith("text/event-stream"):
            return
        operation = self._operation(answer.request)
        status = str(answer.status_code)
        assert status in operation["responses"], f"{operation['operationId']} does not tell of {status}"
        self.seen.add((operation["operationId"], status))
        content = operation["responses"][status].get("content", {})
        await answer.aread()
        kind = answer.headers.get("content-type", "").partition(";")[0]
        assert (kind in content) if answer.content else not content
        if kind == "application/json":
            jsonschema.Draft202012Validator(
                {**content[kind]["schema"], "components": self.told["components"]}
            ).validate(answer.json())

    def _operation(self, request: httpx.Request) -> dict[str, Any]:
        for path, methods in self.told["paths"].items():
            pattern = re.sub(r"\{\w+\}", "[^/]+", path)
            if re.fullmatch(pattern, request.url.path) and request.method.lower() in methods:
                found: dict[str, Any] = methods[request.method.lower()]
                return found
        raise AssertionError(f"the document knows no {request.method} {request.url.path}")


@pytest.mark.requirement("web:openapi")
def test_the_document_is_valid_and_holds_every_route_error_and_scope() -> None:
    told = document()
    OpenAPIV31SpecValidator(told).validate()
    routes = {(operation.method.lower(), operation.path) for operation in OPERATIONS}
    assert {(method, path) for path, methods in told["paths"].items() for method in methods} == routes
    scopes = {
        scope
        for methods in told["paths"].values()
        for operation in methods.values()
        for need in operation["security"]
        for scope in need["token"]
    }
    assert scopes | {"approvals:act_as", "destinations:url"} == set(SCOPES)
    description = told["components"]["securitySchemes"]["token"]["description"]
    assert all(scope in description for scope in SCOPES)
    (label,) = (one for one in told["paths"]["/v1/turns"]["get"]["parameters"] if one["name"] == "label")
    assert label["schema"] == {"type": "array", "items": {"type": "string"}}
    assert "405" in told["info"]["description"]


@pytest.mark.requirement("web:openapi")
async def test_what_the_server_answers_fits_the_document(real_url: str) -> None:
    async with (
        serving(hook_settings(real_url, HOOKS, web={"body_bytes": 5000, "requests_per_minute": 120})) as web,
        await web.client(*EVERYTHING) as client,
        httpx.AsyncClient(base_url=web.url) as stranger,
    ):
        told = (await client.get("/v1/openapi.json")).json()
        assert told == document()
        checked = Checked(told)
        for one in (client, stranger):
            one.event_hooks = {"response": [checked]}
        await every_answer(web, client, stranger)
        for _ in range(120):
            await client.get("/v1/turns")
    told_of = {
        (operation["operationId"], status)
        for methods in told["paths"].values()
        for operation in methods.values()
        for status in operation["responses"]
    }
    others = {status for _, status in told_of} - {status for _, status in checked.seen}
    assert others == {"408", "500", "503"}
    assert {name for name, _ in checked.seen} == {operation.name for operation in OPERATIONS}


async def every_answer(web: Served, client: httpx.AsyncClient, stranger: httpx.AsyncClient) -> None:
    key = {"Idempotency-Key": "k"}
    turn = (await client.post("/v1/turns", json={"prompt": "hi", "session": "chat/1"}, headers=key)).json()
    await client.post("/v1/turns", json={"prompt": "other"}, headers=key)
    await client.post("/v1/turns", json={"prompt": 1})
    await client.post("/v1/turns", content=b"{", headers={"Content-Type": "application/json"})
    await client.post("/v1/turns", content=b"{")
    await client.post("/v1/turns", json={"prompt": "x" * 6000})
    await stranger.post("/v1/turns", json={"prompt": "hi"})
    await client.get("/v1/turns", params={"limit": 3})
    accumulator = driver_of(web.redis, await taken(web.redis, "chat/1"))
    await with_tools(accumulator, "mail")
    approval = await ask(accumulator)
    await client.get("/v1/approvals")
    for option in ("nothing", "deny", "approve_once"):
        await client.post(f"/v1/approvals/{approval}", json={"option": option})
    await client.get(turn["urls"]["turn"])
    await client.post(turn["urls"]["cancel"])
    await client.get(turn["urls"]["turn"])
    for path in ("/v1/turns/x", "/v1/turns/x/events", "/livez", "/readyz", "/metrics", "/v1/openapi.json"):
        await client.get(path)
    await every_answer_to_events(stranger)
    narrow = await web.client("turns:read")
    narrow.event_hooks = client.event_hooks
    await narrow.get(turn["urls"]["events"])
    await narrow.aclose()
    await every_answer_of_endpoints(client)
    await every_answer_of_deliveries(client, web)
    ended = await WrittenTurn.begun(web.redis, "chat/2")
    await ended.end()
    fold = Fold()
    async for _ in read_along(client, ended.turn, fold):
        pass
    await client.get(f"/v1/turns/{ended.turn}/events", headers={"Last-Event-ID": fold.last_id})


async def every_answer_to_events(stranger: httpx.AsyncClient) -> None:
    for body, headers in (
        (b"{}", by_hmac(b"{}", **{"X-Webhook-Delivery": "d"})),
        (b"{}", by_hmac(b"{}", **{"X-Webhook-Delivery": "d"})),
        (b"{}", by_hmac(b"{}")),
        (b"[]", by_hmac(b"[]")),
        (b"{}", {}),
        (b"{", {}),
        (b"x" * 200, {}),
    ):
        await stranger.post("/hooks/one", content=body, headers=headers)
    await stranger.post("/hooks/none", content=b"{}")
    await stranger.post("/hooks/refused", content=b"{}", headers=by_hmac(b"{}"))
    await stranger.post("/hooks/busy", content=b"{}", headers=by_hmac(b"{}"))
    await stranger.post("/hooks/busy", content=b"{}", headers=by_hmac(b"{}"))
    await stranger.post("/hooks/rated", content=b"{}", headers=by_hmac(b"{}"))
    await stranger.post("/hooks/rated", content=b"{}", headers=by_hmac(b"{}"))


async def every_answer_of_endpoints(client: httpx.AsyncClient) -> None:
    crm = {"name": "crm", "url": "https://example.com/hook", "events": ["turn.*"], "headers": {"X-Team": "a"}}
    for _ in range(2):
        await client.post("/v1/endpoints", json=crm)
    await client.get("/v1/endpoints")
    for path in ("crm", "none"):
        await client.get(f"/v1/endpoints/{path}")
        await client.patch(f"/v1/endpoints/{path}", json={"retry_waits_s": [1, 2], "payload": "thin"})
        await client.patch(f"/v1/endpoints/{path}", json={"version": 1})
        await client.post(f"/v1/endpoints/{path}/rotate", json={"scheme": "v1a"})
        for verb in ("pause", "resume", "test"):
            await client.post(f"/v1/endpoints/{path}/{verb}")
        await client.delete(f"/v1/endpoints/{path}", params={"version": 1})
        await client.delete(f"/v1/endpoints/{path}")


async def every_answer_of_deliveries(client: httpx.AsyncClient, web: Served) -> None:
    one = made("evt_1", state="held", due_ms=0)
    await insert(web.redis, [one])
    await known(web.redis, one)
    await client.get("/v1/deliveries")
    await client.get("/v1/deliveries/export")
    for path in (one.id, "none"):
        await client.get(f"/v1/deliveries/{path}")
        for verb in ("replay", "replay", "cancel"):
            await client.post(f"/v1/deliveries/{path}/{verb}")
    replay = (await client.post("/v1/replays", json={"endpoint": "crm"})).json()["id"]
    await client.post("/v1/replays", json={"rate_per_s": 0})
    await client.get("/v1/replays")
    for path in (replay, "none"):
        await client.get(f"/v1/replays/{path}")
        for verb in ("pause", "resume", "cancel", "resume"):
            await client.post(f"/v1/replays/{path}/{verb}")


@pytest.mark.requirement("web:openapi")
async def test_events_fit_the_schema_of_their_name(web: Served) -> None:
    told = document()
    names = {model.model_fields["type"].default: model.__name__ for model in OUTPUTS}
    written = await WrittenTurn.begun(web.redis)
    fold = Fold()
    async with await web.client("events:read") as client:
        events = read_along(client, written.turn, fold)
        await anext(events)
        await written.say(2)
        await written.die()
        await written.complete("All of it.")
        await written.end()
        async for _ in events:
            pass
    for event in fold.events:
        model = "Snapshot" if event.name in ("snapshot", "reset") else names[event.name]
        schema = {"$ref": f"#/components/schemas/{model}", "components": told["components"]}
        jsonschema.Draft202012Validator(schema).validate(event.data)
    assert {"snapshot", "text_delta", "thinking_delta", "text_stream_discarded", "text"} < set(fold.names)


REQUESTS: dict[str, dict[str, Any]] = {
    "SubmitRequest": {"prompt": "hi"},
    "DecideRequest": {"option": "deny"},
    "EndpointRequest": {"name": "crm", "url": "https://hooks.example/x"},
    "EndpointPatch": {},
    "RotateRequest": {},
    "ReplayRequest": {},
}
"""For each request the least that is one."""

VALUES: list[Any] = [True, "5", "true", 5, 5.5, -1, [], {}, ["x"], [1], [True], ["5"], {"a": "b"}, {"a": 1}, None]


async def is_taken(model: type[BaseModel], body: dict[str, Any]) -> bool:
    async def receive() -> Message:
        return {"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}

    headers = [(b"content-type", b"application/json")]
    try:
        await read_model(Request({"type": "http", "headers": headers}, receive), model, 100_000)
    except Refused:
        return False
    return True


@pytest.mark.requirement("web:openapi:requests")
async def test_no_request_is_taken_that_the_document_forbids() -> None:
    told = document()
    models = {each.request.__name__: each.request for each in OPERATIONS if each.request is not None}
    assert {*models} == {*REQUESTS}
    for name, least in REQUESTS.items():
        schema = {"$ref": f"#/components/schemas/{name}", "components": told["components"]}
        allows = jsonschema.Draft202012Validator(schema).is_valid
        assert allows(least)
        assert await is_taken(models[name], least)
        wrong = [{**least, field: value} for field in models[name].model_fields for value in VALUES]
        forbidden = [body for body in wrong if not allows(body)]
        assert forbidden
        assert [body for body in forbidden if await is_taken(models[name], body)] == []
