"""Threads in the scripts: runs of one go one after the other, whoever ends and however, and nobody is forgotten."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.support.lab import ALICE, WORKFLOW, Lab, ending, note
from towline.protocol import event_data as d
from towline.protocol.codec import NewEntry
from towline.protocol.ids import partition_of
from towline.protocol.limits import LEASE_MS, THREAD_RUNS
from towline.protocol.store import api
from towline.protocol.store.keys import RunKeys
from towline.protocol.store.sweep import has_come
from towline.protocol.store.threads import thread_field

THREAD = thread_field("alice", "chat")
BESIDE = [name for name in (f"r{n}" for n in range(2000)) if partition_of(name) == partition_of(THREAD)]
ONE, TWO, THREE = BESIDE[:3]


async def join(lab: Lab, run: str, behind: str = "", **members: Any) -> api.Created:
    return await lab.create(run, thread=THREAD, behind=behind, **members)


async def three(lab: Lab) -> None:
    for run, behind in ((ONE, ""), (TWO, ONE), (THREE, TWO)):
        await join(lab, run, behind)


async def end(lab: Lab, run: str, **members: Any) -> None:
    lease = await lab.claim(run, **members)
    await lab.store.close(lab.commit(lease, 1, ending()))


async def hints(lab: Lab) -> list[str]:
    return [h.run for h in await lab.store.read_hints("default", count=9, block_ms=1)]


async def leases(lab: Lab) -> list[str]:
    found = await lab.raw.zrange(RunKeys.of(ONE).partition.leases, 0, -1)
    return sorted(member.decode() for member in found if member != b"-")


async def test_each_goes_when_the_one_before_it_has_ended(lab: Lab) -> None:
    await three(lab)
    assert await lab.store.thread_runs(THREAD) == [ONE, TWO, THREE]
    for run, left in ((ONE, [TWO, THREE]), (TWO, [THREE]), (THREE, [])):
        assert await leases(lab) == [run]
        assert await hints(lab) == [run]
        for waiting in left:
            assert await lab.try_claim(waiting) == api.NotClaimed("parked")
        await end(lab, run)
        assert await lab.store.thread_runs(THREAD) == left
    assert await leases(lab) == []
    assert not await lab.raw.hexists(RunKeys.of(ONE).partition.threads, THREAD), "nothing is left of it"


async def test_what_was_read_of_the_thread_must_still_be_so(lab: Lab) -> None:
    await join(lab, ONE)
    async with lab.unwritten(ONE):
        for behind in ("", THREE):
            with pytest.raises(api.Changed):
                await join(lab, TWO, behind)
        with pytest.raises(api.Changed):
            await join(lab, TWO, ONE, interrupt=lab.command(THREE))
        assert (await join(lab, ONE, "")).existing is not None, "that it exists is said before all else"
    with pytest.raises(api.NoRun):
        await lab.store.facts(TWO)


async def test_a_lost_reply_of_the_end_lets_nobody_go_twice(lab: Lab) -> None:
    await three(lab)
    await hints(lab)
    await end(lab, ONE)
    assert await hints(lab) == [TWO]
    async with lab.unwritten(ONE):
        assert await lab.again("close_run") == lab.last("close_run")[2]
    assert await lab.store.thread_runs(THREAD) == [TWO, THREE]


async def test_the_end_finds_its_heir_also_if_another_came_or_went_meanwhile(lab: Lab) -> None:
    await join(lab, ONE)
    lease = await lab.claim(ONE)
    await join(lab, TWO, ONE)
    await join(lab, THREE, TWO)
    ended = lab.commit(lease, 1, ending())
    real = lab.store.facts

    async def facts(run: str) -> api.RunFacts:
        if run == TWO:  # it ends just between the two tries
            lab.store.facts = real  # type: ignore[method-assign]
            await end(lab, TWO, closing=True)
        return await real(run)

    lab.store.facts = facts  # type: ignore[method-assign]
    await lab.store.close(ended)
    assert await leases(lab) == [THREE]
    assert await lab.store.thread_runs(THREAD) == [THREE]


async def test_one_that_waits_ends_and_the_others_wait_on(lab: Lab) -> None:
    await three(lab)
    await end(lab, TWO, closing=True)
    assert await lab.store.thread_runs(THREAD) == [ONE, THREE]
    assert await leases(lab) == [ONE]
    await end(lab, ONE)
    assert await leases(lab) == [THREE]


async def test_neither_a_command_nor_a_dead_closer_lets_one_go_that_waits(lab: Lab) -> None:
    await three(lab)
    await lab.accept(TWO)
    assert await leases(lab) == [ONE]
    await lab.claim(TWO, closing=True)
    await lab.lapse()
    assert await lab.store.rehint(TWO, "default") == "PARKED"
    assert await leases(lab) == [ONE]
    await end(lab, ONE)
    assert await leases(lab) == [TWO]


async def test_a_heir_that_is_paused_holds_its_place_and_goes_when_resumed(lab: Lab) -> None:
    await three(lab)
    await lab.accept(TWO, paused="1", was_paused="")
    await hints(lab)
    await end(lab, ONE)
    assert (await hints(lab), await leases(lab)) == ([], [])
    await lab.accept(TWO, "c2", paused="-", was_paused="1")
    assert await hints(lab) == [TWO]


async def test_a_released_run_that_no_worker_took_is_hinted_again(lab: Lab) -> None:
    await three(lab)
    assert await hints(lab) == [ONE]
    await end(lab, ONE)
    assert await hints(lab) == [TWO]
    await lab.pass_ms(LEASE_MS + 1)
    assert await lab.store.rehint(TWO, "default") == "OK"
    assert await hints(lab) == [TWO]


async def test_a_heir_is_called_on_its_own_queue(lab: Lab) -> None:
    await lab.store.announce("w0", [replace(WORKFLOW, name="other", queue="gpu")])
    await join(lab, ONE)
    await join(lab, TWO, ONE, queue="gpu")
    assert await hints(lab) == [ONE]
    await end(lab, ONE)
    assert await hints(lab) == []
    assert [h.run for h in await lab.store.read_hints("gpu", count=9, block_ms=1)] == [TWO]


async def test_an_interrupt_and_the_run_it_makes_room_for_are_one_step(lab: Lab) -> None:
    await join(lab, ONE)
    await hints(lab)
    await lab.store.release(lab.commit(await lab.claim(ONE), 1, note()), "waiting")
    deadline_ms = lab.store.now_ms() + 1000
    asked = d.CancelRequested(command_id="i", by="user:alice", deadline="")
    cancel = lab.command(
        ONE, "i", type="cancel", counts=False, deadline_ms=deadline_ms,
        entries=[NewEntry("cancel.requested", ALICE, asked, is_input=True)],
    )  # fmt: skip
    async with lab.unwritten(ONE):
        with pytest.raises(api.Changed):
            await join(lab, TWO, ONE, interrupt=replace(cancel, relies={"v|q": "7"}))
    await join(lab, TWO, ONE, interrupt=cancel)
    assert (await lab.types(ONE))[-1] == "cancel.requested"
    assert await lab.raw.zscore(RunKeys.of(ONE).partition.timers, f"cancel||{ONE}") == deadline_ms
    assert await hints(lab) == [ONE], "it is woken for its clean-up"
    async with lab.unwritten(ONE):
        assert (await lab.again("create_run", relief=False))[0] == b"OK"
    assert await lab.store.thread_runs(THREAD) == [ONE, TWO]


async def test_a_run_with_a_time_joins_its_thread_then(lab: Lab) -> None:
    await join(lab, ONE, start_ms=lab.store.now_ms() + 1000)
    assert await lab.store.thread_runs(THREAD) == []
    await join(lab, TWO)
    await hints(lab)
    await lab.pass_ms(1100)
    assert await lab.store.start_due(ONE, "default", has_come) == "OK"
    (fired,) = [e.event() for e in await lab.log(ONE) if e.event().type == "timer.fired"]
    assert fired.data == {"timer": "start_at", "behind": TWO}
    assert (await hints(lab), await leases(lab)) == ([], [TWO])
    await end(lab, TWO)
    assert await leases(lab) == [ONE]


async def test_one_that_ends_before_its_time_was_never_in_its_thread(lab: Lab) -> None:
    await join(lab, ONE, start_ms=lab.store.now_ms() + 1000)
    await join(lab, TWO)
    await end(lab, ONE, closing=True)
    assert await lab.store.thread_runs(THREAD) == [TWO]


async def test_a_thread_is_bounded(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    assert THREAD_RUNS == 1000
    monkeypatch.setattr("towline.protocol.store.redis.THREAD_RUNS", 2)
    await join(lab, ONE)
    await join(lab, TWO, ONE)
    async with lab.unwritten(ONE):
        assert await lab.try_create(THREE, thread=THREAD, behind=TWO) == api.Flooded(2)


async def test_a_key_keeps_one_id_until_nobody_has_it(lab: Lab) -> None:
    assert await lab.store.reserve("k1", "a") == "a"
    async with lab.unwritten("k1"):
        assert await lab.store.reserve("k1", "b") == "a"
        assert await lab.store.reserve("k1", "c", instead="b") == "a"
        with pytest.raises(api.Reserved) as reserved:
            await lab.create("k1")
    assert reserved.value.id == "a"
    assert await lab.store.reserve("k1", "b", instead="a") == "b"
    await lab.create("k1", instead="b")
    async with lab.unwritten("k1"):
        assert await lab.store.reserve("k1", "c") is None
        assert (await lab.create("k1")).existing is not None
