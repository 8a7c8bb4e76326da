"""fire_timer.lua: a due timer fires once, never early, and wakes whom it concerns."""

from typing import Any

from tests.support.lab import Lab, ending
from towline.protocol import event_data as d
from towline.protocol.codec import NewEntry
from towline.protocol.store.api import Claimed, Timer
from towline.protocol.store.keys import RunKeys, timer_member
from towline.protocol.store.openends import SYSTEM

MEMBER = timer_member("timer", "t", "r1")


async def fire(lab: Lab, run: str = "r1", member: str = MEMBER) -> str:
    entry = NewEntry("timer.fired", SYSTEM, d.TimerFired(timer="t"), is_input=True)
    return await lab.store.fire_timer(run, "default", member, [entry])


async def armed(lab: Lab, in_ms: int = 1000) -> Claimed:
    lease = await lab.held()
    await lab.store.read_hints("default", count=9, block_ms=1)
    await lab.store.commit(lab.commit(lease, 1, arm=[Timer("timer", "t", lab.store.now_ms() + in_ms)]))
    return lease


async def test_it_fires_once_and_wakes_the_run(lab: Lab) -> None:
    lease = await armed(lab)
    await lab.store.release(lab.commit(lease, 2), "waiting")
    async with lab.unwritten():
        assert await fire(lab) == "HELD"
    await lab.pass_ms(1100)
    assert await fire(lab) == "OK"
    async with lab.unwritten():
        assert await fire(lab) == "DUPLICATE"
        assert (await lab.again("fire_timer"))[0] == b"DUPLICATE"
    assert await lab.types() == ["run.created", "timer.fired"]
    assert (await lab.store.facts("r1")).input_seq == 2
    assert [h.run for h in await lab.store.read_hints("default", count=9, block_ms=1)] == ["r1"]


async def test_one_that_was_disarmed_never_fires(lab: Lab) -> None:
    lease = await armed(lab)
    await lab.store.commit(lab.commit(lease, 2, disarm=[Timer("timer", "t")]))
    await lab.pass_ms(1100)
    async with lab.unwritten():
        assert await fire(lab) == "DUPLICATE"


async def test_a_holder_learns_of_it_as_an_input(lab: Lab) -> None:
    await armed(lab)
    await lab.pass_ms(1100)
    assert await fire(lab) == "OK"
    assert await lab.store.read_hints("default", count=9, block_ms=1) == []


async def test_the_timer_of_a_run_that_ended_or_never_was_only_goes_away(lab: Lab) -> None:
    lease = await armed(lab)
    await lab.store.close(lab.commit(lease, 2, ending()))
    await lab.pass_ms(1100)
    assert await fire(lab) == "CLOSED"
    client: Any = lab.raw
    assert await client.zrange(RunKeys.of("r1").partition.timers, 0, -1) == [b"-"]
    assert await lab.types() == ["run.created", "run.completed"]
    other = timer_member("timer", "t", "r2")
    await client.zadd(RunKeys.of("r2").partition.timers, {other: 1})
    assert await fire(lab, "r2", other) == "NORUN"
    assert await client.exists(RunKeys.of("r2").log) == 0
