"""The text that running attempts produce, until an event holds it: what `activity.delta` adds to.

Promises that no code point is cut, that the offsets of a message's pieces are contiguous within an attempt, that a
new attempt begins anew, and that every text ends in exactly one `message.completed`: whole when its attempt returns,
partial when its step fails or the run ends before. Safe to use from any thread. A piece of a surrogate pair waits
for the other, and what may be the beginning of a secret waits for what follows. Leaves publishing to `streaming` and
writing the events to `holding`.
"""

import hashlib
import threading
import time
from collections.abc import Callable, Collection, Iterable
from typing import Final

from towline.protocol import event_data as d
from towline.protocol.deltas import STORED_BYTES, DeltaKind, Piece, audience_of
from towline.protocol.ids import derived_run_id
from towline.protocol.limits import PAYLOAD_BYTES
from towline.workers.scrub import Scrubber
from towline.workers.scrub_stream import ScrubStream

MESSAGES_PER_ATTEMPT: Final = 20
NAME_CHARS: Final = 128
PIECE_CHARS: Final = 8 * 1024
COALESCED_BYTES: Final = 1024
"""Fresh text of this size is published at once; less of it waits a little for more."""
ROLE: Final = "assistant"


class _Message:
    """One message of one attempt. `base`: where its text begins, if its beginning is gone."""

    def __init__(self, name: str, step: str, attempt: int, kind: DeltaKind, scrubber: Scrubber) -> None:
        self.name, self.step, self.attempt = name, step, attempt
        self.kind: DeltaKind = kind
        self.base = self.published = 0
        self.text = ""
        self.fresh: list[str] = []
        self.size_bytes = 0
        self.half = ""
        self.clean = ScrubStream(scrubber)
        self.is_kept = True

    @property
    def end(self) -> int:
        return self.base + len(self.text) + sum(map(len, self.fresh))

    def join(self) -> str:
        if self.fresh:
            self.text += "".join(self.fresh)
            self.fresh.clear()
        return self.text

    def piece(self, offset: int, text: str) -> Piece:
        return Piece(self.name, self.attempt, offset, text, ROLE, self.kind, self.step, audience_of(self.kind))

    def completed(self, *, partial: bool) -> d.MessageCompleted | None:
        if self.kind == "tool_arguments":
            return None  # the step's own events say with what it was called
        return d.MessageCompleted(
            message=self.name,
            attempt=self.attempt,
            role=ROLE,
            kind=self.kind,
            text=self.join(),
            partial=partial,
            step=self.step,
        )


