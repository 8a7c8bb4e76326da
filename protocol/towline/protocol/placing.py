"""The answer to a cursor: which row of the contract's table holds, and where the first event that is sent stands.

Promises that a gap is never silent: whoever is not simply resumed is told why, and which events are lost or skipped.
Pure; leaves reading the log to the store, and what is sent after the answer to `subscription`.
"""

from collections.abc import Sequence
from typing import Literal, Protocol

from msgspec import Struct

from towline.protocol.codec import Entry
from towline.protocol.cursor import START, Cursor
from towline.protocol.frames import Range, Recovery, RecoveryCode


class Page(Protocol):
    """A read of the log after a cursor: what the store's `LogPage` is."""

    @property
    def recovery(self) -> Literal["ok", "ahead", "diverged", "trimmed"]: ...
    @property
    def entries(self) -> Sequence[Entry]: ...
    @property
    def head(self) -> Cursor: ...
    @property
    def first_seq(self) -> int: ...


class Placement(Struct, frozen=True):
    """The answer to a cursor. `after_seq` is the seq before the first event that will be sent."""

    recovery: Recovery
    after_seq: int
    code: RecoveryCode | None = None
    lost: Range | None = None
    skipped: Range | None = None


def place(after: Cursor, page: Page, *, head_seq: int, limit: int | None) -> Placement:
    """The row of the cursor table that holds for `after`, whose verdict is in `page`.

    `head_seq` is the head that the answer is measured against; without `limit` nothing is skipped.
    """
    before_first = page.first_seq - 1
    if page.recovery == "ok":
        placement = Placement("resumed", after.seq)
    elif page.recovery == "trimmed":
        placement = Placement("snapshot", before_first, "trimmed", lost=(after.seq + 1, before_first))
    else:
        placement = Placement("reset", before_first, page.recovery)
    if limit is None or head_seq - placement.after_seq <= limit:
        return placement
    skipped = (placement.after_seq + 1, head_seq - limit)
    if placement.recovery == "resumed":
        return Placement("snapshot", skipped[1], "limited", skipped=skipped)
    # The client is told the graver reason, and all the same which stored events it will not be sent.
    return Placement(placement.recovery, skipped[1], placement.code, placement.lost, skipped)


def position_before(first_seq: int) -> Cursor:
    """The position before the oldest event. Its own entry is gone, so its tag proves nothing: 0 stands for it."""
    return START if first_seq <= 1 else Cursor(first_seq - 1, 0)
