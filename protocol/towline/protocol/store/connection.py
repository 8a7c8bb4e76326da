"""The connections to the store: clients for calls and for what blocks, errors translated, the store's clock estimated.

Promises that what redis-py raises leaves as `StoreUnavailable` or `StoreFull`, and that `Clock.now_ms` is never
behind the store's own clock, so that a timer computed from it is never early.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, cast

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialWithJitterBackoff
from redis.exceptions import (
    BusyLoadingError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from towline.protocol.store.api import StoreError, StoreFull, StoreUnavailable
from towline.protocol.store.multiplex import Multiplexed

CALL_TIMEOUT_S: Final = 5.0
_RETRIES: Final = 3
"""Every write carries a nonce or a number, so a repeat of it is harmless."""


def open_client(url: str, *, timeout_s: float = CALL_TIMEOUT_S, retries: int = _RETRIES) -> redis.asyncio.Redis:
    """A client for `url` (`redis://`, `rediss://`, `unix://`) whose calls end within bounded time.

    `retries`: 0 for a reader that must learn of each lost connection.
    """
    return redis.asyncio.Redis.from_url(url, **_settings(timeout_s, retries))


def open_multiplexed(url: str, *, timeout_s: float = CALL_TIMEOUT_S) -> Multiplexed:
    """A client for `url` for any number of callers over two connections; see `multiplex` for what it refuses."""
    return cast("Multiplexed", Multiplexed.from_url(url, **_settings(timeout_s, _RETRIES)))


def _settings(timeout_s: float, retries: int) -> dict[str, Any]:
    return {
        "protocol": 2,
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "retry": Retry(ExponentialWithJitterBackoff(cap=0.5, base=0.02), retries),
    }


@contextmanager
def translated() -> Iterator[None]:
    """Turns what redis-py raises into a `StoreError`."""
    try:
        yield
    except (RedisConnectionError, RedisTimeoutError, BusyLoadingError, ReadOnlyError, OSError) as error:
        raise StoreUnavailable(f"the store does not answer: {error}") from error
    except OutOfMemoryError as error:
        raise StoreFull("the store has no memory left for growth; nothing was written") from error
    except NoPermissionError as error:
        raise StoreError(f"the store's user lacks a right: {error}") from error
    except ResponseError as error:
        if "OOM" in str(error):
            raise StoreFull("the store has no memory left for growth; nothing was written") from error
        raise StoreError(f"the store refused a call: {error}") from error
    except AttributeError as error:
        # redis-py, when another task loses the connection between its check and its write.
        if "NoneType" not in str(error):
            raise
        raise StoreUnavailable(f"the connection was lost: {error}") from error
    except RedisError as error:
        raise StoreUnavailable(f"the store does not answer: {error}") from error


class Clock:
    """Estimate of the store's clock from the replies that carry it."""

    _STALE_S: Final = 5.0

    def __init__(self) -> None:
        self._store_ms = 0
        self._sent_s = 0.0
        self._round_trip_s = float("inf")

    def observe(self, store_ms: int, sent_s: float) -> None:
        """The store said `store_ms` in answer to a call sent at `sent_s` of the monotonic clock.

        Measured from the sending, the estimate can only run ahead, by at most the round trip; so a slow answer
        is ignored while a quicker one is fresh.
        """
        now_s = time.monotonic()
        round_trip_s = now_s - sent_s
        if round_trip_s > 2 * self._round_trip_s and now_s - self._sent_s < self._STALE_S:
            return
        self._store_ms, self._sent_s, self._round_trip_s = store_ms, sent_s, round_trip_s

    @property
    def is_set(self) -> bool:
        return self._sent_s > 0.0

    def now_ms(self) -> int:
        """Milliseconds since 1970 by the store's clock, rounded up."""
        if not self.is_set:
            raise RuntimeError("the store's clock was never read; call sync_clock() first")
        return self._store_ms + int((time.monotonic() - self._sent_s) * 1000) + 1
