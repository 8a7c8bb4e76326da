"""Pause and resume with real workers: what runs ends, nothing starts, nothing is lost, whoever dies."""

import asyncio
from typing import Any

import pytest

from tests.support.waiting import wait_until
from tests.support.workers import Stage
from towline.protocol.store.keys import RunKeys
from towline.workers import Context, Proposal
from towline.workers.registry import Registry

pytestmark = pytest.mark.store

PROPOSAL = Proposal("do it", ["a"], ["b"], "small", "undo")


class Gate:
    """An activity that runs until it is let go, and counts its calls."""

    def __init__(self, registry: Registry) -> None:
        self.calls: list[int] = []
        self.open = asyncio.Event()

        async def step(n: int) -> int:
            self.calls.append(n)
            await self.open.wait()
            return n

        self.activity: Any = registry.activity(step, effect="none")

        async def body(ctx: Context) -> list[int]:
            return [await ctx.run(self.activity, n) for n in range(3)]

        registry.workflow(name="steps")(body)


async def is_resting(workers: Stage, run: str) -> bool:
    return (await workers.store.facts(run)).paused == "1"


async def test_the_running_step_ends_and_the_next_one_waits_for_the_resume(workers: Stage, registry: Registry) -> None:
    gate = Gate(registry)
    await workers.worker()
    run = await workers.start("steps")
    await wait_until(lambda: gate.calls == [0], "the first step to run")
    receipt = await workers.send(run, "pause", {"reason": "lunch"})
    assert (receipt.status, receipt.applies) == ("applied", "now")
    assert (await workers.status(run)).pausing
    gate.open.set()
    paused = await workers.wait_for(run, "run.paused")
    assert paused.data == {"code": "user", "by": "user:ana", "text": "lunch"}
    assert gate.calls == [0]
    state = await workers.status(run)
    assert (state.status, state.pausing, state.usage.tool_calls) == ("paused", False, 1)
    await wait_until(lambda: is_resting(workers, run), "the lease to be given back")
    await workers.send(run, "resume")
    assert await workers.result(run) == [0, 1, 2]
    assert gate.calls == [0, 1, 2]
    types = await workers.types(run)
    assert types.count("run.paused") == types.count("run.resumed") == 1
    assert "command.rejected" not in types


async def test_a_worker_that_dies_before_the_run_rests_is_replaced_and_nothing_starts(
    workers: Stage, registry: Registry
) -> None:
    gate = Gate(registry)
    _, task = await workers.worker()
    run = await workers.start("steps")
    await wait_until(lambda: gate.calls == [0], "the first step to run")
    await workers.send(run, "pause")
    task.cancel()
    await workers.worker()
    await workers.wait_for(run, "run.paused")
    assert gate.calls == [0]
    gate.open.set()
    await workers.send(run, "resume")
    assert await workers.result(run) == [0, 1, 2]
    assert gate.calls == [0, 0, 1, 2], "only the lost attempt runs again"


async def test_an_answer_given_while_paused_takes_effect_on_resume(workers: Stage, registry: Registry) -> None:
    async def body(ctx: Context) -> int:
        return int(await ctx.wait_signal("go"))

    registry.workflow(name="waits", signals={"go": int})(body)
    await workers.worker()
    run = await workers.start("waits")
    await workers.wait_for(run, "run.waiting")

    async def is_free() -> bool:
        return (await workers.store.facts(run)).lease_until_ms == 0

    await wait_until(is_free, "the run to be let go")
    await workers.send(run, "pause")
    assert (await workers.status(run)).status == "paused"
    receipt = await workers.send(run, "signal", {"name": "go", "payload": 4})
    assert (receipt.status, receipt.applies) == ("accepted", "when_resumed")
    await workers.send(run, "resume")
    assert await workers.result(run) == 4


async def test_a_cancel_of_a_paused_run_runs_its_clean_up(workers: Stage, registry: Registry) -> None:
    cleaned: list[str] = []

    async def tidy() -> None:
        cleaned.append("tidy")

    clean = registry.activity(tidy, effect="none")

    async def body(ctx: Context) -> None:
        try:
            await ctx.wait_signal("go")
        finally:
            await ctx.run(clean)

    registry.workflow(name="tidies", signals={"go": int})(body)
    await workers.worker()
    run = await workers.start("tidies")
    await workers.wait_for(run, "run.waiting")
    await workers.send(run, "pause")
    await workers.wait_for(run, "run.paused")
    await workers.send(run, "cancel", {"reason": "enough"})
    assert (await workers.ended(run)).type == "run.cancelled"
    assert cleaned == ["tidy"]


async def test_a_question_stands_in_the_inbox_until_it_is_decided(workers: Stage, registry: Registry) -> None:
    async def body(ctx: Context) -> bool:
        return (await ctx.approval("Do it?", proposal=PROPOSAL, deciders=["user:bob", "role:owner"])).approved

    registry.workflow(name="asks")(body)
    await workers.worker()
    run = await workers.start("asks")
    asked = await workers.wait_for(run, "approval.requested")

    async def whom() -> set[str]:
        client: Any = workers.store._client
        members = await client.zrange(RunKeys.of(run).partition.index, 0, -1)
        found = [member.decode().split("|") for member in members if member.startswith(b"i|")]
        return {who for _, who, _, of, request in found if (of, request) == (run, asked.data["request"])}

    assert await whom() == {"user%3Abob", "user%3Aana"}
    await workers.approve(run)
    assert await whom() == set()
    assert await workers.result(run) is True


async def test_a_published_value_is_the_newest_and_survives_a_takeover(workers: Stage, registry: Registry) -> None:
    async def body(ctx: Context) -> None:
        await ctx.publish("progress", {"done": 0})
        await ctx.wait_signal("go")
        await ctx.publish("progress", {"done": 1}, audience="viewer")
        await ctx.wait_signal("go")

    registry.workflow(name="publishes", signals={"go": int})(body)
    _, task = await workers.worker()
    run = await workers.start("publishes")
    await workers.wait_for(run, "run.waiting")

    async def published() -> str:
        return (await workers.store.side_fields(run, ["p|progress"]))["p|progress"]

    assert '"value":{"done":0},"audience":"collaborator"' in await published()
    before = await workers.types(run)
    await workers.send(run, "signal", {"name": "go", "payload": 1})
    await wait_until(lambda: _holds(published, '{"done":1},"audience":"viewer"'), "the second value")
    second = await published()
    assert "marker.recorded" not in before
    task.cancel()
    await workers.worker()
    await workers.send(run, "signal", {"name": "go", "payload": 2})
    await workers.ended(run)
    assert await published() == second, "history replay publishes nothing"


async def _holds(read: Any, text: str) -> bool:
    return text in await read()
