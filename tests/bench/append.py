"""How many appends a second a hundred concurrent callers get: our shared connections against redis-py's pool.

    python -m tests.bench.append [SECONDS] [ROUNDS]

Rows in turns, the median of the rounds, all against one embedded store with `appendfsync everysec`:
    one EVALSHA of a bare append (HINCRBY, XADD, SPUBLISH; 300 bytes), by
        redis-py's pool, one connection a caller
        our shared connections                                        goal: 4 times the pool
        redis-benchmark or valkey-benchmark, 100 calls deep, if there is one on PATH      goal: 0.6 of it
    our own commits (`commit.lua`: fence, number, one event of 300 bytes, snapshot head, notice), by
        the same store over a pool, and as it is
CPU of this process and of the server is per million calls. Reports; asserts nothing.
"""

import asyncio
import hashlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import psutil
import uvloop
from redis.exceptions import NoScriptError

from tests.support.lab import Lab, note, open_lab
from tests.support.server import StoreServer
from towline.protocol.store.connection import open_client, open_multiplexed
from towline.protocol.store.scripts import Scripts

CALLERS: Final = 100
GOAL: Final = 4.0
FLOOR_GOAL: Final = 0.6
APPEND: Final = """
local seq = redis.call('HINCRBY', KEYS[2], 'seq', 1)
local entry = '{"seq":' .. seq .. ',' .. ARGV[1]
redis.call('XADD', KEYS[1], seq .. '-0', 'd', entry)
redis.call('SPUBLISH', ARGV[2], entry)
return seq"""
SHA: Final = hashlib.sha1(APPEND.encode()).hexdigest()
BODY: Final = '"type":"progress.noted","data":{"text":"' + "x" * 250 + '"}}'

Turn = Callable[[int], Awaitable[object]]


class Row:
    """What one way of calling reached."""

    def __init__(self, name: str, calls: int, seconds: float, own_cpu_s: float, server_cpu_s: float) -> None:
        self.name, self.calls, self.seconds = name, calls, seconds
        self.own_cpu_s, self.server_cpu_s = own_cpu_s, server_cpu_s

    @property
    def per_second(self) -> float:
        return self.calls / self.seconds

    def __str__(self) -> str:
        million = 1e6 / self.calls
        return (
            f"  {self.name:<44}{self.per_second:>9,.0f}/s   CPU s/M: ours {self.own_cpu_s * million:>6.1f}"
            f"  server {self.server_cpu_s * million:>5.1f}"
        )


class Pair:
    """The rows of both ways, round by round."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.usual: list[Row] = []
        self.ours: list[Row] = []

    def __str__(self) -> str:
        return f"{self.name}: {median(self.ours) / median(self.usual):.1f} × the pool"


def median(rows: list[Row]) -> float:
    """Calls a second in the middle one of some rounds."""
    return statistics.median(row.per_second for row in rows)


async def measure(name: str, server: psutil.Process, seconds: float, turn: Turn) -> Row:
    """A hundred callers that call `turn(caller)` one after the other for a while."""
    calls = 0
    until = 0.0

    async def caller(number: int) -> None:
        nonlocal calls
        while time.monotonic() < until:
            await turn(number)
            calls += 1

    until = time.monotonic() + seconds / 4
    await asyncio.gather(*(caller(number) for number in range(CALLERS)))  # connect, load, warm up
    calls, own, theirs = 0, time.process_time(), sum(server.cpu_times()[:2])
    began_s = time.monotonic()
    until = began_s + seconds
    await asyncio.gather(*(caller(number) for number in range(CALLERS)))
    took_s = time.monotonic() - began_s
    row = Row(name, calls, took_s, time.process_time() - own, sum(server.cpu_times()[:2]) - theirs)
    print(row, flush=True)
    return row


def appending(client: Any) -> Turn:
    async def turn(caller: int) -> None:
        tag = f"{{b:{caller}}}"
        keys_and_arguments = (2, f"{tag}:log", f"{tag}:run", BODY, f"{tag}:n")
        try:
            await client.evalsha(SHA, *keys_and_arguments)
        except NoScriptError:
            await client.eval(APPEND, *keys_and_arguments)

    return turn


def committing(lab: Lab, prefix: str) -> Turn:
    """Each caller holds a run of its own and appends one note a call."""
    held: dict[int, Any] = {}
    numbers = dict.fromkeys(range(CALLERS), 0)

    async def turn(caller: int) -> None:
        if caller not in held:
            held[caller] = await lab.held(f"{prefix}{caller}")
        numbers[caller] += 1
        await lab.store.commit(lab.commit(held[caller], numbers[caller], note("x" * 200)))

    return turn


def floor(server: StoreServer) -> float | None:
    """Calls a second of the C benchmark with the same script, 100 deep; None without one."""
    program = shutil.which("valkey-benchmark") or shutil.which("redis-benchmark")
    if program is None:
        return None
    path = server.url.removeprefix("unix://")
    command = [program, "-s", path, "-c", "1", "-P", "100", "-n", "150000", "-q", "--csv"]
    command += ["EVALSHA", SHA, "2", "{f}:log", "{f}:run", BODY, "{f}:n"]
    rows = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    per_second = float(rows[-1].rsplit('","', 7)[1])  # its first column is the command, quotes and all
    print(f"  {'append, ' + Path(program).name + ' -P 100':<44}{per_second:>9,.0f}/s", flush=True)
    return per_second


async def main(seconds: float, rounds: int) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        StoreServer(Path(folder), settings={"appendfsync": "everysec"}) as server,
    ):
        assert server.pid is not None
        process = psutil.Process(server.pid)
        print(f"{CALLERS} callers, {seconds:g} s a row, {rounds} rounds, {os.cpu_count()} cores")
        pool, shared = open_client(server.url), open_multiplexed(server.url)
        async with open_lab(server.url) as lab:
            over_pool, as_it_is = Scripts(pool), Scripts(lab.store._client)
            appends, commits = Pair("append"), Pair("commit")
            floors: list[float] = []
            for number in range(rounds):
                appends.usual.append(await measure("append, redis-py's pool", process, seconds, appending(pool)))
                appends.ours.append(await measure("append, shared connections", process, seconds, appending(shared)))
                if (deep := floor(server)) is not None:
                    floors.append(deep)
                lab.store._scripts = over_pool
                turn = committing(lab, f"p{number}-")
                commits.usual.append(await measure("commit, over a pool", process, seconds, turn))
                lab.store._scripts = as_it_is
                turn = committing(lab, f"s{number}-")
                commits.ours.append(await measure("commit, as it is", process, seconds, turn))
        print(f"{appends} (goal {GOAL:g}); {commits}")
        if floors:
            ratio = median(appends.ours) / statistics.median(floors)
            print(f"append: {ratio:.2f} × the C benchmark 100 deep (goal {FLOOR_GOAL:g})")
        else:
            print("no redis-benchmark on PATH")
        await shared.aclose()
        await pool.aclose()


if __name__ == "__main__":
    arguments = [float(argument) for argument in sys.argv[1:]]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(arguments[0] if arguments else 3, int(arguments[1]) if len(arguments) > 1 else 3))
