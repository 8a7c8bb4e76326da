"""What workflow code holds in its hands: answers, artifacts, references, and the errors it can catch.

    WorkflowError
      ActivityError            an activity failed for good; `cause_type` and `message` say why
    ForbiddenCall              the workflow did what only an activity may do; says what to use instead

Promises small frozen values that come out the same in every history replay. Leaves how they come about to
`context` (the calls) and `machine` (the feeds).
"""

from datetime import datetime
from typing import Literal

from msgspec import Struct

from towline.protocol.values import Vote


class WorkflowError(Exception):
    """Root of what the engine raises into workflow code."""


class ActivityError(WorkflowError):
    """An activity failed and will not be tried again.

    `activity` is its name, `cause_type` the name of the exception's class, `message` its text.
    """

    def __init__(self, activity: str, cause_type: str, message: str) -> None:
        super().__init__(f"{activity} failed: {cause_type}: {message}")
        self.activity = activity
        self.cause_type = cause_type
        self.message = message


class ForbiddenCall(RuntimeError):
    """Workflow code asked its loop for a socket, a thread or a process. The fault is the workflow's."""


class MachineDropped(BaseException):
    """Internal: code of a machine that was let go still runs (a `finally`). Not to be caught."""


class Reference(Struct, frozen=True):
    """What a claim or a checkpoint may cite. Exactly one member is set.

    `step` stands for the `tool.finished` of that step until its seq is known.
    """

    step: str | None = None
    seq: int | None = None
    artifact: str | None = None


class Artifact(Struct, frozen=True):
    """An artifact that this run announced. `size` is in bytes, `sha256` lower-case hex."""

    id: str
    sha256: str
    size: int


class Decision(Struct, frozen=True):
    """How an approval ended. Expired and withdrawn are not approved. `seq` is its place in the log."""

    approved: bool
    outcome: Literal["approved", "rejected", "expired", "withdrawn"]
    decisions: tuple[Vote, ...]
    seq: int


class Info(Struct, frozen=True):
    """Which run this is. `created_at` is the store's time; `generation` counts from 1."""

    run: str
    workflow: str
    version: str
    generation: int
    owner: str
    created_at: datetime


Citable = Reference | Artifact | Decision
"""What `ctx.claim` and `ctx.checkpoint` accept as evidence, alone or in lists."""
