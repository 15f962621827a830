"""`lastword webhook`: secrets are made, and what somebody got is looked at."""

import io
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks import Webhook

from channels.console import exits
from channels.endpoints.model import SigningKey
from channels.endpoints.signing_keys import decode_secret, encode_secret, public_key
from channels.webhook.signature import signed_headers

Lastword = Callable[..., Any]

KEY, OTHER, PAIR = SigningKey("v1", b"k" * 32), SigningKey("v1", b"o" * 32), SigningKey("v1a", b"p" * 32)
BODY = b'{"type":"turn.completed"}'


def now() -> int:
    return int(datetime.now(UTC).timestamp())  # noqa: TID251 - the command compares it with its own clock


@pytest.fixture(autouse=True)
def _no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WEBHOOK_SECRET", raising=False)


@pytest.fixture
def got(tmp_path: Path) -> Callable[..., list[str]]:
    """Writes what somebody got into files; gives the arguments that name them."""

    def written(*keys: SigningKey, at: int | None = None, secrets: str = "", body: bytes = BODY) -> list[str]:
        headers = signed_headers(keys or (KEY,), "dlv_1", now() if at is None else at, BODY, 0)
        lines = ["POST /hook HTTP/1.1", "Host: example.com", *(f"{name.title()}: {headers[name]}" for name in headers)]
        (tmp_path / "headers").write_text("\r\n".join([*lines, "", ""]), encoding="utf-8", newline="")
        (tmp_path / "body").write_bytes(body)
        (tmp_path / "secrets").write_text(secrets or encode_secret(KEY) + "\n", encoding="utf-8")
        return ["webhook", "verify", "body", "--headers", "headers", "--secret-file", "secrets"]

    return written


@pytest.mark.requirement("signing:command:verify")
def test_what_is_signed_rightly_is_told_with_scheme_and_age(lastword: Lastword, got: Callable[..., list[str]]) -> None:
    ran = lastword(*got())
    assert ran.code == exits.OK
    assert ran.out.startswith("verified: v1, ")
    assert ran.out.endswith(" s old\n")


@pytest.mark.requirement("signing:command:verify")
def test_of_several_secrets_it_tells_which_one(lastword: Lastword, got: Callable[..., list[str]]) -> None:
    secrets = f"{encode_secret(OTHER)}\n\n{public_key(PAIR)}\n"
    assert lastword(*got(PAIR, secrets=secrets)).out.startswith("verified: v1a, of the secrets number 2, ")
    answer = json.loads(lastword(*got(OTHER, secrets=secrets), "--json").out)
    assert answer.pop("age_s") < 60
    assert answer == {"verified": True, "scheme": "v1", "key": 0}


@pytest.mark.requirement("signing:command:verify")
@pytest.mark.parametrize(
    ("change", "reason", "words"),
    [
        ({"at": -1000}, "stale", "the signature is right, but was made 1000 s ago"),
        ({"at": 1000}, "future", "the signature is right, but was made"),
        ({"body": BODY + b"\n"}, "no_match", "of this body without the line end after it"),
        ({"secrets": encode_secret(OTHER)}, "no_match", "no signature is by a secret that you gave"),
        ({"secrets": public_key(PAIR)}, "no_match", "it is signed by v1, and what you gave verifies v1a"),
    ],
)
def test_what_is_not_is_told_with_the_reason_and_ends_with_1(
    lastword: Lastword, got: Callable[..., list[str]], change: dict[str, Any], reason: str, words: str
) -> None:
    if "at" in change:
        change = {"at": now() + change["at"]}
    arguments = got(**change)
    ran = lastword(*arguments)
    assert ran.code == exits.FAILED
    assert ran.out.startswith(f"not verified ({reason}): ")
    assert words.removesuffix("1000 s ago") in ran.out
    answer = json.loads(lastword(*arguments, "--json").out)
    assert (answer["verified"], answer["reason"]) == (False, reason)
    assert (answer["matched"] is not None) == (reason in {"stale", "future"})


@pytest.mark.requirement("signing:command:verify")
def test_a_request_of_yesterday_verifies_where_its_age_is_allowed(
    lastword: Lastword, got: Callable[..., list[str]]
) -> None:
    assert lastword(*got(at=now() - 86400), "--tolerance", "90000").code == exits.OK


