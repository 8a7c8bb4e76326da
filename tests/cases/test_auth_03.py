"""No credential, no query and no payload stands in a log line, in an answer, in a number or in the store.

The symptom: a browser cannot set headers, so the token went into the query, and the access log, the line that says a
socket was accepted and error reports had it in clear.
"""

import contextlib
import logging
from pathlib import Path
from typing import Any

import httpx
import pytest
from redis.asyncio import Redis
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed
from websockets.typing import Origin

from tests.support.gateway import RunningGateway, running_gateway, token
from tests.support.sharing import bearer, share_of, ticket_of
from towline.protocol.frames import SUBPROTOCOL

CANARY = "c4nary-of-a-payload"
QUERY = "c4nary-of-a-query"
CLIENTS = ("websockets.client", "httpx", "httpcore", "asyncio", "markdown_it", "hypothesis")
"""Who logs on the side of the test, not of the gateway."""


class Credentials:
    """One of each kind, as text that must never be seen again."""

    def __init__(self) -> None:
        self.token = token("ana")
        self.expired = token("ana", ttl_s=-60)
        self.share = self.socket = self.events = self.artifact = ""

    async def make(self, gateway: RunningGateway, run: str) -> None:
        self.share = (await share_of(gateway, run))["token"]
        self.socket = await ticket_of(gateway, **{"for": "socket"})
        self.events = await ticket_of(gateway, run=run, **{"for": "events"})
        self.artifact = await ticket_of(gateway, run=run, artifact="art_1", **{"for": "artifact"})

    @property
    def texts(self) -> tuple[str, ...]:
        return (self.token, self.expired, self.share, self.socket, self.events, self.artifact)


async def use_all_over_http(gateway: RunningGateway, run: str, kept: Credentials) -> None:
    """Every kind at every place where somebody may put it, well or badly."""
    start = {"workflow": "toy", "input": {"source": {"path": 5, "x": CANARY}}}
    signal = {"type": "signal", "data": {"name": "nudge", "payload": {"by": CANARY}}}
    async with httpx.AsyncClient(base_url=gateway.url) as http:
        for text in kept.texts:
            for headers in ({}, bearer(text), {"Authorization": text}, {"Authorization": f"Basic {text}"}):
                query = {"ticket": text, "token": text, "label": QUERY, "after": QUERY}
                for path in (f"runs/{run}/events", "runs", f"runs/{text}", f"{text}/x", f"runs/{run}/artifacts/art_1"):
                    await http.get(f"/v1/{path}", params=query, headers=headers)
            for answer in (
                await http.post(f"/v1/runs?x={text}", json=start, headers=bearer(text)),
                await http.post(f"/v1/runs/{run}/commands", json=signal, headers=bearer(text)),
                await http.post("/v1/runs", content=f'{{"workflow": "{CANARY}"', headers=bearer(text)),
            ):
                assert answer.is_client_error
                assert not any(known in answer.text for known in kept.texts)
        stream = {"Accept": "text/event-stream"}
        query = {"ticket": kept.events, "after": "latest"}
        async with http.stream("GET", f"/v1/runs/{run}/events", params=query, headers=stream) as answer:
            assert answer.status_code == 200


async def use_all_on_sockets(gateway: RunningGateway, run: str, kept: Credentials) -> None:
    """Sockets that are let in, are turned away, and say what no frame is."""
    address = gateway.url.replace("http", "ws") + "/v1/socket"
    async with gateway.socket(kept.token) as wire:
        await wire.subscribe(run)
        await wire.send(op="command", id="c", run=run, type="signal", data={"name": CANARY}, command_id="k")
        await wire.until("receipt")
    for first, code in (
        ({"ticket": kept.socket}, None),
        ({"ticket": kept.socket}, 4501),
        ({"token": kept.expired}, 4501),
    ):
        async with gateway.socket(hello=False) as wire:
            await wire.send(op="hello", **first)
            if code is None:
                await wire.until("welcome")  # a second time, or after its time, it opens nothing
            else:
                assert await wire.closed() == code
    for text in kept.texts:
        for more in (
            {"origin": Origin("https://evil.example"), "additional_headers": bearer(text)},
            {"additional_headers": {"Authorization": f"Basic {text}", "Cookie": f"token={text}"}},
            {"subprotocols": [SUBPROTOCOL, f"bearer.{text}"[:100].replace("~", "-")]},
        ):
            options: dict[str, Any] = {"subprotocols": [SUBPROTOCOL], **more}
            async with connect(f"{address}?token={text}&ticket={text}", **options) as connection:
                with contextlib.suppress(ConnectionClosed):
                    await connection.send(f'{{"op":"hello","token":"{text}"')
                await connection.wait_closed()


async def break_it(gateway: RunningGateway, run: str, kept: Credentials, patch: pytest.MonkeyPatch) -> None:
    """A fault whose text quotes what it was about."""

    async def fail(*given: object, **more: object) -> None:
        raise RuntimeError(f"{kept.token} {kept.events} {CANARY} {given} {more}")

    patch.setattr(gateway.store, "load", fail)
    patch.setattr(gateway.store, "read_log", fail)
    broken = await gateway.http.get(f"/v1/runs/{run}?label={QUERY}", headers=bearer(kept.token))
    assert broken.status_code == 500
    assert CANARY not in broken.text
    async with gateway.socket(kept.token) as wire:
        await wire.send(op="subscribe", id="s", run=run, after="0")
        assert CANARY not in str(await wire.next())


async def test_nothing_of_it_is_seen_again(
    redis_url: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.DEBUG)
    kept = Credentials()
    async with running_gateway(redis_url, tmp_path) as gateway:
        run = await gateway.start()
        await kept.make(gateway, run)
        await use_all_over_http(gateway, run, kept)
        await use_all_on_sockets(gateway, run, kept)
        stored = await everything(redis_url)
        await break_it(gateway, run, kept, monkeypatch)
        numbers = (await gateway.http.get("/metrics")).text
    lines = [record for record in caplog.records if not record.name.startswith(CLIENTS)]
    written = "\n".join(logging.Formatter("%(name)s %(message)s").format(record) for record in lines)
    written += "".join(capfd.readouterr())
    assert "denied" in written, "it says that it turned somebody away"
    assert "RuntimeError" in written, "it says that something broke"
    for text in (*kept.texts, CANARY, QUERY):
        assert text not in written
        assert text not in numbers
    for text in kept.texts:
        assert text.encode() not in stored
        assert text.rpartition("~")[2].encode() not in stored


async def everything(url: str) -> bytes:
    """All that the store holds."""
    found: list[Any] = []
    async with Redis.from_url(url) as client:
        reads: dict[bytes, Any] = {
            b"hash": client.hgetall,
            b"stream": client.xrange,
            b"zset": lambda name: client.zrange(name, 0, -1),
            b"set": client.smembers,
            b"string": client.get,
        }
        async for key in client.scan_iter(count=1000):
            kind = await client.type(key)
            found += [key, await reads[kind](key) if kind in reads else None]
    return repr(found).encode()
