"""Starts in threads against a real store: one after the other, once per key, and what a busy thread answers."""

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from msgspec.structs import replace

from tests.support.lab import QUEUE, WORKFLOW, Lab, ending, note
from towline.protocol import commands as c
from towline.protocol import times
from towline.protocol.errors import Problem, ProblemError
from towline.protocol.ids import partition_of
from towline.protocol.limits import GRACE_DEFAULT_MS, LEASE_MS
from towline.protocol.projection import Caller
from towline.protocol.store import api
from towline.protocol.store.acceptance import cancel_run
from towline.protocol.store.payload_objects import Objects
from towline.protocol.store.payloads import Payloads
from towline.protocol.store.starting import Started, StartRun, start_run
from towline.protocol.store.sweep import Sweeper
from towline.protocol.store.threads import thread_field

PAYLOADS = Payloads(Objects.at("memory:///"))
SAY = StartRun(workflow="review", input={"say": "hello"}, thread="chat")
CHAT = thread_field("alice", "chat")
BESIDE = next(name for name in (f"t{n}" for n in range(999)) if partition_of(thread_field("alice", name)) == 9)


async def start(
    lab: Lab, request: StartRun = SAY, key: str | None = None, subject: str = "alice", **more: Any
) -> Started:
    return await start_run(
        lab.store, PAYLOADS, request, caller=Caller(subject, "owner"), announced=await lab.store.announced(),
        idempotency_key=key, **more,
    )  # fmt: skip


async def refused(lab: Lab, *args: Any, **more: Any) -> Problem:
    with pytest.raises(ProblemError) as caught:
        await start(lab, *args, **more)
    return caught.value.problem


async def hints(lab: Lab) -> list[str]:
    """All that is undelivered."""
    found: list[str] = []
    while read := await lab.store.read_hints(QUEUE, count=9, block_ms=1):
        found += [h.run for h in read]
    return found


async def waits_for(lab: Lab, run: str) -> tuple[str, str | None]:
    state = (await lab.store.load(run)).run
    assert state.status == "queued"
    return ("", None) if state.status_detail is None else (state.status_detail.code, state.status_detail.text)


async def end(lab: Lab, run: str) -> None:
    lease = await lab.claim(run)
    await lab.store.close(lab.commit(lease, 1, ending()))


async def test_runs_of_a_thread_go_in_the_order_in_which_they_came(lab: Lab) -> None:
    runs = [(await start(lab)).run for _ in range(4)]
    assert {partition_of(run) for run in runs} == {partition_of(CHAT)}
    assert await lab.store.thread_runs(CHAT) == runs
    assert await waits_for(lab, runs[0]) == ("", None)
    for before, run in pairwise(runs):
        assert await waits_for(lab, run) == ("thread", f"It waits in its thread for {before} and those before it.")
        assert (await lab.log(run))[0].event().data["behind"] == before
    for run in runs:
        assert await hints(lab) == [run]
        await end(lab, run)
    assert await lab.store.thread_runs(CHAT) == []


async def test_fifty_at_once_stand_in_one_line(lab: Lab) -> None:
    runs = {answer.run for answer in await asyncio.gather(*(start(lab) for _ in range(50)))}
    line = await lab.store.thread_runs(CHAT)
    assert (set(line), len(line)) == (runs, 50)
    for before, run in pairwise(line):
        assert (await lab.log(run))[0].event().data["behind"] == before
    assert len(await hints(lab)) == 1


async def test_threads_of_two_subjects_and_of_two_names_have_nothing_to_do_with_each_other(lab: Lab) -> None:
    await start(lab)
    for run in (
        (await start(lab, subject="bob")).run,
        (await start(lab, replace(SAY, thread="other"))).run,
        (await start(lab, replace(SAY, thread="cha|t"))).run,
        (await start(lab, replace(SAY, thread=None))).run,
    ):
        assert await waits_for(lab, run) == ("", None)


