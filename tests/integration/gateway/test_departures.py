"""Five thousand sockets lose their gateway, which says goodbye or is killed: they come back spread, and miss nothing.

Only with `tests/run --soak`. Prints how many came back a second at most, how long each then waited for its first
event, and what that cost the store; asserts what must hold on any machine.
"""

import asyncio
import json
import random
import secrets
import signal
import time
from asyncio.subprocess import Process
from collections import Counter
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from redis.asyncio import Redis
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, WebSocketException

from tests.integration.gateway.test_server import address_of, process
from tests.support.gateway import TOY, Hand, token
from tests.support.waiting import wait_until
from towline.protocol.frames import SUBPROTOCOL
from towline.protocol.store.api import Claimed
from towline.protocol.store.redis import RedisStore

pytestmark = [pytest.mark.store, pytest.mark.processes, pytest.mark.soak]

SOCKETS: Final = 5_000
PLANNED_PER_S: Final = 250
BACKOFF_S: Final = (0.5, 20.0)
OPERATOR: Final = token("root", roles=("operator",))


class Client:
    """One client: watches a run on one gateway, and on the other once the first is gone."""

    def __init__(self, run: str, first: str, second: str) -> None:
        self.run, self.urls = run, [first, second]
        self.cursor, self.seqs = "0", list[int]()
        self.is_live = asyncio.Event()
        self.back_at_s = self.first_event_s = 0.0
        self.attempts = 0

    async def watch(self, gate: asyncio.Semaphore) -> None:
        """Until the run has ended."""
        wait_s = await self._once(self.urls[0], gate)
        while wait_s is not None:
            await asyncio.sleep(wait_s)
            wait_s = await self._once(self.urls[self.is_live.is_set()], gate)

    async def _once(self, url: str, gate: asyncio.Semaphore) -> float | None:
        """One connection; how long to wait before the next one."""
        is_return, began_s = self.is_live.is_set(), time.monotonic()
        low_s, high_s = BACKOFF_S
        self.attempts += is_return
        more: dict[str, Any] = {"subprotocols": [SUBPROTOCOL], "compression": None, "max_size": 2**20}
        try:
            async with gate:
                connection = await connect(url.replace("http", "ws") + "/v1/socket", **more, open_timeout=60)
            await connection.send(json.dumps({"op": "hello", "token": OPERATOR}))
            await connection.send(json.dumps({"op": "subscribe", "id": "s", "run": self.run, "after": self.cursor}))
            async for text in connection:
                frame = json.loads(text)
                match frame["op"]:
                    case "events":
                        self.seqs += [event["seq"] for event in frame["events"]]
                        self.cursor = frame["cursor"]
                        if is_return and not self.back_at_s:
                            self.back_at_s, self.first_event_s = began_s, time.monotonic() - began_s
                    case "live":
                        self.is_live.set()
                    case "bye":
                        return float(frame["retry_ms"]) / 1000
                    case "problem":  # pressed: ask again when it says
                        return float(frame["problem"]["retry_after_ms"]) / 1000
                    case "unsubscribed":
                        return float(frame["retry_ms"]) / 1000
                    case "end":
                        return None
                    case _:
                        pass
        except (ConnectionClosed, WebSocketException, OSError, TimeoutError):
            pass
        return random.uniform(0, min(high_s, low_s * 2**self.attempts))


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
async def test_those_who_lose_their_gateway_come_back(redis_url: str, tmp_path: Path, how: signal.Signals) -> None:
    given = {
        "TOWLINE_GATEWAY_DRAIN_MS": "20000",
        "TOWLINE_GATEWAY_RECONNECTS_PER_S": str(PLANNED_PER_S),
        "TOWLINE_GATEWAY_SUBSCRIPTIONS_PER_S": "100000",
    }
    store = await RedisStore.connect(redis_url)
    async with (
        process(redis_url, tmp_path / "stays", **given) as stays,
        process(redis_url, tmp_path / "goes", **given) as goes,
        Redis.from_url(redis_url) as redis,
    ):
        urls = [await address_of(goes), await address_of(stays)]
        await store.announce("tests", [TOY])
        async with httpx.AsyncClient(base_url=urls[1], headers={"Authorization": f"Bearer {token()}"}) as http:
            run = (await http.post("/v1/runs", json={"workflow": "toy", "input": {}})).json()["id"]
        claimed = await store.claim(run, nonce=secrets.token_hex(8), holder="tests", version="1", ttl_ms=600_000)
        assert isinstance(claimed, Claimed)
        hand = Hand(store, claimed, claimed.cursor)
        gate = asyncio.Semaphore(100)
        clients = [Client(run, *urls) for _ in range(SOCKETS)]
        watching = [asyncio.create_task(client.watch(gate)) for client in clients]
        await wait_until(lambda: all(client.is_live.is_set() for client in clients), "all to have come", 600)
        before = (await redis.info("stats"))["total_commands_processed"]
        gone_s = time.monotonic()
        await leave(goes, how)
        while any(not client.back_at_s for client in clients):
            assert time.monotonic() < gone_s + 300, sum(not client.back_at_s for client in clients)
            await hand.note()
            await asyncio.sleep(1.0)
        took_s = time.monotonic() - gone_s
        calls = (await redis.info("stats"))["total_commands_processed"] - before
        await hand.complete()
        async with asyncio.timeout(120):
            await asyncio.gather(*watching)
        head = (await store.facts(run)).head.seq
    await store.aclose()
    a_second = Counter(int(client.back_at_s - gone_s) for client in clients)
    first = sorted(client.first_event_s for client in clients)
    print(
        f"{how.name}: {SOCKETS} sockets back within {took_s:.0f} s, at most {max(a_second.values())} a second "
        f"({PLANNED_PER_S} planned), first event p50 {first[len(first) // 2] * 1000:.0f} ms, "
        f"p99 {first[len(first) * 99 // 100] * 1000:.0f} ms, {calls / took_s:.0f} store commands/s, "
        f"{sum(client.attempts for client in clients)} attempts"
    )
    gaps = sum(client.seqs != list(range(1, head + 1)) for client in clients)
    assert gaps == 0
    if how is signal.SIGTERM:
        assert max(a_second.values()) <= 2 * PLANNED_PER_S


async def leave(gateway: Process, how: signal.Signals) -> None:
    """Tells the gateway to go, or ends it."""
    gateway.send_signal(how)
    if how is signal.SIGKILL:
        await gateway.wait()
