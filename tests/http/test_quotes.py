"""Which words of a provider are shown: none of our secrets, nothing of the conversation, and all others."""

from typing import Any

import orjson
import pytest

from worker.codecs.events import Failed, ToolCall
from worker.codecs.messages import AssistantMessage, Echo, Request, ToolMessage, ToolSpec, UserMessage
from worker.engine import quotes
from worker.engine.quotes import secrets_of
from worker.engine.refusal import Answer, Asked, clean, refused

ARGUMENTS = {"city": "Zwischenwasser", "notes": ["my sister lives at the old mill"], "n": 1}
REQUEST = Request(
    "a-model",
    (
        UserMessage("我的密码是红色的大象,请不要告诉别人"),
        UserMessage('she said "never mind the\nold gate" and left'),
        AssistantMessage(
            "",
            (ToolCall("c1", "look_up", orjson.dumps(ARGUMENTS).decode(), ARGUMENTS),),
            Echo("main", "anthropic", ({"type": "thinking", "thinking": "perhaps the postman has hidden it"},)),
        ),
        ToolMessage("c1", "look_up", "seventeen steps behind the fountain"),
    ),
    tools=(
        ToolSpec(
            "look_up",
            "Finds people in the archive of the harbour",
            {
                "type": "object",
                "properties": {"city": {"type": "string", "description": "where the smuggler was born"}},
            },
        ),
    ),
)
LEFT_OUT = "its message may repeat the conversation"


def said(message: str, secrets: tuple[str, ...] = (), code: str | None = None, request: Request = REQUEST) -> Failed:
    """What becomes of a failure's words."""
    return clean(Failed("refused", message, code), Asked("main", secrets, request))


@pytest.mark.requirement("http:refusal:leaks-nothing")
@pytest.mark.parametrize(
    ("headers", "url", "quoted"),
    [
        ({"Authorization": "Bearer sk-abc"}, "http://h/v1", "sk-abc"),
        ({"Authorization": "Bearer  sk-abcdefgh"}, "http://h/v1", "sk-abcdefgh"),
        ({"Authorization": "Bearer sk-abc"}, "http://h/v1", "Bearer sk-abc"),
        ({"X-Key": "longsecret"}, "http://h/v1", "longsecret"),
        ({}, "http://h/v1?key=q-secret-1&api-version=7", "q-secret-1"),
        ({}, "http://h/v1?key=a%2Fb%2Bsecret", "a/b+secret"),
        ({}, "http://h/v1?key=a%2Fb%2Bsecret", "a%2Fb%2Bsecret"),
        ({}, "http://h/v1?key=a+b+secret", "a b secret"),
        ({}, "http://h/v1?key=a/b+secret", "a/b+secret"),
    ],
)
def test_a_secret_is_hidden_however_it_was_sent(headers: dict[str, str], url: str, quoted: str) -> None:
    asked = Asked("main", secrets_of("sk-the-key", headers, url), REQUEST)
    for body in (f"no use for {quoted}, nor for sk-the-key.", f"'{quoted}' and 'sk-the-key'"):
        message = refused(Answer(401, {}, orjson.dumps({"error": {"message": body}}), "h:1"), asked).message
        assert quoted not in message
        assert "sk-the-key" not in message
        assert message.count("***") == 2


@pytest.mark.requirement("http:refusal:leaks-nothing")
@pytest.mark.parametrize("written", [r"sk\u002dabcdefgh", r"sk\\u002dabcdefgh", "sk-abc\x00defgh", "sk-abc\u200bdefgh"])
def test_a_secret_in_disguise_is_hidden(written: str) -> None:
    assert said(f"bad key {written}", ("sk-abcdefgh",)).message == "bad key ***"
    assert said(r"bad key a\/b\/secret", ("a/b/secret",)).message == "bad key ***"


@pytest.mark.requirement("http:refusal:leaks-nothing")
def test_half_a_secret_at_the_end_of_a_long_message_is_not_shown() -> None:
    key = "sk-" + "k" * 60
    assert "kkk" not in said(("so " + " " * 1970 + key)[:2000], (key,)).message
    assert said("so " * 1000, (key,)).message == ("so " * 100)


@pytest.mark.requirement("http:refusal:shows-the-rest")
def test_short_and_plain_values_of_headers_are_no_secrets() -> None:
    secrets = secrets_of("key", {"X-Version": "1", "X-Beta": "true", "X-Team": "blue"}, "http://h/v1?v=2024&x=")
    message = "1 of 2024 keys: 'true' must be blue, monkey 11"
    assert said(message, secrets).message == message


