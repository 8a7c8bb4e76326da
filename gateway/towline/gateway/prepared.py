"""What many readers are sent alike: entries of one run that came together, or that are stored together, framed once.

Promises that whoever may see the same is written the same bytes object, that a frame of events stays within its
bound, and that nothing is projected or framed before someone of that class reads. Leaves to the subscription machine
whether these entries are what a reader is to be sent next, and to `server` how bytes reach a peer.
"""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final

from msgspec import Struct

from towline.protocol import frames as f
from towline.protocol.codec import Entry, type_of
from towline.protocol.cursor import Cursor
from towline.protocol.deltas import FINISHING, Piece
from towline.protocol.events import TERMINAL
from towline.protocol.limits import EVENTS_FRAME_BYTES, KIB, MIB
from towline.protocol.projection import Role, passes_whole, project_entry

_FIN_TEXT: Final = 0x81
_ENVELOPE_BYTES: Final = 512


def text_frame(payload: bytes) -> bytes:
    """`payload` as one unmasked, unfragmented WebSocket text message (RFC 6455, 5.2)."""
    size = len(payload)
    if size < 126:
        return bytes((_FIN_TEXT, size)) + payload
    if size < 64 * KIB:
        return bytes((_FIN_TEXT, 126)) + size.to_bytes(2, "big") + payload
    return bytes((_FIN_TEXT, 127)) + size.to_bytes(8, "big") + payload


def chunks(raw: Sequence[bytes]) -> Iterator[tuple[int, int]]:
    """Where to cut, so that no frame passes its bound unless one event alone does: half-open ranges of `raw`."""
    ends = list(accumulate(map(len, raw)))
    ends = [end + i for i, end in enumerate(ends, 1)]  # each with its comma
    start, before = 0, 0
    while start < len(raw):
        end = max(start + 1, bisect_right(ends, before + EVENTS_FRAME_BYTES - _ENVELOPE_BYTES, start))
        yield start, end
        start, before = end, ends[end - 1]


class Batch:
    """Entries of one run, dense in seq, that were appended just now."""

    __slots__ = ("_wires", "count", "ending", "entries", "first_seq", "last", "next_seq", "run")

    def __init__(self, run: str, entries: Sequence[Entry]) -> None:
        self.run = run
        self.entries = entries
        self.first_seq = entries[0].seq
        self.last: Cursor = entries[-1].cursor
        self.next_seq = self.last.seq + 1
        self.count = len(entries)
        self.ending = _ending(entries[-1])
        """The status that the run ended with, if the last entry is terminal."""
        self._wires: dict[Role, bytes] = {}

    def wire(self, reader: Role) -> bytes:
        """The frames of these entries as `reader` (one of `reader_class`) sees them, ready to be written."""
        if (wire := self._wires.get(reader)) is None:
            wire = self._wires[reader] = self._frame(reader)
        return wire

    def _frame(self, reader: Role) -> bytes:
        raw = [project_entry(entry, reader) for entry in self.entries]
        return b"".join(_events(self.run, raw[a:b], self.entries[b - 1].cursor, replay=False) for a, b in chunks(raw))


class StoredFrame(Struct, frozen=True):
    """One frame of stored events, ready to be written."""

    wire: bytes
    count: int
    last: Cursor
    ending: str | None
    """The status that the run ended with, if the last entry is terminal."""
    finishing: Sequence[Entry]
    """Those of its entries that end unfinished text."""


class StoredPage(Struct, frozen=True):
    """Entries that follow `before`, framed for one class of readers: what each of them is sent in a replay."""

    before: Cursor
    frames: Sequence[StoredFrame]

    def rest(self, after: Cursor) -> Sequence[StoredFrame]:
        """The frames behind `after`; none unless it stands before one of them."""
        if after == self.before:
            return self.frames
        for i, frame in enumerate(self.frames):
            if frame.last == after:
                return self.frames[i + 1 :]
        return ()


def stored_page(run: str, before: Cursor, entries: Sequence[Entry], reader: Role) -> StoredPage:
    """`entries`, which follow `before`, framed as `reader` (one of `reader_class`) sees them."""
    kinds = [type_of(entry.raw) for entry in entries]
    raw = [
        entry.raw if passes_whole(kind, entry.meta.audience, reader) else project_entry(entry, reader)
        for kind, entry in zip(kinds, entries, strict=True)
    ]
    frames: list[StoredFrame] = []
    for a, b in chunks(raw):
        last = entries[b - 1]
        wire = _events(run, raw[a:b], last.cursor, replay=True)
        finishing = tuple([entries[i] for i in range(a, b) if kinds[i] in FINISHING])
        frames.append(StoredFrame(wire, b - a, last.cursor, _ending(last), finishing))
    return StoredPage(before, frames)


def _events(run: str, raw: Sequence[bytes], last: Cursor, *, replay: bool) -> bytes:
    return text_frame(f.encode(f.events(run, raw, last, replay=replay)))


class Shared:
    """Frames that were made a moment ago: many who come to one run, or lag behind it in step, are sent the same."""

    def __init__(self, *, kept_bytes: int = 16 * MIB) -> None:
        self._left_bytes = kept_bytes
        self._wires: OrderedDict[tuple[str, Cursor, Cursor, Role, bool], bytes] = OrderedDict()

    def wire(self, run: str, entries: Sequence[Entry], reader: Role, *, replay: bool) -> bytes:
        """The one frame of `entries`, which fit, as `reader` (one of `reader_class`) sees them.

        Their cursors name them: another history has other tags.
        """
        key = run, entries[0].cursor, entries[-1].cursor, reader, replay
        if (wire := self._wires.get(key)) is None:
            raw = [project_entry(entry, reader) for entry in entries]
            wire = self._wires[key] = _events(run, raw, entries[-1].cursor, replay=replay)
            self._left_bytes -= len(wire)
            while self._left_bytes < 0:
                _, oldest = self._wires.popitem(last=False)
                self._left_bytes += len(oldest)
        return wire

    def forget(self, run: str | None = None) -> None:
        """Forgets a run, or all of them."""
        for key in [key for key in self._wires if run in (None, key[0])]:
            self._left_bytes += len(self._wires.pop(key))


def _ending(last: Entry) -> str | None:
    kind = type_of(last.raw)
    return kind.removeprefix("run.") if kind in TERMINAL else None


class Text:
    """Pieces of unfinished text of one run, that were published just now."""

    __slots__ = ("_wire", "pieces", "run")

    def __init__(self, run: str, pieces: Sequence[Piece]) -> None:
        self.run = run
        self.pieces = pieces
        self._wire: bytes | None = None

    @property
    def wire(self) -> bytes:
        """The frames of these pieces for a reader who has what is before them, ready to be written."""
        if self._wire is None:
            frames = (f.Delta(self.run, p.message, p.attempt, p.offset, p.text) for p in self.pieces)
            self._wire = b"".join(text_frame(f.encode(frame)) for frame in frames)
        return self._wire


def batches(run: str, entries: Sequence[Entry]) -> Iterator[Batch]:
    """`entries` cut where the seq jumps."""
    start = 0
    for i in range(1, len(entries)):
        if entries[i].seq != entries[i - 1].seq + 1:
            yield Batch(run, entries[start:i])
            start = i
    if entries:
        yield Batch(run, entries[start:])
