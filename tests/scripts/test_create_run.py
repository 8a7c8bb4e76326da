"""create_run.lua: a run, its first event, its place in the listings and its start, at once or not at all."""

import asyncio
from typing import Any

import pytest

from tests.support.lab import Lab
from towline.protocol.limits import LEASE_MS
from towline.protocol.store import api
from towline.protocol.store.keys import RunKeys
from towline.protocol.store.redis import RedisStore


async def test_one_step_makes_all_of_it(lab: Lab) -> None:
    created = await lab.create("r1")
    assert created.existing is None
    (entry,) = await lab.log()
    assert (entry.event().type, entry.cursor, entry.private) == ("run.created", created.cursor, b'{"input":{}}')
    facts = await lab.store.facts("r1")
    assert (facts.head, facts.input_seq, facts.epoch, facts.sealed, facts.owner) == (
        created.cursor,
        1,
        0,
        False,
        "alice",
    )
    (hint,) = await lab.store.read_hints("default", count=5, block_ms=100)
    assert (hint.run, hint.workflow, hint.version) == ("r1", "review", "1")
    for prefix in ("a|", "r|alice|"):
        assert [run for _, run in await lab.store.list_runs(prefix, before=None, limit=5)] == ["r1"]
    due: Any = await lab.raw.zscore(RunKeys.of("r1").partition.leases, "r1")
    assert due == int(lab.last("create_run")[2][3]) + LEASE_MS


async def test_a_lost_reply_is_the_first_answer_again(lab: Lab) -> None:
    created = await lab.create()
    async with lab.unwritten():
        reply = await lab.again("create_run", relief=False)
    assert reply[:3] == [b"OK", b"1", str(created.cursor.tag).encode()]


async def test_an_id_is_taken_once(lab: Lab) -> None:
    first = await lab.create(fingerprint="f:1")
    async with lab.unwritten():
        second = await lab.create(fingerprint="f:2", owner="bob")
    assert second.cursor == first.cursor
    assert second.existing == api.Existing("alice", "f:1")


async def test_fifty_at_once_make_one_run(lab: Lab, redis_url: str) -> None:
    answers = await asyncio.gather(*(lab.create() for _ in range(50)))
    assert sum(a.existing is None for a in answers) == 1
    assert len({a.cursor for a in answers}) == 1
    assert len(await lab.log()) == 1


async def test_a_deleted_run_stays_deleted(lab: Lab) -> None:
    await lab.create()
    client: Any = lab.raw
    await client.hset(RunKeys.of("r1").run, "gone", "1")
    async with lab.unwritten():
        with pytest.raises(api.RunGone):
            await lab.create()
        with pytest.raises(api.RunGone):
            await lab.store.facts("r1")


async def test_a_first_command_is_accepted_in_the_same_step(lab: Lab) -> None:
    created = await lab.create(command=lab.command())
    assert await lab.types() == ["run.created", "command.received"]
    assert created.cursor == await lab.head()
    facts = await lab.store.facts("r1")
    assert (facts.input_seq, await lab.field("unapplied")) == (2, "1")
    assert [hint.run for hint in await lab.store.read_hints("default", count=5, block_ms=100)] == ["r1"]
    async with lab.unwritten():
        assert (await lab.again("create_run", relief=False))[:2] == [b"OK", b"2"]
        assert await lab.accept() == api.Repeated(2, "f", "signal", "")
        assert (await lab.create(command=lab.command(command_id="c2"))).existing is not None
    assert (await lab.store.command_outcome("r1", "alice", "c2")) is None


async def test_a_run_that_begins_paused_is_nobodys(lab: Lab) -> None:
    await lab.create(command=lab.command(paused="1", counts=False))
    assert await lab.store.read_hints("default", count=5, block_ms=1) == []
    assert await lab.try_claim() == api.NotClaimed("parked")


async def test_a_run_that_begins_with_a_cancel_has_its_deadline(lab: Lab) -> None:
    deadline_ms = lab.store.now_ms() + 1000
    await lab.create(command=lab.command(counts=False, deadline_ms=deadline_ms))
    assert await lab.raw.zscore(RunKeys.of("r1").partition.timers, "cancel||r1") == deadline_ms


async def test_a_second_connection_keeps_what_is_there(lab: Lab) -> None:
    await lab.create()
    async with lab.unwritten():
        other = await RedisStore.connect(lab.store.url)
        try:
            assert other.secret == lab.store.secret
            assert other.is_for_tests
        finally:
            await other.aclose()


async def test_listings_go_newest_first_over_all_partitions_and_page_without_holes(lab: Lab) -> None:
    runs = [f"r{n}" for n in range(30)]
    for run in runs:
        await lab.create(run, owner="a|b" if run == "r7" else "alice")
    seen: list[str] = []
    before: str | None = None
    while page := await lab.store.list_runs("a|", before=before, limit=7):
        seen += [run for _, run in page]
        before = page[-1][0]
    assert sorted(seen) == sorted(runs)
    assert [run for _, run in await lab.store.list_runs("r|a%7Cb|", before=None, limit=7)] == ["r7"]
    assert await lab.store.list_runs("r|a|", before=None, limit=7) == []
