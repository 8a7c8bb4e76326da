"""Accepting an answer to a request: the decision of an approval, the answer to a question.

Promises that what a decider was shown, who they are and what came before is judged on the state that the script finds
unchanged. Read `requests` first, whose rules these are; leaves the other commands to `acceptance`.
"""

from typing import Any

import msgspec
from msgspec.structs import replace

from towline.protocol import commands as c
from towline.protocol import event_data as d
from towline.protocol import requests, times
from towline.protocol.codec import NewEntry
from towline.protocol.errors import ProblemError, problem
from towline.protocol.events import Actor
from towline.protocol.projection import Caller
from towline.protocol.store import api
from towline.protocol.store.given import uploads_in
from towline.protocol.store.openends import SYSTEM
from towline.protocol.store.redis import RedisStore


class Outcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of a command, as the store keeps it for repeats. `status` is `applied` or `rejected`."""

    status: c.ReceiptStatus
    effect: str | None = None
    result: Any = None
    code: str | None = None
    text: str | None = None


def received(base: api.Acceptance, payload: Any, *, name: str | None = None, is_input: bool) -> NewEntry:
    """The entry that says that a command was accepted."""
    data = d.CommandReceived(command_id=base.command_id, type=base.type, payload=payload, name=name)
    return NewEntry("command.received", Actor("user", base.subject), data, is_input=is_input)


async def request_state(store: RedisStore, run: str, request: str) -> tuple[requests.State, int | None]:
    """A request of `run` with the seq of its resolution, None while it is open. Raises `not_found`."""
    state = await _state(store, run, request)
    if state.resolved_by is None:
        return state, None
    kept = await store.command_outcome(run, state.resolved_by.subject, state.resolved_by.command_id)
    return state, None if kept is None else kept.seq + state.resolved_by.offset


async def _state(store: RedisStore, run: str, request: str, **where: str) -> requests.State:
    name = requests.state_field(request)
    found = await store.side_fields(run, [name])
    if name not in found:
        raise problem("not_found", "The run has no such request.", **where)
    return requests.decode(found[name])


async def decide(store: RedisStore, base: api.Acceptance, data: c.Decide, caller: Caller) -> api.Acceptance:
    """Accepts `approve` or `reject`. Raises `ProblemError`, and `AlreadySo` for a repeat by the same subject."""
    before = await _state(store, base.run, data.request, field="data.request")
    if isinstance(before, requests.InputState):
        raise problem("bad_request", "This is a question: answer it with respond.", field="data.request")
    by = f"user:{caller.subject}"
    decision: requests.Decision = "approve" if base.type == "approve" else "reject"
    at = times.to_wire(store.now_ms())
    try:
        after, is_resolved = requests.decide(
            before, caller, decision, digest=data.digest, answers=data.answers, at=at, by=by
        )
    except ProblemError as error:
        raise await _with_seq(store, base.run, data.request, error) from None
    voted = d.ApprovalVoted(request=data.request, by=by, decision=decision, comment=data.comment, answers=data.answers)
    entries = [
        received(base, msgspec.to_builtins(data), is_input=False),
        NewEntry("approval.voted", Actor("user", caller.subject), voted, cause_index=0),
    ]
    effect = f"{len(after.decisions)} of {after.quorum} approved"
    if is_resolved and after.outcome is not None:
        resolved = d.ApprovalResolved(request=data.request, outcome=after.outcome, decisions=after.decisions)
        entries.append(NewEntry("approval.resolved", SYSTEM, resolved, cause_index=0, is_input=True))
        after = replace(after, resolved_by=requests.ResolvedBy(base.subject, base.command_id, 2))
        effect = after.outcome or ""
    applied = d.CommandApplied(command_id=base.command_id, type=base.type, effect=effect)
    entries.append(NewEntry("command.applied", SYSTEM, applied, cause_index=0))
    return replace(
        base,
        entries=entries,
        relies={requests.version_field(data.request): str(before.version)},
        side=requests.side_fields(after),
        inbox_remove=[data.request] if is_resolved else [],
        input_index=2 if is_resolved else -1,
        outcome=msgspec.json.encode(Outcome("applied", effect=effect)).decode(),
    )


async def answer(store: RedisStore, base: api.Acceptance, data: c.Respond, caller: Caller) -> api.Acceptance:
    """Accepts `respond`. Raises as `decide`."""
    before = await _state(store, base.run, data.request, field="data.request")
    if not isinstance(before, requests.InputState):
        raise problem("bad_request", "This is an approval: approve or reject it.", field="data.request")
    if uploads_in(data.value):
        raise problem("unsupported", "An upload is handed to a run at its start only.", field="data.value")
    by = f"user:{caller.subject}"
    try:
        after = requests.answer(before, caller, data.value, at=times.to_wire(store.now_ms()), by=by)
    except ProblemError as error:
        raise await _with_seq(store, base.run, data.request, error) from None
    after = replace(after, resolved_by=requests.ResolvedBy(base.subject, base.command_id, 1))
    resolved = d.InputResolved(request=data.request, outcome="answered", by=by, value=data.value)
    applied = d.CommandApplied(command_id=base.command_id, type=base.type, effect="answered")
    return replace(
        base,
        entries=[
            received(base, msgspec.to_builtins(data), is_input=False),
            NewEntry("input.resolved", SYSTEM, resolved, cause_index=0, is_input=True),
            NewEntry("command.applied", SYSTEM, applied, cause_index=0),
        ],
        relies={requests.version_field(data.request): str(before.version)},
        side=requests.side_fields(after),
        inbox_remove=[data.request],
        input_index=1,
        outcome=msgspec.json.encode(Outcome("applied", effect="answered")).decode(),
    )


async def _with_seq(store: RedisStore, run: str, request: str, error: ProblemError) -> ProblemError:
    """The refusal with the place of the decision that came first, for the loser of the race."""
    if error.problem.request is None:
        return error
    _, seq = await request_state(store, run, request)
    return ProblemError(replace(error.problem, request={**error.problem.request, "seq": seq}))
