"""A store that tells no news: between a gateway and a real store, notices are dropped and everything else passes.

Promises that who connects through it cannot tell: subscriptions are confirmed, pings answered, calls untouched. Only
what is published never arrives, so a reader hears of an event by looking for it, or not at all.
"""

import asyncio
import contextlib
import random
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import hiredis
import redis.asyncio

from towline.protocol.store.probe import unix_url

_CHUNK_BYTES: Final = 65_536


class DeafStore:
    """`url` leads through it; `dropped` counts the notices that did not arrive, `share` of all, drawn at random."""

    def __init__(self, store_url: str, path: Path, share: float) -> None:
        self.url = unix_url(str(path))
        self.dropped = 0
        self._share, self._dice = share, random.Random(3)
        self._far = str(redis.asyncio.Redis.from_url(store_url).connection_pool.connection_kwargs["path"])

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carries one connection."""
        far_reader, far_writer = await asyncio.open_unix_connection(self._far)
        listens = asyncio.Event()
        there = asyncio.create_task(self._there(reader, far_writer, listens))
        back = asyncio.create_task(self._back(far_reader, writer, listens))
        try:
            await asyncio.wait((there, back), return_when=asyncio.FIRST_COMPLETED)
        finally:
            there.cancel()
            back.cancel()
            for end in (writer, far_writer):
                end.transport.abort()

    async def _there(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, listens: asyncio.Event) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_CHUNK_BYTES):
                if b"SSUBSCRIBE" in data:
                    listens.set()
                writer.write(data)

    async def _back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, listens: asyncio.Event) -> None:
        answers = hiredis.Reader()
        with contextlib.suppress(OSError):
            while data := await reader.read(_CHUNK_BYTES):
                if not listens.is_set():
                    writer.write(data)
                    continue
                answers.feed(data)
                while (answer := answers.gets()) is not False:
                    is_notice = isinstance(answer, list) and answer[0] == b"smessage"
                    if is_notice and self._dice.random() < self._share:
                        self.dropped += 1
                    else:
                        writer.write(_encoded(answer))


def _encoded(answer: Any) -> bytes:
    """An answer as the store writes it."""
    match answer:
        case list():
            return b"*%d\r\n" % len(answer) + b"".join(map(_encoded, answer))
        case int():
            return b":%d\r\n" % answer
        case bytes():
            return b"$%d\r\n%s\r\n" % (len(answer), answer)
        case _:
            raise AssertionError(f"who listens is not answered {answer!r}")


@asynccontextmanager
async def deaf_store(store_url: str, share: float = 1.0) -> AsyncIterator[DeafStore]:
    """The way to the store at `store_url` (a unix socket), until the block ends."""
    with tempfile.TemporaryDirectory(prefix="deaf-") as folder:  # short, as a socket's path has to be
        path = Path(folder) / "socket"
        store = DeafStore(store_url, path, share)
        server = await asyncio.start_unix_server(store.carry, str(path))
        try:
            yield store
        finally:
            server.close()
