"""What the way from the log to the sockets costs: fan-out, a hot run, many runs, replay, resume, stalled and idle.

    python -m tests.bench.fanout [SCENARIO ...]        fanout hot many replay resume stalled; all without a name

The gateway is a process of its own with its defaults: credentials, audiences and limits on. The store is embedded,
`appendfsync everysec`. Beside it, in the same run: `floor.c` (one frame, a loop of write()) and `plain.py`
(starlette, encoded once, one `send_text` a socket). `load.c` reads; needs a C compiler. Reports; asserts nothing but
that nobody saw a gap. CPU is that of the serving process, in seconds per million deliveries. See README.md.
"""

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import psutil
import uvloop

from tests.support.gateway import SECRET, TOY, Hand, note, token
from tests.support.server import StoreServer
from towline.gateway.server import run_gateway
from towline.gateway.settings import Settings
from towline.protocol.store.api import Claimed
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
    ) -> dict[str, Any]:
        """Connects, then measures while `publish` (until a time) or the server itself publishes."""
        arguments = [str(n) for n in (server.port, sockets, seconds, stalled)] + ([str(template)] if template else [])
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


def paced(hand: Hand, rate: float, *, batch: int = 1) -> Callable[[float], Awaitable[None]]:
    """Publishes `rate` events a second through commits of `batch`."""

    async def publish(until_s: float) -> None:
        begun_s, sent = time.monotonic(), 0
        while (now_s := time.monotonic()) < until_s:
            if sent < (now_s - begun_s) * rate:
                await hand.write(*[note(f"t={time.monotonic_ns()} {'x' * 90}") for _ in range(batch)])
                sent += batch
            else:
                await asyncio.sleep(0.0005)

    return publish


def show(name: str, found: dict[str, Any]) -> None:
    print(
        f"  {name:38} {found['per_s']:>11,.0f}/s {found['cpu_per_m']:>7.2f} CPU-s/M"
        f"   p50 {found['p50_ms']:>8.2f} ms   p99 {found['p99_ms']:>8.2f} ms",
        flush=True,
    )


async def fanout(bench: Bench) -> None:
    """One event to a thousand sockets, one write an event, 20 a second."""
    rows: dict[str, dict[str, Any]] = {}
    for name, command in (
        ("floor: C write() loop", [str(bench.folder / "floor")]),
        ("plain: starlette, send_text", [sys.executable, "-m", "tests.bench.plain"]),
    ):
        port = free_port()
        async with serving(*command, str(port), "20", str(FRAME_BYTES), port=port) as server:
            rows[name] = await bench.load(server, SOCKETS)
            show(name, rows[name])
    hand = await bench.hold("fanout")
    template = bench.template("fanout", "latest")
    ours = await bench.load(bench.server, SOCKETS, template=template, publish=paced(hand, 20))
    show("towline", ours)
    floor, plain = (row["cpu_per_m"] for row in rows.values())
    print(f"  towline / floor = {ours['cpu_per_m'] / floor:.2f} (goal <= 1.4)", end="")
    print(f"   towline / plain = {ours['cpu_per_m'] / plain:.2f} (goal <= 0.5)")
    print(f"  memory: {ours['kib_per_socket']:.1f} KiB a subscribed socket (goal <= 12)")
    print(f"  handshake, hello, subscribe: {ours['open_cpu_s'] / SOCKETS * 1e6:.0f} us of CPU a socket", flush=True)


async def hot(bench: Bench) -> None:
    """One run, a thousand sockets, more events than a write each could carry."""
    port = free_port()
    async with serving(
        sys.executable, "-m", "tests.bench.plain", str(port), "1500", str(FRAME_BYTES), port=port
    ) as server:
        plain = await bench.load(server, SOCKETS)
        show("plain at 1,500 events a second", plain)
    hand = await bench.hold("hot")
    template = bench.template("hot", "latest")
    ours = await bench.load(bench.server, SOCKETS, template=template, publish=paced(hand, 1500, batch=3))
    show("towline at 1,500 events a second", ours)
    print(f"  towline / plain = {ours['per_s'] / plain['per_s']:.1f} (goal >= 1,000,000/s, >= 20 x naive)", flush=True)


async def many(bench: Bench) -> None:
    """A thousand runs, one socket each; 2,000 events a second by as many commits."""
    hands = []
    for first in range(0, SOCKETS, 50):
        hands += await asyncio.gather(*(bench.hold(f"many-{n}") for n in range(first, first + 50)))
        await asyncio.sleep(0.2)  # a subject creates at most 250 runs a second

    async def publish(until_s: float) -> None:
        shares = [hands[n::20] for n in range(20)]
        await asyncio.gather(*(_in_turns(share, 100, until_s) for share in shares))

    template = bench.template("many-{i}", "latest")
    show(
        "towline at 2,000 events a second", await bench.load(bench.server, SOCKETS, template=template, publish=publish)
    )


