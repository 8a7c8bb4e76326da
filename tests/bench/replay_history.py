"""How many entries a second a worker replays: the whole history of one run, page by page, from memory and from a store.

    python -m tests.bench.replay_history [STEPS] [ROUNDS]

The history is what a workflow of that many durable steps, one after the other, writes: two entries a step, in commits
of their own. The median of the rounds; CPU is that of this process. Reports; asserts nothing but that the replay
reached the end of the log. Goal: 50,000 entries a second.
"""

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import uvloop

from tests.support.driven import Driven
from tests.support.lab import Lab, open_lab
from tests.support.server import StoreServer
from towline.protocol.codec import Entry, encode_meta
from towline.protocol.cursor import START
from towline.protocol.limits import STORE_PAGE_EVENTS
from towline.protocol.store.keys import RunKeys
from towline.workers.context import Context
from towline.workers.registry import Registry, Workflow
from towline.workers.replay import Replay

GOAL: Final = 50_000


def _work(what: int) -> str:
    return f"{what}"


def sequence(steps: int) -> Workflow:
    """A workflow of `steps` durable steps, one after the other."""
    registry = Registry()
    look: Any = registry.activity(_work, name="look", effect="read")

    async def body(ctx: Context) -> None:
        for number in range(steps):
            await ctx.run(look, number)

    return registry.workflow(name="sequence")(body)


def record(steps: int) -> Driven:
    """The workflow, driven to its last step but one."""
    driven = Driven(sequence(steps))
    for _ in range(steps - 1):
        [step] = driven.attempts
        driven.finish(step, "x" * 100)
    return driven


async def store(lab: Lab, entries: list[Entry]) -> None:
    """Puts the history where a worker reads it."""
    await lab.create("run-1")
    keys = RunKeys.of("run-1")
    await lab.raw.delete(keys.log, keys.private)
    async with lab.raw.pipeline(transaction=False) as pipe:
        for entry in entries:
            pipe.xadd(keys.log, {"e": entry.raw, "m": encode_meta(entry.meta)}, id=f"{entry.seq}-{entry.tag}")
            if entry.private is not None:
                pipe.hset(keys.private, str(entry.seq), entry.private)
        pipe.hset(keys.run, mapping={"last_seq": entries[-1].seq, "last_tag": entries[-1].tag})
        await pipe.execute()


async def from_memory(entries: list[Entry]) -> AsyncIterator[list[Entry]]:
    for start in range(0, len(entries), STORE_PAGE_EVENTS):
        yield entries[start : start + STORE_PAGE_EVENTS]


async def from_store(lab: Lab) -> AsyncIterator[list[Entry]]:
    after = START
    while entries := list((await lab.store.read_log("run-1", after, limit=STORE_PAGE_EVENTS, private=True)).entries):
        yield entries
        after = entries[-1].cursor


async def replay_once(definition: Workflow, pages: AsyncIterator[list[Entry]], last_seq: int) -> tuple[float, float]:
    """Entries a second, and microseconds of CPU an entry."""
    began_s, cpu_s = time.perf_counter(), time.process_time()
    replay = Replay(definition, "run-1")
    async for page in pages:
        replay.receive_all(page)
    replay.finish()
    cpu_us = (time.process_time() - cpu_s) / last_seq * 1e6
    per_second = last_seq / (time.perf_counter() - began_s)
    assert replay.head == last_seq
    replay.drop()
    return per_second, cpu_us


async def main(steps: int, rounds: int) -> None:
    driven = record(steps)
    entries = driven.log.entries
    print(f"{len(entries):,} entries of {steps:,} steps, {rounds} rounds")
    with tempfile.TemporaryDirectory() as folder, StoreServer(Path(folder)) as server:
        async with open_lab(server.url) as lab:
            await store(lab, entries)
            found: dict[str, list[tuple[float, float]]] = {"from memory": [], "from a store": []}
            for _ in range(rounds):
                for name, pages in (("from memory", from_memory(entries)), ("from a store", from_store(lab))):
                    found[name].append(await replay_once(driven.definition, pages, len(entries)))
    driven.close()
    for name, rows in found.items():
        per_second, cpu_us = (statistics.median(column) for column in zip(*rows, strict=True))
        print(f"  {name:<14}{per_second:>9,.0f} entries/s, {cpu_us:.1f} us of CPU an entry (goal {GOAL:,} entries/s)")


if __name__ == "__main__":
    arguments = [int(argument) for argument in sys.argv[1:]]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(arguments[0] if arguments else 5_000, arguments[1] if len(arguments) > 1 else 5))
