"""Why an engine parks a run: what only history replay can find out.

Promises that the blocker names the step. Leaves the parking itself to `store.parking`.
"""

from towline.protocol.store.parking import blocker
from towline.protocol.values import Blocker
from towline.workers.replay import Divergence
from towline.workers.steps import Step


def nondeterminism(divergence: Divergence, version: str, worker: str, now_ms: int) -> Blocker:
    """The code does not do what the log says it did."""
    return blocker(
        "nondeterminism",
        divergence.step,
        f"The code does not do what the log says it did at {divergence.step}",
        worker,
        now_ms,
        step=divergence.step,
        expected=divergence.expected,
        actual=divergence.actual,
        version=version,
    )


def unknown_effect(step: Step, worker: str, now_ms: int) -> Blocker:
    """A write was lost in its last attempt, and repeating it is a person's decision."""
    return blocker(
        "unknown_effect",
        step.step,
        f"Nobody knows whether {step.name} took effect; its worker was lost in the last attempt",
        worker,
        now_ms,
        step=step.step,
        attempt=step.attempt,
    )
