"""The fold: the Run depends on the events alone, at every cut, and each value keeps its audience."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings

from tests.support.logs import START_MS, logs
from towline.protocol import event_data as d
from towline.protocol import values as v
from towline.protocol.events import EVENTS, Actor, Event
from towline.protocol.run import START_TIMER, begin, fold, fold_all
from towline.protocol.run_state import Run
from towline.protocol.times import to_wire

CREATED = d.RunCreated(
    workflow="review", version="1", owner="alice", queue="default", headline="Review", grants={}, budget=None
)
DUE = to_wire(START_MS + 60_000)


class Log:
    """A log under the test's hand: `add` folds the next event, a second later than the one before."""

    def __init__(self, created: d.RunCreated = CREATED) -> None:
        self.at_ms = START_MS
        self.run = begin("r1", self._event(1, "run.created", created))

    def _event(self, seq: int, type_: str, data: Any, **more: Any) -> Event:
        wire = msgspec.json.decode(msgspec.json.encode(data))
        return Event(seq, to_wire(self.at_ms), type_, Actor("agent", "wf:x"), wire, **more)

    def add(self, type_: str, data: Any, *, after_ms: int = 1000, **more: Any) -> Run:
        self.at_ms += after_ms
        more = {"audience": EVENTS[type_].audience, **more}
        self.run = fold(self.run, self._event(self.run.last_seq + 1, type_, data, **more))
        return self.run

    def start(self) -> Run:
        return self.add("run.started", d.RunStarted(worker="w1"))

    def wait_for(self, *refs: v.WaitRef) -> Run:
        return self.add("run.waiting", d.RunWaiting(on=list(refs)))


def approval(**members: Any) -> d.ApprovalRequested:
    asked = d.ApprovalRequested(
        request="q1", title="Apply?", proposal=v.Proposal("Apply", [], [], "None", "Undo"), digest="sha256:1",
        questions=[], deciders=["user:bob"], exclude=["user:eve"], quorum=1,
    )  # fmt: skip
    return msgspec.structs.replace(asked, **members)


@settings(max_examples=60, deadline=None)
@given(logs())
def test_snapshot_and_tail_equal_the_whole_at_every_cut(log: list[Event]) -> None:
    whole = fold_all("r1", None, log)
    for cut in range(1, len(log) + 1):
        stored = msgspec.json.encode(fold_all("r1", None, log[:cut]))
        assert fold_all("r1", msgspec.json.decode(stored, type=Run), log[cut:]) == whole


@settings(max_examples=40, deadline=None)
@given(logs())
def test_each_value_has_the_audience_of_who_set_it_and_statuses_are_always_known(log: list[Event]) -> None:
    run = fold_all("r1", None, log)
    rank = {"viewer": 0, "collaborator": 1, "operator": 2}
    assert run.last_seq == len(log)
    for name, setters in {
        "plan": ("plan.proposed", "plan.revised", "plan.step"),
        "usage": ("tool.started", "tool.retrying", "tool.finished", "tool.failed"),
    }.items():
        wanted = [rank[e.audience] for e in log if e.type in setters]
        if name == "plan":
            assert rank[run.audiences.get(name, "viewer")] == max(wanted, default=0)
        elif wanted:
            assert rank[run.audiences.get(name, "viewer")] <= max(wanted)
    for wait in run.waiting_on:
        opener = log[wait.seq - 1]
        assert wait.audience in ("viewer", opener.audience)
    if log[-1].type == "run.completed":
        assert (run.status, run.waiting_on, run.stopping, run.pausing) == ("completed", [], None, False)


def test_a_vote_on_what_nobody_opened_is_kept_by_nobody() -> None:
    log = Log()
    log.start()
    log.wait_for(v.WaitRef("q1", "approval"))
    voted = d.ApprovalVoted(request="q1", by="user:a", decision="approve")
    assert [wait.request for wait in log.add("approval.voted", voted).waiting_on] == [None]


def test_a_gap_is_a_lie() -> None:
    log = Log()
    event = log._event(3, "run.started", d.RunStarted(worker="w"))
    with pytest.raises(ValueError, match="does not follow"):
        fold(log.run, event)
    with pytest.raises(ValueError, match="begins with"):
        begin("r1", event)
    with pytest.raises(ValueError, match="no event yet"):
        fold_all("r1", None, [])


