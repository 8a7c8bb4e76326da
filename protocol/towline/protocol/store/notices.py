"""The fast path: entries as scripts publish them, for the runs that a process follows.

Promises nothing about completeness: a notice may be lost, and after a reconnect `None` is yielded so that the
reader compares heads. What a notice holds is byte for byte what stands in the log.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final, cast

from redis.asyncio.client import PubSub
from redis.exceptions import RedisError

from towline.protocol import codec
from towline.protocol.deltas import decode_piece
from towline.protocol.store import api
from towline.protocol.store.connection import open_client
from towline.protocol.store.keys import RunKeys, run_of_channel

_POLL_S: Final = 1.0
_RETRY_S: Final = 0.2
_IDLE_CHANNEL: Final = "tl:n:idle"
"""A connection with no channel cannot be read; this one stays subscribed."""


def decode_notice(channel: bytes, payload: bytes) -> api.Notice:
    """The notice in one message: triples of id, meta and envelope, one a line; or pieces after a line that says so."""
    lines = payload.split(b"\n")
    if lines[0] == b"delta":
        return api.Notice(run_of_channel(channel.decode()), (), [decode_piece(line) for line in lines[1:]])
    entries = [codec.decode_entry(lines[i], lines[i + 2], lines[i + 1]) for i in range(0, len(lines), 3)]
    return api.Notice(run_of_channel(channel.decode()), entries)


class Notices:
    """Follows any number of runs over one connection."""

    def __init__(self, url: str) -> None:
        self._client = open_client(url, retries=0)
        self._pubsub: PubSub = self._client.pubsub(ignore_subscribe_messages=True)
        self._followed: set[str] = set()
        self._is_subscribed = False
        self._closing = asyncio.Event()
        self._lock = asyncio.Lock()
        self._reading = asyncio.Lock()

    async def follow(self, run: str) -> None:
        """Starts to yield notices of `run`. Returns once the store confirmed nothing: compare heads afterwards."""
        self._followed.add(run)
        await self._send("ssubscribe", RunKeys.of(run).channel)

    async def unfollow(self, run: str) -> None:
        """Stops to yield notices of `run`."""
        self._followed.discard(run)
        await self._send("sunsubscribe", RunKeys.of(run).channel)

    async def _send(self, verb: str, *channels: str) -> None:
        async with self._lock:
            try:
                await cast("Any", getattr(self._pubsub, verb)(*channels))
            except (RedisError, OSError, AttributeError):
                self._is_subscribed = False  # the reading loop subscribes to all again

    async def _subscribe_all(self) -> None:
        async with self._lock:
            await self._pubsub.aclose()  # type: ignore[no-untyped-call]
            self._pubsub = self._client.pubsub(ignore_subscribe_messages=True)
            await self._pubsub.subscribe(_IDLE_CHANNEL)
            for run in list(self._followed):
                await cast("Any", self._pubsub.ssubscribe(RunKeys.of(run).channel))
            self._is_subscribed = True

    async def __aiter__(self) -> AsyncIterator[api.Notice | None]:
        while not self._closing.is_set():
            message: Any = None
            was_subscribed = self._is_subscribed
            try:
                async with self._reading:
                    if self._closing.is_set():
                        return
                    if not was_subscribed:
                        await self._subscribe_all()
                    else:
                        message = await self._pubsub.get_message(timeout=_POLL_S)
            except (RedisError, OSError, AttributeError):
                self._is_subscribed = False
                await asyncio.sleep(_RETRY_S)
                continue
            if not was_subscribed:
                yield None
            elif message is not None and message["type"] == "smessage":
                yield decode_notice(message["channel"], message["data"])

    async def aclose(self) -> None:
        """Closes the connection; the iteration ends."""
        self._closing.set()
        # The reader must be out of the connection before it is closed: it would open another one, for nobody.
        await self._send("unsubscribe", _IDLE_CHANNEL)
        async with self._reading:
            await self._pubsub.aclose()  # type: ignore[no-untyped-call]
            await self._client.aclose()
