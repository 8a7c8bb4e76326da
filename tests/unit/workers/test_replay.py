"""History replay: divergences are named, histories of other code and broken logs are refused."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.driven import Driven
from towline.workers.context import Context
from towline.workers.registry import Registry, Workflow
from towline.workers.replay import BadHistory, Divergence, Replay


def _work(what: str) -> str:
    return what


_registry = Registry()
look: Any = _registry.activity(_work, name="look", effect="read")
think: Any = _registry.activity(_work, name="think", effect="none")


def workflow(fn: Any) -> Workflow:
    return Registry().workflow(name="test", signals={"go": int})(fn)


@pytest.fixture
def recorded() -> Iterator[Driven]:
    """look, then look and think side by side, then a signal, then the end; nothing finished beyond the first."""

    async def body(ctx: Context) -> None:
        await ctx.run(look, "a")
        await asyncio.gather(ctx.run(look, "b"), ctx.run(think, "c"))
        await ctx.wait_signal("go")

    driven = Driven(workflow(body))
    driven.finish("1:0:look:1", "")
    yield driven
    driven.close()


def divergence(driven: Driven, other: Any) -> tuple[str, str, str]:
    with pytest.raises(Divergence) as caught:
        driven.replay(driven.log.entries, workflow(other))
    return caught.value.step, caught.value.expected, caught.value.actual


def test_another_step_in_its_place_is_named(recorded: Driven) -> None:
    async def other(ctx: Context) -> None:
        await ctx.run(think, "a")

    assert divergence(recorded, other) == (
        "1:0:look:1",
        "tool.started 1:0:look:1",
        "tool.started 1:0:think:1",
    )


def test_a_step_that_is_gone_is_named(recorded: Driven) -> None:
    async def other(ctx: Context) -> None:
        await ctx.run(look, "a")
        await asyncio.gather(ctx.run(look, "b"), ctx.sleep(0))

    assert divergence(recorded, other) == ("1:0.2:think:1", "tool.started 1:0.2:think:1", "nothing")


def test_a_new_step_in_the_past_is_named(recorded: Driven) -> None:
    async def other(ctx: Context) -> None:
        await ctx.note("new")
        await ctx.run(look, "a")
        await asyncio.gather(ctx.run(look, "b"), ctx.run(think, "c"))

    assert divergence(recorded, other) == ("1:0:note:1", "nothing", "progress.noted 1:0:note:1")


def test_another_kind_of_entry_under_the_same_step_is_a_divergence(recorded: Driven) -> None:
    async def first(ctx: Context) -> None:
        await ctx.plan("a")
        await ctx.sleep(9)

    async def other(ctx: Context) -> None:
        await ctx.side_effect(lambda: 1)
        await ctx.sleep(9)

    driven = Driven(workflow(first))
    assert divergence(driven, other) == (
        "1:0:plan:1",
        "plan.proposed 1:0:plan:1",
        "marker.recorded 1:0:side_effect:1",
    )
    driven.close()


def test_a_step_added_after_the_recorded_part_is_new(recorded: Driven) -> None:
    async def other(ctx: Context) -> None:
        await ctx.run(look, "a")
        await asyncio.gather(ctx.run(look, "b"), ctx.run(think, "c"), ctx.note("new"))

    replay = recorded.replay(recorded.log.entries, workflow(other))
    assert [decision.step for decision in replay.new_decisions] == ["1:0.3:note:1"]
    replay.machine.drop()


def test_what_was_cut_off_by_a_crash_is_new_again(recorded: Driven) -> None:
    entries = recorded.log.entries
    cut = next(entry.seq for entry in entries if entry.meta.key == "1:0.2:think:1") - 1
    replay = recorded.replay(entries[:cut])
    assert [decision.step for decision in replay.new_decisions] == ["1:0.2:think:1"]
    replay.machine.drop()


def test_a_sealed_log_must_end_as_the_code_does() -> None:
    async def first(ctx: Context, value: Any) -> int:
        return 1

    async def waits(ctx: Context, value: Any) -> int:
        return int(await ctx.wait_signal("go"))

    async def raises(ctx: Context, value: Any) -> int:
        raise ValueError

    driven = Driven(workflow(first))
    driven.replay(driven.log.entries).verify_ending()
    for other, actual in ((waits, "no ending"), (raises, "Fail")):
        replay = driven.replay(driven.log.entries, workflow(other))
        with pytest.raises(Divergence) as caught:
            replay.verify_ending()
        assert (caught.value.expected, caught.value.actual) == ("run.completed", actual)
        replay.machine.drop()


def test_a_log_with_a_hole_or_without_a_beginning_is_refused(recorded: Driven) -> None:
    entries = recorded.log.entries
    replay = Replay(recorded.definition, "run-1")
    replay.receive(entries[0])
    with pytest.raises(BadHistory, match="from 1 to 3"):
        replay.receive(entries[2])
    replay.machine.drop()
    with pytest.raises(BadHistory):
        Replay(recorded.definition, "run-1").finish()


def test_a_long_history_replays() -> None:
    async def body(ctx: Context) -> int:
        total = 0
        for _ in range(300):
            total += len(await ctx.run(look, "x"))
        return total

    driven = Driven(workflow(body))
    while driven.attempts:
        driven.finish(next(iter(driven.attempts)), "ab")
    assert driven.result == 600
    replay = driven.replay(driven.log.entries)
    replay.verify_ending()
    replay.machine.drop()
    driven.close()
