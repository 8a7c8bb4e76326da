"""One reader of one run over each transport, byte by byte: joins somewhere, is killed, comes back, reads to the end.

Promises that the events are kept as the bytes that came, and that each transport's own way to resume is used: the
cursor of a frame, the id that a stream's block carries, the cursor of a page. Leaves what must hold to the test.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

import httpx
import msgspec
from msgspec import Raw, Struct
from websockets.asyncio.client import ClientConnection, connect
from websockets.typing import Subprotocol

from tests.support.gateway import RunningGateway
from towline.protocol.frames import SUBPROTOCOL

PATIENCE_S: Final = 60
_WAIT_MS: Final = 10_000


class Frame(Struct):
    """Any frame of a server, as far as a reader of one run looks into it."""

    op: str
    cursor: str | None = None
    events: list[Raw] = []
    recovery: str | None = None
    skipped: tuple[int, int] | None = None
    projection: dict[str, Any] | None = None
    replay: bool = False


class Page(Struct):
    """A page of a log."""

    events: list[Raw]
    cursor: str
    closed: bool
    recovery: str


_frames: Final = msgspec.json.Decoder(Frame)
_pages: Final = msgspec.json.Decoder(Page)


class Reader(Protocol):
    """`begin` is what it was told when it last came, `cursor` where it would come back, `raws` all events it got."""

    begin: Frame
    cursor: str
    raws: list[bytes]
    has_ended: bool

    async def join(self, after: str, limit: int | None = None) -> Frame:
        """Comes with a cursor; returns once it was told where it stands, before any event."""
        ...

    async def read(self, count: int | None = None) -> None:
        """Reads on until it has got `count` events in all, or to the end of the run."""
        ...

    async def drop(self) -> None:
        """Is killed: nothing is said, what was on its way is lost."""
        ...


class _Streamed:
    """What sockets and event streams have in common: frames."""

    def __init__(self, gateway: RunningGateway, http: httpx.AsyncClient, run: str, credential: str) -> None:
        self.gateway, self.http, self.run, self.credential = gateway, http, run, credential
        self.begin = Frame("")
        self.cursor = ""
        self.raws: list[bytes] = []
        self.has_ended = False
        self._lives = 0

    async def next(self) -> Frame:
        raise NotImplementedError

    async def drop(self) -> None:
        raise NotImplementedError

    def take(self, frame: Frame) -> None:
        assert frame.op not in ("problem", "bye", "unsubscribed"), frame
        if frame.op == "live":
            self._lives += 1
        if frame.op == "events":
            assert frame.replay == (self._lives == 0)
            self.raws += [bytes(raw) for raw in frame.events]
        if frame.cursor is not None:
            self.cursor = frame.cursor
        if frame.op == "end":
            assert self._lives == 1
            self.has_ended = True

    async def told(self) -> Frame:
        self._lives = 0
        self.begin = await self.next()
        assert self.begin.op == "subscribed", self.begin
        self.take(self.begin)
        return self.begin

    async def read(self, count: int | None = None) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not self.has_ended and (count is None or len(self.raws) < count):
                self.take(await self.next())
        await self.drop()


class SocketReader(_Streamed):
    """Over a socket of its own."""

    _connection: ClientConnection

    async def join(self, after: str, limit: int | None = None) -> Frame:
        address = self.gateway.url.replace("http://", "ws://") + "/v1/socket"
        headers = {"Authorization": f"Bearer {self.credential}"}
        self._connection = await connect(
            address,
            subprotocols=[Subprotocol(SUBPROTOCOL)],
            compression=None,
            additional_headers=headers,
            max_queue=None,
        )
        ask = {"op": "subscribe", "id": "s", "run": self.run, "after": after}
        await self._connection.send(msgspec.json.encode(ask if limit is None else {**ask, "limit": limit}).decode())
        assert (await self.next()).op == "welcome"
        return await self.told()

    async def next(self) -> Frame:
        while (frame := _frames.decode(await self._connection.recv())).op == "heartbeat":
            pass
        return frame

    async def drop(self) -> None:
        self._connection.transport.abort()
        await self._connection.wait_closed()


class SseReader(_Streamed):
    """Over a stream of server-sent events, resumed as a browser does it. Reads HTTP by itself: it is asked for much."""

    async def join(self, after: str, limit: int | None = None) -> Frame:
        query = f"after={after}" if limit is None else f"after={after}&limit={limit}"
        more = ""
        if self.cursor:
            query, more = "after=0", f"Last-Event-ID: {after}\r\n"
        host, _, port = self.gateway.url.removeprefix("http://").partition(":")
        self._stream, self._writer = await asyncio.open_connection(host, int(port))
        self._writer.write(
            f"GET /v1/runs/{self.run}/events?{query} HTTP/1.1\r\nHost: {host}\r\nAccept: text/event-stream\r\n"
            f"Authorization: Bearer {self.credential}\r\n{more}\r\n".encode()
        )
        head = await self._stream.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        self._text = ""
        return await self.told()

    async def next(self) -> Frame:
        while True:
            block, end, rest = self._text.partition("\n\n")
            if not end:
                size = int(await self._stream.readline(), 16)
                assert size, "the stream ended before the run"
                self._text += (await self._stream.readexactly(size + 2))[:-2].decode()
                continue
            self._text = rest
            fields = dict(line.split(": ", 1) for line in block.split("\n") if not line.startswith(":"))
            if "data" in fields:
                frame = _frames.decode(fields["data"])
                assert (fields["event"], fields.get("id")) == (frame.op, frame.cursor)
                return frame

    async def drop(self) -> None:
        self._writer.transport.abort()


class PageReader:
    """Over `GET /runs/{run}` and pages that wait for the next event."""

    def __init__(self, gateway: RunningGateway, http: httpx.AsyncClient, run: str, credential: str) -> None:
        self._address, self._http = f"{gateway.url}/v1/runs/{run}", http
        self._headers = {"Authorization": f"Bearer {credential}"}
        self.begin = Frame("")
        self.cursor = ""
        self.raws: list[bytes] = []
        self.has_ended = False

    async def join(self, after: str, limit: int | None = None) -> Frame:
        assert limit is None, "pages are not limited"
        if self.begin.op:  # it has its Run, and goes on from its cursor
            self.cursor = after
            return Frame("subscribed", after, recovery="resumed")
        answer = await self._http.get(self._address, headers=self._headers)
        assert answer.status_code == 200, answer.text
        run = answer.json()
        self.cursor = run["cursor"] if after == "latest" else after
        self.begin = Frame("subscribed", self.cursor, recovery="resumed", projection=run)
        return self.begin

    async def read(self, count: int | None = None) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not self.has_ended and (count is None or len(self.raws) < count):
                page = await self._page(_WAIT_MS)
                assert page.recovery == "resumed"
                self.raws += [bytes(raw) for raw in page.events]
                self.cursor, self.has_ended = page.cursor, page.closed

    async def drop(self) -> None:
        """The answer to a page is lost on its way."""
        await self._page(0)

    async def _page(self, wait_ms: int) -> Page:
        query = {"after": self.cursor, "wait_ms": str(wait_ms), "limit": "1000"}
        answer = await self._http.get(f"{self._address}/events", params=query, headers=self._headers)
        assert answer.status_code == 200, answer.text
        return _pages.decode(answer.content)


READERS: Final[Mapping[str, Callable[[RunningGateway, httpx.AsyncClient, str, str], Reader]]] = {
    "socket": SocketReader,
    "sse": SseReader,
    "pages": PageReader,
}
