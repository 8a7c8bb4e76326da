"""Artifacts and payloads over HTTP: what a run made, as a list and as bytes.

Promises that bytes are sent only to who may read the event that announced them, decided anew at each read: by
the caller's role, or by the lease that a worker shows. Leaves how they are sent to `sending`.
"""

import re
from collections.abc import AsyncIterator
from typing import Any, Final

import msgspec
from starlette.responses import Response

from towline.gateway.http import Call, json_answer, route
from towline.gateway.leases import role_of
from towline.gateway.sending import send_bytes
from towline.protocol.codec import Entry, type_of
from towline.protocol.cursor import START, Cursor
from towline.protocol.errors import ProblemError, problem
from towline.protocol.events import EVENTS
from towline.protocol.ids import is_upload_ref
from towline.protocol.limits import LIST_DEFAULT, LIST_MAX
from towline.protocol.projection import Role, may_read, project_entry
from towline.protocol.store.api import Diverged
from towline.protocol.store.given import given_upload, upload_field

_REF: Final = re.compile(r"[A-Za-z0-9_:.-]{1,128}\Z")
_PAGE: Final = re.compile(r"a[0-9]{1,16}\Z", re.ASCII)
INPUT_AUDIENCE: Final = EVENTS["run.created"].fields["input_ref"]
_HASH: Final = re.compile(r"(?:.*[:_])?([0-9a-f]{64})\Z")


async def index(call: Call) -> Response:
    """`GET /v1/runs/{run}/artifacts`, oldest first."""
    run, role = call.path("run"), await role_of(call)
    limit, after = call.query_int("limit", LIST_DEFAULT, 1, LIST_MAX), _position(call.query("page"))
    items: list[dict[str, Any]] = []
    async for item in _made(call, run, role, after):
        if len(items) == limit:
            return json_answer({"items": items, "next_page": f"a{items[-1]['seq']}"})
        items.append(item)
    return json_answer({"items": items, "next_page": None})


def _position(page: str | None) -> Cursor:
    if page is None:
        return START
    if not _PAGE.match(page):
        raise problem("bad_request", "Send `next_page` as it came.", field="page", expected="a next_page")
    return Cursor(int(page[1:]))


async def _made(call: Call, run: str, role: Role, after: Cursor = START) -> AsyncIterator[dict[str, Any]]:
    """The artifacts that `role` may read, in order: those whose event was trimmed, then those of the log."""
    store = call.services.store
    first_seq = (await store.facts(run)).first_seq
    if after.seq + 1 < first_seq:
        kept = [msgspec.json.decode(text) for text in (await store.side_matching(run, "a|")).values()]
        gone = [each for each in kept if after.seq < each.get("seq", 0) < first_seq]
        for each in sorted(gone, key=lambda each: int(each["seq"])):
            if may_read(role, each["audience"]):
                yield each
    try:
        async for entry in store.entries(run, after):
            if type_of(entry.raw) == "artifact.created" and may_read(role, entry.meta.audience):
                yield _described(entry)
    except Diverged:
        return  # a page behind the end


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
    run, wanted = call.path("run"), call.path("artifact")
    async for found in _made(call, run, await role_of(call)):
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
    """Whether an event, as `role` reads it, names the payload, or the run's input is it."""
    store = call.services.store
    if may_read(role, INPUT_AUDIENCE) and ref == (await store.load(run)).run.input_ref:
        return True
    mark = f'"{ref}"'.encode()
    async for entry in store.entries(run):
        # The mark may also stand in a text; only the envelope's own member counts.
        if mark in entry.raw and ref == msgspec.json.decode(project_entry(entry, role))["ref"]:
            return True
    return False


def _not_named() -> ProblemError:
    return problem("not_found", "No event of this run that you may read names this payload.")


ROUTES: Final = (
    route("/v1/runs/{run}/artifacts", index),
    route("/v1/runs/{run}/artifacts/{artifact}", download, ticket="artifact"),
    route("/v1/runs/{run}/payloads/{ref}", payload),
)
