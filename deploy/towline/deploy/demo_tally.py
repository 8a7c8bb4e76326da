"""What the demo proves, counted: from the log as it stands, and from what the watcher was handed.

Promises figures that come from nothing else: the log is read again from cursor 0, the watcher's list is as it
arrived. `is_whole` is the verdict. Pure; leaves running and showing to `demo`.
"""

from collections.abc import Sequence

import msgspec

from towline.protocol import times
from towline.protocol.client.views import SeenEvent
from towline.protocol.values import JsonObject


class Tally(msgspec.Struct, frozen=True, kw_only=True):
    """The closing table.

    `steps`: activities with a result. `recorded_twice`: with more than one. `repeated`: begun on the killed
    worker, without a result there, and run again on the next. `replayed`: results that the next worker took
    from the log instead of running their activity again. `events`: in the log. `gaps`, `duplicates`, `altered`:
    events that the watcher missed, was handed twice, or was handed otherwise than the log has them.
    `takeover_ms`: from the kill to `run.taken_over`, by the machine's clock; None if nobody took over.
    """

    steps: int
    recorded_twice: int
    repeated: int
    replayed: int
    events: int
    gaps: int
    duplicates: int
    altered: int
    takeover_ms: int | None

    @property
    def is_whole(self) -> bool:
        """Whether nothing was lost, doubled or changed on the way."""
        return not (self.gaps or self.duplicates or self.altered or self.recorded_twice)


def tally_of(log: Sequence[JsonObject], received: Sequence[SeenEvent], killed_ms: int | None) -> Tally:
    """Counts. `log` is the whole log in order, `killed_ms` when the worker was killed (ms since 1970)."""
    taken_over = next((event for event in log if event["type"] == "run.taken_over"), None)
    taken_seq = taken_over["seq"] if taken_over else None
    results = [_step(event) for event in log if event["type"] == "tool.finished"]
    seqs = [event.seq for event in received]
    stored = {event["seq"]: _envelope(event) for event in log}
    return Tally(
        steps=len(set(results)),
        recorded_twice=len(results) - len(set(results)),
        repeated=len(_repeated(log, taken_seq)) if taken_seq else 0,
        replayed=sum(event["type"] == "tool.finished" and event["seq"] < taken_seq for event in log)
        if taken_seq
        else 0,
        events=len(log),
        gaps=len(set(stored) - set(seqs)),
        duplicates=len(seqs) - len(set(seqs)),
        altered=sum(stored.get(event.seq) != _envelope(event.fields) for event in received),
        takeover_ms=times.from_wire(taken_over["ts"]) - killed_ms if taken_over and killed_ms is not None else None,
    )


def _repeated(log: Sequence[JsonObject], taken_seq: int) -> set[str]:
    """Steps that had begun and not ended when the run was taken over, and began again."""
    begun = set[str]()
    again = set[str]()
    for event in log:
        if event["type"] == "tool.started":
            if event["seq"] > taken_seq and _step(event) in begun:
                again.add(_step(event))
            elif event["seq"] < taken_seq:
                begun.add(_step(event))
        elif event["type"] in ("tool.finished", "tool.failed", "tool.retrying") and event["seq"] < taken_seq:
            begun.discard(_step(event))
    return again


def _step(event: JsonObject) -> str:
    return str((event.get("data") or {}).get("step"))


def _envelope(event: JsonObject) -> JsonObject:
    """An event as the log has it; outside a frame that names the run it carries the run as well."""
    return {name: value for name, value in event.items() if name != "run"}
