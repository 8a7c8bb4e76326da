"""sweep_partition.lua: one sweeper at a time, and never nobody for long."""

from tests.support.lab import Lab


async def take(lab: Lab, who: str) -> bool:
    return await lab.store.take_sweep(3, who, 2000)


async def test_one_at_a_time_and_the_next_after_its_turn(lab: Lab) -> None:
    assert await take(lab, "a")
    assert not await take(lab, "b")
    assert await take(lab, "a"), "who has the turn keeps it"
    assert await lab.store.take_sweep(4, "b", 2000), "each partition has its own turn"
    await lab.pass_ms(2001)
    assert await take(lab, "b")
    assert not await take(lab, "a")


async def test_a_clock_that_jumps_back_costs_one_turn(lab: Lab) -> None:
    assert await take(lab, "a")
    await lab.pass_ms(-3_600_000)
    assert not await take(lab, "b")
    await lab.pass_ms(2001)
    assert await take(lab, "b")