def test_a_new_run_is_queued_and_hides_its_input() -> None:
    run = Log(msgspec.structs.replace(CREATED, input_ref="pay_1", labels={"a": "b"})).run
    assert (run.status, run.input_ref, run.audiences) == ("queued", "pay_1", {"input_ref": "collaborator"})
    assert run.created_at == run.updated_at == to_wire(START_MS)


def test_a_run_with_a_time_to_start_says_so_until_it_comes() -> None:
    later = Log(msgspec.structs.replace(CREATED, start_at=DUE))
    assert later.run.status_detail == v.StatusDetail("start_at", f"It starts at {DUE}.", since=to_wire(START_MS))
    fired = later.add("timer.fired", d.TimerFired(timer=START_TIMER))
    assert (fired.status, fired.status_detail) == ("queued", None)
    assert later.start().status == "running"
    joined = Log(msgspec.structs.replace(CREATED, start_at=DUE, thread="t"))
    behind = joined.add("timer.fired", d.TimerFired(timer=START_TIMER, behind="r0"))
    assert (behind.status, behind.status_detail and behind.status_detail.code) == ("queued", "thread")
    past = Log(msgspec.structs.replace(CREATED, start_at=to_wire(START_MS)))
    assert (past.run.status, past.run.status_detail) == ("queued", None)


def test_a_run_that_waits_in_its_thread_says_for_whom_until_it_starts() -> None:
    log = Log(msgspec.structs.replace(CREATED, thread="t", behind="r0"))
    detail = v.StatusDetail("thread", "It waits in its thread for r0 and those before it.", since=to_wire(START_MS))
    assert (log.run.status, log.run.status_detail) == ("queued", detail)
    started = log.start()
    assert (started.status, started.status_detail) == ("running", None)


def test_a_run_that_was_paused_before_it_started_is_queued_again() -> None:
    log = Log()
    assert log.add("run.paused", d.RunPaused(code="user", by="user:a")).status == "paused"
    assert log.add("timer.fired", d.TimerFired(timer=START_TIMER)).status == "paused"
    assert log.add("run.resumed", d.RunResumed(from_="paused")).status == "queued"
    assert log.start().status == "running"


def test_each_status_is_entered_by_its_event_and_left_by_resumed() -> None:
    log = Log()
    assert log.start().status == "running"
    log.add("approval.requested", approval())
    assert log.run.status_detail is None
    assert log.wait_for(v.WaitRef("q1", "approval")).status == "waiting"
    assert log.run.status_detail == v.StatusDetail("approval", since=log.run.updated_at)
    # What comes from outside never changes the status: only the holder's own word does.
    log.add("command.received", d.CommandReceived(command_id="c1", type="signal", payload=None))
    log.add("cancel.requested", d.CancelRequested(command_id="c2", by="user:a", deadline=DUE))
    log.add("approval.resolved", d.ApprovalResolved(request="q1", outcome="approved", decisions=[]))
    assert log.run.status == "waiting"
    assert log.add("run.resumed", d.RunResumed(from_="waiting")).status == "running"
    assert log.add("run.paused", d.RunPaused(code="user", by="user:a")).status == "paused"
    assert log.add("run.resumed", d.RunResumed(from_="paused")).status == "running"
    blocker = v.Blocker(id="b", kind="poison", title="t", since=DUE, by="system", stops=True, remedies=[])
    assert log.add("run.blocked", d.RunBlocked(blocker=blocker)).status == "blocked"
    assert [b.id for b in log.run.blockers] == ["b"]
    assert log.add("run.resumed", d.RunResumed(from_="blocked", version="2")).blockers == []
    assert log.run.version == "2"
    ended = log.add("run.cancelled", d.RunCancelled(by="user:a", forced=False, abandoned=[], reason="enough"))
    assert (ended.status, ended.is_terminal, ended.stopping, ended.ended_at) == (
        "cancelled",
        True,
        None,
        ended.updated_at,
    )
    assert ended.status_detail is not None
    assert ended.status_detail.text == "enough"


