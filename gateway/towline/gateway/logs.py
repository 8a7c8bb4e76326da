"""Reads of logs that many ask for at once: what is immutable is kept, what is being read is read once.

Promises that a full page of a log (500 entries, aligned) is read from the store once while it is kept, whoever asks
and from where in it, and framed once for each class of readers that replays it; that callers who ask the same at the
same time share one read; and that the tag of a cursor is compared as the store itself compares it. A kept page is only
as true as the history it was read from: when the store's connection was lost (it may come back older), everything is
forgotten, and when a Run is loaded that does not continue what was kept of its log, that run is. Leaves access to
`services`: nothing here knows who asks.

A shared read may have begun before its last caller asked, and an answer serves for a second. So a caller says what
it has `heard` of the log's head, and never gets an answer from before that; `ANEW` means one that begins now.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Any, Final, Protocol, TypeVar, cast

from msgspec import Struct

from towline.gateway.prepared import Shared, StoredFrame, StoredPage, stored_page
from towline.protocol.codec import Entry
from towline.protocol.cursor import START, Cursor
from towline.protocol.limits import KIB, MIB, STORE_PAGE_EVENTS
from towline.protocol.projection import Role
from towline.protocol.store.api import Loaded, LogPage
from towline.protocol.subscription import ANEW

T = TypeVar("T")

KEPT_BYTES: Final = 64 * MIB
_ENTRY_BYTES: Final = 400
"""What an entry takes beside its bytes."""
_RUNS: Final = 10_000
_RECENT_S: Final = 1.0
"""How long an answer serves those who come a moment later: as long as a lost notice may hide news from anyone."""
_RECENTS: Final = 64
_RECENT_BYTES: Final = 256 * KIB


class Store(Protocol):
    """What is read here, of the store."""

    async def load(self, run: str) -> Loaded: ...
    async def read_log(self, run: str, after: Cursor, *, limit: int) -> LogPage: ...


class _Page(Struct, frozen=True):
    """Entries `before.seq` + 1 to + 500, and the cursor that stands before them."""

    before: Cursor
    entries: Sequence[Entry]
    size_bytes: int

    def holds(self, after: Cursor) -> bool:
        """Whether `after` is a position of this history."""
        at = after.seq - self.before.seq
        there = self.before if at == 0 else self.entries[at - 1].cursor
        return after.tag is None or after == there


class Framed(Struct, frozen=True):
    """Frames that follow a cursor, and what is known of their log."""

    frames: Sequence[StoredFrame]
    head: Cursor
    first_seq: int
    sealed: bool


class _Kept(Struct, frozen=True):
    """A page framed for one class, and what it takes."""

    page: StoredPage
    size_bytes: int


class _Known(Struct, frozen=True):
    """What the newest answer said of a log."""

    head: Cursor
    first_seq: int
    sealed: bool


class _Recent(Struct, frozen=True):
    """An answer and when it came."""

    at_s: float
    answer: Any


class Logs:
    """The reads. One per process; `clear` when the store's history may be another."""

    def __init__(self, store: Store, *, kept_bytes: int = KEPT_BYTES) -> None:
        self._store = store
        self._left_bytes = kept_bytes
        self._pages: OrderedDict[tuple[str, int, Role | None], _Page | _Kept] = OrderedDict()
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._flights: dict[Hashable, asyncio.Task[Any]] = {}
        self._recent: OrderedDict[Hashable, _Recent] = OrderedDict()
        self.shared = Shared()
        """Frames of what was read for many."""
        self._history = 0

    def clear(self) -> None:
        """Forgets everything: the store may have come back with another history."""
        self._history += 1
        self._left_bytes += sum(page.size_bytes for page in self._pages.values())
        self.shared.forget()
        for kept in (self._pages, self._known, self._flights, self._recent):
            kept.clear()

    async def load(self, run: str, *, heard: int | None = None) -> Loaded:
        """The Run, read once for all who ask now. Raises as the store.

        Who follows the run has `heard` its head, so an answer of a moment ago is as good; else only one under way is.
        """
        at_least = heard or 0
        loaded = await self._newest(
            ("load", run),
            lambda: self._load(run),
            lambda found: found.cursor.seq >= at_least,
            may_be_recent=heard is not None,
        )
        self._learn(run, _Known(loaded.cursor, loaded.facts.first_seq, loaded.facts.sealed))
        return loaded

    async def _load(self, run: str) -> Loaded:
        known = self._known.get(run)
        loaded = await self._store.load(run)
        if known is not None and not await self._continues(run, known.head, loaded.cursor):
            self.forget(run)  # it was put back, or begun anew under its address
        return loaded

    async def _continues(self, run: str, known: Cursor, head: Cursor) -> bool:
        """Whether a log that now ends at `head` still has the entry that was known as its head."""
        if head.seq <= known.seq:
            return head == known
        if known.seq < STORE_PAGE_EVENTS:
            return True  # nothing of it can be kept
        return (await self._store.read_log(run, known, limit=1)).recovery == "ok"

    def forget(self, run: str) -> None:
        """Forgets a run that was deleted or is another by now.

        What is being read of it is neither kept nor shared with who asks from here on.
        """
        self._history += 1
        self.shared.forget(run)
        self._known.pop(run, None)
        for page in [key for key in self._pages if key[0] == run]:
            self._drop(page)
        for kept in (self._flights, self._recent):
            for key in [key for key in kept if isinstance(key, tuple) and run in key]:
                del kept[key]

    async def read_log(self, run: str, after: Cursor, *, limit: int, heard: int = 0) -> LogPage:
        """As the store's `read_log`, whose answer is no older than `heard`. Raises as the store."""
        if limit == STORE_PAGE_EVENTS and heard < ANEW and (kept := await self._full_page(run, after)) is not None:
            return kept
        page = await self._newest(
            ("read", run, after, limit),
            lambda: self._store.read_log(run, after, limit=limit),
            lambda found: found.head.seq >= heard,
        )
        self._learn(run, _Known(page.head, page.first_seq, page.sealed))
        return page

    async def _newest(
        self,
        key: Hashable,
        call: Callable[[], Awaitable[T]],
        is_new: Callable[[T], bool],
        *,
        may_be_recent: bool = True,
    ) -> T:
        """The answer of `call`: one of a moment ago or one under way if that is new enough, else one of our own."""
        recent = self._recent.get(key) if may_be_recent else None
        if recent is not None and time.monotonic() - recent.at_s < _RECENT_S and is_new(recent.answer):
            return cast("T", recent.answer)
        joined = key in self._flights
        answer = await self._once(key, call)
        if joined and not is_new(answer):
            answer = await self._once(key, call)  # begun after the first had ended, so after we heard
        return answer

    async def framed(self, run: str, after: Cursor, reader: Role) -> Framed | None:
        """The frames behind `after`, as `reader` (one of `reader_class`) is sent them, to the end of a full page.

        None where there are none to be had: the page is not full, or `after` is no place between two of its frames.
        The page behind it is made ready meanwhile. Raises as the store.
        """
        known, number = self._known.get(run), after.seq // STORE_PAGE_EVENTS
        if known is None or not _has_page(known, number) or after.seq + 1 < known.first_seq:
            return None
        page = await self._framed_page(run, number, reader)
        known = self._known.get(run, known)
        if _has_page(known, number + 1) and (run, number + 1, reader) not in self._pages:
            self._fly(("framed", run, number + 1, reader), lambda: self._frame_page(run, number + 1, reader))
        frames = () if page is None else page.rest(after)
        return Framed(frames, known.head, known.first_seq, known.sealed) if frames else None

    async def _framed_page(self, run: str, number: int, reader: Role) -> StoredPage | None:
        kept = self._pages.get((run, number, reader))
        if isinstance(kept, _Kept):
            self._pages.move_to_end((run, number, reader))
            return kept.page
        return await self._once(("framed", run, number, reader), lambda: self._frame_page(run, number, reader))

    async def _frame_page(self, run: str, number: int, reader: Role) -> StoredPage | None:
        """Frames a page and keeps that instead of its entries: they are read again for whoever needs them."""
        history = self._history
        page = await self._page(run, number)
        if page is None:
            return None
        framed = stored_page(run, page.before, page.entries, reader)
        if history == self._history:
            size_bytes = sum(len(one.wire) + len(one.finishing) * _ENTRY_BYTES for one in framed.frames)
            self._keep((run, number, reader), _Kept(framed, size_bytes))
            self._drop((run, number, None))
        return framed

    async def _full_page(self, run: str, after: Cursor) -> LogPage | None:
        """The rest of the aligned page behind `after`, if the log has all of it and `after` is in its history."""
        known, number = self._known.get(run), after.seq // STORE_PAGE_EVENTS
        if known is None or not _has_page(known, number) or after.seq + 1 < known.first_seq:
            return None
        page = await self._page(run, number)
        if page is None or not page.holds(after):
            return None  # the store itself says what is wrong
        at = after.seq - page.before.seq
        known = self._known.get(run, known)
        return LogPage("ok", page.entries[at:] if at else page.entries, known.head, known.first_seq, known.sealed)

    async def _page(self, run: str, number: int) -> _Page | None:
        kept = self._pages.get((run, number, None))
        if isinstance(kept, _Page):
            self._pages.move_to_end((run, number, None))
            return kept
        return await self._once(("page", run, number), lambda: self._read_page(run, number))

    async def _read_page(self, run: str, number: int) -> _Page | None:
        """Reads an aligned page together with the entry before it, and keeps it."""
        start, history = number * STORE_PAGE_EVENTS, self._history
        after, limit = (START, STORE_PAGE_EVENTS) if number == 0 else (Cursor(start - 1), STORE_PAGE_EVENTS + 1)
        read = await self._store.read_log(run, after, limit=limit)
        if read.recovery != "ok" or len(read.entries) != limit or read.entries[0].seq != after.seq + 1:
            return None
        before = START if number == 0 else read.entries[0].cursor
        entries = tuple(read.entries[limit - STORE_PAGE_EVENTS :])
        page = _Page(before, entries, _size_bytes(entries))
        if history == self._history:
            self._learn(run, _Known(read.head, read.first_seq, read.sealed))
            self._keep((run, number, None), page)
        return page

    def _keep(self, key: tuple[str, int, Role | None], page: _Page | _Kept) -> None:
        self._drop(key)
        self._pages[key] = page
        self._left_bytes -= page.size_bytes
        while self._left_bytes < 0:
            self._drop(next(iter(self._pages)))

    def _drop(self, key: tuple[str, int, Role | None]) -> None:
        if (page := self._pages.pop(key, None)) is not None:
            self._left_bytes += page.size_bytes

    def _learn(self, run: str, known: _Known) -> None:
        before = self._known.get(run)
        if before is None or before.head.seq <= known.head.seq:
            self._known[run] = known
        self._known.move_to_end(run)
        if len(self._known) > _RUNS:
            self._known.popitem(last=False)

    async def _once(self, key: Hashable, call: Callable[[], Awaitable[T]]) -> T:
        """The answer of `call`, shared with everyone who asks for `key` until it is there."""
        return cast("T", await asyncio.shield(self._fly(key, call)))

    def _fly(self, key: Hashable, call: Callable[[], Awaitable[Any]]) -> "asyncio.Task[Any]":
        """`call` on its way: the one that is already, or one of our own."""
        flight = self._flights.get(key)
        if flight is None:
            flight = self._flights[key] = asyncio.create_task(cast("Any", call()))
            flight.add_done_callback(lambda done: self._land(key, done))
        return flight

    def _land(self, key: Hashable, flight: "asyncio.Task[Any]") -> None:
        is_ours = self._flights.get(key) is flight
        if is_ours:
            del self._flights[key]
        if flight.cancelled() or flight.exception() is not None or not is_ours:
            return
        answer = flight.result()
        if isinstance(answer, Loaded) or (isinstance(answer, LogPage) and _size_bytes(answer.entries) <= _RECENT_BYTES):
            self._recent[key] = _Recent(time.monotonic(), answer)
            self._recent.move_to_end(key)
            if len(self._recent) > _RECENTS:
                self._recent.popitem(last=False)


def _has_page(known: _Known, number: int) -> bool:
    """Whether the log has all of its aligned page with this number."""
    return known.head.seq >= (number + 1) * STORE_PAGE_EVENTS


def _size_bytes(entries: Sequence[Entry]) -> int:
    return sum([len(e.raw) for e in entries]) + len(entries) * _ENTRY_BYTES
