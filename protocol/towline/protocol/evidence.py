"""What was observed in a run, and whether claims rest on it.

Promises one rule for everyone who completes a run: a claim is proven when it cites something, and all that it cites
was seen to happen in this run. Pure: feed it every event, in order.
"""

from collections.abc import Iterable

from towline.protocol.events import EVENTS, Event
from towline.protocol.values import Claim


class Observed:
    """`events`: seqs of events that may carry a claim. `artifacts`: ids of what the run made."""

    def __init__(self) -> None:
        self.events: set[int] = set()
        self.artifacts: set[str] = set()

    def observe(self, event: Event) -> None:
        """Take note of the next event."""
        if EVENTS[event.type].observes:
            self.events.add(event.seq)

    def note_artifact(self, artifact: str) -> None:
        """The run made `artifact`."""
        self.artifacts.add(artifact)

    def are_proven(self, claims: Iterable[Claim]) -> bool | None:
        """Whether each claim is proven; None without claims."""
        verdicts = [
            bool(claim.evidence)
            and all(
                item.artifact in self.artifacts if item.artifact is not None else item.seq in self.events
                for item in claim.evidence
            )
            for claim in claims
        ]
        return all(verdicts) if verdicts else None
