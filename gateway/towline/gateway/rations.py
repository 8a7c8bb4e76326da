"""What a caller may ask of all gateways together: taken from the store in batches, spent here.

Promises that gateways on one store together allow what one would, that a caller who asks often costs the store one
call for many and one who was refused none until it is time, and that nobody waits for a store that is slow or away:
then the limits of this process alone hold, which are the same for each gateway. Leaves counting in the process to
`limits`, what a refusal looks like to `admission`.
"""

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Protocol

from towline.gateway.limits import BURST_S, Allowances, Limiter, What, Who
from towline.protocol.store.api import StoreError
from towline.protocol.store.rates import Taken

_log: Final = logging.getLogger("towline.gateway")

PATIENCE_S: Final = 0.25
ALONE_S: Final = 1.0
"""How long the store is not asked after it did not answer in time."""
_KEPT: Final = 20_000
_BATCHES: Final = 8
"""A batch is at most this part of a burst, so that what lies unused elsewhere is little."""
_OFTEN_S: Final = 1.0
"""Who needs another batch within this gets twice as much."""


class Bucket(Protocol):
    """`RedisStore.take_tokens`."""

    async def __call__(
        self, rate: str, whom: str, *, per_s: float, burst_s: float, least: int, most: int, forced: bool = False
    ) -> Taken:
        """Takes what one caller may still spend of one rate. Raises `StoreError`."""
        ...


class _Stock:
    """What this gateway holds of one caller's rate."""

    def __init__(self) -> None:
        self.left = 0
        self.until_s = 0.0
        self.batch = 1
        self.drawn_s = float("-inf")
        self.refused_until_s = float("-inf")
        self.turn = asyncio.Lock()


class _Away(Exception):
    """The store cannot be asked now."""


class Rations:
    """The rates of all callers. Without a `bucket` those of this process alone."""

    def __init__(self, allowances: Allowances, clock_s: Callable[[], float], bucket: Bucket | None = None) -> None:
        self._local = Limiter(allowances, clock_s)
        self._bucket = bucket
        self._clock_s = clock_s
        self._stocks: OrderedDict[tuple[What, str], _Stock] = OrderedDict()
        self._alone_until_s = float("-inf")
        self._asking: set[asyncio.Task[Taken]] = set()

    async def take(self, what: What, who: Who) -> float:
        """Spends one, if neither the subject nor the address has to wait: how long they must, in seconds."""
        if wait_s := self._local.wait_s(what, who):
            return wait_s
        drawn: list[_Stock] = []
        try:
            for key, per_s in self._local.whose(what, who):
                stock = self._stock(what, key)
                if wait_s := await self._draw(stock, what, key, per_s, 1):
                    for other in drawn:
                        other.left += 1
                    return wait_s
                drawn.append(stock)
        except _Away:
            return self._local.take(what, who)
        self._local.owe(what, who, 1)
        return 0.0

    async def owe(self, what: What, who: Who, amount: int) -> float:
        """Spends `amount` in any case: how long to wait, in seconds, before more is asked."""
        wait_s = self._local.owe(what, who, amount)
        with contextlib.suppress(_Away):
            for key, per_s in self._local.whose(what, who):
                stock = self._stock(what, key)
                wait_s = max(wait_s, await self._draw(stock, what, key, per_s, amount, forced=True))
        return wait_s

    def _stock(self, what: What, key: str) -> _Stock:
        stock = self._stocks.pop((what, key), None) or _Stock()
        self._stocks[what, key] = stock
        while len(self._stocks) > _KEPT:
            self._stocks.popitem(last=False)
        return stock

    async def _draw(
        self, stock: _Stock, what: What, key: str, per_s: float, amount: int, *, forced: bool = False
    ) -> float:
        """Takes from the stock, which is filled from the store if it must. Raises `_Away`."""
        if self._spend(stock, amount):
            return 0.0
        async with stock.turn:
            # Somebody who asked at the same time may have brought enough for all, or a refusal.
            if self._spend(stock, amount):
                return 0.0
            now_s = self._clock_s()
            if not forced and stock.refused_until_s > now_s:
                return stock.refused_until_s - now_s
            lots = max(1, int(per_s * BURST_S / _BATCHES))
            wanted = 2 * stock.batch if now_s - stock.drawn_s < _OFTEN_S else 1
            stock.batch = min(lots, max(amount, wanted))
            least = max(1, amount - stock.left) if self._is_fresh(stock) else amount
            taken = await self._ask(what, key, per_s, least, max(least, stock.batch), forced)
            if not taken.amount:
                stock.refused_until_s = self._clock_s() + taken.wait_ms / 1000
                return taken.wait_ms / 1000
            stock.left = (stock.left if self._is_fresh(stock) else 0) + taken.amount - amount
            stock.drawn_s = self._clock_s()
            stock.until_s = stock.drawn_s + BURST_S
            return taken.wait_ms / 1000 if forced else 0.0

    def _spend(self, stock: _Stock, amount: int) -> bool:
        if stock.left < amount or not self._is_fresh(stock):
            return False
        stock.left -= amount
        return True

    def _is_fresh(self, stock: _Stock) -> bool:
        return self._clock_s() < stock.until_s

    async def _ask(self, what: What, key: str, per_s: float, least: int, most: int, forced: bool) -> Taken:
        if self._bucket is None or self._clock_s() < self._alone_until_s:
            raise _Away
        asked = self._bucket(what, key, per_s=per_s, burst_s=BURST_S, least=least, most=most, forced=forced)
        # Not cancelled when it is late: that would cost the connection which everybody shares.
        task = asyncio.ensure_future(asked)
        self._asking.add(task)
        task.add_done_callback(self._asked)
        await asyncio.wait([task], timeout=PATIENCE_S)
        if task.done() and not task.cancelled() and task.exception() is None:
            return task.result()
        if task.done() and not task.cancelled() and not isinstance(task.exception(), StoreError):
            task.result()
        self._alone_until_s = self._clock_s() + ALONE_S
        _log.warning("limits are held by this process alone for now: the store does not answer in time")
        raise _Away

    def _asked(self, task: "asyncio.Task[Taken]") -> None:
        self._asking.discard(task)
        if not task.cancelled():
            task.exception()  # a late one is nobody's any more
