"""One subscription: from a client's cursor to every event after it, in order, without gap or repeat.

The machine does no I/O. Its shell asks `next_action()`, does what it says, feeds what came back, and asks again;
None means that there is nothing to do until a notice or a head arrives. Whoever serves a socket, a page or a
stream of server-sent events drives the same machine.

    loading     the Run was asked for; its `last_seq` is the *head* that everything below is measured against
    judging     the log was read at the client's own cursor: is that the same history?
    starting    the position of the first event is known, its cursor (the tag of the entry before) is read
    sending     the client was told where it stands; events follow until `live`, and after it
    over        the terminal event was sent, or the subscription was refused, or it lost its place

Four rules make the stream whole.

1. *Follow first, read second.* The shell registers with the hub before the first read, so an entry appended in
   between is in a notice, in a page, or in both; what both hold is dropped by seq.
2. *The Run comes before the page.* The projection then never is newer than `head`, and no event lies between a
   projection and the first event sent: a client folds what is greater than the projection's `last_seq`.
3. *Notices are never trusted to be complete.* Only the entry that follows the position is sent from a notice. A
   hole, an overflow of the small buffer, or a head beyond the position all mean the same: read the log there.
   So nothing queues for a slow reader: the log is its buffer. For the many who are live and take what comes, the
   shell may send a notice at once (`next_at_once`, `sent_now`); the rule is the same.
4. *Every read compares.* A read starts at the cursor of the last event sent. If the store answers that another
   entry stands there, or none, it was put back to an older state: the machine says `LosePlace` and the client
   comes back with its cursor, to be answered by the table.

`live` comes when the position has reached `head`, once, however fast the log grows meanwhile; `end` comes when the
terminal entry has been sent and `live` was.
"""

from collections.abc import Sequence
from typing import Any, Final, Literal

from msgspec import Struct

from towline.protocol import cursor as cursors
from towline.protocol.codec import Entry, type_of
from towline.protocol.cursor import LATEST, START, BadCursor, Cursor
from towline.protocol.errors import Problem
from towline.protocol.events import TERMINAL
from towline.protocol.frames import Subscribed
from towline.protocol.limits import EVENTS_FRAME_BYTES, KIB, MAX_SEQ, STORE_PAGE_EVENTS
from towline.protocol.placing import Page, Placement, place, position_before

NOTICE_BUFFER_BYTES: Final = 128 * KIB
"""What one subscription keeps of notices that it cannot send yet; beyond it, it reads the log instead."""

ANEW: Final = MAX_SEQ
_FRAME_OVERHEAD_BYTES: Final = 512
_ATTEMPTS: Final = 5


class Load(Struct, frozen=True):
    """Load the Run; answer with `receive_loaded`. `heard`: see `Read`."""

    heard: int = 0


class Read(Struct, frozen=True):
    """Read at most `limit` entries after a cursor; answer with `receive_page`.

    `heard`: the log had this seq already; an answer from before that is of no use. `ANEW`: what was read before is
    in doubt.
    """

    after: Cursor
    limit: int = STORE_PAGE_EVENTS
    heard: int = 0


class SendSubscribed(Struct, frozen=True):
    """Send `subscribed`, with the Run that was loaded last."""

    placement: Placement
    cursor: Cursor
    head: int
    first_seq: int


def subscribed(frame_id: str, run: str, action: SendSubscribed, projection: dict[str, Any]) -> Subscribed:
    """The frame that says so; `projection` is the Run that was loaded last, as the reader sees it."""
    placement = action.placement
    return Subscribed(
        id=frame_id,
        run=run,
        recovery=placement.recovery,
        projection=projection,
        cursor=str(action.cursor),
        head=action.head,
        first_seq=action.first_seq,
        recovery_code=placement.code,
        lost=placement.lost,
        skipped=placement.skipped,
    )


class SendEvents(Struct, frozen=True):
    """Send these entries in one frame; `cursor` is that of the last."""

    entries: Sequence[Entry]
    cursor: Cursor
    replay: bool


class SendLive(Struct, frozen=True):
    """Send `live`."""

    cursor: Cursor


class SendEnd(Struct, frozen=True):
    """Send `end`; the subscription is over."""

    cursor: Cursor
    status: str


class Refuse(Struct, frozen=True):
    """Send the problem; the subscription is over before it began."""

    problem: Problem


class LosePlace(Struct, frozen=True):
    """The store is older than what this client holds: have it reconnect and ask with its cursor."""


Action = Load | Read | SendSubscribed | SendEvents | SendLive | SendEnd | Refuse | LosePlace


