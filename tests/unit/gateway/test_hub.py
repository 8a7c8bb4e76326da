"""The hub: followers hear at once from notices, and soon from heads when a notice is lost."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.support.waiting import wait_until
from towline.gateway.hub import Hub
from towline.gateway.prepared import Batch
from towline.protocol.codec import Entry, EntryMeta
from towline.protocol.cursor import START, Cursor
from towline.protocol.store.api import Notice, StoreUnavailable


class Reader:
    """Notices in the test's hands."""

    def __init__(self) -> None:
        self.followed: list[str] = []
        self.calls: list[tuple[str, str]] = []
        self.queue: asyncio.Queue[Notice | None] = asyncio.Queue()
        self.is_closed = False

    async def follow(self, run: str) -> None:
        self.calls.append(("follow", run))

    async def unfollow(self, run: str) -> None:
        self.calls.append(("unfollow", run))

    async def __aiter__(self) -> AsyncIterator[Notice | None]:
        while True:
            yield await self.queue.get()

    async def aclose(self) -> None:
        self.is_closed = True


class Store:
    """Heads in the test's hands."""

    def __init__(self) -> None:
        self.reader = Reader()
        self.known: dict[str, Cursor] = {}
        self.is_away = False
        self.asked = 0

    def notices(self) -> Reader:
        return self.reader

    async def heads(self, runs: Sequence[str]) -> dict[str, Cursor]:
        self.asked += 1
        if self.is_away:
            raise StoreUnavailable
        return {run: self.known[run] for run in runs if run in self.known}


class Follower:
    def __init__(self) -> None:
        self.seqs: list[int] = []
        self.batches: list[list[int]] = []
        self.heads: list[Cursor] = []

    def receive_batch(self, batch: Batch) -> None:
        self.batches.append([entry.seq for entry in batch.entries])
        self.seqs += self.batches[-1]

    def receive_head(self, head: Cursor) -> None:
        self.heads.append(head)


def notice(run: str, *seqs: int) -> Notice:
    return Notice(run, [Entry(seq, 7, b'{"type":"x"}', EntryMeta()) for seq in seqs])


@asynccontextmanager
async def running(store: Store, **settings: Any) -> AsyncIterator[Hub]:
    hub = Hub(store, **settings)  # type: ignore[arg-type]
    task = asyncio.create_task(hub.run())
    try:
        yield hub
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.wait([task])
        assert store.reader.is_closed


async def test_each_follower_of_a_run_hears_its_notices_and_no_others() -> None:
    store, one, two, other = Store(), Follower(), Follower(), Follower()
    async with running(store, sweep_s=60) as hub:
        for run, follower in (("a", one), ("a", two), ("b", other)):
            await hub.follow(run, follower)
        store.reader.queue.put_nowait(notice("a", 1, 2))
        store.reader.queue.put_nowait(notice("b", 5))
        await wait_until(lambda: other.seqs, "the last notice")
        assert (one.seqs, two.seqs, other.seqs) == ([1, 2], [1, 2], [5])
        assert hub.head_of("a") == Cursor(2, 7)
        await hub.unfollow("a", one)
        store.reader.queue.put_nowait(notice("a", 3))
        await wait_until(lambda: len(two.seqs) == 3, "the notice after one left")
        assert one.seqs == [1, 2]
        await hub.unfollow("a", two)
        assert store.reader.calls == [("follow", "a"), ("follow", "b"), ("unfollow", "a")]
        assert (hub.followed, hub.head_of("a")) == (1, None)


async def test_what_came_together_is_handed_on_together_and_a_hole_is_never_closed() -> None:
    store, one, two = Store(), Follower(), Follower()
    async with running(store, sweep_s=60) as hub:
        await hub.follow("a", one)
        await hub.follow("b", two)
        for run, seqs in (("a", [1]), ("b", [1]), ("a", [2, 3]), ("a", [5]), ("a", [6])):
            store.reader.queue.put_nowait(notice(run, *seqs))
        await wait_until(lambda: two.seqs, "the notices")
        assert one.batches == [[1, 2, 3], [5, 6]]
        store.reader.queue.put_nowait(notice("a", 7))
        await wait_until(lambda: len(one.batches) == 3, "the next notice")


