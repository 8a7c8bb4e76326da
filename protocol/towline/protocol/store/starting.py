"""Starting a run: from a valid request to a stored run, exactly once per key.

Promises that a repeat with the same Idempotency-Key, or the same own id and input, answers the run that exists,
and that 50 of them at once make one run. Leaves HTTP and credentials to the gateway.
"""

import hashlib
import hmac
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import replace

from towline.protocol import commands as c
from towline.protocol import event_data as d
from towline.protocol import schemas, times
from towline.protocol.codec import NewEntry
from towline.protocol.errors import ProblemError, problem
from towline.protocol.events import Actor
from towline.protocol.grants import GrantRole, grant_field
from towline.protocol.ids import (
    derived_run_id,
    is_client_run_id,
    is_name,
    is_thread,
    new_run_id,
    partition_of,
    random_id,
)
from towline.protocol.limits import (
    HEADLINE_CHARS,
    LABEL_CHARS,
    LABELS,
    RETENTION_MAX_MS,
    THREAD_CHARS,
)
from towline.protocol.projection import Caller
from towline.protocol.store import acceptance, api
from towline.protocol.store.given import Given, settle, take_input
from towline.protocol.store.granting import initial, listings_of
from towline.protocol.store.payloads import Payloads
from towline.protocol.store.placing import create_alone, create_in_thread, other_body, reserved_id
from towline.protocol.store.redis import RedisStore
from towline.protocol.store.threads import thread_field
from towline.protocol.validation import to_time_ms
from towline.protocol.values import Budget, JsonObject, OnBusy

Label = Annotated[str, Meta(max_length=LABEL_CHARS)]


class Retention(Struct, frozen=True, forbid_unknown_fields=True):
    """How long an ended run stays in the store before it may be archived (an hour if nothing is said)."""

    archive_after_ms: Annotated[int, Meta(ge=0, le=RETENTION_MAX_MS)]


class StartCommand(Struct, frozen=True):
    """A command that is accepted in the step that makes the run; where the run exists, as if it were sent to it.

    `command_id`: the Idempotency-Key of the start if there is one, else drawn.
    """

    type: str
    data: Any = None
    command_id: str | None = None


class StartRun(Struct, frozen=True, kw_only=True):
    """The body of `POST /runs`.

    `thread`: runs of one subject in a thread go one after the other; `on_busy`: what becomes of this one if another is
    unfinished (the workflow's own word if absent, else `enqueue`). `queue` absent is the workflow's own; null, from a
    worker, is none: the caller holds the run itself. `start_at`: a time (RFC 3339) before which nobody runs it, and at
    which it joins its thread; one that is past is now.
    """

    workflow: str
    input: Any = None
    id: str | None = None
    labels: Annotated[dict[Label, Label], Meta(max_length=LABELS)] | None = None
    headline: Annotated[str, Meta(min_length=1, max_length=HEADLINE_CHARS)] | None = None
    budget: Budget | None = None
    queue: str | UnsetType | None = UNSET
    scope: Any = None
    permission_mode: Annotated[str, Meta(max_length=64)] | None = None
    thread: Annotated[str, Meta(min_length=1, max_length=THREAD_CHARS)] | None = None
    grants: dict[str, str] | None = None
    on_busy: OnBusy | None = None
    command: StartCommand | None = None
    retention: Retention | None = None
    start_at: str | None = None


CHANNEL_VERSION: Final = "0"
"""The version of every run without a queue: no code is pinned to it."""


class Started(Struct, frozen=True):
    """The run that stands for a request. `existing`: its own id existed; `replayed`: its key was used before."""

    run: str
    existing: bool = False
    replayed: bool = False


def choose_version(announced: Sequence[api.Announced], workflow: str) -> api.WorkflowInfo:
    """The newest announced version of `workflow`. Raises `bad_request` for one that no worker ever announced."""
    infos = [a.workflow for a in announced if a.workflow.name == workflow]
    if not infos:
        known = sorted({a.workflow.name for a in announced})
        raise problem(
            "bad_request",
            f"No worker ever announced a workflow {workflow!r}. Start a worker that has it, or name another.",
            field="workflow",
            known=known,
        )
    return max(infos, key=lambda info: _natural(info.version))


