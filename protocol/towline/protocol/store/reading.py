"""Reads of the store: log pages behind a cursor, Runs, facts, listings.

Promises that a read behind a cursor starts at the cursor's own entry and compares its tag, so a reader never
crosses from one history into another unawares. Writes nothing.
"""

from collections.abc import AsyncIterator, Sequence
from functools import lru_cache
from typing import Any, Final, cast

import msgspec

from towline.protocol import codec
from towline.protocol.cursor import START, Cursor
from towline.protocol.limits import CHANGED_ATTEMPTS, STORE_PAGE_EVENTS
from towline.protocol.run import fold_all
from towline.protocol.run_state import Run
from towline.protocol.store.api import Diverged, Loaded, LogPage, NoRun, RunFacts, RunGone, Standing
from towline.protocol.store.connection import translated
from towline.protocol.store.keys import PARTITIONS, PartitionKeys, RunKeys
from towline.protocol.store.multiplex import AS_IT_IS, Multiplexed, packed

_FACTS: Final = (
    "last_seq", "last_tag", "first_seq", "gone", "owner", "workflow", "version", "queue", "fingerprint", "input_seq",
    "epoch", "holder", "lease_until", "heartbeat_ms", "step", "crashes", "sealed", "blocked", "stopping", "paused",
)  # fmt: skip
_FOLLOWED: Final = 20_000
_decode_run: Final = msgspec.json.Decoder(Run)


def encode_snapshot(run: Run) -> str:
    """A fold as the store keeps it."""
    return msgspec.json.encode(run).decode()


def _text(value: bytes | None) -> str:
    return "" if value is None else value.decode()


def _number(value: bytes | None, default: int = 0) -> int:
    return default if not value else int(value)


def _facts(run: str, values: Sequence[bytes | None]) -> RunFacts:
    v = dict(zip(_FACTS, values, strict=True))
    if v["gone"]:
        raise RunGone(run, _text(v["owner"]))
    if not v["last_seq"]:
        raise NoRun(run)
    return RunFacts(
        run=run,
        owner=_text(v["owner"]),
        workflow=_text(v["workflow"]),
        version=_text(v["version"]),
        queue=_text(v["queue"]),
        fingerprint=_text(v["fingerprint"]),
        head=Cursor(_number(v["last_seq"]), _number(v["last_tag"])),
        first_seq=_number(v["first_seq"], 1),
        input_seq=_number(v["input_seq"]),
        epoch=_number(v["epoch"]),
        holder=_text(v["holder"]),
        lease_until_ms=_number(v["lease_until"]),
        heartbeat_ms=_number(v["heartbeat_ms"]),
        step=_text(v["step"]),
        crashes=_number(v["crashes"]),
        sealed=v["sealed"] == b"1",
        blocked=v["blocked"] == b"1",
        stopping_ms=_number(v["stopping"]),
        paused=cast("Any", _text(v["paused"])),
    )


# Asked each second of every run that is followed, so each command is made once.
@lru_cache(maxsize=_FOLLOWED)
def _asks_head(run: str) -> bytes:
    return packed(("HMGET", RunKeys.of(run).run, "last_seq", "last_tag"))


@lru_cache(maxsize=_FOLLOWED)
def _asks_access(run: str) -> bytes:
    return packed(("HGET", RunKeys.of(run).run, "access"))


