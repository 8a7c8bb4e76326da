"""Deleting a run for good: privacy, not housekeeping.

Promises that after `purge_run` returned nothing of the run can be read from the store or from payload storage, that its
id is never another run's, and that wherever a process dies in between, a repeat (or `finish_purges`, which gateways
call now and then) brings it to the same end. The order is

    what a sealed run cannot get again   uploads it took, unfinished text, timers; the run is still there
    one script                           log, private parts, side, run and listings go, a tombstone stays
    its bytes                            nothing names them any more; `done` remembers that they are due

Leaves who may delete to the gateway. The store's append-only file loses the bytes when it is rewritten next.
"""

import logging
from typing import Final

from towline.protocol.errors import problem
from towline.protocol.grants import effective
from towline.protocol.limits import CHANGED_ATTEMPTS
from towline.protocol.store import api
from towline.protocol.store.given import UPLOAD_PREFIX
from towline.protocol.store.granting import listings_of
from towline.protocol.store.keys import EVERYONE, listed_for
from towline.protocol.store.payloads import Payloads
from towline.protocol.store.redis import RedisStore

_log: Final = logging.getLogger("towline.purge")
_AT_ONCE: Final = 500


async def purge_run(store: RedisStore, payloads: Payloads, run: str, *, by: str) -> None:
    """Deletes a run that has ended; of one that is deleted, what is left of it.

    Raises `ProblemError` (`conflict` for a run that has not ended) and `NoRun`.
    """
    for _ in range(CHANGED_ATTEMPTS):
        try:
            await _bury(store, payloads, run, by)
        except api.RunGone:
            break
        except api.Changed:
            continue
        break
    else:
        raise problem("overloaded", "Access to the run changes too fast; send it again.", retry_after_ms=200)
    await _remove_bytes(store, payloads, run)


async def finish_purges(store: RedisStore, payloads: Payloads) -> int:
    """Removes what is left of deleted runs whose deleter died; how many there were."""
    found = await store.purged()
    for run in found:
        await _remove_bytes(store, payloads, run)
    return len(found)


async def collect_late(store: RedisStore, payloads: Payloads) -> int:
    """Removes what came for deleted runs after their end: a holder that slept may hand in bytes; how many runs.

    Asks for every run that has bytes, so it is for now and then. What this store knows nothing of is left alone: it may
    be another store's.
    """
    runs, count = await payloads.runs(), 0
    for start in range(0, len(runs), _AT_ONCE):
        some = runs[start : start + _AT_ONCE]
        known = await store.heads(some)
        for run in some:
            if run not in known and await store.is_purged(run):
                await payloads.of(run).remove_all()
                count += 1
    return count


async def _bury(store: RedisStore, payloads: Payloads, run: str, by: str) -> None:
    standing = await store.standing(run, [])
    if not standing.facts.sealed:
        raise problem("conflict", "The run has not ended; cancel it, then delete it.", field="status")
    for field in await store.side_matching(run, UPLOAD_PREFIX):
        ref = field.removeprefix(UPLOAD_PREFIX)
        await payloads.remove_upload(ref)
        await store.forget_upload(ref)
    await store.drop_ended(run)
    # Grants, who was named by a request, shares: who could read the run is told that it is gone.
    grants = await store.side_matching(run, "g|")
    kept = {**grants, **await store.side_matching(run, "d|"), **await store.side_matching(run, "s|")}
    starter = standing.facts.owner
    unlisted = {EVERYONE, listed_for(starter)}
    for entry, role in effective(starter, grants).items():
        unlisted.update(listings_of(entry, role, starter))
    await store.bury_run(run, by=by, version=standing.version, kept=kept, unlisted=sorted(unlisted))
    _log.info("%s was deleted", run)


async def _remove_bytes(store: RedisStore, payloads: Payloads, run: str) -> None:
    await payloads.of(run).remove_all()
    await store.forget_purged(run)
