"""Asking a store that is away again and again, for whoever was told that the answer comes later.

Promises that nobody asks without a pause, and that what heals by waiting is not an error. Leaves every other failure
to the caller.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from towline.protocol.store.api import StoreUnavailable

T = TypeVar("T")
_FIRST_S: Final = 0.1
_MAX_S: Final = 2.0


async def when_back(call: Callable[[], Awaitable[T]]) -> T:
    """The answer of `call`, once the store answers. Raises what else `call` raises."""
    delay_s = _FIRST_S
    while True:
        try:
            return await call()
        except StoreUnavailable:
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, _MAX_S)
