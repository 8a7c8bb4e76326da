"""An event in asyncio's manner that is small while nobody waits: an idle socket holds several of them.

Promises what `asyncio.Event` promises. That one keeps a deque, three quarters of a kilobyte, also when it is never
used; so does `asyncio.Queue`, three times.
"""

import asyncio
from typing import Generic, TypeVar

T = TypeVar("T")


class Signal:
    """Set or not; `wait` returns once it is set."""

    __slots__ = ("_is_set", "_waiting")

    def __init__(self, *, is_set: bool = False) -> None:
        self._is_set = is_set
        self._waiting: list[asyncio.Future[None]] | None = None

    def is_set(self) -> bool:
        """Whether it is set."""
        return self._is_set

    def set(self) -> None:
        """Sets it; whoever waits goes on, also if it is cleared before they do."""
        self._is_set = True
        waiting, self._waiting = self._waiting, None
        for future in waiting or ():
            if not future.done():
                future.set_result(None)

    def clear(self) -> None:
        """Unsets it."""
        self._is_set = False

    async def wait(self) -> None:
        """Returns once it is set."""
        if self._is_set:
            return
        future = asyncio.get_running_loop().create_future()
        if self._waiting is None:
            self._waiting = []
        self._waiting.append(future)
        try:
            await future
        finally:
            self._forget(future)

    def _forget(self, future: "asyncio.Future[None]") -> None:
        if self._waiting is not None and future in self._waiting:
            self._waiting.remove(future)


class Mailbox(Generic[T]):
    """What one reader has not taken yet, in order."""

    __slots__ = ("_held", "_waiting")

    def __init__(self) -> None:
        self._held: list[T] = []
        self._waiting: asyncio.Future[None] | None = None

    def empty(self) -> bool:
        """Whether nothing waits."""
        return not self._held

    def put_nowait(self, item: T) -> None:
        """Adds one."""
        self._held.append(item)
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def get(self) -> T:
        """The oldest, once there is one."""
        while not self._held:
            self._waiting = asyncio.get_running_loop().create_future()
            try:
                await self._waiting
            finally:
                self._waiting = None
        return self._held.pop(0)
