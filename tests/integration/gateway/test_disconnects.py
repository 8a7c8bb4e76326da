"""A watcher that is cut off again and again, on two gateways in turn: nothing lost, nothing twice."""

import asyncio
import contextlib
import random
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed

from tests.support.gateway import Hand, RunningGateway, running_gateway
from tests.support.soak import SOAK

pytestmark = pytest.mark.store

CUTS = 500 if SOAK else 100


class Watcher:
    """Follows one run with nothing but a cursor, wherever it is served."""

    def __init__(self, run: str, dice: random.Random) -> None:
        self.run = run
        self.dice = dice
        self.cursor = "0"
        self.seqs: list[int] = []
        self.has_ended = False

    async def over_socket(self, gateway: RunningGateway, frames: int) -> None:
        """Reads some frames, then is cut off in the middle of whatever comes."""
        async with gateway.socket() as wire:
            await wire.send(op="subscribe", id="s", run=self.run, after=self.cursor)
            for _ in range(frames):
                frame = await wire.next()
                assert frame.get("recovery", "resumed") == "resumed"
                if frame["op"] == "events":
                    self.take([event["seq"] for event in frame["events"]], frame["cursor"])
                if frame["op"] == "end":
                    self.has_ended = True
                    break
            wire.connection.transport.abort()

    async def over_pages(self, gateway: RunningGateway, pages: int) -> None:
        """Long-polls some pages; some of them are given up before the answer."""
        for _ in range(pages):
            params: dict[str, str | int] = {"after": self.cursor, "limit": self.dice.randrange(1, 9), "wait_ms": 2000}
            request = asyncio.create_task(gateway.http.get(f"/v1/runs/{self.run}/events", params=params))
            if self.dice.random() < 0.3:
                await asyncio.wait([request], timeout=self.dice.random() / 50)
                request.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await request
                continue
            body = (await request).json()
            assert body["recovery"] == "resumed"
            self.take([event["seq"] for event in body["events"]], body["cursor"])
            if body["closed"]:
                self.has_ended = True
                break

    def take(self, seqs: list[int], cursor: str) -> None:
        self.seqs += seqs
        self.cursor = cursor


@pytest.mark.parametrize("seed", [1, 2])
async def test_a_watcher_that_is_cut_off_misses_nothing(redis_url: str, tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    async with (
        running_gateway(redis_url, tmp_path / "a") as first,
        running_gateway(redis_url, tmp_path / "b") as second,
    ):
        run = await first.start()
        hand = await first.hold(run)
        stop = asyncio.Event()
        writing = asyncio.create_task(_write(hand, dice, stop))
        watcher = Watcher(run, dice)
        for cut in range(CUTS):
            gateway = (first, second)[cut % 2]
            if dice.random() < 0.5:
                with contextlib.suppress(ConnectionClosed):
                    await watcher.over_socket(gateway, dice.randrange(1, 8))
            else:
                await watcher.over_pages(gateway, dice.randrange(1, 4))
        stop.set()
        await writing
        while not watcher.has_ended:
            await watcher.over_socket(first, 1000)
        head = (await first.store.facts(run)).head
        assert watcher.seqs == list(range(1, head.seq + 1))
        assert watcher.cursor == str(head)
        assert head.seq > CUTS


async def _write(hand: Hand, dice: random.Random, stop: asyncio.Event) -> None:
    """Appends in bursts of any size until told to stop, then ends the run."""
    while not stop.is_set():
        await hand.note(count=dice.randrange(1, 6))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(dice.random() / 50):
                await stop.wait()
    await hand.complete()
