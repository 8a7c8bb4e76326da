"""One worker process: it announces what it can run, reads hints, holds runs, sweeps, and drains.

    per queue: wait for a free slot ─▸ read hints ─▸ claim ─▸ hold (`held_run`) ─▸ slot free again

Read this first, then `held_run` (one run), `holding` (what it writes, without I/O), `replay` and `machine` (why
that is enough). Promises that a worker holds at most `slots` runs, that one run's trouble is no other's, that it
reconnects for ever, and that SIGTERM gives every lease back. A worker that dies gives nothing back: its leases
lapse and the sweep of any process finds them.
"""

import asyncio
import contextlib
import logging
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from towline.protocol.store import api
from towline.protocol.store.crash_points import connect
from towline.protocol.store.durability import enforce_at
from towline.protocol.store.payloads import open_payloads
from towline.protocol.store.redis import RedisStore
from towline.protocol.store.sweep import Sweeper
from towline.workers.claims import Claim, Claims
from towline.workers.held_run import HeldRun
from towline.workers.registry import Registry, Workflow, registry, schema_of
from towline.workers.renewal import Renewal, Renewer
from towline.workers.scrub import for_worker
from towline.workers.settings import WorkerSettings

_log: Final = logging.getLogger("towline.worker")

ANNOUNCE_EVERY_S: Final = 10.0
HINT_BLOCK_MS: Final = 1_000
ACTIVITY_THREADS: Final = 64
RETRY_S: Final = 0.5


class Worker:
    """See the module. `run` works until `drain` was called and every lease is back."""

    def __init__(
        self,
        settings: WorkerSettings,
        store: RedisStore,
        *,
        definitions: Registry = registry,
        connect_renewal: Callable[[], Awaitable[Renewer]] | None = None,
    ) -> None:
        self.settings = settings
        self.held: dict[str, HeldRun] = {}
        """The runs that this worker holds now."""
        self._store = store
        self._definitions = definitions
        self._payloads = open_payloads(settings.payloads)
        self._scrubber = for_worker(settings.scrub, settings.payloads)
        self._claims = Claims(store, definitions, settings)
        self._renewal = Renewal(
            connect_renewal or (lambda: RedisStore.connect(settings.store_url)),
            lease_ms=settings.lease_ms,
            renew_ms=settings.renew_ms,
            max_loop_stall_s=settings.max_loop_stall_s,
        )
        self._sweeper = Sweeper(store, settings.name)
        self._code_threads = ThreadPoolExecutor(settings.slots, thread_name_prefix="towline-code")
        self._activity_threads = ThreadPoolExecutor(ACTIVITY_THREADS, thread_name_prefix="towline-activity")
        self._tasks: set[asyncio.Task[None]] = set()
        self._busy = 0
        self._slot_freed = asyncio.Event()
        self._draining = asyncio.Event()
        self._nudge = asyncio.Event()
        self._notices = store.notices()

    def drain(self) -> None:
        """Stop taking runs, hand over those that are held, then end `run`."""
        self._draining.set()

    async def run(self) -> None:
        """Work. Raises what is a fault of ours; the store being away is waited for."""
        self._renewal.start()
        loops: set[asyncio.Task[None]] = set()
        try:
            await self._announce_once()
            queues = sorted({workflow.queue for workflow in self._definitions.workflows.values()})
            works = [self._announce(), self._sweep(), self._sweep_nudged(), self._follow(), self._draining.wait()]
            start = asyncio.get_running_loop().create_task
            consumers = {start(self._consume(queue)) for queue in queues}
            loops = {start(_for_nothing(work)) for work in works} | consumers
            done, _ = await asyncio.wait(loops, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()  # a loop that ends by itself ended by an error, unless we drain
            await self._hand_over()
            await asyncio.wait(consumers, timeout=2 * HINT_BLOCK_MS / 1000)
        finally:
            await self._renewal.stop()
            await end_tasks({*loops, *self._tasks})
            await self._notices.aclose()
            self._code_threads.shutdown(wait=False, cancel_futures=True)
            self._activity_threads.shutdown(wait=False, cancel_futures=True)

    # --- hints and slots

    async def _consume(self, queue: str) -> None:
        while not self._draining.is_set():
            free = self.settings.slots - self._busy
            if free <= 0:
                self._slot_freed.clear()
                await self._slot_freed.wait()
                continue
            try:
                hints = await self._store.read_hints(queue, count=free, block_ms=HINT_BLOCK_MS)
            except api.StoreError as error:
                _log.warning("no hints: %s", error)
                await asyncio.sleep(RETRY_S)
                continue
            for hint in hints:
                if self._draining.is_set():
                    await self._give_hint_back(queue, hint)
                else:
                    self._spawn(self._take(queue, hint))

    async def _give_hint_back(self, queue: str, hint: api.Hint) -> None:
        with contextlib.suppress(api.StoreError):  # the sweep hints again
            await self._store.return_hint(queue, hint)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._busy += 1
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._busy -= 1
        self._tasks.discard(task)
        self._slot_freed.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a run was given up by this worker; its lease will lapse", exc_info=error)

    async def _take(self, queue: str, hint: api.Hint) -> None:
        held = self.held.get(hint.run)
        try:
            if held is not None:
                if await self._is_ours(held):
                    held.wake()
                else:
                    await self._give_hint_back(queue, hint)
                return
            claim = await self._claims.take(queue, hint)
        except api.StoreError as error:
            _log.warning("%s not claimed: %s", hint.run, error)  # the sweep hints again
            return
        while claim is not None:
            claim = await self._hold(claim)

    async def _is_ours(self, held: HeldRun) -> bool:
        """Whether we still hold what we think we hold: a hint may mean that the lease has lapsed."""
        facts = await self._store.facts(held.run_id)
        if facts.epoch == held.lease.fence.epoch and facts.lease_until_ms > self._store.now_ms():
            return True
        held.lost()
        return False

    async def _hold(self, claim: Claim) -> Claim | None:
        """Hold a run until it is let go. A new claim if it must be held anew at once."""
        held = HeldRun(
            self._store,
            self._payloads,
            claim.definition,
            claim.claimed,
            self.settings,
            queue=claim.queue,
            code_threads=self._code_threads,
            activity_threads=self._activity_threads,
            ends_s=claim.ends_s,
            nudge_timers=self._nudge.set,
            scrubber=self._scrubber,
        )
        run = held.run_id
        self.held[run] = held
        if self._draining.is_set():
            held.leave()
        self._renewal.hold(held.lease)
        with contextlib.suppress(api.StoreError):
            await self._notices.follow(run)
        try:
            left = await held.run()
        finally:
            self._renewal.let_go(held.lease)
            if self.held.get(run) is held:
                del self.held[run]
                with contextlib.suppress(api.StoreError):
                    await self._notices.unfollow(run)
        if left != "diverged":
            return None
        patience_s = 2 * self.settings.lease_ms / 1000
        return await self._claims.take_again(claim, patience_s=patience_s)

    # --- side loops

    async def _announce_once(self) -> None:
        infos = [_info(workflow) for workflow in self._definitions.workflows.values()]
        while True:
            try:
                await self._store.announce(self.settings.name, infos)
                return
            except api.StoreError as error:
                _log.warning("not announced: %s", error)
                await asyncio.sleep(RETRY_S)

    async def _announce(self) -> None:
        while True:
            await asyncio.sleep(ANNOUNCE_EVERY_S)
            await self._announce_once()

    async def _sweep(self) -> None:
        await self._sweeper.run_forever()

    async def _sweep_nudged(self) -> None:
        """A timer of a held run is due: do not wait for the next turn of the sweep."""
        while True:
            await self._nudge.wait()
            try:
                await self._sweeper.run_once()
            except api.StoreError as error:
                _log.warning("sweep put off: %s", error)
            await asyncio.sleep(0.05)
            self._nudge.clear()

    async def _follow(self) -> None:
        """Inputs by the fast path; renewal brings the truth of them every two seconds."""
        async for notice in self._notices:
            if notice is None:
                for held in list(self.held.values()):
                    held.wake()
                continue
            followed = self.held.get(notice.run)
            inputs = [entry.seq for entry in notice.entries if entry.meta.is_input]
            if followed is not None and inputs:
                followed.notice_input(inputs[-1])

    async def _hand_over(self) -> None:
        """Give every lease back: at once where nothing runs, else when it ended or its time is up."""
        for held in list(self.held.values()):
            held.leave()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self.settings.drain_s)
        for held in list(self.held.values()):
            await held.cancel_attempts()
            held.leave()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self.settings.lease_ms / 1000)


