"""The sweep against a real store: nobody is forgotten, whoever dies, whoever sweeps."""

import asyncio
from typing import Any

import pytest

from tests.support.lab import QUEUE, Lab, note, signal_entry
from tests.support.waiting import wait_until
from towline.protocol import commands as c
from towline.protocol import event_data as d
from towline.protocol.codec import NewEntry
from towline.protocol.events import Actor
from towline.protocol.limits import LEASE_MS
from towline.protocol.projection import Caller
from towline.protocol.store import api
from towline.protocol.store.acceptance import cancel_run
from towline.protocol.store.closing import force_close
from towline.protocol.store.keys import PARTITIONS, PartitionKeys, RunKeys
from towline.protocol.store.sweep import Sweeper

AGENT = Actor("agent", "wf:review")


async def hints(lab: Lab) -> list[str]:
    return [h.run for h in await lab.store.read_hints(QUEUE, count=200, block_ms=1)]


async def test_the_run_of_a_dead_holder_is_hinted_within_one_lease(lab: Lab) -> None:
    await lab.held()
    await hints(lab)
    sweeper = Sweeper(lab.store, "s")
    await lab.pass_ms(LEASE_MS - 1000)
    await sweeper.run_once()
    assert await hints(lab) == []
    await lab.pass_ms(1001)
    await sweeper.run_once()
    assert await hints(lab) == ["r1"]
    assert (await lab.claim(holder="w2")).lapsed == "w1"


async def test_a_worker_that_dies_between_hint_and_claim_costs_one_lease(lab: Lab) -> None:
    await lab.create()
    assert await hints(lab) == ["r1"]
    await lab.lapse()
    await Sweeper(lab.store, "s").run_once()
    assert await hints(lab) == ["r1"]
    await lab.claim(holder="w2")


async def test_a_timer_fires_once_with_two_sweepers_at_once(lab: Lab) -> None:
    for n in range(20):
        lease = await lab.held(f"r{n}")
        armed = [api.Timer("timer", "t|:1", lab.store.now_ms() + 1000)]
        await lab.store.release(lab.commit(lease, 1, arm=armed), "waiting")
    await lab.pass_ms(1500)
    await asyncio.gather(*(Sweeper(lab.store, name).run_once() for name in "abc"))
    await lab.pass_ms(3000)
    await asyncio.gather(*(Sweeper(lab.store, name).run_once() for name in "abc"))
    for n in range(20):
        log = await lab.log(f"r{n}")
        assert [e.event().type for e in log] == ["run.created", "timer.fired"]
        assert log[-1].event().data == {"timer": "t|:1"}
        assert log[-1].meta.is_input
    assert sorted(await hints(lab))[:20] == sorted(f"r{n}" for n in range(20))


async def test_a_cancel_closes_at_its_deadline_and_not_before_with_nobody_alive(lab: Lab) -> None:
    lease = await lab.held()
    started = d.ToolStarted(step="s1", name="apply", title="Apply", attempt=1, effect="write")
    armed = [api.Timer("timer", "t1", lab.store.now_ms() + 10**9)]
    timer = NewEntry("timer.started", AGENT, d.TimerStarted(timer="t1", due_at="2030-01-01T00:00:00.000Z", why="sleep"))
    await lab.store.commit(lab.commit(lease, 1, NewEntry("tool.started", AGENT, started), timer, arm=armed))
    await lab.accept()
    await cancel_run(lab.store, "r1", c.Cancel(grace_ms=20_000, reason="enough"), Caller("alice", "owner"))
    sweeper = Sweeper(lab.store, "s")
    await lab.pass_ms(19_000)
    await sweeper.run_once()
    assert (await lab.types())[-1] == "cancel.requested"
    await lab.pass_ms(1100)
    await sweeper.run_once()
    log = [e.event() for e in await lab.log()]
    assert [e.type for e in log[-2:]] == ["command.rejected", "run.cancelled"]
    assert log[-2].data["code"] == "unconsumed"
    assert log[-2].cause == 4
    assert log[-1].data == {
        "by": "user:alice", "forced": True, "reason": "enough",
        "abandoned": [{"step": "s1", "name": "apply", "attempt": 1, "effect": "write"}],
    }  # fmt: skip
    assert log[-1].cause == 5
    raw: Any = lab.raw
    for key in (RunKeys.of("r1").partition.timers, RunKeys.of("r1").partition.leases):
        assert await raw.zrange(key, 0, -1) == [b"-"]
    with pytest.raises((api.Fenced, api.RunClosed)):
        await lab.store.commit(lab.commit(lease, 2, note()))
    kept = await lab.store.command_outcome("r1", "alice", "c1")
    assert kept is not None
    assert kept.outcome.startswith('{"status":"rejected"')


