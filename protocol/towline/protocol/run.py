"""The Run: what a log amounts to. One pure fold, the only place that knows how an event changes it.

Promises that the Run depends on nothing but the events, in order; that folding a snapshot and its tail equals
folding the whole log, at every cut; and that each value keeps the audience of the event that set it. Leaves to
`projection` what one caller sees of it. Read `events` first.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from towline.protocol import event_data as ev
from towline.protocol import times
from towline.protocol.events import Audience, Event, data_of
from towline.protocol.limits import REQUEST_INLINE_BYTES
from towline.protocol.run_audiences import Changes, audience_of, audiences_after
from towline.protocol.run_state import Outcome, Run, Wait
from towline.protocol.values import (
    Blocker,
    Budget,
    Checkpoint,
    Spent,
    Status,
    StatusDetail,
    Stopping,
    WaitKind,
)

START_TIMER: Final = "start_at"
"""The timer whose `timer.fired` says that the time has come for which a run was queued; no event starts it."""

_Handler = Callable[[Run, Event, Any], Changes]


def fold(run: Run, event: Event) -> Run:
    """`run` after `event`, the next of its log.

    Raises `ValueError` if `event` is not the next one: a fold over a gap would be a lie.
    """
    if event.seq != run.last_seq + 1:
        raise ValueError(f"event {event.seq} does not follow {run.last_seq}")
    changes: Changes = {}
    if (handler := _HANDLERS.get(event.type)) is not None:
        changes = handler(run, event, data_of(event))
    if run.status == "running":
        elapsed_ms = max(0, times.from_wire(event.ts) - times.from_wire(run.updated_at))
        usage: Spent = changes.get("usage", run.usage)
        changes["usage"] = replace(usage, active_ms=usage.active_ms + elapsed_ms)
    audiences = audiences_after(run, event, changes)
    return replace(run, **changes, updated_at=event.ts, last_seq=event.seq, audiences=audiences)


def fold_all(run_id: str, run: Run | None, events: Iterable[Event]) -> Run:
    """`run` after all of `events`, in order; None stands for the Run before its first event.

    Raises `ValueError` where there is neither a Run nor an event.
    """
    for event in events:
        run = begin(run_id, event) if run is None else fold(run, event)
    if run is None:
        raise ValueError(f"run {run_id} has no event yet")
    return run


def begin(run_id: str, event: Event) -> Run:
    """The Run after its first event, which is `run.created`."""
    if event.seq != 1 or event.type != "run.created":
        raise ValueError(f"a log begins with run.created, not with {event.seq} {event.type}")
    data: ev.RunCreated = msgspec.convert(event.data, ev.RunCreated)
    audiences: dict[str, Audience] = {}
    if (reader := audience_of(event, "input_ref")) != "viewer":
        audiences["input_ref"] = reader
    is_later = data.start_at is not None and times.from_wire(data.start_at) > times.from_wire(event.ts)
    start_at = data.start_at if is_later else None
    return Run(
        id=run_id,
        workflow=data.workflow,
        version=data.version,
        queue=data.queue,
        owner=data.owner,
        headline=data.headline,
        created_at=event.ts,
        updated_at=event.ts,
        last_seq=1,
        thread=data.thread,
        labels=data.labels,
        scope=data.scope,
        permission_mode=data.permission_mode,
        input_ref=data.input_ref,
        budget=data.budget,
        parent=data.parent,
        forked_from=data.forked_from,
        status_detail=_held_back(event.ts, data.behind, start_at),
        audiences=audiences,
    )


def _held_back(since: str, behind: str | None, start_at: str | None) -> StatusDetail | None:
    """What a queued run waits for besides a worker."""
    if start_at is not None:
        return StatusDetail("start_at", f"It starts at {start_at}.", None, since)
    if behind is not None:
        return StatusDetail("thread", f"It waits in its thread for {behind} and those before it.", None, since)
    return None


def _enter(status: Status, event: Event, code: str | None, text: str | None = None, by: str | None = None) -> Changes:
    detail = None if code is None else StatusDetail(code, text, by, event.ts)
    return {"status": status, "status_detail": detail}


def _started(run: Run, event: Event, data: ev.RunStarted) -> Changes:
    return {**_enter("running", event, None), "started_at": run.started_at or event.ts}


def _taken_over(run: Run, event: Event, data: ev.RunTakenOver) -> Changes:
    return {} if run.status == "running" else _started(run, event, ev.RunStarted(worker=data.worker))


def _waiting(run: Run, event: Event, data: ev.RunWaiting) -> Changes:
    """`on` is the whole truth of what still can wake the run: timers that lost a race are gone from it."""
    named = {wait.id for wait in data.on}
    waits = [w for w in run.waiting_on if w.id in named or w.kind not in ("timer", "signal")]
    known = {w.id for w in waits}
    for ref in data.on:
        if ref.id in known:
            continue
        request: Any = None
        if ref.kind == "signal":
            request = {"name": ref.name, **({"schema": ref.schema} if ref.schema is not None else {})}
        title = {"signal": f"Waits for the signal {ref.name}", "timer": "Waits before the next attempt"}
        named_as = title.get(ref.kind, ref.name)
        waits.append(
            Wait(ref.id, ref.kind, named_as, event.ts, event.seq, request=request, audience=audience_of(event))
        )
    kinds = [ref.kind for ref in data.on]
    code: str | None = kinds[0] if kinds else None
    if kinds and all(kind == "timer" and ref.name == "retry" for kind, ref in zip(kinds, data.on, strict=True)):
        code = "retry_wait"
    for kind in ("approval", "input", "budget", "human_gate"):
        if kind in kinds:
            code = kind
            break
    return {**_enter("waiting", event, code), "waiting_on": waits}


def _paused(run: Run, event: Event, data: ev.RunPaused) -> Changes:
    return {**_enter("paused", event, data.code, data.text, data.by), "pausing": False}


def _resumed(run: Run, event: Event, data: ev.RunResumed) -> Changes:
    changes = _enter("running", event, None)
    if run.started_at is None:
        changes["status"] = "queued"
    if data.from_ == "blocked":
        changes["blockers"] = [b for b in run.blockers if not b.stops]
    if data.from_ == "waiting":
        changes["waiting_on"] = [w for w in run.waiting_on if w.kind != "signal"]
    if data.version is not None:
        changes["version"] = data.version
    return changes


def _blocked(run: Run, event: Event, data: ev.RunBlocked) -> Changes:
    others = [b for b in run.blockers if b.id != data.blocker.id]
    detail = _enter("blocked", event, data.blocker.kind, data.blocker.title, data.blocker.by)
    return {**detail, "blockers": [*others, data.blocker], "pausing": False}


def _completed(run: Run, event: Event, data: ev.RunCompleted) -> Changes:
    outcome = Outcome(result=data.result, result_ref=event.ref, verified=data.verified, claims=data.claims)
    return {**_ended("completed", event, outcome), "summary": data.summary}


def _failed(run: Run, event: Event, data: ev.RunFailed) -> Changes:
    return {**_ended("failed", event, Outcome(error=data.error)), "summary": data.summary}


def _cancelled(run: Run, event: Event, data: ev.RunCancelled) -> Changes:
    changes = _ended("cancelled", event, Outcome())
    changes["status_detail"] = StatusDetail("user", data.reason, data.by, event.ts)
    return changes


def _ended(status: Status, event: Event, outcome: Outcome) -> Changes:
    return {
        **_enter(status, event, None),
        "outcome": outcome,
        "ended_at": event.ts,
        "stopping": None,
        "pausing": False,
        "waiting_on": [],
    }


def _planned(run: Run, event: Event, data: ev.PlanProposed | ev.PlanRevised) -> Changes:
    return {"plan": data.items}


def _plan_step(run: Run, event: Event, data: ev.PlanStep) -> Changes:
    return {"plan": [replace(i, status=data.status) if i.id == data.id else i for i in run.plan or []]}


def _tool_started(run: Run, event: Event, data: ev.ToolStarted) -> Changes:
    usage = run.usage
    per_tool = {**usage.per_tool, data.name: usage.per_tool.get(data.name, 0) + 1}
    steps = usage.steps + (1 if data.attempt == 1 else 0)
    return {"usage": replace(usage, steps=steps, tool_calls=usage.tool_calls + 1, per_tool=per_tool)}


def _tool_spent(run: Run, event: Event, data: ev.ToolRetrying | ev.ToolFinished | ev.ToolFailed) -> Changes:
    if data.usage is None:
        return {}
    usage = run.usage
    return {
        "usage": replace(
            usage,
            usd_micros=usage.usd_micros + data.usage.usd_micros,
            tokens=usage.tokens + data.usage.tokens,
        )
    }


def _open(run: Run, event: Event, wait_id: str, kind: WaitKind, title: str, expires_at: str | None) -> Changes:
    """A request to people: complete in the Run up to 8 KiB, so that a client can act from the Run alone."""
    request = {k: v for k, v in event.data.items() if k not in ("request", "title", "expires_at")}
    wait = Wait(wait_id, kind, title, event.ts, event.seq, expires_at, request, audience_of(event))
    if event.ref is not None or len(msgspec.json.encode(request)) > REQUEST_INLINE_BYTES:
        wait = replace(
            wait,
            request={"ref": event.ref or wait_id},
            deciders=request.get("deciders", request.get("answerers")),
            exclude=request.get("exclude", []),
        )
    elif kind == "approval":
        wait = replace(wait, request={**request, "decisions": []})
    return {"waiting_on": [*(w for w in run.waiting_on if w.id != wait_id), wait]}


def _approval_requested(run: Run, event: Event, data: ev.ApprovalRequested) -> Changes:
    return _open(run, event, data.request, "approval", data.title, data.expires_at)


def _input_requested(run: Run, event: Event, data: ev.InputRequested) -> Changes:
    return _open(run, event, data.request, "input", data.title, data.expires_at)


def _approval_voted(run: Run, event: Event, data: ev.ApprovalVoted) -> Changes:
    vote = {"by": data.by, "decision": data.decision, "at": event.ts}
    waits = []
    for wait in run.waiting_on:
        if wait.id == data.request and wait.kind == "approval" and "decisions" in (wait.request or ()):
            wait = replace(wait, request={**wait.request, "decisions": [*wait.request["decisions"], vote]})
        waits.append(wait)
    return {"waiting_on": waits}


def _resolved(run: Run, event: Event, data: ev.ApprovalResolved | ev.InputResolved) -> Changes:
    return {"waiting_on": [w for w in run.waiting_on if w.id != data.request]}


def _timer_started(run: Run, event: Event, data: ev.TimerStarted) -> Changes:
    due = {"due_at": data.due_at}
    wait = Wait(data.timer, "timer", data.why, event.ts, event.seq, request=due, audience=audience_of(event))
    return {"waiting_on": [*run.waiting_on, wait]}


def _timer_fired(run: Run, event: Event, data: ev.TimerFired) -> Changes:
    changes: Changes = {"waiting_on": [w for w in run.waiting_on if w.id != data.timer]}
    if data.timer == START_TIMER and run.status == "queued":
        changes["status_detail"] = _held_back(event.ts, data.behind, None)
    return changes


def _child_started(run: Run, event: Event, data: ev.ChildStarted) -> Changes:
    wait = Wait(data.step, "child", None, event.ts, event.seq, request={"run": data.run}, audience=audience_of(event))
    return {"waiting_on": [*run.waiting_on, wait], "children": run.children + 1}


def _child_finished(run: Run, event: Event, data: ev.ChildFinished) -> Changes:
    return {"waiting_on": [w for w in run.waiting_on if w.id != data.step]}


def _command_received(run: Run, event: Event, data: ev.CommandReceived) -> Changes:
    if data.type == "pause" and run.status not in ("paused", "blocked"):
        return {"pausing": True}
    return {"pausing": False} if data.type == "resume" and run.pausing else {}


def _cancel_requested(run: Run, event: Event, data: ev.CancelRequested) -> Changes:
    if run.stopping is None:
        stopping = Stopping(event.ts, data.by, data.reason, data.deadline)
    else:
        stopping = replace(run.stopping, deadline=min(run.stopping.deadline, data.deadline))
    return {"stopping": stopping, "pausing": False}  # a cancel takes a pause back


def _blocker_raised(run: Run, event: Event, data: ev.BlockerRaised) -> Changes:
    blocker = msgspec.convert(event.data, Blocker)
    return {"blockers": [*(b for b in run.blockers if b.id != blocker.id), blocker]}


def _blocker_cleared(run: Run, event: Event, data: ev.BlockerCleared) -> Changes:
    return {"blockers": [b for b in run.blockers if b.id != data.id]}


def _budget_changed(run: Run, event: Event, data: ev.BudgetChanged) -> Changes:
    caps = msgspec.to_builtins(run.budget or Budget())
    return {"budget": msgspec.convert({**caps, **data.caps}, Budget)}


def _noted(run: Run, event: Event, data: ev.ProgressNoted) -> Changes:
    return {"summary": data.text}


def _artifact(run: Run, event: Event, data: ev.ArtifactCreated) -> Changes:
    return {"artifacts": run.artifacts + 1}


def _checkpoint(run: Run, event: Event, data: ev.CheckpointSaved) -> Changes:
    return {"checkpoint": Checkpoint(event.seq, data.title, data.done, data.next, data.evidence)}


_HANDLERS: Final[dict[str, _Handler]] = {
    "run.started": _started,
    "run.taken_over": _taken_over,
    "run.waiting": _waiting,
    "run.paused": _paused,
    "run.resumed": _resumed,
    "run.blocked": _blocked,
    "run.completed": _completed,
    "run.failed": _failed,
    "run.cancelled": _cancelled,
    "plan.proposed": _planned,
    "plan.revised": _planned,
    "plan.step": _plan_step,
    "tool.started": _tool_started,
    "tool.retrying": _tool_spent,
    "tool.finished": _tool_spent,
    "tool.failed": _tool_spent,
    "approval.requested": _approval_requested,
    "input.requested": _input_requested,
    "approval.voted": _approval_voted,
    "approval.resolved": _resolved,
    "input.resolved": _resolved,
    "timer.started": _timer_started,
    "timer.fired": _timer_fired,
    "child.started": _child_started,
    "child.finished": _child_finished,
    "command.received": _command_received,
    "cancel.requested": _cancel_requested,
    "blocker.raised": _blocker_raised,
    "blocker.cleared": _blocker_cleared,
    "budget.changed": _budget_changed,
    "progress.noted": _noted,
    "artifact.created": _artifact,
    "checkpoint.saved": _checkpoint,
}
