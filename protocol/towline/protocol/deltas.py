"""Unfinished text, merged for one reader: what comes in pieces, in holes and late goes out contiguous, or not at all.

Deltas stand outside the log and outside its order: a piece may be lost, and nothing repeats it. What makes the text
whole all the same is the *text so far* that its producer keeps in the store, renewed once a second. The machine does
no I/O. Its shell feeds the pieces that it hears of and the events that it sends, and does what `next_action` says.

1. *A piece is taken where the text before it is known.* One that lies further on waits, and the next stored text
   fills the hole; where only the end of a text is kept, the reader is told so (`truncated`) and begins there.
2. *A larger attempt replaces*, a smaller one is dropped.
3. *Nothing follows the finished message*: `message.completed`, the end of its step and the end of the run drop
   what is held of it, and what still comes.
4. *Nothing queues.* What a slow socket has not taken is merged; past a bound it is forgotten, and is a hole.

Offsets count code points, as Python strings do, so none is ever cut. Leaves who may read a piece to the shell.
"""

from collections.abc import Iterable, Sequence
from typing import Final, Literal

import msgspec
from msgspec import Struct

from towline.protocol import event_data as d
from towline.protocol.codec import Entry, NewEntry, type_of
from towline.protocol.events import TERMINAL, Actor, Audience
from towline.protocol.limits import EVENT_BYTES

DeltaKind = Literal["text", "reasoning", "tool_arguments"]

STORED_EVERY_MS: Final = 1_000
"""How old a stored text is at most, while its producer lives."""
STORED_BYTES: Final = 32 * 1024
"""Of a longer text only the end is kept; six times as much still fits a frame, if all of it must be escaped."""
FRAME_CHARS: Final = 8 * 1024
_HELD_CHARS: Final = 64 * 1024
"""What is held for one reader, of all messages together; a stored text may exceed it once."""
_ENVELOPE_BYTES: Final = 2 * 1024
_PIECE_CHARS: Final = 256
"""What a piece that waits costs beside its text, in round numbers."""
_MESSAGES: Final = 256
_FINISHED: Final = 1_024
_READS: Final = 5
"""How often a hole is looked for in the stored texts before what lies behind it is dropped."""


class Piece(Struct, frozen=True, omit_defaults=True):
    """A part of an unfinished message: published as it is made, or stored as the text so far (from `offset` on)."""

    message: str
    attempt: int
    offset: int
    text: str
    role: str = "assistant"
    kind: DeltaKind = "text"
    step: str | None = None
    audience: Audience = "collaborator"

    @property
    def end(self) -> int:
        """The offset after its last code point."""
        return self.offset + len(self.text)


_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(Piece)


def audience_of(kind: DeltaKind) -> Audience:
    """Who may read a message of this kind, by default."""
    return "operator" if kind == "reasoning" else "collaborator"


def encode_piece(piece: Piece) -> bytes:
    """The piece as it is published and stored: JSON on one line."""
    return _encoder.encode(piece)


def decode_piece(raw: bytes) -> Piece:
    """The piece in `raw`. Raises `msgspec.ValidationError`."""
    return _decoder.decode(raw)


FINISHING: Final = TERMINAL | {"message.completed", "tool.finished", "tool.failed"}
"""Types of events that end unfinished text."""


def finishes(entry: Entry) -> tuple[Literal["message", "step", "run"], str] | None:
    """Which message, step or run is finished with this entry, so that no text of it may follow."""
    kind = type_of(entry.raw)
    if kind in TERMINAL:
        return "run", ""
    if kind == "message.completed":
        return "message", str(entry.event().data["message"])
    if kind in ("tool.finished", "tool.failed"):
        return "step", str(entry.event().data["step"])
    return None


def entry_of_message(data: d.MessageCompleted, actor: Actor) -> NewEntry:
    """The entry of a finished message, which only those read who might read its pieces."""
    return NewEntry(type="message.completed", actor=actor, data=data, audience=audience_of(data.kind))


