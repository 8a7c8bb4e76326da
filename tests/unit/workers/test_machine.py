"""Workflows on their machine: what they decide, what wakes them, how they end."""

import asyncio
import contextlib
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from tests.support.driven import Driven
from tests.support.toy_log import START_MS
from towline.workers.context import Context
from towline.workers.registry import Registry, Retry, Workflow
from towline.workers.values import ActivityError, ForbiddenCall


def _look(what: str) -> str:
    return what


def _pair(pair: tuple[int, dict[str, list[int]]]) -> tuple[int, int]:
    return pair[0], len(pair[1])


_registry = Registry()
look: Any = _registry.activity(_look, name="look", effect="read", retry=Retry(attempts=1))
pair: Any = _registry.activity(_pair, name="pair", effect="none")


def workflow(fn: Any, **options: Any) -> Workflow:
    return Registry().workflow(name="test", **options)(fn)


@pytest.fixture
def drive() -> Iterator[Any]:
    made: list[Driven] = []

    def start(fn: Any, value: Any = None, **options: Any) -> Driven:
        made.append(Driven(workflow(fn, **options), value))
        return made[-1]

    yield start
    for driven in made:
        driven.close()


def test_identical_calls_are_steps_of_their_own(drive: Any) -> None:
    async def body(ctx: Context) -> list[str]:
        return [await ctx.run(look, "same") for _ in range(3)]

    driven = drive(body)
    for n in (1, 2, 3):
        assert list(driven.attempts) == [f"1:0:look:{n}"]
        driven.finish(f"1:0:look:{n}", f"r{n}")
    assert driven.result == ["r1", "r2", "r3"]
    assert [started["step"] for started in driven.of("tool.started")] == [f"1:0:look:{n}" for n in (1, 2, 3)]


def test_they_replay_three_results_and_run_nothing_again(drive: Any) -> None:
    async def body(ctx: Context) -> list[str]:
        results = [await ctx.run(look, "same") for _ in range(3)]
        await ctx.wait_signal("end")
        return results

    driven = drive(body, signals={"end": type(None)})
    for n in (1, 2, 3):
        driven.finish(f"1:0:look:{n}", f"r{n}")
    driven.crash()
    assert driven.attempts == {}
    driven.signal("end")
    assert driven.result == ["r1", "r2", "r3"]
    assert len(driven.of("tool.started")) == len(driven.of("tool.finished")) == 3


def test_nested_values_come_out_as_declared(drive: Any) -> None:
    async def body(ctx: Context) -> bool:
        return bool((await ctx.run(pair, (1, {"a": [1, 2]}))) == (1, 1))

    driven = drive(body)
    attempt = driven.attempts["1:0:pair:1"]
    assert attempt.start.activity.decode_args(attempt.start.args) == ((1, {"a": [1, 2]}),)
    driven.finish("1:0:pair:1", [1, 1])
    assert driven.result is True


def test_branches_with_the_same_activity_do_not_mix_whatever_comes_first(drive: Any) -> None:
    async def body(ctx: Context) -> list[str]:
        async def branch(name: str) -> str:
            return str(await ctx.run(look, name)) + str(await ctx.run(look, name))

        return list(await asyncio.gather(branch("a"), branch("b")))

    driven = drive(body)
    assert sorted(driven.attempts) == ["1:0.1:look:1", "1:0.2:look:1"]
    driven.finish("1:0.2:look:1", "b1")
    driven.finish("1:0.2:look:2", "b2")
    driven.crash()
    assert sorted(driven.attempts) == ["1:0.1:look:1"]
    driven.finish("1:0.1:look:1", "a1")
    driven.finish("1:0.1:look:2", "a2")
    assert driven.result == ["a1a2", "b1b2"]


def test_random_and_uuid_do_not_shift_when_a_call_is_added_elsewhere(drive: Any) -> None:
    def body(adds: bool) -> Any:
        async def run(ctx: Context) -> list[Any]:
            if adds:
                ctx.uuid()
                await asyncio.gather(asyncio.sleep(0), asyncio.sleep(0))
            return [ctx.random().random(), ctx.random().random(), str(ctx.uuid()) if not adds else None]

        return run

    plain, more = drive(body(False)).result, drive(body(True)).result
    assert plain[:2] == more[:2]
    assert plain[0] != plain[1]
    assert plain[2][14] == "4"


def test_a_side_effect_happens_once(drive: Any) -> None:
    calls: list[int] = []

    async def body(ctx: Context) -> Any:
        def make() -> dict[str, int]:
            calls.append(1)
            return {"n": len(calls)}

        value = await ctx.side_effect(make)
        await ctx.wait_signal("go")
        return value

    driven = drive(body, signals={"go": type(None)})
    driven.crash()
    driven.signal("go")
    assert driven.result == {"n": 1}
    assert calls == [1]


