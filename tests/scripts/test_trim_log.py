"""trim_log.lua: a live log loses its beginning in one step with `first_seq`, and only to its holder."""

from typing import Any

import pytest

from tests.support.lab import AGENT, Lab, ending, note
from towline.protocol import event_data as d
from towline.protocol.codec import NewEntry
from towline.protocol.cursor import Cursor
from towline.protocol.store import api
from towline.protocol.store.keys import RunKeys

AT = 5
"""Where the run begins anew: behind run.created and three notes."""


async def begun_anew(lab: Lab) -> tuple[api.Claimed, Cursor]:
    """A held run of 7 entries, and the cursor at which it began anew."""
    lease = await lab.held()
    again = NewEntry("run.continued", AGENT, d.RunContinued(generation=1), private=b'{"input":2}')
    notes = [note(text, private=text.encode()) for text in "abcde"]
    await lab.store.commit(lab.commit(lease, 1, *notes[:3], again, *notes[3:]))
    return lease, (await lab.log())[AT - 1].cursor


async def trim(lab: Lab, lease: api.Claimed, at: Cursor, **members: Any) -> tuple[int, int]:
    loaded = members.pop("loaded", None) or await lab.store.load("r1")
    return await lab.store.trim_log("r1", members.pop("fence", lease.fence), at, loaded, side={"a|x": "kept"})


async def test_the_beginning_goes_with_its_private_parts_and_the_run_folds_as_before(lab: Lab) -> None:
    lease, at = await begun_anew(lab)
    before, log = await lab.store.load("r1"), await lab.log()
    assert await trim(lab, lease, at) == (AT, 0)
    assert [entry.seq async for entry in lab.store.entries("r1")] == [5, 6, 7]
    assert (await lab.store.load("r1")).run == before.run
    assert (await lab.store.facts("r1")).first_seq == AT
    keys = RunKeys.of("r1")
    assert sorted(int(seq) for seq in await lab.raw.hkeys(keys.private) if seq != b"-") == [5, 6, 7]
    assert await lab.raw.hget(keys.side, "a|x") == b"kept"
    for cursor, recovery in ((Cursor(0), "trimmed"), (log[2].cursor, "trimmed"), (log[3].cursor, "ok"), (at, "ok")):
        page = await lab.store.read_log("r1", cursor, limit=9)
        assert (page.recovery, page.first_seq) == (recovery, AT), cursor
    async with lab.unwritten():
        assert await trim(lab, lease, at) == (AT, 0)
    await lab.store.commit(lab.commit(lease, 2, note("on"), seen=at))
    with pytest.raises(api.Diverged):
        await lab.store.commit(lab.commit(lease, 3, note("x"), seen=log[0].cursor))


async def test_only_the_holder_trims_and_only_what_may_go(lab: Lab) -> None:
    with pytest.raises(api.NoRun):
        await lab.store.trim_log("r0", api.Fence(1, "x"), Cursor(1, 1), await loaded_of(lab, "r9"), side={})
    lease, at = await begun_anew(lab)
    early, log = await lab.store.load("r1"), await lab.log()
    old = api.Loaded(early.run, log[3].cursor, early.facts)
    async with lab.unwritten():
        with pytest.raises(api.Fenced):
            await trim(lab, lease, at, fence=api.Fence(lease.fence.epoch, "other"))
        for wrong in (Cursor(AT, at.tag ^ 1 if at.tag else 1), Cursor(99, 1)):
            with pytest.raises(api.Diverged):
                await trim(lab, lease, wrong)
        for seq in (1, 2, 6):
            with pytest.raises(api.Changed):
                await trim(lab, lease, log[seq - 1].cursor)
        with pytest.raises(api.Changed):
            await trim(lab, lease, at, loaded=old)
        with pytest.raises(api.Diverged):
            await trim(lab, lease, at, loaded=api.Loaded(early.run, Cursor(7, 1), early.facts))
    await lab.accept()
    async with lab.unwritten():
        with pytest.raises(api.Changed):
            await trim(lab, lease, at)
    await lab.store.close(lab.commit(lease, 2, ending(), seen=await lab.head(), applied=1))
    async with lab.unwritten():
        with pytest.raises(api.RunClosed):
            await trim(lab, lease, at)
    assert [entry.seq for entry in await lab.log()][:AT] == [1, 2, 3, 4, 5]


async def loaded_of(lab: Lab, run: str) -> api.Loaded:
    await lab.create(run)
    return await lab.store.load(run)


async def test_private_parts_go_in_portions_and_memory_may_be_full(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("towline.protocol.store.trims._PARTS", 3)
    lease, at = await begun_anew(lab)
    await lab.raw.config_set("maxmemory", "1")
    try:
        assert await trim(lab, lease, at) == (AT, 1)
        assert await trim(lab, lease, at) == (AT, 0)
    finally:
        await lab.raw.config_set("maxmemory", "0")
    assert sorted(await lab.raw.hkeys(RunKeys.of("r1").private)) == [b"-", b"5", b"6", b"7"]


async def test_a_page_that_is_trimmed_between_its_two_reads_has_no_hole(lab: Lab) -> None:
    await begun_anew(lab)
    log = await lab.log()
    await lab.raw.xtrim(RunKeys.of("r1").log, minid=f"{AT}-0", approximate=False)  # `first_seq` as it was read before
    for cursor in (Cursor(0), log[1].cursor, Cursor(2)):
        page = await lab.store.read_log("r1", cursor, limit=9)
        assert (page.recovery, page.first_seq, page.entries) == ("trimmed", AT, ()), cursor
    page = await lab.store.read_log("r1", log[AT - 2].cursor, limit=9)
    assert (page.recovery, [entry.seq for entry in page.entries]) == ("ok", [5, 6, 7])
    with pytest.raises(api.Diverged):
        await lab.store.load("r1")
