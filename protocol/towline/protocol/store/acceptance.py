"""Accepting a command: rights, state, dedup, and the entries that one script appends.

Promises that a command is refused without a trace, or accepted with its event before the receipt; that a repeat
of its id answers the present outcome; and that what was prepared on a state that has changed since is prepared
again. Leaves the wire to the gateway. Read `commands` and `requests` first.
"""

import logging
import secrets
from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

from towline.protocol import commands as c
from towline.protocol import event_data as d
from towline.protocol import requests, schemas, times
from towline.protocol.codec import NewEntry, TooLarge
from towline.protocol.cursor import START
from towline.protocol.errors import Problem, ProblemError, problem
from towline.protocol.events import Actor
from towline.protocol.limits import CHANGED_ATTEMPTS, GRACE_DEFAULT_MS
from towline.protocol.projection import Caller
from towline.protocol.run_state import Run
from towline.protocol.store import api, deciding, pausing
from towline.protocol.store.closing import force_close
from towline.protocol.store.deciding import Outcome, received
from towline.protocol.store.openends import SYSTEM
from towline.protocol.store.redis import RedisStore
from towline.protocol.values import JsonObject

INTERRUPTED: Final = "Another run of its thread takes its place."
_log: Final = logging.getLogger("towline.store")


async def send_command(
    store: RedisStore,
    run: str,
    command: c.Command,
    caller: Caller,
    *,
    signals: Mapping[str, JsonObject] | None = None,
    not_after_ms: int | None = None,
) -> c.Receipt:
    """Accepts `command` on `run` for `caller`; its receipt.

    `signals`: the signals the workflow declares with the schema of each, or None when no worker announced it yet.
    Raises `ProblemError` for a refusal, `NoRun`, `RunGone`, `StoreUnavailable`.
    """
    repeat = await store.command_outcome(run, caller.subject, command.command_id)
    if repeat is not None:
        return await _repeated(store, run, command, repeat)
    for _ in range(CHANGED_ATTEMPTS):
        loaded = await store.load(run)
        if loaded.run.is_terminal:
            return _to_closed(command)
        _judge(command, caller)
        if not_after_ms is not None and store.now_ms() > not_after_ms:
            raise problem("expired", "The command arrived after its not_after; nothing was done.")
        try:
            prepared = await _prepare(store, loaded, command, caller, signals)
        except requests.AlreadySo:
            return c.receipt(command.command_id, command.type, "applied", duplicate=True)
        try:
            answer = await store.accept(prepared)
        except api.Changed:
            continue
        except api.RunClosed:
            return _to_closed(command)
        except TooLarge as error:
            raise problem("too_large", f"The command is too large for the log: {error}", field="data") from None
        match answer:
            case api.Repeated():
                return await _repeated(store, run, command, answer)
            case api.Flooded():
                raise problem(
                    "rate_limited",
                    f"{answer.unapplied} commands wait to be applied; send more when the run has read them.",
                    retry_after_ms=1000,
                )
            case api.Accepted():
                return await _accepted(store, loaded, command, prepared, answer)
    raise problem("overloaded", "The run changes too fast to accept this now; send it again.", retry_after_ms=200)


async def prepare_first(
    store: RedisStore, new: api.NewRun, command: c.Command, caller: Caller, signals: Mapping[str, JsonObject] | None
) -> api.Acceptance:
    """`command` for a run that the same step makes. Raises `ProblemError` for a refusal: then neither is made."""
    _judge(command, caller)
    run = Run(
        id=new.run, workflow=new.workflow, version=new.version, queue=new.queue or None, owner=new.owner, headline="",
        created_at="", updated_at="", last_seq=0,
    )  # fmt: skip
    facts = api.RunFacts(
        run=new.run, owner=new.owner, workflow=new.workflow, version=new.version, queue=new.queue,
        fingerprint=new.fingerprint, head=START, first_seq=1, input_seq=0, epoch=0, holder="", lease_until_ms=0,
        heartbeat_ms=0, step="", crashes=0, sealed=False, blocked=False, stopping_ms=0,
    )  # fmt: skip
    return await _prepare(store, api.Loaded(run, START, facts), command, caller, signals)


