"""Leaving: who is here is told when to come back, who still comes is told where to go, and all of it in time."""

import asyncio
import itertools
import signal
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from tests.integration.gateway.test_server import address_of, process
from tests.support.gateway import Wire, running_gateway, token
from tests.support.waiting import wait_until
from towline.gateway.services import Services
from towline.protocol.frames import SUBPROTOCOL

pytestmark = pytest.mark.store


async def test_sockets_leave_spread_and_in_the_order_of_return(redis_url: str, tmp_path: Path) -> None:
    given = {"drain_ms": 4000, "drain_window_ms": 60_000, "reconnects_per_s": 100}
    async with running_gateway(redis_url, tmp_path, **given) as gateway, AsyncExitStack() as stack:
        wires = [await stack.enter_async_context(gateway.socket()) for _ in range(40)]
        left: list[int] = []

        async def leave(wire: Wire) -> None:
            assert await wire.closed() == 4000
            left.append(wire.frames[-1]["retry_ms"])

        leaving = [asyncio.create_task(leave(wire)) for wire in wires]
        gateway.server.should_exit = True
        await asyncio.gather(*leaving)
        assert all(0 <= retry_ms <= 60_000 for retry_ms in left)
        assert len(set(left)) > 30
        assert max(left) - min(left) > 20_000
        # Each is closed 10 ms after the one before; loopback and this loop may swap neighbours, not more.
        assert sum(a > b for a, b in itertools.pairwise(left)) <= 5


async def test_who_still_comes_is_told_to_come_back(redis_url: str, tmp_path: Path) -> None:
    async with running_gateway(redis_url, tmp_path, drain_ms=10_000, reconnects_per_s=1) as gateway:
        run = await gateway.start()
        worker = gateway.as_("w", roles=("user", "worker"))
        body: dict[str, Any] = {"workflow": "toy", "input": {}, "queue": None}
        own = (await gateway.http.post("/v1/runs", json=body, headers=worker)).json()["run"]["id"]
        async with gateway.socket(), gateway.socket() as last:  # the second leaves a second after the first
            gateway.server.should_exit = True
            await wait_until(gateway.services.draining.is_set, "the drain")
            async with gateway.socket(hello=False) as late:
                assert await late.closed() == 4000
                assert [frame["op"] for frame in late.frames] == ["bye"]
            assert (await gateway.http.get("/readyz")).status_code == 503
            assert (await gateway.http.get("/healthz")).status_code == 200
            create = await gateway.http.post("/v1/runs", json={"workflow": "toy", "input": {}})
            assert (create.status_code, create.json()["code"]) == (503, "overloaded")
            assert create.json()["retry_after_ms"] > 0
            body = {"worker": "w", "workflows": ["toy"]}
            for path in ("/v1/queues/default/claims", f"/v1/runs/{own}/claim"):
                claim = await gateway.http.post(path, json=body, headers=worker)
                assert (claim.status_code, claim.json()["code"]) == (503, "overloaded")
                assert claim.json()["retry_after_ms"] > 0
            assert (await gateway.store.facts(run)).epoch == 0
            stream = await gateway.http.get(f"/v1/runs/{run}/events", headers={"Accept": "text/event-stream"})
            assert "event: bye" in stream.text
            assert stream.text.splitlines()[-1] == "" or "retry: " in stream.text
            page = await gateway.http.get(f"/v1/runs/{run}/events", params={"after": "latest", "wait_ms": 30_000})
            assert page.json()["events"] == []
            assert await last.closed() == 4000


@pytest.mark.processes
async def test_it_ends_in_time_although_a_peer_takes_nothing(redis_url: str, tmp_path: Path) -> None:
    async with process(redis_url, tmp_path, TOWLINE_GATEWAY_DRAIN_MS="500") as child:
        url = await address_of(child)
        reader, writer = await asyncio.open_connection(*url.removeprefix("http://").split(":"))
        writer.write(
            b"GET /v1/socket HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
            b"Sec-WebSocket-Protocol: towline.v1\r\n\r\n"
        )
        assert b"101" in await reader.readline()
        address = url.replace("http", "ws") + "/v1/socket"
        async with connect(address, subprotocols=[SUBPROTOCOL]) as connection:  # type: ignore[list-item]
            wire = Wire(connection)
            await wire.hello()
            child.send_signal(signal.SIGTERM)
            assert await wire.closed() == 4000
        async with asyncio.timeout(20):  # the other never answers its close
            assert await child.wait() == 0
        writer.close()


async def test_a_gateway_without_sockets_does_not_wait(redis_url: str, tmp_path: Path) -> None:
    services: Services | None = None
    async with running_gateway(redis_url, tmp_path, drain_ms=600_000) as gateway:
        services = gateway.services
    assert services.draining.is_set()
    with pytest.raises((httpx.ConnectError, ConnectionClosed)):
        await httpx.AsyncClient(base_url=gateway.url).get("/healthz")


async def test_a_rolling_restart_is_no_stampede_and_loses_nothing(redis_url: str, tmp_path: Path) -> None:
    planned, count = 40, 120
    given = {"drain_ms": 10_000, "drain_window_ms": 500, "reconnects_per_s": planned}
    loop = asyncio.get_running_loop()
    back_at_s: list[float] = []
    here: list[Wire] = []
    async with running_gateway(redis_url, tmp_path) as stays, running_gateway(redis_url, tmp_path, **given) as goes:
        run = await stays.start()
        hand = await stays.hold(run)

        async def watch() -> list[int]:
            async with goes.socket(token("root", roles=("operator",))) as wire:
                await wire.subscribe(run, after="0")
                here.append(wire)
                assert await wire.closed() == 4000
            bye, seen = wire.frames[-1], wire.events()
            back_at_s.append(loop.time() + bye["retry_ms"] / 1000)
            await asyncio.sleep(max(0.0, back_at_s[-1] - loop.time()))
            cursor = next((f["cursor"] for f in reversed(wire.frames) if f["op"] in ("events", "subscribed")), "0")
            async with stays.socket(token("root", roles=("operator",))) as wire:
                await wire.subscribe(run, after=cursor)
                await wire.until("end")
                return [event["seq"] for event in (*seen, *wire.events())]

        watching = [asyncio.create_task(watch()) for _ in range(count)]
        await wait_until(lambda: len(here) == count, "all to have come")
        goes.server.should_exit = True
        while len(back_at_s) < count and not any(task.done() for task in watching):
            await hand.note()
            await asyncio.sleep(0.05)
        await hand.complete()
        head = (await stays.store.facts(run)).head.seq
        assert all(seqs == list(range(1, head + 1)) for seqs in await asyncio.gather(*watching))
    # The window is as long as it takes for the planned number a second, although a shorter one was set.
    peak = max(sum(start <= at_s < start + 1 for at_s in back_at_s) for start in back_at_s)
    assert peak <= 2 * planned
    assert max(back_at_s) - min(back_at_s) > 0.5