def test_time_is_what_the_run_last_heard_of(drive: Any) -> None:
    times: list[int] = []

    async def body(ctx: Context) -> None:
        def note() -> None:
            times.append(round(ctx.now().timestamp() * 1000))

        note()
        await ctx.sleep(timedelta(seconds=3))
        note()
        await ctx.wait_signal("go")
        note()

    driven = drive(body, signals={"go": type(None)})
    driven.pass_time(5_000)
    driven.log.tick(700)
    driven.signal("go")
    live = [times[0], *times[-2:]]
    times.clear()
    driven.replay(driven.log.entries)
    assert times == live
    assert live[0] == START_MS
    assert live[1] >= live[0] + 3_000


def test_signals_are_kept_from_before_the_first_line_and_read_in_order(drive: Any) -> None:
    async def body(ctx: Context) -> list[int]:
        await ctx.run(look, "x")
        return [await ctx.wait_signal("n") for _ in range(3)]

    driven = drive(body, signals={"n": int})
    for n in (1, 2):
        driven.signal("n", n)
    driven.finish("1:0:look:1", "")
    assert driven.types[-1] == "run.waiting"
    driven.crash()
    driven.signal("n", 3)
    assert driven.result == [1, 2, 3]
    applied = [event for event in driven.events if event.type == "command.applied"]
    assert [event.data["command_id"] for event in applied] == ["k1", "k2", "k3"]
    assert [driven.events[event.cause - 1].data["payload"] for event in applied] == [1, 2, 3]


def test_a_signal_is_not_lost_when_its_reader_is_cancelled_in_the_same_moment(drive: Any) -> None:
    async def body(ctx: Context) -> int:
        reader = asyncio.ensure_future(ctx.wait_signal("n"))
        await asyncio.sleep(1)
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)
        return int(await ctx.wait_signal("n"))

    driven = drive(body, signals={"n": int})
    driven.log.tick(1_000)
    driven.log.fire_due()
    driven.write_signal("n", 5)
    driven.claim()
    assert driven.result == 5
    assert len(driven.of("command.applied")) == 1


def test_a_signal_of_another_type_is_rejected_and_the_wait_goes_on(drive: Any) -> None:
    async def body(ctx: Context) -> int:
        return int(await ctx.wait_signal("n"))

    driven = drive(body, signals={"n": int})
    driven.signal("n", "seven")
    rejected = driven.of("command.rejected")
    assert rejected[0]["code"] == "bad_request"
    assert "Expected `int`" in rejected[0]["text"]
    driven.signal("n", 7)
    assert driven.result == 7


def test_conditions_are_asked_at_each_rest(drive: Any) -> None:
    async def body(ctx: Context) -> int:
        ctx.state.count = 0

        async def count() -> None:
            for _ in range(3):
                await ctx.wait_signal("n")
                ctx.state.count += 1

        counter = asyncio.ensure_future(count())
        await ctx.wait_condition(lambda: ctx.state.count == 2)
        counter.cancel()
        return int(ctx.state.count)

    driven = drive(body, signals={"n": int})
    driven.signal("n", 1)
    assert not driven.log.is_sealed
    driven.signal("n", 1)
    assert driven.result == 2


def test_a_failed_activity_is_an_error_that_names_its_cause(drive: Any) -> None:
    async def body(ctx: Context) -> Any:
        try:
            await ctx.run(look, "x")
        except ActivityError as error:
            return [error.activity, error.cause_type, error.message, str(error)]

    driven = drive(body)
    driven.fail("1:0:look:1", "KeyError", "'k'")
    assert driven.result == ["look", "KeyError", "'k'", "look failed: KeyError: 'k'"]


def test_an_uncaught_error_fails_the_run(drive: Any) -> None:
    async def body(ctx: Context) -> None:
        await ctx.checkpoint("here", done=["a"], next=["b"])
        async with asyncio.TaskGroup() as group:
            group.create_task(ctx.run(look, "x"))
            group.create_task(ctx.run(look, "y"))

    driven = drive(body)
    driven.fail("1:0.1:look:1", "OSError", "gone")
    driven.fail("1:0.2:look:1", "Cancelled", "")
    type_, message = driven.error
    assert type_ == "ExceptionGroup"
    assert "ActivityError: look failed: OSError: gone" in message
    failed = driven.of("run.failed")[0]
    assert driven.events[failed["checkpoint"] - 1].type == "checkpoint.saved"
    assert [step["step"] for step in failed["abandoned"]] == []
    assert driven.of("tool.failed")[-1]["error"]["type"] == "Cancelled"


