"""A claimed run: commits and their cuts, endings that are refused, lost attempts, retries."""

import asyncio
from datetime import timedelta
from typing import Any

from towline.workers.commits import MOST_ENTRIES
from towline.workers.context import Context
from towline.workers.registry import Registry, Retry


def _work(what: Any = None) -> Any:
    return what


_registry = Registry()
look: Any = _registry.activity(_work, name="look", effect="read", retry=Retry(attempts=1))
retried: Any = _registry.activity(
    _work, name="retried", effect="read", retry=Retry(attempts=3, first=timedelta(seconds=10))
)
pay: Any = _registry.activity(_work, name="pay", idempotent=True, retry=Retry(attempts=2))


def test_a_run_goes_from_start_over_waiting_to_its_end(drive: Any) -> None:
    async def body(ctx: Context) -> int:
        return int(await ctx.wait_signal("go"))

    driven = drive(body)
    assert driven.types == ["run.created", "run.started", "run.waiting"]
    assert driven.of("run.waiting")[0]["on"] == [
        {"id": "signal:go", "kind": "signal", "name": "go", "schema": {"type": "integer"}}
    ]
    driven.signal("go", 4)
    assert driven.types[3:] == ["command.received", "run.resumed", "command.applied", "run.completed"]
    receipts = [outcome for commit in driven.commits for outcome in commit.outcomes]
    assert [(receipt.subject, receipt.command_id) for receipt in receipts] == [("ana", "k1")]
    assert '"status":"applied"' in receipts[0].receipt
    assert sum(commit.applied for commit in driven.commits) == 1


def test_an_input_that_changes_nothing_leaves_no_trace_of_the_look(drive: Any) -> None:
    async def body(ctx: Context) -> None:
        await ctx.wait_signal("go")

    driven = drive(body)
    before = len(driven.events)
    driven.log.write_input("timer.fired", {"timer": "of nobody"})
    driven.claim()
    assert len(driven.events) == before + 1
    assert driven.holding.ended == "waiting"


def test_an_ending_refused_as_unseen_is_written_without_it_then_fed_then_offered_again(drive: Any) -> None:
    async def body(ctx: Context) -> list[int]:
        await ctx.run(look)
        await ctx.note("looked")
        return [await ctx.wait_signal("go")]

    driven = drive(body)
    driven.write_signal("go", 7)
    driven.finish("1:0:look:1")
    assert driven.log.unseen_count == 1
    assert driven.result == [7]
    refused, again = driven.commits[1], driven.commits[2]
    assert refused.ending == "waiting"
    assert again.ending is None
    assert again.seen == refused.seen
    assert again.entries == refused.entries[:-1]


def test_what_stays_unread_and_open_is_ended_with_the_run(drive: Any) -> None:
    async def body(ctx: Context) -> None:
        from towline.workers import Proposal

        asked = ctx.approval("May I?", proposal=Proposal("a", [], [], "b", "c"))
        waiting = asyncio.ensure_future(asked)
        await ctx.run(look)
        waiting.cancel()

    driven = drive(body)
    driven.signal("go", 1)
    driven.finish("1:0:look:1")
    assert driven.types[-3:] == ["command.rejected", "approval.resolved", "run.completed"]
    assert driven.of("command.rejected")[0]["code"] == "unconsumed"
    assert driven.of("approval.resolved")[0]["outcome"] == "withdrawn"
    assert len(driven.commits[-1].withdrawn) == 1


def test_a_turn_too_large_for_one_call_is_cut_and_a_crash_between_the_cuts_is_harmless(drive: Any) -> None:
    async def body(ctx: Context) -> None:
        for n in range(250):
            await ctx.note(f"note {n}")
        await ctx.run(look)

    driven = drive(body)
    sizes = [len(commit.entries) for commit in driven.commits]
    assert sizes == [MOST_ENTRIES, MOST_ENTRIES, 252 - 2 * MOST_ENTRIES]
    first = 1 + MOST_ENTRIES
    replay = driven.replay(driven.log.entries[:first])
    assert len(replay.new_decisions) == 252 - 1 - (MOST_ENTRIES - 1)
    replay.machine.drop()
    driven.finish("1:0:look:1")
    assert driven.types[-1] == "run.completed"


def test_large_results_are_taken_in_turns(drive: Any) -> None:
    async def body(ctx: Context) -> int:
        return sum(map(len, await asyncio.gather(*(ctx.run(look, n) for n in range(8)))))

    driven = drive(body)
    for step in list(driven.attempts)[:-1]:
        attempt = driven.attempts.pop(step)
        from towline.workers.commits import AttemptFinished

        driven.holding.receive_outcome(
            AttemptFinished(
                step=step, attempt=attempt.number, result=b'"%s"' % (b"x" * 60_000), summary="", duration_ms=1
            )
        )
    driven.finish(next(iter(driven.attempts)), "x" * 60_000)
    assert driven.result == 480_000
    driven.replay(driven.log.entries).machine.drop()
    assert len([commit for commit in driven.commits if commit.recorded]) >= 3


# --- attempts


def test_a_failed_attempt_is_retried_when_it_is_due(drive: Any) -> None:
    async def body(ctx: Context) -> str:
        return str(await ctx.run(retried))

    driven = drive(body)
    driven.fail("1:0:retried:1", "OSError", retryable=True)
    retrying = driven.of("tool.retrying")[0]
    assert retrying["error"]["type"] == "OSError"
    assert driven.holding.ended == "waiting"
    assert driven.of("run.waiting")[0]["on"] == [{"id": "1:0:retried:1:retry:1", "kind": "timer", "name": "retry"}]
    driven.pass_time(10_000)
    assert driven.attempts["1:0:retried:1"].number == 2
    driven.finish("1:0:retried:1", "ok")
    assert driven.result == "ok"
    assert [started["attempt"] for started in driven.of("tool.started")] == [1, 2]


