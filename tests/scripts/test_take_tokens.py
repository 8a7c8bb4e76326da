"""take_tokens.lua: a bucket that all gateways share, which forgets itself and serves a store that is full."""

import asyncio

import pytest

from tests.support.lab import Lab
from towline.protocol.store.keys import rate_key
from towline.protocol.store.rates import Taken

WHO = ("creates", "user:ana")


async def take(lab: Lab, *, least: int = 1, most: int = 1, forced: bool = False, per_s: float = 0.5) -> Taken:
    return await lab.store.take_tokens(*WHO, per_s=per_s, burst_s=20, least=least, most=most, forced=forced)


async def test_no_more_than_the_burst_whoever_asks_at_once(lab: Lab) -> None:
    taken = await asyncio.gather(*(take(lab) for _ in range(30)))
    assert sum(each.amount for each in taken) == 10
    waits = [each.wait_ms for each in taken if not each.amount]
    assert len(waits) == 20
    assert all(0 < wait <= 2000 for wait in waits)


async def test_a_batch_gets_what_is_left_and_not_less_than_the_least(lab: Lab) -> None:
    assert (await take(lab, most=7)).amount == 7
    assert (await take(lab, least=4, most=8)).amount == 0
    assert (await take(lab, least=2, most=8)).amount == 3


async def test_what_is_forced_is_owed(lab: Lab) -> None:
    owed = await take(lab, least=15, forced=True)
    assert owed.amount == 15
    assert 9_000 <= owed.wait_ms <= 10_000
    assert (await take(lab)).amount == 0


async def test_it_comes_back_with_time(lab: Lab) -> None:
    await take(lab, most=10)
    key = rate_key(*WHO)
    assert 19_000 < await lab.raw.pttl(key) <= 20_001
    await lab.raw.set(key, str(float(await lab.raw.get(key)) - 6_000))
    assert (await take(lab, most=10)).amount == 3


async def test_a_clock_that_was_set_back_locks_nobody_out(lab: Lab) -> None:
    await take(lab)
    await lab.raw.set(rate_key(*WHO), str(float(await lab.raw.get(rate_key(*WHO))) + 10_000_000))
    assert (await take(lab)).wait_ms <= 4 * 20_000


async def test_callers_and_rates_are_apart_and_not_named(lab: Lab) -> None:
    await take(lab, most=10)
    other = await lab.store.take_tokens("creates", "user:ben", per_s=0.5, burst_s=20, least=1, most=1)
    assert other.amount == 1
    assert (await lab.store.take_tokens("commands", WHO[1], per_s=0.5, burst_s=20, least=1, most=1)).amount == 1
    assert [key for key in await lab.raw.keys("*") if b"ana" in key] == []


async def test_a_full_store_still_serves_it(lab: Lab) -> None:
    await lab.raw.config_set("maxmemory", 1)
    try:
        assert (await take(lab)).amount == 1
    finally:
        await lab.raw.config_set("maxmemory", 0)


@pytest.mark.parametrize("most", [0, 2**60])
async def test_sizes_at_the_edges(lab: Lab, most: int) -> None:
    assert (await take(lab, most=most)).amount == (1 if most == 0 else 10)
