"""The hub: one reader of notices for the whole process, and the watch over the heads of all followed runs.

Promises a follower that it hears of an entry: at once when the notice arrives, and within about a second when it is
lost. Notices are only a fast path. Each second, after each reconnect and soon after a run is first followed, the
heads of followed runs are compared in batches; a follower that is behind reads the log. An event is never lost here,
because nothing here is the truth. After a lost connection the store may hold another history: no notice is handed on
until the head of its run was compared, so that nobody joins new entries to old ones. Leaves to followers what they do;
they must not block.

Notices are gathered as long as the reader has more without waiting, that is, from one read of the connection: what
came of one run is handed on as one batch. So batches grow by themselves when the gateway falls behind, and an idle
one waits for nothing.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final, Protocol

from towline.gateway.prepared import Batch, Text, batches
from towline.protocol.codec import Entry
from towline.protocol.cursor import START, Cursor
from towline.protocol.store.api import StoreError
from towline.protocol.store.redis import RedisStore

_log: Final = logging.getLogger("towline.gateway")

_BATCH: Final = 500
_FRESH_S: Final = 0.05
"""How soon a run that is first followed is compared: its channel may have been subscribed a moment too late."""


class Follower(Protocol):
    """What the hub calls, on the event loop, for one run."""

    def receive_batch(self, batch: Batch) -> None:
        """These were just appended."""
        ...

    def receive_head(self, head: Cursor) -> None:
        """The log's head was here a moment ago; `0` when the run is not there any more."""
        ...


class TextFollower(Protocol):
    """What the hub calls for the unfinished text of one run."""

    def receive_text(self, text: Text) -> None:
        """This was just published."""
        ...

    def receive_loss(self) -> None:
        """Some may have been lost."""
        ...


