"""Whole runs on a real store and a real worker: activities, retries, signals, approvals, cancel."""

import asyncio
import threading
import time
from datetime import timedelta
from typing import Any

import pytest

from tests.support.waiting import wait_until
from tests.support.workers import Stage
from towline.workers import Context, Proposal, activity
from towline.workers.registry import Registry, Retry

pytestmark = pytest.mark.store

PROPOSAL = Proposal("do it", ["a"], ["b"], "small", "undo")
QUICK = Retry(attempts=3, first=timedelta(milliseconds=50))


async def test_three_activities_run_and_are_recorded_with_their_results(workers: Stage, registry: Registry) -> None:
    calls: list[str] = []

    async def one(x: int) -> int:
        calls.append(f"one {x}")
        return x + 1

    def two(x: int) -> int:
        assert threading.current_thread() is not threading.main_thread()
        calls.append(f"two {x}")
        return x * 2

    first = registry.activity(one, effect="none")
    second = registry.activity(two, effect="none")

    async def body(ctx: Context, start: int) -> int:
        value = await ctx.run(first, start)
        both = await asyncio.gather(ctx.run(second, value), ctx.run(first, value))
        return sum(both)

    registry.workflow(name="three")(body)
    await workers.worker()
    run = await workers.start("three", 1)
    assert await workers.result(run) == 4 + 3
    assert sorted(calls) == ["one 1", "one 2", "two 2"]
    types = await workers.types(run)
    assert types[:3] == ["run.created", "run.started", "tool.started"]
    assert "run.waiting" not in types
    done = await workers.status(run)
    assert (done.status, done.usage.tool_calls) == ("completed", 3)


async def test_a_failing_activity_is_retried_with_the_same_key_and_the_error_is_told(
    workers: Stage, registry: Registry
) -> None:
    seen: list[tuple[int, str]] = []

    async def flaky() -> str:
        seen.append((activity.attempt, activity.idempotency_key))
        if activity.attempt < 3:
            raise OSError("not yet")
        activity.usage(usd_micros=7, tokens=11)
        return "done"

    made = registry.activity(flaky, effect="read", retry=QUICK)

    async def body(ctx: Context) -> str:
        return str(await ctx.run(made))

    registry.workflow(name="retry")(body)
    await workers.worker()
    run = await workers.start("retry")
    assert await workers.result(run) == "done"
    assert [attempt for attempt, _ in seen] == [1, 2, 3]
    assert len({key for _, key in seen}) == 1
    events = await workers.events(run)
    assert [event.data["error"]["message"] for event in events if event.type == "tool.retrying"] == ["not yet"] * 2
    assert (await workers.status(run)).usage.usd_micros == 7


async def test_a_long_back_off_lets_the_run_go_and_brings_it_back(workers: Stage, registry: Registry) -> None:
    policy = Retry(attempts=2, first=timedelta(seconds=1), longest=timedelta(seconds=1))

    async def flaky() -> int:
        if activity.attempt == 1:
            raise OSError
        return activity.attempt

    made = registry.activity(flaky, effect="read", retry=policy)

    async def body(ctx: Context) -> int:
        return int(await ctx.run(made))

    registry.workflow(name="back_off")(body)
    await workers.worker(linger_ms=0)
    run = await workers.start("back_off")
    assert await workers.result(run) == 2
    waiting = [event.data["on"] for event in await workers.events(run) if event.type == "run.waiting"]
    assert [on[0]["name"] for on in waiting] == ["retry"] * len(waiting)


async def test_a_durable_sleep_is_never_early(workers: Stage, registry: Registry) -> None:
    async def body(ctx: Context) -> float:
        before = ctx.now()
        await ctx.sleep(timedelta(milliseconds=700))
        return (ctx.now() - before).total_seconds()

    registry.workflow(name="sleeper")(body)
    worker, _ = await workers.worker()
    run = await workers.start("sleeper")
    await workers.wait_for(run, "run.waiting")
    await wait_until(lambda: not worker.held, "the run to be let go while it sleeps")
    assert await workers.result(run) >= 0.7


