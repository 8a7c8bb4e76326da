"""A writer that never pauses and a crowd that comes whenever it likes, over every transport: all get the same log.

Each of the crowd comes with a cursor of its own, from the start to the newest, and some are cut off and come back. All
must get what follows their cursor, without a gap or a repeat, byte for byte as it stands in the log: also when not one
notice arrives and news is only found by looking at the heads of the logs, once a second, and when notices have holes.
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.support.deaf import deaf_store
from tests.support.gateway import Hand, RunningGateway, running_gateway, token
from tests.support.readers import READERS, Reader
from tests.support.soak import SOAK
from tests.support.waiting import wait_until
from towline.gateway.limits import Allowances
from towline.protocol.cursor import START, Cursor
from towline.protocol.limits import STORE_PAGE_EVENTS
from towline.protocol.store.api import LogPage

pytestmark = pytest.mark.store

CROWD: Final = 500
BURSTS: Final = 12
DEAF_S: Final = 60.0
DEAF_CROWD: Final = CROWD if SOAK else 90
SWEEPS: Final = 3
BETWEEN: Final = 4
"""How often is written before the next sweep is waited for."""
AT_ONCE: Final = 20
"""How many of the crowd are on their way in at the same time."""
UNBOUND: Final = Allowances(subscriptions_per_s=1_000_000)


class Crowd:
    """One run that is written, and who reads it from where."""

    def __init__(self, gateway: RunningGateway, run: str, hand: Hand) -> None:
        self.dice = random.Random(11)
        self.here: list[tuple[Reader, int]] = []
        """Each reader and the seq behind which it began."""
        self._gateway, self._run, self._hand = gateway, run, hand
        self._places = [(0, "0")]
        self._doors = asyncio.Semaphore(AT_ONCE)

    async def come(self, number: int) -> None:
        """One of the crowd, from its coming to the end of the run."""
        transport = sorted(READERS)[number % len(READERS)]
        reader = READERS[transport](self._gateway, self._run, token("ana"))
        async with self._doors:
            place = self.dice.choice((0, len(self._places) - 1, self.dice.randrange(len(self._places))))
            after, cursor = self._places[place]
            begin = await reader.join(cursor)
            assert (begin.recovery, begin.cursor) == ("resumed", cursor)
            self.here.append((reader, after))
        if self.dice.random() < 0.2:
            await reader.read(self.dice.randrange(1, 40))
            if not reader.has_ended:
                await reader.join(reader.cursor)
        await reader.read()

    async def write(self) -> None:
        """Appends a few events in one step."""
        count, size = self.dice.randrange(1, 13), self.dice.randrange(400)
        written = await self._hand.note("ü" * size, count)
        self._places.append((written.cursor.seq, str(written.cursor)))

    async def are_here(self, count: int) -> None:
        """Returns once so many have come."""
        await wait_until(lambda: len(self.here) >= count, "more to come", timeout_s=60)

    async def all_have_heard(self) -> None:
        """Returns once everybody who is here has all that is written by now."""
        head, here = self._places[-1][0], list(self.here)

        def is_told() -> bool:
            return all(after + len(reader.raws) >= head for reader, after in here)

        await wait_until(is_told, "everybody to have heard", timeout_s=60)

    async def end(self) -> None:
        """Writes on for a moment, and ends the run."""
        await self.write()
        await self._hand.complete()

    async def judge(self) -> None:
        """Everybody has what the log has."""
        log: list[bytes] = []
        while len(page := (await self._page(len(log))).entries):
            log += [entry.raw for entry in page]
        assert b'"run.completed"' in log[-1]
        for reader, after in self.here:
            assert reader.raws == log[after:], type(reader)

    async def _page(self, after: int) -> LogPage:
        where = START if after == 0 else Cursor(after)
        return await self._gateway.store.read_log(self._run, where, limit=STORE_PAGE_EVENTS)


@asynccontextmanager
async def crowd_on(store_url: str, folder: Path) -> AsyncIterator[Crowd]:
    """A gateway, a run, and nobody there yet."""
    async with running_gateway(store_url, folder, limits=UNBOUND) as gateway:
        gateway.is_never_pressed()
        run = await gateway.start()
        yield Crowd(gateway, run, await gateway.hold(run, ttl_ms=600_000))


async def test_500_who_come_while_it_is_written_get_the_same_log(redis_url: str, tmp_path: Path) -> None:
    async with crowd_on(redis_url, tmp_path) as crowd:
        async with asyncio.TaskGroup() as coming:
            for number in range(CROWD):
                coming.create_task(crowd.come(number))
            for burst in range(BURSTS):
                await crowd.write()
                await crowd.are_here(burst * CROWD // BURSTS)
            await crowd.end()
        await crowd.judge()


@pytest.mark.parametrize("share", [1.0, 0.5], ids=["every", "every other"])
async def test_they_do_also_when_notices_are_lost(redis_url: str, tmp_path: Path, share: float) -> None:
    async with deaf_store(redis_url, share) as store, crowd_on(store.url, tmp_path) as crowd:
        async with asyncio.TaskGroup() as coming:
            for number in range(DEAF_CROWD):
                coming.create_task(crowd.come(number))
            written = await (_minute_of if SOAK else _sweeps_of)(crowd)
            await crowd.end()
        await crowd.judge()
        assert store.dropped >= written * share / 2


async def _sweeps_of(crowd: Crowd) -> int:
    """Writes, and waits until it was found, some times over; how often it wrote."""
    for sweep in range(SWEEPS):
        await crowd.are_here(sweep * DEAF_CROWD // SWEEPS)
        for _ in range(BETWEEN):
            await crowd.write()
        await crowd.all_have_heard()
    return SWEEPS * BETWEEN


async def _minute_of(crowd: Crowd) -> int:
    """Writes on and on, whoever has heard of it; how often it wrote."""
    loop, count = asyncio.get_running_loop(), 0
    until_s = loop.time() + DEAF_S
    while loop.time() < until_s:
        await crowd.write()
        count += 1
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2 * crowd.dice.random()):
                await asyncio.Event().wait()
    await crowd.are_here(DEAF_CROWD)
    return count