async def _in_turns(hands: list[Hand], rate: float, until_s: float) -> None:
    begun_s, sent = time.monotonic(), 0
    while (now_s := time.monotonic()) < until_s:
        if sent < (now_s - begun_s) * rate:
            await hands[sent % len(hands)].write(note(f"t={time.monotonic_ns()} {'x' * 90}"))
            sent += 1
        else:
            await asyncio.sleep(0.001)


async def _history(bench: Bench, run: str, count: int) -> None:
    """A run of `count` events, folded up to near its end as a worker's commits keep it."""
    hand = await bench.hold(run)
    for _ in range(count // 100):
        await hand.note("x" * 110, count=100)
    await hand.write(note("the last"), snapshot=(await bench.store.load(run)).run)


async def replay(bench: Bench) -> None:
    """A hundred thousand events to one socket: read from the store, and read again while pages are kept."""
    await _history(bench, "long", 100_000)
    template = bench.template("long", "0")
    for name in ("towline, from the store", "towline, again", "towline, again"):
        found = await bench.load(bench.server, 1, seconds=0, template=template)
        count, seconds = found["open_events"], found["open_ms"] / 1000
        print(f"  {name:38} {count / seconds:>11,.0f}/s {found['open_cpu_s'] / count * 1e6:>7.2f} CPU-s/M", flush=True)


async def resume(bench: Bench) -> None:
    """Two hundred sockets that come back at the tail of a short and of a long log."""
    costs = []
    for run, length in (("short", 1_000), ("far", 100_000)):
        await _history(bench, run, length)
        head = (await bench.store.heads([run]))[run]
        template = bench.template(run, str(head.seq - 10))
        await bench.load(bench.server, 20, seconds=0, template=template)
        found = [await bench.load(bench.server, 200, seconds=0, template=template) for _ in range(3)]
        costs.append(min(one["open_cpu_s"] for one in found) / 200)
        print(f"  tail of {length:>9,} events: {costs[-1] * 1e6:.0f} us of CPU a socket", flush=True)
    print(f"  long / short = {costs[1] / costs[0]:.2f} (goal <= 1.3)", flush=True)


async def stalled(bench: Bench) -> None:
    """Two hundred readers, alone and beside a thousand that take nothing; 400 events a second."""
    rows = []
    for run, count in (("alone", 0), ("beside", 1000)):
        hand = await bench.hold(run)
        template = bench.template(run, "latest")
        found = await bench.load(
            bench.server, 200 + count, stalled=count, template=template, publish=paced(hand, 400, batch=4), seconds=8
        )
        rows.append(found)
        show(f"200 readers, {count} stalled", found)
        print(f"  resident memory grew by {found['rss_grew_mib']:.0f} MiB", flush=True)
    print(f"  p99 beside / alone = {rows[1]['p99_ms'] / rows[0]['p99_ms']:.2f} (goal <= 2)", flush=True)


SCENARIOS: Final = {one.__name__: one for one in (fanout, hot, many, replay, resume, stalled)}


async def measure(names: list[str]) -> None:
    with tempfile.TemporaryDirectory(prefix="towline-bench-") as name:
        folder = Path(name)
        for program in ("load", "floor"):
            compiler = await asyncio.create_subprocess_exec("cc", "-O2", "-o", folder / program, HERE / f"{program}.c")
            assert await compiler.wait() == 0
        for scenario in names:
            print(f"{scenario}: {SCENARIOS[scenario].__doc__}", flush=True)
            with StoreServer(folder / scenario, settings={"appendfsync": "everysec"}) as store_server:
                store, port = await RedisStore.connect(store_server.url), free_port()
                command = [
                    sys.executable,
                    "-m",
                    "tests.bench.fanout",
                    "serve",
                    store_server.url,
                    str(folder),
                    str(port),
                ]
                async with serving(*command, port=port) as server:
                    bench = Bench(folder, store, server)
                    await SCENARIOS[scenario](bench)
                    await bench.http.aclose()
                await store.aclose()


def serve(url: str, folder: str, port: str) -> None:
    """The gateway, as a process of its own."""
    settings = Settings(
        store_url=url, jwt_secret=SECRET, payloads=Path(folder) / "payloads", port=int(port), development=True
    )
    run_gateway(settings, on_ready=lambda _: print("READY", flush=True))


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve(*sys.argv[2:])
    else:
        uvloop.run(measure(sys.argv[1:] or list(SCENARIOS)))
