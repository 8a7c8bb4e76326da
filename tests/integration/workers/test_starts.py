"""Runs that do not start plainly, on real workers: in a thread, and with a command."""

import asyncio
from datetime import timedelta
from itertools import pairwise

from tests.support.workers import Stage
from towline.protocol import times
from towline.protocol.store.starting import StartCommand
from towline.workers import Context
from towline.workers.registry import Registry


async def test_workers_run_one_of_a_thread_at_a_time_in_order(workers: Stage, registry: Registry) -> None:
    async def body(ctx: Context, number: int) -> int:
        await ctx.sleep(timedelta(milliseconds=20))
        return number

    registry.workflow(name="turns")(body)
    for _ in range(2):
        await workers.worker()
    runs = [await workers.start("turns", number, thread="chat") for number in range(4)]
    assert await asyncio.gather(*(workers.result(run) for run in runs)) == [0, 1, 2, 3]
    spans = [
        (times.from_wire(state.started_at or ""), times.from_wire(state.ended_at or ""))
        for state in [await workers.status(run) for run in runs]
    ]
    for (_, ended), (started, _) in pairwise(spans):
        assert started >= ended


async def test_a_run_is_fed_the_command_that_it_began_with(workers: Stage, registry: Registry) -> None:
    async def body(ctx: Context) -> int:
        return int(await ctx.wait_signal("go"))

    registry.workflow(name="begun", signals={"go": int})(body)
    await workers.worker()
    later = times.to_wire(workers.store.now_ms() + 300)
    command = StartCommand("signal", {"name": "go", "payload": 7}, "c1")
    run = await workers.start("begun", command=command, start_at=later)
    assert await workers.result(run) == 7
    assert await workers.types(run) == [
        "run.created", "command.received", "timer.fired", "run.started", "command.applied", "run.completed",
    ]  # fmt: skip