async def prepare_interrupt(store: RedisStore, run: str, caller: Caller) -> api.Acceptance | None:
    """A cancel of `run` that makes room for another; None if it is being cancelled or has ended.

    Raises `ProblemError`, `StoreUnavailable`.
    """
    loaded = await store.load(run)
    if loaded.run.is_terminal or loaded.facts.stopping_ms:
        return None
    command = c.decode("cancel", {"reason": INTERRUPTED}, f"interrupt-{secrets.token_hex(8)}")
    _judge(command, caller)
    return await _prepare(store, loaded, command, caller, None)


def _judge(command: c.Command, caller: Caller) -> None:
    if not c.may_send(command.type, caller.role):
        needs = c.COMMANDS[command.type].role
        raise problem("forbidden", f"Your role on this run does not include {command.type}.", needs=needs)
    if command.type not in c.SERVED:
        raise problem("unsupported", f"This run does not handle {command.type}.", field="type")


async def receipt_of(store: RedisStore, run: str, subject: str, command_id: str) -> c.Receipt:
    """The present outcome of an accepted command. Raises `not_found` for an id that was never accepted."""
    kept = await store.command_outcome(run, subject, command_id)
    if kept is None:
        raise problem("not_found", "You sent no command with this id to this run, or it was refused.")
    return replace(await _kept(store, run, command_id, kept), duplicate=False)


async def cancel_run(
    store: RedisStore, run: str, data: c.Cancel, caller: Caller, *, command_id: str | None = None
) -> None:
    """Cancels `run`, idempotently in every state. Without `command_id` a later deadline changes nothing.

    Raises `ProblemError` (`forbidden`, `idempotency_mismatch`), `NoRun`, `RunGone`, `StoreUnavailable`.
    """
    if not c.may_send("cancel", caller.role):
        raise problem("forbidden", "Your role on this run does not include cancel.", needs="owner")
    if command_id is None:
        facts = await store.facts(run)
        grace_ms = GRACE_DEFAULT_MS if data.grace_ms is None else data.grace_ms
        if facts.sealed or 0 < facts.stopping_ms <= store.now_ms() + grace_ms:
            return
    body = {k: v for k, v in (("reason", data.reason), ("grace_ms", data.grace_ms)) if v is not None}
    command = c.decode("cancel", body, command_id or f"cancel-{secrets.token_hex(8)}")
    await send_command(store, run, command, caller)


async def _repeated(store: RedisStore, run: str, command: c.Command, repeat: api.Repeated) -> c.Receipt:
    if repeat.fingerprint == command.fingerprint:
        return await _kept(store, run, command.command_id, repeat)
    if (await store.facts(run)).sealed:
        return _to_closed(command)
    raise problem("idempotency_mismatch", "This command_id was used with another body; use a new one.")


async def _kept(store: RedisStore, run: str, command_id: str, kept: api.Repeated) -> c.Receipt:
    if not kept.outcome:
        if kept.type == "cancel" and (ended := (await store.load(run)).run).is_terminal:
            # A cancel has no outcome of its own: the end of the run is it.
            effect = f"The run is {ended.status}."
            return c.receipt(command_id, kept.type, "applied", duplicate=True, seq=kept.seq, effect=effect)
        return c.receipt(command_id, kept.type, "accepted", duplicate=True, seq=kept.seq)
    outcome = msgspec.json.decode(kept.outcome, type=Outcome)
    refused = None
    if outcome.status == "rejected":
        refused = {"code": outcome.code, "detail": outcome.text}
    return c.receipt(
        command_id,
        kept.type,
        outcome.status,
        duplicate=True,
        seq=kept.seq,
        effect=outcome.effect,
        result=outcome.result,
        problem=refused,
    )


def _to_closed(command: c.Command) -> c.Receipt:
    if command.type == "cancel":
        return c.receipt(command.command_id, "cancel", "applied", effect="The run had ended before.")
    raise problem("run_closed", "The run has ended; nothing more reaches it.")


