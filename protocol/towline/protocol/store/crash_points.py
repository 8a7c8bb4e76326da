"""Crash points: this process ends with SIGKILL just before or after the n-th call of a script.

For tests alone: whoever has `TOWLINE_CRASH_AT=before:commit:3` dies there, as by `kill -9`, if and only if the
store was initialised for tests. So the variable, left in some environment, can never end a process that works
on a real store. Which points there are follows from the scripts that ship.
"""

import logging
import os
import signal
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from towline.protocol.store.redis import RedisStore

VARIABLE: Final = "TOWLINE_CRASH_AT"

_log = logging.getLogger("towline.store")


class BadCrashPoint(ValueError):
    """The variable names no crash point; the message lists what there is."""


def names() -> list[str]:
    """Every crash point: `before:` and `after:` each script."""
    from towline.protocol.store.scripts import script_names

    return [f"{side}:{script}" for script in script_names() for side in ("before", "after")]


class CrashPoint:
    """A probe that counts the hits of one point and ends the process at the `hit`-th, once it is armed."""

    def __init__(self, point: str, hit: int) -> None:
        self.point = point
        self.hit = hit
        self.is_armed = False
        self._hits = 0

    def __call__(self, name: str) -> None:
        if name != self.point or not self.is_armed:
            return
        self._hits += 1
        if self._hits == self.hit:
            self._end()

    def _end(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def parse(text: str) -> CrashPoint:
    """`before:commit:3` → the third call of commit, before it is sent. Raises `BadCrashPoint`."""
    point, _, number = text.rpartition(":")
    if point not in names() or not number.isdigit() or int(number) < 1:
        raise BadCrashPoint(
            f"{VARIABLE}={text!r} is no crash point; write <point>:<n> with one of {', '.join(names())}"
        )
    return CrashPoint(point, int(number))


async def connect(url: str, environment: Mapping[str, str] = os.environ) -> "RedisStore":
    """`RedisStore.connect`, with the crash point that the environment names, on a store made for tests.

    Raises what `RedisStore.connect` raises, and `BadCrashPoint`.
    """
    from towline.protocol.store.redis import RedisStore  # here, since the command line wants no more than the name

    named = environment.get(VARIABLE)
    if not named:
        return await RedisStore.connect(url)
    crash_point = parse(named)
    store = await RedisStore.connect(url, probe=crash_point)
    if store.is_for_tests:
        crash_point.is_armed = True
    else:
        _log.warning("%s is set and ignored: this store was not initialised for tests", VARIABLE)
    return store
