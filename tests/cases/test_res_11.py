"""A client cut again and again before anything happens keeps its place, also a browser's EventSource.

The symptom: the reconnect code forgot its position with each connection that brought nothing.
"""

import json

import pytest

from tests.support.gateway import RunningGateway
from tests.support.transports import TRANSPORTS, read, sse_blocks


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
