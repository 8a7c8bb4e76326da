"""rehint_run.lua: an overdue run is hinted again, once, and one that needs nobody is let go."""

from typing import Any

from tests.support.lab import Lab, ending
from towline.protocol.limits import LEASE_MS
from towline.protocol.store.keys import RunKeys


async def rehint(lab: Lab) -> str:
    return await lab.store.rehint("r1", "default")


async def hints(lab: Lab) -> int:
    return len(await lab.store.read_hints("default", count=9, block_ms=1))


async def test_a_lost_hint_is_repeated_after_its_time(lab: Lab) -> None:
    await lab.create()
    async with lab.unwritten():
        assert await rehint(lab) == "HELD"
    await lab.lapse()
    assert await rehint(lab) == "DUPLICATE", "the first hint is still undelivered"
    assert await hints(lab) == 1
    async with lab.unwritten():
        assert await rehint(lab) == "HELD", "its claim-by time was renewed"
    await lab.lapse()
    assert await rehint(lab) == "OK"
    assert await hints(lab) == 1
    await lab.lapse()
    assert await rehint(lab) == "OK"


async def test_hints_do_not_pile_up_while_no_worker_lives(lab: Lab) -> None:
    await lab.create()
    client: Any = lab.raw
    for _ in range(20):
        await lab.lapse()
        assert await rehint(lab) == "DUPLICATE"
    assert await client.xlen(RunKeys.of("r1").partition.commands("default")) == 1


async def test_a_hint_that_was_trimmed_away_is_no_hint(lab: Lab) -> None:
    await lab.create()
    client: Any = lab.raw
    await client.xtrim(RunKeys.of("r1").partition.commands("default"), maxlen=0, approximate=False)
    await lab.lapse()
    assert await rehint(lab) == "OK"
    assert await hints(lab) == 1


async def test_the_run_of_a_dead_holder_is_hinted(lab: Lab) -> None:
    await lab.held()
    await hints(lab)
    async with lab.unwritten():
        assert await rehint(lab) == "HELD"
    await lab.lapse()
    assert await rehint(lab) == "OK"
    assert (await lab.claim(holder="w2")).lapsed == "w1"


async def test_what_needs_nobody_is_let_go(lab: Lab) -> None:
    client: Any = lab.raw
    leases = RunKeys.of("r1").partition.leases
    lease = await lab.held()
    await lab.store.release(lab.commit(lease), "blocked")
    async with lab.unwritten():
        assert await rehint(lab) == "PARKED"
    await client.zadd(leases, {"r1": 1})
    assert await rehint(lab) == "PARKED"
    assert await client.zrange(leases, 0, -1) == [b"-"]
    await client.hset(RunKeys.of("r1").run, "blocked", "0")
    await client.zadd(leases, {"r1": 1})
    lease = await lab.claim()
    await lab.store.close(lab.commit(lease, 1, ending()))
    for run, word in (("r1", "CLOSED"), ("gone", "NORUN")):
        keys = RunKeys.of(run).partition
        await client.zadd(keys.leases, {run: 1})
        assert await lab.store.rehint(run, "default") == word
        assert await client.zscore(keys.leases, run) is None


async def test_what_a_dead_closer_left_is_closed_or_goes_on(lab: Lab) -> None:
    await lab.held()
    await lab.claim(holder="sweep", closing=True)
    await lab.lapse()
    await hints(lab)
    assert await rehint(lab) == "OK", "no deadline would end it: the workers get it back"
    assert (await lab.claim(holder="w2")).lapsed == "sweep"
    await lab.accept(counts=False, deadline_ms=lab.store.now_ms() + 60_000)
    await lab.claim(holder="sweep", closing=True)
    await lab.lapse()
    assert await rehint(lab) == "CHANGED", "the sweep closes it"
    async with lab.unwritten():
        assert await rehint(lab) == "HELD", "one of the sweeps"


async def test_a_clock_that_jumps_back_costs_one_lease(lab: Lab) -> None:
    await lab.held()
    await hints(lab)
    await lab.pass_ms(-3_600_000)
    due = [runs for _, runs, _ in await lab.store.due()]
    assert due == [["r1"]]
    assert await rehint(lab) == "HELD"
    assert lab.last("rehint_run")[2] == [b"HELD", str(LEASE_MS).encode()]
    await lab.lapse()
    assert await rehint(lab) == "OK"
    assert (await lab.claim(holder="w2")).lapsed == "w1"


async def test_a_longer_lease_than_ours_is_left_alone(lab: Lab) -> None:
    await lab.create()
    await lab.claim(ttl_ms=60_000)
    assert await lab.store.due() != []
    async with lab.unwritten():
        assert await rehint(lab) == "HELD"
