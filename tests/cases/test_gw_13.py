"""Who takes a long catch-up slowly is not given up for being busy, and who is given up is told why.

The symptom: pings and pongs queued behind messages that were not read, so connections dropped with a keep-alive
timeout although both peers were alive.
"""

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateway import RunningGateway, running_gateway
from tests.support.waiting import wait_until

EVENTS = 400
COMMANDS = 200
UPGRADE = (
    b"GET /v1/socket HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: towline.v1\r\n\r\n"
)


@pytest.fixture
async def hasty(redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RunningGateway]:
    """A gateway that pings often and waits for no answer longer than 0.3 s."""
    monkeypatch.setattr("towline.gateway.server._PING_S", 0.1)
    monkeypatch.setattr("towline.gateway.server._PONG_S", 0.3)
    async with running_gateway(redis_url, tmp_path) as running:
        yield running


def the_socket(gateway: RunningGateway) -> Any:
    (found,) = [each for each in gateway.server.server_state.connections if hasattr(each, "writable")]
    return found


async def another_ping(served: Any) -> None:
    before = served.ping_sent_at
    await wait_until(lambda: served.ping_sent_at > before, "another ping")


async def closes(gateway: RunningGateway) -> list[str]:
    numbers = (await gateway.http.get("/metrics")).text
    return [line for line in numbers.splitlines() if line.startswith("towline_closes_total")]


async def test_a_slow_reader_takes_it_all_on_one_connection(hasty: RunningGateway) -> None:
    run = await hasty.start()
    hand = await hasty.hold(run)
    for _ in range(EVENTS // 20):
        await hand.note("x" * 3500, count=20)
    small = socket.socket()
    small.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)
    small.connect(("127.0.0.1", int(hasty.url.rpartition(":")[2])))
    async with hasty.socket(max_queue=1, ping_interval=None, sock=small) as slow:
        await slow.subscribe(run, after="0")
        served = the_socket(hasty)
        await wait_until(lambda: not served.writable.is_set(), "the reader to lag")
        for _ in range(3):  # three pings go unanswered, since they stand behind what was not read
            await another_ping(served)
        for n in range(COMMANDS):
            signal = {"name": "nudge", "payload": {"by": n}}
            await slow.send(op="command", id=f"c{n}", run=run, type="signal", data=signal, command_id=f"k{n}")
        await slow.until("live")
        while sum(frame["op"] == "receipt" for frame in slow.frames) < COMMANDS:
            await slow.next()
        answered = [frame["id"] for frame in slow.frames if frame["op"] == "receipt"]
        assert sorted(answered) == sorted(f"c{n}" for n in range(COMMANDS))
        seqs = [event["seq"] for event in slow.events()]
        assert seqs == list(range(1, len(seqs) + 1))
        assert len(seqs) >= EVENTS
        assert slow.connection.close_code is None
    assert await closes(hasty) == []


async def test_who_is_not_there_is_given_up_and_counted_as_that(hasty: RunningGateway) -> None:
    reader, writer = await asyncio.open_connection(*hasty.url.removeprefix("http://").split(":"))
    writer.write(UPGRADE)
    assert b"101" in await reader.readline()
    rest = await asyncio.wait_for(reader.read(), 20)  # it says nothing and answers no ping
    assert b"\x0f\xa1" + b"no answer to pings" in rest  # 4001
    assert await closes(hasty) == ['towline_closes_total{code="4001"} 1.0']
    writer.close()
