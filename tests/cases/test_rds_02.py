"""A line to the store that dies without a word is found dead in bounded time; readers go on from where they stood.

The symptom: after a network cut without an end of the connection the reader of notices heard nothing for ever: no
error, no health check, and no new subscription once the network was back.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateway import Hand, RunningGateway, running_gateway
from tests.support.line import Line
from tests.support.soak import SOAK
from tests.support.transports import TRANSPORTS, follow
from tests.support.waiting import wait_until
from towline.gateway import about
from towline.protocol.store import connection, notices
from towline.protocol.store.api import Claimed
from towline.protocol.store.inboxes import Inboxes
from towline.protocol.store.redis import RedisStore


@pytest.fixture(autouse=True)
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store is given up a good deal sooner than in earnest, so that a test need not wait as long."""
    if not SOAK:
        defaults: Any = lambda call: call.__kwdefaults__  # noqa: E731
        monkeypatch.setitem(defaults(connection.open_multiplexed), "timeout_s", 1.0)
        monkeypatch.setitem(defaults(notices.Notices.__init__), "quiet_s", 0.3)
        monkeypatch.setitem(defaults(Inboxes.changes), "quiet_s", 0.3)
        monkeypatch.setattr(notices, "CALL_TIMEOUT_S", 1.0)
        monkeypatch.setattr(about, "_READY_S", 0.5)


@pytest.fixture
async def line(redis_url: str, tmp_path: Path) -> AsyncIterator[Line]:
    async with Line(tmp_path / "line", redis_url).open() as line:
        yield line


@pytest.fixture
async def gateway(line: Line, tmp_path: Path) -> AsyncIterator[RunningGateway]:
    """A gateway that reaches the store over the line."""
    async with running_gateway(line.url, tmp_path) as running:
        yield running


@pytest.fixture
async def beside(redis_url: str) -> AsyncIterator[RedisStore]:
    """The store by another way, as workers elsewhere reach it."""
    store = await RedisStore.connect(redis_url)
    yield store
    await store.aclose()


async def hold(store: RedisStore, run: str) -> Hand:
    claimed = await store.claim(run, nonce="n", holder="elsewhere", version="1", ttl_ms=600_000)
    assert isinstance(claimed, Claimed)
    return Hand(store, claimed, claimed.cursor)


class Watch:
    """Somebody who watches a run, and is kept or told."""

    def __init__(self, gateway: RunningGateway, transport: str, run: str) -> None:
        self.seqs: list[int] = []
        self.is_live = False
        self.task = asyncio.create_task(self._watch(gateway, transport, run))

    async def _watch(self, gateway: RunningGateway, transport: str, run: str) -> None:
        """A socket or stream stays as it is; a page that was refused is asked for again."""
        cursor = "0"
        while True:
            async with aclosing(follow(gateway, transport, run, cursor)) as frames:
                async for frame in frames:
                    if frame["op"] == "problem":
                        assert (transport, frame["problem"]["code"]) == ("pages", "unavailable")
                        break
                    assert frame["op"] in ("subscribed", "events", "live", "heartbeat", "end"), frame
                    assert frame.get("recovery", "resumed") == "resumed"
                    self.seqs += [event["seq"] for event in frame.get("events", [])]
                    cursor = frame.get("cursor", cursor)
                    self.is_live |= frame["op"] == "live"
                    if frame["op"] == "end":
                        return


async def reconnects(gateway: RunningGateway) -> float:
    lines = (await gateway.http.get("/metrics")).text.splitlines()
    return float(next(line for line in lines if line.startswith("towline_store_reconnects_total")).split(" ")[1])


async def kill_all(line: Line, store: RedisStore) -> None:
    """The store itself cuts the gateway's connections."""
    client: Any = store._client
    for kind in ("normal", "pubsub"):
        await client.client_kill_filter(_type=kind, skipme=True)


@pytest.mark.parametrize("cut", ["the whole line", "notices only", "by the store"])
async def test_whoever_watches_gets_all_of_it_after_a_cut(
    gateway: RunningGateway, line: Line, beside: RedisStore, cut: str
) -> None:
    run = await gateway.start()
    hand = await hold(beside, run)
    watching = [Watch(gateway, transport, run) for transport in TRANSPORTS]
    await wait_until(lambda: all(each.is_live for each in watching), "all to be live")
    before = await reconnects(gateway)

    async def is_ready() -> bool:
        return (await gateway.http.get("/readyz")).status_code == 200

    if cut == "the whole line":
        line.go_dead()
        assert not await is_ready(), "the cut is to be seen"
        await hand.note("into the cut", count=3)
        async with gateway.socket() as late:
            await late.send(op="subscribe", id="s", run=run)
            assert (await late.until("problem"))["problem"]["code"] == "unavailable"
        line.come_back()
    elif cut == "notices only":
        line.lose_notices()
    else:
        await kill_all(line, beside)
    await hand.note("afterwards", count=3)
    head = (await beside.heads([run]))[run].seq
    await wait_until(lambda: all(each.seqs[-1:] == [head] for each in watching), "all to come")
    await wait_until(is_ready, "the gateway to be ready again")

    async def is_mended() -> bool:
        return await reconnects(gateway) > before

    await wait_until(is_mended, "notices to be heard again")
    await hand.complete()
    await asyncio.gather(*(each.task for each in watching))
    assert all(each.seqs == list(range(1, head + 2)) for each in watching)


async def test_who_watches_lists_is_told_to_read_them_again(
    gateway: RunningGateway, line: Line, beside: RedisStore
) -> None:
    run = await gateway.start()
    hand = await hold(beside, run)
    async with gateway.socket() as wire:
        await wire.send(op="watch", id="w", feed="runs")
        await wire.until("watching", id="w")
        line.lose_notices()
        await hand.note("not heard by anyone")
        await wire.until("watching", id="w")  # so the client reads the list
        await hand.note("heard again")
        changed = await wire.until("changed", id="w")
        assert (changed["run"], changed["last_seq"]) == (run, (await beside.heads([run]))[run].seq)