async def test_who_rests_costs_nothing_and_is_told_the_head_when_it_is_back() -> None:
    store, one, two = Store(), Follower(), Follower()
    async with running(store, sweep_s=60) as hub:
        await hub.follow("a", one)
        await hub.follow("a", two)
        hub.rest("a", one)
        hub.rest("b", one)  # it follows no such run
        store.reader.queue.put_nowait(notice("a", 1))
        await wait_until(lambda: two.seqs, "the notice")
        assert one.seqs == []
        await hub.unfollow("a", two)
        store.reader.queue.put_nowait(notice("a", 2))
        await wait_until(lambda: hub.head_of("a") == Cursor(2, 7), "the head that nobody was told")
        hub.back("a", one)
        hub.back("a", one)
        assert one.heads[-1] == Cursor(2, 7)
        store.reader.queue.put_nowait(notice("a", 3))
        await wait_until(lambda: one.seqs == [3], "the notice after it was back")
        hub.rest("a", one)
        await hub.unfollow("a", one)
        hub.back("a", one)
        assert (hub.followed, store.reader.calls[-1]) == (0, ("unfollow", "a"))


async def test_a_lost_notice_is_found_by_the_heads() -> None:
    store, follower = Store(), Follower()
    store.known = {"a": Cursor(9, 1)}
    async with running(store, sweep_s=0.01) as hub:
        await hub.follow("a", follower)
        await wait_until(lambda: Cursor(9, 1) in follower.heads, "the head")
        del store.known["a"]
        await wait_until(lambda: START in follower.heads, "the run to be missing")


@pytest.mark.parametrize("why", ["first follow", "reconnect"])
async def test_heads_are_compared_at_once(why: str) -> None:
    store, follower, torn = Store(), Follower(), list[bool]()
    store.known = {"a": Cursor(1, 1)}
    async with running(store, sweep_s=60) as hub:
        await hub.follow("a", follower)
        await wait_until(lambda: follower.heads, "the head after the first follow")
        if why == "reconnect":
            store.known["a"] = Cursor(2, 2)
            hub.on_torn(lambda: torn.append(True))
            store.reader.queue.put_nowait(None)
            await wait_until(lambda: Cursor(2, 2) in follower.heads, "the head after the reconnect")
            assert torn == [True]


async def test_after_a_lost_connection_nothing_is_handed_on_before_the_head_was_compared() -> None:
    """The store came back without 2 and 3, and was given others: whoever stands at 3 must not be handed 4."""
    store, follower = Store(), Follower()
    store.known = {"a": Cursor(3, 7)}
    async with running(store, sweep_s=0.05) as hub:
        await hub.follow("a", follower)
        store.reader.queue.put_nowait(notice("a", 1, 2, 3))
        await wait_until(lambda: follower.heads and follower.seqs, "the run to be followed")
        follower.seqs.clear()
        follower.heads.clear()
        store.is_away = True
        store.reader.queue.put_nowait(None)
        store.reader.queue.put_nowait(notice("a", 4))
        asked = store.asked
        await wait_until(lambda: store.asked > asked + 2, "heads to be asked for")
        assert (follower.seqs, follower.heads) == ([], [])
        store.is_away = False
        await wait_until(lambda: follower.heads, "the head")
        assert follower.heads[0] == Cursor(4, 7), "the newest that is known, so that the log is read from one's place"
        store.reader.queue.put_nowait(notice("a", 5))
        await wait_until(lambda: follower.seqs == [5], "notices again")


async def test_a_store_that_is_away_ends_nothing() -> None:
    store, follower = Store(), Follower()
    store.known, store.is_away = {"a": Cursor(1, 1)}, True
    async with running(store, sweep_s=0.01) as hub:
        await hub.follow("a", follower)
        await wait_until(lambda: store.asked > 2, "the heads to be asked for again")
        store.is_away = False
        await wait_until(lambda: follower.heads, "the head")


async def test_who_waits_is_woken_once_a_change() -> None:
    store = Store()
    async with running(store, sweep_s=60) as hub:
        async with hub.watching("a") as watcher:
            store.reader.queue.put_nowait(notice("a", 1))
            assert await watcher.wait(30)
            assert not await watcher.wait(0)
            watcher.receive_head(Cursor(1, 7))
            assert await watcher.wait(0)
            watcher.receive_head(Cursor(1, 7))
            assert not await watcher.wait(0)
            watcher.stop()
            assert await watcher.wait(0)
        assert hub.followed == 0
