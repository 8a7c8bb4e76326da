"""A store that says what a test tells it to: half answers, no answers, answers too late, and hanging up.

Promises to note each command that arrived, connection by connection, and to greet redis-py as a server does. What it
answers is up to `answer`, called for each command: it writes to the `Line` it is given, or does not.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import hiredis
from redis.asyncio.connection import UnixDomainSocketConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from towline.protocol.store.lane import MAX_CALLS, Lane

Command = list[bytes]


class Line:
    """One connection: what arrived on it, and the ways to treat it."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.commands: list[Command] = []
        self.packets = 0
        self._writer = writer

    def write(self, answer: bytes) -> None:
        self._writer.write(answer)

    def hang_up(self) -> None:
        """What was written before still arrives."""
        self._writer.close()


class Peer:
    """See the module. `lines` are its connections, oldest first."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: list[Line] = []
        self.answer: Callable[[Line, Command], None] = lambda line, command: line.write(bulk(command[-1]))

    @property
    def commands(self) -> list[Command]:
        return [command for line in self.lines for command in line.commands]

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = Line(writer)
        self.lines.append(line)
        parser = hiredis.Reader()
        try:
            while data := await reader.read(65_536):
                line.packets += 1
                parser.feed(data)
                while (command := parser.gets()) is not False:
                    if command[0] == b"CLIENT":
                        line.write(b"+OK\r\n")
                        continue
                    line.commands.append(command)
                    self.answer(line, command)
        except ConnectionError:
            pass
        finally:
            writer.close()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator["Peer"]:
        server = await asyncio.start_unix_server(self._talk, str(self.path))
        try:
            yield self
        finally:
            server.close()
            for line in self.lines:
                line.hang_up()
            await server.wait_closed()

    def lane(self, *, timeout_s: float = 20.0, max_calls: int = MAX_CALLS) -> Lane:
        """A lane to this peer that connects once a time."""
        connection = UnixDomainSocketConnection(
            path=str(self.path), socket_timeout=None, socket_connect_timeout=10, retry=Retry(NoBackoff(), 0), protocol=2
        )
        return Lane(connection, timeout_s=timeout_s, max_calls=max_calls)


def bulk(text: bytes) -> bytes:
    """A text as the store answers it."""
    return b"$%d\r\n%s\r\n" % (len(text), text)


def echo(text: Any) -> bytes:
    """The packed command that asks for `text`."""
    pack: Any = hiredis.pack_command  # its stub knows one argument only
    packed: bytes = pack(("ECHO", str(text)))
    return packed