async def test_signals_reach_a_waiting_run_in_order_and_each_gets_its_receipt(
    workers: Stage, registry: Registry
) -> None:
    async def body(ctx: Context) -> list[int]:
        return [await ctx.wait_signal("go", effect=f"taken as {n}") for n in (1, 2, 3)]

    registry.workflow(name="signals", signals={"go": int})(body)
    await workers.worker()
    run = await workers.start("signals")
    await workers.send(run, "signal", {"name": "go", "payload": 5}, command_id="early")
    await workers.wait_for(run, "command.applied")
    await workers.wait_for(run, "run.waiting")
    await workers.send(run, "signal", {"name": "go", "payload": 6})
    await workers.send(run, "signal", {"name": "go", "payload": 7})
    assert await workers.result(run) == [5, 6, 7]
    again = await workers.send(run, "signal", {"name": "go", "payload": 5}, command_id="early")
    assert (again.status, again.effect, again.duplicate) == ("applied", "taken as 1", True)


@pytest.mark.parametrize(("type_", "outcome"), [("approve", "approved"), ("reject", "rejected")])
async def test_an_approval_is_asked_answered_and_goes_on(
    workers: Stage, registry: Registry, type_: str, outcome: str
) -> None:
    async def body(ctx: Context) -> Any:
        decision = await ctx.approval("Do it?", proposal=PROPOSAL)
        ctx.claim("asked", decision)
        return [decision.approved, decision.outcome, decision.seq]

    registry.workflow(name="asks")(body)
    worker, _ = await workers.worker()
    run = await workers.start("asks")
    await workers.wait_for(run, "run.waiting")
    assert (await workers.status(run)).waiting_on[0].kind == "approval"
    await wait_until(lambda: not worker.held, "the run to be let go while it waits")
    receipt = await workers.approve(run, type_)
    assert receipt.status == "applied"
    approved, said, seq = await workers.result(run)
    assert (approved, said) == (outcome == "approved", outcome)
    events = await workers.events(run)
    assert events[seq - 1].type == "approval.resolved"
    assert events[-1].data["claims"][0]["evidence"] == [{"seq": seq}]


async def test_artifacts_are_durable_before_they_are_announced(workers: Stage, registry: Registry) -> None:
    async def write() -> str:
        return activity.artifact("from-activity.txt", "A", "text/plain").id

    made = registry.activity(write, effect="none")

    async def body(ctx: Context) -> list[str]:
        one = await ctx.artifact("from-workflow.txt", "W" * 100_000, "text/plain")
        return [one.id, await ctx.run(made)]

    registry.workflow(name="artifacts")(body)
    await workers.worker()
    run = await workers.start("artifacts")
    ids = await workers.result(run)
    created = [event.data for event in await workers.events(run) if event.type == "artifact.created"]
    assert [each["artifact"] for each in created] == ids
    for each, content in zip(created, (b"W" * 100_000, b"A"), strict=True):
        assert await workers.payloads.of(run).read(each["sha256"]) == content


async def test_large_values_go_around_the_log(workers: Stage, registry: Registry) -> None:
    async def echo(text: str) -> str:
        return text

    made = registry.activity(echo, effect="none")

    async def body(ctx: Context, text: str) -> str:
        back = await ctx.run(made, text * 20)
        await ctx.sleep(timedelta(milliseconds=600))  # let go and replayed
        return str(back) + "!"

    registry.workflow(name="large")(body)
    await workers.worker()
    run = await workers.start("large", "x" * 10_000)
    terminal = await workers.ended(run)
    assert terminal.type == "run.completed"
    assert terminal.data.get("result") is None
    assert terminal.ref is not None
    assert await workers.payloads.of(run).read(terminal.ref.removeprefix("pay_")) == b'"%s!"' % (b"x" * 200_000)


async def test_a_result_over_the_limit_fails_the_step_at_once(workers: Stage, registry: Registry) -> None:
    async def huge() -> str:
        return "x" * (5 * 1024 * 1024)

    made = registry.activity(huge, effect="none")

    async def body(ctx: Context) -> None:
        await ctx.run(made)

    registry.workflow(name="huge")(body)
    await workers.worker()
    terminal = await workers.ended(await workers.start("huge"))
    assert terminal.type == "run.failed"
    assert "1:0:huge:1 takes 5242882 bytes, the limit is 4194304" in terminal.data["error"]["message"]


async def test_time_limits_and_heartbeats_end_an_attempt(workers: Stage, registry: Registry) -> None:
    async def slow() -> None:
        await asyncio.sleep(60)

    def silent() -> None:
        while not activity.cancelled:
            time.sleep(0.01)

    once = Retry(attempts=1)
    too_slow = registry.activity(slow, effect="read", retry=once, start_to_close=timedelta(milliseconds=100))
    too_silent = registry.activity(silent, effect="read", retry=once, heartbeat=timedelta(milliseconds=100))

    async def body(ctx: Context) -> list[str]:
        errors = await asyncio.gather(ctx.run(too_slow), ctx.run(too_silent), return_exceptions=True)
        return [str(error) for error in errors]

    registry.workflow(name="limits")(body)
    await workers.worker()
    assert await workers.result(await workers.start("limits")) == [
        "slow failed: TimeoutError: it took longer than 0.1 s",
        "silent failed: TimeoutError: no heartbeat for 0.1 s",
    ]


