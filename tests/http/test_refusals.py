"""Answers that are no stream: what is asked again, what a person is told, and what is never repeated."""

import asyncio

import httpx
import orjson
import pytest

from tests.support.peer import Conversation, Peer, hang
from worker.codecs.events import ToolCall
from worker.codecs.messages import AssistantMessage, Request, ToolMessage, UserMessage
from worker.codecs.openai_chat import ChatCodec
from worker.engine import stream
from worker.engine.refusal import Answer, Asked, Refusal, refused
from worker.engine.stream import Endpoint, attempt_events
from worker.turn.events import NotAnswered

CALL = ToolCall("call_1", "look", "{}", {})
REQUEST = Request(
    "a-model",
    (
        UserMessage("swordfish"),
        UserMessage("what is the password of the harbour master"),
        AssistantMessage("let me look into the big green book", (CALL,)),
        ToolMessage("call_1", "look", "the password is swordfish and it changes daily"),
    ),
    instructions="never tell anybody the colour of the harbour",
)
ASKED = Asked("main", ("sk-the-key", "blue"), REQUEST)


def refusal(status: int, body: object = b"", **headers: str) -> Refusal:
    """What an error answer means."""
    data = body if isinstance(body, bytes) else orjson.dumps(body)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return refused(Answer(status, named, data, "127.0.0.1:9"), ASKED)


@pytest.mark.requirement("http:refusal:retryable")
@pytest.mark.parametrize(
    ("status", "retryable", "code"),
    [
        (400, False, "refused"),
        (401, False, "unauthorized"),
        (402, False, "quota"),
        (403, False, "forbidden"),
        (404, False, "not_found"),
        (405, False, "refused"),
        (408, True, "timeout"),
        (409, False, "conflict"),
        (413, False, "context_overflow"),
        (422, False, "refused"),
        (425, True, "too_early"),
        (429, True, "rate_limited"),
        (500, True, "provider_error"),
        (502, True, "provider_error"),
        (503, True, "overloaded"),
        (504, True, "provider_error"),
        (529, True, "overloaded"),
    ],
)
def test_a_status_says_whether_to_ask_again(status: int, retryable: bool, code: str) -> None:
    answer = refusal(status)
    assert (answer.status, answer.retryable, answer.code) == (status, retryable, code)
    assert answer.message.startswith(f"provider main (127.0.0.1:9) answered {status}: ")


@pytest.mark.requirement("http:refusal:retryable")
@pytest.mark.parametrize(
    ("status", "mark", "retryable"),
    [(409, "true", True), (409, "false", False), (500, "false", False), (429, " FALSE ", False), (400, "true", True)],
)
def test_the_provider_may_mark_what_to_ask_again(status: int, mark: str, retryable: bool) -> None:
    assert refusal(status, x_should_retry=mark).retryable is retryable


def test_a_mark_does_not_make_a_context_that_is_too_long_any_shorter() -> None:
    body = {"error": {"code": "context_length_exceeded", "message": "too long"}}
    assert refusal(400, body, x_should_retry="true").retryable is False


@pytest.mark.requirement("http:refusal:context-overflow")
@pytest.mark.parametrize(
    "error",
    [
        {"code": "context_length_exceeded", "message": "This model's maximum context length is 8192 tokens."},
        {"type": "exceed_context_size_error", "message": "the request exceeds the available context size", "code": 400},
        {"type": "invalid_request_error", "message": "prompt is too long: 210000 tokens > 200000 maximum"},
    ],
    ids=["openai", "llama.cpp", "anthropic"],
)
def test_a_context_that_is_too_long_is_told_from_other_refusals(error: dict[str, object]) -> None:
    answer = refusal(400, {"error": error})
    assert (answer.retryable, answer.code) == (False, "context_overflow")
    assert "'a-model'" in answer.message


def test_a_spent_quota_is_not_asked_again() -> None:
    answer = refusal(429, {"error": {"code": "insufficient_quota", "message": "You exceeded your current quota"}})
    assert (answer.retryable, answer.code) == (False, "quota")


def test_a_content_filter_is_not_asked_again() -> None:
    answer = refusal(400, {"error": {"code": "content_filter", "message": "filtered"}})
    assert (answer.retryable, answer.code) == (False, "content_filter")


@pytest.mark.requirement("http:refusal:says-what-to-do")
@pytest.mark.parametrize(
    ("status", "named"),
    [
        (401, "providers.main.api_key"),
        (403, "providers.main.api_key"),
        (404, "providers.main.base_url"),
        (404, "'a-model'"),
        (402, "providers.main.api_key"),
        (429, "fewer turns"),
    ],
)
def test_the_message_names_what_to_change(status: int, named: str) -> None:
    assert named in refusal(status).message


@pytest.mark.requirement("http:refusal:quotes")
@pytest.mark.parametrize(
    "body",
    [
        {"error": {"message": "no such\n  parameter"}},
        {"error": "no such parameter"},
        {"message": "no such parameter"},
        {"detail": "no such parameter"},
        {"detail": [{"msg": "no such parameter", "input": "what is the password of the harbour master"}]},
        [{"error": {"message": "no such parameter", "code": 400}}],
        b"no such parameter",
    ],
    ids=["openai", "sentence", "vllm", "fastapi", "fastapi list", "google", "plain text"],
)
def test_the_providers_own_words_are_quoted(body: object) -> None:
    assert refusal(400, body).message.endswith(" It says: no such parameter")


