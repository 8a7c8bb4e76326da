"""The way out of one socket: frames leave whole, one at a time, and never faster than the peer takes them.

Promises that a peer who takes no byte for 30 s is closed with 4008, and that nothing is written after the close.
Frames go straight to the connection where the server shows it (an ASGI extension), and through ASGI where not.
Leaves what is sent to `socket` and `watching`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from starlette.types import Scope, Send

from towline.gateway.prepared import text_frame
from towline.protocol import frames as f
from towline.protocol.closecodes import CloseCode
from towline.protocol.session import Session

TRANSPORT: Final = "towline.transport"
"""Name of the ASGI extension by which our uvicorn protocol shows itself; see `server`."""

STALL_S: Final = 30.0
_STALLED: Final = "nothing was read for 30 s"
_REASON_BYTES: Final = 123


class Gone(Exception):
    """The peer is not there any more."""


class Transport(Protocol):
    """What a socket may do with its connection beside ASGI. Under another server there is none: ASGI serves."""

    may_write: bool

    def open_writing(self) -> None:
        """From here on frames may be written past ASGI, while the peer does not lag."""
        ...

    def close_writing(self) -> None:
        """From here on nothing is written but through ASGI."""
        ...

    def write(self, wire: bytes) -> bool:
        """Writes whole frames, at once or not at all; whether it did."""
        ...

    async def ready(self) -> None:
        """Returns once the peer does not lag, or is gone."""
        ...

    def buffered_bytes(self) -> int:
        """Bytes that were sent and that the peer has not taken, those in the kernel included."""
        ...

    def close_now(self, code: int, reason: str) -> None:
        """Closes without waiting for room in the buffer."""
        ...


def _write_nothing(wire: bytes) -> bool:
    return False


class Outbound:
    """Sends what one socket is told. `session` says when nothing more may be sent, and learns of a peer that stalls."""

    __slots__ = ("_send_by_asgi", "_session", "_transport", "_turn", "write")

    def __init__(self, scope: Scope, send: Send, session: Session) -> None:
        self._send_by_asgi = send
        self._session = session
        self._transport: Transport | None = scope.get("extensions", {}).get(TRANSPORT)
        self._turn = asyncio.Lock()
        self.write: Callable[[bytes], bool] = _write_nothing if self._transport is None else self._transport.write
        """Writes whole frames, at once or not at all; whether it did. The connection's own: called for each event."""

    async def accept(self, subprotocol: str | None) -> None:
        """Upgrades the socket. Raises `Gone`."""
        await self._transmit({"type": "websocket.accept", "subprotocol": subprotocol, "headers": []})

    def open(self) -> None:
        """The socket was upgraded: frames may leave."""
        if self._transport is not None and not self._session.is_closed:
            self._transport.open_writing()

    @property
    def is_lagging(self) -> bool:
        """Whether the peer has more to take than it should be sent."""
        return self._transport is not None and not self._transport.may_write

    @property
    def takes_wires(self) -> bool:
        """Whether frames may be written past ASGI at all."""
        return self._transport is not None

    def buffered_bytes(self) -> int:
        """What was sent and not yet taken."""
        return 0 if self._transport is None else self._transport.buffered_bytes()

    async def ready(self) -> None:
        """Returns once the peer does not lag. Raises `Gone`."""
        if self._transport is not None:
            await self._unstalled(self._transport.ready)
            if not self._transport.may_write:
                raise Gone

    async def send(self, frame: f.ServerFrame) -> None:
        """Sends a frame. Raises `Gone` when nobody is there to take it, or nobody may have it any more."""
        async with self._turn:
            if self._session.is_closed:
                raise Gone
            await self._send(frame)

    async def send_anyhow(self, frame: f.ServerFrame) -> None:
        """Sends a frame that the session decided on. Raises `Gone` when nobody is there to take it."""
        async with self._turn:
            await self._send(frame)

    async def close(self, code: int, reason: str, bye: f.Bye | None) -> None:
        """Says `bye`, then closes; nothing comes in between. Raises `Gone`."""
        if self._transport is not None:
            self._transport.close_writing()
        async with self._turn:
            if bye is not None:
                await self._send(bye)
            short = reason.encode()[:_REASON_BYTES].decode(errors="ignore")
            await self._transmit({"type": "websocket.close", "code": code, "reason": short})

    async def _send(self, frame: f.ServerFrame) -> None:
        payload = f.encode(frame)
        if self._transport is None or not self._transport.write(text_frame(payload)):
            await self._transmit({"type": "websocket.send", "text": payload.decode()})

    async def _transmit(self, message: dict[str, object]) -> None:
        try:
            await self._unstalled(lambda: self._send_by_asgi(message))
        except OSError:  # what ASGI raises for a peer that is not there any more
            raise Gone from None
        except RuntimeError:  # uvicorn, once a close was sent
            raise Gone from None

    async def _unstalled(self, wait: Callable[[], Awaitable[None]]) -> None:
        """Waits as long as the peer takes any byte at all. Ends the socket when it took none for 30 s."""
        while True:
            before = self.buffered_bytes()
            try:
                async with asyncio.timeout(STALL_S):
                    await wait()
                return
            except TimeoutError:
                if self.buffered_bytes() < before:
                    continue
                self._session.fail(CloseCode.TOO_SLOW, _STALLED)
                if self._transport is not None:  # the close frame cannot wait for room
                    self._transport.close_now(int(CloseCode.TOO_SLOW), _STALLED)
                raise Gone from None
