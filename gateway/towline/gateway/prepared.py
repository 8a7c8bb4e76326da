"""What many readers are sent alike: the entries of one run that came together, framed once per reader class.

Promises that whoever may see the same is written the same bytes object, that a frame of events stays within its
bound, and that nothing is projected or framed before someone of that class reads. Leaves to the subscription machine
whether these entries are what a reader is to be sent next, and to `server` how bytes reach a peer.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from towline.protocol import frames as f
from towline.protocol.codec import Entry, type_of
from towline.protocol.cursor import Cursor
from towline.protocol.deltas import Piece
from towline.protocol.events import TERMINAL
from towline.protocol.limits import EVENTS_FRAME_BYTES, KIB
from towline.protocol.projection import Role, project_entry

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
    start, size_bytes = 0, _ENVELOPE_BYTES
    for i, one in enumerate(raw):
        size_bytes += len(one) + 1
        if size_bytes > EVENTS_FRAME_BYTES and i > start:
            yield start, i
            start, size_bytes = i, _ENVELOPE_BYTES + len(one) + 1
    if start < len(raw):
        yield start, len(raw)


class Batch:
    """Entries of one run, dense in seq, that were appended just now."""

    __slots__ = ("_wires", "ending", "entries", "first_seq", "last", "run")

    def __init__(self, run: str, entries: Sequence[Entry]) -> None:
        self.run = run
        self.entries = entries
        self.first_seq = entries[0].seq
        self.last: Cursor = entries[-1].cursor
        kind = type_of(entries[-1].raw)
        self.ending = kind.removeprefix("run.") if kind in TERMINAL else None
        """The status that the run ended with, if the last entry is terminal."""
        self._wires: dict[Role, bytes] = {}

    def wire(self, reader: Role) -> bytes:
        """The frames of these entries as `reader` (one of `reader_class`) sees them, ready to be written."""
        if (wire := self._wires.get(reader)) is None:
            wire = self._wires[reader] = self._frame(reader)
        return wire

    def _frame(self, reader: Role) -> bytes:
        raw = [project_entry(entry, reader) for entry in self.entries]
        return b"".join(
            text_frame(f.encode(f.events(self.run, raw[a:b], self.entries[b - 1].cursor, replay=False)))
            for a, b in chunks(raw)
        )


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