def test_a_short_wait_is_waited_out_with_the_lease_held(drive: Any) -> None:
    async def body(ctx: Context) -> str:
        return str(await ctx.run(retried))

    driven = drive(body, linger_ms=10_000)
    driven.fail("1:0:retried:1", retryable=True)
    assert driven.holding.ended is None
    driven.log.tick(10_000)
    driven.settle()
    assert driven.attempts["1:0:retried:1"].number == 2
    assert driven.log.timers == {}
    assert "run.waiting" not in driven.types


def test_attempts_end(drive: Any) -> None:
    async def body(ctx: Context) -> None:
        await ctx.run(retried)

    driven = drive(body, linger_ms=60_000)
    for _ in range(3):
        driven.fail("1:0:retried:1", retryable=True)
        driven.log.tick(30_000)
        driven.settle()
    assert len(driven.of("tool.retrying")) == 2
    assert len(driven.of("tool.failed")) == 1
    assert driven.error[0] == "ActivityError"


def test_an_error_that_no_repetition_heals_is_not_retried(drive: Any) -> None:
    async def body(ctx: Context) -> None:
        await ctx.run(retried)

    driven = drive(body)
    driven.fail("1:0:retried:1", retryable=False)
    assert driven.of("tool.retrying") == []
    assert driven.error[0] == "ActivityError"


def test_cancel_takes_effect_during_the_back_off(drive: Any) -> None:
    async def body(ctx: Context) -> None:
        await ctx.run(retried)

    driven = drive(body)
    driven.fail("1:0:retried:1", retryable=True)
    driven.cancel()
    assert driven.types[-1] == "run.cancelled"
    assert len(driven.of("tool.started")) == 1


def test_a_lost_attempt_is_followed_by_the_next(drive: Any) -> None:
    async def body(ctx: Context) -> Any:
        return await ctx.run(pay)

    driven = drive(body)
    driven.crash()
    assert driven.types[-2:] == ["run.taken_over", "tool.started"]
    assert driven.of("run.taken_over")[0] == {"worker": "w2", "from": "w1"}
    assert driven.attempts["1:0:pay:1"].number == 2
    driven.finish("1:0:pay:1", "paid")
    assert driven.result == "paid"


def test_a_write_lost_in_its_last_attempt_is_asked_about_not_assumed(drive: Any) -> None:
    async def body(ctx: Context) -> Any:
        return await ctx.run(pay)

    driven = drive(body)
    driven.crash()
    driven.crash()
    assert driven.types[-1] == "run.blocked"
    blocker = driven.of("run.blocked")[0]["blocker"]
    assert (blocker["kind"], blocker["stops"], blocker["detail"]) == (
        "unknown_effect",
        True,
        {"step": "1:0:pay:1", "attempt": 2},
    )
    assert driven.holding.ended == "blocked"
    # A person says: try again.
    driven.log.write_input("run.resumed", {"from": "blocked"})
    driven.claim()
    assert driven.attempts["1:0:pay:1"].number == 3


def test_a_read_lost_in_its_last_attempt_just_runs_again(drive: Any) -> None:
    async def body(ctx: Context) -> Any:
        return await ctx.run(look)

    driven = drive(body)
    driven.crash()
    driven.crash()
    assert driven.attempts["1:0:look:1"].number == 3


def test_a_step_given_up_while_its_worker_was_lost_is_not_run_again(drive: Any) -> None:
    async def body(ctx: Context) -> None:
        try:
            async with asyncio.timeout(5):
                await ctx.run(look, "slow")
        except TimeoutError:
            await ctx.wait_signal("go")

    driven = drive(body)
    driven.pass_time(5_000)
    driven.crash()
    assert driven.attempts == {}
    assert driven.of("tool.failed")[0]["error"]["type"] == "Cancelled"
    driven.signal("go", 1)
    assert driven.types[-1] == "run.completed"


def test_every_history_on_the_way_replays(drive: Any) -> None:
    async def body(ctx: Context) -> int:
        total = 0
        for n in range(3):
            total += await ctx.run(pay, n)
            total += int(await ctx.wait_signal("go"))
        return total

    driven = drive(body)
    for _ in range(3):
        driven.crash()
        driven.signal("go", 10)
        driven.finish(next(iter(driven.attempts)), 1)
    assert driven.result == 33
    for upto in range(1, len(driven.log.entries) + 1):
        driven.replay(driven.log.entries[:upto]).machine.drop()


def test_a_leaving_holder_records_what_ended_and_starts_nothing(drive: Any) -> None:
    async def body(ctx: Context) -> list[Any]:
        return [await ctx.run(look, 1), await ctx.run(look, 2)]

    driven = drive(body)
    driven.leave_after("1:0:look:1", "one")
    assert driven.holding.ended == "hand_over"
    assert driven.types[-1] == "tool.finished"
    driven.claim()
    assert "run.taken_over" not in driven.types
    assert driven.attempts["1:0:look:2"].number == 1
    driven.finish("1:0:look:2", "two")
    assert driven.result == ["one", "two"]


def test_a_leaving_holder_ends_a_run_that_ends(drive: Any) -> None:
    async def body(ctx: Context) -> Any:
        return await ctx.run(look, 1)

    driven = drive(body)
    driven.leave_after("1:0:look:1", "one")
    assert driven.result == "one"
