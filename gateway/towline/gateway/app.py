"""The gateway put together: services, routes, the socket, and what runs beside them.

Promises that a gateway starts only on a durable store, that its hub and its sweep run as long as it does and end the
process if they fail, and that leaving is announced: sockets get `bye` and 4000, waiting answers return. This is the
composition root: nothing else makes a store or a hub.
"""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import BaseRoute, WebSocketRoute
from starlette.types import Receive, Scope, Send

from towline.gateway import (
    about,
    artifacts,
    claiming,
    commanding,
    inbox,
    leases,
    pages,
    runs,
    sharing,
    uploads,
    writing,
)
from towline.gateway import drain as leaving
from towline.gateway.admission import Turned
from towline.gateway.describing import serving
from towline.gateway.http import EXPOSED, MIDDLEWARE, on_error
from towline.gateway.hub import Hub
from towline.gateway.limits import address_in
from towline.gateway.metrics import served
from towline.gateway.mounting import Mounted
from towline.gateway.pressure import Gauge
from towline.gateway.proxies import Proxies
from towline.gateway.services import Services
from towline.gateway.settings import Settings
from towline.gateway.socket import Socket
from towline.protocol.ids import random_id
from towline.protocol.store import crash_points
from towline.protocol.store.durability import enforce_at
from towline.protocol.store.sweep import Sweeper

_log: Final = logging.getLogger("towline.gateway")

_SOCKET: Final = "/v1/socket"
_METHODS: Final = ("GET", "POST", "PUT", "DELETE")
_HEADERS: Final = (
    *("Authorization", "Content-Digest", "Content-Type", "Idempotency-Key", "If-None-Match"),
    *("Last-Event-ID", "Range", "Towline-Lease", "Traceparent"),
)


class Sockets:
    """The sockets that are open here."""

    def __init__(self) -> None:
        self._open: set[Socket] = set()
        self._none_open = asyncio.Event()
        self._none_open.set()

    def __len__(self) -> int:
        return len(self._open)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one socket from upgrade to close."""
        services: Services = scope["app"].state.services
        socket = Socket(services, scope, receive, send)
        self._open.add(socket)
        self._none_open.clear()
        try:
            try:
                socket.seat = services.admission.seat(address_in(scope.get("client")))
            except Turned as turned:
                socket.session.fail(turned.code, turned.reason, retry_ms=turned.retry_ms)
            if services.draining.is_set():
                socket.session.drain(services.farewell_ms())
            await socket.serve(scope)
        finally:
            if socket.seat is not None:
                socket.seat.leave()
            self._open.discard(socket)
            if not self._open:
                self._none_open.set()

    async def all_gone(self) -> None:
        """Returns once no socket is open."""
        await self._none_open.wait()

    def buffered_bytes(self) -> int:
        """What was sent to sockets that lag, and was not taken yet."""
        return sum(socket.buffered_bytes() for socket in self._open if socket.is_lagging)

    async def drain(self, settings: Settings) -> None:
        """Says goodbye to all, paced, each with its own time to come back."""
        sockets = tuple(self._open)
        turns = leaving.plan(
            len(sockets),
            at_least_ms=settings.drain_window_ms,
            reconnects_per_s=settings.reconnects_per_s,
            within_ms=settings.drain_ms,
            draw=random.randint,
        )
        await leaving.follow(turns, sockets, Socket.drain)


class Gateway(Starlette):
    """The application, which takes sockets past routing and middleware: none of it is for them, and each would hold
    memory for as long as a socket is open."""

    def __init__(self, sockets: Sockets, *, settings: Settings, **more: Any) -> None:
        super().__init__(**more)
        self._proxies = Proxies(settings.trusted_proxies, settings.proxy_header) if settings.trusted_proxies else None
        self._sockets = sockets
        self._socket_paths = frozenset({_SOCKET, urlsplit(settings.public_url or "").path + _SOCKET})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._proxies is not None and scope["type"] != "lifespan":
            scope["client"] = self._proxies.client_of(scope)
        if scope["type"] == "websocket" and _below_root(scope) in self._socket_paths:
            scope["app"] = self
            await self._sockets(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


def _below_root(scope: Scope) -> str:
    """The path as routes see it: without what another application mounted this one at."""
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    return path.removeprefix(root) if path.startswith(f"{root}/") else path


def create_app(settings: Settings, *, on_fault: Callable[[], None] | None = None) -> Starlette:
    """The ASGI application. `on_fault` is called when something it needs to go on has failed for good."""
    sockets = Sockets()

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        await enforce_at(settings.store_url, development=settings.development)
        store = await crash_points.connect(settings.store_url)
        hub = Hub(store)
        services = app.state.services = Services(settings, store, hub)
        sweeper = Sweeper(store, random_id("gateway"))
        gauge = Gauge(
            services.pressure,
            ask_store=store.sync_clock,
            buffered_bytes=sockets.buffered_bytes,
            on_sample=services.receive_sample,
        )
        services.metrics.count_open(lambda: len(sockets), lambda: hub.followed)
        hub.on_handed_on = services.metrics.handed_on
        hub.on_torn(services.metrics.reached_store)
        lasting = (
            *(hub.run(), services.guard.run(), services.feeds.run(), gauge.run()),
            *(sweeper.run_forever(), uploads.sweep_forever(services)),
        )
        background = [asyncio.create_task(work) for work in lasting]
        for task in background:
            task.add_done_callback(lambda task: _judge(task, on_fault))
        try:
            with served(services.metrics, settings.metrics_bind):
                yield
        finally:
            services.drain()
            for task in background:
                task.cancel()
            await asyncio.wait(background)
            await store.aclose()

    routes: list[BaseRoute] = [
        *runs.ROUTES,
        *pages.ROUTES,
        *commanding.ROUTES,
        *inbox.ROUTES,
        *artifacts.ROUTES,
        *claiming.ROUTES,
        *leases.ROUTES,
        *writing.ROUTES,
        *sharing.ROUTES,
        *uploads.ROUTES,
        WebSocketRoute(_SOCKET, sockets),
        *serving.ROUTES,
        *about.ROUTES,
    ]
    cors = Middleware(
        CORSMiddleware,
        allow_origins=list(settings.origins or ()),
        allow_methods=list(_METHODS),
        allow_headers=list(_HEADERS),
        expose_headers=list(EXPOSED),
    )
    app = Gateway(
        sockets,
        settings=settings,
        routes=routes,
        middleware=[*MIDDLEWARE, Middleware(Mounted, public_url=settings.public_url), cors],
        exception_handlers={HTTPException: on_error},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    app.state.sockets = sockets
    return app


async def drain(app: Starlette) -> None:
    """Says that the gateway goes away, to everyone it serves."""
    services: Services | None = getattr(app.state, "services", None)
    if services is not None:
        services.drain()
        await app.state.sockets.drain(services.settings)


def _judge(task: "asyncio.Task[None]", on_fault: Callable[[], None] | None) -> None:
    if task.cancelled() or (error := task.exception()) is None:
        return
    _log.critical("the gateway cannot go on", exc_info=error)
    if on_fault is not None:
        on_fault()
