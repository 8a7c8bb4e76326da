"""500 random disconnects of a watcher, over WebSocket and long-poll, on two gateways in turn: all once, in order."""

import asyncio
import json
import random
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from tests.support.stack import Stack
from tests.support.waiting import wait_until
from towline.protocol import event_data as d
from towline.protocol.codec import NewEntry
from towline.protocol.events import Actor
from towline.protocol.store import api
from towline.protocol.store.redis import RedisStore

pytestmark = pytest.mark.processes

DISCONNECTS = 500
EVENTS = 3_000
SEED = 20_26


class Watcher:
    """Keeps only its cursor between connections, as a page would; each connection ends at a random point."""

    def __init__(self, stack: Stack, run: str) -> None:
        self.seqs: list[int] = []
        self.cursor = "0"
        self.disconnects = 0
        self.is_done = False
        self._stack = stack
        self._run = run
        self._random = random.Random(SEED)

    async def watch(self) -> None:
        while not self.is_done:
            url = self._stack.urls[self.disconnects % len(self._stack.urls)]
            # Slowly enough that the writer is not all behind us before the 500th disconnect.
            budget = self._random.randint(0, 2 * EVENTS // DISCONNECTS)
            if self._random.random() < 0.5:
                await self._socket(url, budget)
            else:
                await self._long_poll(url, budget)
            self.disconnects += 1

    def has_disconnected(self, times: int) -> bool:
        return self.disconnects >= times

    def _take(self, events: list[dict[str, Any]], cursor: str) -> None:
        self.seqs += [event["seq"] for event in events]
        self.cursor = cursor

    async def _socket(self, url: str, budget: int) -> None:
        address = url.replace("http", "ws") + "/v1/socket"
        headers = {"Authorization": f"Bearer {self._stack.token}"}
        connection = await connect(address, subprotocols=["towline.v1"], additional_headers=headers)  # type: ignore[list-item]
        try:
            subscribe = {"op": "subscribe", "id": "s", "run": self._run, "after": self.cursor}
            await connection.send(json.dumps(subscribe))
            before = len(self.seqs)
            while len(self.seqs) - before <= budget:
                # A quiet socket is cut too: the writer waits for disconnects.
                frame = json.loads(await asyncio.wait_for(connection.recv(), 0.2))
                assert frame["op"] not in ("problem", "bye"), frame
                if frame["op"] == "subscribed":
                    assert frame["recovery"] == "resumed"
                if frame["op"] == "events":
                    self._take(frame["events"], frame["cursor"])
                if frame["op"] == "live" and self._random.random() < 0.3:
                    break
                if frame["op"] == "end":
                    self.is_done = True
                    break
        except TimeoutError:
            return
        except ConnectionClosed as error:
            raise AssertionError(f"the server closed the socket: {error}") from error
        finally:
            connection.transport.abort()

    async def _long_poll(self, url: str, budget: int) -> None:
        async with httpx.AsyncClient(base_url=url, timeout=40) as client:
            query = {"after": self.cursor, "limit": str(max(1, budget)), "wait_ms": "200"}
            answer = await client.get(
                f"/v1/runs/{self._run}/events", params=query, headers={"Authorization": f"Bearer {self._stack.token}"}
            )
            page = answer.json()
            assert answer.status_code == 200, page
            if self._random.random() < 0.2:
                return  # the answer is lost on its way; the cursor stays where it was
            self._take(page["events"], page["cursor"])
            self.is_done = page["closed"]


async def _write(store: RedisStore, run: str, watcher: Watcher) -> None:
    """Appends as a lease holder would, in step with the watcher's disconnects, and closes after the 500th."""
    claimed = await store.claim(run, nonce="writer", holder="writer", version="1", ttl_ms=600_000)
    assert isinstance(claimed, api.Claimed)
    number, written = 1, 0

    def commit(*entries: NewEntry) -> api.Commit:
        return api.Commit(
            run=run, queue="default", fence=claimed.fence, number=number, seen=claimed.cursor,
            now_ms=store.now_ms(), entries=entries,
        )  # fmt: skip

    actor = Actor("agent", "wf:test")
    while watcher.disconnects < DISCONNECTS or written < EVENTS:
        size = 1 + written % 7
        await store.commit(
            commit(*(NewEntry("progress.noted", actor, d.ProgressNoted(text=f"{written + i}")) for i in range(size)))
        )
        number, written = number + 1, written + size
        owed = min(DISCONNECTS, int(written * DISCONNECTS / EVENTS) - 20)
        await wait_until(partial(watcher.has_disconnected, owed), "the watcher to keep up", timeout_s=60)
    await store.close(commit(NewEntry("run.completed", actor, d.RunCompleted(summary="", claims=[], verified=None))))


async def test_500_disconnects_on_two_gateways(tmp_path: Path) -> None:
    async with Stack(tmp_path / "stack", gateways=2, workers=0) as stack:
        store = await RedisStore.connect(stack.store.url)
        try:
            info = api.WorkflowInfo(name="test", version="1", queue="default", input_schema={})
            await store.announce("writer", [info])
            async with httpx.AsyncClient(base_url=stack.urls[0]) as client:
                answer = await client.post(
                    "/v1/runs", json={"workflow": "test", "input": None},
                    headers={"Authorization": f"Bearer {stack.token}"},
                )  # fmt: skip
            assert answer.status_code == 201, answer.text
            run = answer.json()["id"]
            watcher = Watcher(stack, run)
            async with asyncio.timeout(240), asyncio.TaskGroup() as group:
                group.create_task(watcher.watch())
                group.create_task(_write(store, run, watcher))
            head = (await store.heads([run]))[run].seq
        finally:
            await store.aclose()
    assert watcher.disconnects >= DISCONNECTS
    assert watcher.seqs == list(range(1, head + 1))
