"""What decides access besides the log: changes of grants and shares, and tickets.

Promises that a change is written with its event or not at all, and that a spent ticket is nobody's any more. Leaves
what a change may be to `granting`, and what a ticket stands for to the gateway.
"""

from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import unquote

from towline.protocol.store import api
from towline.protocol.store.base import ScriptCaller, refusal
from towline.protocol.store.connection import translated
from towline.protocol.store.keys import PARTITIONS, PartitionKeys, RunKeys, co_owned, ticket_key
from towline.protocol.store.wire import pack_entries

_STARTERS: Final = 100
"""How many runs that somebody owns by grant are looked at in each partition."""


class Accesses(ScriptCaller):
    """Grants, shares, tickets."""

    async def change_access(self, change: api.AccessChange) -> None:
        """See `interface.Store.change_access`."""
        keys = RunKeys.of(change.run)
        reply = await self._call(
            "change_access",
            [keys.log, keys.private, keys.run, keys.side, keys.partition.index, keys.partition.meta],
            {
                "run": change.run,
                "channel": keys.channel,
                "relies": change.version,
                "entries": pack_entries(change.entries),
                "set": [list(pair) for pair in change.side.items()],
                "unset": list(change.dropped),
                "listed": list(change.listed),
                "unlisted": list(change.unlisted),
            },
            now_at=2,
            relief=change.relief,
        )
        if reply[0] != b"OK":
            raise refusal(reply, change.run)

    async def starters_for(self, entries: Sequence[str]) -> list[str]:
        """Who started the runs that any of `entries` (`user:bob`, `group:ops`) owns by grant; thousands at most."""
        found: set[str] = set()
        with translated():
            async with self._client.pipeline(transaction=False) as pipe:
                for entry in entries:
                    for partition in PARTITIONS:
                        prefix = co_owned(entry)
                        pipe.zrangebylex(
                            PartitionKeys.of(partition).index, f"[{prefix}", f"({prefix}\x7f", 0, _STARTERS
                        )
                rows = await pipe.execute()
        for row in rows:
            found.update(unquote(member.decode().split("|")[2]) for member in row)
        return sorted(found)

    async def keep_ticket(self, digest: str, text: str, ttl_ms: int) -> None:
        """Keeps what a ticket stands for, under its digest, until it ends."""
        with translated():
            await self._client.set(ticket_key(digest), text, px=ttl_ms)

    async def ticket(self, digest: str, *, spend: bool) -> str | None:
        """What a ticket stands for; with `spend` nobody gets it again."""
        key = ticket_key(digest)
        with translated():
            found: Any = await (self._client.getdel(key) if spend else self._client.get(key))
        return None if found is None else str(found.decode())
