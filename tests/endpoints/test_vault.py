"""Secrets at rest: what is sealed opens for what it was sealed for, with its key, and for nothing else."""

import base64
import itertools
import os
import string

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from channels.doctor import check_sealed
from channels.endpoints.vault import (
    Ring,
    Sealed,
    Vault,
    check_stored,
    context_of,
    decode_master_key,
    fresh_master_key,
    key_id,
    missing_keys,
    ring_of,
)
from worker.errors import ConfigurationError, LocalProtocolError, NewerRecord

ALPHABET = string.ascii_letters + string.digits + "+/=.-_"
CONTEXT = context_of("crm", "secrets")


def line(identifier: str, byte: bytes = b"k") -> str:
    return f"{identifier}:{base64.b64encode(byte * 32).decode()}"


def vault(*lines: str) -> Vault:
    return Vault(ring_of((("a line", each) for each in lines), "vault.keys_file"), os.urandom)


ONE, TWO = line("k1", b"1"), line("k2", b"2")


@pytest.mark.requirement("signing:vault:form")
def test_a_sealed_text_opens_with_a_plain_aes_gcm_and_the_key_that_it_names() -> None:
    """By the documented form alone: no operator depends on this program to read what is his."""
    text = vault(ONE).seal(b"whsec_x", CONTEXT)
    version, identifier, encoded = text.split(".")
    data = base64.b64decode(encoded, validate=True)
    assert (version, identifier) == ("v1", "k1")
    assert AESGCM(b"1" * 32).decrypt(data[:12], data[12:], b"v1.k1.secrets of crm") == b"whsec_x"


@pytest.mark.requirement("signing:vault:form")
@given(st.binary(max_size=300), st.text(max_size=40))
def test_what_is_sealed_opens_for_what_it_was_sealed_for(plain: bytes, name: str) -> None:
    sealer = vault(ONE, TWO)
    text = sealer.seal(plain, context_of(name, "headers"))
    assert sealer.open(text, context_of(name, "headers")) == plain
    assert vault(TWO, ONE).open(text, context_of(name, "headers")) == plain


def test_the_same_secret_sealed_twice_is_not_seen_to_be_the_same() -> None:
    sealer = vault(ONE)
    assert sealer.seal(b"x", CONTEXT) != sealer.seal(b"x", CONTEXT)


@pytest.mark.requirement("signing:vault:tampered")
def test_a_text_with_any_other_character_in_any_place_is_refused() -> None:
    sealer = vault(ONE, TWO)
    text = sealer.seal(b"whsec_hush7", CONTEXT)
    for place, other in itertools.product(range(len(text)), ALPHABET):
        changed = text[:place] + other + text[place + 1 :]
        if changed == text:
            continue
        with pytest.raises((ConfigurationError, NewerRecord)) as caught:
            sealer.open(changed, CONTEXT)
        assert text.split(".")[2] not in str(caught.value)


@pytest.mark.requirement("signing:vault:tampered")
@given(st.text() | st.from_regex(r"v1\.k1\.[A-Za-z0-9+/]{38}==", fullmatch=True))
def test_what_was_never_sealed_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises((ConfigurationError, NewerRecord), match="the field secrets of crm "):
        vault(ONE).open(text, CONTEXT)


@pytest.mark.requirement("signing:vault:tampered")
def test_a_text_cut_short_or_with_more_behind_it_is_refused() -> None:
    sealer = vault(ONE)
    text = sealer.seal(b"whsec_x", CONTEXT)
    for changed in (*(text[:end] for end in range(len(text))), text + "A", text + "=", text + "AAAA", text + "\n"):
        with pytest.raises(ConfigurationError):
            sealer.open(changed, CONTEXT)