def test_the_input_must_be_what_the_workflow_takes(drive: Any) -> None:
    async def body(ctx: Context, number: int) -> int:
        return number

    assert drive(body, 5).result == 5
    assert drive(body, "five").error[0] == "ValidationError"


def test_a_forbidden_call_fails_the_run_and_says_what_to_use(drive: Any) -> None:
    async def body(ctx: Context) -> None:
        await asyncio.to_thread(print)

    type_, message = drive(body).error
    assert type_ == ForbiddenCall.__name__
    assert "activity" in message


def test_a_run_that_nothing_can_wake_fails_at_once(drive: Any) -> None:
    async def body(ctx: Context) -> None:
        await asyncio.Event().wait()

    assert drive(body).error[0] == "Stuck"


def test_a_timer_given_up_in_the_same_moment_never_existed_and_one_given_up_later_is_disarmed(drive: Any) -> None:
    async def body(ctx: Context) -> None:
        await asyncio.wait_for(asyncio.sleep(0), 60)
        await asyncio.wait_for(ctx.wait_signal("go"), 60)
        await ctx.wait_signal("go")

    driven = drive(body, signals={"go": type(None)})
    assert len(driven.of("timer.started")) == 1
    assert len(driven.log.timers) == 1
    driven.signal("go")
    # The holder that read the signal disarmed it, or it fires once more into nothing.
    driven.pass_time(60_000)
    driven.signal("go")
    assert driven.types[-1] == "run.completed"


# --- cancel


def test_cancel_reaches_a_sleep(drive: Any) -> None:
    async def body(ctx: Context) -> None:
        await ctx.sleep(3_600)

    driven = drive(body)
    driven.cancel("enough")
    assert driven.of("run.cancelled") == [{"by": "user:ana", "forced": False, "abandoned": [], "reason": "enough"}]


def test_cancel_reaches_a_running_activity(drive: Any) -> None:
    async def body(ctx: Context) -> None:
        await ctx.run(look, "x")

    driven = drive(body)
    driven.cancel()
    assert driven.holding.unwanted() == {"1:0:look:1"}
    driven.fail("1:0:look:1", "Cancelled", "")
    assert driven.types[-2:] == ["tool.failed", "run.cancelled"]
    assert driven.of("run.cancelled")[0]["abandoned"] == []


def test_an_activity_that_does_not_stop_is_listed_as_abandoned(drive: Any) -> None:
    async def body(ctx: Context) -> None:
        await ctx.run(look, "x")

    driven = drive(body)
    driven.cancel()
    assert not driven.log.is_sealed
    driven.pass_time(3_000)
    assert driven.of("run.cancelled")[0]["abandoned"] == [
        {"step": "1:0:look:1", "name": "look", "attempt": 1, "effect": "read"}
    ]


def test_clean_up_runs_after_a_cancel_and_a_second_cancel_does_not_stop_it(drive: Any) -> None:
    async def body(ctx: Context) -> None:
        try:
            await ctx.sleep(3_600)
        finally:
            await ctx.run(look, "tidy")
            await ctx.note("tidied")

    driven = drive(body)
    driven.cancel()
    driven.cancel()
    driven.crash()
    driven.finish("1:0:look:1", "")
    assert driven.types[-2:] == ["progress.noted", "run.cancelled"]


def test_a_workflow_may_finish_although_it_was_cancelled(drive: Any) -> None:
    async def body(ctx: Context) -> str:
        with contextlib.suppress(asyncio.CancelledError):
            await ctx.sleep(3_600)
        return "anyway"

    driven = drive(body)
    driven.cancel()
    assert driven.result == "anyway"


def test_cancelling_oneself_is_a_failure_not_a_cancel(drive: Any) -> None:
    async def body(ctx: Context) -> None:
        raise asyncio.CancelledError

    assert drive(body).error[0] == "CancelledError"


def test_a_step_given_up_is_cancelled_and_recorded(drive: Any) -> None:
    async def body(ctx: Context) -> str:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(ctx.run(look, "slow"), 5)
        return await ctx.run(look, "fast")

    driven = drive(body)
    driven.pass_time(5_000)
    (slow,) = driven.holding.unwanted()
    driven.fail(slow, "Cancelled", "", retryable=True)
    fast = next(iter(driven.attempts))
    driven.finish(fast, "ok")
    assert driven.result == "ok"
    assert len(driven.of("tool.failed")) == 1
