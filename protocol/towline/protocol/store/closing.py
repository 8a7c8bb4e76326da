"""Ending a run from outside: what a sweep or a gateway does when the run's own code cannot.

Promises that a run past its cancel deadline ends also when no worker lives, once, with what was left open named.
It claims first, which fences a live holder off; whoever dies half-way leaves the deadline's timer, so the next
sweep finishes.
"""

import secrets
from typing import Final

from towline.protocol import event_data as d
from towline.protocol import requests
from towline.protocol.codec import NewEntry
from towline.protocol.cursor import START
from towline.protocol.limits import CHANGED_ATTEMPTS, LEASE_MS
from towline.protocol.store import api
from towline.protocol.store.openends import SYSTEM, OpenEnds
from towline.protocol.store.redis import RedisStore

_MOST_ENDS: Final = 80
"""How many open ends go in one step with the terminal event."""


async def force_close(store: RedisStore, run: str, *, holder: str) -> bool:
    """Cancels `run` now, by the newest cancel it accepted; whether it is closed afterwards.

    Raises `NoRun`, `StoreUnavailable`.
    """
    facts = await store.facts(run)
    if facts.sealed:
        return True
    claimed = await store.claim(
        run, nonce=secrets.token_hex(8), holder=holder, version=facts.version, ttl_ms=LEASE_MS, closing=True
    )
    if isinstance(claimed, api.NotClaimed):
        return claimed.why == "closed"
    number = 1
    changed = 0
    while changed < CHANGED_ATTEMPTS:
        commit, prepared_at = await _prepare(store, facts.queue, claimed, number)
        try:
            if prepared_at is None:
                await store.commit(commit)
                number += 1
                continue
            await store.close(commit, prepared_at=prepared_at)
            return True
        except api.Changed:
            changed += 1
        except api.RunClosed:
            return True
        except api.Fenced:
            return False
    return False


async def _prepare(store: RedisStore, queue: str, claimed: api.Claimed, number: int) -> tuple[api.Commit, int | None]:
    """The terminal commit and the seq it was prepared at; or a part of what precedes it, where it is too much."""
    ends = OpenEnds()
    by, reason, cause = "system", None, None
    first = last = START
    async for entry in store.entries(claimed.run):
        event = entry.event()
        ends.observe(event)
        if event.type == "cancel.requested":
            by, reason, cause = event.data["by"], event.data.get("reason"), event.seq
        first, last = first if first != START else entry.cursor, entry.cursor
    is_part = len(ends.commands) + len(ends.requests) > _MOST_ENDS
    written = ends.first(_MOST_ENDS // 2) if is_part else ends
    entries = [*([] if is_part else await store.partial_messages(claimed.run)), *written.last_entries()]
    if not is_part:
        cancelled = d.RunCancelled(by=by, forced=True, abandoned=ends.abandoned(), reason=reason)
        entries.append(NewEntry("run.cancelled", SYSTEM, cancelled, cause=cause))
    states = await store.side_fields(claimed.run, [requests.state_field(r) for r in written.requests])
    commit = api.Commit(
        run=claimed.run,
        queue=queue,
        fence=claimed.fence,
        number=number,
        seen=first,
        now_ms=store.now_ms(),
        entries=entries,
        disarm=[] if is_part else list(ends.timers.values()),
        side=requests.withdrawals([requests.decode(text) for text in states.values()]),
        outcomes=written.outcomes(),
        applied=sum(c.counts for c in written.commands.values()),
    )
    return commit, None if is_part else last.seq
