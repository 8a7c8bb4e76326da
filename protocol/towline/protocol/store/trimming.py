"""Trimming a live log: what a run did before it last began anew (`run.continued`) need not stay in memory.

Promises that no reader crosses the missing part unawares (`first_seq` moves in the step that removes it), that the Run
folds as before, and that what outlives its entry, artifacts above all, stays readable. Nothing is trimmed while
something from before is still open: what ends a run must say what becomes of it, and reads it from the log.

Runs of a queue are refused: history replay still begins with `run.created`. That is to change with the first workflow
that writes `run.continued`; until then only a run whose holder keeps its own history (no queue) may be trimmed.
"""

from typing import Final

import msgspec

from towline.protocol.codec import Entry, type_of
from towline.protocol.cursor import Cursor
from towline.protocol.store import api
from towline.protocol.store.redis import RedisStore

KEPT: Final = ("id", "name", "media_type", "size", "sha256", "audience", "seq", "created_at")
"""What is known of an artifact whose event was trimmed, in its side field."""


async def trim(store: RedisStore, run: str, fence: api.Fence) -> int:
    """Removes what lies before the newest `run.continued`; the first seq that is left.

    Only the holder of the lease may. Raises `Changed` for a run that cannot be trimmed (now), `NoRun`, `RunClosed`,
    `Fenced`, `Diverged`.
    """
    loaded = await store.load(run)
    if loaded.facts.queue:
        raise api.Changed(f"{run}: history replay reads its log from the beginning")
    at: Cursor | None = None
    made: list[Entry] = []
    gone: list[Entry] = []
    async for entry in store.entries(run):
        kind = type_of(entry.raw)
        if kind == "run.continued" and entry.seq <= loaded.cursor.seq:
            at, gone = entry.cursor, list(made)
        elif kind == "artifact.created":
            made.append(entry)
    if at is None:
        return loaded.facts.first_seq
    if any(wait.seq < at.seq for wait in loaded.run.waiting_on):
        raise api.Changed(f"{run}: something from before seq {at.seq} is still open")
    side = dict(_kept(entry) for entry in gone)
    while True:
        first_seq, left = await store.trim_log(run, fence, at, loaded, side=side)
        if not left:
            return first_seq
        side = {}


def _kept(entry: Entry) -> tuple[str, str]:
    event = entry.event()
    known = {**event.data, "id": event.data["artifact"], "audience": event.audience, "seq": event.seq}
    known["created_at"] = event.ts
    return f"a|{known['id']}", msgspec.json.encode({name: known[name] for name in KEPT}).decode()
