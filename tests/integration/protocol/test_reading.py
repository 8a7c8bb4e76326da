"""Reads behind a cursor: each answer of the contract's table, and what stands beside the log."""

from typing import Any

import pytest

from tests.support.lab import Lab, ending, note
from towline.protocol.cursor import START, Cursor
from towline.protocol.store import api
from towline.protocol.store.keys import RunKeys


async def five(lab: Lab) -> list[Any]:
    lease = await lab.held()
    entries = [note(str(n), private=b'{"n":%d}' % n) for n in range(4)]
    await lab.store.commit(lab.commit(lease, 1, *entries))
    return await lab.log()


async def test_a_page_begins_after_its_cursor_and_each_kind_of_cursor_has_its_answer(lab: Lab) -> None:
    log = await five(lab)
    whole = await lab.store.read_log("r1", START, limit=99)
    assert (whole.recovery, whole.head, whole.first_seq, whole.sealed) == ("ok", log[-1].cursor, 1, False)
    for entry in log:
        page = await lab.store.read_log("r1", entry.cursor, limit=2)
        assert [e.seq for e in page.entries] == [s for s in (entry.seq + 1, entry.seq + 2) if s <= 5]
        bare = await lab.store.read_log("r1", Cursor(entry.seq), limit=2)
        assert bare == page
        forged = Cursor(entry.seq, entry.tag ^ 1)
        page = await lab.store.read_log("r1", forged, limit=2)
        assert (page.recovery, list(page.entries)) == ("diverged", [])
    for ahead in (Cursor(6), Cursor(6, 1), Cursor(2**53 - 1)):
        assert (await lab.store.read_log("r1", ahead, limit=2)).recovery == "ahead"
    with pytest.raises(api.NoRun):
        await lab.store.read_log("r2", START, limit=2)


async def test_private_parts_come_on_demand_and_in_place(lab: Lab) -> None:
    await five(lab)
    plain = await lab.store.read_log("r1", START, limit=99)
    assert [e.private for e in plain.entries] == [None] * 5
    page = await lab.store.read_log("r1", Cursor(2), limit=2, private=True)
    assert [e.private for e in page.entries] == [b'{"n":1}', b'{"n":2}']
    last = await lab.store.read_log("r1", Cursor(5), limit=2, private=True)
    assert list(last.entries) == []


async def test_a_log_whose_beginning_is_gone_says_what_is_lost(lab: Lab) -> None:
    log = await five(lab)
    keys = RunKeys.of("r1")
    await lab.raw.xtrim(keys.log, minid=f"{log[3].cursor}", approximate=False)
    await lab.raw.hset(keys.run, "first_seq", "4")
    for cursor in (START, log[0].cursor, log[1].cursor):
        page = await lab.store.read_log("r1", cursor, limit=9)
        assert (page.recovery, page.first_seq, list(page.entries)) == ("trimmed", 4, [])
    page = await lab.store.read_log("r1", log[2].cursor, limit=9)
    assert (page.recovery, [e.seq for e in page.entries]) == ("ok", [4, 5])
    assert (await lab.store.read_log("r1", log[3].cursor, limit=9)).recovery == "ok"


async def test_a_run_is_the_fold_of_its_log_at_any_length(lab: Lab) -> None:
    lease = await lab.held()
    for number in range(1, 13):
        entries = [note(f"{number}-{n}") for n in range(90)]
        snapshot = (await lab.store.load("r1")).run if number % 5 == 0 else None
        await lab.store.commit(lab.commit(lease, number, *entries, snapshot=snapshot))
    loaded = await lab.store.load("r1")
    assert (loaded.run.last_seq, loaded.run.summary, loaded.cursor) == (1081, "12-89", await lab.head())
    await lab.store.close(lab.commit(lease, 13, ending()))
    assert (await lab.store.load("r1")).run.status == "completed"


async def test_fields_beside_the_log_are_found_by_prefix_also_among_thousands(lab: Lab) -> None:
    lease = await lab.held()
    wanted = {f"q|{n}": str(n) for n in range(3)}
    others = {f"c|{n}": "x" for n in range(5000)}
    await lab.store.commit(lab.commit(lease, 1, side={**others, **wanted}))
    assert await lab.store.side_matching("r1", "q|") == wanted
    assert await lab.store.side_fields("r1", ["q|1", "q|9"]) == {"q|1": "1"}
    assert await lab.store.side_fields("r1", []) == {}
    assert await lab.store.heads(["r1", "nowhere"]) == {"r1": await lab.head()}
    assert await lab.store.heads([]) == {}


async def test_hints_are_read_at_most_as_asked_and_each_once(lab: Lab) -> None:
    names = {f"r{n}" for n in range(20)}
    for run in names:
        await lab.create(run)
    seen: list[str] = []
    while batch := await lab.store.read_hints("default", count=3, block_ms=1):
        assert len(batch) <= 3
        seen += [hint.run for hint in batch]
    assert sorted(seen) == sorted(names)


async def test_a_queue_that_vanished_is_made_again_from_its_beginning(lab: Lab) -> None:
    await lab.create()
    key = RunKeys.of("r1").partition.commands("default")
    await lab.raw.xgroup_destroy(key, "workers")
    assert await lab.store.read_hints("default", count=3, block_ms=1) == []
    assert [h.run for h in await lab.store.read_hints("default", count=3, block_ms=1)] == ["r1"]


async def test_very_large_numbers_are_written_in_full(lab: Lab) -> None:
    lease = await lab.held()
    keys = RunKeys.of("r1")
    await lab.raw.xadd(keys.log, {"e": b"{}", "m": b"{}"}, id="100000000000000-7")
    await lab.raw.hset(keys.run, mapping={"last_seq": "100000000000000", "last_tag": "7"})
    done = await lab.store.commit(lab.commit(lease, 1, note(cause=100000000000000)))
    assert done.cursor.seq == 100000000000001
    ((entry_id, fields),) = await lab.raw.xrevrange(keys.log, count=1)
    assert entry_id.startswith(b"100000000000001-")
    assert fields[b"e"].startswith(b'{"seq":100000000000001,')
    assert b'"cause":100000000000000,' in fields[b"e"]
