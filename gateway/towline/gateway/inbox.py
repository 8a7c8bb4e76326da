"""What waits for the caller across runs, and what a run published: `GET /inbox`, `GET /runs/{id}/queries/{name}`.

Promises that the inbox shows only what the caller can act on now, judged from each run as it is, and that `wait_ms`
answers as soon as the list may be another: than the one the caller holds (`If-None-Match`), or than an empty one.
Leaves the index to the store, hints to `feeds`.
"""

import asyncio
import base64
import hashlib
import re
from typing import Any, Final

import msgspec
from cryptography.fernet import Fernet, InvalidToken
from starlette.responses import Response

from towline.gateway import access
from towline.gateway.feeds import Feed
from towline.gateway.filters import Filter
from towline.gateway.http import Call, json_answer, route
from towline.protocol import queries
from towline.protocol.errors import ProblemError, problem
from towline.protocol.grants import entries_of
from towline.protocol.ids import is_name
from towline.protocol.inbox import blocker_in, looks_of
from towline.protocol.limits import LIST_DEFAULT, LIST_MAX, WAIT_MAX_MS
from towline.protocol.projection import may_read
from towline.protocol.store.api import NoRun, RunGone
from towline.protocol.store.inboxes import Waiting

_AT_ONCE: Final = 25
_PASSES: Final = 4
_POSITION: Final = re.compile(r"[0-9]{1,16}\|[A-Za-z0-9._-]{1,128}\|.{1,400}\Z", re.DOTALL)
_SHOWN: Final = ("id", "headline", "workflow", "thread", "owner", "status")


async def inbox(call: Call) -> Response:
    """`GET /v1/inbox`."""
    access.require(call.credential, "read")
    limit = call.query_int("limit", LIST_DEFAULT, 1, LIST_MAX)
    wait_ms = call.query_int("wait_ms", 0, 0, WAIT_MAX_MS)
    before = _position(call, call.query("page"))
    held = call.request.headers.get("if-none-match")
    services = call.services
    loop = asyncio.get_running_loop()
    until_s = loop.time() + wait_ms / 1000
    listener = Feed("runs", Filter(), lambda: call.credential)
    with services.feeds.listening(listener), services.leaving(listener.stop):
        if wait_ms:
            await services.feeds.is_heard()
        while True:
            items, next_page = await _page(call, before, limit)
            tag = f'W/"{hashlib.sha256(msgspec.json.encode(items)).hexdigest()[:32]}"'
            is_old = tag == held if held is not None else not items
            left_s = until_s - loop.time()
            if not is_old or left_s <= 0 or services.draining.is_set():
                break
            await listener.wait(left_s)
            listener.take()
            call.require_unexpired()
    if held == tag:
        return Response(status_code=304, headers={"ETag": tag})
    return json_answer({"items": items, "next_page": next_page}, headers={"ETag": tag})


async def _page(call: Call, before: str | None, limit: int) -> tuple[list[dict[str, Any]], str | None]:
    starters = await call.services.store.starters_for(entries_of(call.credential.subject, call.credential.groups))
    looks = [*looks_of(call.credential), *(f"user:{starter}" for starter in starters)]
    items: list[dict[str, Any]] = []
    for _ in range(_PASSES):
        asked = limit - len(items)
        rows = await call.services.store.inbox(looks, before=before, limit=asked)
        for start in range(0, len(rows), _AT_ONCE):
            found = await asyncio.gather(*(_item(call, row) for row in rows[start : start + _AT_ONCE]))
            items += [item for item in found if item is not None]
        if len(rows) < asked:
            return items, None
        before = rows[-1].position
        if len(items) >= limit:
            break
    assert before is not None
    return items, _sealer(call).encrypt(before.encode()).decode().rstrip("=")


def _sealer(call: Call) -> Fernet:
    """Keeps a page's position to ourselves: it may be that of a run which the caller does not even know of."""
    return Fernet(base64.urlsafe_b64encode(hashlib.sha256(b"inbox page\0" + call.services.store.secret).digest()))


async def _item(call: Call, row: Waiting) -> dict[str, Any] | None:
    """The item as the caller sees it; None if it is not theirs to act on, or not any more."""
    if not access.covers(call.credential, row.run):
        return None
    try:
        caller, _ = await call.services.reach(call.credential, row.run, in_list=True)
        run = await call.services.run_as(caller, row.run)
    except (NoRun, RunGone, ProblemError):
        return None
    shown = {name: run[name] for name in _SHOWN}
    if (blocker := blocker_in(row.item)) is not None:
        known = next((each for each in run["blockers"] if each["id"] == blocker), None)
        if known is None or caller.role not in ("owner", "operator"):
            return None
        return {
            "kind": "blocker",
            "run": shown,
            "request": None,
            "blocker": known,
            "since": known["since"],
            "expires_at": None,
        }
    wait = next((each for each in run["waiting_on"] if each["id"] == row.item), None)
    if wait is None or not wait["may_answer"]:
        return None
    return {
        "kind": wait["kind"],
        "run": shown,
        "request": wait,
        "blocker": None,
        "since": wait["since"],
        "expires_at": wait["expires_at"],
    }


def _position(call: Call, page: str | None) -> str | None:
    if page is None:
        return None
    try:
        text = _sealer(call).decrypt(page + "=" * (-len(page) % 4)).decode()
    except (InvalidToken, ValueError):
        text = ""
    if not _POSITION.match(text):
        raise problem("bad_request", "Send `next_page` as it came.", field="page", expected="a next_page")
    return text


async def query(call: Call) -> Response:
    """`GET /v1/runs/{run}/queries/{name}`."""
    run, name = call.path("run"), call.path("name")
    caller, _ = await call.services.reach(call.credential, run)
    if not is_name(name):
        raise problem("bad_request", "No query is named so.", field="name", expected="a name")
    field = queries.field_of(name)
    found = await call.services.store.side_fields(run, [field])
    published = queries.decode(found[field]) if field in found else None
    if published is None or not may_read(caller.role, published.audience):
        raise problem("not_found", "The run has published nothing under this name, or you may not read it.")
    return json_answer(published.to_wire(name))


ROUTES: Final = (
    route("/v1/inbox", inbox),
    route("/v1/runs/{run}/queries/{name}", query),
)
