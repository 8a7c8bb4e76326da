"""The store's user: what Towline needs is enough for everything it does, and nothing of it reaches further."""

import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from tests.support.gateway import running_gateway
from tests.support.lab import ending, open_lab
from towline.protocol.store.durability import check
from towline.protocol.store.redis import RedisStore

pytestmark = pytest.mark.store

USER: Final = (
    "~{tl:*", "~tl:*", "&{tl:*", "+@all", "-@dangerous", "-@admin", "+info", "+role", "+config|get",
)  # fmt: skip
"""The access list that ARCHITECTURE.md names."""

FORBIDDEN: Final = (
    ("CONFIG", "SET", "appendfsync", "no"),
    ("CONFIG", "REWRITE"),
    ("FLUSHALL",),
    ("FLUSHDB",),
    ("KEYS", "*"),
    ("MODULE", "LIST"),
    ("SHUTDOWN", "NOSAVE"),
    ("REPLICAOF", "127.0.0.1", "1"),
    ("ACL", "LIST"),
    ("MONITOR",),
    ("SAVE",),
    ("GET", "other"),
    ("SET", "tlx", "1"),
    ("SET", "{tlx}:run:r1", "1"),
    ("DEL", "other"),
    ("EVAL", "return redis.call('GET', KEYS[1])", "1", "other"),
    ("EVAL", "return redis.call('GET', 'other')", "0"),
    ("EVAL", "return redis.call('CONFIG', 'SET', 'appendfsync', 'no')", "0"),
    ("PUBLISH", "other", "x"),
    ("SPUBLISH", "other", "x"),
    ("SUBSCRIBE", "other"),
    ("PSUBSCRIBE", "*"),
)


@pytest.fixture
async def url(redis_url: str) -> AsyncIterator[str]:
    """The store's address as the user of the access list."""
    password = secrets.token_hex(8)
    async with Redis.from_url(redis_url) as admin:
        raw: Any = admin
        await raw.execute_command("ACL", "SETUSER", "towline", "reset", "on", f">{password}", *USER)
        await raw.set("other", "someone's")
        yield f"{redis_url}{'&' if '?' in redis_url else '?'}username=towline&password={password}"
        assert await raw.get("other") == b"someone's"
        await raw.execute_command("ACL", "DELUSER", "towline")


async def test_it_is_enough(url: str, redis_url: str, tmp_path: Path) -> None:
    async with Redis.from_url(redis_url) as admin:
        known = {client["id"] for client in await admin.client_list()}
    async with running_gateway(url, tmp_path) as gateway, gateway.socket() as wire:
        run = await gateway.start()
        await wire.subscribe(run, after="0")
        await wire.until("live")
        hand = await gateway.hold(run)
        await hand.note()
        await wire.until("events", replay=False)
        signal = {"type": "signal", "data": {"name": "nudge", "payload": {"by": 1}}}
        assert (await gateway.http.post(f"/v1/runs/{run}/commands", json=signal)).status_code == 202
        assert (await gateway.http.get("/v1/inbox")).status_code == 200
        assert (await gateway.http.put(f"/v1/runs/{run}/grants/user:ben", json={"role": "viewer"})).status_code == 200
        for partition in range(64):
            await gateway.store.take_sweep(partition, "tests", 1000)
        await hand.complete()
        await wire.until("end")
        async with Redis.from_url(redis_url) as admin:
            users = [client["user"] for client in await admin.client_list() if client["id"] not in known]
        assert users.count("towline") >= 3
        assert users.count("default") == 1, "this one that asks, and no other"
    async with Redis.from_url(url) as client:
        assert [found for found in await check(client, development=True) if found.code == "config_denied"] == []


async def test_it_reaches_nothing_else(url: str) -> None:
    async with Redis.from_url(url) as client:
        raw: Any = client
        assert await raw.ping()
        for command in FORBIDDEN:
            with pytest.raises(ResponseError, match=r"(?i)no permissions|can't run this|not allowed from script"):
                await raw.execute_command(*command)


async def test_no_id_leaves_its_keys(url: str, tmp_path: Path) -> None:
    async with running_gateway(url, tmp_path) as gateway:
        await gateway.announce()
        for run in ("r}x", "r{x", "r\nx", "r\0x", "}:other", "{tl:0}", "r x", "r*", ""):
            answer = await gateway.http.post("/v1/runs", json={"id": run, "workflow": "toy", "input": {}})
            assert (answer.status_code, answer.json()["code"]) == (400, "bad_request"), run


async def test_a_run_ends_under_it(url: str) -> None:
    async with open_lab(url) as lab:
        assert isinstance(lab.store, RedisStore)
        await lab.store.close(lab.commit(await lab.held(), 1, ending()))