def _nobodys(workflow: str) -> api.WorkflowInfo:
    """What stands for the workflow of a run that no queue hands out."""
    if not is_name(workflow):
        raise problem("bad_request", "A workflow is named like an identifier.", field="workflow")
    return api.WorkflowInfo(name=workflow, version=CHANNEL_VERSION, queue="", input_schema={})


def _natural(version: str) -> list[tuple[int, int, str]]:
    parts = re.findall(r"\d+|\D+", version)
    return [(1, int(p), "") if p.isdigit() else (0, 0, p) for p in parts]


async def start_run(
    store: RedisStore,
    payloads: Payloads,
    request: StartRun,
    *,
    caller: Caller,
    announced: Sequence[api.Announced],
    idempotency_key: str | None = None,
    traceparent: str | None = None,
    without_queue: bool = False,
    may_cancel: Callable[[str], bool] = lambda _: True,
) -> Started:
    """Stores the run, its first event and its start in one step. What the input names is the run's by then.

    `caller`: who starts it, as it is on the run then. `without_queue`: no worker is looked for, so the workflow may be
    any name; its starter claims it. `may_cancel`: whether the credential lets the caller cancel a run, for `interrupt`.

    Raises `ProblemError`: `bad_request`, `conflict`, `rate_limited`, `idempotency_mismatch`, `gone`, `too_large`,
    what a command is refused with, and `not_found` for an upload that the subject does not have.
    """
    subject = caller.subject
    info = _nobodys(request.workflow) if without_queue else choose_version(announced, request.workflow)
    schemas.check(request.input, info.input_schema, field="input")
    queue = info.queue if without_queue else request.queue or info.queue
    if not without_queue and queue not in {a.workflow.queue for a in announced}:
        raise problem("bad_request", f"No worker ever announced the queue {queue!r}.", field="queue")
    if request.id is not None and not is_client_run_id(request.id):
        raise problem(
            "bad_request",
            "An id of your own is 1 to 128 of [A-Za-z0-9._-], begins with a letter or digit, and not with 'run_'.",
            field="id",
        )
    _check_thread(request)
    grants = initial(subject, request.grants or {})
    start_ms = 0 if request.start_at is None else to_time_ms(request.start_at, "start_at")
    command = _command(request, idempotency_key)
    field = None if request.thread is None else thread_field(subject, request.thread)
    run = await _run_id(store, request, subject, idempotency_key, field)
    given = await _take_input(store, payloads, request, subject, run)
    started_with = _digest([request.workflow, request.input])
    fingerprint = f"{started_with}:{_digest(request)}"
    new = _new_run(request, run, fingerprint, info, queue, subject, grants, given, traceparent, start_ms)
    if command is not None:
        with _about_command():
            first = await acceptance.prepare_first(store, new, command, caller, info.signals)
        new = replace(new, command=first)
    if field is None:
        created = await create_alone(store, new)
    else:
        on_busy = request.on_busy or ("enqueue" if start_ms > store.now_ms() else info.on_busy) or "enqueue"
        created = await create_in_thread(store, new, field, on_busy, caller, may_cancel)
    if created.existing is None:
        await settle(store, payloads, given, run)
        if command is not None and command.type == "cancel":
            await acceptance.close_unstarted(store, run)
        return Started(run)
    same_body = created.existing.fingerprint == fingerprint
    if idempotency_key is not None and request.id is None:
        if not same_body:
            raise other_body()
        return Started(run, replayed=True)
    same_start = created.existing.fingerprint.split(":")[0] == started_with
    if created.existing.owner != subject or not same_start:
        raise problem("conflict", "A run with this id exists already; choose another id.", field="id")
    if command is not None:
        facts = await store.facts(run)
        signals = _signals(announced, facts.workflow, facts.version)
        with _about_command():
            await acceptance.send_command(store, run, command, caller, signals=signals)
    return Started(run, existing=True, replayed=idempotency_key is not None and same_body)


