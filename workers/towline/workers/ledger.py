"""What a holder must remember of the log beside the machine: status, open things, the book of steps.

Promises that `observe`, fed every event of the log in order (what was read and what was just committed), answers
what a holder and an ending need. Leaves the words of an ending to `store.openends`, which every closer shares.
"""

from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from towline.protocol import event_data as d
from towline.protocol.commands import COMMANDS
from towline.protocol.events import Event, data_of
from towline.protocol.evidence import Observed
from towline.protocol.store.openends import OpenEnds
from towline.protocol.values import Abandoned, Claim, WaitRef
from towline.workers.steps import StepBook

_APPLIED_AT_ONCE: Final = frozenset(type_ for type_, row in COMMANDS.items() if row.applied_on_acceptance)
"""Commands whose outcome stands in the log since the same step."""

_PAUSES: Final = frozenset({"command.received", "cancel.requested", "run.paused"})
"""Events that ask for a pause or end one."""


class PauseAsked(Struct, frozen=True):
    """A pause that was accepted while the run was held. `by` and `reason` go into its `run.paused`."""

    seq: int
    by: str
    reason: str | None


class Ledger:
    """See the module."""

    def __init__(self) -> None:
        self.book = StepBook()
        self.open = OpenEnds()
        self.status = "queued"
        self.is_started = False
        self.pause: PauseAsked | None = None
        """Set from an accepted pause until the run rests, goes on, or is cancelled."""
        self.waiting_on: list[WaitRef] = []
        self.checkpoint: int | None = None
        self.is_forced = False
        self._observed = Observed()

    def observe(self, event: Event) -> None:
        """Take note of the next event."""
        data = data_of(event)
        self.open.note(event, data)
        self._observed.observe(event)
        if event.type in _PAUSES:
            self._note_pause(event, data)
        self.book.apply(event.seq, data)
        match data:
            case d.ToolStarted() | d.ToolFinished() | d.ToolFailed():  # nearly all of a long log
                pass
            case d.RunStarted():
                self.status, self.is_started = "running", True
            case d.RunTakenOver() | d.RunResumed():
                self.status = "running"
            case d.RunWaiting(on=on):
                self.status, self.waiting_on = "waiting", on
            case d.RunPaused() | d.RunBlocked() | d.RunCompleted() | d.RunFailed():
                self.status = event.type.removeprefix("run.")
            case d.RunCancelled(forced=forced):
                self.status, self.is_forced = "cancelled", forced
            case d.CheckpointSaved():
                self.checkpoint = event.seq
            case d.ArtifactCreated(artifact=artifact):
                self._observed.note_artifact(artifact)
            case _:
                pass

    def observe_input(self, event: Event) -> None:
        """Take note of an input that is being fed. One that history replay had read is noted again, unchanged."""
        if event.type != "command.received" or event.data["type"] not in _APPLIED_AT_ONCE:
            self.open.observe(event)
        self._observed.observe(event)

    def note_pause(self, event: Event) -> None:
        """Take note of an input before it is fed: whether the run is to pause does not wait its turn."""
        self._note_pause(event, data_of(event))

    def _note_pause(self, event: Event, data: Struct) -> None:
        match data:
            case d.CommandReceived(type="pause", payload=payload) if self.status != "paused" and self.pause is None:
                reason = payload.get("reason") if isinstance(payload, dict) else None
                self.pause = PauseAsked(event.seq, f"user:{event.actor.id}", reason)
            case d.CommandReceived(type="resume") | d.CancelRequested() | d.RunPaused():
                self.pause = None
            case _:
                pass

    def are_proven(self, claims: Iterable[Claim]) -> bool | None:
        """Whether what claims cite was observed in this run; None without claims."""
        return self._observed.are_proven(claims)

    def abandoned(self) -> list[Abandoned]:
        """Every step that had begun and has no result, as a terminal event lists it."""
        return self.open.abandoned()
