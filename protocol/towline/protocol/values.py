"""The small values that events, requests and Runs are made of.

Promises shapes only: frozen structs whose optional members are absent from the wire when None. Money is in
micro-dollars, durations in milliseconds, times are RFC 3339 UTC with milliseconds.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from towline.protocol.limits import TITLE_CHARS

JsonObject = dict[str, Any]
Title = Annotated[str, Meta(min_length=1, max_length=TITLE_CHARS)]
Status = Literal["queued", "running", "waiting", "paused", "blocked", "completed", "failed", "cancelled"]
TerminalStatus = Literal["completed", "failed", "cancelled"]
PlanStatus = Literal["pending", "active", "done", "skipped", "failed"]
Effect = Literal["none", "read", "write"]
WaitKind = Literal["approval", "input", "budget", "human_gate", "signal", "timer", "child"]
OnBusy = Literal["enqueue", "reject", "interrupt"]
"""What becomes of a new run while another of its thread is unfinished."""
BlockerKind = Literal["nondeterminism", "poison", "no_worker", "unknown_effect", "verify_failed", "store", "agent"]


class PlanItem(Struct, frozen=True):
    """One step of the plan, for people."""

    id: str
    title: Title
    status: PlanStatus = "pending"


class Evidence(Struct, frozen=True, omit_defaults=True):
    """What a claim or a checkpoint cites: an event by `seq`, or an artifact by id. Exactly one is set."""

    seq: int | None = None
    artifact: str | None = None


class Claim(Struct, frozen=True):
    """One statement of a completion, with what was observed for it."""

    text: str
    evidence: list[Evidence]


class ErrorInfo(Struct, frozen=True):
    """Why something failed. `retryable` says whether another attempt could help."""

    type: str
    message: str
    retryable: bool = False


class Abandoned(Struct, frozen=True):
    """A step that had begun and has no result: its effect is unknown."""

    step: str
    name: str
    attempt: int
    effect: Effect


class Usage(Struct, frozen=True, omit_defaults=True):
    """What one attempt spent."""

    usd_micros: int = 0
    tokens: int = 0


class Rate(Struct, frozen=True):
    """At most `tool_calls` in any window of `per_ms`."""

    tool_calls: int
    per_ms: int


Cap = Annotated[int, Meta(ge=0)]


class Budget(Struct, frozen=True, forbid_unknown_fields=True):
    """Caps on what a run and its children may spend; None is no cap."""

    usd_micros: Cap | None = None
    tokens: Cap | None = None
    steps: Cap | None = None
    tool_calls: Cap | None = None
    active_ms: Cap | None = None
    per_tool: dict[str, Cap] | None = None
    rate: Rate | None = None
    deadline_at: str | None = None


class Spent(Struct, frozen=True):
    """What a run has spent: the sum of what its tool events report."""

    usd_micros: int = 0
    tokens: int = 0
    steps: int = 0
    tool_calls: int = 0
    active_ms: int = 0
    per_tool: dict[str, int] = {}


class ParentRef(Struct, frozen=True):
    """The step of another run that started this one."""

    run: str
    step: str


class RunRef(Struct, frozen=True):
    """A position in another run's log."""

    run: str
    seq: int


class Blocker(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What keeps a run from going on (`stops`), or hinders it. `remedies` are commands."""

    id: str
    kind: BlockerKind
    title: str
    since: str
    by: str
    stops: bool
    remedies: list[JsonObject]
    detail: Any = None


class WaitRef(Struct, frozen=True, omit_defaults=True):
    """One thing a waiting run waits for, as its `run.waiting` names it."""

    id: str
    kind: WaitKind
    name: str | None = None
    schema: JsonObject | None = None


class Proposal(Struct, frozen=True, forbid_unknown_fields=True):
    """What an agent asks leave for. All five are required, so that nobody approves a blank.

    `intent`: what will be done. `lineage`: from what it was derived. `permissions`: what it touches.
    `blast_radius`: what can go wrong, how far. `rollback`: how to undo it, or that it cannot be undone.
    """

    intent: Annotated[str, Meta(min_length=1)]
    lineage: list[str]
    permissions: list[str]
    blast_radius: Annotated[str, Meta(min_length=1)]
    rollback: Annotated[str, Meta(min_length=1)]


class Question(Struct, frozen=True):
    """A question that a decision must answer by its `id`."""

    id: str
    text: str


class Vote(Struct, frozen=True):
    """One person's decision on an approval."""

    by: str
    decision: Literal["approve", "reject"]
    at: str


class StatusDetail(Struct, frozen=True):
    """Why a run has its status. `code`: `user`, `budget`, `hold`, `human_gate`, `no_worker`, `retry_wait` …"""

    code: str
    text: str | None = None
    by: str | None = None
    since: str | None = None


class Stopping(Struct, frozen=True):
    """An accepted cancel that has not ended the run yet."""

    requested_at: str
    by: str
    reason: str | None
    deadline: str


class Checkpoint(Struct, frozen=True):
    """The newest place from which a fresh worker or person can continue."""

    seq: int
    title: str
    done: list[str]
    next: list[str]
    evidence: list[Evidence]
