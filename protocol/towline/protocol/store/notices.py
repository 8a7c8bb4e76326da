"""The fast path: entries as scripts publish them, for the runs that a process follows.

Promises nothing about completeness: a notice may be lost, and after a reconnect `None` is yielded, once everything is
subscribed again, so that the reader compares heads. What a notice holds is byte for byte what stands in the log.

One connection of its own, read without redis-py's pub/sub object, which costs more than all the rest. What one read of
the connection brought is yielded without a pause, so whoever iterates gets it as one batch. A connection that is silent
answers a ping from time to time, or is given up.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncIterator
from typing import Any, Final, cast

import hiredis
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import RedisError

from towline.protocol import codec
from towline.protocol.deltas import decode_piece
from towline.protocol.store import api
from towline.protocol.store.connection import CALL_TIMEOUT_S, open_client
from towline.protocol.store.keys import RunKeys, run_of_channel

_log: Final = logging.getLogger("towline.store")
_RETRY_S: Final = 0.2
_QUIET_S: Final = 5.0
_PONGS: Final = (b"PONG", [b"pong", b""])
"""The answer to a ping without and with subscriptions."""


def decode_notice(channel: bytes, payload: bytes) -> api.Notice:
    """The notice in one message: triples of id, meta and envelope, one a line; or pieces after a line that says so."""
    lines = payload.split(b"\n")
    if lines[0] == b"delta":
        return api.Notice(run_of_channel(channel.decode()), (), [decode_piece(line) for line in lines[1:]])
    entries = [codec.decode_entry(lines[i], lines[i + 2], lines[i + 1]) for i in range(0, len(lines), 3)]
    return api.Notice(run_of_channel(channel.decode()), entries)


class Notices:
    """Follows any number of runs over one connection, which exists while somebody iterates.

    Args:
        quiet_s: After this much silence the store is asked whether it is there, after twice as much it is not.
    """

    def __init__(self, url: str, *, quiet_s: float = _QUIET_S) -> None:
        self._url = url
        self._quiet_s = quiet_s
        self._connection: AbstractConnection | None = None
        self._followed: set[str] = set()
        self._outbox: list[bytes] = []
        self._sending: asyncio.Task[None] | None = None
        self._serving: asyncio.Task[None] | None = None
        self._heard: deque[tuple[bytes, bytes] | None] = deque()
        self._has_news = asyncio.Event()
        self._is_silent = False
        self._closing = False

    async def follow(self, run: str) -> None:
        """Starts to yield notices of `run`. Returns once the store confirmed nothing: compare heads afterwards."""
        self._followed.add(run)
        self._say("SSUBSCRIBE", RunKeys.of(run).channel)

    async def unfollow(self, run: str) -> None:
        """Stops to yield notices of `run`."""
        self._followed.discard(run)
        self._say("SUNSUBSCRIBE", RunKeys.of(run).channel)

    async def __aiter__(self) -> AsyncIterator[api.Notice | None]:
        self._serving = serving = asyncio.create_task(self._serve(), name="towline-notices")
        serving.add_done_callback(lambda _: self._has_news.set())
        try:
            while not self._closing:
                await self._has_news.wait()
                self._has_news.clear()
                while self._heard and not self._closing:
                    message = self._heard.popleft()
                    yield None if message is None else decode_notice(*message)
                if serving.done() and not serving.cancelled():
                    serving.result()  # it only ends by a mistake of ours
        finally:
            await self._stop()

    async def aclose(self) -> None:
        """Closes the connection; the iteration ends."""
        self._closing = True
        self._has_news.set()
        await self._stop()

    async def _stop(self) -> None:
        if self._serving is not None:
            self._serving.cancel()
            await asyncio.wait({self._serving})

    # --- one connection after the other

    async def _serve(self) -> None:
        client = open_client(self._url, retries=0)
        pool = client.connection_pool
        settings: dict[str, Any] = {**pool.connection_kwargs, "socket_timeout": None}
        connection = pool.connection_class(**settings)
        try:
            while True:
                try:
                    async with asyncio.timeout(CALL_TIMEOUT_S):
                        await cast("Any", connection).connect()
                    await self._listen(connection)
                except (RedisError, OSError) as error:
                    _log.info("notices are lost: %s", error)
                finally:
                    self._connection = None
                    if self._sending is not None:
                        self._sending.cancel()
                        self._sending = None
                    await connection.disconnect(nowait=True)
                await asyncio.sleep(_RETRY_S)
        finally:
            await client.aclose()

    async def _listen(self, connection: AbstractConnection) -> None:
        self._connection = connection
        self._outbox.clear()
        for run in self._followed:
            self._say("SSUBSCRIBE", RunKeys.of(run).channel)
        self._say("PING")  # answered when all before it is subscribed
        is_complete = False
        read, heard = connection.read_response, self._heard
        async with asyncio.timeout(None) as patience:
            watching = asyncio.create_task(self._watch_silence(patience))
            try:
                while True:
                    message = await read(disconnect_on_error=False)
                    self._is_silent = False
                    if type(message) is list and message[0] == b"smessage":
                        heard.append((message[1], message[2]))
                    elif not is_complete and message in _PONGS:
                        is_complete = True
                        heard.append(None)
                    else:
                        continue
                    self._has_news.set()
            finally:
                watching.cancel()

    async def _watch_silence(self, patience: asyncio.Timeout) -> None:
        """Pings when nothing was heard for a while, and ends the listening when that was not answered either."""
        self._is_silent, was_asked = True, False
        while True:
            await asyncio.sleep(self._quiet_s)
            if not self._is_silent:  # `_listen` says so
                self._is_silent, was_asked = True, False
            elif not was_asked:
                was_asked = True
                self._say("PING")
            else:
                patience.reschedule(asyncio.get_running_loop().time())
                return

    def _say(self, *command: str) -> None:
        """What is said in one turn of the event loop leaves in one write; without a connection nothing does."""
        if self._connection is None:
            return
        pack: Any = hiredis.pack_command  # its stub knows one argument only
        self._outbox.append(pack(command))
        if self._sending is None:
            self._sending = asyncio.create_task(self._send())

    async def _send(self) -> None:
        with contextlib.suppress(RedisError, OSError):  # the reader of the connection learns of it
            while self._outbox and self._connection is not None:
                packed = b"".join(self._outbox)
                self._outbox.clear()
                await self._connection.send_packed_command(packed, check_health=False)
        self._sending = None
