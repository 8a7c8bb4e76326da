"""The store on Redis or Valkey: each write is one script, each reply a value or an error of `api`.

Promises what `interface` promises. Every write carries a nonce or a commit number that is drawn once per call and kept
over repeats, so a lost reply changes nothing. Read `interface` and the headers of `lua/*.lua` first; lease
holders' writes stand in `commits`, sweeps in `sweeps`, reads in `reading`, what hands out work in `dispatch`.
"""

import asyncio
import secrets
import time
from collections.abc import Sequence
from typing import Any, cast

import msgspec

from towline.protocol.cursor import Cursor
from towline.protocol.ids import PARTITION_TAGS
from towline.protocol.limits import LEASE_MS, POISON_CRASHES, THREAD_RUNS
from towline.protocol.store import api
from towline.protocol.store.accesses import Accesses
from towline.protocol.store.base import acceptance_request, receipt_field, refusal
from towline.protocol.store.commits import Commits
from towline.protocol.store.connection import open_multiplexed, translated
from towline.protocol.store.dispatch import Dispatch
from towline.protocol.store.holders import Holders
from towline.protocol.store.inboxes import Inboxes
from towline.protocol.store.keys import EVERYONE, PARTITIONS, STORE, PartitionKeys, RunKeys, listed_for
from towline.protocol.store.multiplex import Multiplexed
from towline.protocol.store.notices import Notices
from towline.protocol.store.purges import Purges
from towline.protocol.store.rates import RatesStore
from towline.protocol.store.scripts import Probe
from towline.protocol.store.sweeps import Sweeps
from towline.protocol.store.texts import Texts
from towline.protocol.store.threads import Threads
from towline.protocol.store.trims import Trims
from towline.protocol.store.uploads import Uploads
from towline.protocol.store.wire import pack_entries


class RedisStore(Accesses, Commits, Holders, Inboxes, Purges, RatesStore, Sweeps, Texts, Threads, Trims, Uploads):
    """The log on one server. Make it with `connect`; close it with `aclose`."""

    def __init__(self, url: str, client: Multiplexed, probe: Probe | None) -> None:
        super().__init__(client, probe)
        self.url = url
        self._dispatch = Dispatch(url, client)
        self._secret = b""

    @classmethod
    async def connect(cls, url: str, *, probe: Probe | None = None, for_tests: bool = False) -> "RedisStore":
        """Opens the store at `url` and initialises it if it is new. `for_tests` marks a new one as a test store.

        Raises `StoreUnavailable`.
        """
        store = cls(url, open_multiplexed(url), probe)
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
        """Seeds what scripts name, so that no key of theirs is ever missing; keeps what is there.

        Writes nothing to a store that was seeded before: a process that starts must be able to bring relief to one
        whose memory is full.
        """
        facts: Any = ["partitions", "secret", "for_tests", "seeded"]
        with translated():
            answer = await cast("Any", self._client.hmget(STORE, facts))
            if not answer[3]:
                async with self._client.pipeline(transaction=True) as pipe:
                    pipe.hsetnx(STORE, "generation", secrets.token_hex(8))
                    pipe.hsetnx(STORE, "secret", secrets.token_hex(32))
                    pipe.hsetnx(STORE, "partitions", str(len(PARTITION_TAGS)))
                    pipe.hsetnx(STORE, "for_tests", "1" if for_tests else "0")
                    pipe.hmget(STORE, facts)
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

    # --- creating and commanding ---

    async def create_run(self, new: api.NewRun) -> api.Created | api.Flooded:
        """See `interface.Store.create_run`."""
        keys = RunKeys.of(new.run)
        part = keys.partition
        first = keys if new.interrupt is None else RunKeys.of(new.interrupt.run)
        reply = await self._call(
            "create_run",
            [
                keys.log, keys.private, keys.run, keys.side, part.commands(new.queue), part.leases, part.timers,
                part.index, part.meta, part.threads, first.log, first.private, first.run, first.side,
                part.commands(new.queue if new.interrupt is None else new.interrupt.queue),
            ],
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
                "index": [EVERYONE, listed_for(new.owner), *new.listed],
                "side": [list(pair) for pair in new.side.items()],
                "start_ms": new.start_ms,
                "retain_ms": -1 if new.retain_ms is None else new.retain_ms,
                "command": new.command is not None and acceptance_request(new.command),
                "thread": new.thread,
                "behind": new.behind,
                "max_runs": THREAD_RUNS,
                "interrupt": new.interrupt is not None and acceptance_request(new.interrupt),
                "instead": new.instead,
            },
            now_at=3,
            relief=False,
        )  # fmt: skip
        match reply[0]:
            case b"OK":
                return api.Created(Cursor(int(reply[1]), int(reply[2])))
            case b"EXISTS":
                existing = api.Existing(reply[1].decode(), reply[2].decode())
                return api.Created(Cursor(int(reply[3]), int(reply[4])), existing)
            case b"GONE":
                raise api.RunGone(new.run, reply[1].decode())
            case b"FULL":
                return api.Flooded(int(reply[1]))
            case b"CHANGED" if reply[1] == b"reserved":
                raise api.Reserved(reply[2].decode())
            case _:
                raise refusal(reply, new.run)

    async def accept(self, acceptance: api.Acceptance) -> api.Accepted | api.Repeated | api.Flooded:
        """See `interface.Store.accept`."""
        a = acceptance
        keys = RunKeys.of(a.run)
        part = keys.partition
        reply = await self._call(
            "accept_command",
            [
                keys.log, keys.private, keys.run, keys.side, part.commands(a.queue), part.leases, part.timers,
                part.meta, part.index,
            ],
            acceptance_request(a),
            now_at=4,
            relief=a.relief,
        )  # fmt: skip
        match reply[0]:
            case b"OK":
                return api.Accepted(int(reply[1]), Cursor(int(reply[2]), int(reply[3])), int(reply[4]))
            case b"DUPLICATE":
                return api.Repeated(int(reply[4]), reply[1].decode(), reply[2].decode(), reply[3].decode())
            case b"FULL":
                return api.Flooded(int(reply[1]))
            case _:
                raise refusal(reply, a.run)

    async def command_outcome(self, run: str, subject: str, command_id: str) -> api.Repeated | None:
        """What is known of an accepted command, or None if the id was never accepted."""
        field = receipt_field(subject, command_id)
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
                raise refusal(reply, run)

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

    async def give_back_hints(self, queue: str) -> None:
        """Hands on the hints that a read brought beyond what was taken, if the reader will not come back soon."""
        await self._dispatch.give_back(queue)

    async def return_hint(self, queue: str, hint: api.Hint) -> None:
        """See `interface.Store.return_hint`."""
        await self._dispatch.return_hint(queue, hint)

    async def trim_hints(self, partition: int) -> None:
        """Drops the hints of a partition that were delivered."""
        await self._dispatch.trim(partition)

    def notices(self) -> Notices:
        """A new reader of notices; close it with `aclose`."""
        return Notices(self.url)
