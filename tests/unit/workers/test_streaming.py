"""When unfinished text is published and kept, and what a store that is away or full does to it: nothing to the work."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

from tests.support.waiting import wait_until
from towline.protocol.deltas import Piece
from towline.protocol.store import api
from towline.workers import streaming
from towline.workers.messages import COALESCED_BYTES
from towline.workers.streaming import Publisher

FENCE = api.Fence(1, "n")


class Peer:
    """A store that writes down what it is told. `failures` are raised one by one; `gate` holds calls back."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[Piece], list[Piece]]] = []
        self.forgotten: list[str] = []
        self.failures: list[Exception] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.waiting = 0

    async def publish_pieces(self, run: str, fence: api.Fence, pieces: list[Piece], texts: list[Piece]) -> None:
        assert (run, fence) == ("r", FENCE)
        self.waiting += 1
        await self.gate.wait()
        self.waiting -= 1
        if self.failures:
            raise self.failures.pop(0)
        self.calls.append((list(pieces), list(texts)))

    async def forget_texts(self, run: str, messages: list[str]) -> None:
        self.forgotten += messages

    @property
    def pieces(self) -> list[str]:
        return [piece.text for pieces, _ in self.calls for piece in pieces]

    @property
    def texts(self) -> list[str]:
        return [text.text for _, texts in self.calls for text in texts]


class Clock:
    """Seconds that pass only when a test says so."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@asynccontextmanager
async def publishing(clock: Any = None) -> AsyncIterator[tuple[Peer, Publisher]]:
    peer = Peer()
    publisher = Publisher(cast("Any", peer), "r", FENCE, **({"clock": clock} if clock else {}))
    publisher.messages.begin("s", 1)
    try:
        yield peer, publisher
    finally:
        await publisher.aclose()


def say(publisher: Publisher, text: str) -> None:
    publisher.messages.append("s", 1, text, "m", "text")


async def test_small_texts_are_joined_and_large_ones_do_not_wait() -> None:
    async with publishing() as (peer, publisher):
        for _ in range(20):
            say(publisher, "ab")
        await wait_until(lambda: peer.calls, "the first call")
        assert peer.pieces == ["ab" * 20]
        assert peer.texts == ["ab" * 20]  # who joins now gets it from the store


async def test_enough_text_leaves_before_its_time() -> None:
    clock = Clock()
    clock.now_s = -1e9  # by this clock no pause is ever over
    async with publishing(clock) as (peer, publisher):
        say(publisher, "x" * (COALESCED_BYTES - 1))
        await asyncio.sleep(0)
        assert peer.calls == []
        say(publisher, "y")
        await wait_until(lambda: peer.calls, "the call")
        assert [len(text) for text in peer.pieces] == [COALESCED_BYTES]


async def test_what_comes_while_a_call_is_on_its_way_leaves_with_the_next() -> None:
    async with publishing() as (peer, publisher):
        peer.gate.clear()
        say(publisher, "x" * COALESCED_BYTES)
        await wait_until(lambda: peer.waiting, "the call to be on its way")
        for _ in range(100):
            say(publisher, "y" * COALESCED_BYTES)
        peer.gate.set()
        await wait_until(lambda: "".join(peer.pieces).count("y") == 100 * COALESCED_BYTES, "all of it")
        assert len(peer.calls) == 2


async def test_a_text_that_changed_is_kept_again_a_second_later_though_nothing_follows() -> None:
    async with publishing() as (peer, publisher):
        say(publisher, "a")
        await wait_until(lambda: peer.texts == ["a"], "the first text to be kept")
        say(publisher, "b")
        await wait_until(lambda: peer.texts == ["a", "ab"], "the second")
        assert peer.pieces == ["a", "b"]


async def test_a_store_that_is_away_costs_pieces_but_not_the_text() -> None:
    async with publishing() as (peer, publisher):
        peer.failures = [api.StoreUnavailable("away"), api.StoreFull("full")]
        say(publisher, "lost")
        await wait_until(lambda: not peer.failures, "both failures", timeout_s=10)
        say(publisher, " and found")
        await wait_until(lambda: peer.texts[-1:] == ["lost and found"], "the text", timeout_s=10)


async def test_a_lost_lease_ends_it_quietly() -> None:
    async with publishing() as (peer, publisher):
        peer.failures = [api.Fenced("r")]
        say(publisher, "x")
        assert publisher.messages is not None
        await wait_until(lambda: not peer.failures, "the refusal")
        await publisher.settle()
        say(publisher, "y" * COALESCED_BYTES)
        await publisher.settle()
        assert peer.calls == []


async def test_nothing_of_a_finished_message_is_on_its_way_after_settling() -> None:
    async with publishing() as (peer, publisher):
        peer.gate.clear()
        say(publisher, "x" * COALESCED_BYTES)
        await wait_until(lambda: peer.waiting, "the call to be on its way")
        say(publisher, "y" * COALESCED_BYTES)
        publisher.messages.finish("s")
        settled = asyncio.create_task(publisher.settle())
        await asyncio.sleep(0)
        assert not settled.done()
        peer.gate.set()
        await settled
        assert [len(call[0]) for call in peer.calls] == [1]
        await publisher.aclose()
        assert "y" not in "".join(peer.pieces)


async def test_kept_texts_are_forgotten_once_their_step_has_ended() -> None:
    async with publishing() as (peer, publisher):
        publisher.restore([Piece("old", 1, 0, "x", step="before")])
        say(publisher, "a")
        await wait_until(lambda: peer.texts, "the text to be kept")
        await publisher.forget(["another"])
        assert peer.forgotten == []
        await publisher.forget(["s"])
        assert peer.forgotten == ["m"]
        await publisher.forget([], everything=True)
        assert peer.forgotten == ["m", "old"]


async def test_text_may_come_from_a_thread() -> None:
    async with publishing() as (peer, publisher):
        await asyncio.to_thread(say, publisher, "from a thread")
        await wait_until(lambda: peer.pieces == ["from a thread"], "the piece")


def test_calls_are_bounded_and_texts_come_last() -> None:
    pieces = [Piece("m", 1, n, "x" * 50_000) for n in range(5)]
    text = Piece("m", 1, 0, "y" * 20_000)
    calls = streaming._calls(pieces, [text])
    assert [(len(some), len(kept)) for some, kept in calls] == [(2, 0), (2, 0), (1, 1)]
