"""A store under test: one real server, the calls recorded, runs made and held in one line each.

`Lab.dump` reads every key of a run's partition, so that a test can say "nothing was written"
(`unwritten`). `Lab.again` is a client whose reply was lost.
"""

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import redis.asyncio
from msgspec.structs import replace

from towline.protocol import event_data as d
from towline.protocol import requests
from towline.protocol.approvals import digest_of
from towline.protocol.codec import NewEntry
from towline.protocol.cursor import START, Cursor
from towline.protocol.events import Actor
from towline.protocol.limits import LEASE_MS
from towline.protocol.store import api
from towline.protocol.store.keys import RunKeys
from towline.protocol.store.redis import RedisStore
from towline.protocol.values import Proposal

AGENT = Actor("agent", "wf:review")
ALICE = Actor("user", "alice")
QUEUE = "default"
WORKFLOW = api.WorkflowInfo(
    name="review", version="1", queue=QUEUE, input_schema={"type": "object"}, signals={"go": {"type": "integer"}}
)
CREATED = d.RunCreated(
    workflow="review", version="1", owner="alice", queue=QUEUE, headline="Review", grants={}, budget=None
)
PROPOSAL = Proposal("Apply the fixes", [], ["fs:write"], "Broken files", "git checkout")


def note(text: str = "x", **more: Any) -> NewEntry:
    """An entry that changes nothing but the summary."""
    return NewEntry("progress.noted", AGENT, d.ProgressNoted(text=text), **more)


def signal_entry(command_id: str, payload: Any = 1) -> NewEntry:
    data = d.CommandReceived(command_id=command_id, type="signal", payload=payload, name="go")
    return NewEntry("command.received", ALICE, data, is_input=True)


def ending() -> NewEntry:
    return NewEntry("run.completed", AGENT, d.RunCompleted(summary="Done", claims=[], verified=None))


def approval(request: str, **members: Any) -> tuple[NewEntry, dict[str, str]]:
    """The entry that asks, and the side fields that go with it."""
    base = d.ApprovalRequested(
        request=request, title="Apply?", proposal=PROPOSAL, digest=digest_of(request, PROPOSAL, []), questions=[],
        deciders=["role:owner"], exclude=[], quorum=1,
    )  # fmt: skip
    asked = replace(base, **members)
    return NewEntry("approval.requested", AGENT, asked), requests.side_fields(requests.opened(asked))


def grant(run: str, entry: str, role: str, version: str = "", **members: Any) -> api.AccessChange:
    """A grant by alice, as prepared on a run whose access has this version."""
    data = d.AccessChanged(subject=entry, role=cast("Any", role), by="user:alice")
    change = api.AccessChange(
        run=run, version=version, entries=[NewEntry("access.changed", ALICE, data)], side={f"g|{entry}": role},
        dropped=["g|user:gone"], listed=["r|bob|"], unlisted=["r|gone|"],
    )  # fmt: skip
    return replace(change, **members)


