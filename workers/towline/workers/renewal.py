"""Renewal: the leases of a worker are kept alive by a thread of its own, as long as the worker makes progress.

Promises that a busy or briefly blocked event loop costs no lease, and that one which has not moved for
`max_loop_stall_s` keeps none: the thread stops renewing, and others take over. Each renewal brings back what the
run's holder must know even if every notice was lost: the newest input and the cancel deadline. A lease that may
have ended by now (counted from when its last renewal was *sent*) is reported lost before another could hold it.

The thread has a connection and an event loop of its own. Code that holds the interpreter lock for a whole lease
stops this thread too; such work belongs in a process. Leaves acting on what comes back to `held_run`.
"""

import asyncio
import functools
import logging
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

from towline.protocol.store import api

_log: Final = logging.getLogger("towline.worker")

WARN_STALL_S: Final = 1.0
MARGIN_S: Final = 0.5
"""How long before the end of its lease a run counts as lost: cancelling takes time too."""


class Renewer(Protocol):
    """What the thread needs of a store."""

    async def renew(self, leases: Sequence[api.Lease], *, ttl_ms: int) -> Sequence[api.Renewal]: ...

    async def aclose(self) -> None: ...


class HeldLease:
    """One lease as the thread sees it.

    `step` is shown to people. `busy_since_s` is set while the run's code computes (monotonic clock): a run whose
    own code does not come to rest is not renewed for ever either.
    """

    def __init__(
        self,
        run: str,
        fence: api.Fence,
        *,
        ends_s: float,
        on_renewal: Callable[[api.Renewal], None],
        on_lost: Callable[[], None],
    ) -> None:
        self.run = run
        self.fence = fence
        self.ends_s = ends_s
        self.step = ""
        self.busy_since_s: float | None = None
        self.on_renewal = on_renewal
        self.on_lost = on_lost
        self.is_lost = False


class Renewal:
    """The thread. `start` it from the event loop that it watches; `stop` ends it without giving leases back."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[Renewer]],
        *,
        lease_ms: int,
        renew_ms: int,
        max_loop_stall_s: float,
    ) -> None:
        self._connect = connect
        self._lease_ms = lease_ms
        self._renew_s = renew_ms / 1000
        self._max_stall_s = max_loop_stall_s
        self._leases: dict[str, HeldLease] = {}
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="towline-renewal", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watched_thread = 0
        self._beat_s = time.monotonic()
        self._beating: asyncio.TimerHandle | None = None
        self._warned_for_s = 0.0

    def start(self) -> None:
        """Begin. Call on the event loop whose progress counts."""
        self._loop = asyncio.get_running_loop()
        self._watched_thread = threading.get_ident()
        self._beat()
        self._thread.start()

    async def stop(self) -> None:
        """End the thread; leases lapse unless they were given back."""
        self._stopping.set()
        if self._beating is not None:
            self._beating.cancel()
        await asyncio.to_thread(self._thread.join, 2.0)

    def hold(self, lease: HeldLease) -> None:
        """Renew this lease from now on."""
        with self._lock:
            self._leases[lease.run] = lease

    def let_go(self, lease: HeldLease) -> None:
        """Stop renewing this lease."""
        with self._lock:
            if self._leases.get(lease.run) is lease:
                del self._leases[lease.run]

    def _beat(self) -> None:
        assert self._loop is not None
        self._beat_s = time.monotonic()
        self._beating = self._loop.call_later(0.2, self._beat)

    # --- in the thread

    def _run(self) -> None:
        asyncio.run(self._renew_for_ever())

    async def _renew_for_ever(self) -> None:
        store: Renewer | None = None
        next_s = time.monotonic() + self._renew_s
        try:
            while not self._stopping.is_set():
                now_s = time.monotonic()
                self._watch_stall(now_s)
                self._report_lost(now_s)
                if now_s >= next_s:
                    next_s = now_s + self._renew_s
                    try:
                        store = store or await self._connect()
                        await self._renew_all(store)
                    except api.StoreError as error:
                        _log.warning("leases not renewed: %s", error)
                        next_s = time.monotonic() + min(0.25, self._renew_s)
                    except Exception:  # whatever it is, the watch over lost leases must go on
                        _log.exception("leases not renewed")
                await asyncio.sleep(min(0.1, self._renew_s / 4))
        finally:
            if store is not None:
                await store.aclose()

    async def _renew_all(self, store: Renewer) -> None:
        now_s = time.monotonic()
        if now_s - self._beat_s > self._max_stall_s:
            return
        with self._lock:
            held = {
                lease.run: lease
                for lease in self._leases.values()
                if not lease.is_lost and (lease.busy_since_s is None or now_s - lease.busy_since_s <= self._max_stall_s)
            }
        if not held:
            return
        sent_s = time.monotonic()
        renewals = await store.renew(
            [api.Lease(lease.run, lease.fence, lease.step) for lease in held.values()], ttl_ms=self._lease_ms
        )
        for renewal in renewals:
            lease = held[renewal.run]
            if renewal.lost is None:
                lease.ends_s = sent_s + self._lease_ms / 1000
                self._tell(functools.partial(lease.on_renewal, renewal))
            else:
                self._lose(lease)

    def _report_lost(self, now_s: float) -> None:
        with self._lock:
            over = [lease for lease in self._leases.values() if now_s > lease.ends_s - MARGIN_S and not lease.is_lost]
        for lease in over:
            self._lose(lease)

    def _lose(self, lease: HeldLease) -> None:
        lease.is_lost = True
        self._tell(lease.on_lost)

    def _tell(self, call: Callable[[], None]) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:  # the worker's loop is closed: nobody is left to tell
            self._stopping.set()

    def _watch_stall(self, now_s: float) -> None:
        """Name the code that keeps the worker's loop from moving, once a stall."""
        stalled_s = now_s - self._beat_s
        if stalled_s < WARN_STALL_S or self._warned_for_s == self._beat_s:
            return
        self._warned_for_s = self._beat_s
        frame = sys._current_frames().get(self._watched_thread)
        where = "".join(traceback.format_stack(frame, limit=4)) if frame is not None else "unknown"
        _log.warning("the worker's event loop stands still since %.1f s; it runs\n%s", stalled_s, where)
