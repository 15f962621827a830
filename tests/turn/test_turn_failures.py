"""What a person reads when a turn fails: what happened, the number, the setting."""

from typing import Any

import pytest

from worker.codecs.events import Failed
from worker.sections import ProviderSettings
from worker.settings import TurnSettings
from worker.turn import failures
from worker.turn.commands import Failure
from worker.turn.events import Died
from worker.turn.watchdog import Budget

PLAIN = Failure("timeout", "stall_timeout", "It stalled.")


@pytest.mark.requirement("turn:failure:names-the-setting")
@pytest.mark.parametrize(
    ("budget", "words", "setting"),
    [
        ("stall", "sent no text, reasoning or tool call for 45 s", "stall_timeout_s"),
        ("inter_delta", "sent nothing at all for 45 s", "first_token_timeout_s"),
        ("prefill", "did not begin to answer within 45 s", "prefill_timeout_s"),
        ("progress", "sent nothing but keepalives for 45 s", "no_progress_timeout_s"),
    ],
)
def test_a_silence_names_the_budget_that_ran_out_and_its_setting(budget: Budget, words: str, setting: str) -> None:
    failure = failures.silence("main", budget, 45)
    assert (failure.category, failure.code) == ("timeout", f"{budget}_timeout")
    assert words in failure.message
    assert f"providers.main.{setting}" in failure.message
    assert setting in ProviderSettings.model_fields


@pytest.mark.requirement("turn:failure:names-the-setting")
@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (failures.turn_deadline(), "turns.turn_deadline_s"),
        (failures.max_calls(7), "turns.max_calls = 7"),
        (failures.crash_cap(4, 3), "turns.crash_cap = 3"),
        (failures.budget_spent(PLAIN, 3, 2), "3 attempts (turns.timeout_resume_retry_budget = 2)"),
        (failures.no_time_left(PLAIN, 30), "30 s, after the turn's deadline (turns.turn_deadline_s)"),
        (failures.draining(PLAIN), 'turns.on_drain = "fail"'),
    ],
)
def test_a_limit_that_was_reached_is_named_with_its_number(failure: Failure, words: str) -> None:
    assert words in failure.message
    setting = words[words.index("turns.") :].removeprefix("turns.").split(" ")[0].strip('")')
    assert setting in TurnSettings.model_fields


@pytest.mark.requirement("turn:failure:names-the-setting")
def test_spent_retries_are_named_with_their_number() -> None:
    assert "4 times (providers.main.transport_retries = 3)" in failures.retries_spent(PLAIN, "main", 4, 3).message
    assert "transport_retries" in ProviderSettings.model_fields


def test_what_is_added_to_a_failure_keeps_its_category_and_code() -> None:
    told = failures.budget_spent(PLAIN, 3, 2)
    assert (told.category, told.code) == (PLAIN.category, PLAIN.code)
    assert told.message.startswith("It stalled. ")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (Failed("retryable", "Try\nlater.", code="503"), "reported an error in mid-stream (503): Try later."),
        (Failed("protocol", "a line of 9 MB"), "broke its wire format: a line of 9 MB."),
        (Failed("retryable", ""), "reported an error in mid-stream."),
    ],
)
def test_what_a_provider_says_of_its_error_is_told_on_one_line(error: Failed, message: str) -> None:
    assert failures.error_in_stream("main", error).message == f"Provider main {message}"


def test_a_provider_that_says_much_is_cut_short() -> None:
    assert len(failures.refused_in_stream("main", Failed("refused", "no " * 9999, code="x" * 9999)).message) < 500


@pytest.mark.parametrize(
    ("failure", "code", "words"),
    [
        (failures.refused_in_stream("main", Failed("refused", "no")), "refused", "refused the request"),
        (
            failures.still_too_long(failures.refused_in_stream("main", Failed("context_overflow", "too long"))),
            "context_overflow",
            "begin a new session",
        ),
        (failures.several_choices("main", 2), "several_choices", "2 answers instead of one"),
        (failures.unknown_tool("launch"), "unknown_tool", "a tool launch, but the agent offers none"),
        (failures.empty_answer("main", None), "empty_answer", "finish reason: none"),
        (failures.broken_stream("main", Died(1, 1, "reset", "reset by peer")), "reset", "reset by peer"),
    ],
)
def test_other_failures_say_what_happened(failure: Failure, code: str, words: str) -> None:
    assert failure.code == code
    assert words in failure.message
    assert failure.message.endswith(".")


def test_the_settings_that_messages_name_exist() -> None:
    assert {"history_turns"} <= set(TurnSettings.model_fields)


@pytest.mark.parametrize("kind", ["timeout", "reset", "end_of_stream", "protocol", "provider_error"])
def test_every_kind_of_death_has_its_words(kind: Any) -> None:
    failure = failures.broken_stream("main", Died(1, 1, kind, ""))
    assert failure.code == kind
    assert failure.message.startswith("Provider main ")


def test_a_name_that_a_model_made_up_is_shown_only_where_a_tool_could_have_it() -> None:
    assert "launch" in failures.unknown_tool("launch").message
    for name in ("Dear Ana, the account number is 12", "x" * 300, ""):
        assert "called a tool, but" in failures.unknown_tool(name).message
        assert "calling the tool with" in failures.tool_loop(name).message


def test_sentences_that_are_put_together_stay_sentences() -> None:
    said = Failure("provider_failure", "overloaded", "It says: busy")
    assert failures.retries_spent(said, "main", 1, 0).message.startswith("It says: busy. It was sent once (")
    assert "It was sent 4 times (" in failures.retries_spent(said, "main", 4, 3).message
    assert "made 1 call and" in failures.max_calls(1).message
