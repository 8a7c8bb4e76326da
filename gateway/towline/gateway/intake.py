"""The HTTP connection before a request is whole: nobody holds one open by sending slowly.

uvicorn waits for the rest of a header, or of a body nobody wants, as long as a peer cares to dribble. Here a
connection that has not sent a whole header within ten seconds of its beginning is closed, as is one whose header is
too large, or whose body still comes ten seconds after it was answered. Nobody else waits for it meanwhile. How long a
body may take that someone reads is up to who reads it. Leaves everything after the header to uvicorn.
"""

import asyncio
from typing import Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from towline.protocol.limits import KIB

HEADER_S: Final = 10.0
LEFTOVER_S: Final = 10.0
HEADER_BYTES: Final = 64 * KIB


class Intake(HttpToolsProtocol):
    """uvicorn's HTTP protocol with an end to patience."""

    header_s: float = HEADER_S
    leftover_s: float = LEFTOVER_S
    _deadline: asyncio.TimerHandle | None = None
    _header_bytes = 0
    _is_in_header = True
    _is_in_body = False
    _is_handed_over = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """The first header is due."""
        super().connection_made(transport)
        self._await(self.header_s)

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is due any more."""
        self._rest()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Counts what a header has, and gives the rest to uvicorn."""
        if self._is_in_header:
            self._header_bytes += len(data)
        super().data_received(data)
        if self._is_in_header and self._header_bytes > HEADER_BYTES and not self.transport.is_closing():
            self.transport.write(b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\n\r\n")
            self.transport.close()
        elif self._deadline is None and self._is_between():
            self._await(self.header_s)  # empty lines before a request are no request yet

    def on_message_begin(self) -> None:
        """A request begins; on a connection that was kept its header is due from now."""
        super().on_message_begin()
        if not self._is_in_header:
            self._is_in_header, self._header_bytes = True, 0
            self._await(self.header_s)

    def on_headers_complete(self) -> None:
        """The header is whole."""
        self._is_in_header, self._is_in_body = False, True
        self._rest()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The body is whole too."""
        self._is_in_body = False
        self._rest()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """What still comes of the body has a last moment to do so."""
        super().on_response_complete()
        if self._is_in_body:
            self._await(self.leftover_s)

    def handle_websocket_upgrade(self) -> None:
        """From here on the connection is a socket's."""
        self._is_handed_over = True
        self._rest()
        super().handle_websocket_upgrade()

    def _is_between(self) -> bool:
        return not (self._is_in_header or self._is_in_body or self._is_handed_over or self._is_answering())

    def _is_answering(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle  # None before the first request, whatever uvicorn's types say
        return cycle is not None and not cycle.response_complete

    def _await(self, within_s: float) -> None:
        self._rest()
        self._deadline = self.loop.call_later(within_s, self._give_up)

    def _rest(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        self._deadline = None
        if self._is_answering():
            self._await(self.header_s)  # an earlier request is still being answered; reading may have been stopped
        elif not self.transport.is_closing():
            self.transport.abort()
