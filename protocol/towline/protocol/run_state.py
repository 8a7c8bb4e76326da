"""The Run as values: what the fold produces and what a snapshot stores.

Promises shapes only. How an event changes a Run stands in `run`; what a caller sees of it in `projection`.
"""

from typing import Any

from msgspec import Struct

from towline.protocol.events import Audience
from towline.protocol.values import (
    Blocker,
    Budget,
    Checkpoint,
    Claim,
    ErrorInfo,
    ParentRef,
    PlanItem,
    RunRef,
    Spent,
    Status,
    StatusDetail,
    Stopping,
    WaitKind,
)


class Wait(Struct, frozen=True):
    """One member of `waiting_on`. `audience` is that of the event that opened it.

    `deciders` and `exclude` say who may answer where `request` is only a reference; they are not on the wire.
    """

    id: str
    kind: WaitKind
    title: str | None
    since: str
    seq: int
    expires_at: str | None = None
    request: Any = None
    audience: Audience = "viewer"
    deciders: list[str] | None = None
    exclude: list[str] = []


class Outcome(Struct, frozen=True):
    """How a run ended. `result_ref` stands in for a result that was too large for its event."""

    result: Any = None
    result_ref: str | None = None
    error: ErrorInfo | None = None
    verified: bool | None = None
    claims: list[Claim] = []


def blocker_field(blocker: str, member: str = "") -> str:
    """Where `Run.audiences` says who may read a blocker, or one member of it."""
    return f"blockers/{blocker}/{member}"


class Run(Struct, frozen=True, kw_only=True):
    """The fold of a log up to `last_seq`. Field by field as the contract's Run.

    `audiences` holds, for each field (or `field.member`) that not every viewer may read, who may.
    """

    id: str
    workflow: str
    version: str
    queue: str | None
    owner: str
    headline: str
    created_at: str
    updated_at: str
    last_seq: int
    thread: str | None = None
    labels: dict[str, str] | None = None
    scope: Any = None
    permission_mode: str | None = None
    input_ref: str | None = None
    status: Status = "queued"
    status_detail: StatusDetail | None = None
    stopping: Stopping | None = None
    pausing: bool = False
    summary: str | None = None
    plan: list[PlanItem] | None = None
    waiting_on: list[Wait] = []
    blockers: list[Blocker] = []
    checkpoint: Checkpoint | None = None
    artifacts: int = 0
    usage: Spent = Spent()
    budget: Budget | None = None
    parent: ParentRef | None = None
    children: int = 0
    forked_from: RunRef | None = None
    outcome: Outcome | None = None
    started_at: str | None = None
    ended_at: str | None = None
    audiences: dict[str, Audience] = {}

    @property
    def is_terminal(self) -> bool:
        return self.status in ("completed", "failed", "cancelled")
