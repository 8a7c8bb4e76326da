"""The state of one request to people, as the store keeps it beside the log.

Promises that `decide` is the whole rule of an approval: who may, what a repeat is, when it is resolved. It is
pure: the caller writes what it returns and relies on the version it read. Leaves expiry and the other kinds of
request to their own issue of the contract.
"""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from towline.protocol.errors import Problem, ProblemError
from towline.protocol.event_data import ApprovalRequested
from towline.protocol.grants import named_field
from towline.protocol.projection import Caller, may_answer
from towline.protocol.values import Proposal, Question, Vote

Decision = Literal["approve", "reject"]
Outcome = Literal["approved", "rejected", "expired", "withdrawn"]


class ResolvedBy(Struct, frozen=True):
    """The accepted command that resolved a request; its entry `offset` places further is the resolution."""

    subject: str
    command_id: str
    offset: int


class ApprovalState(Struct, frozen=True, kw_only=True):
    """An approval with its votes. `version` counts its changes; a decision relies on it."""

    request: str
    title: str
    proposal: Proposal | None
    digest: str
    questions: list[Question]
    deciders: list[str]
    exclude: list[str]
    quorum: int
    expires_at: str | None = None
    ref: str | None = None
    version: int = 1
    outcome: Outcome | None = None
    decisions: list[Vote] = []
    resolved_by: ResolvedBy | None = None


def opened(data: ApprovalRequested, ref: str | None = None) -> ApprovalState:
    """The state of an approval that is just being asked for."""
    return ApprovalState(
        request=data.request,
        title=data.title,
        proposal=data.proposal,
        digest=data.digest,
        questions=data.questions,
        deciders=data.deciders,
        exclude=data.exclude,
        quorum=data.quorum,
        expires_at=data.expires_at,
        ref=ref,
    )


def withdrawn(state: ApprovalState) -> ApprovalState:
    """The state after the run ended with the request still open."""
    return replace(state, outcome="withdrawn", version=state.version + 1)


def side_fields(state: ApprovalState) -> dict[str, str]:
    """The fields of a run's side hash that hold `state`; who is named in it may read the run from then on."""
    named = [entry for entry in state.deciders if not entry.startswith("role:") and entry not in state.exclude]
    return {
        state_field(state.request): encode(state),
        version_field(state.request): str(state.version),
        **{named_field(entry): state.request for entry in named},
    }


def state_field(request: str) -> str:
    """The field of a run's side hash that holds the state of `request`."""
    return f"q|{request}"


def version_field(request: str) -> str:
    """The field that holds its version, on which a decision relies."""
    return f"v|{request}"


def encode(state: ApprovalState) -> str:
    """The text of a state as the store keeps it."""
    return msgspec.json.encode(state).decode()


def decode(text: str) -> ApprovalState:
    """The state in such a text."""
    return msgspec.json.decode(text, type=ApprovalState)


class AlreadySo(Exception):
    """The same subject decided the same before: nothing to write, the receipt is a duplicate."""


def decide(
    state: ApprovalState,
    caller: Caller,
    decision: Decision,
    *,
    digest: str,
    answers: dict[str, str] | None,
    at: str,
    by: str,
) -> tuple[ApprovalState, bool]:
    """The state after a decision, and whether it resolves the request.

    Raises `ProblemError` in the order of the contract (`forbidden`, `already_decided`, `expired`,
    `digest_mismatch`, `bad_request` for missing answers) and `AlreadySo` for a repeat.
    """
    if not may_answer({"deciders": state.deciders, "exclude": state.exclude}, caller):
        # Who they are stands in the request, for who may read it.
        raise ProblemError(
            Problem("forbidden", "You are not among those who may decide this request.", needs="decider")
        )
    mine = [vote for vote in state.decisions if vote.by == by]
    if mine and mine[-1].decision == decision:
        raise AlreadySo
    if state.outcome == "expired":
        raise ProblemError(Problem("expired", "The request expired before this decision.", request=resolution(state)))
    if state.outcome is not None or mine:
        raise ProblemError(
            Problem("already_decided", "The request was decided before; see `request`.", request=resolution(state))
        )
    if state.expires_at is not None and at >= state.expires_at:
        raise ProblemError(Problem("expired", "The request has expired.", request=resolution(state)))
    if digest != state.digest:
        raise ProblemError(
            Problem(
                "digest_mismatch",
                "The digest is not that of the proposal as it stands. Read the request again and decide on that.",
                expected=state.digest,
            )
        )
    missing = [q.id for q in state.questions if not (answers or {}).get(q.id)]
    if decision == "approve" and missing:
        raise ProblemError(
            Problem("bad_request", "An approval answers every question.", field="data.answers", expected=missing)
        )
    decisions = [*state.decisions, Vote(by, decision, at)]
    outcome: Outcome | None = None
    if decision == "reject":
        outcome = "rejected"
    elif len({vote.by for vote in decisions if vote.decision == "approve"}) >= state.quorum:
        outcome = "approved"
    changed = replace(state, decisions=decisions, outcome=outcome, version=state.version + 1)
    return changed, outcome is not None


def resolution(state: ApprovalState, seq: int | None = None) -> dict[str, Any]:
    """Who decided what, as the loser of a race is told: `{outcome, decisions, seq}`."""
    return {"outcome": state.outcome, "decisions": msgspec.to_builtins(state.decisions), "seq": seq}


def to_wire(state: ApprovalState, caller: Caller, *, seq: int | None, since: str | None) -> dict[str, Any]:
    """A request as `GET …/requests/{request}` answers it."""
    body = msgspec.to_builtins(state)
    shown = {k: body[k] for k in ("proposal", "digest", "questions", "deciders", "exclude", "quorum", "decisions")}
    return {
        "id": state.request,
        "kind": "approval",
        "title": state.title,
        "since": since,
        "expires_at": state.expires_at,
        "seq": seq,
        "may_answer": state.outcome is None and may_answer(body, caller),
        "request": shown,
        "outcome": state.outcome,
        "decisions": body["decisions"],
    }


def is_named(state: ApprovalState, caller: Caller) -> bool:
    """Whether the caller is one of those who may decide it, or might have: they read the request in full."""
    return may_answer({"deciders": state.deciders, "exclude": state.exclude}, caller)


def withdrawals(states: Sequence[ApprovalState]) -> dict[str, str]:
    """The side fields that mark all of `states` as withdrawn."""
    fields: dict[str, str] = {}
    for state in states:
        fields.update(side_fields(withdrawn(state)))
    return fields
