"""Who is let in, and who is told to come back: one small call for each thing that a caller may ask.

    asked                        over a limit                          under pressure (see `pressure`)
    a socket                     bye 4029 or 4013; 4505 for a subject  -
    a frame                      bye 4029                              -
    a stream (SSE)               retry and bye                         retry and bye
    a subscription               rate_limited                          overloaded
    stored events                slowed                                waits, then `shed`
    a new run                    rate_limited                          overloaded
    a run to work on             -                                     -
    a command                    rate_limited                          overloaded; a cancel never
    an HTTP request              overloaded                            -

Promises that each refusal says when to come back, that what workers need (leases, commits, the end of a run) is never
refused here, and that a caller below their limits does not notice those above. Leaves counting to `limits` and
`rations`, measuring to `pressure`.
"""

import asyncio
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from towline.gateway.limits import Allowances, Places, Rates, What, Who
from towline.gateway.pressure import Level, Pressure
from towline.gateway.rations import Bucket, Rations
from towline.protocol.closecodes import CloseCode
from towline.protocol.errors import ProblemError, problem

_AWAY_MS: Final = 2_000
PATIENCE_S: Final = 10.0
_LOOK_S: Final = 0.25
_sleep: Final = asyncio.sleep
_NAMES: Final[dict[What, str]] = {
    "subscriptions": "subscriptions",
    "commands": "commands",
    "creates": "new runs",
    "replay_bytes": "stored events",
}


class Shed(Exception):
    """A replay was given up; `retry_ms`: when to subscribe again."""

    def __init__(self, retry_ms: int) -> None:
        super().__init__(f"come back in {retry_ms} ms")
        self.retry_ms = retry_ms


class Turned(Exception):
    """A socket is not let in."""

    def __init__(self, code: CloseCode, reason: str, retry_ms: int | None = None) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
        self.retry_ms = retry_ms


class Seat:
    """The place of one socket: without a credential first, then with a subject's. To be left once it is over."""

    __slots__ = ("_frames", "_leave", "_stand_up", "_subject", "_subjects", "address")

    def __init__(
        self,
        address: str | None,
        frames: Rates,
        subjects: Places,
        *,
        stand_up: Callable[[str | None], None],
        leave: Callable[[], None],
    ) -> None:
        self.address = address
        self._frames = frames
        self._subjects = subjects
        self._stand_up = stand_up
        self._leave = leave
        self._subject: str | None = None

    def __enter__(self) -> "Seat":
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def welcome(self, subject: str) -> None:
        """From here on the socket counts for `subject`. Raises `Turned` when it has as many as it may have."""
        if self._subject is not None:
            return
        if not self._subjects.take(subject):
            raise Turned(CloseCode.TOO_MANY_CONNECTIONS, "this subject has too many sockets open")
        self._subject = subject
        self._stand_up(self.address)

    def count_frame(self) -> None:
        """The peer sent a frame. Raises `Turned` when they are too many."""
        if self._frames.wait_s(""):
            raise Turned(CloseCode.RATE_LIMITED, "too many frames; send fewer", _spread(_AWAY_MS))
        self._frames.spend("")

    def leave(self) -> None:
        """The socket is over."""
        self._leave()
        if self._subject is None:
            self._stand_up(self.address)
        else:
            self._subjects.give_back(self._subject)


