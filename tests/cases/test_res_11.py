"""A client cut again and again before anything happens keeps its place, also a browser's EventSource.

The symptom: the reconnect code forgot its position with each connection that brought nothing.
"""

import asyncio
import json

import pytest

from tests.support.gateway import RunningGateway, token
from tests.support.transports import TRANSPORTS, read, sse_blocks
from tests.support.waiting import wait_until
from towline.protocol.client.connect import Client
from towline.protocol.cursor import Cursor


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_three_empty_connections(gateway: RunningGateway, transport: str) -> None:
    run = await gateway.start()
    hand = await gateway.hold(run)
    await hand.note(count=5)
    cursor = (await read(gateway, transport, run, "7")).cursor
    for _ in range(3):
        answer = await read(gateway, transport, run, cursor)
        assert answer.seqs == []
        cursor = answer.cursor
    await hand.note()
    assert (await read(gateway, transport, run, cursor)).seqs == [8]


async def test_an_event_stream_gives_an_id_before_any_event(gateway: RunningGateway) -> None:
    run = await gateway.start()
    head = (await gateway.store.heads([run]))[run]
    headers = {"Accept": "text/event-stream"}
    async with gateway.http.stream("GET", f"/v1/runs/{run}/events", headers=headers) as response:
        async for block in sse_blocks(response):
            if "data" in block:
                assert json.loads(block["data"])["op"] == "subscribed"
                assert block["id"] == str(head)
                break


async def test_an_event_source_cut_before_any_event_comes_back_with_its_id(gateway: RunningGateway) -> None:
    """A browser asks the same address again, and says the last id that it was given."""
    run = await gateway.start()
    hand = await gateway.hold(run)
    await hand.note(count=5)
    address, headers = f"/v1/runs/{run}/events?after=7", {"Accept": "text/event-stream"}
    said, seqs = list[str](), list[int]()
    for connect in range(4):
        said.append(headers.get("Last-Event-ID", ""))
        async with gateway.http.stream("GET", address, headers=headers) as response:
            async for block in sse_blocks(response):
                headers["Last-Event-ID"] = block.get("id", headers.get("Last-Event-ID", ""))
                frame = json.loads(block.get("data", "{}"))
                seqs += [event["seq"] for event in frame.get("events", ())]
                if frame.get("op") == ("live" if connect < 3 else "events"):
                    break
        if connect == 2:
            await hand.note()
    seven = str((await gateway.store.read_log(run, Cursor(6), limit=1)).entries[0].cursor)
    assert said == ["", seven, seven, seven]
    assert seqs == [8]


async def test_a_client_cut_before_any_event_comes_back_with_its_cursor(gateway: RunningGateway) -> None:
    run = await gateway.start()
    hand = await gateway.hold(run)
    await hand.note(count=5)
    lives, seqs = 0, list[int]()
    async with Client(gateway.url, token()) as client:

        def cut() -> None:
            nonlocal lives
            lives += 1
            if lives <= 3:
                client.drop_link()

        async def watch() -> None:
            async for event in client.events(run, "7", on_live=cut):
                seqs.append(event.seq)

        watching = asyncio.create_task(watch())
        await wait_until(lambda: lives == 4, "the fourth connection")
        await hand.note()
        await hand.complete()
        await watching
    assert seqs == [8, 9]
