"""What one caller sees: nothing above the role, every seq, and the log's own bytes where nothing is hidden."""

from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.logs import logs
from tests.unit.protocol.test_run import Log, approval
from towline.protocol import event_data as d
from towline.protocol import values as v
from towline.protocol.actions import actions_of
from towline.protocol.codec import NewEntry, decode_entry, encode_envelope, encode_meta, meta_of
from towline.protocol.cursor import Cursor
from towline.protocol.events import EVENTS, Actor, Audience, Event
from towline.protocol.projection import Caller, Heartbeat, Role, may_read, project_entry, project_run
from towline.protocol.run import fold_all
from towline.protocol.run_state import Run
from towline.protocol.times import to_wire

ROLES: tuple[Role, ...] = get_args(Role)
READERS: tuple[Role, ...] = ("viewer", "owner", "operator")
READS = {"share": 0, "viewer": 0, "collaborator": 1, "owner": 1, "operator": 2, "worker": 2}
RANK = {"viewer": 0, "collaborator": 1, "operator": 2}


def seen(run: Run, role: Role, **more: Any) -> dict[str, Any]:
    return project_run(run, Caller("someone", role), cursor=Cursor(run.last_seq, 5), **more)


def entry(type_: str, data: Any, **more: Any) -> Any:
    new = NewEntry(type_, Actor("user", "alice"), data, **more)
    raw = b'{"seq":4,"ts":"2026-01-31T09:30:00.000Z","cause":null,' + encode_envelope(new)
    return decode_entry("4-7", raw, encode_meta(meta_of(new)))