async def test_a_closer_that_dies_half_way_is_finished_by_the_next_sweep(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    await lab.create()

    async def dies(*_: Any, **__: Any) -> Any:
        raise api.StoreUnavailable("the process died")

    monkeypatch.setattr(lab.store, "close", dies)
    # Never started: it is closed at once, which fails; the cancel is accepted all the same.
    await cancel_run(lab.store, "r1", c.Cancel(), Caller("alice", "owner"))
    monkeypatch.undo()
    assert not (await lab.store.facts("r1")).sealed
    refused = await lab.try_claim(holder="w2")
    assert isinstance(refused, api.NotClaimed)
    assert refused.why == "held"
    await lab.lapse()
    assert await lab.try_claim(holder="w2") == api.NotClaimed("parked")
    await Sweeper(lab.store, "s").run_once()
    assert (await lab.types())[-1] == "run.cancelled"


async def test_very_many_open_ends_are_closed_in_parts(lab: Lab) -> None:
    lease = await lab.held()
    raw: Any = lab.raw
    for n in range(90):
        await lab.accept(command_id=f"c{n}", counts=False)
    for n in range(1200):
        started = d.ToolStarted(step=f"step-{n}", name="inspect", title="x", attempt=1, effect="read")
        entries = [NewEntry("tool.started", AGENT, started)]
        await lab.store.commit(lab.commit(lease, n + 1, *entries))
    assert await force_close(lab.store, "r1", holder="s")
    types = await lab.types()
    assert types.count("command.rejected") == 90
    assert types[-1] == "run.cancelled"
    assert await raw.hget(RunKeys.of("r1").run, "sealed") == b"1"
    assert "more steps" in (await lab.log())[-1].event().data["abandoned"][-1]["name"]


async def test_one_run_that_cannot_be_read_stops_no_other(lab: Lab) -> None:
    raw: Any = lab.raw
    for run in ("bad", "good"):
        await lab.create(run)
        await lab.accept(run, counts=False, deadline_ms=lab.store.now_ms() + 10, entries=[signal_entry("c1")])
    keys = RunKeys.of("bad")
    await raw.xadd(keys.log, {"e": "no json", "m": "{}"}, id="9-1")
    await raw.zadd(keys.partition.timers, {"nonsense": 1})
    await lab.pass_ms(20)
    await Sweeper(lab.store, "s").run_once()
    assert (await lab.types("good"))[-1] == "run.cancelled"


async def test_a_sweep_goes_on_when_the_store_was_away(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[int] = []
    real = Sweeper.run_once

    async def run_once(self: Sweeper) -> int:
        passes.append(1)
        match len(passes):
            case 1:
                raise api.StoreUnavailable("away")
            case 2:
                raise RuntimeError("a bug")
            case _:
                return await real(self)

    monkeypatch.setattr(Sweeper, "run_once", run_once)
    monkeypatch.setattr("towline.protocol.store.sweep.SWEEP_MS", 1)
    sweeping = asyncio.create_task(Sweeper(lab.store, "s").run_forever())
    await wait_until(lambda: len(passes) > 3, "the sweep to go on")
    sweeping.cancel()


async def test_members_of_runs_that_are_no_more_are_dropped(lab: Lab) -> None:
    raw: Any = lab.raw
    part = RunKeys.of("ghost").partition
    await raw.zadd(part.leases, {"ghost": 1})
    await raw.zadd(part.timers, {"timer|t|ghost": 1, "cancel||ghost": 1})
    await Sweeper(lab.store, "s").run_once()
    assert await raw.zrange(part.leases, 0, -1) == await raw.zrange(part.timers, 0, -1) == [b"-"]


async def test_delivered_hints_are_trimmed_and_undelivered_ones_kept(lab: Lab) -> None:
    raw: Any = lab.raw
    names = [f"r{n}" for n in range(30)]
    for run in names:
        await lab.create(run)
    seen: set[str] = set()
    while len(seen) < 30:
        seen |= set(await hints(lab))
    await lab.create("late")
    for partition in PARTITIONS:
        await lab.store.trim_hints(partition)
    left = [await raw.xlen(PartitionKeys.of(p).commands(QUEUE)) for p in PARTITIONS]
    assert max(left) <= 2, "the last delivered one stays, and what was not read"
    assert await hints(lab) == ["late"]
