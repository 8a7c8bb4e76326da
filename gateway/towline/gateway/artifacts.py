"""Artifacts and payloads over HTTP: what a run made, as a list and as bytes.

Promises that bytes are sent only to who may read the event that announced them, in a form that no browser runs: as an
attachment unless of a few harmless types, never sniffed, in a sandbox. The address of the bytes is their hash, made
by us; a name from the run is only ever a header value, encoded. One range at a time; others are answered whole.
"""

import re
from typing import Any, Final
from urllib.parse import quote

from starlette.responses import FileResponse, Response

from towline.gateway import problems
from towline.gateway.http import Call, json_answer, route
from towline.protocol.codec import Entry
from towline.protocol.cursor import START
from towline.protocol.errors import Problem, problem
from towline.protocol.limits import STORE_PAGE_EVENTS
from towline.protocol.projection import Role, may_read
from towline.protocol.store.payloads import MissingPayload

_INLINE: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp", "text/plain", "application/json"})
_MEDIA_TYPE: Final = re.compile(
    r"[a-zA-Z0-9!#$&^_.+-]{1,64}/[a-zA-Z0-9!#$&^_.+-]{1,64}(; ?charset=[a-zA-Z0-9-]{1,32})?\Z"
)
_RANGE: Final = re.compile(r"bytes=(\d{0,18})-(\d{0,18})\Z", re.ASCII)
_REF: Final = re.compile(r"[A-Za-z0-9_:.-]{1,128}\Z")
_HASH: Final = re.compile(r"(?:.*[:_])?([0-9a-f]{64})\Z")

SAFE_HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "sandbox; default-src 'none'",
    "Cross-Origin-Resource-Policy": "same-site",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "private, no-cache",
}


async def index(call: Call) -> Response:
    """`GET /v1/runs/{run}/artifacts`."""
    return json_answer({"items": await _listed(call), "next_page": None})


async def _listed(call: Call) -> list[dict[str, Any]]:
    run = call.path("run")
    caller, _ = await call.services.reach(call.credential, run)
    return [
        _described(entry)
        for entry in await call.services.find_entries(run, frozenset({"artifact.created"}))
        if may_read(caller.role, entry.meta.audience)
    ]


def _described(entry: Entry) -> dict[str, Any]:
    event = entry.event()
    return {
        "id": event.data["artifact"],
        **{name: event.data[name] for name in ("name", "media_type", "size", "sha256")},
        "seq": event.seq,
        "audience": event.audience,
        "created_at": event.ts,
    }


async def download(call: Call) -> Response:
    """`GET /v1/runs/{run}/artifacts/{artifact}`."""
    wanted = call.path("artifact")
    for found in await _listed(call):
        if found["id"] == wanted:
            return _bytes(call, found["sha256"], found["media_type"], found["name"])
    raise problem("not_found", "The run has no such artifact, or you may not read it.")


async def payload(call: Call) -> Response:
    """`GET /v1/runs/{run}/payloads/{ref}`: what an event of this run names as its `ref`."""
    run, ref = call.path("run"), call.path("ref")
    caller, _ = await call.services.reach(call.credential, run)
    sha256 = _HASH.match(ref)
    if not _REF.match(ref):
        raise problem("bad_request", "No payload has such a reference.", field="ref", expected="a ref of an event")
    if sha256 is None or not await _is_named(call, run, ref, caller.role):
        raise problem("not_found", "No event of this run that you may read names this payload.")
    return _bytes(call, sha256[1], "application/json", ref)


async def _is_named(call: Call, run: str, ref: str, role: Role) -> bool:
    mark, after = f'"ref":"{ref}"'.encode(), START
    while True:
        page = await call.services.store.read_log(run, after, limit=STORE_PAGE_EVENTS)
        for entry in page.entries:
            # The mark may also stand in a text; only the envelope's own member counts.
            if mark in entry.raw and may_read(role, entry.meta.audience) and entry.event().ref == ref:
                return True
        if len(page.entries) < STORE_PAGE_EVENTS:
            return False
        after = page.entries[-1].cursor


def _bytes(call: Call, sha256: str, media_type: str, name: str) -> Response:
    """The file, or the range of it that was asked for."""
    try:
        path = call.services.payloads.path_of(sha256)
        stat = path.stat(follow_symlinks=False)
    except (MissingPayload, FileNotFoundError):
        raise problem("not_found", "The bytes are not there any more.") from None
    tag = f'"{sha256}"'
    plain = media_type.partition(";")[0].strip().lower()
    kind = "inline" if plain in _INLINE else "attachment"
    headers = {
        **SAFE_HEADERS,
        "ETag": tag,
        "Content-Disposition": f"{kind}; filename*=utf-8''{quote(name, safe='')}",
        "Content-Type": media_type if _MEDIA_TYPE.match(media_type) else "application/octet-stream",
    }
    asked = call.request.headers
    if asked.get("if-none-match") in (tag, f"W/{tag}", "*"):
        return Response(status_code=304, headers=headers)
    match _wanted_range(asked.get("range"), stat.st_size):
        case None:
            _forget_range(call)
        case (first, last) if first > last:
            refusal = Problem("bad_request", "The bytes end before this range.", field="Range", limit=stat.st_size)
            answer = problems.answer(refusal, call.request_id, status=416)
            answer.headers["Content-Range"] = f"bytes */{stat.st_size}"
            return answer
        case _:
            pass
    return FileResponse(path, headers=headers, media_type=headers["Content-Type"], stat_result=stat)


def _wanted_range(header: str | None, size: int) -> tuple[int, int] | None:
    """First and last byte of the one range asked for; first > last when it lies behind the end; None for all."""
    match = _RANGE.match(header or "")
    if match is None or not (match[1] or match[2]):
        return None
    if not match[1]:
        length = min(int(match[2]), size)
        return (size - length, size - 1) if length else (size, size - 1)
    first, last = int(match[1]), int(match[2]) if match[2] else size - 1
    if match[2] and last < first:
        return None
    return first, min(last, size - 1)


def _forget_range(call: Call) -> None:
    """Without its Range header the request is answered whole, as the standard allows."""
    scope = call.request.scope
    scope["headers"] = [(name, value) for name, value in scope["headers"] if name != b"range"]


ROUTES: Final = (
    route("/v1/runs/{run}/artifacts", index),
    route("/v1/runs/{run}/artifacts/{artifact}", download),
    route("/v1/runs/{run}/payloads/{ref}", payload),
)
