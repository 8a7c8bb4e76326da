"""One run held under a lease: its history is read and replayed, its commits are written, its attempts run.

The shell around `holding`, which decides everything. This module does what it is told and reports back:

    read history ─▸ replay ─▸ ┌▸ holding.next ─▸ Commit ─▸ store ─▸ start attempts ─┐
                              └──────────── wait: outcome, input, due time ◂────────┘

What the store may answer to a commit: written; `Unseen` (read the inputs, ask again); `Fenced` or closed (stop,
write nothing more); `Diverged` (the store is older than we are: the machine is dropped and the run claimed anew).
`StoreUnavailable` is repeated with the same number until the store answers or the lease may be over.

Promises that nothing is written after the lease is lost, that workflow code runs in a thread (a blocked one
blocks no other run), and that the machine is always dropped. Leaves renewing to `renewal`, claiming to `claims`.
"""

import asyncio
import functools
import logging
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from typing import Any, Final, Literal, ParamSpec, TypeVar

import msgspec

from towline.protocol import event_data as d
from towline.protocol import requests
from towline.protocol.codec import Entry
from towline.protocol.cursor import START
from towline.protocol.limits import STORE_PAGE_EVENTS
from towline.protocol.store import api
from towline.protocol.store.interface import Store
from towline.protocol.store.parking import park
from towline.protocol.store.payloads import Payloads
from towline.protocol.store.spilling import is_spilled, spill, unspill
from towline.workers.activities import AttemptContext, run_attempt
from towline.workers.commits import Attempt, Commit, Outcome
from towline.workers.holding import Holding
from towline.workers.parking import nondeterminism
from towline.workers.registry import Workflow
from towline.workers.renewal import HeldLease
from towline.workers.replay import Divergence, Replay
from towline.workers.scrub import Scrubber
from towline.workers.sending import request_of
from towline.workers.settings import WorkerSettings
from towline.workers.streaming import Publisher
from towline.workers.uploads import RunUploads

_log: Final = logging.getLogger("towline.worker")
P = ParamSpec("P")
T = TypeVar("T")

SNAPSHOT_EVERY: Final = 64
OVERDUE_POLL_S: Final = 0.1
Left = Literal["waiting", "blocked", "paused", "hand_over", "close", "lost", "diverged"]
"""How a holding ended: with one of its own endings, or because the lease is gone, or the store is older."""


class LeaseLost(Exception):
    """The lease is another's by now, or may be: stop, write nothing more."""


