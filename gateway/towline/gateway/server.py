"""The gateway as a process: uvicorn, told by us how to bind, how to serve sockets, and how to leave.

Promises that nothing of a request stands in a log line, that sockets are neither compressed nor larger than the
contract's frames, and that SIGTERM and SIGINT end the process cleanly: no new connection, `bye` and 4000 for every
socket, waiting answers now, then the end within the drain time. Leaves what is served to `app`.
"""

import asyncio
import contextlib
import fcntl
import gc
import logging
import os
import signal
import socket
import stat
import struct
import termios
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Final, cast

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.types import ASGIApp
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request

from towline.gateway.app import create_app, drain
from towline.gateway.intake import Intake
from towline.gateway.mounting import origin_of
from towline.gateway.outbound import TRANSPORT
from towline.gateway.settings import Settings
from towline.gateway.signal import Mailbox, Signal
from towline.protocol.closecodes import CloseCode
from towline.protocol.limits import CLIENT_FRAME_BYTES, EVENTS_FRAME_BYTES

_log: Final = logging.getLogger("towline.gateway")

_PING_S: Final = 25.0
_PONG_S: Final = 60.0
"""Longer than what ends a socket that takes nothing, so that this end has the code that says why."""
_LINGER_S: Final = 5.0
_FINISH_S: Final = 3
"""How long answers that are under way may take once the sockets have left."""
_ALLOCATED: Final = 20_000
"""After so many objects more the youngest are looked through for cycles."""
_UNSENT_BYTES: Final = 2 * EVENTS_FRAME_BYTES
"""What the kernel may hold of a socket beside what is on its way."""
_HIGH_WATER_BYTES: Final = EVENTS_FRAME_BYTES
_LOW_WATER_BYTES: Final = _HIGH_WATER_BYTES // 4


class SocketProtocol(WebSocketsSansIOProtocol):
    """uvicorn's protocol, which shows itself to the application as `outbound.Transport`, an ASGI extension.

    Frames that are ready go to the transport as they are, past ASGI and the sans-IO core: neither compresses nor
    keeps count of what is sent.
    """

    has_heard = False
    """Whether anything came since the last ping."""
    may_write = False
    """Whether the peer was upgraded, is there, does not lag, and was not told goodbye."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        # Ours are small: see `signal`.
        self.queue = cast("Any", Mailbox[Any]())
        self.writable = cast("Any", Signal(is_set=True))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keeps the kernel from hoarding what the peer does not take: the log is the buffer."""
        super().connection_made(transport)
        self.transport.set_write_buffer_limits(high=_HIGH_WATER_BYTES, low=_LOW_WATER_BYTES)
        connection = transport.get_extra_info("socket")
        if connection is not None and connection.family != socket.AF_UNIX and hasattr(socket, "TCP_NOTSENT_LOWAT"):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing can be written any more."""
        self.may_write = False
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """The peer lags."""
        self.may_write = False
        super().pause_writing()

    def resume_writing(self) -> None:
        """The peer took most of what waited."""
        self.may_write = self._is_open()
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        """The peer is there."""
        self.has_heard = True
        super().data_received(data)

    def send_keepalive_ping(self) -> None:
        """Asks whether the peer is there."""
        self.has_heard = False
        super().send_keepalive_ping()

    def keepalive_timeout(self) -> None:
        """No pong came. It may stand behind what the peer has yet to take, or what it says; else nobody is there."""
        self.pong_timer = self.pending_ping_payload = None
        if self.has_heard or not self.writable.is_set():  # whether one that lags takes anything, `outbound` finds out
            self.send_keepalive_ping()
        elif self._is_open():
            app: Any = self.config.app
            if isinstance(app, Starlette):
                app.state.services.metrics.closed(CloseCode.HEARTBEAT_LOST)
            self.close_now(CloseCode.HEARTBEAT_LOST, "no answer to pings: heartbeat lost")

    def handle_connect(self, event: Request) -> None:
        """Adds the extension before the application runs."""
        super().handle_connect(event)
        if hasattr(self, "scope"):
            scope: Any = self.scope
            scope["extensions"][TRANSPORT] = self

    def open_writing(self) -> None:
        """See `outbound.Transport`. What the upgrade said is forgotten: an open socket does not need it."""
        self.may_write = self._is_open() and self.writable.is_set()
        unused: Any = None
        self.request.headers.clear()  # the core's parser holds on to the request itself
        self.request = self.response = self.client = self.server = unused
        cast("dict[str, Any]", self.scope).clear()

    def close_writing(self) -> None:
        """See `outbound.Transport`."""
        self.may_write = False

    def write(self, wire: bytes) -> bool:
        """See `outbound.Transport`."""
        if not self.may_write:
            return False
        try:
            self.transport.write(wire)
        except RuntimeError:  # uvloop, for a connection that broke and was not yet said to be lost
            self.may_write = False
            return False
        return True

    async def ready(self) -> None:
        """See `outbound.Transport`."""
        await self.writable.wait()

    def buffered_bytes(self) -> int:
        """See `outbound.Transport`."""
        waiting = int(self.transport.get_write_buffer_size())
        connection = self.transport.get_extra_info("socket")
        if connection is not None:
            with contextlib.suppress(OSError, ValueError):
                (unsent,) = struct.unpack("i", fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, bytes(4)))
                waiting += unsent
        return waiting

    def _is_open(self) -> bool:
        return self.handshake_complete and not (self.close_sent or self.disconnected or self.transport.is_closing())

    def close_now(self, code: int, reason: str) -> None:
        """See `outbound.Transport`."""
        self.may_write = False
        if self.close_sent or self.transport.is_closing():
            return
        self.conn.send_close(code, reason)
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        self.transport.close()
        self.loop.call_later(_LINGER_S, self._abort)

    def _abort(self) -> None:
        if not self.disconnected:
            self.transport.abort()


class GatewayServer(uvicorn.Server):
    """uvicorn's server with our way of leaving. `on_ready` is called once, when connections are taken."""

    def __init__(
        self, config: uvicorn.Config, app: Starlette, on_ready: Callable[[], None] | None, *, drain_s: float
    ) -> None:
        super().__init__(config)
        self._drain_s = drain_s
        self._app = app
        self._on_ready = on_ready
        self.has_failed = False

    def give_up(self) -> None:
        """Leaves because a part without which nothing works has failed."""
        self.has_failed = True
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Starts to serve."""
        await super().startup(sockets)
        if self.started and self._on_ready is not None:
            self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Says goodbye within the time for it, then lets uvicorn finish what else is being answered."""
        # Connections are taken until the last socket left: who still comes is told where to go, not left hanging.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._drain_s):
                await drain(self._app)
                await self._app.state.sockets.all_gone()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Takes SIGTERM and SIGINT as the wish to leave; uvicorn would raise them again afterwards."""

        def leave(number: int, frame: FrameType | None) -> None:
            self.should_exit = True

        previous = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)


def bind(settings: Settings) -> socket.socket:
    """The listening socket. Raises `OSError` when the address is taken."""
    if settings.socket_path is not None:
        return _bind_unix(settings.socket_path)
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # With its protocol named, asyncio sets TCP_NODELAY on what it accepts; else each small answer waits for an ACK.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((settings.host, settings.port))
    except BaseException:
        listener.close()
        raise
    return listener


def _bind_unix(path: Path) -> socket.socket:
    """A unix socket that only its owner and group reach. One that nobody listens on any more is replaced."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise FileExistsError(f"{path} is there and is no socket")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:
                path.unlink()
            else:
                raise FileExistsError(f"another process listens on {path}")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(path))
        os.chmod(path, 0o660)
    except BaseException:
        listener.close()
        raise
    return listener


