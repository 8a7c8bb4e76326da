"""One subscription as its client sees it: the place in one run's log, and proof that nothing is missing.

Promises that the events it lets through are, from the place where the server put it, seq + 1, + 2, … without
gap or repeat, over any number of sockets: a batch that does not follow is refused whole (`Hole`) and asked for
again from the own cursor; what was seen before is dropped. Only `subscribed` moves the place, and says how.

    wanted -> asked -> replaying -> live      ask, receive_subscribed, receive_live
       ^________|__________|_________|        lose (socket gone, hole, shed): from the own cursor again
    held                                      asked to be quiet; `release` makes it wanted

Leaves the socket, ids of frames and back-off to `machine`, which is to be read first.
"""

from collections.abc import Sequence
from typing import Any, Literal

from msgspec import Struct

from towline.protocol import cursor
from towline.protocol.client.actions import Ended, Live, Placed, Received, Recovery
from towline.protocol.client.views import SeenEvent
from towline.protocol.values import JsonObject

Phase = Literal["wanted", "asked", "replaying", "live", "held"]


class Hole(Exception):
    """What the server sent does not follow what is held: ask again from the own cursor."""


class SubscribedFrame(Struct, frozen=True):
    """The members of `subscribed` that a client acts on."""

    run: str
    recovery: Recovery
    cursor: str
    projection: JsonObject = {}
    recovery_code: str | None = None
    lost: tuple[int, int] | None = None
    skipped: tuple[int, int] | None = None


class EventsFrame(Struct, frozen=True):
    run: str
    events: list[JsonObject]
    cursor: str
    replay: bool = False


class CursorFrame(Struct, frozen=True):
    """`live`, and `end` with its status."""

    run: str
    cursor: str
    status: str = ""


class Subscription:
    """The place of one client in one run.

    Args:
        after: where to begin: a cursor, `0`, a bare seq or `latest`.
        limit: at most so many stored events a placing; what is left out is told as `skipped`.
        deltas: whether unfinished text is wanted too.

    Raises `BadCursor` if `after` is none of these.
    """

    def __init__(self, run: str, after: str, *, limit: int | None = None, deltas: bool = False) -> None:
        self.run = run
        self.after = after
        self.seq: int | None = None if after == cursor.LATEST else cursor.parse(after).seq
        self.phase: Phase = "wanted"
        self.asked_as: str | None = None
        self.failures = 0
        """Askings since the last progress; bounds the loop with a server that never gives what follows."""
        self.not_before_ms = 0
        self._limit = limit
        self._deltas = deltas

    def ask(self, frame_id: str) -> JsonObject:
        """The `subscribe` frame from the own cursor. What was sent for an earlier asking counts no more."""
        self.phase, self.asked_as = "asked", frame_id
        frame: dict[str, Any] = {"op": "subscribe", "id": frame_id, "run": self.run, "after": self.after}
        if self._limit is not None:
            frame["limit"] = self._limit
        if self._deltas:
            frame["include"] = ["delta"]
        return frame

    def lose(self) -> None:
        """The server no longer serves this subscription; it is to be asked for again, unless it is held."""
        if self.phase != "held":
            self.phase = "wanted"
        self.asked_as = None

    def hold(self) -> None:
        """Be quiet until `release`: what still comes is dropped, the place is kept."""
        self.phase, self.asked_as = "held", None

    def release(self) -> None:
        if self.phase == "held":
            self.phase = "wanted"

    @property
    def is_placed(self) -> bool:
        return self.phase in ("replaying", "live")

    def receive_subscribed(self, frame: SubscribedFrame) -> Placed:
        """Moves the place to where the server will go on. Raises `Hole` if that is not what it says."""
        base = cursor.parse(frame.cursor).seq
        if self.seq is not None:
            if frame.recovery == "resumed" and base != self.seq:
                raise Hole(f"resumed at {base}, not at {self.seq}")
            if frame.recovery == "snapshot" and base < self.seq:
                raise Hole(f"a snapshot went back from {self.seq} to {base}")
        self.seq, self.after, self.phase = base, frame.cursor, "replaying"
        return Placed(
            run=self.run,
            recovery=frame.recovery,
            cursor=frame.cursor,
            code=frame.recovery_code,
            lost=frame.lost,
            skipped=frame.skipped,
            projection=frame.projection,
        )

    def receive_events(self, frame: EventsFrame) -> Received | None:
        """The new events of `frame`; None if all were seen before. Raises `Hole`, having moved nothing."""
        assert self.seq is not None, "events are only received once placed"
        events = self._following(frame)
        if not events:
            return None
        self.seq, self.after, self.failures = events[-1].seq, frame.cursor, 0
        return Received(self.run, tuple(events), frame.cursor, frame.replay)

    def _following(self, frame: EventsFrame) -> Sequence[SeenEvent]:
        assert self.seq is not None
        events, expected, last = list[SeenEvent](), self.seq + 1, len(frame.events) - 1
        for index, fields in enumerate(frame.events):
            event = SeenEvent.of(self.run, fields, frame.cursor if index == last else None)
            if event.seq < expected:
                continue
            if event.seq > expected:
                raise Hole(f"event {event.seq} came where {expected} was due")
            events.append(event)
            expected += 1
        if events and cursor.parse(frame.cursor).seq != events[-1].seq:
            raise Hole(f"the cursor {frame.cursor} does not stand at event {events[-1].seq}")
        return events

    def receive_live(self, frame: CursorFrame) -> Live:
        """Everything stored was sent. Raises `Hole` if it was not."""
        self._check_place(frame)
        self.phase, self.failures = "live", 0
        return Live(self.run, frame.cursor)

    def receive_end(self, frame: CursorFrame) -> Ended:
        """The run has ended and all was sent. Raises `Hole` if it was not."""
        self._check_place(frame)
        return Ended(self.run, frame.cursor, frame.status)

    def is_behind(self, head: object) -> bool:
        """Whether a heartbeat's head shows that something never came."""
        return self.phase == "live" and self.seq is not None and isinstance(head, int) and head > self.seq

    def _check_place(self, frame: CursorFrame) -> None:
        if (at := cursor.parse(frame.cursor).seq) != self.seq:
            raise Hole(f"the server stands at {at}, this client at {self.seq}")
