"""Artifacts and payloads over HTTP: what a run made, as a list and as bytes.

Promises that bytes are sent only to who may read the event that announced them, decided anew at each read:
by the caller's role, or by the lease that a worker shows. Leaves how
they are sent to `sending`.
"""

import re
from typing import Any, Final

from starlette.responses import Response

from towline.gateway.http import Call, json_answer, route
from towline.gateway.leases import role_of
from towline.gateway.sending import send_bytes
from towline.protocol.codec import Entry
from towline.protocol.cursor import START
from towline.protocol.errors import ProblemError, problem
from towline.protocol.events import EVENTS
from towline.protocol.ids import is_upload_ref
from towline.protocol.limits import STORE_PAGE_EVENTS
from towline.protocol.projection import Role, may_read
from towline.protocol.store.given import given_upload, upload_field

_REF: Final = re.compile(r"[A-Za-z0-9_:.-]{1,128}\Z")
INPUT_AUDIENCE: Final = EVENTS["run.created"].fields["input_ref"]
_HASH: Final = re.compile(r"(?:.*[:_])?([0-9a-f]{64})\Z")


async def index(call: Call) -> Response:
    """`GET /v1/runs/{run}/artifacts`."""
    return json_answer({"items": await _listed(call), "next_page": None})


async def _listed(call: Call) -> list[dict[str, Any]]:
    run, role = call.path("run"), await role_of(call)
    return [
        _described(entry)
        for entry in await call.services.find_entries(run, frozenset({"artifact.created"}))
        if may_read(role, entry.meta.audience)
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
            return await send_bytes(call, found["sha256"], found["media_type"], found["name"])
    raise problem("not_found", "The run has no such artifact, or you may not read it.")


async def payload(call: Call) -> Response:
    """`GET /v1/runs/{run}/payloads/{ref}`: what an event of this run, or its input, names."""
    run, ref = call.path("run"), call.path("ref")
    role = await role_of(call)
    if is_upload_ref(ref):
        return await _upload(call, run, ref, role)
    sha256 = _HASH.match(ref)
    if not _REF.match(ref):
        raise problem("bad_request", "No payload has such a reference.", field="ref", expected="a ref of an event")
    if sha256 is None or not await _is_named(call, run, ref, role):
        raise _not_named()
    return await send_bytes(call, sha256[1], "application/json", ref)


async def _upload(call: Call, run: str, ref: str, role: Role) -> Response:
    """An upload that the run took: it is part of the input, and as hidden."""
    field = upload_field(ref)
    found = await call.services.store.side_fields(run, [field])
    if field not in found or not may_read(role, INPUT_AUDIENCE):
        raise _not_named()
    given = given_upload(found[field])
    return await send_bytes(call, given.sha256, given.media_type, ref)


async def _is_named(call: Call, run: str, ref: str, role: Role) -> bool:
    mark, after = f'"{ref}"'.encode(), START
    while True:
        page = await call.services.store.read_log(run, after, limit=STORE_PAGE_EVENTS)
        for entry in page.entries:
            # The mark may also stand in a text; only the envelope's own member counts, and the first event's input.
            if mark not in entry.raw:
                continue
            if may_read(role, entry.meta.audience) and entry.event().ref == ref:
                return True
            if entry.seq == 1 and may_read(role, INPUT_AUDIENCE) and entry.event().data.get("input_ref") == ref:
                return True
        if len(page.entries) < STORE_PAGE_EVENTS:
            return False
        after = page.entries[-1].cursor


def _not_named() -> ProblemError:
    return problem("not_found", "No event of this run that you may read names this payload.")


ROUTES: Final = (
    route("/v1/runs/{run}/artifacts", index),
    route("/v1/runs/{run}/artifacts/{artifact}", download, ticket="artifact"),
    route("/v1/runs/{run}/payloads/{ref}", payload),
)
