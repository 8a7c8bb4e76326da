"""One reader of one run over each transport, byte by byte: joins somewhere, is killed, comes back, reads to the end.

Promises that the events are kept as the bytes that came, and that each transport's own way to resume is used: the
cursor of a frame, the id that a stream's block carries, the cursor of a page. Leaves what must hold to the test.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

import msgspec
from msgspec import Raw, Struct
from websockets.asyncio.client import ClientConnection, connect
from websockets.typing import Subprotocol

from tests.support.gateway import RunningGateway
from tests.support.soak import SOAK
from towline.protocol.frames import SUBPROTOCOL

PATIENCE_S: Final = 300 if SOAK else 60
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
    """What sockets and event streams have in common: frames. `heard`: every frame, as it came."""

    def __init__(self, gateway: RunningGateway, run: str, credential: str, *, deltas: bool = False) -> None:
        self.gateway, self.run, self.credential, self.deltas = gateway, run, credential, deltas
        self.heard: list[bytes] = []
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
        ask: dict[str, Any] = {"op": "subscribe", "id": "s", "run": self.run, "after": after}
        ask |= {"limit": limit} if limit else {}
        ask |= {"include": ["delta"]} if self.deltas else {}
        await self._connection.send(msgspec.json.encode(ask).decode())
        assert (await self.next()).op == "welcome"
        return await self.told()

    async def next(self) -> Frame:
        while True:
            self.heard.append(await self._connection.recv(decode=False))
            if (frame := _frames.decode(self.heard[-1])).op != "heartbeat":
                return frame

    async def drop(self) -> None:
        self._connection.transport.abort()
        await self._connection.wait_closed()


class Line:
    """One HTTP connection, read by hand: a library would cost more than all that is tested here."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self._writer = reader, writer

    @classmethod
    async def to(cls, gateway: RunningGateway) -> "Line":
        host, _, port = gateway.url.removeprefix("http://").partition(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    def ask(self, path: str, credential: str, *more: str) -> None:
        lines = (f"GET /v1/{path} HTTP/1.1", "Host: test", f"Authorization: Bearer {credential}", *more, "", "")
        self._asked = "\r\n".join(lines).encode()
        self._writer.write(self._asked)

    async def begin(self) -> bytes:
        """The answer without its body, which is there or, for a stream that had ended, is not to come."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        assert head.startswith((b"HTTP/1.1 200", b"HTTP/1.1 204")), head
        return head.lower()

    async def body(self) -> bytes:
        """The body of the answer; asked for again where the store was away, as it seems to be to a busy machine."""
        while True:
            head = await self.reader.readuntil(b"\r\n\r\n")
            size = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
            body = await self.reader.readexactly(int(size))
            if head.startswith(b"HTTP/1.1 200"):
                return body
            assert head.startswith(b"HTTP/1.1 503"), (head, body)
            self._writer.write(self._asked)

    def abort(self) -> None:
        self._writer.transport.abort()


class SseReader(_Streamed):
    """Over a stream of server-sent events, resumed as a browser does it."""

    _line: Line

    async def join(self, after: str, limit: int | None = None) -> Frame:
        query = f"after={after}" + (f"&limit={limit}" if limit else "") + ("&include=delta" if self.deltas else "")
        more: tuple[str, ...] = ("Accept: text/event-stream",)
        if self.cursor:
            query, more = "after=0", (*more, f"Last-Event-ID: {after}")
        self._line = await Line.to(self.gateway)
        self._line.ask(f"runs/{self.run}/events?{query}", self.credential, *more)
        if b" 204 " in (await self._line.begin()).partition(b"\r\n")[0]:  # nothing follows what it has
            self._line.abort()
            self.has_ended = True
            return Frame("end", after, recovery="resumed")
        self._text = ""
        return await self.told()

    async def next(self) -> Frame:
        while True:
            block, end, rest = self._text.partition("\n\n")
            if not end:
                size = int(await self._line.reader.readline(), 16)
                assert size, "the stream ended before the run"
                self._text += (await self._line.reader.readexactly(size + 2))[:-2].decode()
                continue
            self._text = rest
            fields = dict(line.split(": ", 1) for line in block.split("\n") if not line.startswith(":"))
            if "data" in fields:
                self.heard.append(fields["data"].encode())
                frame = _frames.decode(self.heard[-1])
                assert (fields["event"], fields.get("id")) == (frame.op, frame.cursor)
                return frame

    async def drop(self) -> None:
        self._line.abort()


class PageReader:
    """Over `GET /runs/{run}` and pages that wait for the next event."""

    def __init__(self, gateway: RunningGateway, run: str, credential: str) -> None:
        self._gateway, self._run, self._credential = gateway, run, credential
        self._line: Line | None = None
        self.begin = Frame("")
        self.cursor = ""
        self.raws: list[bytes] = []
        self.has_ended = False

    async def join(self, after: str, limit: int | None = None) -> Frame:
        assert limit is None, "pages are not limited"
        self._line = self._line or await Line.to(self._gateway)
        if self.begin.op:  # it has its Run, and goes on from its cursor
            self.cursor = after
            return Frame("subscribed", after, recovery="resumed")
        self._line.ask(f"runs/{self._run}", self._credential)
        run = msgspec.json.decode(await self._line.body())
        self.cursor = run["cursor"] if after == "latest" else after
        self.begin = Frame("subscribed", self.cursor, recovery="resumed", projection=run)
        return self.begin

    async def read(self, count: int | None = None) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not self.has_ended and (count is None or len(self.raws) < count):
                page = _pages.decode(await self._ask_page().body())
                assert page.recovery == "resumed"
                self.raws += [bytes(raw) for raw in page.events]
                self.cursor, self.has_ended = page.cursor, page.closed
        self._hang_up()

    async def drop(self) -> None:
        self._ask_page()
        self._hang_up()

    def _hang_up(self) -> None:
        if self._line is not None:
            self._line.abort()
            self._line = None

    def _ask_page(self) -> Line:
        assert self._line is not None
        query = f"after={self.cursor}&wait_ms={_WAIT_MS}&limit=1000"
        self._line.ask(f"runs/{self._run}/events?{query}", self._credential)
        return self._line


READERS: Final[Mapping[str, Callable[[RunningGateway, str, str], Reader]]] = {
    "socket": SocketReader,
    "sse": SseReader,
    "pages": PageReader,
}
