"""When something is due on one socket: a deadline of its session, or the next heartbeat. One timer, no task.

Promises that `on_due` is called once what was due first is due, and not again before `arm`. Leaves what is to be done
then to `socket`.
"""

import asyncio
import random
import time
from collections.abc import Callable
from typing import Final

_JITTER: Final = 0.1
_SHORTEST_S: Final = 0.001


def now_ms() -> int:
    """The clock against which credentials end."""
    return int(time.time() * 1000)


class Ticker:
    """The timer of a socket that beats about every `beat_ms`."""

    __slots__ = ("_beat_s", "_loop", "_next_beat_s", "_on_due", "_timer")

    def __init__(self, beat_ms: int, on_due: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._beat_s = beat_ms / 1000
        self._on_due = on_due
        self._timer: asyncio.TimerHandle | None = None
        self._next_beat_s = self._after_a_beat()

    def arm(self, due_ms: int | None) -> None:
        """Waits for `due_ms` (by `now_ms`; None: no deadline) or the next heartbeat, whichever is first."""
        self.stop()
        left_s = self._next_beat_s - self._loop.time()
        if due_ms is not None:
            left_s = min(left_s, (due_ms - now_ms()) / 1000)
        self._timer = self._loop.call_later(max(_SHORTEST_S, left_s), self._fire)

    def take_beat(self) -> bool:
        """Whether a heartbeat is due; if so, the next is due in a while."""
        if self._loop.time() < self._next_beat_s:
            return False
        self._next_beat_s = self._after_a_beat()
        return True

    def stop(self) -> None:
        """Waits for nothing."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fire(self) -> None:
        self._timer = None
        self._on_due()

    def _after_a_beat(self) -> float:
        return self._loop.time() + self._beat_s * random.uniform(1 - _JITTER, 1 + _JITTER)
