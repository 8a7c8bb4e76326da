"""Who may read what, as the contract says it, written down once more: for tests that must not believe the product.

`ROWS` is the vocabulary's audiences and `RUN_ROWS` says of each member of a Run which event sets it last in a log that
holds each type once, in the order of `ROWS`. A type or a member that is missing here fails the tests that use this.
"""

from collections.abc import Mapping
from typing import Final

from towline.protocol.events import Audience

RANK: Final[Mapping[str, int]] = {
    "share": 0, "viewer": 0, "named": 0, "collaborator": 1, "owner": 1, "operator": 2,
}  # fmt: skip
ROLES: Final = tuple(RANK)

_V: Final[tuple[Audience, Mapping[str, Audience]]] = ("viewer", {})
_C: Final[tuple[Audience, Mapping[str, Audience]]] = ("collaborator", {})

ROWS: Final[Mapping[str, tuple[Audience, Mapping[str, Audience]]]] = {
    "run.created": ("viewer", {"grants": "collaborator", "input_ref": "collaborator"}),
    "run.started": _V, "run.taken_over": _V, "run.waiting": _V, "run.paused": _V, "run.resumed": _V,
    "run.blocked": ("viewer", {"blocker.detail": "operator"}),
    "run.continued": _V,
    "plan.proposed": _V, "plan.revised": _V, "plan.step": _V,
    "tool.scheduled": _C,
    "tool.started": ("collaborator", {"step": "viewer", "attempt": "viewer", "effect": "viewer"}),
    "tool.retrying": _C, "tool.finished": _C, "tool.failed": _C,
    "child.started": _C, "child.finished": _C, "message.completed": _C,
    "progress.noted": _V,
    "artifact.created": _C, "checkpoint.saved": _C, "approval.requested": _C, "input.requested": _C,
    "approval.voted": _C, "approval.resolved": _C, "approval.lapsed": _C, "input.resolved": _C,
    "command.received": _C, "command.applied": _C, "command.rejected": _C,
    "cancel.requested": _V,
    "blocker.raised": ("viewer", {"detail": "operator"}), "blocker.cleared": _V,
    "budget.exceeded": _C, "budget.changed": _C,
    "timer.started": _V, "timer.fired": _V,
    "marker.recorded": ("operator", {}), "access.changed": _C,
    "run.completed": ("viewer", {"result": "collaborator"}),
    "run.failed": ("viewer", {"error.message": "collaborator"}),
    "run.cancelled": _V,
}  # fmt: skip

SPILLS: Final[Mapping[str, str]] = {
    "approval.requested": "proposal", "message.completed": "text", "progress.noted": "text",
    "command.received": "payload", "command.applied": "result", "input.resolved": "value",
    "tool.finished": "result", "run.completed": "result", "blocker.raised": "detail",
}  # fmt: skip
"""The member whose place a `ref` takes, and so who may read it."""

RUN_ROWS: Final[Mapping[str, str | None]] = {
    **dict.fromkeys(("id", "workflow", "queue", "owner", "headline", "thread", "labels", "scope")),
    **dict.fromkeys(("permission_mode", "parent", "forked_from", "created_at", "updated_at", "last_seq", "status")),
    **dict.fromkeys(("waiting_on", "blockers", "outcome", "ended_at")),
    "input_ref": "run.created:input_ref", "status_detail": "run.blocked", "stopping": "cancel.requested",
    "pausing": "cancel.requested", "summary": "progress.noted", "plan": "plan.step", "checkpoint": "checkpoint.saved",
    "artifacts": "artifact.created", "usage": "tool.failed", "budget": "budget.changed", "children": "child.started",
    "started_at": "run.started", "version": "run.resumed",
}  # fmt: skip
"""Member → the event (and the path in it) whose audience it has; None: it never is null for its audience, or each of
its members has an audience of its own."""

BARE: Final = frozenset(
    {
        *(("approval.requested", path) for path in ("request", "expires_at")),
        *(("input.requested", path) for path in ("request", "expires_at")),
        *(("run.waiting", path) for path in ("on.0.id", "on.1.id")),
        *(("blocker.raised", path) for path in ("id", "since")),
        *(("run.blocked", path) for path in ("blocker.id", "blocker.since")),
        ("child.started", "step"),
        ("timer.started", "timer"),
    }
)
"""What `waiting_on` and `blockers` tell everybody of what they cannot read: that there is something, and how long."""


def audience_at(type_: str, path: str, given: Audience | None = None) -> Audience:
    """Who may read `path` in an event of this type that carries the audience `given` (by default its own)."""
    default, fields = ROWS[type_]
    if given is not None and given != default:
        return given
    whole = [path, *(path.rsplit(".", cut)[0] for cut in range(1, path.count(".") + 1))]
    for part in whole:
        if part in fields:
            return fields[part]
    return default


def reads(role: str, audience: Audience) -> bool:
    """Whether the role reads values of this audience."""
    return RANK[role] >= ("viewer", "collaborator", "operator").index(audience)


def names_subject(type_: str, path: str) -> bool:
    """Whether a subject stands there, which a share is not told."""
    leaf = path.rsplit(".", 1)[-1]
    return (
        leaf in ("owner", "by", "worker", "subject")
        or path == "actor.id"
        or (type_, path) == ("run.taken_over", "from")
    )
