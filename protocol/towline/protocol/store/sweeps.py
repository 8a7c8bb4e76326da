"""The calls of a sweep: what is due, and the scripts that check again before they act.

`sweep` decides what to do with them.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, cast

from towline.protocol.codec import NewEntry
from towline.protocol.limits import CHANGED_ATTEMPTS, LEASE_MS
from towline.protocol.store.base import ScriptCaller
from towline.protocol.store.connection import translated
from towline.protocol.store.keys import GROUP, PARTITIONS, PartitionKeys, RunKeys
from towline.protocol.store.wire import pack_entries

_TOO_FAR_MS: Final = 2 * LEASE_MS


class Sweeps(ScriptCaller):
    """What a sweeper calls."""

    async def fire_timer(self, run: str, queue: str, member: str, entries: Sequence[NewEntry]) -> str:
        """Fires one due timer; the word the script answered."""
        keys = RunKeys.of(run)
        part = keys.partition
        reply = await self._call(
            "fire_timer",
            [keys.log, keys.private, keys.run, part.commands(queue), part.leases, part.timers, part.meta],
            {
                "run": run,
                "channel": keys.channel,
                "member": member,
                "entries": pack_entries(entries),
                "claim_ms": LEASE_MS,
            },
            now_at=3,
        )
        return str(reply[0].decode())

    async def start_due(self, run: str, queue: str, come: Callable[[str], NewEntry]) -> str:
        """Lets a run start, or join its thread, if its time has come; the word the script answered.

        `come` makes the event that says so, of the run that is before it in its thread ('' for none).
        """
        keys = RunKeys.of(run)
        part = keys.partition
        behind = ""
        for _ in range(CHANGED_ATTEMPTS):
            reply = await self._call(
                "start_run",
                [
                    keys.log,
                    keys.private,
                    keys.run,
                    part.commands(queue),
                    part.leases,
                    part.timers,
                    part.threads,
                    part.meta,
                ],
                {
                    "run": run,
                    "channel": keys.channel,
                    "entries": pack_entries([come(behind)]),
                    "claim_ms": LEASE_MS,
                    "behind": behind,
                },
                now_at=3,
            )
            if reply[0] != b"CHANGED":
                return str(reply[0].decode())
            behind = reply[1].decode()
        return "CHANGED"

    async def rehint(self, run: str, queue: str) -> str:
        """Hints again at an overdue run; the word the script answered."""
        keys = RunKeys.of(run)
        part = keys.partition
        reply = await self._call(
            "rehint_run",
            [keys.run, part.commands(queue), part.leases, part.meta],
            {"run": run, "group": GROUP, "claim_ms": LEASE_MS},
            now_at=1,
        )
        return str(reply[0].decode())

    async def take_sweep(self, partition: int, sweeper: str, turn_ms: int) -> bool:
        """Whether `sweeper` has the turn to sweep `partition`."""
        reply = await self._call(
            "sweep_partition",
            [PartitionKeys.of(partition).meta],
            {"sweeper": sweeper, "turn_ms": turn_ms},
            now_at=1,
        )
        return bool(reply[0] == b"OK")

    async def due(self, limit: int = 100) -> Sequence[tuple[int, Sequence[str], Sequence[str]]]:
        """(partition, overdue runs, due timer members) of each partition that has any, by store time.

        Runs whose time lies too far ahead count as overdue: the clock jumped back since it was written.
        """
        now = await self.sync_clock()
        with translated():
            async with self._client.pipeline(transaction=False) as pipe:
                for partition in PARTITIONS:
                    keys = PartitionKeys.of(partition)
                    pipe.zrangebyscore(keys.leases, "-inf", now, 0, limit)
                    pipe.zrangebyscore(keys.timers, "-inf", now, 0, limit)
                    pipe.zrangebyscore(keys.leases, now + _TOO_FAR_MS, "(+inf", 0, limit)
                rows = await pipe.execute()
        found = []
        for partition in PARTITIONS:
            leases, timers, ahead = rows[3 * partition : 3 * partition + 3]
            if leases or timers or ahead:
                found.append((partition, [m.decode() for m in leases + ahead], [m.decode() for m in timers]))
        return found

    async def drop_due(self, run: str, member: str | None) -> None:
        """Removes a lease or timer that names a run which does not exist."""
        keys = RunKeys.of(run).partition
        with translated():
            if member is None:
                await cast("Any", self._client.zrem(keys.leases, run))
            else:
                await cast("Any", self._client.zrem(keys.timers, member))