async def test_what_activities_do_wrong_is_their_steps_error_and_nobody_elses(
    workers: Stage, registry: Registry
) -> None:
    async def exits() -> None:
        raise SystemExit(3)

    def odd() -> Any:
        return object()

    async def gives_up() -> None:
        raise asyncio.CancelledError

    once = Retry(attempts=1)
    made = [registry.activity(fn, effect="none", retry=once) for fn in (exits, odd, gives_up)]

    async def body(ctx: Context) -> list[str]:
        errors = await asyncio.gather(*(ctx.run(each) for each in made), return_exceptions=True)
        return [str(error) for error in errors]

    registry.workflow(name="wrong")(body)
    worker, task = await workers.worker()
    said = await workers.result(await workers.start("wrong"))
    assert said[0] == "exits failed: RuntimeError: the activity called sys.exit(3)"
    assert said[1].startswith("odd failed: TypeError: the result of odd cannot be recorded")
    assert said[2].startswith("gives_up failed: CancelledError")
    assert not task.done()
    assert worker.settings.name == "w1"


# --- cancel


async def test_cancel_before_any_worker_took_the_run(workers: Stage, registry: Registry) -> None:
    async def body(ctx: Context) -> None: ...

    registry.workflow(name="never")(body)
    _, task = await workers.worker()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    run = await workers.start("never")
    await workers.send(run, "cancel", {"reason": "no"})
    assert (await workers.ended(run)).data["forced"] is True


@pytest.mark.parametrize("state", ["waiting", "activity", "thread", "back_off", "cleaning"])
async def test_cancel_in_every_state(workers: Stage, registry: Registry, state: str) -> None:
    async def slow() -> None:
        await asyncio.sleep(60)

    def thread() -> None:
        while not activity.cancelled:
            time.sleep(0.01)

    async def fails() -> None:
        raise OSError

    long = Retry(attempts=3, first=timedelta(hours=1))
    activities = {
        "activity": registry.activity(slow, effect="read"),
        "thread": registry.activity(thread, effect="read"),
        "back_off": registry.activity(fails, effect="read", retry=long),
        "cleaning": registry.activity(slow, effect="read", name="cleaned"),
    }

    async def tidy() -> None: ...

    cleanup = registry.activity(tidy, effect="none")

    async def body(ctx: Context) -> None:
        try:
            if state == "waiting":
                await ctx.wait_signal("go")
            await ctx.run(activities[state])
        finally:
            if state == "cleaning":
                await ctx.run(cleanup)

    registry.workflow(name="cancels", signals={"go": int})(body)
    await workers.worker(linger_ms=0)
    run = await workers.start("cancels")
    where = {"waiting": "run.waiting", "back_off": "tool.retrying"}.get(state, "tool.started")
    await workers.wait_for(run, where)
    await workers.send(run, "cancel", {"reason": "enough"})
    await workers.send(run, "cancel", {"reason": "really"})
    terminal = await workers.ended(run)
    assert terminal.type == "run.cancelled"
    unfinished = [{"step": "1:0:fails:1", "name": "fails", "attempt": 1, "effect": "read"}]
    assert terminal.data == {
        "by": "user:ana",
        "forced": False,
        "abandoned": unfinished if state == "back_off" else [],
        "reason": "enough",
    }
    if state == "cleaning":
        finished = [event for event in await workers.events(run) if event.type == "tool.finished"]
        assert [event.data["step"] for event in finished] == ["1:0:tidy:1"]


async def test_a_workflow_that_swallows_its_cancel_is_closed_at_the_deadline(
    workers: Stage, registry: Registry
) -> None:
    async def body(ctx: Context) -> None:
        while True:
            try:
                await ctx.wait_signal("never")
            except asyncio.CancelledError:
                continue

    registry.workflow(name="stubborn", signals={"never": int})(body)
    await workers.worker()
    run = await workers.start("stubborn")
    await workers.wait_for(run, "run.waiting")
    await workers.send(run, "cancel", {"grace_ms": 300})
    terminal = await workers.ended(run)
    assert (terminal.type, terminal.data["forced"]) == ("run.cancelled", True)
