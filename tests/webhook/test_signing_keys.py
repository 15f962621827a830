"""Secrets as text, and their rotation."""

import base64
import os
import re
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels.endpoints.model import SigningKey
from channels.endpoints.signing_keys import (
    MAX_KEYS,
    MAX_OVERLAP_MS,
    OVERLAP_MS,
    VerifyingKey,
    counts,
    decode_secret,
    decode_verifying_key,
    encode_secret,
    fresh_key,
    public_key,
    rotated,
    verifying_key,
)
from worker.errors import ConfigurationError

DAY_MS = 86_400_000
NOW_MS = 1_790_000_000_000


def secret_of(key: bytes, prefix: str = "whsec_") -> str:
    return prefix + base64.b64encode(key).decode()


def numbered(number: int) -> SigningKey:
    return SigningKey("v1", bytes([number]) * 32)


# The seed and the public key of RFC 8032, 7.1, test 1.
SEED = bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
OF_SEED = bytes.fromhex("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a")
SECRET_32 = secret_of(b"x" * 32)

REFUSED = [
    ("", "does not start with whsec_ or whsk_"),
    ("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "does not start with whsec_"),
    ("v1,whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "does not start with whsec_.*; remove what stands before that"),
    ("v1a," + secret_of(SEED + OF_SEED, "whsk_"), "does not start with whsec_.*; remove what stands before that"),
    (" " + SECRET_32, "remove what stands before that"),
    (SECRET_32.replace("whsec_", "WHSEC_"), "does not start with whsec_"),
    (secret_of(OF_SEED, "whpk_"), "it is a public key, which cannot sign"),
    ("whsec_", "stands for 0 bytes"),
    (secret_of(b"x" * 23), "stands for 23 bytes"),
    (secret_of(b"x" * 65), "stands for 65 bytes"),
    (secret_of(b"\xff" * 32).replace("/", "_"), "not standard base64: it is base64url; write"),
    (secret_of(b"\xfb" * 32).replace("+", "-").rstrip("="), "not standard base64: it is base64url; write"),
    (SECRET_32.rstrip("="), "not standard base64"),
    (SECRET_32 + "=", "not standard base64"),
    (SECRET_32[:-2] + "5=", "not standard base64"),  # the same bytes, and two bits after them
    (secret_of(b"x" * 24) + "\n", "not standard base64"),
    (secret_of(b"x" * 24)[:12] + " " + secret_of(b"x" * 24)[12:], "not standard base64"),
    ("whsec_" + "\u0661" * 32, "not standard base64"),
    ("whsec_äöü", "not standard base64"),
    (secret_of(SEED, "whsk_"), r"stands for 32 bytes \(the seed alone\), not 64"),
    (secret_of(SEED + OF_SEED + b"x", "whsk_"), "stands for 65 bytes, not 64"),
    (secret_of(SEED + OF_SEED[::-1], "whsk_"), "second half of the secret is not the public key of the first"),
    (secret_of(OF_SEED + SEED, "whsk_"), "second half of the secret is not the public key of the first"),
    (secret_of(SEED + OF_SEED, "whsk_").rstrip("="), "what follows whsk_ is not standard base64"),
]


@pytest.mark.requirement("webhook:signature:strict-secret")
@pytest.mark.parametrize(("secret", "why"), REFUSED)
@pytest.mark.parametrize("decode", [decode_secret, decode_verifying_key])
def test_a_secret_that_is_not_strictly_right_is_refused_without_being_repeated(
    decode: object, secret: str, why: str
) -> None:
    if decode is decode_verifying_key and secret.startswith("whpk_"):
        return  # that one may verify
    with pytest.raises(ConfigurationError, match=why) as caught:
        decode("endpoints.crm.secret", secret)  # type: ignore[operator]
    message = str(caught.value)
    assert message.startswith("endpoints.crm.secret: ")
    assert "`lastword webhook secret` makes either" in message
    assert len(secret) < 12 or secret[10:] not in message


@pytest.mark.parametrize("size", [24, 25, 64])
def test_a_secret_of_a_permitted_size_is_the_bytes_it_stands_for(size: int) -> None:
    assert decode_secret("secret", secret_of(b"k" * size)) == SigningKey("v1", b"k" * size)


@pytest.mark.requirement("signing:v1a:keys")
def test_a_private_key_is_its_seed_and_its_public_key_follows_from_it() -> None:
    key = decode_secret("secret", secret_of(SEED + OF_SEED, "whsk_"))
    assert key == SigningKey("v1a", SEED)
    assert public_key(key) == secret_of(OF_SEED, "whpk_")
    assert decode_verifying_key("key", public_key(key)) == verifying_key(key) == VerifyingKey("v1a", OF_SEED)
    assert encode_secret(key) == secret_of(SEED + OF_SEED, "whsk_")


@pytest.mark.requirement("signing:v1a:keys")
def test_a_public_key_of_another_size_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"^key: the public key has 31 bytes"):
        decode_verifying_key("key", secret_of(OF_SEED[1:], "whpk_"))
    with pytest.raises(ValueError, match="has no public part"):
        public_key(numbered(1))


@pytest.mark.requirement("signing:keys:round-trip")
@given(st.binary(min_size=24, max_size=64), st.binary(min_size=32, max_size=32))
def test_every_key_is_read_back_from_its_text(secret: bytes, seed: bytes) -> None:
    for key in (SigningKey("v1", secret), SigningKey("v1a", seed)):
        assert decode_secret("secret", encode_secret(key)) == key
        assert decode_verifying_key("secret", encode_secret(key)) == verifying_key(key)


@pytest.mark.requirement("signing:keys:round-trip")
@given(st.text(), st.sampled_from(["", "whsec_", "whsk_", "whpk_"]))
def test_any_text_is_a_key_in_its_one_spelling_or_refused(text: str, prefix: str) -> None:
    try:
        key = decode_secret("secret", prefix + text)
    except ConfigurationError:
        return
    assert encode_secret(key) == prefix + text


@pytest.mark.requirement("signing:keys:fresh")
def test_a_fresh_key_is_of_the_chance_it_is_given_and_no_two_are_alike() -> None:
    assert fresh_key("v1", lambda size: b"r" * size) == SigningKey("v1", b"r" * 32)
    assert fresh_key("v1a", lambda size: b"r" * size) == SigningKey("v1a", b"r" * 32)
    assert fresh_key("v1", os.urandom) != fresh_key("v1", os.urandom)


def test_no_key_is_told_by_its_repr() -> None:
    key = SigningKey("v1a", b"hush7" * 6 + b"ab")
    assert "hush7" not in repr([key, verifying_key(key)])
    assert "hush7" not in repr(VerifyingKey("v1", b"hush7" * 6))


@pytest.mark.requirement("signing:rotation:overlap")
def test_the_old_key_signs_for_a_day_unless_it_is_said_otherwise() -> None:
    old, fresh = numbered(1), numbered(2)
    assert rotated([old], fresh, now_ms=NOW_MS) == (fresh, SigningKey("v1", old.key, NOW_MS + DAY_MS))
    assert rotated([old], fresh, 7 * DAY_MS, now_ms=NOW_MS)[1].until_ms == NOW_MS + 7 * DAY_MS
    assert rotated([], fresh, now_ms=NOW_MS) == (fresh,)


@pytest.mark.requirement("signing:rotation:overlap")
def test_a_rotation_without_overlap_ends_every_old_key_at_once() -> None:
    keys = rotated([numbered(1)], numbered(2), now_ms=NOW_MS)
    assert rotated(keys, numbered(3), 0, now_ms=NOW_MS + 1) == (numbered(3),)


@pytest.mark.requirement("signing:rotation:overlap")
def test_no_later_rotation_lengthens_the_time_of_a_key() -> None:
    keys = rotated([numbered(1)], numbered(2), 1000, now_ms=NOW_MS)
    [_, second, first] = rotated(keys, numbered(3), now_ms=NOW_MS + 500)
    assert (second.until_ms, first.until_ms) == (NOW_MS + 500 + DAY_MS, NOW_MS + 1000)


@pytest.mark.requirement("signing:rotation:overlap")
@pytest.mark.parametrize("overlap_ms", [-1, MAX_OVERLAP_MS + 1])
def test_an_overlap_out_of_bounds_is_refused_with_the_bounds(overlap_ms: int) -> None:
    with pytest.raises(ConfigurationError, match=rf"overlap_ms = {overlap_ms}: .* 0 to 604800000 .*7 days"):
        rotated([numbered(1)], numbered(2), overlap_ms, now_ms=NOW_MS)


@pytest.mark.requirement("signing:rotation:overlap")
def test_a_key_is_not_replaced_by_one_of_the_list() -> None:
    keys = rotated([numbered(1)], numbered(2), now_ms=NOW_MS)
    for again in (1, 2):
        with pytest.raises(ConfigurationError, match="is one of those that sign already"):
            rotated(keys, numbered(again), now_ms=NOW_MS)
    of_another_scheme = SigningKey("v1a", numbered(1).key)
    assert rotated(keys, of_another_scheme, now_ms=NOW_MS)[0] == of_another_scheme


@pytest.mark.requirement("signing:rotation:bounded")
def test_a_list_of_ten_takes_no_more_until_one_has_ended_and_says_when_that_is() -> None:
    """svix 2250: rotated twelve times, an hour apart, with a day of overlap."""
    keys: tuple[SigningKey, ...] = (numbered(0),)
    for hour in range(1, MAX_KEYS):
        keys = rotated(keys, numbered(hour), now_ms=NOW_MS + hour * 3_600_000)
    assert len(keys) == MAX_KEYS
    for hour in (10, 11):
        with pytest.raises(ConfigurationError, match="10 secrets sign already"):
            rotated(keys, numbered(hour), now_ms=NOW_MS + hour * 3_600_000)
    with pytest.raises(ConfigurationError, match="10 secrets sign already") as caught:
        rotated(keys, numbered(12), now_ms=NOW_MS + 12 * 3_600_000)
    said = re.search(r"the next of them ends at (\S+Z): rotate then", str(caught.value))
    assert said is not None
    room_ms = round(datetime.fromisoformat(said[1]).timestamp() * 1000)
    assert room_ms == NOW_MS + 3_600_000 + OVERLAP_MS
    with pytest.raises(ConfigurationError, match="10 secrets sign already"):
        rotated(keys, numbered(12), now_ms=room_ms - 1)
    after = rotated(keys, numbered(12), now_ms=room_ms)
    assert len(after) == MAX_KEYS
    assert numbered(0).key not in {key.key for key in after}
    assert rotated(keys, numbered(12), 0, now_ms=NOW_MS + 1) == (numbered(12),)


@pytest.mark.requirement("signing:rotation:bounded")
def test_the_time_of_room_is_never_told_too_early() -> None:
    keys = (numbered(0), *(SigningKey("v1", numbered(n).key, NOW_MS + 1) for n in range(1, 10)))
    with pytest.raises(ConfigurationError, match="ends at 2026-09-21T14:13:21Z"):
        rotated(keys, numbered(10), now_ms=NOW_MS)


@pytest.mark.requirement("signing:rotation:bounded")
def test_ten_keys_without_an_end_are_told_so() -> None:
    with pytest.raises(ConfigurationError, match="none ends by itself: rotate with an overlap of 0"):
        rotated([numbered(n) for n in range(10)], numbered(10), now_ms=NOW_MS)


STEPS = st.lists(st.tuples(st.integers(0, 40 * 3_600_000), st.integers(0, MAX_OVERLAP_MS)), max_size=30)


@pytest.mark.requirement("signing:rotation:bounded")
@given(STEPS)
def test_whatever_is_rotated_the_list_keeps_its_rules(steps: list[tuple[int, int]]) -> None:
    """Newest first, the first without an end, at most ten, none that has ended; a refusal changes nothing."""
    keys: tuple[SigningKey, ...] = (numbered(0),)
    now_ms, made = NOW_MS, 0
    for wait_ms, overlap_ms in steps:
        now_ms, made = now_ms + wait_ms, made + 1
        before = {key.key: key.until_ms for key in keys}
        try:
            keys = rotated(keys, numbered(made), overlap_ms, now_ms=now_ms)
        except ConfigurationError:
            assert sum(counts(key, now_ms) for key in keys) == MAX_KEYS
            assert overlap_ms > 0
            continue
        numbers = [key.key[0] for key in keys]
        assert numbers == sorted(numbers, reverse=True)
        assert numbers[0] == made
        assert keys[0].until_ms is None
        assert len(keys) <= MAX_KEYS
        for key in keys[1:]:
            assert key.until_ms is not None
            assert now_ms < key.until_ms <= now_ms + overlap_ms
            assert key.until_ms <= (before[key.key] or key.until_ms)
