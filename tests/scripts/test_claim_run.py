"""claim_run.lua: one holder at a time, each with a new fence, whoever died before."""

from typing import Any

import pytest

from tests.support.lab import Lab, ending, note
from towline.protocol.limits import LEASE_MS, POISON_CRASHES
from towline.protocol.store import api
from towline.protocol.store.keys import RunKeys


async def test_a_claim_is_a_lease_with_a_new_fence(lab: Lab) -> None:
    created = await lab.create()
    lease = await lab.claim()
    assert (lease.fence.epoch, lease.cursor, lease.input_seq, lease.crashes, lease.lapsed) == (
        1,
        created.cursor,
        1,
        0,
        "",
    )
    assert lease.lease_until_ms == lease.now_ms + LEASE_MS
    facts = await lab.store.facts("r1")
    assert (facts.holder, facts.epoch, facts.lease_until_ms) == ("w1", 1, lease.lease_until_ms)
    client: Any = lab.raw
    assert await client.zscore(RunKeys.of("r1").partition.leases, "r1") == lease.lease_until_ms


async def test_a_lost_reply_is_the_first_answer_again(lab: Lab) -> None:
    await lab.held()
    first = lab.last("claim_run")[2]
    await lab.pass_ms(1000)
    async with lab.unwritten():
        assert await lab.again("claim_run") == first


async def test_a_reply_lost_until_another_took_over_claims_anew_or_waits(lab: Lab) -> None:
    await lab.create()
    old = await lab.claim(nonce="n1")
    await lab.lapse()
    other = await lab.claim(holder="w2", nonce="n2")
    assert other.lapsed == "w1"
    async with lab.unwritten():
        assert isinstance(await lab.try_claim(nonce="n1"), api.NotClaimed)
    await lab.lapse()
    again = await lab.claim(nonce="n1")
    assert again.fence.epoch == 3
    with pytest.raises(api.Fenced):
        await lab.store.commit(lab.commit(old, 1, note()))


async def test_a_live_lease_is_held_against_others(lab: Lab) -> None:
    await lab.held()
    await lab.pass_ms(1000)
    async with lab.unwritten():
        answer = await lab.try_claim(holder="w2")
    assert isinstance(answer, api.NotClaimed)
    assert answer.why == "held"
    assert 4000 < answer.retry_ms <= 5000


async def test_a_lapsed_lease_counts_as_a_crash_until_there_is_a_result(lab: Lab) -> None:
    lease = await lab.held()
    for crashes in (1, 2):
        await lab.lapse()
        lease = await lab.claim()
        assert (lease.crashes, lease.lapsed, lease.is_poison) == (crashes, "w1", False)
    await lab.store.commit(lab.commit(lease, 1, note(), recorded=True))
    await lab.lapse()
    assert (await lab.claim()).crashes == 1


async def test_a_run_that_kills_its_holders_is_given_only_to_be_parked(lab: Lab) -> None:
    lease = await lab.held()
    for n in range(1, POISON_CRASHES + 2):
        await lab.lapse()
        lease = await lab.claim()
        assert lease.is_poison == (n >= POISON_CRASHES)
    await lab.store.release(lab.commit(lease, 1, note()), "blocked")
    async with lab.unwritten():
        parked = await lab.try_claim()
    assert isinstance(parked, api.NotClaimed)
    assert parked.why == "parked"
    assert await lab.field("crashes") == "0"


async def test_who_gave_the_lease_back_did_not_crash(lab: Lab) -> None:
    lease = await lab.held()
    await lab.store.release(lab.commit(lease), "hand_over")
    again = await lab.claim(holder="w2")
    assert (again.crashes, again.lapsed, again.fence.epoch) == (0, "", 2)


async def test_nobody_claims_what_waits_is_pinned_elsewhere_ended_or_unknown(lab: Lab) -> None:
    lease = await lab.held()
    await lab.store.release(lab.commit(lease), "waiting")
    async with lab.unwritten():
        assert await lab.try_claim() == api.NotClaimed("parked")
    await lab.accept()
    async with lab.unwritten():
        assert await lab.try_claim(version="2") == api.NotClaimed("version", version="1")
    lease = await lab.claim()
    await lab.store.close(lab.commit(lease, 1, ending()))
    async with lab.unwritten():
        assert await lab.try_claim() == api.NotClaimed("closed")
        assert await lab.try_claim(closing=True) == api.NotClaimed("closed")
        assert await lab.try_claim("r2") == api.NotClaimed("no_run")


async def test_a_closer_takes_a_live_lease_and_keeps_workers_off(lab: Lab) -> None:
    lease = await lab.held()
    closer = await lab.claim(holder="sweep", closing=True, version="")
    assert (closer.fence.epoch, closer.crashes) == (2, 0)
    async with lab.unwritten():
        with pytest.raises(api.Fenced):
            await lab.store.commit(lab.commit(lease, 1, note()))
    await lab.lapse()
    async with lab.unwritten():
        assert await lab.try_claim() == api.NotClaimed("parked")


async def test_a_clock_that_jumps_back_costs_one_lease(lab: Lab) -> None:
    await lab.held()
    await lab.pass_ms(-3_600_000)
    answer = await lab.try_claim(holder="w2")
    assert answer == api.NotClaimed("held", LEASE_MS)
    await lab.pass_ms(LEASE_MS + 50)
    assert (await lab.claim(holder="w2")).lapsed == "w1"