@pytest.mark.requirement("signing:vault:bound")
@pytest.mark.parametrize("context", [context_of("crm2", "secrets"), context_of("crm", "headers"), "secrets", ""])
def test_a_text_that_was_moved_to_another_endpoint_or_field_is_refused(context: str) -> None:
    sealer = vault(ONE)
    with pytest.raises(ConfigurationError, match=r"does not open with the key k1 .*it was changed or moved"):
        sealer.open(sealer.seal(b"x", CONTEXT), context)


@pytest.mark.requirement("signing:vault:bound")
@given(st.tuples(st.text(), st.from_regex(r"[a-z][a-z0-9_]*", fullmatch=True)), st.tuples(st.text(), st.text()))
def test_no_two_fields_have_one_context(one: tuple[str, str], other: tuple[str, str]) -> None:
    try:
        second = context_of(*other)
    except LocalProtocolError:
        return
    assert (context_of(*one) == second) == (one == other)


@pytest.mark.parametrize("field", ["", "a b", "a of b", "A", "1", "a\n"])
def test_a_field_whose_name_could_be_read_in_two_ways_is_a_fault_of_ours(field: str) -> None:
    with pytest.raises(LocalProtocolError):
        context_of("crm", field)


@pytest.mark.requirement("signing:vault:bound")
def test_a_text_under_the_id_of_another_key_is_refused() -> None:
    text = vault(ONE).seal(b"x", CONTEXT).replace("k1", "k2")
    with pytest.raises(ConfigurationError, match=r"does not open with the key k2 of vault\.keys_file"):
        vault(ONE, TWO).open(text, CONTEXT)
    same_key = vault(ONE, line("k2", b"1"))
    with pytest.raises(ConfigurationError, match="does not open with the key k2"):
        same_key.open(text, CONTEXT)


@pytest.mark.requirement("signing:vault:lost-key")
def test_a_key_that_is_missing_is_named_with_the_place_it_belongs_to() -> None:
    text = vault(ONE).seal(b"x", CONTEXT)
    with pytest.raises(ConfigurationError) as caught:
        vault(TWO).open(text, CONTEXT)
    assert str(caught.value) == (
        "the field secrets of crm is encrypted with the key k1, which is not in vault.keys_file; add it back"
    )


@pytest.mark.requirement("signing:vault:lost-key")
def test_an_id_that_got_another_key_is_told_and_no_secret_is_given() -> None:
    text = vault(ONE).seal(b"x", CONTEXT)
    with pytest.raises(ConfigurationError, match="or that id had another key; put that key back"):
        vault("k1:" + TWO[3:]).open(text, CONTEXT)


def test_what_a_newer_release_sealed_is_told_as_such() -> None:
    with pytest.raises(NewerRecord, match=r"encrypted by a newer release \(v2\)"):
        vault(ONE).open("v2.k1.whatever", CONTEXT)


@pytest.mark.requirement("signing:vault:rotation")
def test_the_first_key_seals_and_what_another_sealed_is_brought_under_it() -> None:
    before, both = vault(ONE), vault(TWO, ONE)
    text = before.seal(b"x", CONTEXT)
    fresh = both.reseal(text, CONTEXT)
    assert (key_id(text, CONTEXT), key_id(fresh, CONTEXT)) == ("k1", "k2")
    assert vault(TWO).open(fresh, CONTEXT) == b"x"
    assert both.reseal(fresh, CONTEXT) == fresh


STORED = [
    Sealed(name, field, vault(key).seal(b"x", context_of(name, field)))
    for name, field, key in (("a", "secrets", TWO), ("a", "headers", TWO), ("b", "secrets", TWO), ("c", "secrets", ONE))
]


@pytest.mark.requirement("signing:vault:start")
def test_a_start_with_a_lost_key_names_it_and_the_endpoints_that_need_it() -> None:
    assert missing_keys(vault(ONE), STORED) == {"k2": ("a", "b")}
    with pytest.raises(ConfigurationError) as caught:
        check_stored(vault(ONE), STORED)
    assert str(caught.value) == (
        "stored secrets of endpoints a, b are encrypted with the key k2, which is not in vault.keys_file; add it back, "
        "or, where it is lost, rotate them with an overlap of 0 and give their headers once more"
    )
    assert missing_keys(vault(ONE, TWO), STORED) == {}
    check_stored(vault(ONE, TWO), STORED)
    check_stored(vault(ONE), [])


