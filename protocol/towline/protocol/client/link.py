"""The socket shell: carries out what the client machine orders, and tells it what happened.

Promises one socket at a time and nothing of its own: all decisions are the machine's. Read `machine` first.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Literal

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, WebSocketException
from websockets.typing import Subprotocol

from towline.protocol.client.actions import CloseSocket, Connect, News, SendText
from towline.protocol.client.http import is_loopback
from towline.protocol.client.machine import ClientMachine
from towline.protocol.limits import SERVER_FRAME_BYTES

_OPEN_S = 10
_CLOSE_S = 2
_LOOK_S = 5.0
"""How often the clock is looked at, whatever is due: a machine that slept did not count that in what it waits for."""
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Goes on while the machine sleeps, where there is one that does."""


def socket_url(url: str) -> str:
    """The address of the socket of the server at `url`."""
    scheme, rest = url.rstrip("/").split("://", 1)
    return {"http": "ws", "https": "wss"}.get(scheme, scheme) + "://" + rest + "/v1/socket"


class Link:
    """Runs `machine` over real sockets to the server at `url`; `tell` gets its news, in order.

    After any call to the machine from outside, call `wake`.
    """

    def __init__(self, url: str, machine: ClientMachine, tell: Callable[[News], None]) -> None:
        self._url = socket_url(url)
        self._proxy: Literal[True] | None = None if is_loopback(url) else True
        self._machine = machine
        self._tell = tell
        self._wake = asyncio.Event()
        self._socket: ClientConnection | None = None
        self._reader: asyncio.Task[None] | None = None

    def wake(self) -> None:
        """The machine has something to do."""
        self._wake.set()

    def drop(self) -> None:
        """Cuts the socket without a word, as a network would. For demonstrations and tests."""
        if self._socket is not None:
            self._socket.transport.abort()

    async def run(self) -> None:
        """Works until the machine is closed; to be cancelled otherwise."""
        try:
            while True:
                self._wake.clear()
                await self._carry_out()
                if self._machine.state == "closed":
                    return
                await self._wait()
                self._machine.receive_timeout(_now_ms())
        finally:
            if self._reader is not None:
                self._reader.cancel()
                await asyncio.gather(self._reader, return_exceptions=True)

    async def _wait(self) -> None:
        deadline = self._machine.deadline()
        timeout_s = None if deadline is None else min(_LOOK_S, max(0, deadline - _now_ms()) / 1000)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), timeout_s)

    async def _carry_out(self) -> None:
        while actions := self._machine.next_actions():
            for action in actions:
                match action:
                    case Connect():
                        self._reader = asyncio.create_task(self._read(), name="towline client socket")
                    case SendText(text):
                        if self._socket is not None:
                            with contextlib.suppress(ConnectionClosed):
                                await self._socket.send(text)
                    case CloseSocket(code, reason):
                        if self._socket is not None:
                            await self._socket.close(code, reason)
                    case _:
                        self._tell(action)

    async def _read(self) -> None:
        code, reason = 1006, ""
        try:
            async with connect(
                self._url,
                subprotocols=[Subprotocol("towline.v1")],
                compression=None,
                proxy=self._proxy,
                open_timeout=_OPEN_S,
                close_timeout=_CLOSE_S,
                ping_interval=None,
                max_size=SERVER_FRAME_BYTES,
            ) as socket:
                self._socket = socket
                self._machine.receive_opened(_now_ms())
                self._wake.set()
                with contextlib.suppress(ConnectionClosed):
                    while True:
                        self._machine.receive_text(await socket.recv(), _now_ms())
                        self._wake.set()
                code, reason = socket.close_code or code, socket.close_reason or reason
        except (OSError, WebSocketException, TimeoutError, ValueError) as error:
            reason = str(error)
        finally:
            self._socket = None
        self._machine.receive_closed(code, reason, _now_ms())
        self._wake.set()


def _now_ms() -> int:
    return time.clock_gettime_ns(_CLOCK) // 1_000_000
