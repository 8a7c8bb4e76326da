"""What the log says of attempts: they start, finish, fail, or are tried again.

Promises one entry each, under the step's key, with what history replay needs in the private part. Pure; leaves what
belongs to an entry (timers, artifacts, messages) to `holding`.
"""

from towline.protocol import event_data as d
from towline.protocol import times
from towline.protocol.codec import NewEntry
from towline.protocol.events import Actor
from towline.protocol.values import ErrorInfo, Usage
from towline.workers.commits import Attempt, AttemptFailed, AttemptFinished


def started(attempt: Attempt, agent: Actor) -> NewEntry:
    """An attempt begins once this is in the log."""
    activity = attempt.start.activity
    data = d.ToolStarted(
        step=attempt.step,
        name=activity.name,
        title=activity.title,
        attempt=attempt.number,
        effect=activity.effect,
    )
    return NewEntry(type="tool.started", actor=agent, data=data, key=attempt.step)


def finished(outcome: AttemptFinished, agent: Actor) -> NewEntry:
    """A step has its result."""
    data = d.ToolFinished(
        step=outcome.step,
        attempt=outcome.attempt,
        summary=outcome.summary,
        duration_ms=outcome.duration_ms,
        usage=outcome.usage,
    )
    private = b'{"result":' + outcome.result + b"}"
    return NewEntry(type="tool.finished", actor=agent, data=data, key=outcome.step, private=private)


def failed(step: str, attempt: int, error: ErrorInfo, usage: Usage | None, agent: Actor) -> NewEntry:
    """A step failed, and no further attempt follows."""
    data = d.ToolFailed(step=step, attempt=attempt, error=error, usage=usage)
    return NewEntry(type="tool.failed", actor=agent, data=data, key=step)


def retrying(outcome: AttemptFailed, retry_at_ms: int, agent: Actor) -> NewEntry:
    """An attempt failed, and another follows at `retry_at_ms`."""
    data = d.ToolRetrying(
        step=outcome.step,
        attempt=outcome.attempt,
        error=outcome.error,
        retry_at=times.to_wire(retry_at_ms),
        usage=outcome.usage,
    )
    return NewEntry(type="tool.retrying", actor=agent, data=data, key=outcome.step)
