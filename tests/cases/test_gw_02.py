"""A replica that is told to stop ends in time, whoever holds on to it, and sends nobody back at the same moment.

The symptom: a restart waited for connections that never end; and once all sockets were cut at once, all came back at
once.
"""

import asyncio
import json
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect

from tests.integration.gateway.test_server import address_of, process
from tests.support.cable import Cable, cable
from tests.support.gateway import RunningGateway, Wire, token
from tests.support.transports import sse_blocks
from tests.support.waiting import wait_until
from towline.protocol.client import Client
from towline.protocol.frames import SUBPROTOCOL

pytestmark = [pytest.mark.store, pytest.mark.processes]

CLIENTS, SOCKETS, STREAMS, POLLS = 20, 80, 20, 10
WINDOW_MS = 2_000
ROOT = token("root", roles=("operator",))
HEADERS = {"Authorization": f"Bearer {ROOT}"}


def busiest(moments_ms: list[int], within_ms: int) -> int:
    """How many of the moments lie within a window of this size at most."""
    return max(sum(start <= moment < start + within_ms for moment in moments_ms) for start in moments_ms)


async def follow(url: str, run: str, seen: list[int]) -> None:
    """Our client: comes back by itself."""
    async with Client(url, ROOT) as towline:
        async for event in towline.events(run):
            seen.append(event.seq)


async def hold_a_socket(url: str, run: str, open_: list[Wire]) -> int:
    """Somebody else's client; when it was told to come back."""
    address = url.replace("http", "ws") + "/v1/socket"
    async with connect(address, subprotocols=[SUBPROTOCOL]) as connection:  # type: ignore[list-item]
        wire = Wire(connection)
        await wire.hello(ROOT)
        await wire.subscribe(run, after="latest")
        open_.append(wire)
        assert await wire.closed() == 4000
    return int(wire.frames[-1]["retry_ms"])


async def hold_a_stream(http: httpx.AsyncClient, run: str, open_: list[str]) -> int:
    """An EventSource; when it was told to come back."""
    headers = {**HEADERS, "Accept": "text/event-stream"}
    async with http.stream("GET", f"/v1/runs/{run}/events", headers=headers) as answer:
        async for block in sse_blocks(answer):
            if block.get("event") == "subscribed":
                open_.append(run)
            if block.get("event") == "bye":
                assert json.loads(block["data"])["code"] == 4000
                return int(block["retry"])
    raise AssertionError("the stream ended without a word")


async def hold_a_poll(http: httpx.AsyncClient, run: str, cursor: str) -> str:
    """A long-poll; the cursor that its answer gives."""
    query: dict[str, str | int] = {"after": cursor, "wait_ms": 30_000}
    page = (await http.get(f"/v1/runs/{run}/events", params=query, headers=HEADERS)).raise_for_status().json()
    assert page["events"] == []
    return str(page["cursor"])


async def test_it_ends_in_time_and_everyone_goes_on_elsewhere(
    gateway: RunningGateway, redis_url: str, tmp_path: Path
) -> None:
    run = await gateway.start()
    hand = await gateway.hold(run)
    written = await hand.note(count=5)
    settings = {"TOWLINE_GATEWAY_DRAIN_WINDOW_MS": str(WINDOW_MS), "TOWLINE_GATEWAY_SOCKETS": "200"}
    seen: list[list[int]] = [[] for _ in range(CLIENTS)]
    sockets: list[Wire] = []
    streams: list[str] = []
    async with AsyncExitStack() as stack:
        child = await stack.enter_async_context(process(redis_url, tmp_path, **settings))
        goes = await address_of(child)
        line: Cable = stack.enter_context(cable(goes))
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=goes, timeout=60, limits=httpx.Limits()))
        clients = [asyncio.create_task(follow(line.url, run, each)) for each in seen]
        leaving: list[asyncio.Task[int]] = [
            *(asyncio.create_task(hold_a_socket(goes, run, sockets)) for _ in range(SOCKETS)),
            *(asyncio.create_task(hold_a_stream(http, run, streams)) for _ in range(STREAMS)),
        ]
        polls = [asyncio.create_task(hold_a_poll(http, run, str(written.cursor))) for _ in range(POLLS)]
        await wait_until(_all_here(seen, sockets, streams), "everyone to be there")

        line.port = int(gateway.url.rpartition(":")[2])  # who comes back finds the other one
        child.send_signal(signal.SIGTERM)
        async with asyncio.timeout(20):
            assert await child.wait() == 0
        told = await asyncio.gather(*leaving)
        assert {await poll for poll in polls} == {str(written.cursor)}
        assert busiest(told, 100) < len(told) / 5
        assert max(told) <= WINDOW_MS

        await hand.note(count=5)
        last = await hand.complete()
        await asyncio.gather(*clients)
    assert all(each == list(range(1, last.cursor.seq + 1)) for each in seen)


async def test_who_loses_a_stream_without_a_word_is_not_back_at_the_same_moment(gateway: RunningGateway) -> None:
    run = await gateway.start()
    told: list[int] = []
    for _ in range(20):
        headers = {**HEADERS, "Accept": "text/event-stream"}
        async with gateway.http.stream("GET", f"/v1/runs/{run}/events", headers=headers) as answer:
            told.append(int((await anext(sse_blocks(answer)))["retry"]))
    assert all(1_000 <= retry_ms <= 3_000 for retry_ms in told)
    assert len(set(told)) > 10


def _all_here(seen: list[list[int]], sockets: list[Wire], streams: list[str]) -> Callable[[], Any]:
    return lambda: all(len(each) == 7 for each in seen) and len(sockets) == SOCKETS and len(streams) == STREAMS
