"""Where the texts of attempts end: whole with their result, partial where there will be none, once each."""

import asyncio
from datetime import timedelta
from typing import Any

from tests.support.driven import Driven
from towline.protocol.deltas import Piece
from towline.workers.context import Context
from towline.workers.holding import ENDING_PATIENCE_MS
from towline.workers.registry import Registry, Retry


def _work(what: Any = None) -> Any:
    return what


_registry = Registry()
look: Any = _registry.activity(_work, name="look", effect="read", retry=Retry(attempts=1))
retried: Any = _registry.activity(
    _work, name="retried", effect="read", retry=Retry(attempts=2, first=timedelta(seconds=10))
)


def step_of(driven: Driven) -> str:
    (step,) = driven.attempts
    return step


def test_a_message_is_completed_in_the_commit_of_its_result(drive: Any) -> None:
    async def body(ctx: Context) -> Any:
        return await ctx.run(look)

    driven = drive(body)
    step = step_of(driven)
    driven.say(step, "Hello ")
    driven.say(step, "👋", "greeting")
    driven.say(step, "world")
    driven.finish(step, 1)
    (commit,) = [commit for commit in driven.commits if commit.recorded]
    assert [entry.type for entry in commit.entries][:3] == ["message.completed", "message.completed", "tool.finished"]
    first, second = driven.of("message.completed")
    assert (first["text"], first["partial"], first["step"], first["role"]) == ("Hello world", False, step, "assistant")
    assert (second["message"], second["text"]) == ("greeting", "👋")
    assert driven.result == 1


def test_reasoning_is_for_operators(drive: Any) -> None:
    async def body(ctx: Context) -> Any:
        return await ctx.run(look)

    driven = drive(body)
    step = step_of(driven)
    driven.holding.messages.begin(step, 1)
    driven.holding.messages.append(step, 1, "hm", None, "reasoning")
    driven.finish(step)
    (entry,) = [entry for entry in driven.log.entries if entry.event().type == "message.completed"]
    assert entry.event().audience == "operator"


def test_a_retried_attempt_supersedes_and_a_failed_step_leaves_its_text_partial(drive: Any) -> None:
    async def body(ctx: Context) -> str:
        try:
            await ctx.run(retried)
        except Exception:
            return "failed"
        return "done"

    driven = drive(body)
    step = step_of(driven)
    driven.say(step, "first try")
    driven.fail(step, retryable=True)
    assert driven.of("message.completed") == []
    driven.pass_time(10_000)
    driven.say(step, "second try")
    driven.fail(step, retryable=True)
    (data,) = driven.of("message.completed")
    assert (data["text"], data["attempt"], data["partial"]) == ("second try", 2, True)
    assert driven.types.index("message.completed") < driven.types.index("tool.failed")
    assert driven.result == "failed"


def test_a_run_that_ends_beside_a_running_step_completes_its_text_before_the_terminal_event(drive: Any) -> None:
    async def body(ctx: Context) -> Any:
        asyncio.get_running_loop().create_task(_ignored(ctx))
        return await ctx.wait_signal("go")

    async def _ignored(ctx: Context) -> None:
        await ctx.run(look)

    driven = drive(body)
    step = step_of(driven)
    driven.say(step, "unfinished")
    driven.signal("go", 3)
    driven.pass_time(ENDING_PATIENCE_MS + 1)
    driven.settle()
    assert driven.types[-2:] == ["message.completed", "run.completed"]
    (data,) = driven.of("message.completed")
    assert (data["text"], data["partial"]) == ("unfinished", True)
    assert [len(commit.entries) for commit in driven.commits if commit.ending == "close"] == [2]


def test_what_a_dead_holder_left_is_completed_by_who_ends_the_run(drive: Any) -> None:
    async def body(ctx: Context) -> str:
        try:
            await ctx.run(look)
        except Exception:
            return "failed"
        return "done"

    driven = drive(body)
    step = step_of(driven)
    driven.crash()
    driven.holding.messages.restore([Piece("m", 1, 0, "left behind", step=step)])
    if driven.attempts:
        driven.fail(step)
    (data,) = driven.of("message.completed")
    assert (data["text"], data["attempt"], data["partial"]) == ("left behind", 1, True)


def test_very_long_texts_stand_before_their_result_if_not_beside_it(drive: Any) -> None:
    async def body(ctx: Context) -> Any:
        return await ctx.run(look)

    driven = drive(body)
    step = step_of(driven)
    for number in range(15):
        driven.say(step, "x" * 30_000, f"m{number}")
    driven.finish(step, "result")
    assert [data["message"] for data in driven.of("message.completed")] == [f"m{n}" for n in range(15)]
    assert driven.types[-2:] == ["tool.finished", "run.completed"]
    assert driven.result == "result"
    again = driven.replay(driven.log.entries)
    again.drop()


def test_a_large_outcome_beside_an_input_that_leads_to_nothing_is_not_forgotten(drive: Any) -> None:
    async def body(ctx: Context) -> Any:
        return await ctx.run(look)

    driven = drive(body)
    step = step_of(driven)
    for number in range(10):
        driven.say(step, "x" * 20_000, f"m{number}")
    driven.log.write_input("timer.fired", {"timer": "of nobody"})
    driven._read()
    driven.finish(step, "result")
    assert driven.result == "result"