def test_a_later_cancel_only_brings_the_deadline_nearer() -> None:
    log = Log()
    far, near = to_wire(START_MS + 9_000_000), to_wire(START_MS + 8_000_000)
    for deadline, expected in ((far, far), (near, near), (far, near)):
        log.add("cancel.requested", d.CancelRequested(command_id="c", by="user:a", deadline=deadline, reason="x"))
        assert log.run.stopping is not None
        assert log.run.stopping.deadline == expected
    assert log.run.stopping is not None
    assert log.run.stopping.requested_at == to_wire(START_MS + 1000)


def test_waiting_names_all_that_still_can_wake_the_run() -> None:
    log = Log()
    log.start()
    log.add("timer.started", d.TimerStarted(timer="lost", due_at=DUE, why="timeout"))
    log.add("timer.started", d.TimerStarted(timer="kept", due_at=DUE, why="sleep"))
    log.add("child.started", d.ChildStarted(step="s", run="r2"))
    log.add("approval.requested", approval())
    schema = {"type": "object"}
    log.wait_for(
        v.WaitRef("kept", "timer", "sleep"), v.WaitRef("s", "child"), v.WaitRef("q1", "approval"),
        v.WaitRef("go", "signal", "go", schema),
    )  # fmt: skip
    assert {w.id for w in log.run.waiting_on} == {"kept", "s", "q1", "go"}
    signal = next(w for w in log.run.waiting_on if w.kind == "signal")
    assert signal.request == {"name": "go", "schema": schema}
    assert "go" not in {w.id for w in log.add("run.resumed", d.RunResumed(from_="waiting")).waiting_on}
    assert "kept" not in {w.id for w in log.add("timer.fired", d.TimerFired(timer="kept")).waiting_on}
    finished = d.ChildFinished(step="s", run="r2", status="completed")
    assert [w.id for w in log.add("child.finished", finished).waiting_on] == ["q1"]


@pytest.mark.parametrize(
    ("refs", "code"),
    [
        ([v.WaitRef("t", "timer", "retry")], "retry_wait"),
        ([v.WaitRef("t", "timer", "retry"), v.WaitRef("u", "timer", "sleep")], "timer"),
        ([v.WaitRef("t", "timer", "sleep"), v.WaitRef("q", "approval")], "approval"),
        ([v.WaitRef("s", "signal", "go")], "signal"),
        ([], None),
    ],
)
def test_why_it_waits(refs: list[v.WaitRef], code: str | None) -> None:
    run = Log().wait_for(*refs)
    assert (run.status_detail.code if run.status_detail else None) == code


def test_only_running_time_is_active() -> None:
    log = Log()
    log.add("progress.noted", d.ProgressNoted(text="queued"), after_ms=500)
    assert log.start().usage.active_ms == 0
    assert log.add("progress.noted", d.ProgressNoted(text="x"), after_ms=300).usage.active_ms == 300
    assert log.wait_for().usage.active_ms == 1300
    log.add("progress.noted", d.ProgressNoted(text="waits"), after_ms=9000)
    assert log.add("run.resumed", d.RunResumed(from_="waiting")).usage.active_ms == 1300
    blocked = d.RunBlocked(
        blocker=v.Blocker(id="b", kind="poison", title="t", since=DUE, by="s", stops=True, remedies=[])
    )
    assert log.add("run.blocked", blocked, after_ms=7).usage.active_ms == 1307
    assert log.add("run.resumed", d.RunResumed(from_="blocked"), after_ms=50_000).usage.active_ms == 1307


def test_usage_counts_attempts_steps_and_what_each_spent() -> None:
    log = Log()
    started = d.ToolStarted(step="s", name="ask", title="Ask", attempt=1, effect="none")
    log.add("tool.started", started)
    error = v.ErrorInfo("Busy", "later", True)
    log.add("tool.retrying", d.ToolRetrying(step="s", attempt=1, error=error, retry_at=DUE, usage=v.Usage(5, 10)))
    log.add("tool.started", msgspec.structs.replace(started, attempt=2))
    log.add("tool.finished", d.ToolFinished(step="s", attempt=2, summary="", duration_ms=1, usage=v.Usage(7, 20)))
    usage = log.run.usage
    assert (usage.steps, usage.tool_calls, usage.per_tool, usage.usd_micros, usage.tokens) == (1, 2, {"ask": 2}, 12, 30)
    assert log.run.audiences["usage"] == "collaborator"
    assert log.run.status == "queued"