@pytest.mark.requirement("http:refusal:quotes")
@pytest.mark.parametrize(
    "body",
    [b"<html><title>502 Bad Gateway</title></html>", b"", b"{}", b"[]", b"null", b"7", b'{"error": null}', b"\xff\xfe"],
)
def test_a_body_without_words_is_not_quoted(body: bytes) -> None:
    message = refusal(502, body).message
    assert "html" not in message
    assert message.count("\n") == 0


@pytest.mark.requirement("http:refusal:leaks-nothing")
@pytest.mark.parametrize(
    "said",
    [
        "bad input: 'what is the password of the harbour master'",
        "bad input: '...the password of the harbour...'",
        "no swordfish",
        "in: let me look into the big green book",
        "in: the password is swordfish and it changes",
        "in: never tell anybody the colour of the harbour",
    ],
)
def test_words_of_the_conversation_are_never_quoted(said: str) -> None:
    message = refusal(400, {"error": {"message": said}}).message
    assert "It says" not in message
    for words in ("harbour", "green book", "swordfish"):
        assert words not in message


@pytest.mark.requirement("http:refusal:leaks-nothing")
def test_the_key_is_never_quoted() -> None:
    message = refusal(401, {"error": {"message": "Incorrect API key provided: sk-the-key, team blue"}}).message
    assert message.endswith("It says: Incorrect API key provided: ***, team ***")


def test_a_short_word_that_the_prompt_holds_too_is_no_echo() -> None:
    assert refusal(400, {"error": {"message": "password"}}).message.endswith("It says: password")


def test_a_long_message_is_cut() -> None:
    assert len(refusal(400, {"error": {"message": "so " * 1000}}).message) < 500


def test_the_wait_that_was_asked_for_is_handed_on() -> None:
    assert refusal(429, retry_after="7.5").retry_after == 7.5
    assert refusal(429, {"error": {"message": "slow", "retry_after": 3}}).retry_after == 3
    assert refusal(429).retry_after is None


@pytest.mark.requirement("http:refusal:bounded-body")
@pytest.mark.parametrize("ends", ["never", "in silence"])
async def test_an_error_body_is_read_for_a_while_and_no_further(
    client: httpx.AsyncClient, ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "_ERROR_BODY_S", 0.2)

    async def act(peer: Conversation) -> None:
        await peer.request()
        await peer.head("text/plain", "503 Busy", more="Retry-After: 4\r\n")
        await peer.chunk(b"the machines are busy")
        if ends == "in silence":
            await hang(peer)
        while ends == "never":
            await peer.chunk(b" " * 10_000)

    async with Peer(act) as peer, asyncio.timeout(5):
        endpoint = Endpoint("main", peer.url, None, {}, 2, 1)
        seen = [batch async for batch in attempt_events(client, endpoint, ChatCodec(), REQUEST, 1, 1)]
    ((event,),) = seen
    assert isinstance(event, NotAnswered)
    assert (event.status, event.retryable, event.code, event.retry_after) == (503, True, "overloaded", 4)
    assert event.message.endswith("It says: the machines are busy")


@pytest.mark.requirement("http:stream:told-at-once")
@pytest.mark.parametrize("ends", ["never", "by its length"])
@pytest.mark.parametrize(
    "body", [b'{"error": {"message": "no such parameter"}}', b'[{"error": "no such parameter"}]\n']
)
async def test_an_error_body_that_is_whole_is_not_waited_for(client: httpx.AsyncClient, ends: str, body: bytes) -> None:
    async def act(peer: Conversation) -> None:
        await peer.request()
        if ends == "never":
            await peer.head("application/json", "400 Bad Request")
            for part in (body[:9], body[9:]):
                await peer.chunk(part)
        else:
            await peer.send(b"HTTP/1.1 400 Bad Request\r\nContent-Length: %d\r\n\r\n" % len(body))
            await peer.send(body)
        await peer.until_gone()

    async with Peer(act) as peer, asyncio.timeout(5):
        endpoint = Endpoint("main", peer.url, None, {}, 2, 1)
        ((event,),) = [batch async for batch in attempt_events(client, endpoint, ChatCodec(), REQUEST, 1, 1)]
    assert isinstance(event, NotAnswered)
    assert event.message.endswith("It says: no such parameter")


@pytest.mark.requirement("http:refusal:context-overflow")
@pytest.mark.parametrize("body", [b"", b"<html>413 Request Entity Too Large</html>", {"error": {"code": "too_large"}}])
def test_a_body_that_is_too_large_is_a_conversation_that_is_too_long(body: object) -> None:
    assert refusal(413, body).code == "context_overflow"


@pytest.mark.requirement("http:refusal:quotes")
@pytest.mark.parametrize("key", ["msg", "input"])
def test_a_detail_of_any_depth_is_no_fault_of_ours(key: str) -> None:
    deep = "[" * 1000 + "]" * 1000
    assert refusal(422, f'{{"detail": [{{"{key}": {deep}}}]}}'.encode()).code == "refused"
    assert refusal(422, f'{{"error": {{"code": {deep}}}}}'.encode()).code == "refused"
