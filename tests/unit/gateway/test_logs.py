"""Shared reads: one read for a thousand who ask, kept pages, and never an answer from before what was heard."""

import asyncio
from typing import Any

import pytest

from towline.gateway.logs import Logs, _size_bytes
from towline.protocol.codec import Entry, EntryMeta
from towline.protocol.cursor import START, Cursor
from towline.protocol.limits import STORE_PAGE_EVENTS as PAGE
from towline.protocol.store.api import Loaded, LogPage, RunFacts, StoreUnavailable
from towline.protocol.subscription import ANEW


class Store:
    """One log in the test's hands. Reads wait while `gate` is closed."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.tag = 7
        self.reads: list[tuple[Cursor, int]] = []
        self.loads = 0
        self.is_away = False
        self.gate = asyncio.Event()
        self.gate.set()

    def entries(self, first: int, last: int) -> list[Entry]:
        return [
            Entry(n, self.tag, b'{"seq":%d,"type":"x"}' % n + b" " * 300, EntryMeta()) for n in range(first, last + 1)
        ]

    async def load(self, run: str) -> Loaded:
        self.loads += 1
        found = Cursor(self.length, self.tag)
        await self.gate.wait()
        facts = RunFacts(run, "ana", "toy", "1", "", "", found, 1, 0, 0, "", 0, 0, "", 0, False, False, 0)
        return Loaded(None, found, facts)  # type: ignore[arg-type]

    async def read_log(self, run: str, after: Cursor, *, limit: int) -> LogPage:
        self.reads.append((after, limit))
        head = Cursor(self.length, self.tag)
        if self.is_away:
            raise StoreUnavailable
        if after.seq > self.length:
            found = LogPage("ahead", (), head, 1, False)
        elif after.seq and after.tag not in (None, self.tag):
            found = LogPage("diverged", (), head, 1, False)
        else:
            found = LogPage("ok", self.entries(after.seq + 1, min(self.length, after.seq + limit)), head, 1, False)
        await self.gate.wait()
        return found


def seqs(page: LogPage) -> list[int]:
    return [entry.seq for entry in page.entries]


async def whole(logs: Logs, start: Cursor = START) -> list[int]:
    """Reads from `start` to the end as a subscription does."""
    found, at = list[int](), start
    while (page := await logs.read_log("a", at, limit=PAGE)).entries:
        found += seqs(page)
        at = page.entries[-1].cursor
    return found


async def test_a_thousand_cold_readers_cost_the_store_one_read() -> None:
    store = Store(200)
    logs = Logs(store)

    async def subscribe() -> list[int]:
        await logs.load("a")
        return seqs(await logs.read_log("a", START, limit=PAGE, heard=200))

    store.gate.clear()
    readers = [asyncio.create_task(subscribe()) for _ in range(1000)]
    await asyncio.sleep(0)
    store.gate.set()
    answers = await asyncio.gather(*readers)
    assert all(answer == list(range(1, 201)) for answer in answers)
    assert (store.loads, len(store.reads)) == (1, 1)


async def test_full_pages_are_read_once_and_serve_from_anywhere_in_them() -> None:
    store = Store(3 * PAGE + 20)
    logs = Logs(store)
    await logs.load("a")
    assert await whole(logs) == list(range(1, store.length + 1))
    before = len(store.reads)
    for start in (0, 1, PAGE - 1, PAGE, PAGE + 1, 2 * PAGE + 250):
        at = START if start == 0 else Cursor(start, 7)
        assert await whole(logs, at) == list(range(start + 1, store.length + 1))
    assert {after.seq for after, _ in store.reads[before:]} <= {3 * PAGE, store.length}


async def test_a_cursor_of_another_history_is_judged_by_the_store() -> None:
    store = Store(2 * PAGE)
    logs = Logs(store)
    await logs.load("a")
    await whole(logs)
    for seq in (PAGE, PAGE + 3):
        assert (await logs.read_log("a", Cursor(seq, 8), limit=PAGE)).recovery == "diverged"
        assert (await logs.read_log("a", Cursor(seq), limit=PAGE)).recovery == "ok"
    assert (await logs.read_log("a", Cursor(2 * PAGE + 1, 7), limit=PAGE)).recovery == "ahead"


async def test_no_answer_is_from_before_what_was_heard() -> None:
    store = Store(10)
    logs = Logs(store)
    at = Cursor(10, 7)
    store.gate.clear()
    early = asyncio.create_task(logs.read_log("a", at, limit=PAGE))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    store.length = 12
    late = asyncio.create_task(logs.read_log("a", at, limit=PAGE, heard=12))
    loads = [asyncio.create_task(logs.load("a"))]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    store.length = 13
    loads.append(asyncio.create_task(logs.load("a", heard=13)))
    store.gate.set()
    assert seqs(await early) == []
    assert seqs(await late) == [11, 12, 13]
    assert [(await load).cursor.seq for load in loads] == [12, 13]
    assert seqs(await logs.read_log("a", at, limit=PAGE, heard=13)) == [11, 12, 13]
    store.length = 14
    assert (await logs.load("a", heard=13)).cursor.seq == 13, "a follower would have heard"
    assert (await logs.load("a")).cursor.seq == 14, "who follows nothing is told what is so now"
    assert (await logs.load("a", heard=14)).cursor.seq == 14
    assert seqs(await logs.read_log("a", at, limit=PAGE, heard=14)) == [11, 12, 13, 14]


async def test_after_a_lost_connection_nothing_is_kept() -> None:
    store = Store(2 * PAGE)
    logs = Logs(store)
    await logs.load("a")
    await whole(logs)
    store.tag = 9  # put back, and written again
    assert (await logs.read_log("a", Cursor(PAGE, 7), limit=PAGE, heard=ANEW)).recovery == "diverged"
    store.gate.clear()
    slow = asyncio.create_task(logs.read_log("b", START, limit=PAGE))
    await asyncio.sleep(0)
    logs.clear()
    store.gate.set()
    await slow
    assert (await logs.read_log("a", Cursor(PAGE, 7), limit=PAGE)).recovery == "diverged"
    assert (await logs.load("a")).cursor.tag == 9


@pytest.mark.parametrize("length", [10, PAGE, 2 * PAGE, 3 * PAGE])
@pytest.mark.parametrize("framed", [False, True])
async def test_a_run_begun_anew_is_not_served_from_what_was_kept_of_it(length: int, framed: bool) -> None:
    """Without a lost connection: shorter, as long as before, and longer than it was."""
    store = Store(2 * PAGE)
    logs = Logs(store)
    await logs.load("a")
    await whole(logs)
    assert await logs.framed("a", START, "viewer") is not None
    await whole(logs, START)
    store.length, store.tag = length, 9
    assert (await logs.load("a")).cursor == Cursor(length, 9)
    if framed and length >= PAGE:
        found = await logs.framed("a", START, "viewer")
        assert found is not None
        assert found.frames[0].last.tag == 9
    page = await logs.read_log("a", START, limit=PAGE, heard=length)
    assert {entry.tag for entry in page.entries} == {9}
    assert (await logs.read_log("a", Cursor(2, 7), limit=PAGE)).recovery == "diverged"


async def test_a_run_that_goes_on_keeps_its_pages() -> None:
    store = Store(2 * PAGE)
    logs = Logs(store)
    await logs.load("a")
    await whole(logs)
    pages = set(logs._pages)
    store.length += 30
    await logs.load("a")
    assert set(logs._pages) == pages


async def test_stored_pages_are_framed_once_a_class_and_followed_from_frame_to_frame() -> None:
    store = Store(3 * PAGE + 20)
    logs = Logs(store)
    assert await logs.framed("a", START, "viewer") is None, "nothing is known of the log"
    await logs.load("a")
    at, count, wires = START, 0, list[bytes]()
    while (found := await logs.framed("a", at, "viewer")) is not None:
        assert (found.head, found.first_seq) == (Cursor(store.length, 7), 1)
        count += found.frames[0].count
        at = found.frames[0].last
        wires.append(found.frames[0].wire)
    assert (count, at) == (3 * PAGE, Cursor(3 * PAGE, 7))
    assert len(store.reads) == 3
    again = await logs.framed("a", START, "viewer")
    assert again is not None
    assert again.frames[0].wire is wires[0]
    assert await logs.framed("a", Cursor(7, 7), "viewer") is None, "no frame begins there"
    assert await logs.framed("a", Cursor(PAGE, 8), "viewer") is None, "another history"
    assert await logs.framed("a", START, "operator") is not None
    assert len(store.reads) > 3, "the entries are not kept beside their frames"


async def test_the_next_page_is_made_ready_while_one_is_sent() -> None:
    store = Store(2 * PAGE)
    logs = Logs(store)
    await logs.load("a")
    await logs.framed("a", START, "viewer")
    store.gate.clear()
    flight = logs._flights["framed", "a", 1, "viewer"]
    store.gate.set()
    await flight
    assert [after.seq for after, _ in store.reads] == [0, PAGE - 1]
    page = await logs.framed("a", Cursor(PAGE, 7), "viewer")
    assert page is not None
    assert len(store.reads) == 2
    logs.clear()
    assert await logs.framed("a", Cursor(PAGE, 7), "viewer") is None


async def test_what_is_kept_is_bounded() -> None:
    store = Store(20 * PAGE)
    size_bytes = _size_bytes(store.entries(PAGE, 2 * PAGE - 1))
    logs = Logs(store, kept_bytes=4 * size_bytes - 1)
    await logs.load("a")
    await whole(logs)
    assert len(logs._pages) == 3
    assert 0 <= logs._left_bytes < size_bytes
    logs.clear()
    assert logs._left_bytes == 4 * size_bytes - 1


async def test_a_failure_is_everyones_and_nobody_keeps_it() -> None:
    store = Store(10)
    store.is_away = True
    logs = Logs(store)
    answers: list[Any] = await asyncio.gather(
        *(logs.read_log("a", START, limit=PAGE) for _ in range(3)), return_exceptions=True
    )
    assert [type(answer) for answer in answers] == [StoreUnavailable] * 3
    assert len(store.reads) == 1
    store.is_away = False
    assert len(seqs(await logs.read_log("a", START, limit=PAGE))) == 10


async def test_who_leaves_takes_nobodys_read_away() -> None:
    store = Store(10)
    store.gate.clear()
    logs = Logs(store)
    first, second = (asyncio.create_task(logs.read_log("a", START, limit=PAGE)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    store.gate.set()
    assert len(seqs(await second)) == 10
