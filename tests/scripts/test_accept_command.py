"""accept_command.lua: one id, one acceptance; the entries, the receipt and the wake-up in one step."""

import asyncio
from typing import Any

import pytest

from tests.support.lab import Lab, ending, note, signal_entry
from towline.protocol.limits import LEASE_MS, UNAPPLIED_COMMANDS
from towline.protocol.store import api
from towline.protocol.store.keys import RunKeys


async def hints(lab: Lab) -> list[str]:
    return [hint.run for hint in await lab.store.read_hints("default", count=100, block_ms=1)]


async def timers(lab: Lab) -> list[tuple[bytes, float]]:
    client: Any = lab.raw
    return [t for t in await client.zrange(RunKeys.of("r1").partition.timers, 0, -1, withscores=True) if t[0] != b"-"]


async def test_an_accepted_command_stands_in_the_log_and_counts_as_input(lab: Lab) -> None:
    await lab.create()
    accepted = await lab.accept()
    assert isinstance(accepted, api.Accepted)
    assert await lab.types() == ["run.created", "command.received"]
    facts = await lab.store.facts("r1")
    assert (accepted.seq, facts.input_seq, facts.head) == (2, 2, accepted.cursor)
    assert await lab.store.command_outcome("r1", "alice", "c1") == api.Repeated(2, "f", "signal", "")
    assert await lab.field("unapplied") == "1"


async def test_a_lost_reply_is_the_first_answer_again(lab: Lab) -> None:
    await lab.create()
    first = await lab.accept()
    async with lab.unwritten():
        reply = await lab.again("accept_command", relief=False)
    assert reply[:4] == [b"OK", b"2", b"2", str(first.cursor.tag).encode()]


async def test_a_repeat_of_the_id_is_answered_from_the_receipt_also_when_the_run_has_ended(lab: Lab) -> None:
    lease = await lab.held()
    await lab.accept()
    async with lab.unwritten():
        assert await lab.accept(fingerprint="g") == api.Repeated(2, "f", "signal", "")
    outcome = api.CommandOutcome("alice", "c1", '{"status":"applied"}')
    close = lab.commit(lease, 1, ending(), seen=await lab.head(), outcomes=[outcome], applied=1)
    await lab.store.close(close)
    async with lab.unwritten():
        assert await lab.accept() == api.Repeated(2, "f", "signal", '{"status":"applied"}')
        assert (await lab.again("accept_command", relief=False))[0] == b"DUPLICATE"
        with pytest.raises(api.RunClosed):
            await lab.accept(command_id="c2")


async def test_two_subjects_may_use_the_same_id_whatever_they_are_called(lab: Lab) -> None:
    await lab.create()
    answers = [await lab.accept(subject=s, command_id="c1") for s in ("alice", "bob", "a|b", "ü")]
    assert [a.seq for a in answers] == [2, 3, 4, 5]


async def test_the_same_id_twenty_times_at_once_is_accepted_once(lab: Lab) -> None:
    await lab.create()
    answers = await asyncio.gather(*(lab.accept() for _ in range(20)))
    assert sum(isinstance(a, api.Accepted) for a in answers) == 1
    assert {a.seq for a in answers} == {2}
    assert len(await lab.log()) == 2


async def test_what_the_caller_relied_on_must_still_be_so(lab: Lab) -> None:
    lease = await lab.held()
    await lab.store.commit(lab.commit(lease, 1, side={"v|q": "2"}))
    for relies in ({"v|q": "1"}, {"v|q": ""}, {"v|other": "1"}):
        async with lab.unwritten():
            with pytest.raises(api.Changed):
                await lab.accept(relies=relies)
    assert isinstance(await lab.accept(relies={"v|q": "2", "v|other": ""}, side={"v|q": "3"}), api.Accepted)
    async with lab.unwritten():
        with pytest.raises(api.Changed):
            await lab.accept(command_id="c2", relies={"v|q": "2"})


async def test_a_flood_is_stopped_and_goes_on_as_commands_are_applied(lab: Lab) -> None:
    lease = await lab.held()
    for n in range(UNAPPLIED_COMMANDS):
        assert isinstance(await lab.accept(command_id=f"c{n}"), api.Accepted)
    async with lab.unwritten():
        assert await lab.accept(command_id="more") == api.Flooded(UNAPPLIED_COMMANDS)
    assert isinstance(await lab.accept(command_id="approve", counts=False), api.Accepted)
    await lab.store.commit(lab.commit(lease, 1, note(), applied=1))
    assert isinstance(await lab.accept(command_id="more"), api.Accepted)


async def test_an_unknown_run_accepts_nothing(lab: Lab) -> None:
    with pytest.raises(api.NoRun):
        await lab.accept("nowhere")
    assert await lab.raw.exists(RunKeys.of("nowhere").log) == 0


async def test_only_a_run_that_nobody_holds_is_woken(lab: Lab) -> None:
    lease = await lab.held()
    await hints(lab)
    await lab.accept(command_id="held")
    assert await hints(lab) == []
    released = lab.commit(lease, 1, note(), seen=await lab.head())
    await lab.store.release(released, "waiting")
    await lab.accept(command_id="quiet", input_index=-1, counts=False)
    assert await hints(lab) == []
    await lab.accept(command_id="waiting")
    assert await hints(lab) == ["r1"]
    await lab.claim()
    await lab.lapse()
    await lab.accept(command_id="lapsed")
    assert await hints(lab) == ["r1"]
    assert (await lab.claim(holder="w2")).lapsed == "w1"


async def test_a_parked_run_is_fed_nothing(lab: Lab) -> None:
    lease = await lab.held()
    await hints(lab)
    await lab.store.release(lab.commit(lease), "blocked")
    await lab.accept()
    assert await hints(lab) == []
    assert (await lab.store.facts("r1")).input_seq == 2


async def test_a_lease_from_before_a_jump_of_the_clock_keeps_nobody_asleep(lab: Lab) -> None:
    await lab.held()
    await hints(lab)
    await lab.pass_ms(-3_600_000)
    await lab.accept()
    assert await hints(lab) == ["r1"]
    due: Any = await lab.raw.zscore(RunKeys.of("r1").partition.leases, "r1")
    assert due == int(lab.last("accept_command")[2][4]) + LEASE_MS


async def test_a_cancel_arms_its_deadline_and_a_later_one_only_brings_it_nearer(lab: Lab) -> None:
    await lab.create()
    now = lab.store.now_ms()
    for n, (grace, armed) in enumerate([(30_000, 30_000), (60_000, 30_000), (5_000, 5_000)]):
        await lab.accept(command_id=f"c{n}", counts=False, deadline_ms=now + grace)
        assert await timers(lab) == [(b"cancel||r1", now + armed)]
        assert (await lab.store.facts("r1")).stopping_ms == now + armed


async def test_several_entries_of_one_acceptance_point_at_each_other(lab: Lab) -> None:
    await lab.create()
    entries = [signal_entry("c1"), note("a", cause_index=0), note("b", cause_index=1)]
    await lab.accept(entries=entries, input_index=1, outcome='{"status":"applied"}')
    assert [e.event().cause for e in await lab.log()] == [None, None, 2, 3]
    assert (await lab.store.facts("r1")).input_seq == 3
    repeat = await lab.accept()
    assert (repeat.seq, repeat.outcome) == (2, '{"status":"applied"}')
