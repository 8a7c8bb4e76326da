"""change_access.lua: grants and shares change together with their event, or not at all."""

from typing import Any

import pytest

from tests.support.lab import Lab, ending, grant
from towline.protocol.store import api
from towline.protocol.store.keys import RunKeys


async def index(lab: Lab) -> list[str]:
    """Under what the run stands in the index."""
    client: Any = lab.raw
    members = await client.zrange(RunKeys.of("r1").partition.index, 0, -1)
    return [member.decode().rpartition("|")[0].rpartition("|")[0] for member in members if member != b"-"]


async def test_a_grant_its_event_its_listing_and_the_version_stand_together(lab: Lab) -> None:
    await lab.create()
    await lab.store.change_access(grant("r1", "user:bob", "viewer", side={"g|user:bob": "viewer", "g|user:gone": "x"}))
    standing = await lab.store.standing("r1", ["g|user:bob", "g|user:gone", "g|user:eve"])
    assert (standing.fields, standing.version) == ({"g|user:bob": "viewer"}, "1")
    assert standing.facts.head.seq == 2
    assert await lab.types() == ["run.created", "access.changed"]
    assert await index(lab) == ["a", "r|alice", "r|bob"]
    await lab.store.change_access(
        grant("r1", "user:bob", "owner", "1", side={}, dropped=["g|user:bob"], unlisted=["r|bob|"], listed=[])
    )
    assert (await lab.store.standing("r1", ["g|user:bob"])).fields == {}
    assert await index(lab) == ["a", "r|alice"]
    assert (await lab.store.access_versions(["r1", "none"])) == {"r1": "2", "none": ""}


async def test_what_was_prepared_on_another_access_writes_nothing(lab: Lab) -> None:
    await lab.create()
    await lab.store.change_access(grant("r1", "user:bob", "viewer"))
    async with lab.unwritten():
        for version in ("", "0", "2"):
            with pytest.raises(api.Changed):
                await lab.store.change_access(grant("r1", "user:eve", "owner", version))
        assert (await lab.again("change_access", relief=False))[0] == b"CHANGED"


async def test_the_access_of_a_sealed_run_changes_beside_its_log(lab: Lab) -> None:
    lease = await lab.held()
    await lab.store.close(lab.commit(lease, 1, ending()))
    before = await lab.types()
    await lab.store.change_access(grant("r1", "user:bob", "viewer"))
    assert await lab.types() == before
    assert (await lab.store.standing("r1", ["g|user:bob"])).fields == {"g|user:bob": "viewer"}


async def test_missing_and_deleted_runs(lab: Lab) -> None:
    async with lab.unwritten():
        with pytest.raises(api.NoRun):
            await lab.store.change_access(grant("r1", "user:bob", "viewer"))
    client: Any = lab.raw
    await client.hset(RunKeys.of("r1").run, "gone", "1")
    with pytest.raises(api.RunGone):
        await lab.store.change_access(grant("r1", "user:bob", "viewer"))


async def test_giving_access_needs_room_and_taking_it_does_not(lab: Lab) -> None:
    await lab.create()
    client: Any = lab.raw
    await client.config_set("maxmemory", "1")
    try:
        async with lab.unwritten():
            with pytest.raises(api.StoreFull):
                await lab.store.change_access(grant("r1", "user:bob", "viewer"))
        await lab.store.change_access(grant("r1", "user:bob", "viewer", relief=True))
    finally:
        await client.config_set("maxmemory", "0")