def partial_entry(text: Piece, actor: Actor, *, most_bytes: int = EVENT_BYTES) -> NewEntry:
    """The entry of a message that nobody will finish: the end of what is known of it, as much as fits."""
    assert text.kind != "tool_arguments", "the step's own events say with what it was called"
    known = text.text
    while (over := len(_encoder.encode(known)) - min(most_bytes, EVENT_BYTES) + _ENVELOPE_BYTES) > 0:
        known = known[over // 6 + 1 :]
    data = d.MessageCompleted(
        message=text.message,
        attempt=text.attempt,
        role=text.role,
        kind=text.kind,
        text=known,
        partial=True,
        step=text.step,
    )
    return entry_of_message(data, actor)


class ReadTexts(Struct, frozen=True):
    """Read the stored texts of the run's unfinished messages; answer with `receive_texts`."""


class SendDelta(Struct, frozen=True):
    """Send this piece. `begins`: it is the first of its attempt that this reader gets."""

    piece: Piece
    begins: bool
    truncated: bool = False


DeltaAction = ReadTexts | SendDelta


class _Message:
    """One unfinished message: `sent` code points are with the reader, `pending` follows, `later` lies behind a hole."""

    def __init__(self, piece: Piece) -> None:
        self.head = piece
        self.sent = 0
        self.pending = ""
        self.later: list[Piece] = []
        self.begins = True
        self.truncated = False
        self.reads = 0

    @property
    def end(self) -> int:
        return self.sent + len(self.pending)

    def add(self, piece: Piece) -> None:
        if piece.offset <= self.end:
            self.pending += piece.text[self.end - piece.offset :]
            self._join()
        else:
            self.later.append(piece)

    @property
    def held_chars(self) -> int:
        return len(self.pending) + sum(len(piece.text) + _PIECE_CHARS for piece in self.later)

    def forget(self) -> None:
        """Holds nothing but how far the text goes at least: the next stored text brings it."""
        if self.pending or self.later:
            end = max([self.end, *(piece.end for piece in self.later)])
            self.later, self.pending = [msgspec.structs.replace(self.head, offset=end, text="")], ""

    def fill(self, stored: Piece) -> None:
        """The text so far: what is missing of it, or all that is left of it."""
        if stored.offset > self.end:
            self.sent, self.pending = stored.offset, stored.text
            self.begins = self.truncated = True
            self._join()
        else:
            self.add(stored)

    def _join(self) -> None:
        later, self.later = sorted(self.later, key=lambda piece: piece.offset), []
        for piece in later:
            if piece.offset <= self.end:
                self.pending += piece.text[self.end - piece.offset :]
            else:
                self.later.append(piece)
        if not self.later:
            self.reads = 0

    def take(self) -> SendDelta:
        text, self.pending = self.pending[:FRAME_CHARS], self.pending[FRAME_CHARS:]
        piece = msgspec.structs.replace(self.head, offset=self.sent, text=text)
        action = SendDelta(piece, self.begins, self.truncated)
        self.sent += len(text)
        self.begins = self.truncated = False
        return action


class DeltaLane:
    """The machine. `now_ms` may be of any clock that only goes forward."""

    def __init__(self) -> None:
        self._messages: dict[str, _Message] = {}
        self._finished: dict[str, None] = {}
        self._texts_due_ms: int | None = 0
        self._is_over = False

    # Facts ---------------------------------------------------------------------------------------------------

    def receive_pieces(self, pieces: Iterable[Piece], now_ms: int) -> None:
        """Pieces that were just published. May come in holes, twice, or not at all."""
        for piece in pieces:
            message = self._message_of(piece)
            if message is None:
                continue
            message.add(piece)
            if self._held_chars() > _HELD_CHARS:
                for each in self._messages.values():
                    each.forget()
            if message.later:
                self._want_texts(now_ms + STORED_EVERY_MS)

    def are_next(self, pieces: Sequence[Piece]) -> bool:
        """Whether these are just what a reader who lacks nothing gets next: then they may be sent as they are."""
        ends: dict[str, int] = {}
        for piece in pieces:
            message = self._messages.get(piece.message)
            if message is None or piece.attempt != message.head.attempt or len(piece.text) > FRAME_CHARS:
                return False
            if message.begins or message.pending or message.later:
                return False
            if piece.offset != ends.get(piece.message, message.sent):
                return False
            ends[piece.message] = piece.end
        return True

    def receive_passed_on(self, pieces: Sequence[Piece]) -> None:
        """`pieces`, which were next, are sent."""
        for piece in pieces:
            self._messages[piece.message].sent = piece.end

    def receive_texts(self, texts: Iterable[Piece], now_ms: int) -> None:
        """The answer to `ReadTexts`."""
        held_chars = self._held_chars()
        for text in texts:
            if (message := self._message_of(text)) is None or text.end <= message.end:
                continue
            if held_chars > _HELD_CHARS:
                message.later, message.reads = [_end_of(text)], 0  # its turn comes when what is before it was taken
                continue
            held_chars -= message.held_chars
            message.fill(text)
            held_chars += message.held_chars
        for message in self._messages.values():
            if message.later:
                message.reads += 1
                if message.reads > _READS:
                    message.later, message.reads = [], 0
                else:
                    self._want_texts(now_ms + STORED_EVERY_MS)

    def receive_loss(self, now_ms: int) -> None:
        """Pieces may have been lost, or were dropped on purpose: look at the stored texts."""
        self._want_texts(now_ms + STORED_EVERY_MS)

    def receive_sent(self, entries: Iterable[Entry]) -> None:
        """These events are sent to the reader: what they finish gets no text any more."""
        for entry in entries:
            match finishes(entry):
                case None:
                    continue
                case ("message", message):
                    self._finish(message)
                case ("step", step):
                    for name in [n for n, m in self._messages.items() if m.head.step == step]:
                        self._finish(name)
                case _:
                    self._is_over = True
                    self._messages.clear()

    # Actions -------------------------------------------------------------------------------------------------

    def next_action(self, now_ms: int) -> DeltaAction | None:
        """What the shell does now. `ReadTexts` is to be answered before the next call."""
        if self._is_over:
            return None
        if self._texts_due_ms is not None and now_ms >= self._texts_due_ms:
            self._texts_due_ms = None
            return ReadTexts()
        for message in self._messages.values():
            if message.pending:
                return message.take()
        return None

    def deadline_ms(self) -> int | None:
        """When to ask `next_action` again although nothing came."""
        return None if self._is_over else self._texts_due_ms

    # Inside --------------------------------------------------------------------------------------------------

    def _message_of(self, piece: Piece) -> _Message | None:
        if self._is_over or piece.message in self._finished:
            return None
        message = self._messages.get(piece.message)
        if message is None or piece.attempt > message.head.attempt:
            if message is None and len(self._messages) >= _MESSAGES:
                return None
            message = self._messages[piece.message] = _Message(piece)
        return message if piece.attempt == message.head.attempt else None

    def _held_chars(self) -> int:
        return sum(message.held_chars for message in self._messages.values())

    def _want_texts(self, at_ms: int) -> None:
        if self._texts_due_ms is None:
            self._texts_due_ms = at_ms

    def _finish(self, message: str) -> None:
        self._messages.pop(message, None)
        self._finished[message] = None
        if len(self._finished) > _FINISHED:
            del self._finished[next(iter(self._finished))]


def _end_of(text: Piece) -> Piece:
    """A mark of how far the text goes at least."""
    return msgspec.structs.replace(text, offset=text.end, text="")
