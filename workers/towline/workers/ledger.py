"""What a holder must remember of the log beside the machine: status, open things, the book of steps.

Promises that `observe`, fed every event of the log in order (what was read and what was just committed), answers
what a holder and an ending need. Leaves the words of an ending to `store.openends`, which every closer shares.
"""

from collections.abc import Iterable

from towline.protocol import event_data as d
from towline.protocol.events import Event, data_of
from towline.protocol.evidence import Observed
from towline.protocol.store.openends import OpenEnds
from towline.protocol.values import Abandoned, Claim, WaitRef
from towline.workers.steps import StepBook


class Ledger:
    """See the module."""

    def __init__(self) -> None:
        self.book = StepBook()
        self.open = OpenEnds()
        self.status = "queued"
        self.waiting_on: list[WaitRef] = []
        self.checkpoint: int | None = None
        self.is_forced = False
        self._observed = Observed()

    def observe(self, event: Event) -> None:
        """Take note of the next event."""
        self.open.observe(event)
        self._observed.observe(event)
        data = data_of(event)
        self.book.apply(event.seq, data)
        match data:
            case d.RunStarted() | d.RunTakenOver() | d.RunResumed():
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
        self.open.observe(event)
        self._observed.observe(event)

    def are_proven(self, claims: Iterable[Claim]) -> bool | None:
        """Whether what claims cite was observed in this run; None without claims."""
        return self._observed.are_proven(claims)

    def abandoned(self) -> list[Abandoned]:
        """Every step that had begun and has no result, as a terminal event lists it."""
        return self.open.abandoned()
