"""What the errors of providers mean, wherever they come in a chat stream."""

import pytest

from tests.support.chat_stream import chunk, failure, raw
from worker.codecs.events import Failed, FailureClass
from worker.codecs.openai_chat import ChatCodec

CLASSES: list[tuple[object, FailureClass]] = [
    ({"code": 502, "message": "m"}, "retryable"),
    ({"code": "429", "message": "m"}, "retryable"),
    ({"status_code": 408}, "retryable"),
    ({"code": 529, "type": "overloaded_error"}, "retryable"),
    ({"type": "server_error", "message": "m"}, "retryable"),
    ({"type": "RateLimitError", "message": "maximum context of 3 requests"}, "retryable"),
    ({"code": 429, "message": "too many tokens, context length 9"}, "retryable"),
    ({"type": "timeout"}, "retryable"),
    ({"message": "who knows"}, "retryable"),
    ("model crashed", "retryable"),
    (True, "retryable"),
    ([1], "retryable"),
    ({"code": 1302, "message": "m"}, "retryable"),
    ({"code": 400, "message": "m"}, "refused"),
    ({"code": "tool_use_failed", "status_code": 400}, "refused"),
    ({"type": "invalid_request_error", "message": "m"}, "refused"),
    ({"type": "AuthenticationError"}, "refused"),
    ({"type": "permission_error"}, "refused"),
    ({"code": "model_not_found"}, "refused"),
    ({"code": "insufficient_quota", "status": 429}, "refused"),
    ({"code": "context_length_exceeded", "message": "m"}, "context_overflow"),
    ({"code": 400, "message": "This model's maximum context length is 4096 tokens."}, "context_overflow"),
    ({"code": 500, "type": "server_error", "message": "Context size has been exceeded."}, "context_overflow"),
    ({"code": 400, "message": "prompt is too long: 9 > 8"}, "context_overflow"),
    ({"code": "content_filter", "status": 400}, "content_filter"),
    ({"message": "The response was filtered due to Azure's content management policy"}, "content_filter"),
    # Anthropic's types.
    ({"type": "overloaded_error", "message": "Overloaded"}, "retryable"),
    ({"type": "rate_limit_error", "message": "This request would exceed your limit of input tokens"}, "retryable"),
    ({"type": "api_error", "message": "Internal server error"}, "retryable"),
    ({"type": "timeout_error", "message": "Request timed out"}, "retryable"),
    ({"type": "billing_error", "message": "Your credit balance is too low"}, "refused"),
    ({"type": "authentication_error", "message": "invalid x-api-key"}, "refused"),
    ({"type": "permission_error", "message": "m"}, "refused"),
    ({"type": "not_found_error", "message": "model: claude-0"}, "refused"),
    ({"type": "invalid_request_error", "message": "max_tokens: must be positive"}, "refused"),
    (
        {"type": "request_too_large", "message": "Request exceeds the maximum allowed number of bytes"},
        "context_overflow",
    ),
    ({"type": "invalid_request_error", "message": "prompt is too long: 210000 tokens > 200000"}, "context_overflow"),
    (
        {"type": "invalid_request_error", "message": "input length and `max_tokens` exceed context limit: 9 + 9 > 10"},
        "context_overflow",
    ),
    # The codes of OpenAI's Responses.
    ({"code": "server_error", "message": "The model had an error"}, "retryable"),
    ({"code": "rate_limit_exceeded", "type": "tokens", "message": "Request too large for m: Limit 9"}, "retryable"),
    ({"code": "invalid_prompt", "message": "m"}, "refused"),
    ({"code": "insufficient_quota", "message": "You exceeded your current quota"}, "refused"),
    ({"code": "image_content_policy_violation", "message": "m"}, "content_filter"),
    ({"code": "context_length_exceeded", "message": "Your input exceeds the context window"}, "context_overflow"),
]


@pytest.mark.requirement("codecs:chat:error-classes")
@pytest.mark.parametrize(("error", "expected"), CLASSES)
def test_an_error_object_is_classed_by_what_it_says(error: object, expected: FailureClass) -> None:
    decoder = ChatCodec().decoder()
    failed = failure(chunk({"content": "x"}) + raw({"error": error}), decoder)
    assert failed.failure == expected
    assert decoder.raw_error == error


def test_an_error_keeps_its_code_its_message_and_its_wait() -> None:
    assert failure(raw({"error": {"code": 429, "message": "slow down", "retry_after": 7}})) == Failed(
        "retryable", "slow down", "429", 7.0
    )
    assert failure(raw({"error": "busy", "status_code": 400, "retry_after": -1})) == Failed("refused", "busy", "400")
    assert len(failure(raw({"error": "x" * 10_000})).message) == 2000


def test_an_error_beside_a_broken_choice_is_the_error() -> None:
    assert failure(raw({"error": "busy", "choices": [7]})).message == "busy"


@pytest.mark.parametrize(
    "data", [b"event: error\ndata: {}\n\n", b"event: error\ndata:\n\n", b"event: error\ndata: null\n\n"]
)
def test_an_error_event_that_says_nothing_is_a_failure(data: bytes) -> None:
    assert failure(data).failure == "retryable"


@pytest.mark.requirement("codecs:chat:half-characters")
def test_half_a_character_in_an_error_is_replaced_there() -> None:
    decoder = ChatCodec().decoder()
    error = {"message": "cut \ud83e", "delta": ["\udddc"], "choices": {"delta": "\ud83e"}}
    assert failure(raw({"error": error, "delta": "\ud83e"}), decoder).message == "cut \ufffd"
    assert decoder.raw_error == {"message": "cut \ufffd", "delta": ["\ufffd"], "choices": {"delta": "\ufffd"}}
