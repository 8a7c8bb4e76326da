"""Leaving without a stampede: when each socket is told goodbye, and when it may come back.

Promises that the moments at which clients may return are spread evenly at random over the window, which is at least
the one that is set and long enough that no more than the planned number come back in a second; that sockets are
closed in the order in which they may return, no faster than that rate unless the time to leave is short; and that
the plan ends within that time whatever the number.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar

from msgspec import Struct

T = TypeVar("T")

_CLOSING_SHARE: Final = 0.8
"""Of the time to leave: the rest is for peers to answer the last close."""


class Farewell(Struct, frozen=True):
    """One socket's turn: so long after the start it is closed, and so long after that it may come back."""

    after_ms: int
    retry_ms: int


def window_ms(count: int, *, at_least_ms: int, reconnects_per_s: int) -> int:
    """Over how long `count` clients are to come back."""
    return max(at_least_ms, count * 1000 // reconnects_per_s)


def plan(
    count: int, *, at_least_ms: int, reconnects_per_s: int, within_ms: int, draw: Callable[[int, int], int]
) -> list[Farewell]:
    """The turns of `count` sockets, in order. `draw(low, high)` gives a random whole number, both included."""
    window = window_ms(count, at_least_ms=at_least_ms, reconnects_per_s=reconnects_per_s)
    retries = sorted(draw(0, window) for _ in range(count))
    pace_ms = min(1000 / reconnects_per_s, _CLOSING_SHARE * within_ms / max(1, count))
    return [Farewell(int(turn * pace_ms), retry_ms) for turn, retry_ms in enumerate(retries)]


async def follow(
    turns: Sequence[Farewell], sockets: Sequence[T], say: Callable[[T, int], Coroutine[Any, Any, None]]
) -> None:
    """Says goodbye to `sockets` by their `turns`. One that does not take it holds up no other."""
    loop = asyncio.get_running_loop()
    start_s = loop.time()
    async with asyncio.TaskGroup() as tasks:
        for turn, peer in zip(turns, sockets, strict=True):
            if (left_s := start_s + turn.after_ms / 1000 - loop.time()) > 0:
                await asyncio.sleep(left_s)
            tasks.create_task(say(peer, turn.retry_ms))


def retry_ms(count: int, *, at_least_ms: int, reconnects_per_s: int) -> int:
    """When one of `count` clients that leave together may come back."""
    return random.randint(0, window_ms(count, at_least_ms=at_least_ms, reconnects_per_s=reconnects_per_s))
