"""The calls that delete a run: what goes with it, the script that leaves a tombstone, and what is still to be removed.

Promises nothing of their order: `purging` says what is done when.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, cast

from towline.protocol.store.base import ScriptCaller, refusal
from towline.protocol.store.connection import translated
from towline.protocol.store.keys import PARTITIONS, PartitionKeys, RunKeys

_BATCH: Final = 100


class Purges(ScriptCaller):
    """What `purging` calls."""

    async def bury_run(
        self, run: str, *, by: str, version: str, kept: Mapping[str, str], unlisted: Iterable[str]
    ) -> None:
        """Removes all of a run that has ended but who could read it. Raises `NoRun`, `RunGone`, `Changed`.

        `kept`: fields of its side hash that stay. `unlisted`: prefixes of the index under which it stood.
        """
        keys = RunKeys.of(run)
        part = keys.partition
        reply = await self._call(
            "purge_run",
            [keys.log, keys.private, keys.run, keys.side, part.leases, part.done, part.index, part.meta],
            {
                "run": run,
                "by": by,
                "relies": version,
                "kept": [list(pair) for pair in kept.items()],
                "unlisted": list(unlisted),
            },
            now_at=1,
        )
        if reply[0] != b"OK":
            raise refusal(reply, run)

    async def drop_ended(self, run: str) -> None:
        """Removes the unfinished text and the timers of a run that has ended: it gets none anew."""
        keys = RunKeys.of(run)
        with translated():
            await cast("Any", self._client.unlink(keys.text))
            # No character of a run id means anything in a pattern.
            found = self._client.zscan_iter(keys.partition.timers, match=f"*|{run}", count=1000)
            members = [member async for member, _ in found]
            if members:
                await cast("Any", self._client.zrem(keys.partition.timers, *members))

    async def purged(self) -> Sequence[str]:
        """Runs that were deleted and may still have bytes outside the store; some of them, if there are many."""
        with translated():
            async with self._client.pipeline(transaction=False) as pipe:
                for partition in PARTITIONS:
                    pipe.zrangebyscore(PartitionKeys.of(partition).done, "-inf", "(0", 0, _BATCH)
                rows = await pipe.execute()
        return [member.decode() for row in rows for member in row]

    async def is_purged(self, run: str) -> bool:
        """Whether the run was deleted."""
        with translated():
            return bool(await cast("Any", self._client.hexists(RunKeys.of(run).run, "gone")))

    async def forget_purged(self, run: str) -> None:
        """Nothing of the deleted run is left outside the store."""
        with translated():
            await cast("Any", self._client.zrem(RunKeys.of(run).partition.done, run))
