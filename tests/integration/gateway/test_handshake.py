"""Who is let in at the door: Origins compared exactly, no cookie, nothing but a credential; nothing read before."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.gateway import RunningGateway, running_gateway, token

pytestmark = pytest.mark.store

PAGE = "https://app.example.com"
STRANGERS = (
    "https://evil", "null", PAGE + ".evil", "http://app.example.com", PAGE + ":444", PAGE + "/", PAGE.upper(),
    "https://xapp.example.com", "https://app.example.com@evil", "",
)  # fmt: skip


async def test_another_page_is_sent_away_before_anything_is_read(redis_url: str, tmp_path: Path) -> None:
    async with running_gateway(redis_url, tmp_path, origins=(PAGE,)) as gateway:
        for origin in STRANGERS:
            more: dict[str, Any] = {"additional_headers": {"Authorization": f"Bearer {token()}", "Origin": origin}}
            async with gateway.socket(hello=False, **more) as wire:
                assert await wire.closed() == 4503, origin
                assert [frame["op"] for frame in wire.frames] == ["bye"]
        async with gateway.socket(origin=PAGE) as wire:
            assert wire.frames[-1]["op"] == "welcome"


@pytest.mark.parametrize("name", ["token", "towline", "session", "Authorization", "__Host-token"])
async def test_a_cookie_is_no_credential(gateway: RunningGateway, name: str) -> None:
    run = await gateway.start()
    cookie = {"Cookie": f"{name}={token()}"}
    async with httpx.AsyncClient(base_url=gateway.url) as bare:
        for accept in ("application/json", "text/event-stream"):
            answer = await bare.get(f"/v1/runs/{run}/events", headers={**cookie, "Accept": accept})
            assert (answer.status_code, "set-cookie" in answer.headers) == (401, False)
    async with gateway.socket(hello=False, additional_headers=cookie) as wire:
        await wire.send(op="subscribe", id="s", run=run)
        assert await wire.closed() == 4500


@pytest.mark.parametrize("where", ["?token={}", "?access_token={}", "?authorization=Bearer%20{}", "?ticket={}"])
async def test_a_token_in_an_address_opens_nothing(gateway: RunningGateway, where: str) -> None:
    run = await gateway.start()
    async with httpx.AsyncClient(base_url=gateway.url) as bare:
        for path in (f"/v1/runs/{run}", f"/v1/runs/{run}/events", "/v1/whoami"):
            assert (await bare.get(path + where.format(token()))).status_code == 401


async def test_a_token_offered_as_subprotocol_is_neither_taken_nor_echoed(gateway: RunningGateway) -> None:
    async with gateway.socket(hello=False, subprotocols=["towline.v1", token()]) as wire:
        assert wire.connection.subprotocol == "towline.v1"
        await wire.send(op="ping", id="p")
        assert await wire.closed() == 4500


async def test_headers_that_say_who_one_is_say_nothing(gateway: RunningGateway) -> None:
    run = await gateway.start()
    for name in ("X-User", "X-Forwarded-User", "X-Remote-User", "Towline-Subject", "X-Forwarded-For"):
        answer = await gateway.http.get(f"/v1/runs/{run}", headers={**gateway.as_("bob"), name: "ana"})
        assert answer.status_code == 404
    for header in ("Basic YW5hOmFuYQ==", "Bearer", "bearer", token(), f"Token {token()}", "Bearer a b"):
        answer = await gateway.http.get("/v1/whoami", headers={"Authorization": header})
        assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (401, 'Bearer realm="towline"'), header
    twice = [("Authorization", f"Bearer {token()}"), ("Authorization", f"Bearer {token('bob')}")]
    async with httpx.AsyncClient(base_url=gateway.url) as bare:
        assert (await bare.get("/v1/whoami", headers=twice)).status_code == 401


async def test_an_expired_credential_ends_a_stream_and_a_wait(gateway: RunningGateway) -> None:
    run = await gateway.start()
    short = gateway.as_("ana", ttl_s=2)
    head = (await gateway.http.get(f"/v1/runs/{run}")).json()["cursor"]

    async def stream() -> str:
        async with gateway.http.stream(
            "GET", f"/v1/runs/{run}/events", headers={**short, "Accept": "text/event-stream"}
        ) as answer:
            return "".join([line async for line in answer.aiter_lines()])

    async def wait() -> int:
        path = f"/v1/runs/{run}/events?after={head}&wait_ms=4000"
        return (await gateway.http.get(path, headers=short)).status_code

    text, status = await asyncio.gather(stream(), wait())
    assert '"code":4005' in text
    assert status == 401
