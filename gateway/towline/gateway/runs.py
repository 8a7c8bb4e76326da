"""Runs over HTTP: start, list, read, cancel, delete.

Promises what section 2 of the contract says of `/runs` and `/runs/{id}`: exactly one run per Idempotency-Key or own
id, lists that are stable under insertion and show only what the caller may read, and an answer to `wait_ms` as soon
as the run goes beyond `after`. Leaves the start itself to `store.starting`, the cancel to `store.acceptance`,
the end of all of it to `store.purging`.
"""

import asyncio
import base64
import binascii
import logging
import re
from typing import Any, Final

from starlette.responses import Response

from towline.gateway import access, claiming
from towline.gateway.filters import Filter, read_filter
from towline.gateway.http import Call, json_answer, route
from towline.gateway.mounting import root_of
from towline.protocol import source_paths
from towline.protocol.commands import Cancel
from towline.protocol.cursor import LATEST, Cursor
from towline.protocol.errors import ProblemError, problem
from towline.protocol.ids import is_command_id
from towline.protocol.limits import LIST_DEFAULT, LIST_MAX, WAIT_MAX_MS
from towline.protocol.projection import Caller
from towline.protocol.store.acceptance import cancel_run
from towline.protocol.store.api import Loaded, NoRun, RunGone
from towline.protocol.store.keys import EVERYONE, listed_for, listed_for_group
from towline.protocol.store.purging import purge_run
from towline.protocol.store.starting import CHANNEL_VERSION, StartRun, start_run

_security: Final = logging.getLogger("towline.security")
_PASSES: Final = 4
"""How often a page of a filtered list reads on before it is answered short, with its `next_page`."""
_POSITION: Final = re.compile(r"[0-9]{1,16}\|[A-Za-z0-9._-]{1,128}\Z")
_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}\Z")
_LOADS: Final = 25


class CancelBody(Cancel, frozen=True):
    """The body of `POST …/cancel`."""

    command_id: str | None = None


async def create(call: Call) -> Response:
    """`POST /v1/runs`."""
    access.require(call.credential, "start")
    key = call.idempotency_key()
    body = await call.body(StartRun)
    services = call.services
    await services.admission.create(call.who)
    if body.command is not None:
        access.require(call.credential, "command")
        await services.admission.command(call.who, body.command.type)
    _check_source(body.input, services.settings.allow_paths)
    traceparent = call.request.headers.get("traceparent", "")
    started = await start_run(
        services.store,
        services.payloads,
        body,
        caller=access.starter(call.credential),
        announced=await services.announced(fresh=True),
        idempotency_key=key,
        traceparent=traceparent if _TRACEPARENT.match(traceparent) else None,
        may_cancel=lambda run: call.credential.allows("command") and access.covers(call.credential, run),
        without_queue=body.queue is None and "worker" in call.credential.roles,
    )
    caller, _ = await services.reach(call.credential, started.run, verb=None)
    headers = {"Location": f"{root_of(call.request)}/v1/runs/{started.run}"}
    if started.existing:
        headers["Towline-Existing"] = "true"
    if started.replayed:
        headers["Idempotency-Replayed"] = "true"
    status = 200 if started.existing or started.replayed else 201
    if body.queue is None and "worker" in call.credential.roles:
        taken = None if status == 200 else await claiming.take_started(call, started.run, CHANNEL_VERSION)
        answer = taken or {"run": await services.run_as(caller, started.run), "lease": None}
        return json_answer(answer, status, headers)
    return json_answer(await services.run_as(caller, started.run), status, headers)


def _check_source(value: Any, roots: tuple[str, ...]) -> None:
    """Refuses an `input.source.path` outside the allowed roots, where any are named."""
    source = value.get("source") if isinstance(value, dict) else None
    path = source.get("path") if isinstance(source, dict) else None
    if not roots or not isinstance(path, str):
        return
    try:
        source_paths.resolve_source(path, roots)
    except source_paths.SourcePathError as error:
        raise problem(
            "bad_request", f"{source_paths.FIELD}: {error}.", field=source_paths.FIELD, expected="an allowed folder"
        ) from None


async def index(call: Call) -> Response:
    """`GET /v1/runs`."""
    access.require(call.credential, "read")
    wanted = read_filter(call.query)
    owner = wanted.owner
    limit = call.query_int("limit", LIST_DEFAULT, 1, LIST_MAX)
    before = _position(call.query("page"))
    subject = call.credential.subject
    is_operator = "operator" in call.credential.roles
    if not is_operator:
        prefixes = [listed_for(subject), *(listed_for_group(group) for group in call.credential.groups)]
    else:
        prefixes = [EVERYONE if owner is None else listed_for(owner)]
    items: list[dict[str, Any]] = []
    next_page: str | None = None
    for _ in range(_PASSES):
        asked = limit - len(items)
        rows = await call.services.store.list_runs(*prefixes, before=before, limit=asked)
        items += await _readable(call, [run for _, run in rows], wanted)
        if len(rows) < asked:
            next_page = None
            break
        before = rows[-1][0]
        next_page = base64.urlsafe_b64encode(before.encode()).decode().rstrip("=")
        if len(items) >= limit:
            break
    return json_answer({"items": items, "next_page": next_page})


