"""Events over HTTP: pages of a run's log, with a wait for the next event.

Promises the cursor table of the contract without `limited`: a page says whether it resumed, was trimmed or must be
taken as a fresh start; it always brings a cursor with a tag, also when it brings no event; `closed` only when the
run has ended and nothing is left to read. Event bytes are passed through as they stand in the log.
"""

import asyncio
from typing import Final

import msgspec
from msgspec import Struct
from starlette.responses import Response

from towline.gateway import sse
from towline.gateway.http import Call, json_answer, route
from towline.gateway.hub import Watcher
from towline.protocol.codec import Entry
from towline.protocol.cursor import LATEST, START, Cursor
from towline.protocol.frames import Range, Recovery, RecoveryCode
from towline.protocol.limits import LIST_DEFAULT, PAGE_BYTES, PAGE_EVENTS, WAIT_MAX_MS
from towline.protocol.placing import Placement, place
from towline.protocol.projection import project_entry
from towline.protocol.store.api import LogPage

DEFAULT_EVENTS: Final = 4 * LIST_DEFAULT


class EventsPage(Struct, frozen=True, omit_defaults=True):
    """The answer. `head` is the seq of the newest event, `cursor` where to go on."""

    events: list[msgspec.Raw]
    cursor: str
    head: int
    first_seq: int
    closed: bool
    recovery: Recovery
    recovery_code: RecoveryCode | None = None
    lost: Range | None = None


async def events(call: Call) -> Response:
    """`GET /v1/runs/{run}/events`."""
    if sse.is_wanted(call):
        return await sse.stream(call)
    run = call.path("run")
    caller, _ = await call.services.reach(call.credential, run)
    after = call.query_cursor()
    limit = call.query_int("limit", DEFAULT_EVENTS, 1, PAGE_EVENTS)
    wait_ms = call.query_int("wait_ms", 0, 0, WAIT_MAX_MS)
    if after is None:
        after = START
    if not wait_ms:
        placement, page, start = await _read(call, run, after, limit)
    else:
        async with call.services.watching(run) as watcher:
            placement, page, start = await _wait(call, run, after, limit, wait_ms, watcher)
        caller = await call.reach_again(run)
    shown: list[msgspec.Raw] = []
    size_bytes, last = 0, start
    for entry in page.entries[:limit]:
        raw = project_entry(entry, caller.role)
        size_bytes += len(raw) + 1
        if shown and size_bytes > PAGE_BYTES:
            break
        shown.append(msgspec.Raw(raw))
        last = entry.cursor
    return json_answer(
        EventsPage(
            events=shown,
            cursor=str(last),
            head=page.head.seq,
            first_seq=page.first_seq,
            closed=page.sealed and last.seq >= page.head.seq,
            recovery=placement.recovery,
            recovery_code=placement.code,
            lost=placement.lost,
        )
    )


async def _wait(
    call: Call, run: str, after: Cursor | str, limit: int, wait_ms: int, watcher: Watcher
) -> tuple[Placement, LogPage, Cursor]:
    """A page with something to tell, or the empty one that stands when the time is over."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + wait_ms / 1000
    while True:
        placement, page, start = await _read(call, run, after, limit)
        has_news = page.entries or page.sealed or placement.recovery != "resumed"
        if has_news or call.services.draining.is_set():
            return placement, page, start
        after = start  # `latest` is where it stood when the caller came
        if not await watcher.wait(until_s - loop.time()):
            return placement, page, start


async def _read(call: Call, run: str, after: Cursor | str, limit: int) -> tuple[Placement, LogPage, Cursor]:
    """The verdict on `after`, the page that follows from it, and the cursor of the position before that page."""
    store = call.services.store
    if not isinstance(after, Cursor):
        assert after == LATEST
        after = (await store.facts(run)).head
    page = await store.read_log(run, after, limit=limit)
    placement = place(after, page, head_seq=page.head.seq, limit=None)
    if placement.recovery == "resumed" and (after.tag is not None or after == START):
        return placement, page, after
    at = placement.after_seq
    if at < page.first_seq:
        start = START if at == 0 else Cursor(at, 0)
        return placement, await store.read_log(run, start, limit=limit), start
    # A bare seq: the entry that stands there gives the position its tag.
    page = await store.read_log(run, START if at == 1 else Cursor(at - 1), limit=limit + 1)
    first: Entry = page.entries[0]
    return placement, msgspec.structs.replace(page, entries=page.entries[1:]), first.cursor


ROUTES: Final = (route("/v1/runs/{run}/events", events, ticket="events"),)