async def test_a_busy_thread_rejects_where_it_is_asked_to(lab: Lab) -> None:
    reject = replace(SAY, on_busy="reject")
    first = (await start(lab, reject, key="k1")).run
    problem = await refused(lab, reject)
    assert (problem.code, problem.field) == ("conflict", "thread")
    assert first in problem.detail
    assert await lab.store.thread_runs(CHAT) == [first]
    assert await start(lab, reject, key="k1") == Started(first, replayed=True), "not busy with another"
    await end(lab, first)
    assert (await start(lab, reject)).run != first


async def test_the_workflow_says_what_a_busy_thread_does_if_the_start_does_not(lab: Lab) -> None:
    await lab.store.announce("w0", [replace(WORKFLOW, on_busy="reject")])
    first = (await start(lab)).run
    assert (await refused(lab)).code == "conflict"
    second = (await start(lab, replace(SAY, on_busy="enqueue"))).run
    later = (await start(lab, replace(SAY, start_at=times.to_wire(lab.store.now_ms() + 60_000)))).run
    assert await lab.store.thread_runs(CHAT) == [first, second]
    assert (await waits_for(lab, later))[0] == "start_at"


async def test_an_interrupt_cancels_the_active_run_and_waits_for_its_end(lab: Lab) -> None:
    first = (await start(lab)).run
    lease = await lab.claim(first)
    second = (await start(lab)).run
    third = (await start(lab, replace(SAY, on_busy="interrupt"))).run
    log = [entry.event() for entry in await lab.log(first)]
    assert [event.type for event in log] == ["run.created", "cancel.requested"]
    assert (log[1].data["by"], log[1].data["reason"]) == ("user:alice", "Another run of its thread takes its place.")
    assert await lab.store.thread_runs(CHAT) == [first, second, third]
    fourth = (await start(lab, replace(SAY, on_busy="interrupt"))).run
    assert len(await lab.log(first)) == 2, "it is being cancelled"
    await lab.store.close(lab.commit(lease, 1, ending(), seen=await lab.head(first)))
    assert await lab.store.thread_runs(CHAT) == [second, third, fourth]
    assert (await lab.types(second))[-1] == "run.created"


async def test_an_interrupt_ends_at_once_what_never_started(lab: Lab) -> None:
    first = (await start(lab)).run
    second = (await start(lab, replace(SAY, on_busy="interrupt"))).run
    assert (await lab.types(first))[-1] == "run.cancelled"
    assert await lab.store.thread_runs(CHAT) == [second]
    assert second in await hints(lab)


async def test_who_may_not_cancel_may_not_interrupt(lab: Lab) -> None:
    first = (await start(lab)).run
    interrupt = replace(SAY, on_busy="interrupt")
    assert (await refused(lab, interrupt, may_cancel=lambda run: run != first)).needs == "command"
    assert await lab.types(first) == ["run.created"]
    assert await lab.store.thread_runs(CHAT) == [first]


