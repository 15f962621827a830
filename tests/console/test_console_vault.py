"""`lastword vault`: a key is made, and all that is stored comes under it."""

import asyncio
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from channels.console import exits, vault
from channels.endpoints.vault import Sealed, Vault, decode_master_key, ring_of
from channels.settings import load_settings
from worker.errors import ConfigurationError

Lastword = Callable[..., Any]


class InHash:
    """Sealed texts of secrets in a hash of Redis; nobody else writes it."""

    def __init__(self, client: Any, _: Vault) -> None:
        self.client = client

    async def sealed(self) -> Sequence[Sealed]:
        texts = await self.client.hgetall("sealed")
        return [Sealed(name.decode(), "secrets", text.decode()) for name, text in texts.items()]

    async def put_sealed(self, name: str, field: str, old: str, new: str) -> bool:
        assert (await self.client.hget("sealed", name), field) == (old.encode(), "secrets")
        await self.client.hset("sealed", name, new)
        return True


class Full(InHash):
    async def put_sealed(self, name: str, field: str, old: str, new: str) -> bool:  # noqa: ARG002 - it takes nothing
        return False


@pytest.mark.requirement("signing:command:vault")
def test_a_key_is_made_that_a_ring_takes(lastword: Lastword) -> None:
    ran = lastword("vault", "key")
    assert ran.code == exits.OK
    [line] = ran.out.splitlines()
    key = decode_master_key("", line)
    assert len(key.key) == 32
    assert "vault reseal" in ran.err
    assert line not in ran.err
    assert lastword("vault", "key").out != ran.out


@pytest.mark.requirement("signing:command:vault")
async def test_all_that_is_stored_comes_under_a_key_that_was_put_first(
    lastword: Lastword,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    real_redis: Any,
    real_url: str,
) -> None:
    old, new = (lastword("vault", "key").out.strip() for _ in range(2))
    sealer = Vault(ring_of([("", old)], ""), os.urandom)
    for name in ("a", "b"):
        await real_redis.hset("sealed", name, sealer.seal(name.encode(), f"secrets of {name}"))
    (tmp_path / "ring").write_text(f"{new}\n{old}\n", encoding="utf-8")
    monkeypatch.setenv("LASTWORD_VAULT__KEYS_FILE", str(tmp_path / "ring"))
    monkeypatch.setenv("LASTWORD_REDIS_URL", real_url)

    async def reseal(store: Any = InHash, *, as_json: bool = False) -> tuple[int, str]:
        code = await asyncio.to_thread(vault.run_reseal, load_settings(), store, as_json=as_json)
        return code, capsys.readouterr().out

    new_id, old_id = new.split(":")[0], old.split(":")[0]
    code, out = await reseal(Full)
    assert code == exits.FAILED
    assert "2 are under an older key" in out
    code, out = await reseal()
    assert code == exits.OK
    assert f"2 encrypted anew with the key {new_id}; 2 of 2 are" in out
    assert f"nothing that is stored needs {old_id} any more" in out
    code, out = await reseal(as_json=True)
    assert json.loads(out) == {"key": new_id, "changed": 0, "total": 2, "left": 0, "idle_keys": [old_id]}
    (tmp_path / "ring").write_text(f"{new}\n", encoding="utf-8")
    assert (await reseal())[1] == f"0 encrypted anew with the key {new_id}; 2 of 2 are\n"
    (tmp_path / "ring").write_text(f"{old}\n", encoding="utf-8")
    with pytest.raises(ConfigurationError, match=f"endpoints a, b are encrypted with the key {new_id}"):
        await reseal()


@pytest.mark.requirement("signing:command:vault")
def test_a_folder_that_cannot_hold_the_key_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("LASTWORD_DATA_DIR", str(tmp_path / "file"))
    monkeypatch.setenv("LASTWORD_REDIS_URL", "redis://127.0.0.1:1/0")
    with pytest.raises(ConfigurationError, match=r"the master key .* can be neither read nor made"):
        vault.run_reseal(load_settings(), InHash, as_json=False)