class Hub:
    """Runs while `run` runs. `follow` and `unfollow` may be called at any time."""

    def __init__(self, store: RedisStore, *, sweep_s: float = 1.0) -> None:
        self._store = store
        self._sweep_s = sweep_s
        self._reader = store.notices()
        self._followers: dict[str, set[Follower]] = {}
        self._resting: dict[str, set[Follower]] = {}
        self._text_followers: dict[str, set[TextFollower]] = {}
        self._heads: dict[str, Cursor] = {}
        self._fresh: set[str] = set()
        self._gathered: dict[str, list[Entry]] = {}
        self._gathered_at_s = 0.0
        self.on_handed_on: Callable[[float], None] = lambda after_s: None
        """Told, for each hand-over, how many seconds after the oldest of its notices it was done."""
        self._was_torn = False
        self._tears = 0
        self._doubted: dict[str, Cursor] = {}
        """Runs whose head was not compared since the connection was lost, and the newest entry noticed of each."""
        self._on_torn: list[Callable[[], None]] = []
        self._wake = asyncio.Event()

    @property
    def followed(self) -> int:
        """How many runs are followed."""
        return len(self._followers)

    def head_of(self, run: str) -> Cursor | None:
        """The newest head that was heard of a followed run."""
        return self._heads.get(run)

    def on_torn(self, forget: Callable[[], None]) -> None:
        """Has `forget` called whenever the connection to the store was lost and is there again."""
        self._on_torn.append(forget)

    async def follow(self, run: str, follower: Follower) -> None:
        """From here on `follower` hears of `run`. Read the log after this, never before."""
        followers = self._followers.setdefault(run, set())
        followers.add(follower)
        if len(followers) == 1 and run not in self._resting:
            await self._reader.follow(run)
            self._fresh.add(run)
            self._wake.set()

    async def unfollow(self, run: str, follower: Follower) -> None:
        """`follower` hears no more."""
        followers = self._followers.get(run)
        if followers is None:
            return
        followers.discard(follower)
        resting = self._resting.get(run, set())
        resting.discard(follower)
        if not resting:
            self._resting.pop(run, None)
        if not followers and not resting:
            del self._followers[run]
            self._heads.pop(run, None)
            self._doubted.pop(run, None)
            await self._reader.unfollow(run)

    def rest(self, run: str, follower: Follower) -> None:
        """`follower`, which follows `run`, cannot use what it hears and costs nothing until it is `back`."""
        followers = self._followers.get(run, set())
        if follower in followers:
            followers.discard(follower)
            self._resting.setdefault(run, set()).add(follower)

    def back(self, run: str, follower: Follower) -> None:
        """`follower` hears of `run` again; first, where its head is."""
        resting = self._resting.get(run, set())
        if follower not in resting:
            return
        resting.discard(follower)
        if not resting:
            del self._resting[run]
        self._followers[run].add(follower)
        if (head := self._heads.get(run)) is not None:
            follower.receive_head(head)

    def follow_text(self, run: str, follower: TextFollower) -> None:
        """From here on `follower` hears the unfinished text of `run`, as long as somebody follows the run."""
        self._text_followers.setdefault(run, set()).add(follower)

    def unfollow_text(self, run: str, follower: TextFollower) -> None:
        """`follower` hears no more."""
        followers = self._text_followers[run]
        followers.discard(follower)
        if not followers:
            del self._text_followers[run]

    @asynccontextmanager
    async def watching(self, run: str) -> AsyncIterator["Watcher"]:
        """A follower for who waits: read, then `wait` until something may have changed, then read again."""
        watcher = Watcher()
        await self.follow(run, watcher)
        try:
            yield watcher
        finally:
            await self.unfollow(run, watcher)

    async def run(self) -> None:
        """Reads notices and compares heads until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._read())
                tasks.create_task(self._watch_heads())
        finally:
            await self._reader.aclose()

    async def _read(self) -> None:
        loop = asyncio.get_running_loop()
        async for notice in self._reader:
            if notice is None:
                self._was_torn = True
                self._tears += 1
                self._doubted = dict.fromkeys(self._followers, START)
                for forget in self._on_torn:
                    forget()
                self._wake.set()
                for follower in [one for followers in self._text_followers.values() for one in followers]:
                    follower.receive_loss()
            elif notice.pieces:
                text = Text(notice.run, notice.pieces)
                for follower in tuple(self._text_followers.get(notice.run, ())):
                    follower.receive_text(text)
            elif notice.entries and notice.run in self._followers:
                if not self._gathered:
                    loop.call_soon(self._hand_on)  # runs once the reader has to wait
                    self._gathered_at_s = loop.time()
                self._gathered.setdefault(notice.run, []).extend(notice.entries)

    def _hand_on(self) -> None:
        """Hands what was gathered to the followers."""
        gathered, self._gathered = self._gathered, {}
        for run, entries in gathered.items():
            followers = self._followers.get(run)
            if followers is None:
                continue
            if run in self._doubted:
                self._doubted[run] = entries[-1].cursor
                continue
            self._heads[run] = entries[-1].cursor
            if not followers:
                continue  # all of them rest
            for batch in batches(run, entries):
                for follower in tuple(followers):
                    follower.receive_batch(batch)
        self.on_handed_on(asyncio.get_running_loop().time() - self._gathered_at_s)

    async def _watch_heads(self) -> None:
        loop = asyncio.get_running_loop()
        all_at_s = loop.time() + self._sweep_s
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(all_at_s):
                    await self._wake.wait()
                    self._wake.clear()
                    await asyncio.sleep(_FRESH_S)
            fresh, self._fresh = self._fresh, set()
            if self._was_torn or loop.time() >= all_at_s:
                self._was_torn = False
                all_at_s = loop.time() + self._sweep_s
                fresh = set(self._followers)
            try:
                await self._compare_heads([run for run in fresh if run in self._followers])
            except StoreError as error:
                _log.warning("heads not compared: %s", error)

    async def _compare_heads(self, runs: Sequence[str]) -> None:
        """Tells the followers of `runs` where these stand."""
        for start in range(0, len(runs), _BATCH):
            batch, tears = runs[start : start + _BATCH], self._tears
            heads = await self._store.heads(batch)
            for run in batch:
                head = heads.get(run, START)
                if run in self._doubted and tears == self._tears:
                    head = max(head, self._doubted.pop(run), key=lambda cursor: cursor.seq)
                if run in self._followers:
                    self._heads[run] = head
                for follower in tuple(self._followers.get(run, ())):
                    follower.receive_head(head)


class Watcher:
    """A follower that only knows that something happened since it last waited."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()
        self._head: Cursor | None = None

    def receive_batch(self, batch: Batch) -> None:
        """See `Follower`."""
        self._changed.set()

    def receive_head(self, head: Cursor) -> None:
        """See `Follower`."""
        if head != self._head:
            self._head = head
            self._changed.set()

    def stop(self) -> None:
        """Ends the wait; the gateway is going away."""
        self._changed.set()

    async def wait(self, timeout_s: float) -> bool:
        """Whether something happened within `timeout_s`."""
        try:
            async with asyncio.timeout(max(0.0, timeout_s)):
                await self._changed.wait()
        except TimeoutError:
            return False
        self._changed.clear()
        return True
