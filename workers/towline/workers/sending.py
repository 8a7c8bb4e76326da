"""From what a holder decided to write to what the store takes: request states, published values, inbox rows.

Promises that each question comes with the state that decisions rely on and stands in the inbox of those it asks, and
that `before_starts` counts the same lists that are sent. Pure. Leaves sending, and what follows, to `held_run`.
"""

from collections.abc import Sequence

import msgspec

from towline.protocol import event_data as d
from towline.protocol import inbox, queries, requests, times
from towline.protocol.codec import NewEntry
from towline.protocol.store import api
from towline.workers.commits import Commit


def request_of(
    commit: Commit,
    entries: Sequence[NewEntry],
    *,
    run: str,
    queue: str,
    owner: str,
    fence: api.Fence,
    number: int,
    withdrawn: Sequence[requests.State] = (),
) -> api.Commit:
    """`commit` as the store takes it. `entries`: its entries, with what was too large out of the way already.

    `withdrawn`: the states of the requests that it withdraws.
    """
    refs = {entry.data.request: entry.ref for entry in entries if isinstance(entry.data, d.ApprovalRequested)}
    side: dict[str, str] = {}
    for name, made in commit.published.items():
        value = queries.PublishedValue(msgspec.Raw(made.value), made.audience, times.to_wire(commit.now_ms))
        side[queries.field_of(name)] = queries.encode(value)
    sides = [len(side)]
    waits: dict[str, list[str]] = {}
    for opened in commit.opened:
        side.update(requests.side_fields(requests.opened(opened, refs.get(opened.request))))
        sides.append(len(side))
        waits[opened.request] = inbox.whom(opened.deciders, owner)
    for entry in entries:
        if isinstance(entry.data, d.RunBlocked):
            waits.update(inbox.blocked(entry.data.blocker.id, owner))
    side.update(requests.withdrawals(withdrawn))
    before = commit.before_starts
    return api.Commit(
        run=run,
        queue=queue,
        fence=fence,
        number=number,
        seen=commit.seen,
        now_ms=commit.now_ms,
        entries=entries,
        arm=commit.arm,
        disarm=commit.disarm,
        side=side,
        outcomes=commit.outcomes,
        applied=commit.applied,
        recorded=commit.recorded,
        inbox_add=waits,
        inbox_remove=commit.withdrawn,
        before_starts=None
        if before is None
        else api.Before(
            entries=before.entries,
            arm=before.arm,
            disarm=before.disarm,
            side=sides[before.opened],
            outcomes=before.outcomes,
            inbox_add=before.opened,
            applied=before.applied,
        ),
    )
