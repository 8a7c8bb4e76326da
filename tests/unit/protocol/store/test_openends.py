"""What is still open in a log, and the words in which whoever ends a run ends it."""

from typing import Any

import msgspec
from hypothesis import given

from tests.support.logs import logs
from towline.protocol import event_data as d
from towline.protocol.codec import NewEntry, encode_envelope
from towline.protocol.events import Actor, Event
from towline.protocol.store.api import Timer
from towline.protocol.store.openends import SYSTEM, OpenEnds
from towline.protocol.values import Abandoned, ErrorInfo, WaitRef

FAILED = ErrorInfo("Broken", "It broke", True)


def book(*data: tuple[Any, ...]) -> OpenEnds:
    ends = OpenEnds()
    for seq, (type_, value, *more) in enumerate(data, 1):
        cause: int | None = more[0] if more else None
        actor = Actor("user", str(more[1]) if len(more) > 1 else "alice")
        wire = msgspec.json.decode(msgspec.json.encode(value))
        ends.observe(Event(seq, "2026-01-31T09:30:00.000Z", type_, actor, wire, cause=cause))
    return ends


def received(command_id: str = "c1", type_: str = "signal") -> d.CommandReceived:
    return d.CommandReceived(command_id=command_id, type=type_, payload=None, name="go")


def applied(command_id: str = "c1", type_: str = "signal") -> d.CommandApplied:
    return d.CommandApplied(command_id=command_id, type=type_)


def test_a_command_is_open_until_its_outcome() -> None:
    assert not book(("command.received", received()), ("command.applied", applied())).commands
    (command,) = book(("command.received", received())).commands.values()
    assert (command.subject, command.command_id, command.seq, command.counts) == ("alice", "c1", 1, True)
    assert not book(("command.received", received(type_="approve"))).commands[1].counts


def test_two_people_may_use_the_same_id() -> None:
    ends = book(
        ("command.received", received(), None, "alice"),
        ("command.received", received(), None, "bob"),
        ("command.applied", applied(), 1),
    )
    assert [c.subject for c in ends.commands.values()] == ["bob"]


def test_a_step_is_abandoned_until_it_has_a_result() -> None:
    started = d.ToolStarted(step="s", name="apply", title="Apply", attempt=1, effect="write")
    retrying = d.ToolRetrying(step="s", attempt=1, error=FAILED, retry_at="2026-01-31T09:30:00.000Z")
    assert book(("tool.started", started)).abandoned() == [Abandoned("s", "apply", 1, "write")]
    assert book(("tool.started", started), ("tool.retrying", retrying)).abandoned() == [
        Abandoned("s", "apply", 1, "write")
    ]
    again = msgspec.structs.replace(started, attempt=2)
    assert book(("tool.started", started), ("tool.retrying", retrying), ("tool.started", again)).abandoned() == [
        Abandoned("s", "apply", 2, "write")
    ]
    failed = d.ToolFailed(step="s", attempt=1, error=FAILED)
    finished = d.ToolFinished(step="s", attempt=1, summary="", duration_ms=1)
    assert book(("tool.started", started), ("tool.failed", failed)).abandoned() == []
    assert book(("tool.started", started), ("tool.finished", finished)).abandoned() == []


def test_very_many_abandoned_steps_still_fit_the_terminal_event() -> None:
    ends = book(
        *(
            ("tool.started", d.ToolStarted(step=f"s{n}" * 9, name="x" * 60, title="", attempt=1, effect="read"))
            for n in range(2000)
        )
    )
    listed = ends.abandoned()
    assert listed[-1].name == f"and {2000 - len(listed) + 1} more steps"
    encode_envelope(NewEntry("run.cancelled", SYSTEM, d.RunCancelled(by="system", forced=True, abandoned=listed)))


def test_timers_that_would_outlive_the_run() -> None:
    due = "2026-01-31T09:30:00.000Z"
    ends = book(
        ("timer.started", d.TimerStarted(timer="t1", due_at=due, why="sleep")),
        ("timer.started", d.TimerStarted(timer="t2", due_at=due, why="sleep")),
        ("timer.fired", d.TimerFired(timer="t1")),
        ("run.waiting", d.RunWaiting(on=[WaitRef("t2", "timer", "sleep"), WaitRef("s:retry:1", "timer", "retry")])),
    )
    assert list(ends.timers.values()) == [Timer("timer", "t2"), Timer("retry", "s:retry:1")]


@given(logs())
def test_closing_what_is_open_leaves_nothing_open(log: list[Event]) -> None:
    ends = OpenEnds()
    for event in log:
        ends.observe(event)
    assert len(ends.outcomes()) == len(ends.commands)
    seq = log[-1].seq
    for entry in ends.last_entries():
        seq += 1
        raw = b'{"seq":%d,"ts":"%s","cause":%s,' % (seq, log[-1].ts.encode(), msgspec.json.encode(entry.cause))
        ends.observe(msgspec.json.decode(raw + encode_envelope(entry), type=Event))
    assert not ends.commands
    assert not ends.requests


@given(logs())
def test_a_part_of_the_book_ends_a_part(log: list[Event]) -> None:
    ends = OpenEnds()
    for event in log:
        ends.observe(event)
    part = ends.first(1)
    assert len(part.last_entries()) == min(1, len(ends.commands)) + min(1, len(ends.requests))
    assert part.outcomes() == ends.outcomes()[:1]
