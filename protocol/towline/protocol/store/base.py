"""The base of the store: one client, one clock, and the one way to run a script.

Promises that each reply which carries the store's time moves the estimate of its clock. What the scripts do
stands in `redis`, `commits` and `sweeps`; reads in `reading`.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from towline.protocol.limits import LEASE_MS, UNAPPLIED_COMMANDS
from towline.protocol.store import api
from towline.protocol.store.connection import Clock, translated
from towline.protocol.store.keys import PARTITIONS, PartitionKeys, RunKeys, index_part
from towline.protocol.store.multiplex import Multiplexed
from towline.protocol.store.reading import Reader
from towline.protocol.store.scripts import Probe, Scripts
from towline.protocol.store.wire import pack_entries


class ScriptCaller(Reader):
    """Runs scripts over one client. `is_for_tests`: the store was initialised for tests."""

    def __init__(self, client: Multiplexed, probe: Probe | None) -> None:
        super().__init__(client)
        self.clock = Clock()
        self.is_for_tests = False
        self._scripts = Scripts(client, probe)

    def now_ms(self) -> int:
        """Estimate of the store's clock; never behind it."""
        return self.clock.now_ms()

    async def sync_clock(self) -> int:
        """Reads the store's clock anew."""
        sent_s = time.monotonic()
        with translated():
            async with self._client.pipeline(transaction=False) as pipe:
                pipe.time()
                pipe.hget(PartitionKeys.of(0).meta, "clock_offset_ms")
                (seconds, micros), offset = await pipe.execute()
        self.clock.observe(seconds * 1000 + micros // 1000 + int(offset or 0), sent_s)
        return self.now_ms()

    async def set_clock_offset(self, offset_ms: int) -> None:
        """Moves the clock that every script sees. Raises `TestOnly` unless the store was made for tests."""
        if not self.is_for_tests:
            raise api.TestOnly("the clock of a store moves only if it was initialised for tests")
        with translated():
            async with self._client.pipeline(transaction=False) as pipe:
                for partition in PARTITIONS:
                    pipe.hset(PartitionKeys.of(partition).meta, "clock_offset_ms", str(offset_ms))
                await pipe.execute()
        self.clock = Clock()
        await self.sync_clock()

    async def _call(
        self, name: str, keys: Sequence[str], request: dict[str, Any], *, now_at: int | None, relief: bool = True
    ) -> list[Any]:
        """Runs a script; item `now_at` of an OK reply is the store's time."""
        sent_s = time.monotonic()
        with translated():
            reply = await self._scripts.call(name, keys, request, relief=relief)
        if now_at is not None and reply[0] in (b"OK", b"POISON") and len(reply) > now_at:
            self.clock.observe(int(reply[now_at]), sent_s)
        return reply


def receipt_field(subject: str, command_id: str) -> str:
    """Names one accepted command in the fields of a run's side hash."""
    return f"{index_part(subject)}|{command_id}"


def inbox_rows(waits: Mapping[str, Sequence[str]]) -> list[list[Any]]:
    """What begins to wait for people, as `lib/inbox.lua` reads it."""
    return [[request, [index_part(who) for who in whom]] for request, whom in waits.items()]


def acceptance_request(a: api.Acceptance) -> dict[str, Any]:
    """A command to accept, as `lib/accept.lua` reads it."""
    return {
        "run": a.run,
        "channel": RunKeys.of(a.run).channel,
        "claim_ms": LEASE_MS,
        "nonce": a.nonce,
        "receipt": receipt_field(a.subject, a.command_id),
        "fingerprint": a.fingerprint,
        "record": a.type,
        "outcome": a.outcome,
        "relies": [list(pair) for pair in a.relies.items()],
        "entries": pack_entries(a.entries),
        "side": [list(pair) for pair in a.side.items()],
        "input_index": a.input_index,
        "counts": a.counts,
        "max_unapplied": UNAPPLIED_COMMANDS,
        "deadline_ms": -1 if a.deadline_ms is None else a.deadline_ms,
        "index_add": inbox_rows(a.inbox_add),
        "index_remove": list(a.inbox_remove),
        "paused": a.paused,
        "was_paused": "*" if a.was_paused is None else a.was_paused,
        "was_held": -1 if a.was_held is None else int(a.was_held),
    }


_REFUSALS: dict[bytes, Callable[[str], api.StoreError]] = {
    b"NORUN": api.NoRun,
    b"GONE": api.RunGone,
    b"CLOSED": api.RunClosed,
    b"CHANGED": api.Changed,
    b"FENCED": api.Fenced,
    b"DIVERGED": api.Diverged,
    b"UNSEEN": api.Unseen,
}


def refusal(reply: list[Any], run: str) -> api.StoreError:
    """The error that a script's refusal stands for."""
    make = _REFUSALS.get(reply[0])
    return make(run) if make is not None else api.StoreError(f"{run}: the script answered {reply!r}")