def test_a_request_is_complete_up_to_8_kib_and_names_its_deciders_beyond() -> None:
    log = Log()
    log.add("approval.requested", approval(expires_at=DUE))
    (wait,) = log.run.waiting_on
    assert (wait.kind, wait.title, wait.expires_at, wait.audience) == ("approval", "Apply?", DUE, "collaborator")
    assert wait.request["digest"] == "sha256:1"
    log.add("approval.voted", d.ApprovalVoted(request="q1", by="user:bob", decision="approve"))
    (wait,) = log.run.waiting_on
    assert wait.request["decisions"] == [{"by": "user:bob", "decision": "approve", "at": log.run.updated_at}]
    for more in ({"why": "x" * 9000}, {"proposal": None}):
        log = Log()
        log.add("approval.requested", approval(**more), ref="pay_1" if "proposal" in more else None)
        (wait,) = log.run.waiting_on
        assert wait.request == {"ref": "pay_1" if "proposal" in more else "q1"}
        assert (wait.deciders, wait.exclude) == (["user:bob"], ["user:eve"])
        log.add("approval.voted", d.ApprovalVoted(request="q1", by="user:bob", decision="approve"))
        resolved = d.ApprovalResolved(request="q1", outcome="approved", decisions=[])
        assert log.add("approval.resolved", resolved).waiting_on == []


def test_the_end_keeps_audiences_of_its_parts() -> None:
    log = Log()
    claims = [v.Claim("Done", [v.Evidence(seq=1)])]
    log.add("run.completed", d.RunCompleted(summary="Done", claims=claims, verified=True, result={"a": 1}))
    hidden = {name: reader for name, reader in log.run.audiences.items() if name.startswith("outcome")}
    assert hidden == {"outcome.result": "collaborator", "outcome.result_ref": "collaborator"}
    assert log.run.outcome is not None
    assert (log.run.outcome.verified, log.run.outcome.claims) == (True, claims)
    failed = Log()
    error = v.ErrorInfo("Broken", "secret path", False)
    failed.add("run.failed", d.RunFailed(summary="Broken", error=error, checkpoint=None, abandoned=[]))
    assert failed.run.audiences["outcome.error.message"] == "collaborator"


def test_plan_progress_artifacts_and_checkpoints() -> None:
    log = Log()
    log.add("plan.proposed", d.PlanProposed(items=[v.PlanItem("1", "Read"), v.PlanItem("2", "Fix")]))
    log.add("plan.step", d.PlanStep(id="1", status="done"))
    log.add("plan.step", d.PlanStep(id="9", status="done"))
    assert log.run.plan == [v.PlanItem("1", "Read", "done"), v.PlanItem("2", "Fix")]
    assert log.add("progress.noted", d.ProgressNoted(text="Half way")).summary == "Half way"
    made = d.ArtifactCreated(artifact="a", name="n", media_type="text/plain", size=1, sha256="0")
    assert log.add("artifact.created", made).artifacts == 1
    saved = d.CheckpointSaved(title="Here", done=["1"], next=["2"], evidence=[], automatic=False)
    run = log.add("checkpoint.saved", saved)
    assert run.checkpoint == v.Checkpoint(run.last_seq, "Here", ["1"], ["2"], [])
    assert log.add("budget.changed", d.BudgetChanged(caps={"tokens": 5}, by="user:a")).budget == v.Budget(tokens=5)


@settings(max_examples=20, deadline=None)
@given(logs())
def test_an_event_type_from_the_future_moves_the_cursor_and_nothing_else(log: list[Event]) -> None:
    run = fold_all("r1", None, log)
    if run.is_terminal:
        return
    event = Event(
        run.last_seq + 1, run.updated_at, "marker.recorded", Actor("agent", "x"), {"kind": "k"}, None, "operator"
    )
    assert msgspec.structs.replace(fold(run, event), last_seq=run.last_seq) == run
