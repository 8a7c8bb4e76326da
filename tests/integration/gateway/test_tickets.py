"""Tickets: good for their kind, their run, their page and their time, and a socket's once."""

import asyncio
from pathlib import Path

import httpx
import pytest
from redis.asyncio import Redis

from tests.support.gateway import RunningGateway, running_gateway, token
from tests.support.sharing import ticket_of
from tests.support.waiting import wait_until
from towline.gateway import credentials

pytestmark = pytest.mark.store


async def test_a_socket_ticket_opens_one_socket(gateway: RunningGateway) -> None:
    run = await gateway.start()
    text = await ticket_of(gateway, **{"for": "socket"})
    async with gateway.socket(hello=False) as wire:
        await wire.send(op="hello", ticket=text)
        await wire.until("welcome")
        await wire.subscribe(run)
        async with gateway.socket(hello=False) as again:
            await again.send(op="hello", ticket=text)
            assert await again.closed() == 4501


async def test_a_socket_ticket_ends_soon(
    gateway: RunningGateway, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ticket_of(gateway, **{"for": "socket"})
    async with Redis.from_url(redis_url) as client:
        (left_ms,) = [await client.pttl(key) async for key in client.scan_iter("*:ticket:*")]
        assert 0 < left_ms <= 30_000
        monkeypatch.setattr(credentials, "SOCKET_MS", 50)
        late = await ticket_of(gateway, **{"for": "socket"})

        async def is_forgotten() -> bool:
            return len([key async for key in client.scan_iter("*:ticket:*")]) == 1

        await wait_until(is_forgotten, "the ticket to end")
    async with gateway.socket(hello=False) as wire:
        await wire.send(op="hello", ticket=late)
        assert await wire.closed() == 4501


async def test_of_two_who_race_with_one_ticket_one_wins(gateway: RunningGateway) -> None:
    async def use(text: str) -> str:
        async with gateway.socket(hello=False) as wire:
            await wire.send(op="hello", ticket=text)
            return str((await wire.next())["op"])

    for _ in range(5):
        text = await ticket_of(gateway, **{"for": "socket"})
        assert sorted(await asyncio.gather(*(use(text) for _ in range(4)))) == ["bye", "bye", "bye", "welcome"]


async def test_a_ticket_is_good_for_its_kind_its_run_and_its_origin(gateway: RunningGateway, tmp_path: Path) -> None:
    run, other = await gateway.start(), await gateway.start()
    events = await ticket_of(gateway, run=run, **{"for": "events"})
    socket = await ticket_of(gateway, **{"for": "socket"})
    artifact = await ticket_of(gateway, run=run, artifact="art_1", **{"for": "artifact"})
    async with httpx.AsyncClient(base_url=gateway.url) as bare:
        for _ in range(3):  # it works for reconnects
            assert (await bare.get(f"/v1/runs/{run}/events", params={"ticket": events})).status_code == 200
        wrong = [
            (f"/v1/runs/{other}/events", events), (f"/v1/runs/{run}", events), (f"/v1/runs/{run}/artifacts", events),
            (f"/v1/runs/{run}/events", socket), (f"/v1/runs/{run}/events", artifact), ("/v1/whoami", socket),
            (f"/v1/runs/{run}/artifacts/art_2", artifact), (f"/v1/runs/{other}/artifacts/art_1", artifact),
            (f"/v1/runs/{run}/artifacts", artifact), (f"/v1/runs/{run}/events", "tkt_" + "x" * 43),
            (f"/v1/runs/{run}/events", ""), (f"/v1/runs/{run}/events", token()),
        ]  # fmt: skip
        for path, text in wrong:
            assert (await bare.get(path, params={"ticket": text})).status_code == 401, path
        assert (await bare.get(f"/v1/runs/{run}/artifacts/art_1?ticket={artifact}")).status_code == 404
        twice = await bare.get(f"/v1/runs/{run}/events?ticket={events}&ticket={events}")
        assert twice.status_code == 401
    for text in (events, artifact):
        async with gateway.socket(hello=False) as wire:
            await wire.send(op="hello", ticket=text)
            assert await wire.closed() == 4501


async def test_a_ticket_of_one_page_is_none_of_another(redis_url: str, tmp_path: Path) -> None:
    pages = ("https://app.example", "https://other.example")
    async with running_gateway(redis_url, tmp_path, origins=pages) as gateway:
        run = await gateway.start()
        for origin, is_good in ((pages[0], True), (pages[1], False), ("https://app.example.evil", False)):
            text = await ticket_of(gateway, {"Origin": pages[0]}, **{"for": "socket"})
            async with gateway.socket(hello=False, origin=origin) as wire:
                if origin not in pages:
                    assert await wire.closed() == 4503
                    continue
                await wire.send(op="hello", ticket=text)
                if is_good:
                    await wire.until("welcome")
                else:
                    assert await wire.closed() == 4501
        events = await ticket_of(gateway, {"Origin": pages[0]}, run=run, **{"for": "events"})
        async with httpx.AsyncClient(base_url=gateway.url) as bare:
            for headers, status in (({"Origin": pages[0]}, 200), ({}, 200), ({"Origin": pages[1]}, 401)):
                answer = await bare.get(f"/v1/runs/{run}/events", params={"ticket": events}, headers=headers)
                assert answer.status_code == status, headers


async def test_a_ticket_needs_what_it_is_for(gateway: RunningGateway) -> None:
    run, foreign = await gateway.start(), "run_" + "0" * 26
    for body, code, field in (
        ({"for": "events"}, "bad_request", "run"),
        ({"for": "socket", "run": run}, "bad_request", "run"),
        ({"for": "events", "run": run, "artifact": "a"}, "bad_request", "artifact"),
        ({"for": "artifact", "run": run}, "bad_request", "artifact"),
        ({"for": "everything"}, "bad_request", "for"),
        ({}, "bad_request", "for"),
        ({"for": "events", "run": foreign}, "not_found", None),
    ):
        answer = await gateway.http.post("/v1/tickets", json=body)
        assert (answer.json()["code"], answer.json().get("field")) == (code, field), body
    answer = await gateway.http.post("/v1/tickets", json={"for": "events", "run": run}, headers=gateway.as_("eve"))
    assert answer.status_code == 404


async def test_a_ticket_gives_what_its_credential_gives_and_ends_with_it(gateway: RunningGateway) -> None:
    run = await gateway.start(grants={"user:vic": "viewer"})
    text = await ticket_of(gateway, gateway.as_("vic", ttl_s=2), run=run, **{"for": "events"})
    async with httpx.AsyncClient(base_url=gateway.url) as bare:
        seen = await bare.get(f"/v1/runs/{run}/events", params={"ticket": text})
        assert "grants" not in seen.json()["events"][0]["data"]

        async def status() -> int:
            return (await bare.get(f"/v1/runs/{run}/events", params={"ticket": text})).status_code

        async def has_ended() -> bool:
            return await status() == 401

        await wait_until(has_ended, "the ticket to end", timeout_s=20)
