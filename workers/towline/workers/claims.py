"""From a hint to a lease: who may take a run, with which code.

Promises at most one lease per hint, and that a hint which this worker cannot use reaches one that can. A run on
which five holders died is claimed only to be parked: no machine starts for it. Leaves holding it to `held_run`.
"""

import asyncio
import logging
import secrets
import time
from typing import Final

from msgspec import Struct

from towline.protocol.cursor import START
from towline.protocol.store import api
from towline.protocol.store.interface import Store
from towline.protocol.store.parking import park, poison
from towline.workers.registry import Registry, Workflow
from towline.workers.settings import WorkerSettings

_log: Final = logging.getLogger("towline.worker")


class Claim(Struct, frozen=True):
    """A lease with the code that runs under it. `ends_s`: when it may end (monotonic clock).

    `queue` is the run's own, which a request may have chosen other than the workflow's.
    """

    claimed: api.Claimed
    definition: Workflow
    queue: str
    ends_s: float


class Claims:
    """See the module."""

    def __init__(self, store: Store, registry: Registry, settings: WorkerSettings) -> None:
        self._store = store
        self._registry = registry
        self._settings = settings

    async def take(self, queue: str, hint: api.Hint) -> Claim | None:
        """The lease that `hint` points to, or None. Raises `StoreUnavailable`."""
        definition = self._registry.workflow_for(hint.workflow, hint.version)
        if definition is None:
            await self._store.return_hint(queue, hint)
            return None
        claim = await self._claim(hint.run, definition, queue)
        if isinstance(claim, api.NotClaimed) and claim.why == "version" and claim.version:
            pinned = self._registry.workflow_for(hint.workflow, claim.version)
            if pinned is None:
                await self._store.return_hint(queue, api.Hint(hint.run, hint.workflow, claim.version, hint.returned))
                return None
            claim = await self._claim(hint.run, pinned, queue)
        return await self._usable(claim) if isinstance(claim, Claim) else None

    async def take_again(self, old: Claim, *, patience_s: float) -> Claim | None:
        """A new lease of a run whose old one is void but may not have ended yet."""
        deadline_s = time.monotonic() + patience_s
        while True:
            claim = await self._claim(old.claimed.run, old.definition, old.queue)
            if isinstance(claim, Claim):
                return await self._usable(claim)
            pause_s = claim.retry_ms / 1000
            if claim.why != "held" or time.monotonic() + pause_s > deadline_s:
                return None
            await asyncio.sleep(pause_s + 0.01)

    async def _usable(self, claim: Claim) -> Claim | None:
        if not claim.claimed.is_poison:
            return claim
        await self._park_poison(claim)
        return None

    async def _claim(self, run: str, definition: Workflow, queue: str) -> Claim | api.NotClaimed:
        sent_s = time.monotonic()
        claimed = await self._store.claim(
            run,
            nonce=secrets.token_hex(8),
            holder=self._settings.name,
            version=definition.version,
            ttl_ms=self._settings.lease_ms,
        )
        if isinstance(claimed, api.NotClaimed):
            return claimed
        return Claim(claimed, definition, queue, sent_s + self._settings.lease_ms / 1000)

    async def _park_poison(self, claim: Claim) -> None:
        """Its holders died again and again, and nobody knows of what: no code of it starts before a person says so."""
        run = claim.claimed.run
        page = await self._store.read_log(run, START, limit=1)
        blocker = poison(claim.claimed.lapsed, claim.claimed.crashes, self._settings.name, self._store.now_ms())
        _log.error("%s parks as poison after %d crashes", run, claim.claimed.crashes)
        await park(self._store, claim.claimed, claim.queue, blocker, seen=page.entries[0].cursor)