class Admission:
    """The doors of one gateway process. `is_leaving`: whether it drains and takes no new work.

    `bucket`: where the rates of all gateways are held.
    """

    def __init__(
        self,
        allowances: Allowances,
        pressure: Pressure,
        *,
        is_leaving: Callable[[], bool],
        bucket: Bucket | None = None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.allowances = allowances
        self.pressure = pressure
        self._is_leaving = is_leaving
        self._clock_s = clock_s
        self._rations = Rations(allowances, clock_s, bucket)
        self._sockets = 0
        self._handshakes = 0
        self._accepts = Rates(allowances.accepts_per_s, clock_s)
        self._handshakes_of = Places(allowances.handshakes_per_address)
        self._subjects = Places(allowances.sockets_per_subject)
        self._requests = 0
        self._replays = asyncio.Semaphore(allowances.replays)

    @property
    def open_sockets(self) -> int:
        """How many sockets and streams are open here."""
        return self._sockets

    # Sockets and streams ------------------------------------------------------------------------------------

    def seat(self, address: str | None) -> Seat:
        """A place for a socket that was upgraded, which gives it back when it is over. Raises `Turned`."""
        if self._sockets >= self.allowances.sockets or self._handshakes >= self.allowances.handshakes:
            raise Turned(CloseCode.OVERLOADED, "too many sockets are open here", _spread(_AWAY_MS))
        if wait_s := self._accepts.wait_s(""):
            raise Turned(CloseCode.OVERLOADED, "too many come at once", round(wait_s * 1000) + _spread(_AWAY_MS))
        if self._counts(address) and not self._handshakes_of.take(address or ""):
            why = "too many sockets without a credential from this address"
            raise Turned(CloseCode.RATE_LIMITED, why, _spread(_AWAY_MS))
        self._accepts.spend("")
        self._sockets += 1
        self._handshakes += 1
        frames = Rates(self.allowances.frames_per_s, self._clock_s)
        return Seat(address, frames, self._subjects, stand_up=self._stand_up, leave=self._leave)

    def _counts(self, address: str | None) -> bool:
        return address is not None and self.allowances.address_factor > 0

    def _stand_up(self, address: str | None) -> None:
        """A socket from `address` has a credential now, or is over without one."""
        self._handshakes -= 1
        if self._counts(address):
            self._handshakes_of.give_back(address or "")

    def _leave(self) -> None:
        self._sockets -= 1

    @contextmanager
    def stream(self, subject: str) -> Iterator[None]:
        """A stream of `subject`, which counts as one of its sockets. Raises `Turned`."""
        if self._sockets >= self.allowances.sockets:
            raise Turned(CloseCode.OVERLOADED, "too many sockets are open here", _spread(_AWAY_MS))
        if not self._subjects.take(subject):
            raise Turned(CloseCode.RATE_LIMITED, "this subject has too many streams open", _spread(_AWAY_MS))
        self._sockets += 1
        try:
            yield
        finally:
            self._sockets -= 1
            self._subjects.give_back(subject)

    # What callers ask ---------------------------------------------------------------------------------------

    async def subscribe(self, who: Who) -> None:
        """A new subscription. Raises `ProblemError`."""
        self._refuse_under_pressure(Level.SUBSCRIPTIONS)
        await self._take("subscriptions", who)

    async def create(self, who: Who) -> None:
        """A new run. Raises `ProblemError`."""
        self._refuse_when_leaving()
        self._refuse_under_pressure(Level.CREATES)
        await self._take("creates", who)

    def claim(self) -> None:
        """A run for a worker to hold. Raises `ProblemError` only when the gateway goes away: it is new work."""
        self._refuse_when_leaving()

    async def command(self, who: Who, type_: str) -> None:
        """A command. Raises `ProblemError`. Ending a run is relief: `cancel` is never shed."""
        if type_ != "cancel":
            self._refuse_under_pressure(Level.COMMANDS)
        await self._take("commands", who)

    @property
    def drops_deltas(self) -> bool:
        """Whether unfinished text is not sent now."""
        return self.pressure.sheds(Level.DELTAS)

    @contextmanager
    def request(self) -> Iterator[None]:
        """An HTTP request while it is answered. Raises `ProblemError`."""
        if self._requests >= self.allowances.requests:
            raise problem("overloaded", "Too many requests at once.", retry_after_ms=_spread(_AWAY_MS))
        self._requests += 1
        try:
            yield
        finally:
            self._requests -= 1

    # Stored events ------------------------------------------------------------------------------------------

    async def replay(self, who: Who, owed_bytes: int) -> None:
        """Before stored events are read: pays for those that were, waits out pressure. Raises `Shed`."""
        if owed_bytes and (wait_s := await self._rations.owe("replay_bytes", who, owed_bytes)):
            await _sleep(wait_s)
        until_s = self._clock_s() + PATIENCE_S
        while self.pressure.sheds(Level.REPLAYS):
            if self._clock_s() >= until_s:
                raise Shed(_spread(_AWAY_MS))
            await _sleep(_LOOK_S)

    def reading(self) -> asyncio.Semaphore:
        """Held during one read of stored events for a subscription that is behind."""
        return self._replays

    def _refuse_when_leaving(self) -> None:
        if self._is_leaving():
            raise problem("overloaded", "The gateway is going away; ask again.", retry_after_ms=_spread(_AWAY_MS))

    def _refuse_under_pressure(self, what: Level) -> None:
        if self.pressure.sheds(what):
            raise problem("overloaded", "The gateway is pressed; ask again.", retry_after_ms=_spread(_AWAY_MS))

    async def _take(self, what: What, who: Who) -> None:
        if wait_s := await self._rations.take(what, who):
            raise _too_many(what, wait_s)


def _too_many(what: What, wait_s: float) -> ProblemError:
    return problem("rate_limited", f"Too many {_NAMES[what]} at once.", retry_after_ms=max(1, round(wait_s * 1000)))


def _spread(about_ms: int) -> int:
    """A time to come back that differs from caller to caller."""
    return random.randint(about_ms // 2, about_ms + about_ms // 2)
