"""The store's shared connections on a real server: killed under load, locked, emptied of its scripts."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from tests.support.lab import Lab, note, open_lab
from tests.support.server import StoreServer
from tests.support.waiting import wait_until
from towline.protocol.store import api
from towline.protocol.store.connection import open_client, open_multiplexed
from towline.protocol.store.lane import Lane
from towline.protocol.store.redis import RedisStore
from towline.protocol.store.scripts import Scripts

pytestmark = pytest.mark.store

RUNS = 12
COMMITS = 40


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[Any]:
    client = open_multiplexed(redis_url)
    yield client
    await client.aclose()


async def connections(url: str) -> int:
    async with open_client(url) as raw:
        return len(await raw.client_list()) - 1


async def test_a_hundred_callers_share_two_connections(client: Any, redis_url: str) -> None:
    before = await connections(redis_url)
    await asyncio.gather(*(client.set(f"k{number}", number) for number in range(100)))
    answers = await asyncio.gather(*(client.get(f"k{number}") for number in range(100)))
    echoes = await asyncio.gather(*(client.eval("return ARGV[1]", 0, str(number)) for number in range(100)))
    assert [int(answer) for answer in answers] == [int(echo) for echo in echoes] == list(range(100))
    assert await connections(redis_url) == before + 2


async def test_answers_are_read_as_redis_py_reads_them(client: Any, redis_url: str) -> None:
    async with open_client(redis_url) as usual:
        for each in (client, usual):
            await each.delete("s", "h", "z")
            assert await each.xadd("s", {"f": "v"}, id="1-1") == b"1-1"
            assert await each.hset("h", mapping={"a": "1", "b": "2"}) == 2
            assert await each.zadd("z", {"m": float("inf")}) == 1
            await each.xgroup_create("s", "g", id="0")
        assert await client.xrange("s") == await usual.xrange("s")
        assert await client.hgetall("h") == await usual.hgetall("h")
        assert await client.zscore("z", "m") == await usual.zscore("z", "m")
        assert await client.xinfo_groups("s") == await usual.xinfo_groups("s")
        assert [item async for item in client.hscan_iter("h")] == [item async for item in usual.hscan_iter("h")]


async def test_a_batch_keeps_its_order_and_its_refusals(client: Any) -> None:
    async def batch(name: str) -> None:
        async with client.pipeline(transaction=False) as pipe:
            for number in range(50):
                pipe.rpush(name, number)
            pipe.incr(name)
            pipe.lrange(name, 0, -1)
            answers = await pipe.execute(raise_on_error=False)
        assert answers[:50] == list(range(1, 51))
        assert isinstance(answers[50], ResponseError)
        assert [int(item) for item in answers[51]] == list(range(50))

    await asyncio.gather(*(batch(f"l{number}") for number in range(10)))
    async with client.pipeline(transaction=False) as pipe:
        assert await pipe.execute() == []
        with pytest.raises(ResponseError, match="Command # 2"):
            await pipe.get("k").incr("l0").execute()
        assert await pipe.get("k").execute() == [None]  # an error leaves nothing behind


async def test_a_transaction_has_a_connection_of_its_own(client: Any, redis_url: str) -> None:
    await client.get("k")
    before = await connections(redis_url)
    async with client.pipeline(transaction=True) as pipe:
        assert await pipe.set("k", 1).get("k").execute() == [True, b"1"]
    assert await connections(redis_url) == before + 1


@pytest.mark.parametrize("call", ["blpop", "xread", "xreadgroup", "watch", "wait"])
async def test_what_would_hold_up_the_others_is_refused(client: Any, call: str) -> None:
    calls: dict[str, Any] = {
        "blpop": lambda: client.blpop(["k"], timeout=1),
        "xread": lambda: client.xread({"s": "0"}, block=1),
        "xreadgroup": lambda: client.xreadgroup("g", "c", {"s": ">"}),
        "watch": lambda: client.execute_command("WATCH", "k"),
        "wait": lambda: client.wait(1, 1),
    }
    with pytest.raises(ValueError, match="connection of its own"):
        await calls[call]()


async def test_scripts_are_loaded_again_while_everybody_calls_them(client: Any) -> None:
    scripts = Scripts(client)

    async def take_turns(sweeper: str) -> None:
        for _ in range(10):
            reply = await scripts.call("sweep_partition", [f"{{t}}:{sweeper}"], {"sweeper": sweeper, "turn_ms": 1000})
            assert reply[0] == b"OK"  # a sweeper keeps its own turn: another's answer would say HELD

    async def forget() -> None:
        for _ in range(5):
            await client.script_flush()
            await asyncio.sleep(0)

    await asyncio.gather(forget(), *(take_turns(f"s{number}") for number in range(50)))


async def test_a_password_is_given_on_each_connection(tmp_path: Path) -> None:
    with StoreServer(tmp_path / "store") as server:
        async with redis.asyncio.Redis.from_url(server.url) as usual:
            raw: Any = usual
            await raw.config_set("requirepass", "open sesame")
            refused = open_multiplexed(server.url)
            with pytest.raises(RedisConnectionError):
                await refused.get("k")
            await refused.aclose()
            client: Any = open_multiplexed(server.url.replace("unix://", "unix://:open%20sesame@"))
            assert await client.set("k", "v")
            await raw.execute_command("AUTH", "open sesame")
            await raw.client_kill_filter(_type="normal", skipme=True)
            assert await asyncio.gather(*(client.get("k") for _ in range(20))) == [b"v"] * 20
            await client.aclose()
            await raw.config_set("requirepass", "")


class Load:
    """Holders that commit, and readers, who try again whatever happens, and are cancelled at random."""

    def __init__(self, lab: Lab, seed: int) -> None:
        self.lab = lab
        self.chance = random.Random(seed)
        self.outages = 0
        self.answered = 0

    def beyond(self, *, answered: int = -1, outages: int = -1) -> Callable[[], bool]:
        return lambda: self.answered > answered and self.outages > outages

    async def _until_answered(self, call: Any) -> Any:
        """The answer of `call`, repeated to the letter after an outage, and now and then after giving up on it."""
        while True:
            asking = asyncio.ensure_future(call())
            if self.chance.random() < 0.1:
                await asyncio.sleep(self.chance.random() / 500)
                asking.cancel()
            try:
                answer = await asking
                self.answered += 1
                return answer
            except asyncio.CancelledError:
                continue
            except api.StoreUnavailable:
                self.outages += 1
                await asyncio.sleep(0.02)

    async def hold(self, run: str) -> None:
        lease = await self.lab.held(run)
        for number in range(1, COMMITS + 1):
            commit = self.lab.commit(lease, number, note(f"{run}/{number}"))
            done = await self._until_answered(lambda commit=commit: self.lab.store.commit(commit))
            assert (done.first_seq, done.cursor.seq) == (number + 1, number + 1)
            page = await self._until_answered(lambda: self.lab.store.read_log(run, lease.cursor, limit=COMMITS))
            assert texts(page.entries) == [f"{run}/{n}" for n in range(1, number + 1)]


def texts(entries: Any) -> list[str]:
    return [entry.event().data["text"] for entry in entries]


@pytest.mark.processes
async def test_a_store_killed_under_load_loses_doubles_and_mixes_up_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resent: list[int] = []
    take_back = Lane._take_back

    def counting(lane: Lane, loss: BaseException) -> None:
        resent.append(len(lane._sent))
        take_back(lane, loss)

    monkeypatch.setattr(Lane, "_take_back", counting)
    with StoreServer(tmp_path / "store") as server:
        async with open_lab(server.url) as lab:
            load = Load(lab, seed=1)
            holders = [asyncio.create_task(load.hold(f"r{number}")) for number in range(RUNS)]
            for kill in range(1, 5):
                await wait_until(load.beyond(answered=kill * RUNS * COMMITS // 4), "work between two kills")
                if kill % 2:  # back before anybody is told
                    await asyncio.to_thread(server.restart)
                else:
                    told = load.outages
                    await asyncio.to_thread(server.kill)
                    await wait_until(load.beyond(outages=told), "callers to be told")
                    await asyncio.to_thread(server.start)
            assert not all(holder.done() for holder in holders)
            await asyncio.gather(*holders)
            for number in range(RUNS):
                entries = await lab.log(f"r{number}")
                assert texts(entries[1:]) == [f"r{number}/{n}" for n in range(1, COMMITS + 1)]
            assert sum(resent) > 0


@pytest.mark.processes
async def test_callers_are_told_at_once_while_the_store_is_down(tmp_path: Path) -> None:
    with StoreServer(tmp_path / "store") as server:
        store = await RedisStore.connect(server.url, for_tests=True)
        await asyncio.to_thread(server.kill)
        calls: list[Callable[[], Awaitable[Any]]] = [
            store.announced, store.sync_clock, lambda: store.heads(["r"]), lambda: store.take_sweep(0, "s", 1)
        ]  # fmt: skip
        for call in calls:
            with pytest.raises(api.StoreUnavailable):
                await call()
        await asyncio.to_thread(server.start)

        async def is_back() -> bool:
            with contextlib.suppress(api.StoreUnavailable):
                return await store.heads(["r"]) == {}
            return False

        await wait_until(is_back, "the store to be back")
        await store.aclose()
