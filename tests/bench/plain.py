"""What one writes without us: a starlette socket per reader, the event encoded once and sent to each in turn.

    python -m tests.bench.plain PORT EVENTS_PER_S BYTES [SOCKET KEY]

With the store's unix socket and the key of a log, each reader is first sent that log, event by event. uvicorn with
uvloop, the sans-IO core, no compression. From the first line on stdin it publishes at the given rate.
"""

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import AsyncIterator
from typing import Final, cast

import redis.asyncio
import uvicorn
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

PORT, RATE, BYTES = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
_TEXT: Final = (
    '{{"op":"events","run":"r","events":[{{"seq":{seq},"data":{{"text":"t={ns} {fill}"}}}}],"cursor":"{seq}-1"}}'
)

readers = set[WebSocket]()


async def replay(websocket: WebSocket, address: str, key: str) -> None:
    async with redis.asyncio.Redis(unix_socket_path=address) as store:
        after = "-"
        while rows := cast("list[tuple[bytes, dict[bytes, bytes]]]", await store.xrange(key, after, "+", count=500)):
            for _, fields in rows:
                event = json.loads(fields[b"e"])
                await websocket.send_json({"op": "events", "run": "r", "events": [event]})
            after = f"({rows[-1][0].decode()}"
    await websocket.send_json({"op": "live", "run": "r"})


async def serve(websocket: WebSocket) -> None:
    await websocket.accept("towline.v1")
    readers.add(websocket)
    with contextlib.suppress(WebSocketDisconnect):
        if sys.argv[4:]:
            await replay(websocket, *sys.argv[4:6])
        while True:
            await websocket.receive_text()
    readers.discard(websocket)


async def publish() -> None:
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    begun_s, seq = time.monotonic(), 0
    while True:
        while seq < (time.monotonic() - begun_s) * RATE:
            seq += 1
            text = _TEXT.format(seq=seq, ns=time.monotonic_ns(), fill="x" * (BYTES - 100))
            for reader in tuple(readers):
                await reader.send_text(text)
        await asyncio.sleep(0.001)


@contextlib.asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    task = asyncio.create_task(publish())
    yield
    task.cancel()


class Server(uvicorn.Server):
    async def startup(self, sockets: object = None) -> None:
        await super().startup()
        print("READY", flush=True)


if __name__ == "__main__":
    app = Starlette(routes=[WebSocketRoute("/v1/socket", serve)], lifespan=lifespan)
    Server(
        uvicorn.Config(
            app, port=PORT, loop="uvloop", ws="websockets-sansio", ws_per_message_deflate=False, log_level="warning"
        )
    ).run()
