"""Cursors in use: pages that go on and wait, and a store that was put back. Its table is in `test_cursor_table`."""

import asyncio
from typing import Any

import pytest
import redis.asyncio

from tests.support.gateway import Hand, RunningGateway
from tests.support.waiting import wait_until
from towline.protocol.store.keys import RunKeys

pytestmark = pytest.mark.store


async def run_of(gateway: RunningGateway, notes: int) -> tuple[str, Hand, list[str]]:
    """A run with `notes` + 2 events, and the cursor of each (index 0 is the start)."""
    run = await gateway.start()
    hand = await gateway.hold(run)
    await hand.note(count=notes)
    cursors = ["0"]
    for seq in range(1, notes + 3):
        page = (await gateway.http.get(f"/v1/runs/{run}/events", params={"after": str(seq), "limit": 1})).json()
        entry = (await gateway.http.get(f"/v1/runs/{run}/events", params={"after": cursors[-1], "limit": 1})).json()
        assert entry["events"][0]["seq"] == seq
        cursors.append(entry["cursor"])
        assert page["recovery"] == "resumed"
    return run, hand, cursors


async def test_pages_go_on_from_one_another_to_the_end(gateway: RunningGateway) -> None:
    run, hand, at = await run_of(gateway, 7)

    async def page(**params: Any) -> dict[str, Any]:
        answer = await gateway.http.get(f"/v1/runs/{run}/events", params=params)
        assert answer.status_code == 200, answer.text
        body: dict[str, Any] = answer.json()
        return body

    whole = await page()
    assert (whole["closed"], whole["recovery"], "recovery_code" in whole) == (False, "resumed", False)
    for after in (at[3], "3"):
        part = await page(after=after, limit=2)
        assert ([event["seq"] for event in part["events"]], part["cursor"]) == ([4, 5], at[5])
    await hand.complete()
    assert [(await page(after=a, limit=2))["closed"] for a in (at[7], at[8], "latest")] == [False, True, True]


async def test_a_page_waits_for_the_next_event(gateway: RunningGateway) -> None:
    run, hand, at = await run_of(gateway, 1)
    waiting = asyncio.create_task(
        gateway.http.get(f"/v1/runs/{run}/events", params={"after": at[3], "wait_ms": 30_000})
    )
    await wait_until(lambda: gateway.services.hub.followed, "the page to wait")
    await hand.note("now")
    body = (await waiting).json()
    assert [event["seq"] for event in body["events"]] == [4]
    shown = asyncio.create_task(
        gateway.http.get(f"/v1/runs/{run}", params={"after": body["cursor"], "wait_ms": 30_000})
    )
    await wait_until(lambda: gateway.services.hub.followed, "the Run to wait")
    await hand.note("again")
    assert (await shown).json()["last_seq"] == 5
    empty = (await gateway.http.get(f"/v1/runs/{run}/events", params={"after": "latest", "wait_ms": 1})).json()
    assert (empty["events"], empty["recovery"]) == ([], "resumed")
    assert empty["cursor"].startswith("5-")
    await wait_until(lambda: gateway.services.hub.followed == 0, "nothing to be followed any more")


async def test_a_store_put_back_sends_clients_away_to_ask_again(gateway: RunningGateway, redis_url: str) -> None:
    run, hand, at = await run_of(gateway, 6)
    keys = RunKeys.of(run)
    async with gateway.socket() as wire, redis.asyncio.Redis.from_url(redis_url) as client:
        await wire.subscribe(run, after="0")
        await wire.until("live")
        saved = {key: await client.dump(key) for key in (keys.log, keys.run, keys.side, keys.private)}
        await hand.note("lost", count=3)
        lost = str((await gateway.store.heads([run]))[run])
        await wire.until("events", cursor=lost)
        for key, value in saved.items():
            assert value is not None
            await client.restore(key, 0, value, replace=True)
        assert await wire.closed() == 4010
        assert wire.frames[-1]["op"] == "bye"
    async with gateway.socket() as wire:
        subscribed = await wire.subscribe(run, after=lost)
        assert (subscribed["recovery"], subscribed["recovery_code"]) == ("reset", "ahead")
        await wire.until("live")
        assert [event["seq"] for event in wire.events()] == list(range(1, 9))
        assert wire.frames[-1]["cursor"] == at[8]
