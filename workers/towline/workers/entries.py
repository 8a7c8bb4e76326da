"""Decisions and endings as entries of the log.

Promises that each decision becomes exactly one entry that carries its step id, with what history replay needs
in the private part. Evidence that names a step becomes the seq of its `tool.finished` through `seq_of`; a step
whose seq is not known yet is a `SeqUnknown`, and the caller commits what it has before it tries again.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, assert_never

import msgspec

from towline.protocol import event_data as d
from towline.protocol import times
from towline.protocol.codec import NewEntry, TooLarge, encode_envelope
from towline.protocol.errors import ProblemError
from towline.protocol.events import EVENTS, Actor
from towline.protocol.values import Abandoned, Claim, Evidence
from towline.workers.decisions import (
    Announce,
    ApplyCommand,
    Cancel,
    Complete,
    Decided,
    Ending,
    Fail,
    MachineDecision,
    RecordMarker,
    RejectCommand,
    RequestApproval,
    SaveCheckpoint,
    StartActivity,
    StartTimer,
    StoreArtifact,
)
from towline.workers.values import Reference

SeqOf = Callable[[str], int | None]
"""The seq of a step's `tool.finished`, or None while it has none."""


class SeqUnknown(LookupError):
    """Evidence cites a step whose `tool.finished` has no seq yet."""

    def __init__(self, step: str) -> None:
        super().__init__(f"the tool.finished of {step} is not in the log yet")
        self.step = step


_TYPE_OF: dict[type[Any], str] = {row.data: type_ for type_, row in EVENTS.items()}
_FIXED: dict[type[Decided], str] = {
    StartActivity: "tool.started",
    StartTimer: "timer.started",
    RequestApproval: "approval.requested",
    StoreArtifact: "artifact.created",
    SaveCheckpoint: "checkpoint.saved",
    ApplyCommand: "command.applied",
    RejectCommand: "command.rejected",
    RecordMarker: "marker.recorded",
}


def type_of(decision: MachineDecision) -> str:
    """The event type that a decision is recorded as."""
    return _TYPE_OF[type(decision.data)] if isinstance(decision, Announce) else _FIXED[type(decision)]


def entry_of(decision: MachineDecision, actor: Actor, seq_of: SeqOf) -> NewEntry:
    """The entry that records `decision`. Raises `SeqUnknown`."""
    data, private = _content(decision, seq_of)
    return NewEntry(
        type=type_of(decision),
        actor=actor,
        data=data,
        cause=decision.cause,
        key=decision.step,
        private=private,
    )


def _content(decision: MachineDecision, seq_of: SeqOf) -> tuple[Any, bytes | None]:
    match decision:
        case StartActivity(activity=activity, args=args):
            started = d.ToolStarted(
                step=decision.step, name=activity.name, title=activity.title, attempt=1, effect=activity.effect
            )
            return started, b'{"args":' + args + b"}"
        case StartTimer(due_ms=due_ms, why=why):
            return d.TimerStarted(timer=decision.step, due_at=times.to_wire(due_ms), why=why), None
        case SaveCheckpoint():
            saved = d.CheckpointSaved(
                title=decision.title,
                done=list(decision.done),
                next=list(decision.next),
                evidence=resolve(decision.evidence, seq_of),
                automatic=False,
            )
            return saved, None
        case RecordMarker(kind=kind, value=value):
            return d.MarkerRecorded(kind=kind), b'{"value":' + value + b"}"
        case RequestApproval(data=data):
            return data, None
        case StoreArtifact(data=data):
            return data, None
        case ApplyCommand(data=data):
            return data, None
        case RejectCommand(data=data):
            return data, None
        case Announce(data=data):
            return data, None
        case _:
            assert_never(decision)


def ending_entry(
    ending: Ending,
    actor: Actor,
    *,
    seq_of: SeqOf,
    abandoned: Iterable[Abandoned],
    checkpoint: int | None,
    are_proven: Callable[[Sequence[Claim]], bool | None],
) -> NewEntry:
    """The terminal entry. `checkpoint` is the seq of the newest checkpoint, if any; `are_proven` says whether what
    claims cite was observed in this run. Raises `SeqUnknown`."""
    match ending:
        case Complete():
            claims = [Claim(claim.text, resolve(claim.evidence, seq_of)) for claim in ending.claims]
            completed = d.RunCompleted(
                summary=ending.summary, claims=claims, verified=are_proven(claims), result=msgspec.Raw(ending.result)
            )
            return NewEntry(
                type="run.completed", actor=actor, data=completed, private=b'{"result":' + ending.result + b"}"
            )
        case Fail():
            failed = d.RunFailed(
                summary=ending.summary, error=ending.error, checkpoint=checkpoint, abandoned=list(abandoned)
            )
            return NewEntry(type="run.failed", actor=actor, data=failed)
        case Cancel():
            cancelled = d.RunCancelled(by=ending.by, forced=False, abandoned=list(abandoned), reason=ending.reason)
            return NewEntry(type="run.cancelled", actor=actor, data=cancelled)
        case _:
            assert_never(ending)


def resolve(references: Iterable[Reference], seq_of: SeqOf) -> list[Evidence]:
    """References as evidence. Raises `SeqUnknown` for a step that has no seq yet."""
    evidence: list[Evidence] = []
    for reference in references:
        if reference.step is not None:
            seq = seq_of(reference.step)
            if seq is None:
                raise SeqUnknown(reference.step)
            evidence.append(Evidence(seq=seq))
        else:
            evidence.append(Evidence(seq=reference.seq, artifact=reference.artifact))
    return evidence


_CHECKER = Actor("agent", "check")


def check_data(data: Any) -> None:
    """Refuse, where the workflow stands, data that no log would accept. Raises `ValueError`."""
    type_ = _TYPE_OF[type(data)]
    try:
        encode_envelope(
            NewEntry(type=type_, actor=_CHECKER, data=msgspec.convert(msgspec.to_builtins(data), type(data)))
        )
    except TooLarge as error:
        if error.member not in ("proposal", "result"):  # these move to a payload; a longer note helps nobody
            raise ValueError(str(error)) from None
    except (ProblemError, msgspec.ValidationError) as error:
        raise ValueError(f"{type_}: {error}") from None