class Subscription:
    """The machine. `after` is what the client sent, `latest` included; `limit` bounds the stored events sent."""

    __slots__ = (
        *("_after", "_attempts", "_first_seq", "_head", "_known_seq", "_limit", "_live", "_must_read", "_next"),
        *("_noticed", "_noticed_bytes", "_phase", "_placement", "_position", "_ready", "_status", "_told"),
    )

    def __init__(self, after: object = LATEST, *, limit: int | None = None) -> None:
        self._after = after
        self._limit = limit
        self._phase: Literal["loading", "judging", "starting", "sending", "over"] = "loading"
        self._position = START
        self._head = START
        self._first_seq = 1
        self._placement: Placement | None = None
        self._next: Action | None = Load()
        self._attempts = 0
        self._told = self._live = False
        self._ready: list[Entry] = []
        self._noticed: list[Entry] = []
        self._noticed_bytes = 0
        self._known_seq = 0
        self._must_read = False
        self._status: str | None = None

    @property
    def position(self) -> Cursor:
        """The cursor of the last event sent, or of the place before the first."""
        return self._position

    @property
    def is_live(self) -> bool:
        """Whether `live` was sent."""
        return self._live

    @property
    def is_over(self) -> bool:
        """Whether nothing will follow."""
        return self._phase == "over"

    # Facts ---------------------------------------------------------------------------------------------------

    def receive_loaded(self, head: Cursor, status: str | None) -> None:
        """The Run was loaded up to `head`; `status` is its terminal status, or None while it goes on."""
        self._head, self._status = head, status
        self._attempts += 1
        if self._attempts > _ATTEMPTS:
            self._end(Refuse(Problem("overloaded", "The run changes too fast to be placed.", retry_after_ms=1000)))
            return
        try:
            after = head if self._after == LATEST else cursors.parse(self._after)
        except BadCursor as error:
            self._end(Refuse(Problem("bad_request", f"Not a cursor: {error}.", field="after", expected="a cursor")))
            return
        # Asked again, since what was read did not fit together: the log may have been trimmed, which moves no head.
        self._phase, self._next = "judging", Read(after, heard=head.seq if self._attempts == 1 else ANEW)
        self._position = after

    def receive_page(self, page: Page) -> None:
        """The log was read as the last `Read` asked."""
        self._known_seq = max(self._known_seq, page.head.seq)
        if self._phase == "judging":
            self._judge(page)
        elif self._phase == "starting":
            self._start(page)
        elif page.recovery != "ok" or page.head.seq < self._head.seq:
            self._end(LosePlace())
        else:
            self._take(page.entries)

    def receive_notice(self, entries: Sequence[Entry]) -> None:
        """Entries that were just appended. May come at any time, in holes, twice, or not at all."""
        if self._phase == "over" or not entries:
            return
        self._known_seq = max(self._known_seq, entries[-1].seq)
        if self._noticed and entries[0].seq != self._noticed[-1].seq + 1:
            self._forget_notices()
        self._noticed.extend(entries)
        self._noticed_bytes += sum(len(e.raw) for e in entries)
        if self._noticed_bytes > NOTICE_BUFFER_BYTES:
            self._forget_notices()

    def receive_newer(self, last: Cursor) -> None:
        """The log has entries up to `last`, and the reader takes none now: nothing is kept, the log will be read."""
        self._known_seq = max(self._known_seq, last.seq)
        if self._phase == "sending" and last.seq == self._position.seq and last != self._position:
            self._must_read = True
        self._forget_notices()

    def set_aside(self) -> None:
        """The reader has not taken anything for a while: only its position is kept, the log will be read again."""
        if self._ready:
            self._known_seq = max(self._known_seq, self._ready[-1].seq)
            self._ready.clear()
        self._forget_notices()

    def receive_head(self, head: Cursor) -> None:
        """The head of the log as it was a moment ago; older than what a notice brought, perhaps."""
        self._known_seq = max(self._known_seq, head.seq)
        if self._phase != "sending":
            return
        if head.seq < self._position.seq or (head.seq == self._position.seq and head != self._position):
            self._must_read = True  # rule 4: only a read from here on can tell

    # The fast path -------------------------------------------------------------------------------------------

    def next_at_once(self) -> int:
        """The seq of the entry that may be sent as soon as it was appended, without asking for an action; 0: none may.

        Only what follows the position of a reader that is live and has nothing else due. To be asked between
        actions, while nothing of the last one is still on its way; it holds until any fact is received.
        """
        is_due = self._ready or self._noticed or self._must_read
        return (
            self._position.seq + 1
            if self._live and self._phase == "sending" and self._status is None and not is_due
            else 0
        )

    def sent_now(self, last: Cursor, ending: str | None) -> None:
        """Entries up to `last` were sent after `next_at_once`; `ending` is the run's status if that one is terminal."""
        self._position = last
        self._status = ending
        if last.seq > self._known_seq:
            self._known_seq = last.seq

    @property
    def is_judging(self) -> bool:
        """Whether the page that is read now answers for the client's cursor, before anything is sent."""
        return self._phase == "judging"

    def may_send_stored(self, last_seq: int) -> bool:
        """Whether stored entries behind the position, up to `last_seq`, may be sent at once as `replay`.

        To be asked in answer to a `Read`, after `is_judging`: nothing else is due then.
        """
        return self._phase == "sending" and self._told and not self._live and last_seq <= self._head.seq

    def sent_stored(self, last: Cursor, ending: str | None) -> None:
        """Entries up to `last` were sent after `may_send_stored`; `ending` as in `sent_now`."""
        self._position = last
        if ending is not None:
            self._status = ending

    # Actions -------------------------------------------------------------------------------------------------

    def next_action(self) -> Action | None:
        """What the shell does now. A `Load` or `Read` is to be answered before the next call."""
        if self._next is not None:
            action, self._next = self._next, None
            return action
        if self._phase != "sending":
            return None
        if not self._told:
            self._told = True
            assert self._placement is not None
            return SendSubscribed(self._placement, self._position, self._head.seq, self._first_seq)
        self._use_notices()
        if not self._live and self._position.seq >= self._head.seq:
            self._live = True
            return SendLive(self._position)
        if self._ready:
            return self._send_events()
        if self._live and self._status is not None and self._position.seq >= self._head.seq:
            self._phase = "over"
            return SendEnd(self._position, self._status)
        if self._must_read or self._known_seq > self._position.seq or not self._live:
            heard = ANEW if self._must_read else self._known_seq
            self._must_read = False
            self._known_seq = self._position.seq  # the read will tell; what is heard from now on is newer
            return Read(self._position, heard=heard)
        return None

    # The steps -----------------------------------------------------------------------------------------------

    def _judge(self, page: Page) -> None:
        after = self._position
        if page.head.seq < self._head.seq or (page.recovery == "ok" and after.seq > self._head.seq):
            # The log shrank, or grew, between the Run and the page: look again.
            self._phase, self._next = "loading", Load(ANEW)
            return
        self._first_seq = page.first_seq
        self._placement = place(after, page, head_seq=self._head.seq, limit=self._limit)
        if self._placement.recovery == "resumed" and (after.tag is not None or after == START):
            self._phase = "sending"
            self._take(page.entries)
            return
        self._phase = "starting"
        at = self._placement.after_seq
        self._position = position_before(page.first_seq) if at < page.first_seq else Cursor(at - 1)
        self._next = Read(self._position, heard=self._head.seq)

    def _start(self, page: Page) -> None:
        assert self._placement is not None
        at, entries = self._placement.after_seq, list(page.entries)
        if page.recovery == "ok" and at < self._first_seq == page.first_seq:
            self._phase = "sending"
            self._take(entries)
        elif page.recovery == "ok" and entries and entries[0].seq == at:
            # The entry before the first event gives the position its tag.
            self._position = entries[0].cursor
            self._phase = "sending"
            self._take(entries[1:])
        else:
            self._phase, self._next = "loading", Load(ANEW)

    def _take(self, entries: Sequence[Entry]) -> None:
        expected = (self._ready[-1].seq if self._ready else self._position.seq) + 1
        for entry in entries:
            if entry.seq == expected:
                self._ready.append(entry)
                expected += 1

    def _use_notices(self) -> None:
        """Moves what follows the position from the notices to what is ready; drops what was covered."""
        last = self._ready[-1].cursor if self._ready else self._position
        covered = 0
        for entry in self._noticed:
            if entry.seq > last.seq:
                break
            covered += 1
            self._noticed_bytes -= len(entry.raw)
            if entry.seq == last.seq and entry.cursor != last:
                self._must_read = True
        del self._noticed[:covered]
        if self._must_read:
            self._forget_notices()  # they may be of another history: what follows is read
        elif self._noticed and self._noticed[0].seq == last.seq + 1:
            self._ready.extend(self._noticed)
            self._forget_notices()

    def _forget_notices(self) -> None:
        self._noticed.clear()
        self._noticed_bytes = 0

    def _send_events(self) -> SendEvents:
        entries: list[Entry] = []
        size_bytes = _FRAME_OVERHEAD_BYTES
        replay = not self._live
        for entry in self._ready:
            size_bytes += len(entry.raw) + 1
            if entries and size_bytes > EVENTS_FRAME_BYTES:
                break
            if replay and entry.seq > self._head.seq:
                break  # what was appended since comes after `live`
            entries.append(entry)
        del self._ready[: len(entries)]
        self._position = entries[-1].cursor
        kind = type_of(entries[-1].raw)
        if kind in TERMINAL:
            self._status = kind.removeprefix("run.")
        return SendEvents(entries, self._position, replay)

    def _end(self, last: Action) -> None:
        self._phase, self._next = "over", last
        self._ready.clear()
        self._forget_notices()
