"""A line between clients and a real store server that is slow, loses answers, or goes dead without a word.

Promises that what is passed on is passed on in order and whole. `loss`: for each packet of answers, how likely it is
cut in the middle and its connection closed, as when the answer was lost. `delay_s`: how long every packet takes,
each way. `go_dead`: nothing passes any more and nobody is told, as when a cable is pulled or a firewall forgets:
connections that stood then stay dead for ever, new ones are let in but hear nothing until `come_back`.
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path


class _Passage:
    """One connection through the line. `subscribes`: it carries notices."""

    def __init__(self, writer: asyncio.StreamWriter, to_server: asyncio.StreamWriter) -> None:
        self.writer = writer
        self.to_server = to_server
        self.subscribes = False
        self.is_dead = False


class Line:
    """See the module. `lost` counts answers that were lost, `opened` connections."""

    def __init__(self, path: Path, target: str, *, loss: float = 0.0, delay_s: float = 0.0) -> None:
        self.path = path
        self.target = target
        self.loss = loss
        self.delay_s = delay_s
        self.lost = 0
        self.opened = 0
        self._passages: list[_Passage] = []
        self._talks: set[asyncio.Task[None]] = set()
        self._chance = random.Random(7)
        self._is_open = asyncio.Event()
        self._is_open.set()

    @property
    def url(self) -> str:
        return f"unix://{self.path}"

    def go_dead(self) -> None:
        """From here on nothing passes, and nobody is told."""
        self._is_open.clear()
        for passage in self._passages:
            passage.is_dead = True

    def lose_notices(self) -> None:
        """Only the connections that carry notices go dead."""
        for passage in self._passages:
            passage.is_dead |= passage.subscribes

    def come_back(self) -> None:
        """New connections pass again."""
        self._is_open.set()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.opened += 1
        talk = asyncio.current_task()
        assert talk is not None
        self._talks.add(talk)
        talk.add_done_callback(self._talks.discard)
        with contextlib.suppress(asyncio.CancelledError):
            await self._pass_on(reader, writer)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._is_open.wait()
        from_server, to_server = await asyncio.open_unix_connection(self.target.removeprefix("unix://"))
        passage = _Passage(writer, to_server)
        self._passages.append(passage)
        carrying = (self._carry(passage, reader, to_server), self._carry(passage, from_server, writer))
        await asyncio.gather(*carrying, return_exceptions=True)

    async def _carry(self, passage: _Passage, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One direction. Packets are on their way side by side, as on a real line, and arrive in order."""
        loop = asyncio.get_running_loop()
        packets: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def arrive() -> None:
            while True:
                due_s, data = await packets.get()
                if due_s > loop.time():
                    await asyncio.sleep(due_s - loop.time())
                if not data:
                    break
                if passage.is_dead:
                    continue
                if writer is passage.writer and self._chance.random() < self.loss:
                    self.lost += 1
                    writer.write(data[: self._chance.randrange(len(data))])
                    break
                writer.write(data)
                await writer.drain()
            if not passage.is_dead:
                writer.close()

        arriving = asyncio.create_task(arrive())
        try:
            data = b"-"
            while data:
                data = await reader.read(65_536)
                passage.subscribes |= b"SSUBSCRIBE" in data
                packets.put_nowait((loop.time() + self.delay_s, data))
            await arriving
        finally:
            arriving.cancel()

    @asynccontextmanager
    async def open(self) -> AsyncIterator["Line"]:
        """Serves the line until the block ends; then every connection is closed."""
        server = await asyncio.start_unix_server(self._talk, str(self.path))
        try:
            yield self
        finally:
            self._is_open.set()
            server.close()
            for passage in self._passages:
                passage.writer.close()
                passage.to_server.close()
            for talk in tuple(self._talks):
                talk.cancel()
            await asyncio.gather(*self._talks, return_exceptions=True)
            await server.wait_closed()
