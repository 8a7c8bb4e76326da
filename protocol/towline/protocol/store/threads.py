"""Threads: the runs of one subject that go one after the other.

Promises that a thread belongs to whoever starts runs in it: two subjects' threads of one name are two. Which of its
runs are unfinished, in order, stands in the `threads` of a partition, changed by the scripts that make, start and end
a run. Leaves what becomes of a new run of a busy thread to `starting`.
"""

from asyncio import Lock
from typing import Any, Final, cast
from weakref import WeakValueDictionary

import msgspec

from towline.protocol.ids import partition_of
from towline.protocol.store.base import ScriptCaller
from towline.protocol.store.connection import translated
from towline.protocol.store.keys import PartitionKeys, RunKeys, index_part

_turns: Final[WeakValueDictionary[tuple[str, str], Lock]] = WeakValueDictionary()


def thread_field(owner: str, thread: str) -> str:
    """The thread of one subject in the hash of its partition."""
    return f"{index_part(owner)}|{index_part(thread)}"


def turn(store: str, field: str) -> Lock:
    """Whoever makes a run in a thread of the store at an address takes turns in this process.

    The script compares what was read of the thread, so they would only make each other read again.
    """
    return _turns.setdefault((store, field), Lock())


class Threads(ScriptCaller):
    """Reads of threads, and the ids of their runs."""

    async def thread_runs(self, field: str) -> list[str]:
        """The unfinished runs of a thread that have come to their turn or wait for it, in order."""
        with translated():
            kept = await cast("Any", self._client.hget(PartitionKeys.of(partition_of(field)).threads, field))
        return [] if kept is None else msgspec.msgpack.decode(kept, type=list[str])

    async def reserve(self, key_run: str, run: str, *, instead: str = "") -> str | None:
        """Keeps `run` as the id for the key that alone would give `key_run`; the id that is kept.

        `instead`: an id that was kept before, which nobody has. None if the key stands for a run without a thread.
        """
        reply = await self._call(
            "reserve_id", [RunKeys.of(key_run).run], {"reserved": run, "instead": instead}, now_at=None, relief=False
        )
        match reply[0]:
            case b"OK":
                return run
            case b"DUPLICATE":
                return str(reply[1].decode())
            case _:
                return None
