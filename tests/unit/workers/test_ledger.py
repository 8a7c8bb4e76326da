"""What a holder remembers of the log beside the machine: whether the run is to pause."""

from typing import Any

import pytest

from towline.protocol import event_data as d
from towline.protocol.events import Actor, Event
from towline.workers.ledger import Ledger

ANA = Actor("user", "ana")


def observe(ledger: Ledger, seq: int, type_: str, data: Any) -> None:
    ledger.observe(Event(seq, "2026-12-01T00:00:00.000Z", type_, ANA, data))


@pytest.fixture
def asked() -> Ledger:
    """A pause was accepted at seq 2."""
    ledger = Ledger()
    observe(ledger, 1, "run.started", d.RunStarted(worker="w1"))
    pause = d.CommandReceived(command_id="k1", type="pause", payload={"reason": "lunch"})
    observe(ledger, 2, "command.received", pause)
    return ledger


def test_a_pause_is_remembered_with_who_asked_and_why(asked: Ledger) -> None:
    assert asked.pause is not None
    assert (asked.pause.seq, asked.pause.by, asked.pause.reason) == (2, "user:ana", "lunch")


ENDS: dict[str, Any] = {
    "command.received": d.CommandReceived(command_id="k2", type="resume", payload={}),
    "cancel.requested": d.CancelRequested(command_id="k2", by="user:ana", deadline="2026-12-01T00:00:30.000Z"),
    "run.paused": d.RunPaused(code="user", by="user:ana"),
}


@pytest.mark.parametrize("type_", ENDS)
def test_it_is_over_once_the_run_goes_on_is_cancelled_or_rests(asked: Ledger, type_: str) -> None:
    observe(asked, 3, type_, ENDS[type_])
    assert asked.pause is None


def test_other_events_leave_it(asked: Ledger) -> None:
    started = d.ToolStarted(step="1:0:look:1", name="look", title="Look", attempt=1, effect="read")
    observe(asked, 3, "tool.started", started)
    observe(asked, 4, "progress.noted", d.ProgressNoted(text="x"))
    assert asked.pause is not None
