"""Crowds: many who send slowly, say nothing, or read a long run from its start cost little, and nobody else notices.

Small in each run; with `tests/run --soak` in the sizes that the plan names: 500 slow headers at a byte a second, 2,000
silent sockets, 1,000 readers of 50,000 events.
"""

import asyncio
import base64
import json
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import httpx
import psutil
import pytest
from redis.asyncio import Redis
from websockets.asyncio.client import connect

from tests.integration.gateway.test_server import address_of, process
from tests.support.gateway import RunningGateway, Wire, running_gateway, token
from tests.support.soak import SOAK
from towline.gateway.intake import Intake
from towline.gateway.limits import Allowances
from towline.protocol.frames import SUBPROTOCOL
from towline.protocol.limits import STORE_PAGE_EVENTS

pytestmark = pytest.mark.store

SLOW: Final = 500 if SOAK else 60
SILENT: Final = 2_000 if SOAK else 100
READERS, EVENTS = (1_000, 50_000) if SOAK else (60, 3_000)
FLAT_BYTES: Final = 8 * 2**20

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def opened(url: str) -> Streams:
    host, _, port = url.removeprefix("http://").partition(":")
    return await asyncio.open_connection(host, int(port))


@asynccontextmanager
async def served(url: str) -> AsyncIterator[None]:
    """While inside somebody uses the gateway, over a socket and over HTTP, and is answered."""
    address = url.replace("http", "ws") + "/v1/socket"
    async with (
        httpx.AsyncClient(base_url=url, timeout=60) as http,
        connect(address, subprotocols=[SUBPROTOCOL]) as connection,  # type: ignore[list-item]
    ):
        wire = Wire(connection)
        await wire.hello()

        async def use() -> None:
            while True:
                assert (await http.get("/healthz")).status_code == 200
                await wire.send(op="ping", id="p")
                await wire.until("pong")
                await asyncio.sleep(0.1)

        using = asyncio.create_task(use())
        try:
            yield
        finally:
            assert not using.done(), using
            using.cancel()


async def dribble(streams: Streams, every_s: float) -> bytes:
    """A header, a byte at a time, until the other side ends; what it said."""
    reader, writer = streams
    saying = asyncio.create_task(reader.read())
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: ")
    while not saying.done():
        writer.write(b"a")
        await asyncio.wait([saying], timeout=every_s)
    writer.close()
    try:
        return saying.result()
    except ConnectionError:
        return b""


async def test_slow_headers_are_ended_and_others_served(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not SOAK:
        monkeypatch.setattr(Intake, "header_s", 1.0)
    async with served(gateway.url), asyncio.timeout(Intake.header_s + 60):
        slow = [await opened(gateway.url) for _ in range(SLOW)]
        said = await asyncio.gather(*(dribble(each, 1.0 if SOAK else 0.1) for each in slow))
    assert set(said) == {b""}


async def silent(url: str) -> int:
    """A socket that is upgraded and says nothing; the code with which it is closed."""
    reader, writer = await opened(url)
    key = base64.b64encode(secrets.token_bytes(16)).decode()
    writer.write(
        f"GET /v1/socket HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13"
        f"\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Protocol: {SUBPROTOCOL}\r\n\r\n".encode()
    )
    assert b"101" in await reader.readline()
    await reader.readuntil(b"\r\n\r\n")
    while True:
        first, size = await reader.readexactly(2)
        if size == 126:
            size = int.from_bytes(await reader.readexactly(2))
        body = await reader.readexactly(size)
        if first == 0x88:
            writer.close()
            return int.from_bytes(body[:2])


@pytest.mark.processes
async def test_silent_sockets_are_closed_and_leave_no_memory_behind(redis_url: str, tmp_path: Path) -> None:
    given = {} if SOAK else {"TOWLINE_GATEWAY_HELLO_MS": "1500"}
    async with process(redis_url, tmp_path, **given) as child:
        url = await address_of(child)
        gateway = psutil.Process(child.pid)
        after = list[int]()
        async with served(url):
            for _ in range(4):
                async with asyncio.timeout(90):
                    codes = await asyncio.gather(*(silent(url) for _ in range(SILENT)))
                assert set(codes) == {4501}
                after.append(gateway.memory_info().rss)
    print(f"{SILENT} silent sockets; resident after each round, MiB: {[round(each / 2**20, 1) for each in after]}")
    # The first rounds fill what the process then keeps for the next; a leak grows with every round.
    assert after[-1] - after[1] < FLAT_BYTES, after


async def cold(gateway: RunningGateway, run: str) -> int:
    """Reads the run from its start to its head as it comes, without decoding it; how many events that were."""
    address = gateway.url.replace("http", "ws") + "/v1/socket"
    hello = {"op": "hello", "token": token()}
    subscribe = {"op": "subscribe", "id": "s", "run": run, "after": "0"}
    count = 0
    more = {"subprotocols": [SUBPROTOCOL], "compression": None, "max_size": 2**20, "open_timeout": 300}
    async with connect(address, **more) as connection:  # type: ignore[arg-type]
        for told in (hello, subscribe):
            await connection.send(json.dumps(told))
        while True:
            frame = await connection.recv(decode=False)
            if frame.startswith(b'{"op":"live"'):
                return count
            assert not frame.startswith((b'{"op":"bye"', b'{"op":"problem"', b'{"op":"unsubscribed"')), frame
            count += frame.count(b'"type":"progress.noted"')


async def test_cold_readers_of_a_long_run_cost_the_store_one_read_of_it(redis_url: str, tmp_path: Path) -> None:
    # One subject reads it all, and at a thousand times its length that is more than a subject gets in a second.
    limits = Allowances(subscriptions_per_s=10_000, replay_bytes_per_s=2**40)
    async with running_gateway(redis_url, tmp_path, limits=limits) as gateway:
        run = await gateway.start()
        hand = await gateway.hold(run)
        for _ in range(EVENTS // 100):
            await hand.note(count=100)
        async with Redis.from_url(redis_url) as client:
            await client.config_resetstat()
            turns = asyncio.Semaphore(200)  # one process plays them all, and serves them too

            async def one() -> int:
                async with turns:
                    return await cold(gateway, run)

            found = await asyncio.gather(*(one() for _ in range(READERS)))
            stats = await client.info("commandstats")
        assert set(found) == {EVENTS}
        reads = sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("xrange", "xrevrange"))
        pages = EVENTS // STORE_PAGE_EVENTS + 1
        print(f"{READERS} readers of {EVENTS} events, {pages} pages: {reads} reads of the log")
        # Those who come at the same time share each read; those who come one after the other share the pages, and
        # each looks at the head for itself, when it comes and when it gets there.
        assert reads <= 4 * pages + (2 * READERS if SOAK else READERS // 10)