class HeldRun:
    """See the module. `run` holds the run to its end; the other methods are called from the worker's loop."""

    def __init__(
        self,
        store: Store,
        payloads: Payloads,
        definition: Workflow,
        claimed: api.Claimed,
        settings: WorkerSettings,
        *,
        queue: str,
        code_threads: Executor,
        activity_threads: Executor,
        ends_s: float,
        nudge_timers: Callable[[], None],
        scrubber: Scrubber,
    ) -> None:
        self.lease = HeldLease(
            claimed.run, claimed.fence, ends_s=ends_s, on_renewal=self._on_renewal, on_lost=self.lost
        )
        self._store = store
        self._payloads = payloads.of(claimed.run)
        self._definition = definition
        self._claimed = claimed
        self._settings = settings
        self._scrubber = scrubber
        self._queue = queue
        self._code_threads = code_threads
        self._activity_threads = activity_threads
        self._nudge_timers = nudge_timers
        self._number = 1
        self._read = START
        self._input_read = 0
        self._input_known = claimed.input_seq
        self._snapshot_seq = 0
        self._wake = asyncio.Event()
        self._is_leaving = False
        self._outcomes: list[Outcome] = []
        self._attempts: dict[str, asyncio.Task[None]] = {}
        self._heartbeats: dict[str, Any] = {}
        self._publisher = Publisher(store, claimed.run, claimed.fence, scrubber=scrubber)
        self._thinking: asyncio.Future[Any] | None = None
        self._is_discarding = False

    @property
    def run_id(self) -> str:
        return self._claimed.run

    def wake(self) -> None:
        """Something may have happened to the run: look."""
        self._wake.set()

    def notice_input(self, seq: int) -> None:
        """An input stands at `seq` of the log."""
        if seq > self._input_known:
            self._input_known = seq
            self._wake.set()

    def leave(self) -> None:
        """Hand the run over as soon as its running attempts have ended; start nothing new."""
        self._is_leaving = True
        self._wake.set()

    def lost(self) -> None:
        """The lease is over, or may be: cancel what runs, write nothing more."""
        self.lease.is_lost = self._is_discarding = True
        for task in self._attempts.values():
            task.cancel()
        self._wake.set()

    async def cancel_attempts(self) -> None:
        """Stop what runs, without an outcome."""
        self._is_discarding = True
        tasks = list(self._attempts.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=1.0)

    async def run(self) -> Left:
        """Hold the run until it is let go. Raises only what is a fault of ours."""
        replay = Replay(self._definition, self.run_id)
        try:
            try:
                await self._replay_history(replay)
            except Divergence as divergence:
                blocker = nondeterminism(
                    divergence, self._definition.version, self._settings.name, self._store.now_ms()
                )
                _log.error("%s parks: %s", self.run_id, divergence)
                await park(self._store, self._claimed, self._queue, blocker, seen=replay.seen)
                return "blocked"
            book = replay.ledger.book
            if any(book.started()) or any(book.retry_waits()):
                self._publisher.restore(await self._patiently(lambda: self._store.unfinished(self.run_id)))
            holding = Holding(
                replay,
                worker=self._settings.name,
                now_ms=self._store.now_ms(),
                lapsed=self._claimed.lapsed,
                linger_ms=self._settings.linger_ms,
            )
            holding.messages = self._publisher.messages
            return await self._hold(holding)
        except (LeaseLost, api.Fenced, api.RunClosed, api.NoRun, api.RunGone) as reason:
            _log.info("%s is not ours any more: %r", self.run_id, reason)
            return "lost"
        except api.Diverged:
            _log.warning("%s: the store is older than this worker knew it; replaying anew", self.run_id)
            return "diverged"
        finally:
            self._is_discarding = True
            for task in self._attempts.values():
                task.cancel()
            await self._publisher.aclose()
            await self._drop(replay)

    # --- history

    async def _replay_history(self, replay: Replay) -> None:
        while True:
            entries = await self._read_page()
            await self._in_thread(replay.receive_all, entries)
            if len(entries) < STORE_PAGE_EVENTS:
                break
        await self._in_thread(replay.finish)

    async def _read_page(self) -> list[Entry]:
        """The next entries of the log. Raises `Diverged` when the log is not the one that was read before."""
        page = await self._patiently(
            lambda: self._store.read_log(self.run_id, self._read, limit=STORE_PAGE_EVENTS, private=True)
        )
        if page.recovery != "ok":
            raise api.Diverged(self.run_id)
        if page.entries:
            self._read = page.entries[-1].cursor
        # The store counts run.created as the first input.
        inputs = [entry.seq for entry in page.entries if entry.meta.is_input or entry.seq == 1]
        self._input_read = max([self._input_read, *inputs])
        self._input_known = max(self._input_known, self._input_read)
        return [
            await self._patiently(functools.partial(unspill, entry, self._payloads)) if is_spilled(entry) else entry
            for entry in page.entries
        ]

    async def _read_inputs(self, holding: Holding) -> None:
        while True:
            entries = await self._read_page()
            holding.receive_inputs([entry for entry in entries if entry.meta.is_input])
            if len(entries) < STORE_PAGE_EVENTS:
                break
        if self._input_known <= self._read.seq:
            self._input_known = self._input_read  # all that was announced is read

    # --- holding

    async def _hold(self, holding: Holding) -> Left:
        while holding.ended is None:
            self._wake.clear()
            self._check_lease()
            if self._input_known > self._input_read:
                await self._read_inputs(holding)
            if self._is_leaving and self._attempts:
                await self._wake.wait()  # what runs may still end; nothing else begins
                continue
            outcomes, self._outcomes = self._outcomes, []
            for outcome in outcomes:
                holding.receive_outcome(outcome)
            action = await self._in_thread(holding.next, self._store.now_ms(), is_leaving=self._is_leaving)
            self._cancel_unwanted(holding)
            if isinstance(action, Commit):
                await self._write(holding, action)
            elif action.reads_inputs:
                await self._read_inputs(holding)
            else:
                await self._wait(holding, action.until_ms)
        return holding.ended

    async def _wait(self, holding: Holding, until_ms: int | None) -> None:
        """Wait for an outcome, an input or the time; a timer that is due is the sweep's to fire: nudge it."""
        timeout_s: float | None = None
        if until_ms is not None:
            timeout_s = (until_ms - self._store.now_ms()) / 1000
            if timeout_s <= 0:
                if any(timer.due_ms <= self._store.now_ms() for timer in holding.machine.timers.values()):
                    self._nudge_timers()
                timeout_s = OVERDUE_POLL_S
        try:
            await asyncio.wait_for(self._wake.wait(), timeout_s)
        except TimeoutError:
            return

    async def _write(self, holding: Holding, commit: Commit) -> None:
        for artifact in commit.artifacts:
            await self._patiently(functools.partial(self._payloads.put, artifact.content))
        request = await self._request(self._scrubber.commit(commit), holding.machine.facts.owner)
        send: Callable[[], Awaitable[api.Committed]]
        match commit.ending:
            case None:
                send = lambda: self._store.commit(request)  # noqa: E731
            case "close":
                send = lambda: self._store.close(request)  # noqa: E731
            case ("waiting" | "blocked" | "paused" | "hand_over") as to:
                send = lambda: self._store.release(request, to)  # noqa: E731
        try:
            written = await self._patiently(send)
        except (api.Unseen, api.Changed):  # changed: the pause was taken back
            holding.unseen()
            await self._read_inputs(holding)
            return
        self._number += 1
        ended = [entry.data.step for entry in commit.entries if isinstance(entry.data, d.ToolFinished | d.ToolFailed)]
        await self._publisher.forget(ended, everything=commit.ending == "close")
        self._follow_own_writing(written, len(commit.entries) if written.held is None else written.held)
        for attempt in holding.committed(written.first_seq, held=written.held):
            self._start(attempt)
        if written.held is not None:
            await self._read_inputs(holding)

    def _follow_own_writing(self, written: api.Committed, entries: int) -> None:
        """Move over our own entries, unless somebody else's stand before them."""
        self._input_known = max(self._input_known, written.input_seq)
        if written.first_seq == self._read.seq + 1 and entries:
            self._read = written.cursor

    async def _request(self, commit: Commit, owner: str) -> api.Commit:
        spills = [functools.partial(spill, entry, self._payloads) for entry in commit.entries]
        entries = [await self._patiently(spilled) for spilled in spills]
        fields = [requests.state_field(request) for request in commit.withdrawn]
        found = await self._patiently(lambda: self._store.side_fields(self.run_id, fields)) if fields else {}
        request = request_of(
            commit,
            entries,
            run=self.run_id,
            queue=self._queue,
            owner=owner,
            fence=self._claimed.fence,
            number=self._number,
            withdrawn=[requests.decode(text) for text in found.values()],
        )
        return msgspec.structs.replace(request, snapshot=await self._snapshot(commit))

    async def _snapshot(self, commit: Commit) -> Any:
        """A fold of what stands in the log, now and then, so that readers need not fold from the start."""
        behind = self._read.seq - self._snapshot_seq
        if behind < (SNAPSHOT_EVERY if commit.ending is None else SNAPSHOT_EVERY // 4):
            return None
        loaded = await self._patiently(lambda: self._store.load(self.run_id))
        self._snapshot_seq = loaded.run.last_seq
        return loaded.run

    # --- attempts

    def _start(self, attempt: Attempt) -> None:
        fence = self._claimed.fence
        context = AttemptContext(
            attempt,
            run=self.run_id,
            fencing_token=f"{fence.epoch}-{fence.nonce}",
            last_heartbeat=self._heartbeats.get(attempt.step),
            fetch_upload=RunUploads(self._store, self._payloads, self.run_id).fetch,
            messages=self._publisher.messages,
        )
        self.lease.step = attempt.start.activity.title
        task = asyncio.get_running_loop().create_task(self._attempt(attempt, context))
        self._attempts[attempt.step] = task

    async def _attempt(self, attempt: Attempt, context: AttemptContext) -> None:
        try:
            outcome = await run_attempt(attempt, context, self._activity_threads)
            self._heartbeats[attempt.step] = context.last_heartbeat
            await self._publisher.settle()
            if not self._is_discarding:
                self._outcomes.append(self._scrubber.outcome(outcome))
        finally:
            self._attempts.pop(attempt.step, None)
            self._wake.set()

    def _cancel_unwanted(self, holding: Holding) -> None:
        for step in holding.unwanted():
            task = self._attempts.get(step)
            if task is not None and not task.cancelling():
                task.cancel()

    # --- inside

    def _on_renewal(self, renewal: api.Renewal) -> None:
        self.notice_input(renewal.input_seq)

    def _check_lease(self) -> None:
        if self.lease.is_lost or time.monotonic() > self.lease.ends_s:
            raise LeaseLost(self.run_id)

    async def _patiently(self, call: Callable[[], Awaitable[T]]) -> T:
        """The same call until the store answers, as long as the lease may be ours."""
        pause_s = 0.05
        while True:
            self._check_lease()
            try:
                return await call()
            except api.StoreUnavailable as error:
                _log.warning("%s: %s", self.run_id, error)
                await asyncio.sleep(pause_s)
                pause_s = min(1.0, pause_s * 2)

    async def _in_thread(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run workflow code in a thread, since it may compute for long. Nothing else touches the machine meanwhile."""
        self.lease.busy_since_s = time.monotonic()
        call = functools.partial(work, *args, **kwargs)
        self._thinking = asyncio.get_running_loop().run_in_executor(self._code_threads, call)
        try:
            return await asyncio.shield(self._thinking)
        finally:
            self.lease.busy_since_s = None

    async def _drop(self, replay: Replay) -> None:
        """Let the code go; unless it still computes, then its thread keeps it, and cannot be stopped."""
        if self._thinking is not None and not self._thinking.done():
            await asyncio.wait([self._thinking], timeout=1.0)
            if not self._thinking.done():
                _log.error("the code of %s does not come to rest; its thread is given up", self.run_id)
                return
        await asyncio.get_running_loop().run_in_executor(self._code_threads, replay.drop)
