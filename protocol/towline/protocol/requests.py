"""The state of one request to people, as the store keeps it beside the log.

Promises that `decide` is the whole rule of an approval, and `answer` that of a question: who may, what a repeat is,
when it is resolved. They are pure: the caller writes what they return and relies on the version it read. Leaves expiry
and the other kinds of request to others.
"""

import hashlib
from collections.abc import Sequence
from typing import Any, Final, Literal, TypeVar, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from towline.protocol import schemas
from towline.protocol.errors import Problem, ProblemError
from towline.protocol.event_data import ApprovalRequested, InputRequested
from towline.protocol.grants import named_field
from towline.protocol.projection import Caller, may_answer
from towline.protocol.values import JsonObject, Proposal, Question, Vote, WaitKind

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


class InputState(Struct, frozen=True, kw_only=True, tag_field="kind", tag="input"):
    """A question with its answer's fingerprint. `version` as of an approval."""

    request: str
    title: str
    schema: JsonObject
    answerers: list[str]
    on_expire: Literal["fail", "default"]
    default: Any = None
    expires_at: str | None = None
    ref: str | None = None
    version: int = 1
    outcome: Literal["answered", "expired", "withdrawn"] | None = None
    by: str | None = None
    at: str | None = None
    answered: str | None = None
    resolved_by: ResolvedBy | None = None


State = ApprovalState | InputState
S = TypeVar("S", bound=ApprovalState | InputState)


class _Kind(Struct, frozen=True):
    kind: str = "approval"


def asked(data: InputRequested, ref: str | None = None) -> InputState:
    """The state of a question that is just being asked."""
    return InputState(
        request=data.request,
        title=data.title,
        schema=data.schema,
        answerers=data.answerers,
        on_expire=data.on_expire,
        default=data.default,
        expires_at=data.expires_at,
        ref=ref,
    )


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


def withdrawn(state: S) -> S:
    """The state after the run ended with the request still open."""
    return replace(state, outcome="withdrawn", version=state.version + 1)


def _who(state: State) -> dict[str, list[str]]:
    """Who may answer, as a request on the wire says it."""
    if isinstance(state, InputState):
        return {"answerers": state.answerers}
    return {"deciders": state.deciders, "exclude": state.exclude}


def side_fields(state: State) -> dict[str, str]:
    """The fields of a run's side hash that hold `state`; who is named in it may read the run from then on."""
    entries, *rest = _who(state).values()
    excluded = {entry for one in rest for entry in one}
    named = [entry for entry in entries if not entry.startswith("role:") and entry not in excluded]
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


def encode(state: State) -> str:
    """The text of a state as the store keeps it."""
    return msgspec.json.encode(state).decode()


def decode(text: str) -> State:
    """The state in such a text."""
    kind = msgspec.json.decode(text, type=_Kind).kind
    return msgspec.json.decode(text, type=InputState if kind == "input" else ApprovalState)


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
    if not may_answer(_who(state), caller):
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


def answer(state: InputState, caller: Caller, value: Any, *, at: str, by: str) -> InputState:
    """The state after an answer, which resolves the question.

    Raises `ProblemError` in the order of the contract (`forbidden`, `already_decided`, `expired`, `bad_request` for a
    value that does not fit) and `AlreadySo` for a repeat.
    """
    if not may_answer(_who(state), caller):
        why = Problem("forbidden", "You are not among those who may answer this request.", needs="answerer")
        raise ProblemError(why)
    said = hashlib.sha256(msgspec.json.encode(value, order="deterministic")).hexdigest()
    if state.by == by and state.answered == said:
        raise AlreadySo
    if state.outcome == "expired":
        raise ProblemError(Problem("expired", "The request expired before this answer.", request=resolution(state)))
    if state.outcome is not None:
        raise ProblemError(
            Problem("already_decided", "The request was answered before; see `request`.", request=resolution(state))
        )
    if state.expires_at is not None and at >= state.expires_at:
        raise ProblemError(Problem("expired", "The request has expired.", request=resolution(state)))
    schemas.check(value, state.schema, field="data.value")
    return replace(state, outcome="answered", by=by, at=at, answered=said, version=state.version + 1)


def _decisions(state: State) -> list[dict[str, Any]]:
    if isinstance(state, ApprovalState):
        return cast("list[dict[str, Any]]", msgspec.to_builtins(state.decisions))
    return [] if state.by is None else [{"by": state.by, "decision": "answered", "at": state.at}]


def resolution(state: State, seq: int | None = None) -> dict[str, Any]:
    """Who decided what, as the loser of a race is told: `{outcome, decisions, seq}`."""
    return {"outcome": state.outcome, "decisions": _decisions(state), "seq": seq}


_SHOWN: Final = {
    "approval": ("proposal", "digest", "questions", "deciders", "exclude", "quorum", "decisions"),
    "input": ("schema", "answerers", "on_expire", "default"),
}


def to_wire(state: State, caller: Caller, *, seq: int | None, since: str | None) -> dict[str, Any]:
    """A request as `GET …/requests/{request}` answers it."""
    body = msgspec.to_builtins(state)
    kind: WaitKind = "approval" if isinstance(state, ApprovalState) else "input"
    shown = {k: body[k] for k in _SHOWN[kind]}
    return {
        "id": state.request,
        "kind": kind,
        "title": state.title,
        "since": since,
        "expires_at": state.expires_at,
        "seq": seq,
        "may_answer": state.outcome is None and may_answer(body, caller),
        "request": shown,
        "outcome": state.outcome,
        "decisions": _decisions(state),
    }


def is_named(state: State, caller: Caller) -> bool:
    """Whether the caller is one of those who may decide it, or might have: they read the request in full."""
    return may_answer(_who(state), caller)


def withdrawals(states: Sequence[State]) -> dict[str, str]:
    """The side fields that mark all of `states` as withdrawn."""
    fields: dict[str, str] = {}
    for state in states:
        fields.update(side_fields(withdrawn(state)))
    return fields