@pytest.mark.requirement("http:refusal:shows-the-rest")
def test_a_short_key_is_hidden_as_a_word_and_not_in_words() -> None:
    assert said("abc12 and xabc12, abc123", ("abc12",)).message == "*** and xabc12, abc123"


@pytest.mark.requirement("http:refusal:leaks-nothing")
@pytest.mark.parametrize(
    "echo",
    [
        "Zwischenwasser",
        "no such city: 'Zwischenwasser'",
        "my sister lives at the old mill",
        orjson.dumps(ARGUMENTS).decode(),
        "{'city': 'Zwischenwasser', 'notes': ['my sister li",
        "seventeen steps behind the fountain",
        "Finds people in the archive of the harbour",
        '{"city": {"type": "string", "description": "where',
        '{"city":{"type":"string","description":"where',
        "where the smuggler was born",
        "perhaps the postman has hidden it",
        "我的密码是红色的大象,请不要告诉别人",
        r"\u6211\u7684\u5bc6\u7801\u662f\u7ea2\u8272\u7684\u5927\u8c61,\u8bf7\u4e0d\u8981\u544a\u8bc9\u522b\u4eba",
        r"\\u6211\\u7684\\u5bc6\\u7801\\u662f\\u7ea2\\u8272\\u7684\\u5927\\u8c61,\\u8bf7\\u4e0d\\u8981\\u544a\\u8bc9\\u522b",
        r"she said \"never mind the\nold gate\" and",
        "she said 'never mind the old gate' and left",
    ],
)
def test_nothing_of_what_we_asked_is_shown_however_it_is_escaped(echo: str) -> None:
    assert said(f"bad input: {echo}").message == LEFT_OUT
    assert said("bad input", code=echo).code is None


@pytest.mark.requirement("http:refusal:leaks-nothing")
def test_escaped_arguments_of_the_history_are_found_in_plain_words() -> None:
    call = ToolCall("c1", "f", '{"q": "\\u6211\\u7684\\u5bc6\\u7801\\u662f\\u7ea2\\u8272\\u7684', None)
    request = Request("m", (AssistantMessage("", (call,)),))
    assert said('{"q": "我的密码是红色的', request=request).message == LEFT_OUT


@pytest.mark.requirement("http:refusal:shows-the-rest")
@pytest.mark.parametrize(
    "message",
    [
        "Invalid schema for function 'look_up': 'additionalProperties' is required",
        "messages.2.content.0.type: expected `thinking`",
        "properties.city.description is too long",
        "the model a-model does not exist",
    ],
)
def test_a_message_may_name_the_field_that_it_does_not_like(message: str) -> None:
    assert said(message).message == message


@pytest.mark.requirement("http:refusal:leaks-nothing")
def test_a_code_is_cleaned_like_a_message() -> None:
    assert said("m", ("sk-abcdefgh",), code="bad_sk-abcdefgh\x1b[2J\n").code == "bad_***[2J"
    assert said("m", code="rate_limit_exceeded").code == "rate_limit_exceeded"
    assert said("m", code="429").code == "429"
    assert said("m", code="x" * 1000).code == "x" * 64
    assert said("m").code is None


@pytest.mark.requirement("http:refusal:quotes")
def test_what_is_not_printed_is_not_shown() -> None:
    assert said("one\x1b[31m\ntwo\u202e\u2028three\x00\ud83d").message == "one[31m two three"


@pytest.mark.requirement("http:refusal:bounded-work")
def test_each_text_of_a_long_conversation_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    plain = quotes._plain

    def counted(text: str) -> bytes:
        looked.append(len(text))
        return plain(text)

    monkeypatch.setattr(quotes, "_plain", counted)
    long = "the quick brown fox jumps over lazy dogs and goes on " * 20_000
    request = Request("m", tuple(UserMessage(f"{number} {long}") for number in range(4)))
    message = "the requested model is loading, come back later and ask again; " * 20
    assert said(message, code="model_is_loading", request=request) == Failed(
        "refused", message[:300], "model_is_loading"
    )
    assert sum(looked) < 5_000_000


@pytest.mark.requirement("http:refusal:bounded-work")
def test_a_conversation_that_takes_too_long_to_compare_counts_as_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    def left_out(request: Request, message: str) -> Any:
        return said(message, request=request).message == LEFT_OUT

    almost = Request("m", (UserMessage("abcdefghij--" * 5000),))
    quote = "abcdefghij, hij--abcde, and so on"
    assert not left_out(almost, quote)
    monkeypatch.setattr(quotes, "_MOST_CHECKS", 100)
    assert left_out(almost, quote)
    monkeypatch.setattr(quotes, "_MOST_CHARS", 1000)
    assert left_out(Request("m", (UserMessage("x" * 600), UserMessage("y" * 600))), "something else entirely")
