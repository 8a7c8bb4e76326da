"""The call that removes the beginning of a live log. `trimming` says when, and what must outlive it."""

from collections.abc import Mapping
from typing import Final

from towline.protocol.cursor import Cursor
from towline.protocol.store import api
from towline.protocol.store.base import ScriptCaller, refusal
from towline.protocol.store.keys import RunKeys
from towline.protocol.store.reading import encode_snapshot

_PARTS: Final = 1000


class Trims(ScriptCaller):
    """What `trimming` calls."""

    async def trim_log(
        self, run: str, fence: api.Fence, at: Cursor, loaded: api.Loaded, *, side: Mapping[str, str]
    ) -> tuple[int, int]:
        """Removes entries before `at`; the first seq that is left, and how many private parts another call takes.

        Raises `NoRun`, `RunClosed`, `Fenced`, `Diverged`, `Changed`.
        """
        keys = RunKeys.of(run)
        reply = await self._call(
            "trim_log",
            [keys.log, keys.private, keys.run, keys.side, keys.partition.meta],
            {
                "run": run,
                "epoch": fence.epoch,
                "nonce": fence.nonce,
                "at": str(at),
                "head": str(loaded.cursor),
                "snapshot": encode_snapshot(loaded.run),
                "snapshot_seq": loaded.cursor.seq,
                "side": [list(pair) for pair in side.items()],
                "most": _PARTS,
            },
            now_at=3,
        )
        if reply[0] != b"OK":
            raise refusal(reply, run)
        return int(reply[1]), int(reply[2])
