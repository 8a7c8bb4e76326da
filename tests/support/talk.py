"""A workflow that talks: for tests that kill whatever carries its text. What it says follows from the attempt alone."""

import asyncio
from datetime import timedelta

from towline.workers import Context, Retry, activity, workflow

PARTS = 60
PAUSE_S = 0.05


def part(attempt: int, number: int) -> str:
    """What an attempt says at its `number`-th word: longer and shorter, in several scripts."""
    return f"{attempt}.{number} 👩‍👩‍👧‍👦 שלום e\u0301 " + "x" * (number % 7) * 40 + " "


def whole(attempt: int) -> str:
    """All that an attempt says."""
    return "".join(part(attempt, number) for number in range(PARTS))


@activity(retry=Retry(attempts=20, first=timedelta(milliseconds=50)), effect="read")
async def speak() -> int:
    for number in range(PARTS):
        activity.delta(part(activity.attempt, number))
        await asyncio.sleep(PAUSE_S)
    return activity.attempt


@workflow(name="talk", version="1")
async def talk(ctx: Context) -> int:
    return await ctx.run(speak)
