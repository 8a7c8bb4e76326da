"""The events of one run as an async iterator.

Promises seq 1, 2, 3 … each once and in order, over any number of reconnects, until the run ends. Events that
nobody takes are not hoarded: past a bound the subscription is held, and the log is read again from its place
once the backlog is taken. A gap is never silent: without `on_place` it is raised as `PlaceLost`.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from towline.protocol.client.actions import Closed, Delta, Dropped, Ended, Live, News, Placed, Received
from towline.protocol.client.failures import PlaceLost, failure_of
from towline.protocol.client.views import SeenEvent

_HOLD_EVENTS: Final = 2_000


class EventStream:
    """What `Client.events` returns: `async for event in stream`, or `async with stream:` to leave early.

    `cursor` is where to go on after a restart: it moves once every event before it was taken and the next one
    was asked for. `status` is the run's final status once the iteration has ended, else None.
    """

    def __init__(
        self,
        run: str,
        after: str,
        *,
        hold: Callable[[], None],
        release: Callable[[], None],
        close: Callable[[], None],
        on_place: Callable[[Placed], None] | None = None,
        on_live: Callable[[], None] | None = None,
        on_delta: Callable[[Delta], None] | None = None,
    ) -> None:
        self.run = run
        self.cursor = after
        self.status: str | None = None
        self._hold, self._release, self._close = hold, release, close
        self._on_place, self._on_live, self._on_delta = on_place, on_live, on_delta
        self._backlog = deque[SeenEvent | Placed | Live | Delta | Ended | Exception]()
        self._arrived = asyncio.Event()
        self._taken_cursor: str | None = None
        self._is_held = False
        self._is_over = False

    def receive(self, news: News) -> None:
        """Takes what the machine tells of this run."""
        match news:
            case Received(events=events):
                self._backlog.extend(events)
            case Placed() | Live() | Delta() | Ended():
                self._backlog.append(news)
            case Dropped() | Closed():
                self._backlog.append(failure_of(self.run, news))
            case _:
                return
        if len(self._backlog) > _HOLD_EVENTS and not self._is_held:
            self._is_held = True
            self._hold()
        self._arrived.set()

    def receive_failure(self, error: Exception) -> None:
        """Nothing more will come, for this reason."""
        self._backlog.append(error)
        self._arrived.set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SeenEvent:
        """The next event. Raises `StopAsyncIteration` after the last, and what `failures` lists."""
        if self._taken_cursor is not None:
            self.cursor, self._taken_cursor = self._taken_cursor, None
        while not self._is_over:
            while not self._backlog:
                if self._is_held:
                    self._is_held = False
                    self._release()
                self._arrived.clear()
                await self._arrived.wait()
            if (event := self._take()) is not None:
                return event
        raise StopAsyncIteration

    def _take(self) -> SeenEvent | None:
        item = self._backlog.popleft()
        match item:
            case SeenEvent():
                self._taken_cursor = item.cursor
                return item
            case Placed():
                if item.recovery != "resumed":
                    if self._on_place is None:
                        self.close()
                        raise PlaceLost(item)
                    self._on_place(item)
                self.cursor = item.cursor
            case Live():
                if self._on_live is not None:
                    self._on_live()
            case Delta():
                if self._on_delta is not None:
                    self._on_delta(item)
            case Ended():
                self.status, self._is_over = item.status, True
                self.close()
            case Exception():
                self.close()
                raise item
        return None

    def close(self) -> None:
        """Follow the run no more. Free to call twice."""
        self._is_over = True
        self._backlog.clear()
        self._close()

    async def aclose(self) -> None:
        """`close`, for `contextlib.aclosing`."""
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
