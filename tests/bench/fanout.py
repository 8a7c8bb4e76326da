"""What the way from the log to the sockets costs: fan-out, a hot run, many runs, replay, resume, stalled and idle.

    python -m tests.bench.fanout [SCENARIO ...]        fanout hot many replay resume idle stalled; all without a name

The gateway is a process of its own with its defaults: credentials, audiences and limits on. The store is embedded,
`appendfsync everysec`. Beside it, in the same run: `floor.c` (one frame, a loop of write()) and `plain.py`
(starlette, encoded once, one `send_text` a socket). `load.c` reads; needs a C compiler. Reports; asserts nothing but
that nobody saw a gap. CPU is that of the serving process, in seconds per million deliveries. See README.md.
"""

import asyncio
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any, Final

import uvloop

from tests.bench.lab import (
    FRAME_BYTES,
    HERE,
    SOCKETS,
    Appender,
    Bench,
    Server,
    free_port,
    paced,
    serve,
    serving,
    show,
)
from tests.support.gateway import note
from tests.support.server import StoreServer
from towline.protocol.store.keys import RunKeys
from towline.protocol.store.redis import RedisStore


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
    await bench.hold("hot")
    appender = await Appender.over(bench.store, ["hot"])
    template = bench.template("hot", "latest")
    publish = partial(appender.in_turns, ["hot"], 1500)
    ours = await bench.load(bench.server, SOCKETS, template=template, publish=publish)
    show("towline at 1,500 events a second", ours)
    print(f"  towline / plain = {ours['per_s'] / plain['per_s']:.1f} (goal >= 1,000,000/s, >= 20 x naive)", flush=True)


async def many(bench: Bench) -> None:
    """A thousand runs, one socket each, an event a write."""
    runs = [f"many-{n}" for n in range(SOCKETS)]
    for first in range(0, SOCKETS, 50):
        await asyncio.gather(*(bench.hold(run) for run in runs[first : first + 50]))
        await asyncio.sleep(0.2)  # a subject creates at most 250 runs a second
    appender = await Appender.over(bench.store, runs)
    template = bench.template("many-{i}", "latest")
    for rate in (2_000, 10_000):
        found = await bench.load(
            bench.server, SOCKETS, template=template, publish=partial(appender.in_turns, runs, rate)
        )
        show(f"towline at {rate:,} events a second", found)


async def _history(bench: Bench, run: str, count: int) -> None:
    """A run of `count` events, folded up to near its end as a worker's commits keep it."""
    hand = await bench.hold(run)
    appender = await Appender.over(bench.store, [run])
    await appender.fill(run, count)
    await hand.write(note("the last"), snapshot=(await bench.store.load(run)).run)


async def replay(bench: Bench) -> None:
    """A hundred thousand events to one socket: from the store, from kept pages, as one writes it without us, in C."""
    count = 100_000
    await _history(bench, "long", count)
    key, address = RunKeys.of("long").log, bench.store.url.removeprefix("unix://")
    rows: dict[str, float] = {}
    floor = await asyncio.create_subprocess_exec(
        bench.folder / "xrange", address, key, "500", stdout=asyncio.subprocess.PIPE
    )
    said, _ = await floor.communicate()
    rows["C, XRANGE alone"] = float(said)
    port = free_port()
    async with serving(
        sys.executable, "-m", "tests.bench.plain", str(port), "0", "0", address, key, port=port
    ) as server:
        await _replayed(bench, server, "plain: read, decode, send_json", rows, bench.template("long", "0"))
    template = bench.template("long", "0")
    for name in ("towline, from the store", "towline, kept", "towline, kept again"):
        await _replayed(bench, bench.server, name, rows, template)
    for name, per_s in rows.items():
        print(f"  {name:38} {per_s:>11,.0f}/s", flush=True)
    ours, kept = rows["towline, from the store"], rows["towline, kept again"]
    print(f"  towline / plain = {ours / rows['plain: read, decode, send_json']:.1f} (goal >= 10)", end="")
    print(f"   towline / C = {ours / rows['C, XRANGE alone']:.2f} (goal >= 0.4)", end="")
    print(f"   kept / from the store = {kept / ours:.1f} (goal >= 4)", flush=True)


async def _replayed(bench: Bench, server: Server, name: str, rows: dict[str, float], template: Path) -> None:
    found = await bench.load(server, 1, seconds=0, template=template)
    rows[name] = found["open_events"] / found["open_ms"] * 1000
    print(f"  {name:38} {found['open_cpu_s'] / found['open_events'] * 1e6:>7.2f} CPU-s/M", flush=True)


async def resume(bench: Bench) -> None:
    """Two hundred sockets that come back at the tail of a short and of a long log."""
    costs = []
    for run, length in (("short", 1_000), ("far", 1_000_000)):
        await _history(bench, run, length)
        head = (await bench.store.heads([run]))[run]
        template = bench.template(run, str(head.seq - 10))
        await bench.load(bench.server, 20, seconds=0, template=template)
        found = [await bench.load(bench.server, 200, seconds=0, template=template) for _ in range(3)]
        costs.append(min(one["open_cpu_s"] for one in found) / 200)
        print(f"  tail of {length:>9,} events: {costs[-1] * 1e6:.0f} us of CPU a socket", flush=True)
    print(f"  long / short = {costs[1] / costs[0]:.2f} (goal <= 1.3)", flush=True)


async def idle(bench: Bench) -> None:
    """A thousand sockets with a credential and keepalive that follow nothing."""
    template = bench.template("none", "latest")
    hello = template.read_text().splitlines()[0]
    template.write_text(hello + "\n")
    await bench.load(bench.server, 200, seconds=0, template=template, ready_at="welcome")
    found = await bench.load(bench.server, 5 * SOCKETS, seconds=0, template=template, ready_at="welcome")
    print(f"  {found['kib_per_socket']:.1f} KiB a socket (goal <= 12)", end="")
    print(f"   {found['open_cpu_s'] / SOCKETS / 5 * 1e6:.0f} us of CPU each", flush=True)


async def stalled(bench: Bench) -> None:
    """Two hundred readers, alone and beside a thousand that take nothing; 400 events a second."""
    rows = []
    for run, count in (("alone", 0), ("beside", 1000)):
        await bench.hold(run)
        appender = await Appender.over(bench.store, [run])
        template = bench.template(run, "latest")
        publish = partial(appender.in_turns, [run], 400)
        found = await bench.load(
            bench.server, 200 + count, stalled=count, template=template, publish=publish, seconds=8
        )
        rows.append(found)
        show(f"200 readers, {count} stalled", found)
        print(f"  resident memory grew by {found['rss_grew_mib']:.0f} MiB", flush=True)
    print(f"  p99 beside / alone = {rows[1]['p99_ms'] / rows[0]['p99_ms']:.2f} (goal <= 2)", flush=True)


SCENARIOS: Final = {one.__name__: one for one in (fanout, hot, many, replay, resume, idle, stalled)}


async def measure(names: list[str]) -> None:
    with tempfile.TemporaryDirectory(prefix="towline-bench-") as name:
        folder = Path(name)
        for program in ("load", "floor", "xrange"):
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


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve(*sys.argv[2:])
    else:
        uvloop.run(measure(sys.argv[1:] or list(SCENARIOS)))
