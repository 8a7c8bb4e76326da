"""How long a run stands still when its worker is killed: from SIGKILL to `run.taken_over` at a watcher.

    python -m tests.bench.takeover [ROUNDS]

Default lease, renewal and sweep, two workers, the store synced on each write. Reports; asserts nothing. The goal
is 8 s: a lease of 6 s that was renewed just before the kill, and a sweep each second.
"""

import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path

from tests.support.stack import Stack
from tests.support.traveller import travel
from towline.protocol.client.views import SeenEvent

GOAL_S = 8.0


async def takeover_s(stack: Stack, ledger: Path) -> float:
    """One run whose holder is killed at its first step."""
    killed_s = taken_over_s = 0.0

    async def told(event: SeenEvent) -> None:
        nonlocal killed_s, taken_over_s
        if event.type == "run.started":
            holder = int(event.data["worker"].rsplit("-", 2)[1])
            next(kept for kept in stack.workers if kept.pid == holder).kill()
            killed_s = time.monotonic()
        elif event.type == "run.taken_over":
            taken_over_s = time.monotonic()

    async with stack.client() as client:
        await travel(client, ledger, on_event=told)
    return taken_over_s - killed_s


async def main(rounds: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        async with Stack(root / "stack", workers=2, environment={}) as stack:
            times = [await takeover_s(stack, root / f"ledger-{number}") for number in range(rounds)]
    print(f"takeover after kill -9, {rounds} rounds: ", end="")
    print(f"min {min(times):.2f} s  median {statistics.median(times):.2f} s  max {max(times):.2f} s  goal {GOAL_S:g} s")


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 5))
