"""What a holder writes: commits, and how a turn's entries are cut into them.

Promises that a `Part` never outgrows one script call, that an entry which cites a result stands in a later call
than the result, and that what belongs to an entry (timers, receipts, artifacts, attempts to start) travels in
its commit. Leaves what goes into a turn to `holding`, and payloads that are too large for the log to the shell.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal

import msgspec
from msgspec import Struct

from towline.protocol import event_data as d
from towline.protocol.codec import NewEntry, TooLarge, encode_envelope
from towline.protocol.commands import COMMANDS
from towline.protocol.cursor import Cursor
from towline.protocol.deltas import entry_of_message
from towline.protocol.events import Actor
from towline.protocol.limits import EVENT_BYTES, PRIVATE_BYTES, SCRIPT_BYTES, SCRIPT_ENTRIES
from towline.protocol.store.api import CommandOutcome, Timer
from towline.protocol.values import ErrorInfo, Usage
from towline.workers.decisions import (
    ApplyCommand,
    MachineDecision,
    Published,
    RejectCommand,
    RequestApproval,
    StartActivity,
    StartTimer,
    StoreArtifact,
)
from towline.workers.entries import SeqOf, entry_of

MOST_ENTRIES: Final = SCRIPT_ENTRIES - 10
"""Entries of a turn in one commit; the rest is room for what the holder adds."""
MOST_BYTES: Final = SCRIPT_BYTES - 32 * 1024


class Attempt(Struct, frozen=True):
    """One try of a step, to be run once its `tool.started` is in the log."""

    start: StartActivity
    number: int

    @property
    def step(self) -> str:
        return self.start.step


class AttemptFinished(Struct, frozen=True, kw_only=True):
    """An attempt returned. `result` is JSON; `artifacts` are announced and `messages` finished with it."""

    step: str
    attempt: int
    result: bytes
    summary: str
    duration_ms: int
    usage: Usage | None = None
    artifacts: tuple[StoreArtifact, ...] = ()
    messages: tuple[d.MessageCompleted, ...] = ()

    @property
    def announced(self) -> int:
        """Entries that precede the one of the result."""
        return len(self.artifacts) + len(self.messages)

    @property
    def size_bytes(self) -> int:
        """Bytes of the result and of the texts as they stand in the log, about."""
        texts = (min(len(msgspec.json.encode(message.text)), EVENT_BYTES) for message in self.messages)
        return min(len(self.result), PRIVATE_BYTES) + sum(texts)


class AttemptFailed(Struct, frozen=True, kw_only=True):
    """An attempt raised, timed out or was cancelled. `error.retryable`: whether its policy would try again."""

    step: str
    attempt: int
    error: ErrorInfo
    usage: Usage | None = None


Outcome = AttemptFinished | AttemptFailed
EndingKind = Literal["waiting", "blocked", "paused", "hand_over", "close"]
"""How a holding ends: four ways to give the lease back, and the end of the run."""


class Before(Struct, frozen=True):
    """How much of each list of a commit stands before its first start."""

    entries: int
    arm: int
    disarm: int
    opened: int
    outcomes: int
    applied: int


class Commit(Struct, frozen=True, kw_only=True):
    """What to write in one atomic step. `ending` says which script: release, close, or none for a plain commit.

    `artifacts` must be durable before; `opened` and `withdrawn` are approvals whose request state changes.
    `applied` counts the outcomes of commands that are bounded while unapplied. `recorded`: it carries a result.
    `before_starts`: what is written of it even if the run is paused, which the store may know before the holder.
    """

    entries: Sequence[NewEntry]
    seen: Cursor
    now_ms: int
    arm: Sequence[Timer] = ()
    disarm: Sequence[Timer] = ()
    outcomes: Sequence[CommandOutcome] = ()
    applied: int = 0
    artifacts: Sequence[StoreArtifact] = ()
    opened: Sequence[d.ApprovalRequested] = ()
    withdrawn: Sequence[str] = ()
    starts: Sequence[Attempt] = ()
    before_starts: Before | None = None
    published: Mapping[str, Published] = {}
    recorded: bool = False
    ending: EndingKind | None = None


class Idle(Struct, frozen=True):
    """Nothing to write until an input, an outcome, or `until_ms` (store time; None: no limit).

    `reads_inputs`: an ending was refused, so the log holds inputs that must be read now.
    """

    until_ms: int | None
    reads_inputs: bool = False


class Item(Struct, frozen=True, kw_only=True):
    """One entry on its way: prepared, or a decision whose evidence may need a seq first."""

    entry: NewEntry | None = None
    decision: MachineDecision | None = None
    start: Attempt | None = None
    arm: Timer | None = None
    disarm: Timer | None = None
    artifact: StoreArtifact | None = None
    recorded: bool = False

    @property
    def starts_something(self) -> bool:
        """Whether an attempt would begin once this is in the log."""
        return self.start is not None or isinstance(self.decision, StartActivity)


def items_of(messages: Iterable[d.MessageCompleted], actor: Actor) -> Iterator[Item]:
    """Finished messages on their way."""
    return (Item(entry=entry_of_message(message, actor)) for message in messages)


class Part:
    """One commit in the making."""

    def __init__(self) -> None:
        self.entries: list[NewEntry] = []
        self.arm: list[Timer] = []
        self.disarm: list[Timer] = []
        self.outcomes: list[CommandOutcome] = []
        self.applied = 0
        self.artifacts: list[StoreArtifact] = []
        self.opened: list[d.ApprovalRequested] = []
        self.withdrawn: list[str] = []
        self.starts: list[Attempt] = []
        self.before_starts: Before | None = None
        self.recorded = False
        self.ending: EndingKind | None = None
        self._bytes = 0

    def add(self, item: Item, actor: Actor, seq_of: SeqOf) -> bool:
        """Take one item. False if the commit is full. Raises `SeqUnknown`."""
        entry = item.entry
        if entry is None:
            assert item.decision is not None
            entry = entry_of(item.decision, actor, seq_of)
        if not self.fits([entry]):
            return False
        if item.starts_something and self.before_starts is None:
            self.before_starts = Before(
                len(self.entries),
                len(self.arm),
                len(self.disarm),
                len(self.opened),
                len(self.outcomes),
                self.applied,
            )
        self.append(entry)
        if item.arm is not None:
            self.arm.append(item.arm)
        if item.disarm is not None:
            self.disarm.append(item.disarm)
        if item.start is not None:
            self.starts.append(item.start)
        if item.artifact is not None:
            self.artifacts.append(item.artifact)
        self.recorded |= item.recorded
        if item.decision is not None:
            self._add_what_belongs(item.decision)
        return True

    def commit(
        self,
        *,
        seen: Cursor,
        now_ms: int,
        disarm: Sequence[Timer],
        before_starts: Before | None,
        published: Mapping[str, Published],
    ) -> Commit:
        """The commit, as it is now. `disarm` comes after the part's own."""
        return Commit(
            entries=tuple(self.entries),
            seen=seen,
            now_ms=now_ms,
            arm=tuple(self.arm),
            disarm=(*self.disarm, *disarm),
            outcomes=tuple(self.outcomes),
            applied=self.applied,
            artifacts=tuple(self.artifacts),
            opened=tuple(self.opened),
            withdrawn=tuple(self.withdrawn),
            starts=tuple(self.starts),
            before_starts=before_starts,
            published=published,
            recorded=self.recorded,
            ending=self.ending,
        )

    def append(self, entry: NewEntry) -> None:
        """Add an entry as it is."""
        self.entries.append(entry)
        self._bytes += _size_of(entry)

    def ended_steps(self) -> set[str]:
        """Steps whose last outcome this commit carries."""
        return {entry.data.step for entry in self.entries if entry.type in ("tool.finished", "tool.failed")}

    def fits(self, entries: Sequence[NewEntry]) -> bool:
        """Whether one script call still takes these."""
        return not self.entries or (
            len(self.entries) + len(entries) <= MOST_ENTRIES
            and self._bytes + sum(_size_of(entry) for entry in entries) <= MOST_BYTES
        )

    def _end_command(self, subject: str, data: d.CommandApplied | d.CommandRejected, **outcome: str | None) -> None:
        """Keep what became of a command for those who ask again."""
        receipt = msgspec.json.encode({name: value for name, value in outcome.items() if value is not None}).decode()
        self.outcomes.append(CommandOutcome(subject, data.command_id, receipt))
        self.applied += COMMANDS[data.type].counts

    def _add_what_belongs(self, decision: MachineDecision) -> None:
        match decision:
            case StartActivity():
                self.starts.append(Attempt(decision, 1))
            case StartTimer():
                self.arm.append(Timer("timer", decision.step, decision.due_ms))
            case RequestApproval():
                self.opened.append(decision.data)
            case StoreArtifact():
                self.artifacts.append(decision)
            case ApplyCommand(subject=subject, data=applied):
                self._end_command(subject, applied, status="applied", effect=applied.effect)
            case RejectCommand(subject=subject, data=rejected):
                self._end_command(subject, rejected, status="rejected", code=rejected.code, text=rejected.text)
            case _:
                pass


def _size_of(entry: NewEntry) -> int:
    """Bytes in a script call, about. What is larger than its place goes to payload storage instead."""
    hidden = 0 if entry.private is None else min(len(entry.private), PRIVATE_BYTES)
    try:
        return len(encode_envelope(entry)) + hidden + 200
    except TooLarge:
        return EVENT_BYTES + hidden
