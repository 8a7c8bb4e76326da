"""The vocabulary: every type of event a log accepts, its data, who may read which field, what may spill.

Promises that `EVENTS` is the whole table of the contract and that nothing else is accepted at append. An
event is one record of a run's log; its envelope is public and travels byte for byte. Leaves encoding to
`codec` and meaning (what an event changes) to `run`. The structs stand in `event_data`.
"""

from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from towline.protocol import event_data as d

Audience = Literal["viewer", "collaborator", "operator"]
"""The lowest role that may read a value."""

ActorKind = Literal["user", "agent", "worker", "system"]


class Actor(Struct, frozen=True):
    """Who caused an event; always set by the server."""

    kind: ActorKind
    id: str


class EventType(Struct, frozen=True):
    """One row of the vocabulary.

    `audience` is the default; `fields` names members whose default audience differs from it. `spill` is the
    one member that may move to a payload (`ref`) when the event would exceed 32 KiB. `is_input` marks what the
    workflow machine may read and its lease holder did not write. `observes` marks evidence that may carry a
    claim: something seen to happen, never a message, a note or a plan.
    """

    data: type[Struct]
    audience: Audience = "viewer"
    fields: dict[str, Audience] = {}
    spill: str | None = None
    is_input: bool = False
    observes: bool = False


EVENTS: Final[dict[str, EventType]] = {
    "run.created": EventType(d.RunCreated, fields={"grants": "collaborator", "input_ref": "collaborator"}),
    "run.started": EventType(d.RunStarted),
    "run.taken_over": EventType(d.RunTakenOver),
    "run.waiting": EventType(d.RunWaiting),
    "run.paused": EventType(d.RunPaused),
    "run.resumed": EventType(d.RunResumed),
    "run.blocked": EventType(d.RunBlocked, fields={"blocker.detail": "operator"}),
    "run.continued": EventType(d.RunContinued),
    "run.completed": EventType(d.RunCompleted, fields={"result": "collaborator"}, spill="result"),
    "run.failed": EventType(d.RunFailed, fields={"error.message": "collaborator"}),
    "run.cancelled": EventType(d.RunCancelled),
    "plan.proposed": EventType(d.PlanProposed),
    "plan.revised": EventType(d.PlanRevised),
    "plan.step": EventType(d.PlanStep),
    "tool.scheduled": EventType(d.ToolScheduled, "collaborator"),
    "tool.started": EventType(
        d.ToolStarted, "collaborator", {"step": "viewer", "attempt": "viewer", "effect": "viewer"}
    ),
    "tool.retrying": EventType(d.ToolRetrying, "collaborator"),
    "tool.finished": EventType(d.ToolFinished, "collaborator", spill="result", observes=True),
    "tool.failed": EventType(d.ToolFailed, "collaborator"),
    "child.started": EventType(d.ChildStarted, "collaborator"),
    "child.finished": EventType(d.ChildFinished, "collaborator", is_input=True, observes=True),
    "message.completed": EventType(d.MessageCompleted, "collaborator", spill="text"),
    "progress.noted": EventType(d.ProgressNoted, spill="text"),
    "artifact.created": EventType(d.ArtifactCreated, "collaborator", observes=True),
    "checkpoint.saved": EventType(d.CheckpointSaved, "collaborator"),
    "approval.requested": EventType(d.ApprovalRequested, "collaborator", spill="proposal"),
    "input.requested": EventType(d.InputRequested, "collaborator"),
    "approval.voted": EventType(d.ApprovalVoted, "collaborator"),
    "approval.resolved": EventType(d.ApprovalResolved, "collaborator", is_input=True, observes=True),
    "approval.lapsed": EventType(d.ApprovalLapsed, "collaborator"),
    "input.resolved": EventType(d.InputResolved, "collaborator", spill="value", is_input=True, observes=True),
    "command.received": EventType(d.CommandReceived, "collaborator", spill="payload", is_input=True),
    "command.applied": EventType(d.CommandApplied, "collaborator", spill="result"),
    "command.rejected": EventType(d.CommandRejected, "collaborator"),
    "cancel.requested": EventType(d.CancelRequested, is_input=True),
    "blocker.raised": EventType(d.BlockerRaised, fields={"detail": "operator"}, spill="detail"),
    "blocker.cleared": EventType(d.BlockerCleared),
    "budget.exceeded": EventType(d.BudgetExceeded, "collaborator"),
    "budget.changed": EventType(d.BudgetChanged, "collaborator", is_input=True),
    "timer.started": EventType(d.TimerStarted),
    "timer.fired": EventType(d.TimerFired, is_input=True),
    "marker.recorded": EventType(d.MarkerRecorded, "operator"),
    "access.changed": EventType(d.AccessChanged, "collaborator"),
}
"""The vocabulary. `command.received` is an input only for commands that the run applies itself."""

TERMINAL: Final = frozenset({"run.completed", "run.failed", "run.cancelled"})
"""The types that end and seal a log."""


class Event(Struct, frozen=True):
    """One record of a run's log as everyone reads it."""

    seq: int
    ts: str
    type: str
    actor: Actor
    data: Any
    ref: str | None = None
    audience: Audience = "viewer"
    cause: int | None = None
    redacted: bool = False
    run: str | None = None


def data_of(event: Event) -> Struct:
    """The typed data of an event from a log. Raises `msgspec.ValidationError` if it is not of its type."""
    return msgspec.convert(event.data, EVENTS[event.type].data)
