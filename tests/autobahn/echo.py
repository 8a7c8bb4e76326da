"""An echo on the same socket shell as the product's: its uvicorn settings, its protocol class, its way past ASGI.

    python -m tests.autobahn.echo PORT [MESSAGE_BYTES]

Text goes back as frames that we make ourselves, past ASGI, as the gateway sends; binary, which the gateway never
sends, goes through ASGI. MESSAGE_BYTES replaces the contract's bound, for the cases about large messages.
"""

import sys

import uvicorn
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from towline.gateway.outbound import TRANSPORT, Transport
from towline.gateway.prepared import text_frame
from towline.gateway.server import config_of


async def echo(websocket: WebSocket) -> None:
    """Sends back what comes, until the peer leaves."""
    transport: Transport = websocket.scope["extensions"][TRANSPORT]
    await websocket.accept()
    transport.open_writing()
    try:
        while True:
            message = await websocket.receive()
            if message["type"] == "websocket.disconnect":
                return
            if (text := message.get("text")) is None:
                await websocket.send_bytes(message["bytes"])
            elif not transport.write(text_frame(text.encode())):
                await websocket.send_text(text)
    except WebSocketDisconnect:
        pass


def main() -> None:
    """Serves on the port until SIGINT or SIGTERM."""
    config = config_of(Starlette(routes=[WebSocketRoute("/", echo)]))
    config.host, config.port = "127.0.0.1", int(sys.argv[1])
    if len(sys.argv) > 2:
        config.ws_max_size = int(sys.argv[2])
    uvicorn.Server(config).run()


if __name__ == "__main__":
    main()
