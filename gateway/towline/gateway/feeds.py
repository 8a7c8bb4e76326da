"""Feeds: hints about many runs, for the watch frames of sockets and for who waits for the inbox.

Promises at most one hint a second and run, only about runs that the listener may read at that moment, and that a
listener which takes nothing costs the newest hint of each run and no more. Hints may be lost with the connection to
the store: a socket is then told `watching` once more, upon which its client reads the list again. One reader and one
look at each changed run serve all listeners of the process; while nobody listens nothing is read. Leaves the lists
themselves to `runs` and `inbox`.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Literal, Protocol

from towline.gateway import access
from towline.gateway.filters import NAMES, Filter, read_filter
from towline.protocol import frames as f
from towline.protocol.errors import problem
from towline.protocol.projection import Caller, may_answer_wait
from towline.protocol.run_state import Run
from towline.protocol.store.api import Loaded, NoRun, RunGone, Standing, StoreError
from towline.protocol.store.redis import RedisStore
from towline.protocol.tokens import Credential

_log: Final = logging.getLogger("towline.gateway")

ROUND_S: Final = 1.0
HINTS: Final = 1_000
"""Most runs about which a listener that takes nothing is told later."""
_AT_ONCE: Final = 25
_PATIENCE_S: Final = 2.0
ASKING: Final = frozenset({"approval", "input", "budget", "human_gate"})


class Feed:
    """One feed of one peer. `credential` gives who listens now; None for nobody any more."""

    def __init__(self, feed: Literal["inbox", "runs"], wanted: Filter, credential: Callable[[], Credential | None]):
        self.feed = feed
        self.credential = credential
        self._wanted = wanted
        self._waited: set[str] = set()
        self._hints: dict[str, tuple[str, int, int]] = {}
        self._has_news = asyncio.Event()
        self._has_loss = False

    def hear(self, run: Run, caller: Caller) -> None:
        """`run` changed, and `caller` is who listens to it."""
        asks = [wait for wait in run.waiting_on if wait.kind in ASKING]
        if self.feed == "inbox":
            asks = [wait for wait in asks if may_answer_wait(_plain(wait), caller)]
            is_in = bool(asks) or (bool(run.blockers) and caller.role in ("owner", "operator"))
            if not is_in and run.id not in self._waited:
                return
            (self._waited.add if is_in else self._waited.discard)(run.id)
        elif not self._wanted.takes(run):
            return
        self._hints.pop(run.id, None)
        while len(self._hints) >= HINTS:
            del self._hints[next(iter(self._hints))]
        self._hints[run.id] = (run.status, run.last_seq, len(asks))
        self._has_news.set()

    def stop(self) -> None:
        """Ends the wait: the gateway is going away."""
        self._has_news.set()

    def lose(self) -> None:
        """Hints may have been lost."""
        self._has_loss = True
        self._has_news.set()

    def take_loss(self) -> bool:
        """Whether hints may have been lost since the last call."""
        has_loss, self._has_loss = self._has_loss, False
        return has_loss

    async def wait(self, timeout_s: float | None = None) -> bool:
        """Whether there may be something new within `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._has_news.wait()
        except TimeoutError:
            return False
        self._has_news.clear()
        return True

    def take(self) -> dict[str, tuple[str, int, int]]:
        """`{run: (status, last_seq, open requests)}` since the last call."""
        hints, self._hints = self._hints, {}
        return hints


class Feeds:
    """Works while `run` runs."""

    def __init__(self, store: RedisStore, *, round_s: float = ROUND_S) -> None:
        self._store = store
        self._round_s = round_s
        self._listeners: set[Feed] = set()
        self._changed: set[str] = set()
        self._has_listeners = asyncio.Event()
        self._has_changes = asyncio.Event()
        self._is_reading = asyncio.Event()

    @contextmanager
    def listening(self, listener: Feed) -> Iterator[None]:
        """While inside, `listener` hears of changes."""
        self._listeners.add(listener)
        self._has_listeners.set()
        try:
            yield
        finally:
            self._listeners.discard(listener)
            if not self._listeners:
                self._has_listeners.clear()

    async def is_heard(self) -> None:
        """Returns once whoever listens hears of every change; or after a while, when the store is away."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE_S):
                await self._is_reading.wait()

    async def run(self) -> None:
        """Reads changes, while anybody listens, and tells them."""
        while True:
            await self._has_listeners.wait()
            reader = asyncio.create_task(self._read())
            try:
                while self._listeners:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(self._round_s):
                            await self._has_changes.wait()
                    self._has_changes.clear()
                    changed, self._changed = self._changed, set()
                    if not changed:
                        continue
                    await self._tell(sorted(changed))
                    await asyncio.sleep(self._round_s)
            finally:
                self._is_reading.clear()
                reader.cancel()
                await asyncio.wait([reader])

    async def _read(self) -> None:
        async for run in self._store.changes():
            if run is None:
                for listener in tuple(self._listeners):
                    listener.lose()
                self._is_reading.set()
                continue
            self._changed.add(run)
            self._has_changes.set()

    async def _tell(self, runs: list[str]) -> None:
        who = {id(credential): credential for each in self._listeners if (credential := each.credential()) is not None}
        fields = sorted({field for credential in who.values() for field in access.fields_for(credential)})
        for start in range(0, len(runs), _AT_ONCE):
            looks = (self._look(run, fields) for run in runs[start : start + _AT_ONCE])
            for found in await asyncio.gather(*looks):
                if found is not None:
                    self._pass_on(*found)

    async def _look(self, run: str, fields: list[str]) -> tuple[Standing, Loaded] | None:
        try:
            standing = await self._store.standing(run, fields)
            return standing, await self._store.load(run)
        except (NoRun, RunGone):
            return None
        except StoreError as error:
            _log.warning("a change of %s is told later: %s", run, error)
            self._changed.add(run)
            self._has_changes.set()
            return None

    def _pass_on(self, standing: Standing, loaded: Loaded) -> None:
        for listener in tuple(self._listeners):
            credential = listener.credential()
            if credential is None:
                continue
            fields = {name: standing.fields[name] for name in access.fields_for(credential) if name in standing.fields}
            caller = access.caller_of(credential, loaded.run.id, standing.facts.owner, fields)
            if caller is not None:
                listener.hear(loaded.run, caller)


class Peer(Protocol):
    """The socket as a feed sees it."""

    async def send(self, frame: f.ServerFrame) -> None: ...


async def serve(
    feeds: Feeds, peer: Peer, frame: f.Watch, credential: Callable[[], Credential | None], *, now_ms: Callable[[], int]
) -> None:
    """Serves a watch frame until it is cancelled. Raises `ProblemError` for a filter that is none."""
    listener = Feed(frame.feed, _filter(frame), credential)
    with feeds.listening(listener):
        await feeds.is_heard()
        listener.lose()  # nothing was heard so far: whatever it missed, its client reads the list now
        while True:
            await listener.wait()
            if listener.take_loss():
                await peer.send(f.Watching(frame.id, f"{now_ms()}-0"))
            for run, (status, last_seq, asks) in listener.take().items():
                await peer.send(f.Changed(frame.id, run, status, last_seq, asks))


def _filter(frame: f.Watch) -> Filter:
    given: Any = frame.filter if frame.filter is not None else {}
    if not isinstance(given, dict) or not all(isinstance(value, str) for value in given.values()):
        raise problem("bad_request", "A filter is an object of texts.", field="filter", known=list(NAMES))
    if unknown := sorted(given.keys() - set(NAMES)):
        raise problem("bad_request", "A feed is not filtered by this.", field=f"filter.{unknown[0]}", known=list(NAMES))
    return read_filter(given.get)


def _plain(wait: Any) -> dict[str, Any]:
    return {"request": wait.request, "deciders": wait.deciders, "exclude": wait.exclude}
