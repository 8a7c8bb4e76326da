"""How long a client waits before it comes back: full jitter, 0.5 s doubling to 20 s, never less than asked.

Promises that many clients which lost one server come back spread out. The clock and the dice are the caller's.
"""

from collections.abc import Callable
from typing import Final

FIRST_MS: Final = 500
LONGEST_MS: Final = 20_000
STABLE_MS: Final = 60_000
"""A connection that held this long has earned a fresh start."""


class Backoff:
    """The waits of one connection. `random` answers in [0, 1)."""

    def __init__(self, random: Callable[[], float]) -> None:
        self._random = random
        self._failures = 0

    def next_ms(self, retry_ms: int | None = None) -> int:
        """The wait after one more failure; at least `retry_ms`, if the server named one."""
        ceiling = min(LONGEST_MS, FIRST_MS << min(self._failures, 16))
        self._failures += 1
        return max(round(self._random() * ceiling), retry_ms or 0)

    def receive_lifetime(self, lived_ms: int) -> None:
        """A connection ended that had lived for so long."""
        if lived_ms >= STABLE_MS:
            self._failures = 0
