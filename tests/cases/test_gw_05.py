"""Behind a proxy at a path, everything is found by whole segments, and every address that is told has the path.

The symptom: with the prefix `/product`, `/products` was taken for `s`; and a server told addresses without its prefix.
"""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from websockets.asyncio.client import connect
from websockets.typing import Origin

from tests.support.cable import cable
from tests.support.gateway import AGENT, RunningGateway, Wire, running_gateway, token
from tests.support.transports import sse_blocks
from towline.protocol import event_data as d
from towline.protocol.client import Client
from towline.protocol.codec import NewEntry
from towline.protocol.frames import SUBPROTOCOL

ROOT = "/agents"
_REQUEST_LINE = re.compile(rb"\A([A-Z]+ )" + ROOT.encode() + rb"(?=[/? ])/?")


def strip(data: bytes) -> bytes:
    """What a proxy that takes the path away makes of a request."""
    return _REQUEST_LINE.sub(rb"\1/", data)


@asynccontextmanager
async def proxied(redis_url: str, folder: Path, *, strips: bool) -> AsyncIterator[tuple[RunningGateway, str]]:
    """A gateway and the address below `ROOT` at which a proxy serves it."""
    with cable(change=strip if strips else bytes) as proxy:
        public = proxy.url + ROOT
        async with running_gateway(redis_url, folder, public_url=public) as gateway:
            proxy.port = int(gateway.url.rpartition(":")[2])
            yield gateway, public


@pytest.mark.parametrize("strips", [True, False], ids=["stripped", "left on"])
async def test_everything_is_found_through_a_proxy(redis_url: str, tmp_path: Path, strips: bool) -> None:
    bearer = {"Authorization": f"Bearer {token()}"}
    async with (
        proxied(redis_url, tmp_path, strips=strips) as (gateway, public),
        httpx.AsyncClient(base_url=public, headers=bearer, timeout=40) as http,
    ):
        await gateway.announce()
        for run in ("agents", "agents-2", "agents.v1"):
            made = await http.post("/v1/runs", json={"workflow": "toy", "input": {}, "id": run})
            assert (made.status_code, made.headers["Location"]) == (201, f"{ROOT}/v1/runs/{run}")
            assert (await http.get(public.removesuffix(ROOT) + made.headers["Location"])).json()["id"] == run
        hand = await gateway.hold("agents-2")
        sha256 = await gateway.services.payloads.of("agents-2").put(b"made")
        made_event = d.ArtifactCreated(artifact="a", name="a", media_type="text/plain", size=4, sha256=sha256)
        await hand.write(NewEntry("artifact.created", AGENT, made_event))
        assert (await http.get("/v1/runs/agents-2/artifacts/a")).content == b"made"

        sent = await http.post(
            "/v1/runs/agents-2/commands", json={"type": "signal", "data": {"name": "nudge", "payload": {"by": 1}}}
        )
        assert sent.status_code == 202, sent.text
        page = (await http.get("/v1/runs/agents-2/events", params={"after": "0", "wait_ms": "1000"})).json()
        assert [event["seq"] for event in page["events"]] == [1, 2, 3, 4]
        ticket = (await http.post("/v1/tickets", json={"for": "events", "run": "agents-2"})).json()["ticket"]
        address, query = f"{public}/v1/runs/agents-2/events", {"after": "0", "ticket": ticket}
        async with (
            httpx.AsyncClient() as bare,
            bare.stream("GET", address, params=query, headers={"Accept": "text/event-stream"}) as stream,
        ):
            assert (await anext(sse_blocks(stream)))["event"] == "subscribed"
        socket, origin = public.replace("http", "ws") + "/v1/socket", Origin(public.removesuffix(ROOT))
        async with connect(socket, subprotocols=[SUBPROTOCOL], origin=origin) as connection:  # type: ignore[list-item]
            wire = Wire(connection)
            await wire.hello()
            assert (await wire.subscribe("agents-2", after="0"))["head"] == 4
        async with Client(public, token()) as towline:
            await hand.complete()
            assert [event.seq async for event in towline.events("agents-2")] == [1, 2, 3, 4, 5]

        shared = (await http.post("/v1/runs/agents/shares", json={"expires_in_ms": 60_000})).json()
        assert shared["url"] == f"{public}/#token={shared['token']}&run=agents"
        assert (await http.get("/openapi.json")).json()["servers"] == [{"url": public}]
        served = (await http.get("/asyncapi.json")).json()["servers"]["gateway"]
        assert f"{served['protocol']}://{served['host']}{served['pathname']}/v1/socket" == socket
        await _console_is_whole(http, public)


async def _console_is_whole(http: httpx.AsyncClient, url: str) -> None:
    """Whether the page finds what it names, opened with a slash at the end and without."""
    for opened in (url, f"{url}/"):
        page = await http.get(opened, follow_redirects=True)
        assert page.status_code == 200
        named = re.findall(r'(?:href|src)="([^":]+)"', page.text)
        assert len(named) == 2
        for name in named:
            found = await http.get(str(page.url.join(name)))
            assert (found.status_code, str(found.url)) == (200, f"{url}/{name.rpartition('/')[2]}")


async def test_a_path_that_only_begins_alike_is_another(redis_url: str, tmp_path: Path) -> None:
    async with running_gateway(redis_url, tmp_path, public_url=f"https://towline.example{ROOT}") as gateway:
        run = await gateway.start(id="agentsx")
        for path in (
            "/agentsx/v1/runs",
            "/agentsx",
            f"{ROOT}x/v1/runs/{run}",
            f"{ROOT}{ROOT}x/runs",
            "/agents-2/v1/whoami",
        ):
            refused = await gateway.http.get(path)
            assert (refused.status_code, refused.json()["code"]) == (404, "not_found"), path
        assert (await gateway.http.get(f"{ROOT}/v1/runs/{run}")).json()["id"] == run
        assert (await gateway.http.get(f"/v1/runs/{run}")).json()["id"] == run
        gone = await gateway.http.get(ROOT)
        assert (gone.status_code, gone.headers["Location"]) == (308, f"{ROOT}/")
        async with gateway.socket(origin="https://towline.example"):
            pass


async def test_mounted_by_another_application_it_knows_its_path(gateway: RunningGateway) -> None:
    outer = Starlette(routes=[Mount(ROOT, gateway.server._app)])
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(outer), base_url="http://outer.example", headers=gateway.http.headers
    ) as http:
        await gateway.announce()
        made = await http.post(f"{ROOT}/v1/runs", json={"workflow": "toy", "input": {}, "id": "agents-2"})
        assert (made.status_code, made.headers["Location"]) == (201, f"{ROOT}/v1/runs/agents-2")
        assert (await http.get(made.headers["Location"])).json()["id"] == "agents-2"
        assert (await http.get(f"{ROOT}x/v1/runs")).status_code == 404
        shared = await http.post(f"{ROOT}/v1/runs/agents-2/shares", json={"expires_in_ms": 60_000})
        assert shared.json()["url"].startswith(f"http://outer.example{ROOT}/#token=")
        assert (await http.get(f"{ROOT}/openapi.json")).json()["servers"] == [{"url": ROOT}]
        await _console_is_whole(http, f"http://outer.example{ROOT}")
