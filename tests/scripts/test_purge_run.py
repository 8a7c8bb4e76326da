"""purge_run.lua: of a run that has ended a tombstone stays, and nothing else."""

from typing import Any

import pytest

from tests.support.lab import Lab, approval, ending, grant, note
from towline.protocol.cursor import START
from towline.protocol.store import api
from towline.protocol.store.keys import RunKeys, timer_member

KEPT = {"g|user:bob": "viewer"}


async def ended(lab: Lab, run: str = "r1") -> None:
    """A run that was granted to bob, asked, was answered by nobody, and has ended."""
    lease = await lab.held(run)
    asked, side = approval("q1")
    await lab.store.commit(
        lab.commit(
            lease, 1, asked, note("content", private=b'"content"'), side={**side, "a|art_1": "content"},
            arm=[api.Timer("timer", "content", 10**15)], inbox_add={"q1": ["user:alice"]},
        )
    )  # fmt: skip
    await lab.accept(run)
    await lab.store.change_access(grant(run, "user:bob", "viewer", side=KEPT))
    await lab.store.close(lab.commit(lease, 2, ending(), seen=await lab.head(run)))


async def bury(lab: Lab, run: str = "r1", **members: Any) -> None:
    asked: dict[str, Any] = {"by": "root", "version": "1", "kept": KEPT, "unlisted": ["a|", "r|alice|", "r|bob|"]}
    await lab.store.bury_run(run, **{**asked, **members})


async def test_who_could_read_it_stays_and_nothing_else(lab: Lab) -> None:
    empty = await lab.dump()
    await ended(lab)
    await bury(lab)
    found, keys = await lab.dump(), RunKeys.of("r1")
    assert found.pop(keys.run).keys() == {b"gone", b"gone_by", b"owner", b"access"}
    assert found.pop(keys.side) == {b"-": b"", b"g|user:bob": b"viewer"}
    assert found.pop(keys.partition.done) == [(b"r1", -1.0), (b"-", float("inf"))]
    assert await lab.field("access") == "2"
    # Hints name a run and no more; the timer goes before, by `drop_ended`.
    del found[keys.partition.commands("default")]
    timers = found.pop(keys.partition.timers)
    assert [member for member, _ in timers] == [timer_member("timer", "content", "r1").encode(), b"-"]
    assert found == {key: empty[key] for key in found}


async def test_what_cannot_be_deleted_now_is_left_as_it_was(lab: Lab) -> None:
    with pytest.raises(api.NoRun):
        await bury(lab)
    lease = await lab.held()
    async with lab.unwritten():
        with pytest.raises(api.Changed):
            await bury(lab, version="")
    await lab.store.close(lab.commit(lease, 1, ending()))
    async with lab.unwritten():
        with pytest.raises(api.Changed):
            await bury(lab, version="1")
    await bury(lab, version="")
    async with lab.unwritten():
        with pytest.raises(api.RunGone):
            await bury(lab, version="")
        assert (await lab.again("purge_run"))[0] == b"GONE"


async def test_readers_are_told_that_it_is_gone_and_writers_write_nothing(lab: Lab) -> None:
    await ended(lab)
    await bury(lab)
    store = lab.store
    for read in (store.facts("r1"), store.load("r1"), store.read_log("r1", START, limit=1)):
        with pytest.raises(api.RunGone) as caught:
            await read
        assert caught.value.owner == "alice"
    with pytest.raises(api.RunGone) as caught:
        await store.standing("r1", ["g|user:bob", "g|user:eve"])
    assert caught.value.fields == KEPT
    assert await store.access_versions(["r1"]) == {"r1": "2"}
    assert await store.heads(["r1"]) == {}
    assert await store.list_runs("a|", before=None, limit=9) == []
    async with lab.unwritten():
        with pytest.raises(api.RunGone) as caught:
            await lab.create()
        assert caught.value.owner == "alice"
        with pytest.raises(api.RunGone):
            await store.change_access(grant("r1", "user:eve", "viewer", "2"))
        with pytest.raises(api.NoRun):
            await lab.accept()
        assert await lab.try_claim() == api.NotClaimed("no_run")
        assert await lab.try_claim(closing=True) == api.NotClaimed("no_run")
        assert (await lab.again("commit"))[0] == b"NORUN"
        assert (await lab.again("close_run"))[0] == b"NORUN"


async def test_it_needs_no_room(lab: Lab) -> None:
    await ended(lab)
    await lab.raw.config_set("maxmemory", "1")
    try:
        await bury(lab)
    finally:
        await lab.raw.config_set("maxmemory", "0")
    assert await lab.field("gone_by") == "root"
