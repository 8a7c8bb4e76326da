"""Parking: a run that must not go on by itself is given back as blocked, with the reason and what would help.

Promises that a parked run keeps its log as it is and holds no lease. Leaves leaving the state to `retry` and
`cancel`, and the reasons that only an engine can find to the workers.
"""

from towline.protocol import event_data as d
from towline.protocol import inbox, times
from towline.protocol.codec import NewEntry
from towline.protocol.cursor import Cursor
from towline.protocol.events import Actor
from towline.protocol.limits import POISON_CRASHES
from towline.protocol.store import api
from towline.protocol.store.interface import Store
from towline.protocol.values import Blocker, BlockerKind


def blocker(kind: BlockerKind, where: str, title: str, worker: str, now_ms: int, **detail: object) -> Blocker:
    """A blocker that stops the run, found by `worker`."""
    return Blocker(
        id=f"{kind}:{where}",
        kind=kind,
        title=title,
        since=times.to_wire(now_ms),
        by=worker,
        stops=True,
        remedies=[{"type": "retry"}, {"type": "cancel"}],
        detail=detail,
    )


def poison(lapsed: str, crashes: int, worker: str, now_ms: int) -> Blocker:
    """One holder after another died on this run."""
    return blocker(
        "poison",
        "crashes",
        f"Its worker died {POISON_CRASHES} times in a row; the last was {lapsed or 'unknown'}",
        worker,
        now_ms,
        crashes=crashes,
    )


async def park(store: Store, claimed: api.Claimed, queue: str, blocker: Blocker, *, seen: Cursor) -> None:
    """Give a freshly claimed run back as blocked; nothing runs until somebody does something about it."""
    entry = NewEntry("run.blocked", Actor("worker", blocker.by), d.RunBlocked(blocker=blocker))
    commit = api.Commit(
        run=claimed.run,
        queue=queue,
        fence=claimed.fence,
        number=1,
        seen=seen,
        now_ms=store.now_ms(),
        entries=[entry],
        inbox_add=inbox.blocked(blocker.id, (await store.facts(claimed.run)).owner),
    )
    await store.release(commit, "blocked")
