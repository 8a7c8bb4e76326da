"""Where a new run goes: by itself, or behind the unfinished runs of its thread.

Promises that what is refused is not made, that a run is made in the state of its thread that its first event tells
of, and that a key stands for one run wherever that run lies. Leaves to `starting` what the run is, and to the scripts
who goes on when one ends.
"""

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from towline.protocol.codec import NewEntry, TooLarge
from towline.protocol.errors import ProblemError, problem
from towline.protocol.ids import new_run_id, partition_of
from towline.protocol.limits import CHANGED_ATTEMPTS
from towline.protocol.projection import Caller
from towline.protocol.store import acceptance, api
from towline.protocol.store.redis import RedisStore
from towline.protocol.store.threads import turn
from towline.protocol.values import OnBusy


async def reserved_id(store: RedisStore, derived: str, beside: int) -> str:
    """The id in partition `beside` that is kept for the key which alone would give `derived`."""
    chosen, instead = new_run_id(beside), ""
    for _ in range(CHANGED_ATTEMPTS):
        kept = await store.reserve(derived, chosen, instead=instead)
        if kept is None or (partition_of(kept) != beside and await _is_taken(store, kept)):
            raise other_body()
        if partition_of(kept) == beside:
            return kept
        instead = kept  # of another body that was refused: nothing is remembered of it
    raise problem("overloaded", "The key is in use by others; send it again.", retry_after_ms=200)


async def _is_taken(store: RedisStore, run: str) -> bool:
    try:
        await store.facts(run)
    except api.NoRun:
        return False
    except api.RunGone:
        return True
    return True


def other_body() -> ProblemError:
    """The refusal of a key that stands for a run of another body."""
    return problem("idempotency_mismatch", "The Idempotency-Key was used with another body; use a new one.")


async def create_alone(store: RedisStore, new: api.NewRun) -> api.Created:
    """`new`, or the run that has its id. Raises `ProblemError`."""
    for _ in range(CHANGED_ATTEMPTS):
        try:
            created = await _create(store, new)
        except api.Reserved as reserved:
            if await _is_taken(store, reserved.id):
                raise other_body() from None
            new = replace(new, instead=reserved.id)
            continue
        assert isinstance(created, api.Created), "only a thread can be full"
        return created
    raise problem("overloaded", "The key is in use by others; send it again.", retry_after_ms=200)


async def create_in_thread(
    store: RedisStore,
    new: api.NewRun,
    field: str,
    on_busy: OnBusy,
    caller: Caller,
    may_cancel: Callable[[str], bool],
) -> api.Created:
    """`new` at the end of the thread `field`, or no run at all. Raises `ProblemError`."""
    async with turn(store.url, field):
        for _ in range(CHANGED_ATTEMPTS):
            runs = await store.thread_runs(field) if new.start_ms <= store.now_ms() else []
            placed = replace(new, thread=field, behind=runs[-1] if runs else "")
            if runs:
                placed = replace(placed, created=_behind(new.created, runs[-1]))
            if runs and on_busy != "enqueue" and not await _is_taken(store, new.run):
                if on_busy == "reject":
                    text = f"The thread is busy with {runs[0]}; start again when it has ended, or with another on_busy."
                    raise problem("conflict", text, field="thread")
                if not may_cancel(runs[0]):
                    raise problem(
                        "forbidden", "This credential may not cancel what the thread is busy with.", needs="command"
                    )
                placed = replace(placed, interrupt=await acceptance.prepare_interrupt(store, runs[0], caller))
            try:
                created = await _create(store, placed)
            except api.Changed:
                continue
            if isinstance(created, api.Flooded):
                text = f"{created.unapplied} runs of this thread are unfinished; start more when some have ended."
                raise problem("rate_limited", text, retry_after_ms=1000)
            if created.existing is None and placed.interrupt is not None:
                await acceptance.close_unstarted(store, placed.interrupt.run)
            return created
    raise problem("overloaded", "The thread changes too fast to join it now; send it again.", retry_after_ms=200)


def _behind(created: NewEntry, run: str) -> NewEntry:
    data: Any = created.data
    return replace(created, data=replace(data, behind=run))


async def _create(store: RedisStore, new: api.NewRun) -> api.Created | api.Flooded:
    """`RedisStore.create_run`, whose refusals of what was asked are problems."""
    try:
        return await store.create_run(new)
    except api.RunGone as gone:
        # Of another's run nobody learns more than that the id is taken.
        code = "gone" if gone.owner == new.owner else "conflict"
        what = "The run with this id was deleted" if gone.owner == new.owner else "A run with this id exists already"
        raise problem(code, f"{what}; choose another id.", field="id") from None
    except TooLarge as error:
        if error.type != "run.created":
            raise problem("too_large", f"The command is too large for the log: {error}", field="command.data") from None
        raise problem("too_large", f"scope, labels and grants are too large: {error}", field="scope") from None
