"""What a holder without an engine needs of the store beyond commits: where its lease stands, and single announcements.

Promises that an announcement stands in the log once for its name, whatever is repeated, and only under a lease that
is still the run's. Leaves numbered commits to `commits`.
"""

from collections.abc import Sequence
from typing import Any, cast

from msgspec import Struct

from towline.protocol.codec import NewEntry
from towline.protocol.cursor import Cursor
from towline.protocol.store import api
from towline.protocol.store.base import ScriptCaller, refusal
from towline.protocol.store.connection import translated
from towline.protocol.store.keys import RunKeys
from towline.protocol.store.wire import pack_entries


class LeaseFacts(Struct, frozen=True):
    """The newest claim of a run. `number` is its newest commit; `is_given_back`: it ended by release or close."""

    fence: api.Fence
    number: int
    is_given_back: bool
    sealed: bool


class Announcement(Struct, frozen=True):
    """The outcome of `append_once`: where it stands, or (`stored`) what stood under its name before."""

    cursor: Cursor | None = None
    stored: str | None = None


class Holders(ScriptCaller):
    """The calls of whoever holds leases for workers over HTTP."""

    async def lease_facts(self, run: str) -> LeaseFacts | None:
        """Where the lease of `run` stands; None for a run that is not there."""
        with translated():
            epoch, nonce, number, until, sealed = await cast(
                "Any",
                self._client.hmget(RunKeys.of(run).run, ["epoch", "nonce", "commit_no", "lease_until", "sealed"]),
            )
        if epoch is None:
            return None
        fence = api.Fence(int(epoch), (nonce or b"").decode())
        return LeaseFacts(fence, int(number or 0), until in (None, b"0"), sealed == b"1")

    async def append_once(
        self, run: str, fence: api.Fence, *, field: str, value: str, entries: Sequence[NewEntry]
    ) -> Announcement:
        """Appends `entries` unless `field` of the side hash stands, and sets it to `value`.

        Raises `NoRun`, `RunClosed`, `Fenced`.
        """
        keys = RunKeys.of(run)
        reply = await self._call(
            "append_once",
            [keys.log, keys.private, keys.run, keys.side, keys.partition.meta],
            {
                "run": run,
                "channel": keys.channel,
                "epoch": fence.epoch,
                "nonce": fence.nonce,
                "field": field,
                "value": value,
                "entries": pack_entries(entries, epoch=fence.epoch),
            },
            now_at=4,
        )
        match reply[0]:
            case b"OK":
                return Announcement(Cursor(int(reply[2]), int(reply[3])))
            case b"DUPLICATE":
                return Announcement(stored=reply[1].decode())
            case _:
                raise refusal(reply, run)