class Reader:
    """The reads. One instance shares the client of its store."""

    def __init__(self, client: Multiplexed) -> None:
        self._client = client

    async def facts(self, run: str) -> RunFacts:
        """What the store knows of a run beside its log. Raises `NoRun`, `RunGone`."""
        with translated():
            values = await cast("Any", self._client.hmget(RunKeys.of(run).run, list(_FACTS)))
        return _facts(run, values)

    async def standing(self, run: str, fields: Sequence[str]) -> Standing:
        """The facts of a run with what decides a caller's access to it. Raises `NoRun`, `RunGone`."""
        keys = RunKeys.of(run)
        with translated():
            async with self._client.pipeline(transaction=False) as pipe:
                pipe.hmget(keys.run, [*_FACTS, "access"])
                if fields:
                    pipe.hmget(keys.side, list(fields))
                values, *found = await pipe.execute()
        rows = zip(fields, found[0] if found else (), strict=True)
        side = {name: value.decode() for name, value in rows if value is not None}
        try:
            return Standing(_facts(run, values[:-1]), side, _text(values[-1]))
        except RunGone as gone:
            raise RunGone(run, gone.owner, side) from None

    async def access_versions(self, runs: Sequence[str]) -> dict[str, str]:
        """The version of each run's access, in one round trip; '' where it never changed."""
        with translated():
            versions = await self._client.ask([_asks_access(run) for run in runs])
        return {run: _text(version) for run, version in zip(runs, versions, strict=True)}

    async def read_log(self, run: str, after: Cursor, *, limit: int, private: bool = False) -> LogPage:
        """Up to `limit` entries after a cursor. Raises `NoRun`, `RunGone`."""
        keys = RunKeys.of(run)
        start = "-" if after == START else f"{after.seq}-0"
        with translated():
            async with self._client.pipeline(transaction=False) as pipe:
                pipe.hmget(keys.run, list(_FACTS))
                pipe.execute_command("XRANGE", keys.log, start, "+", "COUNT", limit + (after != START), **AS_IT_IS)
                values, rows = await pipe.execute()
        facts = _facts(run, values)
        entries = codec.decode_entries(rows)
        # The log may have grown between the two reads: what was read is the better head.
        head = max(facts.head, entries[-1].cursor if entries else START, key=lambda c: c.seq)
        # It may have been trimmed too: nothing else makes a hole.
        hole = entries[0].seq if entries and entries[0].seq > max(after.seq, 1) else 1
        first_seq = max(facts.first_seq, hole)

        def page(recovery: Any, found: Sequence[codec.Entry] = ()) -> LogPage:
            return LogPage(recovery, found, head, first_seq, facts.sealed)

        if after.seq > head.seq:
            return page("ahead")
        if after.seq > 0 and after.seq + 1 == first_seq:
            pass  # its entry is trimmed and all after it is there: nothing can be compared, nothing is lost
        elif after.seq > 0:
            if not entries or entries[0].seq != after.seq:
                return page("trimmed" if after.seq + 1 < first_seq else "diverged")
            if after.tag is not None and entries[0].tag != after.tag:
                return page("diverged")
            entries = entries[1:]
        elif first_seq > 1:
            return page("trimmed")
        if private and entries:
            with translated():
                parts = await cast("Any", self._client.hmget(keys.private, [str(e.seq) for e in entries]))
            entries = [msgspec.structs.replace(e, private=part) for e, part in zip(entries, parts, strict=True)]
        return page("ok", entries)

    async def load(self, run: str) -> Loaded:
        """The Run now: the stored snapshot and the fold of what came after it."""
        for _ in range(CHANGED_ATTEMPTS):
            if (loaded := await self._load(run)) is not None:
                return loaded
        raise Diverged(f"{run}: its log has a hole behind its snapshot")

    async def _load(self, run: str) -> Loaded | None:
        """The Run, or None if its log was trimmed meanwhile."""
        keys = RunKeys.of(run)
        with translated():
            values = await cast("Any", self._client.hmget(keys.run, [*_FACTS, "snapshot", "snapshot_seq"]))
        facts = _facts(run, values[:-2])
        state = _decode_run.decode(values[-2]) if values[-2] else None
        seq = _number(values[-1])
        cursor = facts.head
        while True:
            with translated():
                rows = await cast("Any", self._client).execute_command(
                    "XRANGE", keys.log, f"{seq + 1}-0", "+", "COUNT", STORE_PAGE_EVENTS, **AS_IT_IS
                )
            if rows:
                entries = codec.decode_entries(rows)
                if entries[0].seq != seq + 1:
                    return None
                state = fold_all(run, state, (entry.event() for entry in entries))
                cursor, seq = entries[-1].cursor, entries[-1].seq
            if len(rows) < STORE_PAGE_EVENTS:
                break
        if state is None:
            raise NoRun(run)
        return Loaded(state, cursor, facts)

    async def entries(self, run: str, after: Cursor = START) -> AsyncIterator[codec.Entry]:
        """Every entry behind a cursor, or from the first that is left. Raises as `read_log`, and `Diverged`."""
        while True:
            page = await self.read_log(run, after, limit=STORE_PAGE_EVENTS)
            if page.recovery == "trimmed":
                after = Cursor(page.first_seq - 1)
                continue
            if page.recovery != "ok":
                raise Diverged(run)
            for entry in page.entries:
                yield entry
            if len(page.entries) < STORE_PAGE_EVENTS:
                return
            after = page.entries[-1].cursor

    async def side_fields(self, run: str, fields: Sequence[str]) -> dict[str, str]:
        """The named fields of the run's side hash; absent ones are left out."""
        if not fields:
            return {}
        with translated():
            values = await cast("Any", self._client.hmget(RunKeys.of(run).side, list(fields)))
        return {name: value.decode() for name, value in zip(fields, values, strict=True) if value is not None}

    async def side_matching(self, run: str, prefix: str) -> dict[str, str]:
        """All fields of the side hash whose name begins with `prefix` (letters, digits and `|`)."""
        found: dict[str, str] = {}
        with translated():
            async for name, value in self._client.hscan_iter(RunKeys.of(run).side, match=prefix + "*", count=500):
                found[name.decode()] = value.decode()
        return found

    async def heads(self, runs: Sequence[str]) -> dict[str, Cursor]:
        """The newest position of each run that exists, in one round trip."""
        with translated():
            rows = await self._client.ask([_asks_head(run) for run in runs])
        return {run: Cursor(int(seq), int(tag)) for run, (seq, tag) in zip(runs, rows, strict=True) if seq}

    async def list_runs(self, *prefixes: str, before: str | None, limit: int) -> Sequence[tuple[str, str]]:
        """Newest first over all partitions: (position `<ms>|<run>`, run), strictly before `before`.

        A run that stands under several prefixes comes once: its position is the same under each.
        """
        positions: set[str] = set()
        for prefix in prefixes:
            top = f"({prefix}{before}" if before is not None else f"({prefix}\x7f"
            with translated():
                async with self._client.pipeline(transaction=False) as pipe:
                    for partition in PARTITIONS:
                        pipe.zrevrangebylex(PartitionKeys.of(partition).index, top, f"[{prefix}", 0, limit)
                    rows = await pipe.execute()
            positions.update(member.decode()[len(prefix) :] for row in rows for member in row)
        newest = sorted(positions, reverse=True)[:limit]
        return [(position, position.split("|", 1)[1]) for position in newest]
