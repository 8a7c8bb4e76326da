"""renew_leases.lua: each lease for itself; a lost one is told why, and nothing of it is touched."""

from tests.support.lab import Lab, ending
from towline.protocol.ids import partition_of
from towline.protocol.limits import LEASE_MS
from towline.protocol.store import api


def neighbours(count: int) -> list[str]:
    """Runs of one partition."""
    found = (f"r{n}" for n in range(100_000) if partition_of(f"r{n}") == 5)
    return [next(found) for _ in range(count)]


async def test_renewing_moves_the_end_and_brings_back_inputs_and_the_cancel(lab: Lab) -> None:
    lease = await lab.held()
    await lab.pass_ms(2000)
    await lab.accept()
    await lab.accept(command_id="c2", deadline_ms=lab.store.now_ms() + 9000)
    (renewal,) = await lab.store.renew([api.Lease("r1", lease.fence, "step-1")])
    facts = await lab.store.facts("r1")
    assert (renewal.lost, renewal.input_seq, renewal.stopping_ms) == (None, 3, facts.stopping_ms)
    assert facts.step == "step-1"
    assert facts.lease_until_ms >= lease.lease_until_ms + 2000
    assert facts.lease_until_ms - facts.heartbeat_ms == LEASE_MS


async def test_each_lease_of_a_call_stands_for_itself(lab: Lab) -> None:
    runs = neighbours(5)
    held = [await lab.held(run) for run in runs[:4]]
    await lab.store.release(lab.commit(held[1]), "waiting")
    await lab.store.close(lab.commit(held[2], 1, ending()))
    stale = api.Fence(held[3].fence.epoch, "0" * 16)
    asked = [
        api.Lease(runs[0], held[0].fence), api.Lease(runs[1], held[1].fence), api.Lease(runs[2], held[2].fence),
        api.Lease(runs[3], stale), api.Lease(runs[4], held[0].fence),
    ]  # fmt: skip
    answers = await lab.store.renew(asked)
    assert [a.lost for a in answers] == [None, "fenced", "closed", "fenced", "no_run"]
    async with lab.unwritten(runs[0]):
        assert [a.lost for a in await lab.store.renew(asked[1:])] == ["fenced", "closed", "fenced", "no_run"]


async def test_leases_of_many_partitions_come_back_each_once(lab: Lab) -> None:
    leases = [await lab.held(f"x{n}") for n in range(40)]
    answers = await lab.store.renew([api.Lease(x.run, x.fence) for x in leases])
    assert {a.run: a.lost for a in answers} == {x.run: None for x in leases}
    assert await lab.store.renew([]) == []


async def test_a_lease_nobody_took_may_be_renewed_after_its_end(lab: Lab) -> None:
    lease = await lab.held()
    await lab.lapse()
    (renewal,) = await lab.store.renew([api.Lease("r1", lease.fence)])
    assert renewal.lost is None
    assert isinstance(await lab.try_claim(holder="w2"), api.NotClaimed)
