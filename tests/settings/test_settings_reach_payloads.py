"""The settings of bodies, from the file to what a receiver gets."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from channels.contents import Contents
from channels.delivery.model import Delivery
from channels.settings import load_settings
from tests.store.turns import Redis, commit, driven, seal
from worker.errors import ConfigurationError

Write = Callable[[str], Path]
PROVIDER = '[providers.main]\nbase_url = "http://127.0.0.1:1/v1"\nmodel = "m"\n[turns]\nkeep_s = 1209600\n'


async def told(client: Redis, length: int) -> dict[str, Any]:
    """The data of the end of a turn whose text has so many characters."""
    accumulator = await driven(client)
    await accumulator.open_call(1, 1, 0, True)
    await commit(accumulator, 1, 1, "x" * length)
    await seal(accumulator)
    delivery = Delivery("dlv_1", "evt_1", accumulator.turn, "turn.completed", "crm", 1, 1)
    (body,) = await Contents(client, load_settings().payload_form(), lambda _: "none").bodies([(delivery, True)])
    assert isinstance(body, bytes)
    data: dict[str, Any] = json.loads(body)["data"]
    return data


@pytest.mark.requirement("tuning:delivery:payload-cap-bytes")
@pytest.mark.parametrize("url", ["", '[web]\npublic_url = "https://lastword.example"\n'])
async def test_a_body_above_the_cap_comes_without_its_text(fake_redis: Redis, write: Write, url: str) -> None:
    write(f"{PROVIDER}[delivery]\npayload_cap_bytes = 40000\n{url}")
    assert len((await told(fake_redis, 39_000))["text"]) == 39_000
    assert "text" not in await told(fake_redis, 40_000)


@pytest.mark.requirement("tuning:web:public-url")
async def test_what_is_left_out_is_to_be_fetched_from_the_public_url(fake_redis: Redis, write: Write) -> None:
    write(f'{PROVIDER}[web]\npublic_url = "https://lastword.example/api/"\n')
    data = await told(fake_redis, 300_000)
    assert data["truncated"] is True
    assert data["fetch_url"] == f"https://lastword.example/api/v1/turns/{data['turn']}"


@pytest.mark.requirement("events:payload:cap-without-url")
async def test_without_a_public_url_a_long_text_comes_whole(fake_redis: Redis, write: Write) -> None:
    write(PROVIDER)
    assert len((await told(fake_redis, 300_000))["text"]) == 300_000


@pytest.mark.parametrize(
    "url", ["lastword.example", "https://me:secret@lastword.example", "https://lastword.example/?a"]
)
def test_a_public_url_that_nothing_can_be_added_to_is_refused_with_the_fix(write: Write, url: str) -> None:
    write(f'{PROVIDER}[web]\npublic_url = "{url}"\n')
    with pytest.raises(ConfigurationError, match=r"web\.public_url") as refused:
        load_settings()
    assert "secret" not in str(refused.value)