class Messages:
    """The unfinished messages of one held run. `on_text` is called when there is something to publish."""

    def __init__(
        self, run: str, on_text: Callable[[], None] = lambda: None, *, scrubber: Scrubber | None = None
    ) -> None:
        self.fresh_since_s: float | None = None
        """When the oldest text came that was not taken for publishing; monotonic."""
        self.fresh_bytes = 0
        self._run = run
        self._scrubber = scrubber or Scrubber()
        self._on_text = on_text
        self._lock = threading.Lock()
        self._open: dict[str, _Message] = {}
        self._running: dict[str, int] = {}
        self._finished: set[str] = set()
        self._is_closed = False

    # --- producing

    def begin(self, step: str, attempt: int) -> None:
        """An attempt runs now: what it says counts."""
        with self._lock:
            if not self._is_closed:
                self._running[step] = attempt

    def append(self, step: str, attempt: int, text: str, message: str | None, kind: DeltaKind) -> None:
        """Add to a message. Says nothing of an attempt that is over. Raises `ValueError`, `TypeError`."""
        _check(text, message, kind)
        name = message if message is not None else self._name_of(step, kind)
        with self._lock:
            if self._running.get(step) != attempt or not text:
                return
            known = self._message(name, step, attempt, kind)
            text, known.half = _whole(known.half + text)
            text = known.clean.feed(text)
            size_bytes = len(text.encode())
            if known.size_bytes + size_bytes > PAYLOAD_BYTES:
                raise ValueError(f"message {name!r} has more than {PAYLOAD_BYTES} bytes; keep it as an artifact")
            must_tell = self._add(known, text, size_bytes)
        if must_tell:
            self._on_text()

    def _message(self, name: str, step: str, attempt: int, kind: DeltaKind) -> _Message:
        known = self._open.get(name)
        if name in self._finished or (known is not None and known.step != step):
            raise ValueError(f"the message {name!r} is another step's; its name must be unique in the run")
        if known is None or known.attempt != attempt:
            own = [m for m in self._open.values() if m.step == step and m.attempt == attempt]
            if len(own) >= MESSAGES_PER_ATTEMPT:
                raise ValueError(f"one attempt has at most {MESSAGES_PER_ATTEMPT} messages")
            known = self._open[name] = _Message(name, step, attempt, kind, self._scrubber)
        if known.kind != kind:
            raise ValueError(f"the message {name!r} is of kind {known.kind!r}")
        return known

    def _add(self, known: _Message, text: str, size_bytes: int) -> bool:
        """Whether whoever publishes must be told: at the first fresh text, and once there is enough."""
        if not text:
            return False
        before = self.fresh_bytes
        known.fresh.append(text)
        known.size_bytes += size_bytes
        known.is_kept = False
        self.fresh_bytes += size_bytes
        if self.fresh_since_s is None:
            self.fresh_since_s = time.monotonic()
            return True
        return before < COALESCED_BYTES <= self.fresh_bytes

    def _name_of(self, step: str, kind: DeltaKind) -> str:
        digest = hashlib.sha256(f"{self._run}\n{step}\n{kind}".encode()).digest()
        return "msg_" + derived_run_id(digest).removeprefix("run_")

    # --- publishing

    def take_fresh(self) -> list[Piece]:
        """The text that was not taken before, in pieces."""
        with self._lock:
            self.fresh_since_s, self.fresh_bytes = None, 0
            pieces: list[Piece] = []
            for known in self._open.values():
                text = known.join()
                while (end := known.base + len(text)) > known.published:
                    start = known.published - known.base
                    pieces.append(known.piece(known.published, text[start : start + PIECE_CHARS]))
                    known.published = min(end, known.published + PIECE_CHARS)
            return pieces

    @property
    def is_kept(self) -> bool:
        """Whether the text so far of every message was taken since it last changed."""
        with self._lock:
            return all(known.is_kept for known in self._open.values())

    def take_texts(self) -> list[Piece]:
        """The text so far of each message that changed: its end, where it is long."""
        with self._lock:
            changed = [known for known in self._open.values() if not known.is_kept]
            for known in changed:
                known.is_kept = True
            return [known.piece(known.end - len(tail), tail) for known in changed for tail in [_tail(known.join())]]

    def untake_texts(self, names: Iterable[str]) -> None:
        """These texts could not be kept."""
        with self._lock:
            for name in names:
                if (known := self._open.get(name)) is not None:
                    known.is_kept = False

    # --- ending

    def stop(self, step: str) -> None:
        """The step's attempt is over without a result: what it still says counts no more."""
        with self._lock:
            self._running.pop(step, None)
            for known in self._of(step):
                self._settle(known)

    def finish(self, step: str) -> tuple[d.MessageCompleted, ...]:
        """The step's attempt has returned: its messages are whole. Those of earlier attempts stay partial."""
        with self._lock:
            attempt = self._running.pop(step, None)
            return self._complete(self._of(step), whole_attempt=attempt)

    def abandon(self, step: str) -> tuple[d.MessageCompleted, ...]:
        """The step has failed for good: what it said stays partial."""
        with self._lock:
            self._running.pop(step, None)
            return self._complete(self._of(step), whole_attempt=None)

    def close(self) -> tuple[d.MessageCompleted, ...]:
        """The run ends: every text that is left, partial. Nothing is added any more."""
        with self._lock:
            self._is_closed = True
            self._running.clear()
            return self._complete(list(self._open.values()), whole_attempt=None)

    def restore(self, texts: Iterable[Piece]) -> None:
        """What earlier holders left unfinished."""
        with self._lock:
            for text in texts:
                known = self._open[text.message] = _Message(
                    text.message, text.step or "", text.attempt, text.kind, self._scrubber
                )
                known.base, known.text, known.published = text.offset, text.text, text.end
                known.size_bytes = len(text.text.encode())

    def _of(self, step: str) -> list[_Message]:
        return [known for known in self._open.values() if known.step == step]

    def _settle(self, known: _Message) -> None:
        """What waited for more: half a surrogate pair, and the end that was not known to be clean."""
        rest = known.clean.feed("\ufffd" if known.half else "") + known.clean.flush()
        known.half = ""
        self._add(known, rest, len(rest.encode()))

    def _complete(self, messages: Collection[_Message], *, whole_attempt: int | None) -> tuple[d.MessageCompleted, ...]:
        found = []
        for known in messages:
            self._settle(known)
            del self._open[known.name]
            self._finished.add(known.name)
            if (data := known.completed(partial=known.attempt != whole_attempt)) is not None:
                found.append(data)
        return tuple(found)


def _check(text: object, message: object, kind: object) -> None:
    if not isinstance(text, str):
        raise TypeError(f"a delta is text, not {type(text).__name__}")
    if kind not in ("text", "reasoning", "tool_arguments"):
        raise ValueError(f"a message is of kind text, reasoning or tool_arguments, not {kind!r}")
    if message is not None and (
        not isinstance(message, str) or not 0 < len(message) <= NAME_CHARS or not message.isprintable()
    ):
        raise ValueError(f"a message is named by 1 to {NAME_CHARS} printable characters, not {message!r}")


def _whole(text: str) -> tuple[str, str]:
    """The text with surrogate pairs made whole and lone halves replaced; and a first half that ends it."""
    half = ""
    if text and "\ud800" <= text[-1] <= "\udbff":
        text, half = text[:-1], text[-1]
    if not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text):
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text, half


def _tail(text: str) -> str:
    """The end of `text` that is kept for those who come later."""
    if len(text) * 4 <= STORED_BYTES:
        return text
    text = text[-STORED_BYTES:]
    while (over := len(text.encode()) - STORED_BYTES) > 0:
        text = text[max(1, over // 4) :]
    return text
