"""The closing table of the demo: counted from the log and from what the watcher was handed, and it can fail."""

from typing import Any

import pytest

from towline.deploy.demo_tally import Tally, tally_of
from towline.protocol.client.views import SeenEvent

T = "2026-01-31T09:30:{:02d}.000Z"


def event(seq: int, type_: str, step: str | None = None, **data: Any) -> dict[str, Any]:
    members = data if step is None else {"step": step, **data}
    return {"seq": seq, "ts": T.format(seq), "type": type_, "data": members}


LOG = [
    event(1, "run.created"),
    event(2, "tool.started", "a", attempt=1),
    event(3, "tool.started", "b", attempt=1),
    event(4, "tool.started", "c", attempt=1),
    event(5, "tool.finished", "a", attempt=1),
    event(6, "tool.retrying", "c", attempt=1),
    event(7, "run.taken_over"),
    event(8, "tool.started", "b", attempt=2),
    event(9, "tool.started", "c", attempt=2),
    event(10, "tool.finished", "b", attempt=2),
    event(11, "tool.finished", "c", attempt=2),
    event(12, "run.completed"),
]
KILLED_MS = 1_769_851_802_500  # 09:30:02.5


def seen(log: list[dict[str, Any]]) -> list[SeenEvent]:
    return [SeenEvent.of("run_1", each) for each in log]


def tally(log: list[dict[str, Any]] = LOG, received: list[SeenEvent] | None = None) -> Tally:
    return tally_of(log, seen(log) if received is None else received, KILLED_MS)


def test_a_whole_run() -> None:
    counted = tally()
    assert counted.is_whole
    assert (counted.steps, counted.replayed, counted.events) == (3, 1, 12)
    assert counted.takeover_ms == 4_500


def test_only_what_the_crash_interrupted_counts_as_repeated() -> None:
    # `c` failed and was tried again by its own policy: that is no work of the crash.
    assert tally().repeated == 1


def test_an_event_outside_a_frame_carries_its_run_and_is_the_same_event() -> None:
    assert tally([{**each, "run": "run_1"} for each in LOG], seen(LOG)).is_whole


@pytest.mark.parametrize(
    ("received", "field"),
    [
        (seen(LOG[:4] + LOG[5:]), "gaps"),
        (seen(LOG[:-1]), "gaps"),
        (seen(LOG[:4] + LOG[3:]), "duplicates"),
        (seen([*LOG[:-1], event(12, "run.failed")]), "altered"),
        (seen([*LOG, event(13, "run.completed")]), "altered"),
    ],
)
def test_what_the_watcher_missed_or_had_twice_is_counted(received: list[SeenEvent], field: str) -> None:
    counted = tally(LOG, received)
    assert getattr(counted, field) == 1
    assert not counted.is_whole


def test_a_result_recorded_twice_is_no_whole_run() -> None:
    log = [*LOG[:-1], event(12, "tool.finished", "a", attempt=2), event(13, "run.completed")]
    assert tally(log).recorded_twice == 1
    assert not tally(log).is_whole


def test_a_run_that_nobody_took_over() -> None:
    log = [each for each in LOG if each["type"] != "run.taken_over"]
    counted = tally_of(log, seen(log), None)
    assert (counted.repeated, counted.replayed, counted.takeover_ms) == (0, 0, None)
