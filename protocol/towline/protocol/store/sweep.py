"""The sweep: what makes sure that nobody is forgotten.

Promises that every overdue run is hinted again, every due timer fires once, every run with a time to start starts
then, and every run past its cancel deadline is closed, by whichever process sweeps first. Due members are read
plainly; one script per run checks again. Gateways and workers each run one `Sweeper`; a partition is swept by one
process at a time.
"""

import asyncio
import logging
from collections.abc import Awaitable
from typing import Final
from urllib.parse import unquote

from towline.protocol import event_data as d
from towline.protocol.codec import NewEntry
from towline.protocol.limits import SWEEP_MS
from towline.protocol.run import START_TIMER
from towline.protocol.store import api
from towline.protocol.store.closing import force_close
from towline.protocol.store.keys import PARTITIONS
from towline.protocol.store.openends import SYSTEM
from towline.protocol.store.redis import RedisStore

_log: Final = logging.getLogger("towline.sweep")
_TURN_MS: Final = 2 * SWEEP_MS
_TRIM_EVERY: Final = 60
"""Passes between two trims of the delivered hints."""


def has_come(behind: str) -> NewEntry:
    """The entry that says that the time of a queued run has come; `behind`: whom it waits for now, or ''."""
    return NewEntry("timer.fired", SYSTEM, d.TimerFired(timer=START_TIMER, behind=behind or None))


class Sweeper:
    """Sweeps all partitions of a store on behalf of the process `name`."""

    def __init__(self, store: RedisStore, name: str) -> None:
        self._store = store
        self._name = name
        self._passes = 0

    async def run_forever(self) -> None:
        """One pass a second until cancelled; an unreachable store is waited for."""
        while True:
            try:
                await self.run_once()
            except api.StoreError as error:
                _log.warning("sweep put off: %s", error)
            except Exception:  # whatever it is: a sweep that stops would forget runs
                _log.exception("sweep failed")
            await asyncio.sleep(SWEEP_MS / 1000)

    async def run_once(self) -> int:
        """One pass over what is due now; how many members were handled."""
        handled = 0
        mine = [due for due in await self._store.due() if await self._store.take_sweep(due[0], self._name, _TURN_MS)]
        # Deadlines of all partitions first: many overdue runs of one must not delay the cancel of another.
        for _, _, timers in mine:
            for member in timers:
                handled += await self._guarded(self._timer(member), member)
        for _, runs, _ in mine:
            for run in runs:
                handled += await self._guarded(self._overdue(run), run)
        self._passes += 1
        if self._passes % _TRIM_EVERY == 0:
            for each in PARTITIONS:
                await self._store.trim_hints(each)
        return handled

    async def _guarded(self, work: Awaitable[None], what: str) -> int:
        """One member's trouble must not keep the sweep from the others."""
        try:
            await work
        except api.StoreUnavailable:
            raise
        except api.StoreError as error:
            _log.error("sweep of %s failed: %s", what, error)
            return 0
        except Exception:  # an entry that cannot be read or written is that run's trouble alone
            _log.exception("sweep of %s failed", what)
            return 0
        return 1

    async def _overdue(self, run: str) -> None:
        try:
            facts = await self._store.facts(run)
        except (api.NoRun, api.RunGone):
            await self._store.drop_due(run, None)
            return
        if await self._store.rehint(run, facts.queue) == "CHANGED":  # finish what a dead closer began
            await force_close(self._store, run, holder=self._name)

    async def _timer(self, member: str) -> None:
        kind, quoted, run = member.split("|", 2)
        try:
            facts = await self._store.facts(run)
        except (api.NoRun, api.RunGone):
            await self._store.drop_due(run, member)
            return
        if kind == "cancel":
            if facts.sealed:
                await self._store.drop_due(run, member)
            else:
                await force_close(self._store, run, holder=self._name)
            return
        if kind == "start":
            await self._store.start_due(run, facts.queue, has_come)
            return
        fired = NewEntry("timer.fired", SYSTEM, d.TimerFired(timer=unquote(quoted)), is_input=True)
        await self._store.fire_timer(run, facts.queue, member, [fired])