@pytest.mark.requirement("signing:command:verify")
def test_body_and_headers_may_come_without_files(
    lastword: Lastword, monkeypatch: pytest.MonkeyPatch, got: Callable[..., list[str]]
) -> None:
    got()
    headers = signed_headers([KEY], "dlv_1", now(), BODY, 0)
    options = [
        "--id",
        "dlv_1",
        "--timestamp",
        headers["webhook-timestamp"],
        "--signature",
        headers["webhook-signature"],
    ]
    monkeypatch.setenv("WEBHOOK_SECRET", f"{encode_secret(OTHER)}\n{encode_secret(KEY)}")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(BODY)))
    assert lastword("webhook", "verify", "-", *options).code == exits.OK
    ran = lastword("webhook", "verify", "body", *options[:4])
    assert (ran.code, "there is no webhook-signature" in ran.out) == (exits.FAILED, True)


@pytest.mark.requirement("signing:command:usage")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["nowhere", "--headers", "headers", "--secret-file", "secrets"],
            "BODY 'nowhere' cannot be read: No such file",
        ),
        (["body", "--headers", "nowhere", "--secret-file", "secrets"], "--headers 'nowhere' cannot be read"),
        (["body", "--headers", "headers", "--secret-file", "nowhere"], "--secret-file 'nowhere' cannot be read"),
        (["body", "--headers", "headers"], "$WEBHOOK_SECRET holds no secret: name a file with --secret-file"),
        (["body", "--secret-file", "secrets"], "there are no headers: give --headers FILE, or"),
        (["body", "--headers", "headers", "--id", "x", "--secret-file", "secrets"], "are both given: leave one out"),
        (
            ["body", "--headers", "headers", "--secret-file", "wrong"],
            "--secret-file 'wrong', line 2: the secret does not",
        ),
        (["body", "--headers", "twice", "--secret-file", "secrets"], "webhook-id is there twice"),
    ],
)
def test_what_it_cannot_read_ends_with_2_and_is_named(
    lastword: Lastword, tmp_path: Path, got: Callable[..., list[str]], arguments: list[str], words: str
) -> None:
    got()
    (tmp_path / "wrong").write_text(f"{encode_secret(KEY)}\nhush7hush7\n", encoding="utf-8")
    (tmp_path / "twice").write_text((tmp_path / "headers").read_text(encoding="utf-8") * 2, encoding="utf-8")
    ran = lastword("webhook", "verify", *arguments)
    assert ran.code == exits.USAGE
    assert words in ran.err
    assert "hush7" not in ran.err + ran.out


@pytest.mark.requirement("signing:command:verify")
def test_headers_that_would_command_a_terminal_are_shown_as_signs(
    lastword: Lastword, tmp_path: Path, got: Callable[..., list[str]]
) -> None:
    arguments = got()
    (tmp_path / "headers").write_text(
        "webhook-id: \x1b[2J\nwebhook-timestamp: 1\nwebhook-signature: v1,x\n", encoding="utf-8"
    )
    ran = lastword(*arguments)
    assert ran.code == exits.FAILED
    assert "\x1b" not in ran.out


@pytest.mark.requirement("signing:command:secret")
def test_a_secret_is_made_that_a_public_library_takes(lastword: Lastword) -> None:
    first, second = (lastword("webhook", "secret").out for _ in range(2))
    assert first != second
    Webhook(first.strip())
    assert len(decode_secret("secret", first.strip()).key) == 32
    assert json.loads(lastword("webhook", "secret", "--json").out).keys() == {"secret"}


@pytest.mark.requirement("signing:command:secret")
def test_a_key_pair_is_made_with_its_public_key(lastword: Lastword) -> None:
    secret, public = lastword("webhook", "secret", "--ed25519").out.split()
    assert public_key(decode_secret("secret", secret)) == public
    made = json.loads(lastword("webhook", "secret", "--ed25519", "--json").out)
    assert public_key(decode_secret("secret", made["secret"])) == made["public_key"]


@pytest.mark.requirement("signing:command:secret")
def test_neither_command_needs_settings(lastword: Lastword, tmp_path: Path, got: Callable[..., list[str]]) -> None:
    """They are for those who receive, too."""
    (tmp_path / "lastword.toml").write_text("no settings", encoding="utf-8")
    assert lastword(*got()).code == exits.OK
    assert lastword("webhook", "secret").code == exits.OK