def _command(request: StartRun, key: str | None) -> c.Command | None:
    asked = request.command
    if asked is None:
        return None
    named = key if asked.command_id is None else asked.command_id
    with _about_command():
        return c.decode(asked.type, asked.data, random_id("cmd") if named is None else named)


@contextmanager
def _about_command() -> Iterator[None]:
    """Inside, a problem with a command names its field as the body of a start does."""
    try:
        yield
    except ProblemError as error:
        name = error.problem.field
        raise ProblemError(replace(error.problem, field=f"command.{name}" if name else "command")) from None


def _signals(announced: Sequence[api.Announced], workflow: str, version: str) -> Mapping[str, JsonObject] | None:
    for a in announced:
        if (a.workflow.name, a.workflow.version) == (workflow, version):
            return a.workflow.signals
    return None


def _check_thread(request: StartRun) -> None:
    if request.thread is None:
        if request.on_busy is not None:
            raise problem("bad_request", "on_busy is about a thread; name one, or leave it out.", field="on_busy")
        return
    if request.id is not None:
        raise problem("bad_request", "A run of a thread has its id from us; leave id or thread out.", field="id")
    if not is_thread(request.thread):
        raise problem("bad_request", "A thread is named without control characters.", field="thread")
    if request.start_at is not None and request.on_busy not in (None, "enqueue"):
        raise problem(
            "bad_request",
            "A run with a time to start joins its thread then, behind what is unfinished: only enqueue goes with it.",
            field="on_busy",
        )


async def _run_id(store: RedisStore, request: StartRun, subject: str, key: str | None, thread: str | None) -> str:
    """The id of the run that the request makes, or has made."""
    if request.id is not None:
        return request.id
    beside = None if thread is None else partition_of(thread)
    if key is None:
        return new_run_id(beside)
    # With a key the id is derived, so creating if absent is what makes a repeat harmless.
    digest = hmac.new(store.secret, b"\0".join((b"run", subject.encode(), key.encode())), hashlib.sha256).digest()
    derived = derived_run_id(digest)
    return derived if beside is None else await reserved_id(store, derived, beside)


async def _take_input(store: RedisStore, payloads: Payloads, request: StartRun, subject: str, run: str) -> Given:
    try:
        return await take_input(store, payloads, request.input, subject=subject, run=run)
    except ProblemError:
        # Of a repeated start the uploads may have ended long ago; what it is answered does not depend on them.
        with suppress(api.NoRun, api.RunGone):
            await store.facts(run)
            return Given(b"", None, {}, {})
        raise


def _new_run(
    request: StartRun,
    run: str,
    fingerprint: str,
    info: api.WorkflowInfo,
    queue: str,
    subject: str,
    grants: Mapping[str, GrantRole],
    given: Given,
    traceparent: str | None,
    start_ms: int,
) -> api.NewRun:
    data = d.RunCreated(
        workflow=info.name,
        version=info.version,
        owner=subject,
        queue=queue or None,
        headline=request.headline or info.name[:HEADLINE_CHARS],
        grants=dict(grants),
        budget=request.budget,
        scope=request.scope,
        labels=request.labels,
        input_ref=given.input_ref,
        thread=request.thread,
        permission_mode=request.permission_mode,
        retention=request.retention and msgspec.to_builtins(request.retention),
        start_at=times.to_wire(start_ms) if start_ms else None,
        traceparent=traceparent,
    )
    return api.NewRun(
        run=run,
        nonce=secrets.token_hex(8),
        fingerprint=fingerprint,
        owner=subject,
        workflow=info.name,
        version=info.version,
        queue=queue,
        created=NewEntry("run.created", Actor("user", subject), data, private=given.private),
        side={**{grant_field(entry): role for entry, role in grants.items()}, **given.side},
        listed=[prefix for entry, role in grants.items() for prefix in listings_of(entry, role, subject)],
        start_ms=start_ms,
        retain_ms=None if request.retention is None else request.retention.archive_after_ms,
    )


def _digest(value: Any) -> str:
    return hashlib.sha256(msgspec.json.encode(value, order="deterministic")).hexdigest()[:32]
