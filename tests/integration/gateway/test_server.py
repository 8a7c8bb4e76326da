"""The gateway as a process: how it binds, when it refuses to start, how it leaves."""

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from websockets.asyncio.client import connect, unix_connect

from tests.support.gateway import SECRET, Wire, running_gateway
from tests.support.server import StoreServer
from tests.support.waiting import wait_until
from towline.gateway.server import bind
from towline.gateway.settings import Settings
from towline.protocol.frames import SUBPROTOCOL
from towline.protocol.store.sweep import Sweeper

pytestmark = [pytest.mark.store, pytest.mark.processes]

PROGRAM = """
import logging
from towline.gateway.server import run_gateway
from towline.gateway.settings import from_environment
logging.basicConfig()
run_gateway(from_environment(), on_ready=lambda address: print(address, flush=True))
"""


@asynccontextmanager
async def process(store_url: str, folder: Path, **more: str) -> AsyncIterator[Process]:
    environment = {
        **os.environ,
        "TOWLINE_STORE_URL": store_url,
        "TOWLINE_JWT_SECRET": SECRET.decode(),
        "TOWLINE_DATA": str(folder),
        "TOWLINE_GATEWAY_PORT": "0",
        "TOWLINE_GATEWAY_DRAIN_MS": "1000",
        "TOWLINE_GATEWAY_DEVELOPMENT": "1",
        **more,
    }
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, env=environment, stdout=PIPE, stderr=PIPE
    )
    try:
        yield child
    finally:
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        await child.communicate()


async def address_of(child: Process) -> str:
    assert child.stdout is not None
    async with asyncio.timeout(30):
        return (await child.stdout.readline()).decode().strip()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_is_a_clean_leave(redis_url: str, tmp_path: Path, number: signal.Signals) -> None:
    async with process(redis_url, tmp_path) as child:
        url = await address_of(child)
        address = url.replace("http", "ws") + "/v1/socket"
        async with connect(address, subprotocols=[SUBPROTOCOL], origin=url) as connection:  # type: ignore[list-item, arg-type]
            wire = Wire(connection)
            await wire.hello()
            child.send_signal(number)
            assert await wire.closed() == 4000
        async with asyncio.timeout(20):
            assert await child.wait() == 0


async def test_a_unix_socket_is_private_and_its_remains_are_replaced(redis_url: str, tmp_path: Path) -> None:
    path = tmp_path / "gateway.sock"
    bind(Settings(store_url="", jwt_secret=b"", payloads=tmp_path, socket_path=path)).close()  # one that died
    async with process(redis_url, tmp_path, TOWLINE_GATEWAY_SOCKET_PATH=str(path)) as child:
        assert await address_of(child) == f"unix:{path}"
        assert path.stat().st_mode & 0o777 == 0o660
        async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=str(path)), base_url="http://x") as http:
            assert (await http.get("/readyz")).status_code == 200
        async with unix_connect(str(path), "ws://x/v1/socket", subprotocols=[SUBPROTOCOL]) as connection:
            await Wire(connection).hello()
        with pytest.raises(FileExistsError, match="another process"):
            bind(Settings(store_url="", jwt_secret=b"", payloads=tmp_path, socket_path=path))
        child.send_signal(signal.SIGTERM)
        async with asyncio.timeout(20):
            assert await child.wait() == 0
        assert not path.exists()


async def test_a_file_that_is_no_socket_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("data")
    with pytest.raises(FileExistsError, match="no socket"):
        bind(Settings(store_url="", jwt_secret=b"", payloads=tmp_path, socket_path=path))
    assert path.read_text() == "data"


async def test_a_store_that_loses_events_is_refused(tmp_path: Path) -> None:
    with StoreServer(tmp_path / "store", settings={"maxmemory-policy": "allkeys-lru"}) as server:
        async with process(server.url, tmp_path, TOWLINE_GATEWAY_DEVELOPMENT="0") as child:
            async with asyncio.timeout(30):
                _, said = await child.communicate()
            assert child.returncode == 3
            assert b"maxmemory-policy noeviction" in said
            assert b"Set 'appendfsync always'" in said


async def test_a_part_that_fails_for_good_ends_the_gateway(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(self: Sweeper) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(Sweeper, "run_forever", fail)
    async with running_gateway(redis_url, tmp_path) as gateway:
        await wait_until(lambda: gateway.server.should_exit, "the gateway to give up")
        assert gateway.server.has_failed
    assert "the gateway cannot go on" in caplog.text


async def test_the_page_is_served_strictly(redis_url: str, tmp_path: Path) -> None:
    async with running_gateway(redis_url, tmp_path) as gateway, httpx.AsyncClient(base_url=gateway.url) as anyone:
        page = await anyone.get("/")
        assert page.headers["content-type"].startswith("text/html")
        for name in ("app.js", "app.css"):
            assert name in page.text
            assert (await anyone.get(f"/{name}")).status_code == 200
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert page.headers["x-content-type-options"] == "nosniff"
    await wait_until(lambda: not gateway.server.server_state.tasks, "the server to have ended")
