"""The writes of a lease holder: commit, release, close.

Promises that a repeat of the same number answers the same, and that an ending is refused while an input stands
unseen. Read `lua/lib/fenced.lua` for the order of the checks.
"""

from typing import Any, Literal

from towline.protocol.cursor import Cursor
from towline.protocol.limits import LEASE_MS
from towline.protocol.store import api
from towline.protocol.store.base import ScriptCaller, inbox_rows, receipt_field, refusal
from towline.protocol.store.keys import RunKeys, timer_member
from towline.protocol.store.reading import encode_snapshot
from towline.protocol.store.wire import pack_entries

RETAIN_MS = 3_600_000
"""How long a sealed run stays before it may be archived."""


class Commits(ScriptCaller):
    """The writes of whoever holds a lease."""

    def _commit_request(self, c: api.Commit, keys: RunKeys) -> dict[str, Any]:
        stamp = {"epoch": c.fence.epoch, "commit": c.number, "seen": str(c.seen), "now_ms": c.now_ms}
        side = [list(pair) for pair in c.side.items()]
        told = [[f"o|{receipt_field(o.subject, o.command_id)}", o.receipt] for o in c.outcomes]
        before = c.before_starts
        starts_from: dict[str, int] | bool = False
        if before is None:
            side += told
        else:
            first, first_told = before.side, before.outcomes
            side = side[:first] + told[:first_told] + side[first:] + told[first_told:]
            starts_from = {
                "entries": before.entries,
                "arm": before.arm,
                "disarm": before.disarm,
                "side": first + first_told,
                "index_add": before.inbox_add,
                "index_remove": before.inbox_remove,
                "applied": before.applied,
            }
        return {
            "run": c.run,
            "channel": keys.channel,
            "epoch": c.fence.epoch,
            "nonce": c.fence.nonce,
            "commit": c.number,
            "seen": str(c.seen),
            "entries": pack_entries(c.entries, **stamp),
            "arm": [[timer_member(t.kind, t.id, c.run), t.due_ms] for t in c.arm],
            "disarm": [timer_member(t.kind, t.id, c.run) for t in c.disarm],
            "side": side,
            "index_add": inbox_rows(c.inbox_add),
            "index_remove": list(c.inbox_remove),
            "starts_from": starts_from,
            "applied": c.applied,
            "recorded": c.recorded,
            "snapshot": "" if c.snapshot is None else encode_snapshot(c.snapshot),
            "snapshot_seq": 0 if c.snapshot is None else c.snapshot.last_seq,
        }

    async def commit(self, commit: api.Commit) -> api.Committed:
        """See `interface.Store.commit`."""
        keys = RunKeys.of(commit.run)
        part = keys.partition
        reply = await self._call(
            "commit",
            [keys.log, keys.private, keys.run, keys.side, part.timers, part.meta, part.index],
            self._commit_request(commit, keys),
            now_at=4,
        )
        return _committed(reply, commit.run)

    async def release(
        self, commit: api.Commit, to: Literal["waiting", "blocked", "paused", "hand_over"]
    ) -> api.Committed:
        """See `interface.Store.release`."""
        keys = RunKeys.of(commit.run)
        part = keys.partition
        reply = await self._call(
            "release_run",
            [
                keys.log, keys.private, keys.run, keys.side, part.timers, part.meta, part.leases,
                part.commands(commit.queue), part.index,
            ],
            {**self._commit_request(commit, keys), "to": to, "claim_ms": LEASE_MS},
            now_at=4,
        )  # fmt: skip
        return _committed(reply, commit.run)

    async def close(self, commit: api.Commit, *, prepared_at: int | None = None) -> api.Committed:
        """See `interface.Store.close`."""
        keys = RunKeys.of(commit.run)
        part = keys.partition
        heir, queue = "", commit.queue
        while True:
            reply = await self._call(
                "close_run",
                [
                    keys.log, keys.private, keys.run, keys.side, part.timers, part.meta, part.leases, part.done,
                    part.index, part.threads, RunKeys.of(heir or commit.run).run, part.commands(queue),
                ],
                {
                    **self._commit_request(commit, keys),
                    "forced": prepared_at is not None,
                    "prepared_at": prepared_at or 0,
                    "retain_ms": RETAIN_MS,
                    "heir": heir,
                    "claim_ms": LEASE_MS,
                },
                now_at=4,
            )  # fmt: skip
            if reply[0] != b"CHANGED" or reply[1] != b"thread":
                return _committed(reply, commit.run)
            # Seldom more than once: each time again, another run of the thread came or went meanwhile.
            heir = reply[2].decode()
            queue = (await self.facts(heir)).queue if heir else commit.queue


def _committed(reply: list[Any], run: str) -> api.Committed:
    if reply[0] not in (b"OK", b"HELD"):
        raise refusal(reply, run)
    held = int(reply[6]) if reply[0] == b"HELD" else None
    cursor = Cursor(int(reply[2]), int(reply[3]))
    return api.Committed(int(reply[1]), cursor, int(reply[4]), int(reply[5] or 0), held)