@pytest.mark.requirement("signing:vault:start")
def test_a_start_tells_of_everything_that_cannot_be_opened() -> None:
    broken = [Sealed("d", "secrets", STORED[0].text), Sealed("e", "secrets", "whsec_hush7"), *STORED]
    with pytest.raises(ConfigurationError) as caught:
        check_stored(vault(TWO), broken)
    missing, moved, unsealed = str(caught.value).splitlines()
    assert missing.startswith("stored secrets of endpoints c are encrypted with the key k1")
    assert moved.startswith("the field secrets of d does not open")
    assert unsealed.startswith("the field secrets of e is stored as no sealed text")
    assert "hush7" not in str(caught.value)


@pytest.mark.requirement("signing:vault:start")
def test_a_start_leaves_what_a_newer_release_sealed_to_that_release() -> None:
    check_stored(vault(ONE), [Sealed("a", "secrets", "v2.k9.whatever")])


@pytest.mark.requirement("signing:vault:start")
def test_doctor_tells_which_key_is_missing() -> None:
    [good] = check_sealed(vault(ONE, TWO), STORED)
    assert good.good
    assert "4 stored secrets can be decrypted" in good.finding
    [bad] = check_sealed(vault(ONE), STORED)
    assert not bad.good
    assert "the key k2, which is not in vault.keys_file" in bad.finding


@pytest.mark.requirement("signing:vault:keys")
@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "begins with an id"),
        (base64.b64encode(b"hush7" * 7).decode(), "begins with an id"),
        (":" + ONE.split(":")[1], "begins with an id"),
        ("k.1:" + ONE.split(":")[1], "begins with an id"),
        ("k" * 33 + ":" + ONE.split(":")[1], "begins with an id"),
        (ONE + " ", "what follows k1: is not standard base64"),
        (ONE.rstrip("="), "what follows k1: is not standard base64"),
        ("k1:" + base64.b64encode(b"hush7hush7").decode(), "the key k1 has 10 bytes"),
        ("k1:", "the key k1 has 0 bytes"),
    ],
)
def test_a_line_that_is_no_master_key_is_refused_with_the_fix_and_without_being_repeated(text: str, why: str) -> None:
    with pytest.raises(
        ConfigurationError, match=rf"^a place: .*{why}.*`lastword vault key` prints a new one"
    ) as caught:
        decode_master_key("a place", text)
    assert not text[5:] or text[5:] not in str(caught.value)


@pytest.mark.requirement("signing:vault:keys")
def test_a_ring_has_keys_each_with_an_id_of_its_own() -> None:
    with pytest.raises(ConfigurationError, match=r"^line 2: there is a key k1 before it"):
        ring_of([("line 1", ONE), ("line 2", line("k1", b"x"))], "vault.keys_file")
    with pytest.raises(ConfigurationError, match=r"^vault\.keys_file holds no master key"):
        ring_of([], "vault.keys_file")


@pytest.mark.requirement("signing:vault:keys")
def test_a_fresh_key_has_an_id_of_its_own_and_is_taken() -> None:
    """Keys that two machines made apart are told from each other by their ids."""
    one, two = (decode_master_key("", fresh_master_key(os.urandom)) for _ in range(2))
    assert one.id != two.id
    again = decode_master_key("", fresh_master_key(lambda size: one.key[:size]))
    assert again == one


def test_no_master_key_is_told_by_its_repr() -> None:
    ring = ring_of([("", line("k1", b"Q"))], "vault.keys")
    assert "QQQQ" not in repr(ring)
    assert "UVFR" not in repr(ring)  # its base64
    assert "v1." not in repr(STORED)
    assert isinstance(ring, Ring)
