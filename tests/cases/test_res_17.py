"""A long poll that ran out of time gives a position, and reading consumes nothing.

The symptom: an empty answer had no position, so what came between two polls was lost; a lost answer was, too.
"""

import asyncio
from urllib.parse import urlsplit

from tests.support.gateway import RunningGateway, token


async def test_an_empty_poll_has_a_position(gateway: RunningGateway) -> None:
    run = await gateway.start()
    hand = await gateway.hold(run)
    address = f"/v1/runs/{run}/events"
    empty = (await gateway.http.get(address, params={"after": "latest", "wait_ms": "50"})).json()
    assert empty["events"] == []
    assert empty["cursor"] == str((await gateway.store.heads([run]))[run])
    await hand.note(count=2)
    for _ in range(2):  # the first answer was lost on its way; asking again brings the same
        page = (await gateway.http.get(address, params={"after": empty["cursor"], "wait_ms": "50"})).json()
        assert [event["seq"] for event in page["events"]] == [3, 4]


async def test_an_answer_that_was_written_and_never_read_is_asked_for_again(gateway: RunningGateway) -> None:
    run = await gateway.start()
    hand = await gateway.hold(run)
    start = (await gateway.http.get(f"/v1/runs/{run}/events", params={"after": "latest"})).json()["cursor"]
    await hand.note(count=2)
    address = urlsplit(gateway.url)
    request = f"GET /v1/runs/{run}/events?after={start} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token()}\r\n\r\n"
    for _ in range(3):
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        writer.write(request.encode())
        assert await reader.readexactly(12) == b"HTTP/1.1 200"  # it is on its way, and lost
        writer.transport.abort()
    page = (await gateway.http.get(f"/v1/runs/{run}/events", params={"after": start})).json()
    assert [event["seq"] for event in page["events"]] == [3, 4]
