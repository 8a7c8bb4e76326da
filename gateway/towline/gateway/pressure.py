"""How hard the gateway is pressed, and what it therefore gives up, in this order and never another:

    replays > new subscriptions > creates > deltas > commands > (never) what ends a run or keeps a lease

Three things are measured: how late the event loop is, how many bytes wait in sockets, how long the store takes to
answer. Each has five thresholds, one a level; the worst of the three decides. A level is entered only when several
samples in a row agree, so that one long call is not taken for pressure, and left only after a longer calm, so that
what was shed does not come back at once all together. The machine is pure; `Gauge` feeds it. Leaves the answers to
`admission`.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from enum import IntEnum
from typing import Final

from msgspec import Struct

from towline.protocol.store.api import StoreError

_log: Final = logging.getLogger("towline.gateway")

EVERY_S: Final = 0.25
_ENTER_SAMPLES: Final = 3
_LEAVE_SAMPLES: Final = 8


class Level(IntEnum):
    """What is shed: this and everything before it."""

    NOTHING = 0
    REPLAYS = 1
    SUBSCRIPTIONS = 2
    CREATES = 3
    DELTAS = 4
    COMMANDS = 5


class Sample(Struct, frozen=True):
    """What was measured at one moment."""

    lag_ms: float = 0
    buffered_bytes: int = 0
    store_ms: float = 0


LAG_MS: Final = (400, 800, 1_500, 2_500, 4_000)
STORE_MS: Final = (500, 1_000, 1_500, 2_500, 4_000)
BUFFERED_SHARE: Final = (0.5, 0.6, 0.7, 0.8, 0.9)


class Pressure:
    """The level now. `buffered_bytes` is the bound of which shares are the thresholds."""

    def __init__(self, buffered_bytes: int) -> None:
        self._buffered = tuple(share * buffered_bytes for share in BUFFERED_SHARE)
        self._recent: deque[int] = deque(maxlen=_LEAVE_SAMPLES)
        self.level = Level.NOTHING

    def sheds(self, what: Level) -> bool:
        """Whether `what` is given up now."""
        return self.level >= what

    def receive(self, sample: Sample) -> Level:
        """The level after one more sample."""
        self._recent.append(
            max(
                sum(sample.lag_ms >= at for at in LAG_MS),
                sum(sample.store_ms >= at for at in STORE_MS),
                sum(sample.buffered_bytes >= at for at in self._buffered),
            )
        )
        newest = list(self._recent)[-_ENTER_SAMPLES:]
        if len(newest) == _ENTER_SAMPLES and min(newest) > self.level:
            self.level = Level(min(newest))
        elif len(self._recent) == _LEAVE_SAMPLES and max(self._recent) < self.level:
            self.level = Level(max(self._recent))
        return self.level


class Gauge:
    """Measures while `run` runs.

    `ask_store` makes one cheap call; `buffered_bytes` counts what waits in sockets; `on_sample` is told what was found.
    """

    def __init__(
        self,
        pressure: Pressure,
        *,
        ask_store: Callable[[], Awaitable[object]],
        buffered_bytes: Callable[[], int],
        on_sample: Callable[[Sample], None],
        every_s: float = EVERY_S,
    ) -> None:
        self._pressure = pressure
        self._ask_store = ask_store
        self._buffered_bytes = buffered_bytes
        self._on_sample = on_sample
        self._every_s = every_s

    async def run(self) -> None:
        """Measures until cancelled."""
        while True:
            sample = await self.measure()
            self._on_sample(sample)
            before = self._pressure.level
            if (now := self._pressure.receive(sample)) is not before:
                _log.warning("pressure: now shedding %s (was %s), at %s", now.name, before.name, sample)

    async def measure(self) -> Sample:
        """One sample; takes a quarter of a second or longer."""
        loop = asyncio.get_running_loop()
        start_s = loop.time()
        await asyncio.sleep(self._every_s)
        late_s = loop.time() - start_s - self._every_s
        asked_s, took_s = loop.time(), 0.0
        # A store that is away is no pressure: callers are told `unavailable` by the call itself.
        with contextlib.suppress(StoreError):
            await self._ask_store()
            took_s = loop.time() - asked_s
        return Sample(max(0.0, late_s) * 1000, self._buffered_bytes(), took_s * 1000)
