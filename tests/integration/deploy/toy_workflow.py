"""A user's own workflow file, for tests that start real workers: steps one after the other."""

import asyncio

from towline.workers import Context, activity, workflow


@activity(effect="read")
async def count(number: int, pause_s: float) -> int:
    """One step that takes a while."""
    await asyncio.sleep(pause_s)
    return number


@workflow(name="toy")
async def toy(ctx: Context, steps: int) -> int:
    """As many steps as the input says."""
    total = 0
    for number in range(steps):
        total += await ctx.run(count, number, 0.05)
    return total