async def _readable(call: Call, runs: list[str], wanted: Filter) -> list[dict[str, Any]]:
    """The Runs among `runs` that the caller may read and `wanted` takes, in order."""
    items: list[dict[str, Any]] = []

    async def load(run: str) -> tuple[Caller, Loaded] | None:
        try:
            caller, _ = await call.services.reach(call.credential, run, in_list=True)
            return caller, await call.services.store.load(run)
        except (NoRun, RunGone, ProblemError):
            return None

    covered = [run for run in runs if access.covers(call.credential, run)]
    for start in range(0, len(covered), _LOADS):
        for found in await asyncio.gather(*(load(run) for run in covered[start : start + _LOADS])):
            if found is not None and wanted.takes(found[1].run):
                items.append(await call.services.project(found[1], found[0]))
    return items


def _position(page: str | None) -> str | None:
    if page is None:
        return None
    try:
        text = base64.urlsafe_b64decode(page + "=" * (-len(page) % 4)).decode("ascii")
    except (binascii.Error, ValueError):
        text = ""
    if not _POSITION.match(text):
        raise problem("bad_request", "Send `next_page` as it came.", field="page", expected="a next_page")
    return text


async def show(call: Call) -> Response:
    """`GET /v1/runs/{run}`."""
    run = call.path("run")
    after = call.query_cursor()
    wait_ms = call.query_int("wait_ms", 0, 0, WAIT_MAX_MS)
    caller, facts = await call.services.reach(call.credential, run)
    if wait_ms and after is not None and not facts.sealed:
        await _wait_beyond(call, run, facts.head if after == LATEST else after, wait_ms)
        caller = await call.reach_again(run)
    loaded = await call.services.store.load(run)
    wire = await call.services.project(loaded, caller)
    beat = wire["worker"]["heartbeat_at"] if wire["worker"] else ""
    tag = f'W/"{loaded.cursor}.{caller.role}.{beat}"'
    if call.request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers={"ETag": tag})
    return json_answer(wire, headers={"ETag": tag})


async def _wait_beyond(call: Call, run: str, after: Cursor | str, wait_ms: int) -> None:
    """Returns once the log's head is another than `after`, or the time is over."""
    assert isinstance(after, Cursor)
    services = call.services
    loop = asyncio.get_running_loop()
    until_s = loop.time() + wait_ms / 1000
    async with services.watching(run) as watcher:
        while not services.draining.is_set():
            facts = await services.store.facts(run)
            is_there = facts.head.seq == after.seq and after.tag in (None, facts.head.tag)
            if facts.sealed or not is_there or not await watcher.wait(until_s - loop.time()):
                return


async def cancel(call: Call) -> Response:
    """`POST /v1/runs/{run}/cancel`: answers the Run in every state."""
    access.require(call.credential, "command")
    run = call.path("run")
    caller, _ = await call.services.reach(call.credential, run, verb=None)
    body = await call.body(CancelBody, optional=True)
    command_id = call.idempotency_key() if body.command_id is None else body.command_id
    if command_id is not None and not is_command_id(command_id):
        raise problem(
            "bad_request", "A command id is 1 to 128 of [A-Za-z0-9._:-].", field="command_id", expected="a command id"
        )
    await call.services.admission.command(call.who, "cancel")
    data = Cancel(reason=body.reason, grace_ms=body.grace_ms)
    await cancel_run(call.services.store, run, data, caller, command_id=command_id)
    return json_answer(await call.services.run_as(caller, run))


async def delete(call: Call) -> Response:
    """`DELETE /v1/runs/{run}`: for good, once it has ended; of a run that is deleted, what is left of it."""
    run, credential = call.path("run"), call.credential
    may = "operator" in credential.roles and credential.allows("admin")
    try:
        caller, _ = await call.services.reach(credential, run)
        access.require(credential, "admin")
        access.require_role(caller, "operator")
    except RunGone:
        if not may:
            raise
    _security.warning("%r deletes %s", credential.subject, run)
    await purge_run(call.services.store, call.services.payloads, run, by=credential.subject)
    call.services.logs.forget(run)
    return Response(status_code=204)


ROUTES: Final = (
    route("/v1/runs", create, "POST"),
    route("/v1/runs", index),
    route("/v1/runs/{run}", show),
    route("/v1/runs/{run}", delete, "DELETE"),
    route("/v1/runs/{run}/cancel", cancel, "POST"),
)
