"""Unfinished text for one subscription: what the hub hears of, merged by `protocol.deltas`, sent when events are not.

Promises that a piece is sent only to who may read its message, that events always go first, and that text which the
peer does not take in time costs this gateway a bounded amount and the peer nothing: it is merged, or read again from
the store. Under pressure text is dropped before anything that somebody waits for. Leaves when to send to `watching`.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from towline.gateway.prepared import Text
from towline.protocol import frames as f
from towline.protocol.codec import Entry
from towline.protocol.deltas import DeltaLane, Piece, ReadTexts, SendDelta
from towline.protocol.projection import Caller, may_read
from towline.protocol.store.api import NoRun, RunGone, StoreError
from towline.protocol.store.redis import RedisStore

_log: Final = logging.getLogger("towline.gateway")


class TextStream:
    """The texts of one run for one reader.

    `wake`: there may be a frame to send. `write`: writes frames past whoever is woken, if the peer keeps up; whether
    it did. `is_shed`: whether the gateway gives text up now.
    """

    def __init__(
        self,
        store: RedisStore,
        run: str,
        *,
        wake: Callable[[], None],
        write: Callable[[bytes], bool],
        is_shed: Callable[[], bool],
    ) -> None:
        self._store = store
        self._run = run
        self._wake = wake
        self._write = write
        self._is_shed = is_shed
        self._lane = DeltaLane()
        self._caller: Caller | None = None

    def admit(self, caller: Caller) -> None:
        """Who reads from here on. What is held for another role is forgotten."""
        if self._caller is not None and self._caller.role != caller.role:
            self._lane = DeltaLane()
        self._caller = caller

    def receive_text(self, text: Text) -> None:
        """See `hub.TextFollower`."""
        lane = self._lane
        if self._is_shed():
            lane.receive_loss(_now_ms())
        elif not (readable := self._readable(text.pieces)):
            return
        elif len(readable) == len(text.pieces) and lane.are_next(readable) and self._write(text.wire):
            lane.receive_passed_on(readable)
            return
        else:
            lane.receive_pieces(readable, _now_ms())
        self._wake()

    def receive_loss(self) -> None:
        """See `hub.TextFollower`."""
        self._lane.receive_loss(_now_ms())
        self._wake()

    def receive_sent(self, entries: Iterable[Entry]) -> None:
        """These events are sent now."""
        self._lane.receive_sent(entries)

    def wait_s(self) -> float | None:
        """When to call `next_frame` again though nothing came; None: not before something does."""
        due_ms = self._lane.deadline_ms()
        return None if due_ms is None else max(0.0, (due_ms - _now_ms()) / 1000)

    async def next_frame(self) -> f.Delta | None:
        """The next frame, if there is one to send now. Reads the store where a text is not known."""
        lane = self._lane
        while (action := lane.next_action(_now_ms())) is not None:
            match action:
                case SendDelta():
                    return _frame(self._run, action)
                case ReadTexts():
                    await self._read(lane)
        return None

    async def _read(self, lane: DeltaLane) -> None:
        if self._is_shed():
            lane.receive_loss(_now_ms())
            return
        try:
            texts = await self._store.unfinished(self._run)
        except (NoRun, RunGone):
            return
        except StoreError as error:
            _log.info("texts of %s not read: %s", self._run, error)
            lane.receive_loss(_now_ms())
            return
        lane.receive_texts(self._readable(texts), _now_ms())

    def _readable(self, pieces: Sequence[Piece]) -> list[Piece]:
        caller = self._caller
        return [] if caller is None else [piece for piece in pieces if may_read(caller.role, piece.audience)]


def _now_ms() -> int:
    return int(asyncio.get_running_loop().time() * 1000)


def _frame(run: str, action: SendDelta) -> f.Delta:
    piece = action.piece
    frame = f.Delta(run, piece.message, piece.attempt, piece.offset, piece.text)
    if not action.begins:
        return frame
    return f.Delta(
        run,
        piece.message,
        piece.attempt,
        piece.offset,
        piece.text,
        role=piece.role,
        kind=piece.kind,
        step=piece.step,
        truncated=action.truncated,
    )
