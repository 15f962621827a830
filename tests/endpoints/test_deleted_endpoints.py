"""What becomes of deliveries whose endpoint is deleted, and when its name can be made anew."""

from pathlib import Path
from typing import Any

import pytest

from channels.delivery.model import Delivered, Delivery
from channels.endpoint_desk import EndpointDesk
from channels.endpoint_settings import Definition
from channels.endpoints.directory import Directory
from channels.endpoints.record import LEAVING
from channels.endpoints.registry import EndpointLeaving
from channels.outbox import keys, lanes, leaving, reading, upkeep
from channels.outbox.outbox import Outbox
from channels.settings import Settings
from channels.vault_section import open_vault
from tests.delivery.outboxes import BUSY, LEASE_S, insert, inserted, made
from tests.delivery.passing_time import let_pass
from tests.support.web import VAULT_KEY

CRM = Definition(url="https://crm.example")


def settings_of(folder: Path, **more: Any) -> Settings:
    return Settings.model_validate({"data_dir": folder, "vault": {"keys": [VAULT_KEY]}, **more})


@pytest.fixture
async def desk(any_redis: Any, tmp_path: Path) -> EndpointDesk:
    """A desk at which `crm` was made."""
    desk = EndpointDesk(settings_of(tmp_path), any_redis)
    await desk.create("crm", CRM)
    return desk


def outbox_of(client: Any, folder: Path, **more: Any) -> Outbox:
    settings = settings_of(folder, **more)
    directory = Directory(client, open_vault(settings.vault, folder), settings)
    return Outbox(client, lease_s=LEASE_S, rules=directory.rules, chance=lambda: 0.5)


async def states(client: Any) -> dict[str, str]:
    return {one.event_id: one.state for one in (await reading.listed(client, 2000)).deliveries}


async def killed_behind_its_first_step(desk: EndpointDesk) -> None:
    await desk._registry.delete("crm")


@pytest.mark.requirement("endpoints:deleted")
async def test_what_waits_is_cancelled_before_the_name_can_be_made_anew(
    any_redis: Any, tmp_path: Path, desk: EndpointDesk
) -> None:
    outbox = outbox_of(any_redis, tmp_path)
    now = int((await any_redis.time())[0]) * 1000
    for number in range(3):
        await insert(any_redis, [made(f"evt_{number}", due_ms=now - 5, created_ms=now - 9)])
    [first] = await outbox.claim("one", 1)
    await outbox.settle([(first, BUSY)])
    await desk.pause("crm", "by hand")
    assert await outbox.claim("holds what is due", 1) == []
    assert sorted((await states(any_redis)).values()) == ["held", "held", "waiting"]
    await inserted(any_redis, "evt_of_others", destination="other")
    await desk.delete("crm")
    told = (await reading.listed(any_redis, 10)).deliveries
    assert {(one.state, one.code) for one in told if one.lane == "crm"} == {("cancelled", "endpoint_removed")}
    assert (await states(any_redis))["evt_of_others"] == "queued"
    await desk.create("crm", CRM)
    assert [one.event_id for one in await outbox.claim("two", 10)] == []


@pytest.mark.requirement("endpoints:deleted")
async def test_mailboxes_are_emptied_also_behind_what_is_in_flight(
    any_redis: Any, tmp_path: Path, desk: EndpointDesk
) -> None:
    for number in range(30):
        await insert(any_redis, [made(f"evt_{number:02}", mailbox=f"s{number % 3}")])
    outbox = outbox_of(any_redis, tmp_path)
    [first] = await outbox.claim("one", 1)
    await desk.delete("crm")
    assert sorted((await states(any_redis)).values()) == [*["cancelled"] * 29, "in_flight"]
    await outbox.settle([(first, BUSY)])
    await upkeep.keep_up(any_redis, 1)
    assert set((await states(any_redis)).values()) == {"cancelled"}
    assert not [key async for key in any_redis.scan_iter("lw:{dlv}:*crm*")]


@pytest.mark.requirement("endpoints:deleted:in-flight")
async def test_while_an_attempt_is_under_way_the_name_is_refused_and_it_is_not_tried_again(
    any_redis: Any, tmp_path: Path, desk: EndpointDesk
) -> None:
    await inserted(any_redis, "evt_1")
    outbox = outbox_of(any_redis, tmp_path)
    [held] = await outbox.claim("one", 1)
    await desk.delete("crm")
    with pytest.raises(EndpointLeaving, match=r"name 'crm'.*1 attempts to it are under way: try again"):
        await desk.create("crm", CRM)
    await outbox.settle([(held, BUSY)])
    await desk.create("crm", CRM)
    assert await states(any_redis) == {"evt_1": "cancelled"}


