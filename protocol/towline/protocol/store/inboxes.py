"""What waits for people across runs, and which runs just changed: reads for inbox and watch feeds.

Promises that a page of the inbox is stable under insertion, and nothing about completeness of changes: they are hints.
Leaves who may really answer to whoever reads the run. The rows are written by `lib/inbox.lua`, the hints by
`lib/append.lua`.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

from msgspec import Struct
from redis.exceptions import RedisError

from towline.protocol.store.connection import open_client, translated
from towline.protocol.store.keys import PARTITIONS, PartitionKeys, index_part
from towline.protocol.store.reading import Reader

_POLL_S: Final = 1.0
_RETRY_S: Final = 0.2
_QUIET_S: Final = 5.0


class Waiting(Struct, frozen=True):
    """One row: `item` of `run` waits since `ms`. `position` is where a page goes on."""

    position: str
    run: str
    item: str


class Inboxes(Reader):
    """The reads."""

    url: str

    async def inbox(self, looks: Sequence[str], *, before: str | None, limit: int) -> Sequence[Waiting]:
        """What waits for any of `looks` (`user:…`, `group:…`, `role:…`), newest first, strictly before a position."""
        prefixes = [f"i|{index_part(look)}|" for look in looks]
        positions: set[str] = set()
        with translated():
            async with self._client.pipeline(transaction=False) as pipe:
                for prefix in prefixes:
                    top = f"({prefix}{before}" if before is not None else f"({prefix}\x7f"
                    for partition in PARTITIONS:
                        pipe.zrevrangebylex(PartitionKeys.of(partition).index, top, f"[{prefix}", 0, limit)
                rows = await pipe.execute()
        for number, row in enumerate(rows):
            cut = len(prefixes[number // len(PARTITIONS)])
            positions.update(member.decode()[cut:] for member in row)
        return [Waiting(each, *each.split("|", 2)[1:]) for each in sorted(positions, reverse=True)[:limit]]

    async def changes(self, *, quiet_s: float = _QUIET_S) -> AsyncIterator[str | None]:
        """The id of each run that something was appended to, as it happens; None when all are heard from here on.

        One connection, which is opened again for ever. After `quiet_s` of silence the store is asked whether it is
        there; after as much again the connection counts as lost. End it by cancelling whoever iterates.
        """
        loop = asyncio.get_running_loop()
        client = open_client(self.url, retries=0)
        try:
            while True:
                pubsub: Any = client.pubsub()
                unconfirmed, patience_s, was_asked = len(PARTITIONS), loop.time() + quiet_s, False
                try:
                    for partition in PARTITIONS:
                        await pubsub.ssubscribe(PartitionKeys.of(partition).changes)
                    while True:
                        message = await pubsub.get_message(timeout=min(_POLL_S, quiet_s))
                        if message is None:
                            if loop.time() < patience_s:
                                continue
                            if was_asked:
                                break  # a dead line says nothing, not even that it is dead
                            await pubsub.ping()
                        patience_s, was_asked = loop.time() + quiet_s, message is None
                        if message is None:
                            continue
                        if message["type"] == "smessage":
                            yield message["data"].decode()
                        elif message["type"] == "ssubscribe":
                            unconfirmed -= 1
                            if unconfirmed == 0:
                                yield None
                except (RedisError, OSError, AttributeError):
                    await asyncio.sleep(_RETRY_S)
                finally:
                    await pubsub.aclose()
        finally:
            await client.aclose()
