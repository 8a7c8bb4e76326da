"""Starting a run: from a valid request to a stored run, exactly once per key.

Promises that a repeat with the same Idempotency-Key, or the same own id and input, answers the run that exists,
and that 50 of them at once make one run. Leaves HTTP and credentials to the gateway.
"""

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import replace

from towline.protocol import commands as c
from towline.protocol import event_data as d
from towline.protocol import schemas, times
from towline.protocol.codec import NewEntry, TooLarge
from towline.protocol.errors import ProblemError, problem
from towline.protocol.events import Actor
from towline.protocol.grants import GrantRole, grant_field
from towline.protocol.ids import derived_run_id, is_client_run_id, is_name, new_run_id, random_id
from towline.protocol.limits import HEADLINE_CHARS, LABEL_CHARS, LABELS, RETENTION_MAX_MS
from towline.protocol.projection import Caller
from towline.protocol.store import acceptance, api
from towline.protocol.store.given import Given, settle, take_input
from towline.protocol.store.granting import initial, listings_of
from towline.protocol.store.payloads import Payloads
from towline.protocol.store.redis import RedisStore
from towline.protocol.validation import to_time_ms
from towline.protocol.values import Budget, JsonObject

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
    """The body of `POST /runs`. Members that are not served yet are refused by name when they are set.

    `queue` absent is the workflow's own; null, from a worker, is none: the caller holds the run itself. `start_at`: a
    time (RFC 3339) before which nobody runs it; one that is past is now.
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
    thread: str | None = None
    grants: dict[str, str] | None = None
    on_busy: str | None = None
    command: StartCommand | None = None
    retention: Retention | None = None
    start_at: str | None = None


CHANNEL_VERSION: Final = "0"
"""The version of every run without a queue: no code is pinned to it."""

NOT_SERVED: Final = ("thread", "on_busy")


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
) -> Started:
    """Stores the run, its first event and its start in one step. What the input names is the run's by then.

    `caller`: who starts it, as it is on the run then. `without_queue`: no worker is looked for, so the workflow may be
    any name; its starter claims it.

    Raises `ProblemError`: `bad_request`, `unsupported`, `conflict`, `idempotency_mismatch`, `gone`, `too_large`, what a
    command is refused with, and `not_found` for an upload that the subject does not have.
    """
    subject = caller.subject
    for name in NOT_SERVED:
        if getattr(request, name) is not None:
            raise problem("unsupported", f"{name!r} is not served yet; leave it out.", field=name)
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
    grants = initial(subject, request.grants or {})
    start_ms = 0 if request.start_at is None else to_time_ms(request.start_at, "start_at")
    command = _command(request, idempotency_key)
    run = _run_id(store, request, subject, idempotency_key)
    given = await _take_input(store, payloads, request, subject, run)
    started_with = _digest([request.workflow, request.input])
    fingerprint = f"{started_with}:{_digest(request)}"
    new = _new_run(request, run, fingerprint, info, queue, subject, grants, given, traceparent, start_ms)
    if command is not None:
        with _about_command():
            first = await acceptance.prepare_first(store, new, command, caller, info.signals)
        new = replace(new, command=first)
    created = await _create(store, new)
    if created.existing is None:
        await settle(store, payloads, given, run)
        if command is not None and command.type == "cancel":
            await acceptance.close_unstarted(store, run)
        return Started(run)
    same_body = created.existing.fingerprint == fingerprint
    if idempotency_key is not None and request.id is None:
        if not same_body:
            raise problem("idempotency_mismatch", "The Idempotency-Key was used with another body; use a new one.")
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


def _run_id(store: RedisStore, request: StartRun, subject: str, key: str | None) -> str:
    if request.id is not None:
        return request.id
    if key is None:
        return new_run_id()
    # With a key the id is derived, so creating if absent is what makes a repeat harmless.
    digest = hmac.new(store.secret, b"\0".join((b"run", subject.encode(), key.encode())), hashlib.sha256).digest()
    return derived_run_id(digest)


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


async def _create(store: RedisStore, new: api.NewRun) -> api.Created:
    try:
        return await store.create_run(new)
    except api.RunGone as gone:
        # Of another's run nobody learns more than that the id is taken.
        code = "gone" if gone.owner == new.owner else "conflict"
        what = "The run with this id was deleted" if gone.owner == new.owner else "A run with this id exists already"
        raise problem(code, f"{what}; choose another id.", field="id") from None
    except TooLarge as error:
        if error.type != "run.created":
            raise problem("too_large", f"The command is too large for the log: {error}", field="command.data") from None
        raise problem("too_large", f"scope, labels and grants are too large: {error}", field="scope") from None


def _digest(value: Any) -> str:
    return hashlib.sha256(msgspec.json.encode(value, order="deterministic")).hexdigest()[:32]