class Lab:
    """See the module. `calls` holds (script, keys, request, reply) of every script call."""

    def __init__(self, store: RedisStore, raw: redis.asyncio.Redis) -> None:
        self.store = store
        self.raw: Any = raw
        self.calls: list[tuple[str, list[str], dict[str, Any], list[Any]]] = []
        call = store._scripts.call

        async def record(name: str, keys: Any, request: dict[str, Any], *, relief: bool = True) -> list[Any]:
            reply = await call(name, keys, request, relief=relief)
            self.calls.append((name, list(keys), request, reply))
            return reply

        store._scripts.call = record  # type: ignore[method-assign]

    def last(self, script: str) -> tuple[list[str], dict[str, Any], list[Any]]:
        """Keys, request and reply of the newest call of `script`."""
        return next((keys, request, reply) for name, keys, request, reply in reversed(self.calls) if name == script)

    async def again(self, script: str, *, relief: bool = True) -> list[Any]:
        """The newest call of `script` once more, to the letter: what a client does whose reply was lost."""
        keys, request, _ = self.last(script)
        return await self.store._scripts.call(script, keys, request, relief=relief)

    async def create(self, run: str = "r1", **members: Any) -> api.Created:
        answer = await self.try_create(run, **members)
        assert isinstance(answer, api.Created), answer
        return answer

    async def try_create(self, run: str = "r1", **members: Any) -> api.Created | api.Flooded:
        entry = NewEntry("run.created", ALICE, CREATED, private=b'{"input":{}}')
        new = api.NewRun(
            run=run, nonce=secrets.token_hex(8), fingerprint="f:1", owner="alice", workflow="review", version="1",
            queue=QUEUE, created=entry,
        )  # fmt: skip
        return await self.store.create_run(replace(new, **members))

    async def claim(self, run: str = "r1", holder: str = "w1", **members: Any) -> api.Claimed:
        answer = await self.try_claim(run, holder, **members)
        assert isinstance(answer, api.Claimed), answer
        return answer

    async def try_claim(self, run: str = "r1", holder: str = "w1", **members: Any) -> api.Claimed | api.NotClaimed:
        asked: dict[str, Any] = {"nonce": secrets.token_hex(8), "version": "1", **members}
        return await self.store.claim(run, holder=holder, **asked)

    async def held(self, run: str = "r1") -> api.Claimed:
        """A run that was just created and claimed."""
        await self.create(run)
        return await self.claim(run)

    def commit(self, lease: api.Claimed, number: int = 1, *entries: NewEntry, **members: Any) -> api.Commit:
        """A commit whose holder has seen what it claimed at."""
        base = api.Commit(
            run=lease.run, queue=QUEUE, fence=lease.fence, number=number, seen=lease.cursor,
            now_ms=self.store.now_ms(), entries=entries,
        )  # fmt: skip
        return replace(base, **members)

    def command(self, run: str = "r1", command_id: str = "c1", **members: Any) -> api.Acceptance:
        """A signal of alice, ready to be accepted."""
        base = api.Acceptance(
            run=run, nonce=secrets.token_hex(8), subject="alice", command_id=command_id, fingerprint="f", type="signal",
            queue=QUEUE, entries=[signal_entry(command_id)], input_index=0, counts=True, relief=False,
        )  # fmt: skip
        return replace(base, **members)

    async def accept(self, run: str = "r1", command_id: str = "c1", **members: Any) -> Any:
        return await self.store.accept(self.command(run, command_id, **members))

    async def log(self, run: str = "r1") -> list[Any]:
        """All entries of a run, with private parts."""
        found: list[Any] = []
        after = START
        while True:
            page = await self.store.read_log(run, after, limit=500, private=True)
            found += page.entries
            if len(page.entries) < 500:
                return found
            after = page.entries[-1].cursor

    async def types(self, run: str = "r1") -> list[str]:
        return [entry.event().type for entry in await self.log(run)]

    async def head(self, run: str = "r1") -> Cursor:
        return (await self.store.heads([run]))[run]

    async def field(self, name: str, run: str = "r1") -> str | None:
        """One field of the run's hash."""
        value: Any = await self.raw.hget(RunKeys.of(run).run, name)
        return None if value is None else value.decode()

    async def dump(self, run: str = "r1") -> dict[str, Any]:
        """Every key of the run's partition with its whole value."""
        found: dict[str, Any] = {}
        async for key in self.raw.scan_iter(match=RunKeys.of(run).partition.tag + ":*", count=1000):
            name = key.decode()
            kind = (await self.raw.type(key)).decode()
            client = self.raw
            if kind == "hash":
                found[name] = await client.hgetall(key)
            elif kind == "zset":
                found[name] = await client.zrange(key, 0, -1, withscores=True)
            else:
                found[name] = await client.xrange(key)
        return found

    @asynccontextmanager
    async def unwritten(self, run: str = "r1") -> AsyncIterator[None]:
        """Asserts that what happens inside leaves the partition of `run` as it was."""
        before = await self.dump(run)
        yield
        after = await self.dump(run)
        assert after == before, {
            key: (before.get(key), after.get(key)) for key in after if before.get(key) != after[key]
        }

    async def pass_ms(self, ms: int) -> None:
        """Moves the store's clock on."""
        offset: Any = await self.raw.hget(RunKeys.of("r1").partition.meta, "clock_offset_ms")
        await self.store.set_clock_offset(int(offset or 0) + ms)

    async def lapse(self) -> None:
        """Lets every lease end."""
        await self.pass_ms(LEASE_MS + 1)


@asynccontextmanager
async def open_lab(url: str) -> AsyncIterator[Lab]:
    """A lab on the (emptied) server at `url`."""
    store = await RedisStore.connect(url, for_tests=True)
    raw = redis.asyncio.Redis.from_url(url)
    try:
        await store.announce("w0", [WORKFLOW])
        yield Lab(store, raw)
    finally:
        await raw.aclose()
        await store.aclose()
