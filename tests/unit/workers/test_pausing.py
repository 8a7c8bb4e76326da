"""A pause in the hands of a holder: what runs ends and is recorded, nothing starts, nobody replays otherwise."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from tests.support.toy_log import ToyLog
from towline.workers.context import Context
from towline.workers.registry import Registry, Retry


def _work(what: Any = None) -> Any:
    return what


_registry = Registry()
look: Any = _registry.activity(_work, name="look", effect="read", retry=Retry(attempts=1))
retried: Any = _registry.activity(
    _work, name="retried", effect="read", retry=Retry(attempts=3, first=timedelta(seconds=10))
)


async def two_each(ctx: Context) -> list[Any]:
    async def branch(n: int) -> Any:
        return [await ctx.run(look, n), await ctx.run(look, -n)]

    return list(await asyncio.gather(branch(1), branch(2)))


def test_running_steps_end_and_are_recorded_and_nothing_starts(drive: Any) -> None:
    driven = drive(two_each)
    driven.pause()
    assert "run.paused" not in driven.types
    driven.finish("1:0.1:look:1", "a")
    driven.finish("1:0.2:look:1", "b")
    assert driven.types[-3:] == ["tool.finished", "tool.finished", "run.paused"]
    assert driven.of("run.paused") == [{"code": "user", "by": "user:ana"}]
    assert driven.holding.ended == "paused"
    assert not driven.attempts
    driven.resume()
    assert sorted(driven.attempts) == ["1:0.1:look:2", "1:0.2:look:2"]
    driven.finish("1:0.2:look:2", "d")
    driven.finish("1:0.1:look:2", "c")
    assert driven.result == [["a", "c"], ["b", "d"]]
    driven.replay(driven.log.entries).machine.drop()


@pytest.mark.parametrize("crash_at", range(4))
def test_whoever_takes_over_meanwhile_holds_back_the_same(drive: Any, crash_at: int) -> None:
    driven = drive(two_each)
    driven.pause()
    for place, step in enumerate(("1:0.1:look:1", "1:0.2:look:1")):
        if crash_at == place:
            driven.crash()
            break
        driven.finish(step, place)
    if driven.holding.ended is None and driven.attempts:
        driven.finish(next(iter(driven.attempts)), 9)
    assert driven.holding.ended == "paused"
    assert driven.log.status == "paused"
    driven.resume()
    if crash_at == 3:
        driven.crash()
    while driven.attempts:
        driven.finish(next(iter(driven.attempts)), 7)
    assert driven.types[-1] == "run.completed"
    driven.replay(driven.log.entries).machine.drop()


def test_a_pause_that_the_holder_has_not_heard_of_holds_its_starts(drive: Any) -> None:
    async def body(ctx: Context) -> Any:
        first = await ctx.run(look)
        await ctx.note("between")
        return [first, await ctx.run(look)]

    driven = drive(body)
    driven.pause(is_read=False)
    driven.finish("1:0:look:1", 1)
    assert driven.log.held is None
    assert driven.types[-3:] == ["tool.finished", "progress.noted", "run.paused"]
    driven.resume()
    driven.finish("1:0:look:2", 2)
    assert driven.result == [1, 2]


def test_signals_and_timers_take_effect_on_resume(drive: Any) -> None:
    async def body(ctx: Context) -> Any:
        await asyncio.sleep(60)
        return [ctx.now().timestamp() > 0, await ctx.wait_signal("go")]

    driven = drive(body)
    assert driven.holding.ended == "waiting"
    driven.pause()
    assert driven.types[-2:] == ["run.paused", "command.applied"]
    driven.signal("go", 5)
    driven.pass_time(61_000)
    assert driven.types[-2:] == ["command.received", "timer.fired"]
    assert driven.holding.ended == "waiting", "nobody was woken"
    driven.resume()
    assert driven.result == [True, 5]


def test_a_run_that_still_waits_says_so_again_after_a_resume(drive: Any) -> None:
    async def body(ctx: Context) -> Any:
        return await ctx.wait_signal("go")

    driven = drive(body)
    driven.pause()
    driven.resume()
    assert driven.types[-2:] == ["command.applied", "run.waiting"]


def test_a_run_paused_before_its_start_starts_after_the_resume(drive: Any) -> None:
    async def body(ctx: Context) -> int:
        return 1

    log = ToyLog(workflow="test")
    log.pause()
    log.resume()
    driven = drive(body, log=log)
    assert driven.types[-2:] == ["run.started", "run.completed"]


def test_a_pause_taken_back_in_time_lets_the_starts_go(drive: Any) -> None:
    driven = drive(two_each)
    driven.pause()
    driven.finish("1:0.1:look:1", "a")
    assert list(driven.attempts) == ["1:0.2:look:1"]
    driven.resume()
    assert sorted(driven.attempts) == ["1:0.1:look:2", "1:0.2:look:1"]
    assert "run.paused" not in driven.types
    driven.finish("1:0.2:look:1", "b")
    while driven.attempts:
        driven.finish(next(iter(driven.attempts)), "z")
    assert driven.result == [["a", "z"], ["b", "z"]]


def test_a_retry_waits_for_the_resume(drive: Any) -> None:
    async def body(ctx: Context) -> Any:
        return await ctx.run(retried)

    driven = drive(body)
    driven.pause()
    driven.fail("1:0:retried:1", retryable=True)
    assert driven.types[-2:] == ["tool.retrying", "run.paused"]
    driven.pass_time(60_000)
    assert not driven.attempts
    driven.resume()
    assert driven.attempts["1:0:retried:1"].number == 2
    driven.finish("1:0:retried:1", "at last")
    assert driven.result == "at last"


def test_a_run_that_ends_while_it_pauses_rests_first(drive: Any) -> None:
    async def body(ctx: Context) -> Any:
        return await ctx.run(look)

    driven = drive(body)
    driven.pause()
    driven.finish("1:0:look:1", 3)
    assert driven.types[-1] == "run.paused"
    driven.resume()
    assert driven.result == 3


def test_a_cancel_ends_the_pause(drive: Any) -> None:
    driven = drive(two_each)
    driven.pause()
    driven.log.paused = ""  # as accepting the cancel does
    driven.cancel("enough")
    for step in list(driven.attempts):
        driven.fail(step, "Cancelled")
    driven.pass_time(5_000)
    assert driven.types[-1] == "run.cancelled"
