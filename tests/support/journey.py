"""A workflow that passes through everything once: for tests that kill whatever runs it.

Each execution of an activity is a line in the ledger file that the input names, written before it returns, so
a test can tell how often something really ran from how often it was recorded.
"""

import asyncio
import os
from datetime import timedelta

from msgspec import Struct

from towline.workers import Context, Proposal, Retry, activity, workflow

RETRY = Retry(attempts=20, first=timedelta(milliseconds=50), longest=timedelta(milliseconds=200))
WORK_S = 0.3
"""How long a step works: longer than a test's worker waits between two renewals."""
STEPS = ("prepare", "left", "right", "flaky", "conclude")
"""What one journey executes, each at least once and recorded once."""


class Journey(Struct):
    ledger: str


class Arrived(Struct):
    summary: str
    words: list[str]


def _enter(ledger: str, name: str) -> None:
    descriptor = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, f"{name} {activity.idempotency_key}\n".encode())
    finally:
        os.close(descriptor)


@activity(retry=RETRY, effect="write", idempotent=True, start_to_close=timedelta(seconds=30))
async def travel(ledger: str, name: str) -> str:
    _enter(ledger, name)
    activity.delta(f"On the way: {name}, ")
    await asyncio.sleep(WORK_S)
    activity.delta("arrived 🏁")
    return name


@activity(retry=RETRY, effect="write", idempotent=True, start_to_close=timedelta(seconds=30))
def flaky(ledger: str) -> str:
    _enter(ledger, "flaky")
    if activity.attempt == 1:
        raise ConnectionError("the first attempt always fails")
    return "flaky"


@workflow(name="journey", version="1", signals={"go": str})
async def journey(ctx: Context, input: Journey) -> Arrived:  # noqa: A002 - the word of the API
    await ctx.plan("Set out", "Wait", "Arrive")
    words = [await ctx.run(travel, input.ledger, "prepare")]
    words += await asyncio.gather(
        ctx.run(travel, input.ledger, "left"), ctx.run(travel, input.ledger, "right"), ctx.run(flaky, input.ledger)
    )
    await ctx.sleep(timedelta(seconds=2.5))
    words.append(await ctx.wait_signal("go"))
    decision = await ctx.approval("Arrive?", proposal=Proposal("Arrive", [], [], "Nothing", "Cannot be undone"))
    words.append(decision.outcome)
    words.append(await ctx.run(travel, input.ledger, "conclude"))
    ctx.claim("It arrived", evidence=[decision, *ctx.evidence(travel)])
    return Arrived("Arrived", words)