def event_of(type_: str, data: Any, role: Role, **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(project_entry(entry(type_, data, **more), role))
    return found


@pytest.mark.parametrize("role", ROLES)
def test_roles_read_what_their_row_says(role: Role) -> None:
    audiences: tuple[Audience, ...] = get_args(Audience)
    for audience in audiences:
        assert may_read(role, audience) == (READS[role] >= RANK[audience])


@settings(max_examples=40, deadline=None)
@given(logs(longest=20), st.sampled_from(ROLES))
def test_a_run_shows_no_value_above_the_role_and_names_what_is_missing(log: list[Event], role: Role) -> None:
    run = fold_all("r1", None, log)
    wire = seen(run, role)
    assert "audiences" not in wire
    assert all("audience" not in w and "deciders" not in w for w in wire["waiting_on"])
    for path, audience in run.audiences.items():
        value: Any = wire
        for part in path.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if not may_read(role, audience):
            assert value is None
    for wait, shown in zip(run.waiting_on, wire["waiting_on"], strict=True):
        if not may_read(role, wait.audience):
            assert shown["request"] is None
            assert "waiting_on.request" in wire["redacted"]
    if role == "operator":
        whole = msgspec.to_builtins(run)
        assert wire["redacted"] == []
        skipped = ("audiences", "waiting_on", "outcome")
        assert all(wire[name] == value for name, value in whole.items() if name not in skipped)
    assert msgspec.json.decode(msgspec.json.encode(wire)) == wire


@settings(max_examples=50, deadline=None)
@given(logs(longest=8), st.sampled_from(ROLES))
def test_everyone_sees_every_event_and_unhidden_ones_byte_for_byte(log: list[Event], role: Role) -> None:
    for event in log:
        new = NewEntry(event.type, event.actor, event.data, event.ref, event.audience)
        raw = b'{"seq":%d,"ts":"%s","cause":null,' % (event.seq, event.ts.encode()) + encode_envelope(new)
        stored = decode_entry(f"{event.seq}-1", raw, encode_meta(meta_of(new)))
        out = project_entry(stored, role)
        wire = msgspec.json.decode(out)
        assert (wire["seq"], wire["ts"], wire["type"], wire["audience"]) == (
            event.seq,
            event.ts,
            event.type,
            event.audience,
        )
        if role in ("operator", "worker"):
            assert out is stored.raw
        if not may_read(role, event.audience):
            assert wire["redacted"] is True
            assert wire["ref"] is None
            fields = EVENTS[event.type].fields if EVENTS[event.type].audience == event.audience else {}
            allowed = {p for p, a in fields.items() if may_read(role, a)}
            assert wire["data"] is None or set(wire["data"]) <= allowed
        if role != "share" and "redacted" not in wire:
            assert out is stored.raw


def test_partly_hidden_data_is_reduced() -> None:
    started = d.ToolStarted(step="s", name="rm", title="secret", attempt=1, effect="write")
    assert event_of("tool.started", started, "viewer")["data"] == {"step": "s", "attempt": 1, "effect": "write"}
    assert event_of("tool.started", started, "viewer", audience="operator")["data"] is None
    assert event_of("tool.started", started, "viewer", audience="viewer")["data"]["title"] == "secret"
    done = d.RunCompleted(summary="ok", claims=[], verified=None, result={"key": 1})
    viewer = event_of("run.completed", done, "viewer", ref="pay_1")
    assert (viewer["data"], viewer["redacted"], viewer["ref"]) == (
        {"summary": "ok", "claims": [], "verified": None}, True, None,
    )  # fmt: skip
    spilled = d.RunCompleted(summary="ok", claims=[], verified=None)
    assert event_of("run.completed", spilled, "viewer", ref="pay_1")["ref"] is None
    assert event_of("run.completed", spilled, "owner", ref="pay_1")["ref"] == "pay_1"
    assert event_of("run.completed", done, "owner")["data"]["result"] == {"key": 1}
    error = v.ErrorInfo("Broken", "at /home/x", False)
    failed = d.RunFailed(summary="no", error=error, checkpoint=None, abandoned=[])
    assert event_of("run.failed", failed, "viewer")["data"]["error"] == {"type": "Broken", "retryable": False}
    created = d.RunCreated(
        workflow="w", version="1", owner="alice", queue="q", headline="h", grants={"user:bob": "viewer"}, budget=None
    )
    assert "grants" not in event_of("run.created", created, "viewer")["data"]
    assert "redacted" not in event_of("timer.fired", d.TimerFired(timer="t"), "viewer")


def test_a_result_that_moved_to_a_payload_is_hidden_with_its_reference() -> None:
    log = Log()
    log.add("run.completed", d.RunCompleted(summary="ok", claims=[], verified=None), ref="pay_1")
    assert seen(log.run, "viewer")["outcome"].get("result_ref") is None
    assert seen(log.run, "viewer")["redacted"] == ["outcome.result_ref"]
    assert seen(log.run, "owner")["outcome"]["result_ref"] == "pay_1"


def blocker(by: str = "worker-7") -> v.Blocker:
    return v.Blocker(
        id="b", kind="poison", title="t", since=to_wire(0), by=by, stops=True, remedies=[], detail={"at": "/home"}
    )


def test_a_share_shows_no_subject_but_the_systems() -> None:
    assert event_of("run.started", d.RunStarted(worker="w1"), "share")["data"] == {"worker": None}
    taken = event_of("run.taken_over", d.RunTakenOver(worker="w2", from_="w1"), "share")
    assert (taken["data"], taken["actor"]) == ({"worker": None, "from": None}, {"kind": "user", "id": None})
    assert event_of("run.resumed", d.RunResumed(from_="paused", by="user:a"), "share")["data"] == {
        "from": "paused", "by": None,
    }  # fmt: skip
    assert event_of("run.blocked", d.RunBlocked(blocker=blocker()), "share")["data"]["blocker"]["by"] is None
    kept = d.RunCancelled(by="system", forced=True, abandoned=[])
    assert event_of("run.cancelled", kept, "share")["data"]["by"] == "system"
    vote = v.Vote("user:bob", "approve", to_wire(0))
    resolved = d.ApprovalResolved(request="q", outcome="approved", decisions=[vote])
    shown = event_of("approval.resolved", resolved, "share", audience="viewer")
    assert shown["data"]["decisions"][0]["by"] is None


def test_a_run_through_a_share_names_nobody() -> None:
    log = Log()
    log.start()
    log.add("cancel.requested", d.CancelRequested(command_id="c", by="user:bob", deadline=to_wire(0)))
    log.add("approval.requested", approval(), audience="viewer")
    log.add("approval.voted", d.ApprovalVoted(request="q1", by="user:bob", decision="approve"))
    log.add("run.blocked", d.RunBlocked(blocker=blocker()))
    wire = seen(log.run, "share", worker=Heartbeat("w1", to_wire(0), None))
    text = msgspec.json.encode({**wire, "waiting_on": [{**w, "request": {**w["request"], "deciders": 0, "exclude": 0}}
                                                       for w in wire["waiting_on"]]})  # fmt: skip
    for name in (b"alice", b"bob", b"worker-7", b"w1"):
        assert name not in text
    assert (wire["role"], wire["worker"]) == ("viewer", None)
    assert seen(log.run, "viewer", worker=Heartbeat("w1", to_wire(0), None))["worker"]["id"] == "w1"


def test_details_of_blockers_are_for_operators() -> None:
    log = Log()
    log.add("run.blocked", d.RunBlocked(blocker=blocker()))
    below: tuple[Role, ...] = ("viewer", "owner")
    for role in below:
        wire = seen(log.run, role)
        assert wire["blockers"][0]["detail"] is None
        assert wire["redacted"] == ["blockers.detail"]
    assert seen(log.run, "operator")["blockers"][0]["detail"] == {"at": "/home"}


def test_what_a_producer_narrowed_is_hidden_in_the_run_as_in_the_event() -> None:
    log = Log()
    log.start()
    due = to_wire(0)
    log.add("blocker.raised", d.BlockerRaised(**msgspec.to_builtins(blocker())), audience="collaborator")
    log.add("timer.started", d.TimerStarted(timer="t1", due_at=due, why="secret"), audience="operator")
    cancel = d.CancelRequested(command_id="c", by="user:bob", reason="secret", deadline=due)
    log.add("cancel.requested", cancel, audience="collaborator")
    log.add("run.paused", d.RunPaused(code="user", by="user:bob", text="secret"), audience="operator")
    viewer, owner, operator = (seen(log.run, role) for role in READERS)
    assert viewer["blockers"][0] | {"since": None} == {
        "id": "b", "kind": "poison", "title": None, "since": None, "by": None, "stops": True, "remedies": None,
        "detail": None,
    }  # fmt: skip
    assert (owner["blockers"][0]["title"], owner["blockers"][0]["detail"]) == ("t", {"at": "/home"})
    assert (viewer["stopping"], owner["stopping"]["reason"]) == (None, "secret")
    assert (viewer["status"], viewer["status_detail"], owner["status_detail"]) == ("paused", None, None)
    assert operator["status_detail"]["text"] == "secret"
    assert [run["waiting_on"][0]["title"] for run in (viewer, owner, operator)] == [None, None, "secret"]
    assert {"stopping", "status_detail", "blockers.title", "waiting_on.request"} <= set(viewer["redacted"])
    # Told anew for everybody, it is.
    log.add("run.resumed", d.RunResumed(from_="paused"))
    log.add("blocker.raised", d.BlockerRaised(**msgspec.to_builtins(blocker())))
    assert seen(log.run, "viewer")["blockers"][0]["title"] == "t"
    log.add("blocker.cleared", d.BlockerCleared(id="b", by="worker-7", how="went away"))
    assert not [field for field in log.run.audiences if field.startswith("blockers")]


def test_that_a_pause_was_asked_for_is_told_to_who_may_read_the_command() -> None:
    log = Log()
    log.start()
    assert seen(log.run, "viewer")["pausing"] is False
    log.add("command.received", d.CommandReceived(command_id="c", type="pause", payload=None))
    assert [seen(log.run, role)["pausing"] for role in READERS] == [None, True, True]
    log.add("run.paused", d.RunPaused(code="user"))
    assert [seen(log.run, role)["pausing"] for role in READERS] == [False, False, False]
    log.add("command.received", d.CommandReceived(command_id="c2", type="resume", payload=None))
    assert seen(log.run, "viewer")["pausing"] is False


@pytest.mark.parametrize("why", [None, "x" * 9000])
def test_a_named_decider_reads_the_request_and_may_answer_also_a_long_one(why: str | None) -> None:
    log = Log()
    log.add("approval.requested", approval(why=why))

    def wait_of(subject: str, role: Role) -> dict[str, Any]:
        wire = project_run(log.run, Caller(subject, role), cursor=Cursor(2, 5))
        found: dict[str, Any] = wire["waiting_on"][0]
        assert found["may_answer"] == bool(actions_of(log.run, Caller(subject, role), {})[:1] and found["may_answer"])
        return found

    bob = wait_of("bob", "viewer")
    assert bob["may_answer"]
    assert bob["request"] is not None
    assert {"type": "approve", "request": "q1"} in actions_of(log.run, Caller("bob", "viewer"), {})
    others: list[tuple[str, Role]] = [("eve", "viewer"), ("carol", "viewer"), ("alice", "owner")]
    for subject, role in others:
        assert not wait_of(subject, role)["may_answer"]
        assert (wait_of(subject, role)["request"] is None) == (role == "viewer")
    assert actions_of(log.run, Caller("carol", "viewer"), {}) == []
