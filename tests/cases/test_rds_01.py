"""Callers that leave while the store is asked get nobody's answer mixed up: what is read is what was asked for.

The symptom: a call was cancelled between its command and its reply; the connection went back to the pool with that
reply unread, and everyone after it was given the answer of the one before.
"""

import asyncio
import random
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from tests.support.gateway import RunningGateway, running_gateway
from tests.support.line import Line
from tests.support.soak import SOAK
from tests.support.transports import TRANSPORTS, follow, read
from towline.gateway.limits import Allowances
from towline.protocol.store.connection import open_client

RUNS: Final = 20
LEAVERS: Final = 2_000 if SOAK else 120
AT_ONCE: Final = 20
CHECKS: Final = 300 if SOAK else 21
DELAY_S: Final = 0.01
"""Each way; a subscription asks several times, one after the other."""
LEAVES_WITHIN_S: Final = 0.1


async def whole(gateway: RunningGateway, run: str, transport: str) -> None:
    """Reads all that a run shows; everything must be of this run."""
    answer = await read(gateway, transport, run, "0")
    assert (answer.recovery, answer.seqs) == ("resumed", [1, 2, 3, 4])
    assert [event["data"]["text"] for event in answer.events[2:]] == [f"{run} 0", f"{run} 1"]
    assert answer.projection is None or (answer.projection["id"], answer.projection["summary"]) == (run, f"{run} 1")
    shown = (await gateway.http.get(f"/v1/runs/{run}")).json()
    assert (shown["id"], shown["summary"], shown["cursor"]) == (run, f"{run} 1", answer.cursor)


async def leave(gateway: RunningGateway, run: str, transport: str, within_s: float) -> None:
    """Comes to a run and is gone in the middle of whatever is asked of the store for it."""
    if transport == "socket":
        async with gateway.socket() as wire:
            await wire.send(op="subscribe", id="s", run=run, after="0")
            await asyncio.sleep(within_s)
            wire.connection.transport.abort()
        return

    async def look() -> None:
        async with aclosing(follow(gateway, transport, run, "0")) as frames:
            async for frame in frames:
                assert frame.get("run", run) == run
                assert all(event["data"]["text"].startswith(run) for event in frame.get("events", [])[2:])

    looking = asyncio.create_task(look())
    await asyncio.wait([looking], timeout=within_s)
    looking.cancel()
    (gone,) = await asyncio.gather(looking, return_exceptions=True)
    assert isinstance(gone, asyncio.CancelledError | httpx.HTTPError), gone


async def test_nobody_gets_the_answer_of_who_left(
    redis_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dice = random.Random(1)
    unbound = Allowances(subscriptions_per_s=100_000)
    async with (
        Line(tmp_path / "line", redis_url).open() as line,
        running_gateway(line.url, tmp_path, limits=unbound) as gateway,
        open_client(redis_url) as raw,
    ):
        runs = list[str]()
        for _ in range(RUNS):
            run = await gateway.start()
            await (await gateway.hold(run)).note(run, count=2)
            runs.append(run)
        await whole(gateway, runs[0], "socket")
        line.delay_s = DELAY_S
        before = await connections(raw)

        async def leave_one_by_one(first: int) -> None:
            for number in range(first, LEAVERS, AT_ONCE):
                way = TRANSPORTS[number % 3]
                await leave(gateway, dice.choice(runs), way, dice.random() * LEAVES_WITHIN_S)

        async with asyncio.timeout(120), asyncio.TaskGroup() as group:
            for first in range(AT_ONCE):
                group.create_task(leave_one_by_one(first))
            for number in range(CHECKS):
                group.create_task(whole(gateway, dice.choice(runs), TRANSPORTS[number % 3]))
        line.delay_s = 0.0
        for run in runs:
            await whole(gateway, run, "pages")
        assert await connections(raw) == before, "a connection was lost, or one more was opened"
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert [error for error in errors if not error.startswith("development mode")] == []


async def connections(raw: Any) -> set[str]:
    """The connections that the store has, beside the one that asks."""
    return {each["id"] for each in await raw.client_list()}
