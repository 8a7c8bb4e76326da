"""What the handlers of one gateway share: the store, the hub, payloads, keys, and the Run as a caller sees it.

Promises that access is decided before anything else is said about a run, from the store's facts as they are now.
Leaves HTTP and sockets to their modules, and what is allowed to `access`.
"""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

from towline.gateway import access, drain
from towline.gateway.admission import Admission
from towline.gateway.credentials import Credentials
from towline.gateway.feeds import Feeds
from towline.gateway.guard import Guard
from towline.gateway.hub import Hub, Watcher
from towline.gateway.logs import Logs
from towline.gateway.metrics import Metrics
from towline.gateway.pressure import Pressure, Sample
from towline.gateway.settings import Settings
from towline.protocol import times
from towline.protocol.actions import actions_of
from towline.protocol.codec import Entry, type_of
from towline.protocol.errors import problem
from towline.protocol.ids import is_run_id
from towline.protocol.projection import Caller, Heartbeat, project_run
from towline.protocol.store.api import Announced, Loaded, NoRun, RunFacts, RunGone, Standing, WorkflowInfo
from towline.protocol.store.payloads import open_payloads
from towline.protocol.store.redis import RedisStore
from towline.protocol.tokens import Credential, Verb
from towline.protocol.values import JsonObject

_REGISTRY_S: Final = 1.0
_security: Final = logging.getLogger("towline.security")


class Services:
    """One gateway's parts. `draining` is set when it is about to leave: waiting answers return at once."""

    def __init__(self, settings: Settings, store: RedisStore, hub: Hub) -> None:
        self.settings = settings
        self.store = store
        self.hub = hub
        self.logs = Logs(store)
        hub.on_torn(self.logs.clear)
        self.credentials = Credentials(settings, store)
        self.guard = Guard(store)
        self.feeds = Feeds(store)
        self.payloads = open_payloads(settings.payloads)
        self.draining = asyncio.Event()
        self.metrics = Metrics()
        self.pressure = Pressure(settings.limits.buffered_bytes)
        self.admission = Admission(
            settings.limits, self.pressure, is_leaving=self.draining.is_set, bucket=store.take_tokens
        )
        self.queue_turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        """By queue: who waits for work here takes turns at reading the store's hints."""
        self.sheds_text: Callable[[], bool] = lambda: self.admission.drops_deltas
        """Whether unfinished text is given up now, because something has to be."""
        self._leavers: set[Callable[[], None]] = set()
        self._announced: Sequence[Announced] = ()
        self._announced_at_s = float("-inf")

    @contextmanager
    def leaving(self, leave: Callable[[], None]) -> Iterator[None]:
        """While inside, `leave` is called when the gateway begins to drain; at once if it already does."""
        self._leavers.add(leave)
        if self.draining.is_set():
            leave()
        try:
            yield
        finally:
            self._leavers.discard(leave)

    @asynccontextmanager
    async def watching(self, run: str) -> AsyncIterator[Watcher]:
        """`Hub.watching`, whose waits end when the gateway begins to drain."""
        async with self.hub.watching(run) as watcher:
            with self.leaving(watcher.stop):
                yield watcher

    def drain(self) -> None:
        """The gateway is about to leave: whoever waits answers now."""
        self.draining.set()
        for leave in tuple(self._leavers):
            leave()

    def farewell_ms(self) -> int:
        """When a client that the gateway leaves may come back: drawn anew for each."""
        settings = self.settings
        count = self.admission.open_sockets
        return drain.retry_ms(count, at_least_ms=settings.drain_window_ms, reconnects_per_s=settings.reconnects_per_s)

    def receive_sample(self, sample: Sample) -> None:
        """What the gauge of pressure found."""
        self.metrics.sampled(sample, self.pressure.level)

    def is_origin_allowed(self, origin: str | None) -> bool:
        """Exact compare with the allow-list. No Origin means no browser: then the credential alone decides."""
        return origin is None or origin in (self.settings.origins or ())

    async def announced(self, *, fresh: bool = False) -> Sequence[Announced]:
        """What workers announced, at most a second old."""
        if fresh or time.monotonic() - self._announced_at_s > _REGISTRY_S:
            self._announced = await self.store.announced()
            self._announced_at_s = time.monotonic()
        return self._announced

    async def workflow_of(self, name: str, version: str) -> WorkflowInfo | None:
        """The workflow in the version that a run is pinned to, or None if no worker announced it."""
        for announced in await self.announced():
            if (announced.workflow.name, announced.workflow.version) == (name, version):
                return announced.workflow
        return None

    async def signals_of(self, name: str, version: str) -> Mapping[str, JsonObject] | None:
        """The signals that a workflow declares, with their schemas."""
        info = await self.workflow_of(name, version)
        return None if info is None else info.signals

    async def reach(
        self, credential: Credential, run: str, *, verb: Verb | None = "read", in_list: bool = False
    ) -> tuple[Caller, RunFacts]:
        """The caller on `run` and what the store knows of it.

        Raises `ProblemError`: `not_found`, and `bad_request` for no id; and `RunGone`, to who could read a run that was
        deleted. `in_list`: nobody asked for this run, it only might stand in a list: to leave it out is no denial.
        """
        caller, standing = await self.judge(credential, run, verb=verb, in_list=in_list)
        return caller, standing.facts

    async def judge(
        self, credential: Credential, run: str, *, verb: Verb | None = "read", in_list: bool = False
    ) -> tuple[Caller, Standing]:
        """As `reach`, with all that the verdict stands on."""
        if not is_run_id(run):
            raise problem("bad_request", "No run has such an id.", field="run", expected="a run id")
        try:
            standing = await self.store.standing(run, access.fields_for(credential))
        except NoRun:
            raise access.not_found() from None
        except RunGone as gone:
            _admit(credential, run, gone.owner, gone.fields, verb, in_list=in_list)
            raise
        return _admit(credential, run, standing.facts.owner, standing.fields, verb, in_list=in_list), standing

    async def project(self, loaded: Loaded, caller: Caller) -> dict[str, Any]:
        """The Run as `caller` reads it."""
        run = loaded.run
        signals = None if run.is_terminal else await self.signals_of(run.workflow, run.version)
        return project_run(
            run,
            caller,
            cursor=loaded.cursor,
            first_seq=loaded.facts.first_seq,
            worker=heartbeat_of(loaded.facts, self.store.now_ms()),
            actions=actions_of(run, caller, signals),
        )

    async def run_as(self, caller: Caller, run: str) -> dict[str, Any]:
        """The Run now, as `caller` reads it."""
        return await self.project(await self.store.load(run), caller)

    async def find_entries(self, run: str, types: frozenset[str]) -> list[Entry]:
        """All entries of these types, oldest first. Reads the whole log, decodes nothing else."""
        return [entry async for entry in self.store.entries(run) if type_of(entry.raw) in types]


def heartbeat_of(facts: RunFacts, now_ms: int) -> Heartbeat | None:
    """Who holds the run's lease, while it is held."""
    if not facts.holder or facts.sealed or facts.lease_until_ms <= now_ms:
        return None
    return Heartbeat(facts.holder, times.to_wire(facts.heartbeat_ms), facts.step or None)


def _admit(
    credential: Credential, run: str, starter: str, fields: Mapping[str, str], verb: Verb | None, *, in_list: bool
) -> Caller:
    """The caller that the credential is on the run. Raises `not_found`."""
    caller = access.caller_of(credential, run, starter, fields, verb=verb)
    if caller is None:
        if not in_list:
            _security.warning("denied: %r has no access to %s", credential.subject, run)
        raise access.not_found()
    return caller
