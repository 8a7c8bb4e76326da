"""What goes into the machine and what comes out: facts and decisions, as frozen values.

A *fact* is one entry of the log that the workflow may read: an input (somebody else wrote it) or the result of
an activity. A *decision* is what workflow code asked for; it becomes one entry of the log, found again in every
history replay by its step id. An *ending* closes the run. `entries` turns decisions and endings into entries,
`facts_of` and `result_of` turn entries into facts.
"""

from typing import Any

import msgspec
from msgspec import Struct

from towline.protocol import event_data as d
from towline.protocol import times
from towline.protocol.codec import Entry
from towline.protocol.events import Audience, Event
from towline.protocol.values import ErrorInfo, Vote
from towline.workers.registry import Activity
from towline.workers.values import Reference

# --- facts


class Input(Struct, frozen=True, kw_only=True):
    """Root of the facts that come from outside. `at_ms` is the entry's time: the store's clock."""

    seq: int
    at_ms: int


class CancelAsked(Input, frozen=True, kw_only=True):
    by: str
    reason: str | None


class ApprovalResolved(Input, frozen=True, kw_only=True):
    request: str
    outcome: str
    decisions: tuple[Vote, ...]


class TimerFired(Input, frozen=True, kw_only=True):
    timer: str


class SignalReceived(Input, frozen=True, kw_only=True):
    subject: str
    command_id: str
    type: str
    name: str
    payload: bytes


class OtherInput(Input, frozen=True, kw_only=True):
    """An input that workflow code of this release does not read. It still moves `now`."""


class ActivityFinished(Struct, frozen=True, kw_only=True):
    """The recorded result of a step, as JSON."""

    step: str
    result: bytes


class ActivityFailed(Struct, frozen=True, kw_only=True):
    """A step failed and has no further attempt."""

    step: str
    error: ErrorInfo


Result = ActivityFinished | ActivityFailed
InputFact = CancelAsked | ApprovalResolved | TimerFired | SignalReceived | OtherInput
Fact = InputFact | Result

# --- decisions


class Decided(Struct, frozen=True, kw_only=True):
    """Root of the decisions. `cause` is the seq of the input during whose feed it was made, if any."""

    step: str
    cause: int | None = None


class StartActivity(Decided, frozen=True, kw_only=True):
    activity: Activity[..., Any]
    args: bytes


class StartTimer(Decided, frozen=True, kw_only=True):
    due_ms: int
    why: str


class RequestApproval(Decided, frozen=True, kw_only=True):
    data: d.ApprovalRequested


class StoreArtifact(Decided, frozen=True, kw_only=True):
    """`content` must be durable before the entry that announces it."""

    data: d.ArtifactCreated
    content: bytes


class SaveCheckpoint(Decided, frozen=True, kw_only=True):
    title: str
    done: tuple[str, ...]
    next: tuple[str, ...]
    evidence: tuple[Reference, ...]


class ApplyCommand(Decided, frozen=True, kw_only=True):
    """`subject` sent the command; its receipt is kept under subject and command id."""

    subject: str
    data: d.CommandApplied


class RejectCommand(Decided, frozen=True, kw_only=True):
    subject: str
    data: d.CommandRejected


class Announce(Decided, frozen=True, kw_only=True):
    """Something for people: a plan, a step of it, a note."""

    data: d.PlanProposed | d.PlanRevised | d.PlanStep | d.ProgressNoted


class RecordMarker(Decided, frozen=True, kw_only=True):
    """A value that must be the same in every history replay, as JSON."""

    kind: str
    value: bytes


class Published(Struct, frozen=True):
    """A value for queries, as JSON, and who may read it. It is written with its turn and is no entry of the log."""

    value: bytes
    audience: Audience


MachineDecision = (
    StartActivity
    | StartTimer
    | RequestApproval
    | StoreArtifact
    | SaveCheckpoint
    | ApplyCommand
    | RejectCommand
    | Announce
    | RecordMarker
)

# --- endings


class ClaimDraft(Struct, frozen=True):
    """A claim whose evidence may still name steps instead of seqs."""

    text: str
    evidence: tuple[Reference, ...]


class Complete(Struct, frozen=True, kw_only=True):
    summary: str
    result: bytes
    claims: tuple[ClaimDraft, ...]


class Fail(Struct, frozen=True, kw_only=True):
    summary: str
    error: ErrorInfo


class Cancel(Struct, frozen=True, kw_only=True):
    by: str
    reason: str | None


Ending = Complete | Fail | Cancel

# --- from entries


class _PrivateResult(Struct):
    result: msgspec.Raw = msgspec.Raw(b"null")


class _PrivatePayload(Struct):
    payload: msgspec.Raw | None = None


def input_of(entry: Entry) -> InputFact:
    """The fact that an input of the log is. Its private part, where a large payload stands, must be present."""
    event = entry.event()
    where: dict[str, Any] = {"seq": entry.seq, "at_ms": times.from_wire(event.ts)}
    match event.type:
        case "cancel.requested":
            cancel = msgspec.convert(event.data, d.CancelRequested)
            return CancelAsked(by=cancel.by, reason=cancel.reason, **where)
        case "approval.resolved":
            resolved = msgspec.convert(event.data, d.ApprovalResolved)
            return ApprovalResolved(
                request=resolved.request, outcome=resolved.outcome, decisions=tuple(resolved.decisions), **where
            )
        case "timer.fired":
            return TimerFired(timer=msgspec.convert(event.data, d.TimerFired).timer, **where)
        case "command.received":
            command = msgspec.convert(event.data, d.CommandReceived)
            if command.type not in ("signal", "update") or command.name is None:
                return OtherInput(**where)
            hidden = msgspec.json.decode(entry.private, type=_PrivatePayload).payload if entry.private else None
            payload = bytes(hidden) if hidden is not None else msgspec.json.encode(command.payload)
            return SignalReceived(
                subject=event.actor.id,
                command_id=command.command_id,
                type=command.type,
                name=command.name,
                payload=payload,
                **where,
            )
        case _:
            return OtherInput(**where)


def result_of(entry: Entry, event: Event) -> Result | None:
    """The result that an entry, whose envelope is `event`, records for the machine; None for any other entry."""
    match event.type:
        case "tool.finished":
            finished = msgspec.convert(event.data, d.ToolFinished)
            hidden = msgspec.json.decode(entry.private, type=_PrivateResult) if entry.private else _PrivateResult()
            return ActivityFinished(step=finished.step, result=bytes(hidden.result))
        case "tool.failed":
            failed = msgspec.convert(event.data, d.ToolFailed)
            return ActivityFailed(step=failed.step, error=failed.error)
        case _:
            return None
