"""What an error means: contexts that are too long, limits on tokens a minute, faults of the server and of ours."""

import json

import pytest

from worker.codecs.events import FailureClass
from worker.codecs.provider_errors import TRANSIENT_STATUS, failure_of

TOO_LONG: list[object] = [
    {"message": "The decoder prompt (length 5000) is longer than the maximum model length of 4096.", "code": 400},
    {"message": "Invalid request: Your request exceeded model token limit: 262144", "type": "invalid_request_error"},
    {"message": "prompt token count of 130000 exceeds the limit of 128000", "code": "invalid_request_body"},
    {"message": "too big", "code": "model_max_prompt_tokens_exceeded"},
    "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 4000 `inputs` tokens",
    {"message": "too many tokens: total number of tokens in the prompt cannot exceed 4081"},
    {"message": "prompt length (5000) exceeds maximum input length (4096). Set log level", "code": 400},
    {"message": "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 129024]", "code": 400},
    {"message": "Prompt exceeds max length", "code": "1261"},
    {"code": 413},
    {"status": 413, "type": "invalid_request_error", "message": "m"},
]
TOO_OFTEN: list[object] = [
    {"message": "Rate limit reached for m on tokens per min (TPM): Limit 9", "type": "tokens"},
    {"message": "Rate limit reached: too many tokens per minute", "code": "rate_limit_exceeded"},
    {"message": "Too many tokens, please wait before trying again.", "type": "ThrottlingException"},
    {"message": "Too many tokens, please wait before trying again."},
    {"message": "Too many tokens per day, please wait before trying again."},
    {"message": "too many tokens: the limit is 30000 tokens per minute"},
    {"message": "too many tokens", "code": 429},
    {"message": "prompt token count of 9 exceeds the limit of 8 per minute", "code": "tokens"},
    {"message": "This request would exceed your limit of 9 input tokens per minute", "type": "rate_limit_error"},
]


@pytest.mark.requirement("http:errors:tokens")
@pytest.mark.parametrize(
    ("error", "expected"),
    [*((error, "context_overflow") for error in TOO_LONG), *((error, "retryable") for error in TOO_OFTEN)],
)
def test_a_context_that_is_too_long_is_told_from_too_many_tokens_a_minute(
    error: object, expected: FailureClass
) -> None:
    assert failure_of(error).failure == expected


@pytest.mark.requirement("http:errors:whose-fault")
@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ({"status": "UNAUTHENTICATED", "message": "m"}, "refused"),
        ({"code": "access_denied", "message": "m"}, "refused"),
        ({"code": "cyber_policy", "message": "m"}, "refused"),
        ({"code": "insufficient_balance", "message": "m"}, "refused"),
        ({"type": "usage_not_included", "message": "m"}, "refused"),
        ({"type": "exceeded_current_quota_error", "message": "m", "code": 429}, "refused"),
        ({"code": "insufficient_capacity", "message": "m"}, "retryable"),
        ({"type": "server_error", "code": "invalid_response_from_upstream", "message": "m"}, "retryable"),
        ({"type": "InternalError", "code": "invalid_output", "message": "m"}, "retryable"),
        ({"type": "overloaded_error", "code": "unsupported_now", "message": "m"}, "retryable"),
        ({"type": "server_error", "code": 400, "message": "m"}, "refused"),
        ({"code": 500, "message": "content policy service unavailable"}, "retryable"),
        ({"type": "server_error", "message": "the content filter timed out"}, "retryable"),
        ({"code": 400, "message": "rejected by our content policy"}, "content_filter"),
        ({"code": "content_filter", "status": 500, "message": "m"}, "content_filter"),
        ({"code": 425, "message": "m"}, "retryable"),
    ],
)
def test_the_fault_is_whose_the_code_and_the_type_say(error: object, expected: FailureClass) -> None:
    assert failure_of(error).failure == expected


@pytest.mark.requirement("http:errors:beside")
@pytest.mark.parametrize(
    ("around", "expected", "message"),
    [
        ({"error": True, "message": "context_length_exceeded"}, "context_overflow", "context_length_exceeded"),
        ({"error": 1, "detail": "slow down", "code": 429}, "retryable", "slow down"),
        (
            {"error": "Bad Request", "message": "no such field", "statusCode": 400},
            "refused",
            "Bad Request: no such field",
        ),
        ({"error": "busy", "message": "busy"}, "retryable", "busy"),
        ({"error": "m", "type": "authentication_error"}, "refused", "m"),
    ],
)
def test_what_stands_beside_an_error_that_is_no_object_is_read(
    around: dict[str, object], expected: FailureClass, message: str
) -> None:
    failed = failure_of(around["error"], around)
    assert (failed.failure, failed.message) == (expected, message)


def nested(depth: int) -> object:
    """Lists in lists."""
    value: object = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.requirement("http:errors:any-json")
@pytest.mark.parametrize("depth", [200, 100_000])
@pytest.mark.parametrize("key", ["code", "type", "status", "message", "retry_after", "status_code", "anything"])
def test_no_depth_of_nesting_makes_an_error_unreadable(key: str, depth: int) -> None:
    assert failure_of({key: nested(depth)}).failure == "retryable"
    assert failure_of(nested(depth), {key: nested(depth)}).message


@pytest.mark.requirement("http:errors:any-json")
@pytest.mark.parametrize(
    "value",
    [10**5000, -(10**5000), 1e308, float("inf"), float("nan"), True, "", None, {}, [{}], "\ud83d", "x" * 100_000],
    ids=["huge", "least", "big", "inf", "nan", "true", "empty", "null", "object", "list", "half character", "long"],
)
@pytest.mark.parametrize("key", ["code", "type", "status", "message", "retry_after", "status_code"])
def test_no_value_makes_an_error_unreadable(key: str, value: object) -> None:
    for failed in (failure_of({key: value}), failure_of(value, {key: value})):
        assert failed.failure == "retryable"
        assert failed.retry_after is None or failed.retry_after < 1e9
        assert len(failed.message) <= 2000


def test_only_text_and_numbers_become_words() -> None:
    assert failure_of({"code": {"invalid": "request"}, "type": ["billing"]}).failure == "retryable"


def test_a_status_is_transient_in_one_list_for_streams_and_answers() -> None:
    assert TRANSIENT_STATUS == (408, 425, 429)
    assert {failure_of({"code": status}).failure for status in TRANSIENT_STATUS} == {"retryable"}
    assert {failure_of(json.loads(f'{{"code": {status}}}')).failure for status in (400, 409, 424, 426)} == {"refused"}
