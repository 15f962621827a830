"""The master keys: from the file, from the environment, or made once in the data folder."""

import base64
import logging
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from channels import doctor
from channels.console.settings import explain
from channels.endpoints.vault import Sealed, check_stored
from channels.kept_secrets import kept_secret
from channels.settings import SECRET_FILE, Settings, load_explained, load_settings
from channels.vault_section import KEYS_FILE, open_vault
from worker.errors import ConfigurationError

Write = Callable[[str], Path]

ROOT = Path(__file__).parents[2]
ONE, TWO = (f"k{byte}:{base64.b64encode(byte.encode() * 32).decode()}" for byte in "12")
HUSH = base64.b64encode(b"hush7" * 3).decode()


def sealed_by(settings: Settings) -> tuple[str, bytes]:
    """(id of the key, what it opens to with the plain cipher and that of the two keys which has the id)."""
    text = open_vault(settings.vault, settings.data_dir).seal(b"x", "a context")
    _, identifier, encoded = text.split(".")
    data = base64.b64decode(encoded)
    key = identifier[1].encode() * 32
    return identifier, AESGCM(key).decrypt(data[:12], data[12:], f"v1.{identifier}.a context".encode())


@pytest.mark.requirement("tuning:vault:keys")
def test_the_first_key_of_the_settings_encrypts_and_each_decrypts(write: Write) -> None:
    write(f'[vault]\nkeys = ["{TWO}", "{ONE}"]\n')
    assert sealed_by(load_settings()) == ("k2", b"x")
    write(f'[vault]\nkeys = ["{ONE}", "{TWO}"]\n')
    settings = load_settings()
    assert sealed_by(settings) == ("k1", b"x")
    vault = open_vault(settings.vault, settings.data_dir)
    assert (vault.key_ids, vault.place) == (("k1", "k2"), "vault.keys")


@pytest.mark.requirement("tuning:vault:keys")
def test_keys_may_stand_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LASTWORD_VAULT__KEYS", f'["{TWO}"]')
    assert sealed_by(load_settings()) == ("k2", b"x")


@pytest.mark.requirement("tuning:vault:keys-file")
def test_keys_may_stand_in_a_file_one_a_line(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ring").write_text(f"# the newest first\n{TWO}\r\n\n{ONE}\n", encoding="utf-8")
    write('[vault]\nkeys_file = "ring"\n')
    settings = load_settings()
    assert sealed_by(settings) == ("k2", b"x")
    vault = open_vault(settings.vault, settings.data_dir)
    assert (vault.key_ids, vault.place) == (("k2", "k1"), f"vault.keys_file ({tmp_path / 'ring'})")
    (tmp_path / "other").write_text(ONE, encoding="utf-8")
    monkeypatch.setenv("LASTWORD_VAULT__KEYS_FILE", str(tmp_path / "other"))
    assert sealed_by(load_settings()) == ("k1", b"x")


@pytest.mark.requirement("signing:vault:settings")
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (f"{ONE}\n{ONE[:-2]}\n", "line 2: what follows k1: is not standard base64"),
        (f"\n{HUSH}\n", "line 2: a master key begins with an id"),
        (f"{ONE}\n#\n{ONE}\n", "line 3: there is a key k1 before it"),
        (f"k1:{HUSH}\n", "line 1: the key k1 has 15 bytes"),
        ("# nothing\n", "holds no master key"),
        ("", "is empty"),
        (None, "cannot be read (No such file or directory)"),
    ],
)
def test_a_file_that_holds_no_ring_is_refused_with_the_line_and_the_fix(
    write: Write, tmp_path: Path, content: str | None, words: str
) -> None:
    if content is not None:
        (tmp_path / "ring").write_text(content, encoding="utf-8")
    write('[vault]\nkeys_file = "ring"\n')
    with pytest.raises(ConfigurationError) as caught:
        load_settings()
    message = str(caught.value)
    assert words in message
    assert str(tmp_path / "ring") in message
    assert "lastword.toml:2" in message or "lastword.toml:1" in message
    assert HUSH not in message
    assert ONE[3:] not in message


