"""Handing out work: announcements of workers and the hints on the command streams.

Promises that a queue exists in every partition once a worker announced it, that a vanished stream or group is
made again from its beginning, and that a hint is read at most once. A hint is disposable: the sweep repeats it.
"""

import logging
import random
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, cast

import msgspec
import redis.asyncio
from redis.exceptions import ResponseError

from towline.protocol.store import api
from towline.protocol.store.connection import open_client, translated
from towline.protocol.store.keys import CONSUMER, GROUP, PARTITIONS, REGISTRY, PartitionKeys, RunKeys

_log: Final = logging.getLogger("towline.store")
_BLOCK_MAX_MS: Final = 2_000
_RETURNS: Final = 16
_FORGET_MS: Final = 3_600_000
"""An announcement this much older than the newest of the same workflow version is dropped."""


class _Record(msgspec.Struct):
    workflow: api.WorkflowInfo
    worker: str
    at_ms: int


def _fields(hint: api.Hint) -> dict[str, str | int]:
    """A hint as it stands on a command stream."""
    return {"run": hint.run, "workflow": hint.workflow, "version": hint.version, "returned": hint.returned}


class Dispatch:
    """Announcements and hints over the store's client and one connection of its own for blocking reads."""

    def __init__(self, url: str, client: redis.asyncio.Redis) -> None:
        self._client = client
        self._blocking = open_client(url, timeout_s=_BLOCK_MAX_MS / 1000 + 3)
        self._known_queues: set[str] = set()
        self._spare: dict[str, list[api.Hint]] = {}

    async def aclose(self) -> None:
        await self._blocking.aclose()

    async def announce(self, worker: str, workflows: Sequence[api.WorkflowInfo], now_ms: int) -> None:
        """Put off while memory is full: the worker can still bring the runs of announced versions to their ends."""
        try:
            await self._announce(worker, workflows, now_ms)
        except api.StoreFull:
            _log.warning("the announcement of %s is put off: the store's memory is full", worker)

    async def _announce(self, worker: str, workflows: Sequence[api.WorkflowInfo], now_ms: int) -> None:
        for queue in {w.queue for w in workflows} - self._known_queues:
            await self._make_queue(queue)
            self._known_queues.add(queue)
        records = {
            f"w|{w.name}|{w.version}|{worker}": msgspec.json.encode(_Record(w, worker, now_ms)) for w in workflows
        }
        queues = {f"q|{w.queue}": str(now_ms).encode() for w in workflows}
        with translated():
            if records:
                await cast("Any", self._client.hset(REGISTRY, mapping=cast("Any", {**records, **queues})))
        await self._forget_old(now_ms)

    async def _forget_old(self, now_ms: int) -> None:
        records = await self._records()
        newest: dict[tuple[str, str], int] = {}
        for record in records.values():
            key = (record.workflow.name, record.workflow.version)
            newest[key] = max(newest.get(key, 0), record.at_ms)
        old = [
            field
            for field, record in records.items()
            if record.at_ms < newest[record.workflow.name, record.workflow.version] - _FORGET_MS
        ]
        if old:
            with translated():
                await cast("Any", self._client.hdel(REGISTRY, *old))

    async def _records(self) -> dict[str, _Record]:
        with translated():
            fields = await cast("Any", self._client.hgetall(REGISTRY))
        return {
            name.decode(): msgspec.json.decode(value, type=_Record)
            for name, value in fields.items()
            if name.startswith(b"w|")
        }

    async def announced(self) -> Sequence[api.Announced]:
        records = (await self._records()).values()
        return [api.Announced(r.workflow, r.worker, r.at_ms) for r in records]

    async def _make_queue(self, queue: str) -> None:
        with translated():
            async with self._client.pipeline(transaction=False) as pipe:
                for partition in PARTITIONS:
                    pipe.xgroup_create(PartitionKeys.of(partition).commands(queue), GROUP, id="0", mkstream=True)
                for answer in await pipe.execute(raise_on_error=False):
                    if isinstance(answer, Exception) and "BUSYGROUP" not in str(answer):
                        raise answer

    async def read_hints(self, queue: str, *, count: int, block_ms: int) -> Sequence[api.Hint]:
        """A read over many streams may bring more than `count`; the rest is kept for the next call."""
        spare = self._spare.setdefault(queue, [])
        if not spare:
            spare.extend(await self._read(queue, block_ms))
        taken = spare[:count]
        del spare[:count]  # in place: another call may have waited for the same read
        return taken

    async def _read(self, queue: str, block_ms: int) -> list[api.Hint]:
        streams: dict[Any, Any] = {PartitionKeys.of(p).commands(queue): ">" for p in PARTITIONS}
        try:
            with translated():
                answer = await cast(
                    "Any",
                    self._blocking.xreadgroup(
                        GROUP, CONSUMER, streams, count=1, block=max(1, min(block_ms, _BLOCK_MAX_MS)), noack=True
                    ),
                )
        except api.StoreError as error:
            if isinstance(error.__cause__, ResponseError) and "NOGROUP" in str(error):
                await self._make_queue(queue)
                return []
            raise
        hints = [
            api.Hint(
                fields[b"run"].decode(),
                fields[b"workflow"].decode(),
                fields[b"version"].decode(),
                int(fields.get(b"returned", 0)),
            )
            for _, entries in answer or []
            for _, fields in entries
        ]
        random.shuffle(hints)
        return hints

    async def give_back(self, queue: str) -> None:
        """Hands on what a read brought beyond what was taken, for a reader that will not come back soon."""
        spare = self._spare.get(queue, [])
        hints = list(spare)
        spare.clear()
        if not hints:
            return
        with suppress(api.StoreFull), translated():
            async with self._client.pipeline(transaction=False) as pipe:
                for hint in hints:
                    pipe.xadd(RunKeys.of(hint.run).partition.commands(queue), cast("Any", _fields(hint)))
                await pipe.execute()

    async def return_hint(self, queue: str, hint: api.Hint) -> None:
        """Hands a hint on that its reader cannot take; readers that wait longer are served first.

        After `_RETURNS` hands it is dropped: nobody seems to run this version, and the sweep repeats it.
        """
        if hint.returned >= _RETURNS:
            return
        fields: Any = _fields(msgspec.structs.replace(hint, returned=hint.returned + 1))
        with suppress(api.StoreFull), translated():
            await cast("Any", self._client.xadd(RunKeys.of(hint.run).partition.commands(queue), fields))

    async def trim(self, partition: int) -> None:
        """Drops delivered hints of every queue that a worker ever announced."""
        with translated():
            names = await cast("Any", self._client.hkeys(REGISTRY))
        for queue in [name.decode()[2:] for name in names if name.startswith(b"q|")]:
            key = PartitionKeys.of(partition).commands(queue)
            with translated():
                if not await self._client.exists(key):
                    continue
                groups = await cast("Any", self._client.xinfo_groups(key))
                for group in groups:
                    if group["name"] == GROUP.encode() and group["last-delivered-id"] != b"0-0":
                        await cast("Any", self._client.xtrim(key, minid=group["last-delivered-id"], approximate=False))