@pytest.mark.requirement("endpoints:deleted:in-flight")
async def test_an_attempt_whose_sender_died_ends_with_its_lease_and_is_not_tried_again(
    any_redis: Any, tmp_path: Path, desk: EndpointDesk
) -> None:
    await inserted(any_redis, "evt_1")
    outbox = outbox_of(any_redis, tmp_path)
    assert len(await outbox.claim("one", 1)) == 1
    await desk.delete("crm")
    await let_pass(any_redis, 41)
    assert await outbox.claim("two", 1) == []
    await upkeep.keep_up(any_redis, 1)
    assert await states(any_redis) == {"evt_1": "cancelled"}
    await desk.create("crm", CRM)


@pytest.mark.requirement("endpoints:deleted:killed")
async def test_a_deletion_whose_process_dies_is_finished_by_a_delivery_process(
    any_redis: Any, desk: EndpointDesk
) -> None:
    await insert(any_redis, [made(f"evt_{number:03}") for number in range(2 * leaving.STEP + 1)])
    await killed_behind_its_first_step(desk)
    with pytest.raises(EndpointLeaving):
        await desk._registry.create("crm", {"url": "https://other.example"}, headers={})
    assert await upkeep.keep_up(any_redis, 1) == 0, "there is more of it"
    for _ in range(3):
        await upkeep.keep_up(any_redis, 1)
    assert set((await states(any_redis)).values()) == {"cancelled"}
    assert await any_redis.exists(LEAVING) == 0
    await desk._registry.create("crm", {"url": "https://other.example"}, headers={})


@pytest.mark.requirement("endpoints:deleted:killed")
async def test_a_name_stays_taken_while_anything_is_held_for_it(
    any_redis: Any, tmp_path: Path, desk: EndpointDesk
) -> None:
    await insert(any_redis, [made(f"evt_{number:03}") for number in range(leaving.STEP + 1)])
    await desk.pause("crm", "by hand")
    while await reading.held_count(any_redis, "crm") <= leaving.STEP:
        assert await outbox_of(any_redis, tmp_path).claim("holds what is due", 100) == []
    await killed_behind_its_first_step(desk)
    assert await leaving.go_on(any_redis, ()) == leaving.STEP
    assert await reading.held_count(any_redis, "crm") == 1
    with pytest.raises(EndpointLeaving):
        await desk._registry.create("crm", {"url": "https://other.example"}, headers={})


@pytest.mark.requirement("endpoints:deleted:killed")
async def test_a_create_finishes_a_deletion_whose_process_died(any_redis: Any, desk: EndpointDesk) -> None:
    await inserted(any_redis, "evt_1", "evt_2")
    await killed_behind_its_first_step(desk)
    await desk.create("crm", CRM)
    assert set((await states(any_redis)).values()) == {"cancelled"}


@pytest.mark.requirement("endpoints:deleted:killed")
async def test_what_only_a_newer_release_can_read_keeps_the_name(any_redis: Any, desk: EndpointDesk) -> None:
    [one] = await inserted(any_redis, "evt_1")
    before: bytes = await any_redis.get(keys.record(one.id))
    await any_redis.set(keys.record(one.id), before.partition(b"\n")[0] + b"\n[99]")
    await desk.delete("crm")
    with pytest.raises(EndpointLeaving, match="what waits for it is cancelled: try again"):
        await desk.create("crm", CRM)


@pytest.mark.requirement("endpoints:deleted:settings")
async def test_what_is_for_an_endpoint_of_the_settings_is_not_cancelled_for_a_deleted_one_of_its_name(
    any_redis: Any, tmp_path: Path, desk: EndpointDesk
) -> None:
    await desk.create("other", CRM)
    await inserted(any_redis, "evt_old")
    former = outbox_of(any_redis, tmp_path)
    [held] = await former.claim("one", 1)
    await desk.delete("crm")
    await inserted(any_redis, "evt_other", destination="other")
    await desk._registry.delete("other")
    await former.settle([(held, BUSY)])
    given = {"crm": {"url": "https://crm.example"}}
    outbox = outbox_of(any_redis, tmp_path, endpoints=given)
    for number in range(3):  # something is always queued and in flight, so the name would never be free
        await insert(any_redis, [made(f"evt_{number}_{one}") for one in range(3)])
        claimed = await outbox.claim(f"token_{number}", 1)
        await upkeep.keep_up(any_redis, 1, given)
        await outbox.settle([(one, Delivered(200)) for one in claimed])
    told = await states(any_redis)
    assert {event for event, state in told.items() if state == "cancelled"} == {"evt_other"}
    assert await any_redis.exists(LEAVING) == 0


@pytest.mark.requirement("endpoints:deleted:anew")
async def test_an_endpoint_that_is_made_anew_begins_anew(any_redis: Any, tmp_path: Path, desk: EndpointDesk) -> None:
    await desk.disable("crm", "by hand")
    await desk.delete("crm")
    await desk.create("crm", CRM)
    assert (await desk.show("crm")).lane == (await lanes.standings(any_redis, ["never"]))["never"]
    await inserted(any_redis, "evt_1")
    batch: list[Delivery] = await outbox_of(any_redis, tmp_path).claim("one", 10)
    assert [one.event_id for one in batch] == ["evt_1"]