@pytest.mark.requirement("signing:vault:settings")
@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (f'["{ONE}", "k2:{HUSH}"]', "keys, number 2: the key k2 has 15 bytes"),
        (f'["{HUSH}"]', "keys, number 1: a master key begins with an id"),
        (f'"k1:{HUSH}"', 'keys is a list, as in ["ID:KEY"]'),
        (f'["{ONE}"]\nkeys_file = "x"', "keys and keys_file are both set"),
    ],
)
def test_keys_that_are_no_ring_are_refused_and_not_repeated(write: Write, keys: str, words: str) -> None:
    write(f"[vault]\nkeys = {keys}\n")
    with pytest.raises(ConfigurationError) as caught:
        load_settings()
    assert words in str(caught.value)
    assert HUSH not in str(caught.value)
    assert ONE[3:] not in str(caught.value)


@pytest.mark.requirement("signing:vault:settings")
def test_keys_in_the_environment_that_are_no_list_are_refused_and_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LASTWORD_VAULT__KEYS", ONE)
    with pytest.raises(ConfigurationError, match="LASTWORD_VAULT__KEYS is to be a list") as caught:
        load_settings()
    assert ONE[3:] not in str(caught.value)


@pytest.mark.requirement("signing:vault:generated")
def test_without_keys_one_is_made_for_its_owner_alone_and_kept(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path / "data")
    text = open_vault(settings.vault, settings.data_dir).seal(b"x", "a context")
    again = open_vault(settings.vault, settings.data_dir)
    assert again.open(text, "a context") == b"x"
    [file] = (tmp_path / "data").iterdir()
    assert file.name == "vault-keys"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert again.place == str(file)
    # What is made is a ring that may be handed to other machines as it is.
    named = Settings.model_validate({"vault": {"keys_file": str(file)}})
    assert open_vault(named.vault, tmp_path / "elsewhere").open(text, "a context") == b"x"


