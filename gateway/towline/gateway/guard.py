"""The guard: who watches a run is looked at again as soon as access to that run changes.

Promises that a grant which was taken away, or a share that was revoked, by whichever gateway, ends the subscriptions
that stood on it within a second and no others: the version of each watched run's access is compared twice a second,
with or without notices. A watcher that cannot be judged because the store is away is judged again. Leaves what a
credential may do to `access`, and how a subscription ends to `watching`.
"""

import asyncio
import logging
from typing import Final, Protocol

from towline.protocol.store.api import StoreError
from towline.protocol.store.redis import RedisStore

_log: Final = logging.getLogger("towline.gateway")

EVERY_S: Final = 0.4
_BATCH: Final = 500
UNJUDGED: Final = "?"
"""The `access_version` of a watcher that must be judged in any case."""


class Guarded(Protocol):
    """A watcher. `access_version` is that of its run when it was last judged."""

    access_version: str

    async def judge_again(self) -> None:
        """Finds out whether it may still read, and ends itself if not. Raises `StoreError` if nobody can tell."""
        ...


class Guard:
    """Works while `run` runs."""

    def __init__(self, store: RedisStore, *, every_s: float = EVERY_S) -> None:
        self._store = store
        self._every_s = every_s
        self._watchers: dict[str, set[Guarded]] = {}

    def add(self, run: str, watcher: Guarded) -> None:
        """From here on `watcher` is judged again when access to `run` changes."""
        self._watchers.setdefault(run, set()).add(watcher)

    def remove(self, run: str, watcher: Guarded) -> None:
        """It is not any more."""
        watchers = self._watchers[run]
        watchers.discard(watcher)
        if not watchers:
            del self._watchers[run]

    async def run(self) -> None:
        """Compares versions until cancelled."""
        while True:
            await asyncio.sleep(self._every_s)
            try:
                await self.look()
            except StoreError as error:
                _log.warning("access not compared: %s", error)

    async def look(self) -> None:
        """Judges again whoever watches a run whose access changed. Raises `StoreError`."""
        runs = list(self._watchers)
        for start in range(0, len(runs), _BATCH):
            versions = await self._store.access_versions(runs[start : start + _BATCH])
            changed = [
                watcher
                for run, version in versions.items()
                for watcher in self._watchers.get(run, ())
                if watcher.access_version != version
            ]
            for verdict in await asyncio.gather(*(w.judge_again() for w in changed), return_exceptions=True):
                if isinstance(verdict, BaseException):
                    _log.warning("a watcher could not be judged, it will be again: %s", type(verdict).__name__)
