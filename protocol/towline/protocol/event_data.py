"""The data of every type of event: one frozen struct a type.

Promises shapes and optionality only: a member that is None is absent from the wire. Which type has which
struct, and who may read it, stands in `events`.
"""

from typing import Any, Literal

from msgspec import Struct, field

from towline.protocol.values import (
    Abandoned,
    Blocker,
    Budget,
    Claim,
    ErrorInfo,
    Evidence,
    JsonObject,
    ParentRef,
    PlanItem,
    PlanStatus,
    Proposal,
    Question,
    RunRef,
    TerminalStatus,
    Usage,
    Vote,
    WaitRef,
)


class Data(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Root of all event data. Optional members that are None are not on the wire."""


class RunCreated(Data, frozen=True):
    """`behind`: the run of its thread that stood last when it came, which it waits for."""

    workflow: str
    version: str
    owner: str
    queue: str | None
    headline: str
    grants: dict[str, str]
    budget: Budget | None
    scope: Any = None
    labels: dict[str, str] | None = None
    thread: str | None = None
    behind: str | None = None
    input_ref: str | None = None
    permission_mode: str | None = None
    retention: Any = None
    start_at: str | None = None
    parent: ParentRef | None = None
    forked_from: RunRef | None = None
    traceparent: str | None = None


class RunStarted(Data, frozen=True):
    worker: str


class RunTakenOver(Data, frozen=True):
    worker: str
    from_: str = field(name="from")


class RunWaiting(Data, frozen=True):
    on: list[WaitRef]


class RunPaused(Data, frozen=True):
    code: Literal["user", "budget", "hold", "human_gate"]
    request: str | None = None
    by: str | None = None
    text: str | None = None


class RunResumed(Data, frozen=True):
    from_: Literal["waiting", "paused", "blocked"] = field(name="from")
    version: str | None = None
    by: str | None = None


class RunBlocked(Data, frozen=True):
    blocker: Blocker


class RunContinued(Data, frozen=True):
    generation: int


class RunCompleted(Data, frozen=True):
    summary: str
    claims: list[Claim]
    verified: bool | None
    result: Any = None


class RunFailed(Data, frozen=True):
    summary: str
    error: ErrorInfo
    checkpoint: int | None
    abandoned: list[Abandoned]


class RunCancelled(Data, frozen=True):
    by: str
    forced: bool
    abandoned: list[Abandoned]
    reason: str | None = None


class PlanProposed(Data, frozen=True):
    items: list[PlanItem]
    why: str | None = None


class PlanRevised(Data, frozen=True):
    items: list[PlanItem]
    why: str | None = None


class PlanStep(Data, frozen=True):
    id: str
    status: PlanStatus
    note: str | None = None


class ToolScheduled(Data, frozen=True):
    step: str
    name: str
    queue: str


class ToolStarted(Data, frozen=True):
    step: str
    name: str
    title: str
    attempt: int
    effect: Literal["none", "read", "write"]


class ToolRetrying(Data, frozen=True):
    step: str
    attempt: int
    error: ErrorInfo
    retry_at: str
    usage: Usage | None = None


class ToolFinished(Data, frozen=True):
    step: str
    attempt: int
    summary: str
    duration_ms: int
    usage: Usage | None = None
    result: Any = None


class ToolFailed(Data, frozen=True):
    step: str
    attempt: int
    error: ErrorInfo
    usage: Usage | None = None


class ChildStarted(Data, frozen=True):
    step: str
    run: str


class ChildFinished(Data, frozen=True):
    step: str
    run: str
    status: TerminalStatus


class MessageCompleted(Data, frozen=True):
    message: str
    attempt: int
    role: str
    kind: Literal["text", "reasoning"]
    text: str | None
    partial: bool
    step: str | None = None


class ProgressNoted(Data, frozen=True):
    text: str
    percent: float | None = None
    topic: str | None = None
    data: Any = None


class ArtifactCreated(Data, frozen=True):
    artifact: str
    name: str
    media_type: str
    size: int
    sha256: str
    step: str | None = None


class CheckpointSaved(Data, frozen=True):
    title: str
    done: list[str]
    next: list[str]
    evidence: list[Evidence]
    automatic: bool


class ApprovalRequested(Data, frozen=True):
    request: str
    title: str
    proposal: Proposal | None
    digest: str
    questions: list[Question]
    deciders: list[str]
    exclude: list[str]
    quorum: int
    expires_at: str | None = None
    why: str | None = None


class InputRequested(Data, frozen=True):
    request: str
    title: str
    schema: JsonObject
    answerers: list[str]
    on_expire: Literal["fail", "default"]
    expires_at: str | None = None
    default: Any = None


class ApprovalVoted(Data, frozen=True):
    request: str
    by: str
    decision: Literal["approve", "reject"]
    comment: str | None = None
    answers: dict[str, str] | None = None


class ApprovalResolved(Data, frozen=True):
    request: str
    outcome: Literal["approved", "rejected", "expired", "withdrawn"]
    decisions: list[Vote]


class ApprovalLapsed(Data, frozen=True):
    request: str
    decision: Literal["approve", "reject"]


class InputResolved(Data, frozen=True):
    request: str
    outcome: Literal["answered", "expired", "withdrawn"]
    by: str | None = None
    value: Any = None


class CommandReceived(Data, frozen=True):
    command_id: str
    type: str
    payload: Any
    name: str | None = None


class CommandApplied(Data, frozen=True):
    command_id: str
    type: str
    effect: str | None = None
    result: Any = None


class CommandRejected(Data, frozen=True):
    command_id: str
    type: str
    code: str
    text: str


class CancelRequested(Data, frozen=True):
    command_id: str
    by: str
    deadline: str
    reason: str | None = None


class BlockerRaised(Blocker, frozen=True, omit_defaults=True, kw_only=True):
    pass


class BlockerCleared(Data, frozen=True):
    id: str
    by: str
    how: str


class BudgetExceeded(Data, frozen=True):
    request: str
    cap: str
    limit: int
    spent: int
    reserved: int
    step: str | None = None


class BudgetChanged(Data, frozen=True):
    caps: JsonObject
    by: str


class TimerStarted(Data, frozen=True):
    timer: str
    due_at: str
    why: str


class TimerFired(Data, frozen=True):
    timer: str
    behind: str | None = None


class MarkerRecorded(Data, frozen=True):
    kind: str


class AccessChanged(Data, frozen=True):
    subject: str
    role: Literal["viewer", "collaborator", "owner"] | None
    by: str