async def test_an_interrupter_that_died_after_its_step_is_finished_by_the_sweep(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = (await start(lab)).run

    async def dies(*_: Any) -> None:
        raise api.StoreUnavailable("the process died")

    monkeypatch.setattr("towline.protocol.store.acceptance.close_unstarted", dies)
    with pytest.raises(api.StoreUnavailable):
        await start(lab, replace(SAY, on_busy="interrupt"))
    monkeypatch.undo()
    second = (await lab.store.thread_runs(CHAT))[1]
    await lab.pass_ms(GRACE_DEFAULT_MS + 1)
    await Sweeper(lab.store, "s").run_once()
    assert (await lab.types(first))[-1] == "run.cancelled"
    assert await lab.store.thread_runs(CHAT) == [second]
    await lab.claim(second)


async def test_one_that_waits_is_cancelled_at_once_and_the_line_closes_up(lab: Lab) -> None:
    first, second, third = [(await start(lab)).run for _ in range(3)]
    await cancel_run(lab.store, second, c.Cancel(), Caller("alice", "owner"))
    assert (await lab.types(second))[-1] == "run.cancelled"
    assert await lab.store.thread_runs(CHAT) == [first, third]
    await hints(lab)
    await cancel_run(lab.store, first, c.Cancel(), Caller("alice", "owner"))
    assert third in await hints(lab)


async def test_the_worker_of_the_active_run_dies_and_nobody_overtakes_it(lab: Lab) -> None:
    first, second = (await start(lab)).run, (await start(lab)).run
    await lab.claim(first)
    await lab.pass_ms(LEASE_MS + 1)
    await Sweeper(lab.store, "s").run_once()
    assert second not in await hints(lab)
    assert (await lab.claim(first, "w2")).lapsed == "w1"


async def test_a_run_with_a_time_joins_its_thread_at_that_time(lab: Lab) -> None:
    later = (await start(lab, replace(SAY, start_at=times.to_wire(lab.store.now_ms() + 60_000)))).run
    first = (await start(lab)).run
    assert await waits_for(lab, first) == ("", None)
    await lab.pass_ms(60_001)
    await Sweeper(lab.store, "s").run_once()
    assert await waits_for(lab, later) == ("thread", f"It waits in its thread for {first} and those before it.")
    second = (await start(lab)).run
    assert await lab.store.thread_runs(CHAT) == [first, later, second]
    for run in (first, later, second):
        await end(lab, run)


async def test_fifty_at_once_with_one_key_are_one_run_of_the_thread(lab: Lab) -> None:
    answers = await asyncio.gather(*(start(lab, key="k1") for _ in range(50)))
    assert len({a.run for a in answers}) == 1
    assert sum(not a.replayed for a in answers) == 1
    assert await lab.store.thread_runs(CHAT) == [answers[0].run]


async def test_a_key_stands_for_one_body_also_across_threads(lab: Lab) -> None:
    first = await start(lab, key="k1")
    for other in (
        replace(SAY, input={}), replace(SAY, thread=BESIDE), replace(SAY, thread=None), replace(SAY, on_busy="enqueue"),
    ):  # fmt: skip
        assert (await refused(lab, other, key="k1")).code == "idempotency_mismatch"
    alone = await start(lab, replace(SAY, thread=None), key="k2")
    assert (await refused(lab, key="k2")).code == "idempotency_mismatch"
    assert await start(lab, key="k1") == Started(first.run, replayed=True)
    assert await start(lab, replace(SAY, thread=None), key="k2") == Started(alone.run, replayed=True)
    assert (await start(lab, key="k1", subject="bob")).run != first.run
    assert len(await lab.store.list_runs("a|", before=None, limit=9)) == 3


@pytest.mark.parametrize("thread", [None, BESIDE])
async def test_a_refused_start_of_a_thread_is_not_remembered_under_its_key(lab: Lab, thread: str | None) -> None:
    await start(lab)
    assert (await refused(lab, replace(SAY, on_busy="reject"), key="k1")).code == "conflict"
    other = replace(SAY, thread=thread)
    run = (await start(lab, other, key="k1")).run
    assert await start(lab, other, key="k1") == Started(run, replayed=True)
    assert (await refused(lab, key="k1")).code == "idempotency_mismatch"


async def test_what_cannot_go_together_names_the_field(lab: Lab) -> None:
    soon = times.to_wire(lab.store.now_ms() + 60_000)
    for request, field in (
        (replace(SAY, id="mine"), "id"),
        (replace(SAY, thread=None, on_busy="enqueue"), "on_busy"),
        (replace(SAY, start_at=soon, on_busy="reject"), "on_busy"),
        (replace(SAY, start_at=soon, on_busy="interrupt"), "on_busy"),
        (replace(SAY, thread="a\nb"), "thread"),
    ):
        problem = await refused(lab, request)
        assert (problem.code, problem.field) == ("bad_request", field)
    assert await lab.store.list_runs("a|", before=None, limit=9) == []


async def test_a_note_of_the_active_run_lets_nobody_go(lab: Lab) -> None:
    first, second = (await start(lab)).run, (await start(lab)).run
    lease = await lab.claim(first)
    await lab.store.release(lab.commit(lease, 1, note()), "waiting")
    assert second not in await hints(lab)
    assert await lab.try_claim(second) == api.NotClaimed("parked")
