"""One worker among others: it drains, shares hints by version, and keeps runs apart."""

import asyncio
import threading

import pytest

from tests.support.workers import Stage
from towline.workers import Context, activity
from towline.workers.registry import Registry

pytestmark = pytest.mark.store


async def test_a_drained_worker_gives_its_leases_back_at_once(workers: Stage, registry: Registry) -> None:
    gate = asyncio.Event()
    attempts: list[int] = []

    async def work() -> str:
        attempts.append(activity.attempt)
        await gate.wait()
        return "kept"

    made = registry.activity(work, effect="read")

    async def body(ctx: Context) -> list[str]:
        kept = await ctx.run(made)
        return [kept, await ctx.run(made)]

    registry.workflow(name="drains")(body)
    worker, task = await workers.worker(lease_ms=60_000, renew_ms=10_000, drain_s=5)
    run = await workers.start("drains")
    await workers.wait_for(run, "tool.started")
    worker.drain()
    gate.set()
    await asyncio.wait_for(task, 20)
    # The running step ended and is recorded; the next one was not begun.
    assert [t for t in await workers.types(run) if t.startswith("tool.")] == ["tool.started", "tool.finished"]
    await workers.worker(lease_ms=60_000, renew_ms=10_000)
    assert await workers.result(run) == ["kept", "kept"]
    assert attempts == [1, 1]


async def test_a_drained_worker_does_not_wait_for_ever(workers: Stage, registry: Registry) -> None:
    async def work() -> int:
        if activity.attempt == 1:
            await asyncio.Event().wait()
        return activity.attempt

    made = registry.activity(work, effect="read")

    async def body(ctx: Context) -> int:
        return int(await ctx.run(made))

    registry.workflow(name="endless")(body)
    worker, task = await workers.worker(lease_ms=60_000, renew_ms=10_000, drain_s=0.2)
    run = await workers.start("endless")
    await workers.wait_for(run, "tool.started")
    worker.drain()
    await asyncio.wait_for(task, 20)
    await workers.worker()
    assert await workers.result(run) == 2


async def test_a_hint_of_another_version_reaches_the_worker_that_has_it(workers: Stage, registry: Registry) -> None:
    async def one(ctx: Context) -> int:
        return 1

    async def two(ctx: Context) -> int:
        return 2

    registry.workflow(name="versions", version="1")(one)
    only_two = Registry()
    only_two.workflow(name="versions", version="2")(two)
    _, first = await workers.worker()
    run = None
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    run = await workers.start("versions")
    await workers.worker(registry=only_two)
    await workers.worker()
    assert await workers.result(run) == 1


async def test_workflow_code_that_blocks_keeps_nobody_else_waiting(workers: Stage, registry: Registry) -> None:
    gate = threading.Event()

    async def blocks(ctx: Context) -> str:
        gate.wait()
        return "late"

    async def quick(ctx: Context) -> str:
        return "now"

    registry.workflow(name="blocks")(blocks)
    registry.workflow(name="quick")(quick)
    await workers.worker()
    late = await workers.start("blocks")
    try:
        assert await workers.result(await workers.start("quick")) == "now"
    finally:
        gate.set()
    assert await workers.result(late) == "late"


async def test_a_run_stays_on_the_queue_it_was_started_on(workers: Stage, registry: Registry) -> None:
    async def waits(ctx: Context) -> int:
        return int(await ctx.wait_signal("go"))

    async def other(ctx: Context) -> None: ...

    registry.workflow(name="waits", queue="usual", signals={"go": int})(waits)
    registry.workflow(name="other", queue="night")(other)
    worker, task = await workers.worker(lease_ms=60_000, renew_ms=10_000)
    run = await workers.start("waits", queue="night")
    await workers.wait_for(run, "run.waiting")
    worker.drain()
    await asyncio.wait_for(task, 20)
    await workers.worker(lease_ms=60_000, renew_ms=10_000)
    await workers.send(run, "signal", {"name": "go", "payload": 3})
    assert await workers.result(run) == 3
