"""The store on Redis or Valkey: each write is one script, each reply a value or an error of `api`.

Promises what `interface` promises. Every write carries a nonce or a commit number that is drawn once per call and kept
over repeats, so a lost reply changes nothing. Read `interface` and the headers of `lua/*.lua` first; reads stand in
`reading`, what hands out work in `dispatch`.
"""

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, cast

import msgspec
import redis.asyncio

from towline.protocol.cursor import Cursor
from towline.protocol.ids import PARTITION_TAGS
from towline.protocol.limits import LEASE_MS, POISON_CRASHES, UNAPPLIED_COMMANDS
from towline.protocol.store import api
from towline.protocol.store.connection import Clock, open_client, translated
from towline.protocol.store.dispatch import Dispatch
from towline.protocol.store.keys import PARTITIONS, STORE, PartitionKeys, RunKeys, index_part, timer_member
from towline.protocol.store.notices import Notices
from towline.protocol.store.reading import Reader, encode_snapshot
from towline.protocol.store.scripts import Probe, Scripts
from towline.protocol.store.wire import pack_entries

RETAIN_MS = 3_600_000
"""How long a sealed run stays before it may be archived."""


class RedisStore(Reader):
    """The log on one server. Make it with `connect`; close it with `aclose`."""

    def __init__(self, url: str, client: redis.asyncio.Redis, probe: Probe | None) -> None:
        super().__init__(client)
        self.url = url
        self.clock = Clock()
        self._scripts = Scripts(client, probe)
        self._dispatch = Dispatch(url, client)
        self._secret = b""
        self.is_for_tests = False

    @classmethod
    async def connect(cls, url: str, *, probe: Probe | None = None, for_tests: bool = False) -> "RedisStore":
        """Opens the store at `url` and initialises it if it is new. `for_tests` marks a new one as a test store.

        Raises `StoreUnavailable`.
        """
        store = cls(url, open_client(url), probe)
        try:
            await store._initialise(for_tests)
            await store.sync_clock()
        except BaseException:
            await store.aclose()
            raise
        return store

    async def aclose(self) -> None:
        """Closes the connections."""
        await self._dispatch.aclose()
        await self._client.aclose()

    async def _initialise(self, for_tests: bool) -> None:
        """Seeds what scripts name, so that no key of theirs is ever missing; keeps what is there."""
        with translated():
            async with self._client.pipeline(transaction=True) as pipe:
                pipe.hsetnx(STORE, "generation", secrets.token_hex(8))
                pipe.hsetnx(STORE, "secret", secrets.token_hex(32))
                pipe.hsetnx(STORE, "partitions", str(len(PARTITION_TAGS)))
                pipe.hsetnx(STORE, "for_tests", "1" if for_tests else "0")
                pipe.hmget(STORE, ["partitions", "secret", "for_tests", "seeded"])
                answer = (await pipe.execute())[-1]
            partitions, secret, tests, seeded = answer
            if int(partitions) != len(PARTITION_TAGS):
                raise api.StoreError(f"the store has {int(partitions)} partitions, this release {len(PARTITION_TAGS)}")
            self._secret, self.is_for_tests = bytes.fromhex(secret.decode()), tests == b"1"
            if seeded:
                return
            async with self._client.pipeline(transaction=False) as pipe:
                for partition in PARTITIONS:
                    keys = PartitionKeys.of(partition)
                    for sorted_set in (keys.leases, keys.timers, keys.done):
                        pipe.zadd(sorted_set, {"-": float("inf")})
                    pipe.zadd(keys.index, {"-": 0})
                    for hashed in (keys.threads, keys.switch, keys.outbox, keys.meta):
                        pipe.hset(hashed, "-", "")
                pipe.hset(STORE, "seeded", "1")
                await pipe.execute()

    @property
    def secret(self) -> bytes:
        """The store's own secret: ids derived from keys of clients are keyed with it."""
        return self._secret

    # --- time ---

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

    # --- creating and commanding ---

    async def create_run(self, new: api.NewRun) -> api.Created:
        """See `interface.Store.create_run`."""
        keys = RunKeys.of(new.run)
        part = keys.partition
        reply = await self._call(
            "create_run",
            [keys.log, keys.private, keys.run, keys.side, part.commands(new.queue), part.leases, part.index, part.meta],
            {
                "run": new.run,
                "nonce": new.nonce,
                "fingerprint": new.fingerprint,
                "owner": new.owner,
                "workflow": new.workflow,
                "version": new.version,
                "queue": new.queue,
                "channel": keys.channel,
                "claim_ms": LEASE_MS,
                "entries": pack_entries([new.created]),
                "index": ["a|", f"r|{index_part(new.owner)}|"],
            },
            now_at=3,
            relief=False,
        )
        match reply[0]:
            case b"OK":
                return api.Created(Cursor(int(reply[1]), int(reply[2])))
            case b"EXISTS":
                existing = api.Existing(reply[1].decode(), reply[2].decode())
                return api.Created(Cursor(int(reply[3]), int(reply[4])), existing)
            case _:
                raise _refusal(reply, new.run)

    async def accept(self, acceptance: api.Acceptance) -> api.Accepted | api.Repeated | api.Flooded:
        """See `interface.Store.accept`."""
        a = acceptance
        keys = RunKeys.of(a.run)
        part = keys.partition
        reply = await self._call(
            "accept_command",
            [keys.log, keys.private, keys.run, keys.side, part.commands(a.queue), part.leases, part.timers, part.meta],
            {
                "run": a.run,
                "channel": keys.channel,
                "claim_ms": LEASE_MS,
                "nonce": a.nonce,
                "receipt": _receipt_field(a.subject, a.command_id),
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
            },
            now_at=4,
            relief=a.relief,
        )
        match reply[0]:
            case b"OK":
                return api.Accepted(int(reply[1]), Cursor(int(reply[2]), int(reply[3])), int(reply[4]))
            case b"DUPLICATE":
                return api.Repeated(int(reply[4]), reply[1].decode(), reply[2].decode(), reply[3].decode())
            case b"FULL":
                return api.Flooded(int(reply[1]))
            case _:
                raise _refusal(reply, a.run)

    async def command_outcome(self, run: str, subject: str, command_id: str) -> api.Repeated | None:
        """What is known of an accepted command, or None if the id was never accepted."""
        field = _receipt_field(subject, command_id)
        with translated():
            record, outcome = await cast("Any", self._client.hmget(RunKeys.of(run).side, [f"c|{field}", f"o|{field}"]))
        if record is None:
            return None
        kept = msgspec.msgpack.decode(record)
        return api.Repeated(int(kept["first"]), kept["fingerprint"], kept["record"], (outcome or b"").decode())

    # --- leases ---

    async def claim(
        self, run: str, *, nonce: str, holder: str, version: str, ttl_ms: int = LEASE_MS, closing: bool = False
    ) -> api.Claimed | api.NotClaimed:
        """See `interface.Store.claim`."""
        keys = RunKeys.of(run)
        reply = await self._call(
            "claim_run",
            [keys.run, keys.partition.leases, keys.partition.meta],
            {
                "run": run,
                "nonce": nonce,
                "holder": holder,
                "ttl_ms": ttl_ms,
                "version": version,
                "closing": closing,
                "poison_at": POISON_CRASHES,
            },
            now_at=8,
        )
        match reply[0]:
            case b"OK" | b"POISON":
                return api.Claimed(
                    run=run,
                    fence=api.Fence(int(reply[1]), nonce),
                    cursor=Cursor(int(reply[2]), int(reply[3])),
                    input_seq=int(reply[4]),
                    crashes=int(reply[5]),
                    lapsed=reply[6].decode(),
                    lease_until_ms=int(reply[7]),
                    now_ms=int(reply[8]),
                    stopping_ms=int(reply[9]),
                    is_poison=reply[0] == b"POISON",
                )
            case b"HELD":
                return api.NotClaimed("held", int(reply[1]))
            case b"PARKED":
                return api.NotClaimed("parked")
            case b"CLOSED":
                return api.NotClaimed("closed")
            case b"NORUN":
                return api.NotClaimed("no_run")
            case b"CHANGED":
                return api.NotClaimed("version", version=reply[1].decode())
            case _:
                raise _refusal(reply, run)

    async def renew(self, leases: Sequence[api.Lease], *, ttl_ms: int = LEASE_MS) -> Sequence[api.Renewal]:
        """See `interface.Store.renew`. Leases of one partition go in one call, at most 100."""
        by_partition: dict[str, list[api.Lease]] = {}
        for lease in leases:
            by_partition.setdefault(RunKeys.of(lease.run).partition.tag, []).append(lease)
        groups = [group[i : i + 100] for group in by_partition.values() for i in range(0, len(group), 100)]
        answers = await asyncio.gather(*(self._renew_group(group, ttl_ms) for group in groups))
        return [renewal for group in answers for renewal in group]

    async def _renew_group(self, group: Sequence[api.Lease], ttl_ms: int) -> list[api.Renewal]:
        part = RunKeys.of(group[0].run).partition
        sent_s = time.monotonic()
        reply = await self._call(
            "renew_leases",
            [part.leases, part.meta, *(RunKeys.of(lease.run).run for lease in group)],
            {
                "ttl_ms": ttl_ms,
                "leases": [
                    {"run": x.run, "epoch": x.fence.epoch, "nonce": x.fence.nonce, "step": x.step} for x in group
                ],
            },
            now_at=None,
        )
        self.clock.observe(int(reply[0]), sent_s)
        renewals = []
        for lease, answer in zip(group, reply[1:], strict=True):
            if answer[0] == b"OK":
                renewals.append(api.Renewal(lease.run, None, int(answer[1]), int(answer[2])))
            else:
                lost: Any = {b"FENCED": "fenced", b"CLOSED": "closed", b"NORUN": "no_run"}[answer[0]]
                renewals.append(api.Renewal(lease.run, lost))
        return renewals

    # --- commits ---

    def _commit_request(self, c: api.Commit, keys: RunKeys) -> dict[str, Any]:
        stamp = {"epoch": c.fence.epoch, "commit": c.number, "seen": str(c.seen), "now_ms": c.now_ms}
        side = [list(pair) for pair in c.side.items()]
        side += [[f"o|{_receipt_field(o.subject, o.command_id)}", o.receipt] for o in c.outcomes]
        return {
            "run": c.run,
            "channel": keys.channel,
            "epoch": c.fence.epoch,
            "nonce": c.fence.nonce,
            "commit": c.number,
            "seen": str(c.seen),
            "entries": pack_entries(c.entries, **stamp),
            "arm": [[timer_member(t.kind, t.id, c.run), t.due_ms] for t in c.arm],
            "disarm": [timer_member(t.kind, t.id, c.run) for t in c.disarm],
            "side": side,
            "applied": c.applied,
            "recorded": c.recorded,
            "snapshot": "" if c.snapshot is None else encode_snapshot(c.snapshot),
            "snapshot_seq": 0 if c.snapshot is None else c.snapshot.last_seq,
        }

    async def commit(self, commit: api.Commit) -> api.Committed:
        """See `interface.Store.commit`."""
        keys = RunKeys.of(commit.run)
        part = keys.partition
        reply = await self._call(
            "commit",
            [keys.log, keys.private, keys.run, keys.side, part.timers, part.meta],
            self._commit_request(commit, keys),
            now_at=4,
        )
        return _committed(reply, commit.run)

    async def release(self, commit: api.Commit, to: Literal["waiting", "blocked", "hand_over"]) -> api.Committed:
        """See `interface.Store.release`."""
        keys = RunKeys.of(commit.run)
        part = keys.partition
        reply = await self._call(
            "release_run",
            [
                keys.log, keys.private, keys.run, keys.side, part.timers, part.meta, part.leases,
                part.commands(commit.queue),
            ],
            {**self._commit_request(commit, keys), "to": to, "claim_ms": LEASE_MS},
            now_at=4,
        )  # fmt: skip
        return _committed(reply, commit.run)

    async def close(self, commit: api.Commit, *, prepared_at: int | None = None) -> api.Committed:
        """See `interface.Store.close`."""
        keys = RunKeys.of(commit.run)
        part = keys.partition
        reply = await self._call(
            "close_run",
            [keys.log, keys.private, keys.run, keys.side, part.timers, part.meta, part.leases, part.done],
            {
                **self._commit_request(commit, keys),
                "forced": prepared_at is not None,
                "prepared_at": prepared_at or 0,
                "retain_ms": RETAIN_MS,
            },
            now_at=4,
        )
        return _committed(reply, commit.run)

    # --- sweeps: see `sweep` for who calls them ---

    async def fire_timer(self, run: str, queue: str, member: str, entries: Sequence[Any]) -> str:
        """Fires one due timer; the word the script answered."""
        keys = RunKeys.of(run)
        part = keys.partition
        reply = await self._call(
            "fire_timer",
            [keys.log, keys.private, keys.run, part.commands(queue), part.leases, part.timers, part.meta],
            {
                "run": run,
                "channel": keys.channel,
                "member": member,
                "entries": pack_entries(entries),
                "claim_ms": LEASE_MS,
            },
            now_at=3,
        )
        return str(reply[0].decode())

    async def rehint(self, run: str, queue: str) -> str:
        """Hints again at an overdue run; the word the script answered."""
        keys = RunKeys.of(run)
        part = keys.partition
        reply = await self._call(
            "rehint_run",
            [keys.run, part.commands(queue), part.leases, part.meta],
            {"run": run, "group": "workers", "claim_ms": LEASE_MS},
            now_at=1,
        )
        return str(reply[0].decode())

    async def take_sweep(self, partition: int, sweeper: str, turn_ms: int) -> bool:
        """Whether `sweeper` has the turn to sweep `partition`."""
        reply = await self._call(
            "sweep_partition",
            [PartitionKeys.of(partition).meta],
            {"sweeper": sweeper, "turn_ms": turn_ms},
            now_at=1,
        )
        return bool(reply[0] == b"OK")

    async def due(self, limit: int = 100) -> Sequence[tuple[int, Sequence[str], Sequence[str]]]:
        """(partition, overdue runs, due timer members) of each partition that has any, by store time."""
        now = await self.sync_clock()
        with translated():
            async with self._client.pipeline(transaction=False) as pipe:
                for partition in PARTITIONS:
                    keys = PartitionKeys.of(partition)
                    pipe.zrangebyscore(keys.leases, "-inf", now, 0, limit)
                    pipe.zrangebyscore(keys.timers, "-inf", now, 0, limit)
                rows = await pipe.execute()
        found = []
        for partition in PARTITIONS:
            leases, timers = rows[2 * partition], rows[2 * partition + 1]
            if leases or timers:
                found.append((partition, [m.decode() for m in leases], [m.decode() for m in timers]))
        return found

    async def drop_due(self, run: str, member: str | None) -> None:
        """Removes a lease or timer that names a run which does not exist."""
        keys = RunKeys.of(run).partition
        with translated():
            if member is None:
                await cast("Any", self._client.zrem(keys.leases, run))
            else:
                await cast("Any", self._client.zrem(keys.timers, member))

    # --- work and notices ---

    async def announce(self, worker: str, workflows: Sequence[api.WorkflowInfo]) -> None:
        """Says that `worker` runs these workflows; makes their queues on first use."""
        await self._dispatch.announce(worker, workflows, self.now_ms())

    async def announced(self) -> Sequence[api.Announced]:
        """Every workflow version that a worker announced."""
        return await self._dispatch.announced()

    async def read_hints(self, queue: str, *, count: int, block_ms: int) -> Sequence[api.Hint]:
        """See `interface.Store.read_hints`."""
        return await self._dispatch.read_hints(queue, count=count, block_ms=block_ms)

    async def trim_hints(self, partition: int) -> None:
        """Drops the hints of a partition that were delivered."""
        await self._dispatch.trim(partition)

    def notices(self) -> Notices:
        """A new reader of notices; close it with `aclose`."""
        return Notices(self.url)


def _receipt_field(subject: str, command_id: str) -> str:
    return f"{index_part(subject)}|{command_id}"


_REFUSALS: dict[bytes, Callable[[str], api.StoreError]] = {
    b"NORUN": api.NoRun,
    b"GONE": api.RunGone,
    b"CLOSED": api.RunClosed,
    b"CHANGED": api.Changed,
    b"FENCED": api.Fenced,
    b"DIVERGED": api.Diverged,
    b"UNSEEN": api.Unseen,
}


def _refusal(reply: list[Any], run: str) -> api.StoreError:
    make = _REFUSALS.get(reply[0])
    return make(run) if make is not None else api.StoreError(f"{run}: the script answered {reply!r}")


def _committed(reply: list[Any], run: str) -> api.Committed:
    if reply[0] != b"OK":
        raise _refusal(reply, run)
    return api.Committed(int(reply[1]), Cursor(int(reply[2]), int(reply[3])), int(reply[4]), int(reply[5] or 0))