def address_of(listener: socket.socket) -> str:
    """Where clients find the gateway: `http://host:port`, or `unix:/path`."""
    name = listener.getsockname()
    if listener.family == socket.AF_UNIX:
        return f"unix:{name}"
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(name[0], f"[{name[0]}]" if ":" in name[0] else name[0])
    return f"http://{host}:{name[1]}"


def own_origins(listener: socket.socket) -> tuple[str, ...]:
    """The origins of the gateway's own page, when nothing else is said."""
    if listener.family == socket.AF_UNIX:
        return ()
    port = listener.getsockname()[1]
    hosts = ("127.0.0.1", "localhost", "[::1]")
    return tuple(dict.fromkeys([address_of(listener), *(f"http://{host}:{port}" for host in hosts)]))


def config_of(app: ASGIApp) -> uvicorn.Config:
    """How uvicorn serves `app`."""
    return uvicorn.Config(
        app,
        http=Intake,
        ws=SocketProtocol,
        ws_max_size=CLIENT_FRAME_BYTES,
        ws_per_message_deflate=False,
        ws_ping_interval=_PING_S,
        ws_ping_timeout=_PONG_S,
        lifespan="on",
        access_log=False,
        log_config=None,
        log_level="warning",
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=_FINISH_S,
    )


def make_server(
    settings: Settings, listener: socket.socket, on_ready: Callable[[str], None] | None = None
) -> GatewayServer:
    """The server for `listener`; run it with `serve(sockets=[listener])`."""
    if settings.origins is None:
        public = () if settings.public_url is None else (origin_of(settings.public_url),)
        settings = msgspec.structs.replace(settings, origins=(*public, *own_origins(listener)))
    servers: list[GatewayServer] = []

    def leave() -> None:
        servers[0].give_up()

    app = create_app(settings, on_fault=leave)
    config = config_of(app)
    address = address_of(listener)
    ready = None if on_ready is None else (lambda: on_ready(address))
    servers.append(GatewayServer(config, app, ready, drain_s=settings.drain_ms / 1000))
    return servers[0]


def run_gateway(settings: Settings, *, on_ready: Callable[[str], None] | None = None) -> None:
    """Serves until SIGTERM or SIGINT. `on_ready` gets the address once connections are taken.

    Raises `OSError` when the address is taken. Exits with uvicorn's code 3 when the application does not start, and
    with 1 when a part of it failed for good; the reason is logged.
    """
    listener = bind(settings)
    server = make_server(settings, listener, on_ready)
    # What was made so far stays; looking through it again and again, with all that belongs to open sockets, is what
    # makes everyone wait a moment. Cycles are rare here, and are still collected, less often.
    gc.collect()
    gc.freeze()
    gc.set_threshold(_ALLOCATED, 20, 50)
    try:
        server.run(sockets=[listener])
    finally:
        listener.close()
        if settings.socket_path is not None:
            with contextlib.suppress(FileNotFoundError):
                settings.socket_path.unlink()
    if server.has_failed:
        raise SystemExit(1)