async def _prepare(
    store: RedisStore,
    loaded: api.Loaded,
    command: c.Command,
    caller: Caller,
    signals: Mapping[str, JsonObject] | None,
) -> api.Acceptance:
    base = api.Acceptance(
        run=loaded.run.id,
        nonce=secrets.token_hex(8),
        subject=caller.subject,
        command_id=command.command_id,
        fingerprint=command.fingerprint,
        type=command.type,
        queue=loaded.facts.queue,
        entries=(),
    )
    match command.data:
        case c.Decide():
            return await deciding.decide(store, base, command.data, caller)
        case c.Respond():
            return await deciding.answer(store, base, command.data, caller)
        case c.Cancel():
            return _cancel(base, loaded, command.data, store.now_ms())
        case c.Pause():
            return _steer(base, loaded, command.data)
        case c.Signal():
            return _signal(base, command, command.data, signals)
        case _:
            raise problem("unsupported", f"This run does not handle {command.type}.", field="type")


def _steer(base: api.Acceptance, loaded: api.Loaded, data: c.Pause) -> api.Acceptance:
    if base.type == "pause":
        steered = pausing.pause(loaded, base.subject, data.reason)
    else:
        steered = pausing.resume(loaded, base.subject)
    applied = d.CommandApplied(command_id=base.command_id, type=base.type, effect=steered.effect)
    return replace(
        base,
        entries=[
            received(base, {} if data.reason is None else {"reason": data.reason}, is_input=True),
            *steered.entries,
            NewEntry("command.applied", SYSTEM, applied, cause_index=0),
        ],
        input_index=0,
        outcome=msgspec.json.encode(Outcome("applied", effect=steered.effect)).decode(),
        paused=steered.paused,
        was_paused=loaded.facts.paused,
        was_held=steered.was_held,
    )


def _cancel(base: api.Acceptance, loaded: api.Loaded, data: c.Cancel, now_ms: int) -> api.Acceptance:
    deadline_ms = now_ms + (GRACE_DEFAULT_MS if data.grace_ms is None else data.grace_ms)
    requested = d.CancelRequested(
        command_id=base.command_id,
        by=f"user:{base.subject}",
        deadline=times.to_wire(deadline_ms),
        reason=data.reason,
    )
    entry = NewEntry("cancel.requested", Actor("user", base.subject), requested, is_input=True)
    steered = pausing.give_way(loaded, base.subject)
    return replace(
        base,
        entries=[entry, *steered.entries],
        input_index=0,
        deadline_ms=deadline_ms,
        paused=steered.paused,
        was_paused=loaded.facts.paused,
    )


def _signal(
    base: api.Acceptance, command: c.Command, data: c.Signal, signals: Mapping[str, JsonObject] | None
) -> api.Acceptance:
    payload = None if data.payload is msgspec.UNSET else data.payload
    if signals is None or data.name not in signals:
        raise ProblemError(
            Problem(
                "unsupported",
                f"This run does not handle the signal {data.name!r}.",
                field="data.name",
                known=sorted(signals or ()),
            )
        )
    schemas.check(payload, signals[data.name], field="data.payload")
    entry = received(base, payload, name=data.name, is_input=True)
    return replace(base, entries=[entry], input_index=0, counts=True, relief=False)


async def _accepted(
    store: RedisStore, loaded: api.Loaded, command: c.Command, prepared: api.Acceptance, answer: api.Accepted
) -> c.Receipt:
    status: c.ReceiptStatus = "applied" if prepared.outcome else "accepted"
    applies: c.Applies = "now"
    if status == "accepted" and command.type != "cancel":
        applies = "when_resumed" if loaded.run.status in ("paused", "blocked") else "next_step"
    effect = msgspec.json.decode(prepared.outcome, type=Outcome).effect if prepared.outcome else None
    if command.type == "cancel" and (loaded.facts.epoch == 0 or loaded.facts.blocked):
        # It never started, or its code cannot run: nobody would clean up, so there is nothing to wait for.
        await close_unstarted(store, loaded.run.id)
    return c.receipt(command.command_id, command.type, status, seq=answer.seq, applies=applies, effect=effect)


async def close_unstarted(store: RedisStore, run: str) -> None:
    """Closes a run whose cancel is accepted, if nobody ever ran it or nobody can."""
    try:
        facts = await store.facts(run)
        if facts.epoch == 0 or facts.blocked:
            await force_close(store, run, holder="gateway")
    except api.StoreError as error:
        # The cancel is accepted whatever becomes of this: its deadline closes the run.
        _log.warning("%s could not be closed at once: %s", run, error)