@pytest.mark.requirement("signing:vault:generated")
def test_a_key_that_was_lost_is_told_at_the_start_and_not_replaced_in_silence(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    first = open_vault(settings.vault, settings.data_dir)
    stored = [Sealed("crm", "secrets", first.seal(b"x", "secrets of crm"))]
    (tmp_path / "vault-keys").unlink()
    second = open_vault(settings.vault, settings.data_dir)
    with pytest.raises(ConfigurationError) as caught:
        check_stored(second, stored)
    assert str(caught.value) == (
        f"stored secrets of endpoints crm are encrypted with the key {first.key_ids[0]}, which is not in "
        f"{tmp_path / 'vault-keys'}; add it back, or, where it is lost, rotate them with an overlap of 0 and give "
        "their headers once more"
    )


@pytest.mark.requirement("signing:vault:generated")
def test_a_key_that_can_be_neither_read_nor_made_names_its_path_and_the_fix(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    settings = Settings(data_dir=tmp_path / "file")
    with pytest.raises(
        OSError, match=r"the master key .*vault-keys can be .*set vault\.keys_file, or correct data_dir"
    ):
        open_vault(settings.vault, settings.data_dir)


@pytest.mark.requirement("signing:vault:generated")
@pytest.mark.parametrize("content", ["", "hush7", f"{ONE}\nhush7"])
def test_a_kept_key_that_was_damaged_is_told_and_not_made_anew(tmp_path: Path, content: str) -> None:
    (tmp_path / "vault-keys").write_text(content, encoding="utf-8")
    settings = Settings(data_dir=tmp_path)
    with pytest.raises(ConfigurationError, match="vault-keys") as caught:
        open_vault(settings.vault, settings.data_dir)
    assert "hush7" not in str(caught.value)
    assert (tmp_path / "vault-keys").read_text(encoding="utf-8") == content


MAKER = """
import sys
from pathlib import Path
from channels.vault_section import VaultSettings, open_vault
sys.stdout.write("ready\\n"); sys.stdout.flush()
sys.stdin.readline()
vault = open_vault(VaultSettings(), Path(sys.argv[1]))
sys.stdout.write(vault.seal(b"x", "a context") + "\\n")
"""


@pytest.mark.process
@pytest.mark.requirement("signing:vault:generated")
def test_eight_processes_that_make_it_at_once_have_one_key(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    command = [sys.executable, "-c", MAKER, str(folder)]
    made: list[subprocess.Popen[str]] = [
        subprocess.Popen(command, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(8)
    ]
    pipes = [(each.stdin, each.stdout) for each in made]
    for _, said in pipes:
        assert said is not None
        assert said.readline() == "ready\n"
    for told, _ in pipes:
        assert told is not None
        told.write("go\n")
        told.flush()
    texts = [each.communicate(timeout=50)[0].strip() for each in made]
    vault = open_vault(Settings().vault, folder)
    assert {vault.open(text, "a context") for text in texts} == {b"x"}
    [file] = folder.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.requirement("signing:vault:generated")
def test_who_comes_second_gets_what_the_first_has_made(tmp_path: Path) -> None:
    """The moment between looking and making, which no test of processes can be sure to meet."""
    path = tmp_path / "secret"

    def make() -> str:
        path.write_text("first\n", encoding="utf-8")
        return "second"

    assert kept_secret(path, make, "the secret", "fix it") == "first"
    assert [file.name for file in tmp_path.iterdir()] == ["secret"]


@pytest.mark.requirement("signing:vault:generated")
def test_a_kept_secret_is_on_disk_with_its_name_before_anybody_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is sealed with a key must not outlive it."""
    synced: list[tuple[bool, bool]] = []
    path = tmp_path / "secret"

    def fsync(handle: int) -> None:
        synced.append((stat.S_ISDIR(os.fstat(handle).st_mode), path.exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    kept_secret(path, lambda: "x", "the secret", "fix it")
    assert synced == [(False, False), (True, True)]


@pytest.mark.requirement("signing:vault:doctor")
def test_doctor_notes_a_key_that_each_machine_makes_for_itself() -> None:
    shared: dict[str, Any] = {"redis_url": "redis://redis.example/0"}
    [check] = doctor.check_vault(Settings.model_validate(shared))
    assert check.good
    assert "each machine" in check.finding
    assert "vault.keys_file" in check.fix
    assert doctor.check_vault(Settings.model_validate(shared | {"vault": {"keys": [ONE]}})) == []
    assert doctor.check_vault(Settings()) == []


@pytest.mark.requirement("signing:vault:settings")
def test_no_key_is_in_the_repr_of_the_settings() -> None:
    assert ONE[3:] not in repr(Settings.model_validate({"vault": {"keys": [ONE]}}))


@pytest.mark.requirement("signing:vault:settings")
def test_of_keys_it_is_listed_whether_and_where_they_are_set(write: Write) -> None:
    write(f'[vault]\nkeys = ["{ONE}"]\n')
    [keys, file] = [row for row in explain(load_explained()) if row.name.startswith("vault.")]
    assert (keys.name, keys.value, keys.source) == ("vault.keys", "set", "lastword.toml:2")
    assert (file.name, file.value) == ("vault.keys_file", None)


@pytest.mark.requirement("settings:secrets:open-files")
def test_a_key_file_that_others_can_read_is_told_at_its_opening_and_by_doctor(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, request: pytest.FixtureRequest
) -> None:
    logged = logging.getLogger("lastword")
    logged.addHandler(caplog.handler)
    request.addfinalizer(lambda: logged.removeHandler(caplog.handler))
    generated, given = tmp_path / KEYS_FILE, tmp_path / "given"
    settings = Settings(data_dir=tmp_path)
    settings.common_secret()
    open_vault(settings.vault, tmp_path)
    given.write_text(ONE)
    given.chmod(0o640)  # as what mounts secrets for a group has it
    named = Settings.model_validate({"data_dir": tmp_path, "vault": {"keys_file": given}})
    open_vault(named.vault, tmp_path)
    assert (doctor.check_secret_files(named), caplog.records) == ([], [])
    for file in (generated, tmp_path / SECRET_FILE, given):
        file.chmod(0o644)
    for opened in (settings, named):
        open_vault(opened.vault, tmp_path)
    settings.common_secret()
    told = [record.getMessage() for record in dict.fromkeys(caplog.records)]  # of two handlers, where logs propagate
    assert told == ["secret_file_open_to_others"] * 3
    checks = doctor.check_secret_files(named)
    assert [check.good for check in checks] == [False] * 3
    for file, check in zip((tmp_path / SECRET_FILE, generated, given), checks, strict=True):
        assert (str(file) in check.finding, check.fix) == (True, f"chmod 600 {file}")
