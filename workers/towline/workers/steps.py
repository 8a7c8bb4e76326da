"""The book of activity steps: which attempt of each step runs, waits or is done, rebuilt from the log.

Promises that what it decides (another attempt, when, or none) follows from the log and the retry policy alone,
so that any holder of the run decides the same. A step goes

    started ──finished──▸ done          started ──failed, attempts left──▸ retry_wait ──due──▸ started (n+1)
       │                                   └──failed, none left──▸ done
       └─ its holder died: lost ──▸ started (n+1), or `unknown_effect` for a write that has no attempt left

Leaves feeding results to the workflow to `holding` and running attempts to `activities`.
"""

from collections.abc import Iterator
from typing import Literal

from msgspec import Struct

from towline.protocol import event_data as d
from towline.protocol import times
from towline.protocol.values import Effect
from towline.workers.registry import Retry

Phase = Literal["started", "retry_wait", "done"]


class Step(Struct):
    """Where one step stands. `started_seq` is the place of its newest `tool.started`."""

    step: str
    name: str
    effect: Effect
    attempt: int
    started_seq: int
    phase: Phase = "started"
    retry_at_ms: int = 0

    @property
    def retry_timer(self) -> str:
        """Id of the durable timer that ends the wait after this attempt."""
        return f"{self.step}:retry:{self.attempt}"


class StepBook:
    """See the module. `apply` takes the tool events of the log in order."""

    def __init__(self) -> None:
        self.steps: dict[str, Step] = {}
        self.finished_seq: dict[str, int] = {}
        self._undone: dict[str, Step] = {}
        self._resumed_seq = 0

    def apply(self, seq: int, data: Struct) -> None:
        """Take note of the event at `seq`. Others than tool events change nothing."""
        match data:
            case d.ToolStarted():
                step = Step(data.step, data.name, data.effect, data.attempt, started_seq=seq)
                self.steps[data.step] = self._undone[data.step] = step
            case d.ToolRetrying():
                step = self.steps[data.step]
                step.phase, step.retry_at_ms = "retry_wait", times.from_wire(data.retry_at)
            case d.ToolFinished():
                self.finished_seq[data.step] = seq
                self._undone.pop(data.step).phase = "done"
            case d.ToolFailed():
                self._undone.pop(data.step).phase = "done"
            case d.RunResumed(from_="blocked"):
                self._resumed_seq = seq
            case _:
                pass

    def started(self) -> Iterator[Step]:
        """Steps with an attempt that has no outcome yet."""
        return (step for step in self._undone.values() if step.phase == "started")

    def retry_waits(self) -> Iterator[Step]:
        """Steps that wait for their next attempt."""
        return (step for step in self._undone.values() if step.phase == "retry_wait")

    def retry_at_ms(self, step: str, policy: Retry, *, retryable: bool, now_ms: int) -> int | None:
        """When the attempt after a failed one is due (store time), or None if there is none."""
        attempt = self.steps[step].attempt
        if not retryable or attempt >= policy.attempts:
            return None
        return now_ms + policy.wait_ms(step, attempt)

    def is_effect_unknown(self, step: str, policy: Retry) -> bool:
        """Whether a lost attempt leaves a write that only a person may repeat.

        A run that was resumed from `blocked` since the attempt began has been given one more.
        """
        known = self.steps[step]
        return known.effect == "write" and known.attempt >= policy.attempts and known.started_seq > self._resumed_seq
