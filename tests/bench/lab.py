"""What the benchmarks of the gateway share: a gateway in a process of its own, its store, and who reads and writes.

Read `fanout` first, which says what is measured.
"""

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import psutil

from tests.support.gateway import SECRET, TOY, Hand, note, token
from towline.gateway.server import run_gateway
from towline.gateway.settings import Settings
from towline.protocol.store.api import Claimed
from towline.protocol.store.keys import RunKeys
from towline.protocol.store.multiplex import packed
from towline.protocol.store.redis import RedisStore

HERE: Final = Path(__file__).parent
SOCKETS: Final = 1000
SECONDS: Final = 6.0
FRAME_BYTES: Final = 400
"""One event of about 300 bytes in its frame, for the rows that are not ours."""


class Server:
    """A process that serves on `port`, and what it uses."""

    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self.process, self.port = process, port
        self._seen = psutil.Process(process.pid)

    def cpu_s(self) -> float:
        used = self._seen.cpu_times()
        return used.user + used.system

    def rss_kib(self) -> float:
        return self._seen.memory_info().rss / 1024

    def go(self) -> None:
        """Has it publish, if that is its own task."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")


@asynccontextmanager
async def serving(*command: str, port: int) -> AsyncIterator[Server]:
    """The process of `command`, once it says READY."""
    process = await asyncio.create_subprocess_exec(*command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert (await process.stdout.readline()).startswith(b"READY")
        yield Server(process, port)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Bench:
    """The store, the gateway and the programs in C."""

    def __init__(self, folder: Path, store: RedisStore, server: Server) -> None:
        self.folder, self.store, self.server = folder, store, server
        self.http = httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{server.port}", headers={"Authorization": f"Bearer {token()}"}, timeout=60
        )

    async def hold(self, run: str) -> Hand:
        """A new run, held and started."""
        await self.store.announce("bench", [TOY])
        answer = await self.http.post("/v1/runs", json={"workflow": "toy", "input": {}, "id": run})
        assert answer.status_code == 201, answer.text
        claimed = await self.store.claim(run, nonce=os.urandom(8).hex(), holder="bench", version="1", ttl_ms=600_000)
        assert isinstance(claimed, Claimed), claimed
        return Hand(self.store, claimed, claimed.cursor)

    def template(self, run: str, after: str) -> Path:
        """What every socket says: hello, and which run it wants."""
        path = self.folder / "template"
        hello = {"op": "hello", "token": token()}
        subscribe = {"op": "subscribe", "id": "s", "run": run, "after": after}
        path.write_text(json.dumps(hello) + "\n" + json.dumps(subscribe) + "\n")
        return path

    async def load(
        self,
        server: Server,
        sockets: int,
        *,
        seconds: float = SECONDS,
        stalled: int = 0,
        template: Path | None = None,
        publish: Callable[[float], Awaitable[object]] | None = None,
        ready_at: str = "live",
    ) -> dict[str, Any]:
        """Connects, then measures while `publish` (until a time) or the server itself publishes."""
        arguments = [str(n) for n in (server.port, sockets, seconds, stalled)] + (
            [str(template), ready_at] if template else []
        )
        before_kib, before_s = server.rss_kib(), server.cpu_s()
        loader = await asyncio.create_subprocess_exec(
            self.folder / "load", *arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert loader.stdin is not None
        assert loader.stdout is not None
        ready = (await loader.stdout.readline()).decode()
        assert ready.startswith("READY"), ready
        found: dict[str, Any] = {f"open_{k}": v for k, v in json.loads(ready[6:]).items()}
        found["open_cpu_s"] = server.cpu_s() - before_s
        found["kib_per_socket"] = (server.rss_kib() - before_kib) / sockets
        if not seconds:
            loader.stdin.close()
            await loader.wait()
            return found
        publishing = (
            asyncio.ensure_future(publish(time.monotonic() + seconds + (15 if stalled else 3))) if publish else None
        )
        if publishing is None:
            server.go()
        await asyncio.sleep(1)
        loader.stdin.write(b"\n")
        assert (await loader.stdout.readline()).startswith(b"BEGIN")
        cpu_s, rss_kib = server.cpu_s(), server.rss_kib()
        result = (await loader.stdout.readline()).decode()
        found["cpu_s"] = server.cpu_s() - cpu_s
        found["rss_grew_mib"] = (server.rss_kib() - rss_kib) / 1024
        await loader.wait()
        if publishing is not None:
            await publishing
        assert result.startswith("RESULT"), result
        found |= json.loads(result[7:])
        assert found["gaps"] == 0, found
        found["per_s"] = found["events"] / found["seconds"]
        found["cpu_per_m"] = found["cpu_s"] / max(1, found["events"]) * 1e6
        return found


def paced(hand: Hand, rate: float) -> Callable[[float], Awaitable[None]]:
    """Publishes `rate` events a second, a commit each."""

    async def publish(until_s: float) -> None:
        begun_s, sent = time.monotonic(), 0
        while (now_s := time.monotonic()) < until_s:
            if sent < (now_s - begun_s) * rate:
                await hand.write(note(f"t={time.monotonic_ns()} {'x' * 90}"))
                sent += 1
            else:
                await asyncio.sleep(0.0005)

    return publish


def show(name: str, found: dict[str, Any]) -> None:
    print(
        f"  {name:38} {found['per_s']:>11,.0f}/s {found['cpu_per_m']:>7.2f} CPU-s/M"
        f"   p50 {found['p50_ms']:>8.2f} ms   p99 {found['p99_ms']:>8.2f} ms",
        flush=True,
    )


class Appender:
    """Appends to runs as a commit does, without a lease: a publisher that costs little beside what is measured."""

    _SCRIPT: Final = """
        local id = ARGV[1] .. '-7'
        redis.call('XADD', KEYS[1], id, 'e', ARGV[2], 'm', '{}')
        redis.call('HSET', KEYS[2], 'last_seq', ARGV[1], 'last_tag', '7')
        redis.call('SPUBLISH', KEYS[3], id .. '\\n{}\\n' .. ARGV[2])
    """
    _EVENT: Final = (
        '{{"seq":{seq},"ts":"2026-12-01T00:00:00.000Z","cause":null,"type":"progress.noted",'
        '"actor":{{"kind":"agent","id":"wf:toy"}},"data":{{"text":"t={ns} {fill}"}},"ref":null,"audience":"viewer"}}'
    )

    def __init__(self, store: RedisStore, sha: str, heads: dict[str, int]) -> None:
        self._client = store._client
        self._sha = sha
        self._heads = heads

    @classmethod
    async def over(cls, store: RedisStore, runs: list[str]) -> "Appender":
        """An appender to `runs`, which exist; from here on only it writes to them."""
        sha = str(await store._client.script_load(cls._SCRIPT))
        return cls(store, sha, {run: head.seq for run, head in (await store.heads(runs)).items()})

    def command(self, run: str, fill: str = "x" * 90) -> bytes:
        """The next event of `run`, stamped with the time."""
        seq = self._heads[run] = self._heads[run] + 1
        keys = RunKeys.of(run)
        event = self._EVENT.format(seq=seq, ns=time.monotonic_ns(), fill=fill)
        return packed(("EVALSHA", self._sha, 3, keys.log, keys.run, keys.channel, str(seq), event))

    async def in_turns(self, runs: list[str], rate: float, until_s: float) -> None:
        """`rate` events a second, one run after the other."""
        begun_s, sent = time.monotonic(), 0
        while (now_s := time.monotonic()) < until_s:
            due = int((now_s - begun_s) * rate) - sent
            if due > 0:
                await self._client.ask([self.command(runs[(sent + n) % len(runs)]) for n in range(due)])
                sent += due
            else:
                await asyncio.sleep(0.0005)

    async def fill(self, run: str, count: int) -> None:
        """`count` events at once."""
        for first in range(0, count, 1000):
            await self._client.ask([self.command(run, "x" * 110) for _ in range(min(1000, count - first))])


def serve(url: str, folder: str, port: str) -> None:
    """The gateway, as a process of its own."""
    settings = Settings(
        store_url=url, jwt_secret=SECRET, payloads=Path(folder) / "payloads", port=int(port), development=True
    )
    run_gateway(settings, on_ready=lambda _: print("READY", flush=True))
