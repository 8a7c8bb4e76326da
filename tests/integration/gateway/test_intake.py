"""Slow and endless requests: closed in time, and nobody else waits for them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from tests.support.gateway import RunningGateway
from tests.support.waiting import wait_until
from towline.gateway.intake import HEADER_BYTES, Intake

pytestmark = pytest.mark.store

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture(autouse=True)
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Intake, "header_s", 1.0)
    monkeypatch.setattr(Intake, "leftover_s", 1.0)


@asynccontextmanager
async def connection(gateway: RunningGateway) -> AsyncIterator[Streams]:
    host, _, port = gateway.url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.close()


async def dribble(streams: Streams, piece: bytes = b"a") -> bytes:
    """Sends `piece` over and over until the other side ends; what it said."""
    reader, writer = streams
    said = asyncio.create_task(_all(reader))
    while not said.done():
        try:
            writer.write(piece)
            await writer.drain()
        except OSError:
            break
        await asyncio.wait([said], timeout=0.05)
    async with asyncio.timeout(15):
        return await said


async def _all(reader: asyncio.StreamReader) -> bytes:
    said = b""
    try:
        while piece := await reader.read(2**16):
            said += piece
    except OSError:
        pass
    return said


async def test_headers_that_never_end(gateway: RunningGateway) -> None:
    async with AsyncExitStack() as stack, gateway.socket() as wire:
        slow = [await stack.enter_async_context(connection(gateway)) for _ in range(100)]
        for _, writer in slow[:50]:
            writer.write(b"GET /v1/socket HTTP/1.1\r\nHost: x\r\nX-Slow: ")
        async with asyncio.TaskGroup() as tasks:
            dribbling = [tasks.create_task(dribble(streams)) for streams in slow[:50]]
            silent = [tasks.create_task(_all(reader)) for reader, _ in slow[50:]]
            while not all(task.done() for task in (*dribbling, *silent)):
                assert (await gateway.http.get("/healthz")).status_code == 200  # others are served meanwhile
                await wire.send(op="ping", id="p")
                await wire.until("pong")
        assert {task.result() for task in (*dribbling, *silent)} == {b""}
    await wait_until(lambda: len(gateway.server.server_state.connections) <= 1, "the connections to be forgotten")


async def test_a_second_header_that_never_ends(gateway: RunningGateway) -> None:
    async with connection(gateway) as streams:
        streams[1].write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"200" in await streams[0].readline()
        said = await dribble(streams, b"G")
        assert b"200" not in said


async def test_empty_lines_between_requests_are_no_request(gateway: RunningGateway) -> None:
    async with connection(gateway) as streams:
        streams[1].write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"200" in await streams[0].readline()
        await dribble(streams, b"\r\n")


async def test_a_body_that_nobody_wants(gateway: RunningGateway) -> None:
    async with connection(gateway) as streams:
        streams[1].write(b"POST /nowhere HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n")
        assert b"404" in await dribble(streams)


async def test_a_header_too_large(gateway: RunningGateway) -> None:
    async with connection(gateway) as streams:
        streams[1].write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n")
        for _ in range(HEADER_BYTES // 1000 + 2):
            streams[1].write(b"X-Large: " + b"a" * 989 + b"\r\n")
        assert (await _all(streams[0])).startswith(b"HTTP/1.1 431 ")
    assert (await gateway.http.get("/healthz")).status_code == 200


async def test_patience_does_not_end_what_is_being_answered(gateway: RunningGateway) -> None:
    run = await gateway.start()
    page: dict[str, str | int] = {"after": "latest", "wait_ms": 2500}
    assert (await gateway.http.get(f"/v1/runs/{run}/events", params=page)).status_code == 200
    assert (await gateway.http.get("/healthz")).status_code == 200