async def _for_nothing(work: Awaitable[Any]) -> None:
    await work


async def end_tasks(tasks: Iterable["asyncio.Task[None]"]) -> None:
    """Cancel tasks until they have ended. Once is not enough: redis-py loses a cancel while it connects."""
    left = {task for task in tasks if not task.done()}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=0.2)


def _info(workflow: Workflow) -> api.WorkflowInfo:
    return api.WorkflowInfo(
        name=workflow.name,
        version=workflow.version,
        queue=workflow.queue,
        input_schema=workflow.input_schema(),
        signals={name: schema_of(payload) for name, payload in workflow.signals.items()},
        on_busy=workflow.on_busy,
    )


async def serve(settings: WorkerSettings, definitions: Registry = registry) -> None:
    """Connect, work until SIGTERM or SIGINT, hand over. Raises `NotDurable`, `StoreUnavailable`."""
    if not definitions.workflows:
        raise ValueError("no workflow is registered; name the module or file that defines one")
    await enforce_at(settings.store_url, development=settings.development)
    store = await connect(settings.store_url)
    try:
        worker = Worker(settings, store, definitions=definitions, connect_renewal=lambda: connect(settings.store_url))
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, worker.drain)
        names = ", ".join(f"{name} {version}" for name, version in sorted(definitions.workflows))
        _log.info("worker %s runs %s", settings.name, names)
        await worker.run()
    finally:
        await store.aclose()


def run_worker(settings: WorkerSettings, definitions: Registry = registry) -> None:
    """The worker process: returns when it was told to stop and has handed its runs over."""
    asyncio.run(serve(settings, definitions))
    for thread in threading.enumerate():
        if thread.name.startswith("towline-"):
            thread.join(timeout=0.5)
            if thread.is_alive():
                # Code that never returns would keep the interpreter from ending; its run is handed over already.
                logging.shutdown()
                os._exit(0)
