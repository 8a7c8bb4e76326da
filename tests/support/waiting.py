"""Waiting for something to become true, without sleeping for a guessed time.

Promises to come back as soon as the condition holds, and to fail with a sentence that says what was
waited for. The limit is there to end a hung test, never to assert a duration; TEST_TIMEOUT_FACTOR widens
every limit on a slow machine.
"""

import asyncio
import inspect
import os
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

T = TypeVar("T")

_FACTOR = float(os.environ.get("TEST_TIMEOUT_FACTOR", "1"))
_POLL_S = 0.01


@overload
async def wait_until(predicate: Callable[[], Awaitable[T]], what: str, timeout_s: float = 15.0) -> T: ...
@overload
async def wait_until(predicate: Callable[[], T], what: str, timeout_s: float = 15.0) -> T: ...
async def wait_until(predicate: Callable[[], Any], what: str, timeout_s: float = 15.0) -> Any:
    """Polls `predicate` (plain or async) until it is true, and returns what it returned.

    Raises AssertionError "waited 15 s for …" with the last value when the time is over.
    """
    deadline = time.monotonic() + timeout_s * _FACTOR
    while True:
        answer = predicate()
        if inspect.isawaitable(answer):
            answer = await answer
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(_gave_up(what, timeout_s, answer))
        await asyncio.sleep(_POLL_S)


def wait_until_sync(predicate: Callable[[], T], what: str, timeout_s: float = 15.0) -> T:
    """`wait_until` for tests without an event loop."""
    deadline = time.monotonic() + timeout_s * _FACTOR
    while True:
        answer = predicate()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(_gave_up(what, timeout_s, answer))
        time.sleep(_POLL_S)


def _gave_up(what: str, timeout_s: float, last: object) -> str:
    return f"waited {timeout_s * _FACTOR:g} s for {what}; the last answer was {last!r}"
