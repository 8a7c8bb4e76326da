"""Publishing unfinished text: pieces as they come, joined for a moment, and once a second the text so far.

Promises that publishing never holds work up and that its failures never fail it: a piece that could not be published
is a hole, which readers fill from the text so far. After `settle` nothing of an earlier call is on its way, so that
no piece follows the event which finishes its message. Leaves the text to `messages`, who reads it to the gateway.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable
from typing import Final

from towline.protocol.deltas import STORED_EVERY_MS, Piece
from towline.protocol.store import api
from towline.protocol.store.interface import Store
from towline.workers.messages import COALESCED_BYTES, Messages
from towline.workers.scrub import Scrubber

_log: Final = logging.getLogger("towline.worker")

COALESCE_S: Final = 0.04
_KEEP_S: Final = STORED_EVERY_MS / 1000 * 0.9
"""A little under the promised second, since the call takes some of it."""
_CALL_BYTES: Final = 128 * 1024
_FULL_S: Final = 1.0
_AWAY_S: Final = 0.2


class Publisher:
    """The publisher of one held run. Runs from the first text on, until `aclose`."""

    def __init__(
        self,
        store: Store,
        run: str,
        fence: api.Fence,
        *,
        clock: Callable[[], float] = time.monotonic,
        scrubber: Scrubber | None = None,
    ) -> None:
        self.messages = Messages(run, self._tell, scrubber=scrubber)
        self._store = store
        self._run = run
        self._fence = fence
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._flying = asyncio.Lock()
        self._kept_at_s = float("-inf")
        self._kept: dict[str, str | None] = {}
        self._task: asyncio.Task[None] | None = None
        self._is_over = False

    def restore(self, texts: Iterable[Piece]) -> None:
        """What earlier holders left unfinished."""
        kept = list(texts)
        self._kept.update({text.message: text.step for text in kept})
        self.messages.restore(kept)

    async def settle(self) -> None:
        """Back when no call is on its way."""
        async with self._flying:
            pass

    async def forget(self, steps: Iterable[str], *, everything: bool = False) -> None:
        """The log holds the ends of these steps: their kept texts are of no use any more."""
        ended = set(steps)
        gone = [name for name, step in self._kept.items() if everything or step in ended]
        if gone:
            for name in gone:
                del self._kept[name]
            with contextlib.suppress(api.StoreError):  # readers leave out what the log shows as finished
                await self._store.forget_texts(self._run, gone)

    async def aclose(self) -> None:
        """Publish no more."""
        self._is_over = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    # --- inside

    def _tell(self) -> None:
        with contextlib.suppress(RuntimeError):  # a thread that outlived the loop
            self._loop.call_soon_threadsafe(self._start)

    def _start(self) -> None:
        self._wake.set()
        if self._task is None and not self._is_over:
            self._task = self._loop.create_task(self._publish_all())

    async def _publish_all(self) -> None:
        try:
            while not self._is_over:
                self._wake.clear()
                wait_s = self._due_in_s()
                if wait_s is None or wait_s > 0:
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._wake.wait(), wait_s)
                    continue
                await self._publish()
        except (api.Fenced, api.RunClosed, api.NoRun, api.RunGone):
            self._is_over = True  # the lease is another's by now; renewing will tell
        except Exception:
            _log.exception("the unfinished text of %s is not published any more", self._run)
            self._is_over = True

    def _due_in_s(self) -> float | None:
        """How long to wait; None: until there is text."""
        messages, now_s = self.messages, self._clock()
        waits = []
        if (since_s := messages.fresh_since_s) is not None:
            waits.append(0.0 if messages.fresh_bytes >= COALESCED_BYTES else since_s + COALESCE_S - now_s)
        if not messages.is_kept:
            waits.append(self._kept_at_s + _KEEP_S - now_s)
        return min(waits, default=None)

    async def _publish(self) -> None:
        async with self._flying:
            pieces = self.messages.take_fresh()
            texts: list[Piece] = []
            if self._clock() >= self._kept_at_s + _KEEP_S and (texts := self.messages.take_texts()):
                self._kept_at_s = self._clock()
                self._kept.update({text.message: text.step for text in texts})
            if not pieces and not texts:
                return  # it was finished meanwhile
            calls = _calls(pieces, texts)
            for number, (some, kept) in enumerate(calls):
                try:
                    await self._store.publish_pieces(self._run, self._fence, some, kept)
                except (api.StoreFull, api.StoreUnavailable) as error:
                    _log.info("unfinished text of %s not published: %s", self._run, error)
                    self.messages.untake_texts(text.message for _, unkept in calls[number:] for text in unkept)
                    pause_s = _FULL_S if isinstance(error, api.StoreFull) else _AWAY_S
                    break
            else:
                return
        await asyncio.sleep(pause_s)


def _calls(pieces: list[Piece], texts: list[Piece]) -> list[tuple[list[Piece], list[Piece]]]:
    """The script calls that these take: none is very large, and texts come after the pieces they hold."""
    calls: list[tuple[list[Piece], list[Piece]]] = [([], [])]
    room_bytes = _CALL_BYTES
    for piece, index in [*((p, 0) for p in pieces), *((t, 1) for t in texts)]:
        size_bytes = len(piece.text.encode())
        if size_bytes > room_bytes and any(calls[-1]):
            calls.append(([], []))
            room_bytes = _CALL_BYTES
        calls[-1][index].append(piece)
        room_bytes -= size_bytes
    return calls
