"""start_run.lua: a run with a time to start starts then, once, and nothing starts it before."""

from typing import Any

import pytest

from tests.support.lab import Lab, ending
from towline.protocol.limits import LEASE_MS
from towline.protocol.store import api
from towline.protocol.store.keys import RunKeys, timer_member
from towline.protocol.store.sweep import has_come

MEMBER = timer_member("start", "", "r1")


async def hints(lab: Lab) -> list[str]:
    return [h.run for h in await lab.store.read_hints("default", count=9, block_ms=1)]


async def start(lab: Lab) -> str:
    return await lab.store.start_due("r1", "default", has_come)


async def leases(lab: Lab) -> list[bytes]:
    found: list[bytes] = await lab.raw.zrange(RunKeys.of("r1").partition.leases, 0, -1)
    return found


async def test_it_starts_at_its_time_once_and_not_before(lab: Lab) -> None:
    await lab.create(start_ms=lab.store.now_ms() + 60_000)
    assert (await hints(lab), await leases(lab)) == ([], [b"-"])
    assert await lab.try_claim() == api.NotClaimed("parked")
    await lab.pass_ms(50_000)
    async with lab.unwritten():
        assert await start(lab) == "HELD"
    await lab.pass_ms(10_001)
    assert await start(lab) == "OK"
    began_ms = int(lab.last("start_run")[2][3])
    async with lab.unwritten():
        assert await start(lab) == "DUPLICATE"
        assert (await lab.again("start_run"))[0] == b"DUPLICATE"
    assert await lab.types() == ["run.created", "timer.fired"]
    assert (await lab.store.facts("r1")).input_seq == 1, "nothing that a workflow is fed"
    due: Any = await lab.raw.zscore(RunKeys.of("r1").partition.leases, "r1")
    assert due == began_ms + LEASE_MS
    assert await hints(lab) == ["r1"]
    lease = await lab.claim()
    await lab.store.close(lab.commit(lease, 1, ending()))


async def test_a_time_that_is_past_is_now(lab: Lab) -> None:
    await lab.create(start_ms=lab.store.now_ms() - 1)
    assert await hints(lab) == ["r1"]
    async with lab.unwritten():
        assert await start(lab) == "DUPLICATE"


async def test_a_command_before_its_time_does_not_wake_it(lab: Lab) -> None:
    await lab.create(start_ms=lab.store.now_ms() + 1000)
    await lab.accept()
    assert (await hints(lab), await leases(lab)) == ([], [b"-"])
    await lab.pass_ms(1100)
    await start(lab)
    assert await hints(lab) == ["r1"]


async def test_paused_before_its_time_it_stays_paused_beyond(lab: Lab) -> None:
    await lab.create(start_ms=lab.store.now_ms() + 1000)
    await lab.accept(paused="1", was_paused="")
    await lab.pass_ms(1100)
    assert await start(lab) == "OK"
    assert (await hints(lab), await leases(lab)) == ([], [b"-"])
    await lab.accept(command_id="c2", paused="-", was_paused="1")
    assert await hints(lab) == ["r1"]


@pytest.mark.parametrize("deadline", [0, 1])
async def test_a_dead_closer_does_not_start_it(lab: Lab, deadline: int) -> None:
    await lab.create(start_ms=lab.store.now_ms() + 10 * LEASE_MS)
    if deadline:
        await lab.accept(deadline_ms=lab.store.now_ms() + 10 * LEASE_MS)
    await lab.claim(closing=True)
    await lab.lapse()
    assert await lab.store.rehint("r1", "default") == ("CHANGED" if deadline else "PARKED")
    assert await lab.try_claim() == api.NotClaimed("parked")
    assert await hints(lab) == []
    assert await lab.raw.zscore(RunKeys.of("r1").partition.timers, MEMBER)


async def test_the_end_takes_its_time_away(lab: Lab) -> None:
    await lab.create(start_ms=lab.store.now_ms() + 1000)
    lease = await lab.claim(closing=True)
    await lab.store.close(lab.commit(lease, 1, ending()))
    assert await lab.raw.zscore(RunKeys.of("r1").partition.timers, MEMBER) is None
    async with lab.unwritten():
        assert await start(lab) == "DUPLICATE"


async def test_a_timer_left_of_a_run_that_ended_or_is_none_is_removed(lab: Lab) -> None:
    timers = RunKeys.of("r1").partition.timers
    await lab.raw.zadd(timers, {MEMBER: 1})
    assert await start(lab) == "NORUN"
    lease = await lab.held()
    await lab.store.close(lab.commit(lease, 1, ending()))
    await lab.raw.zadd(timers, {MEMBER: 1})
    assert await start(lab) == "CLOSED"
    assert await lab.raw.zrange(timers, 0, -1) == [b"-"]


@pytest.mark.parametrize(("said", "kept"), [(None, 3_600_000), (0, 0), (5000, 5000)])
async def test_an_ended_run_stays_as_long_as_it_says(lab: Lab, said: int | None, kept: int) -> None:
    await lab.create(retain_ms=said)
    lease = await lab.claim()
    done = await lab.store.close(lab.commit(lease, 1, ending()))
    assert await lab.raw.zscore(RunKeys.of("r1").partition.done, "r1") == done.now_ms + kept
