"""A connection that only looks open is given up, and the reader goes on from its cursor.

The symptom: after sleep the socket still said OPEN while nothing came; and a client that closed because it had lost
its heartbeat took its own close for a wish to stay away.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cable import cable
from tests.support.gateway import RunningGateway, running_gateway, token
from tests.support.waiting import wait_until
from towline.protocol.client import Client, link

READER = """
import asyncio, sys
from towline.protocol.client import Client

async def main(url, token, run):
    async with Client(url, token) as towline:
        async for event in towline.events(run):
            print(event.seq, flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture
async def quick(redis_url: str, tmp_path: Path) -> AsyncIterator[RunningGateway]:
    """A gateway whose sockets are quiet for no longer than 0.3 s."""
    async with running_gateway(redis_url, tmp_path, heartbeat_ms=300) as running:
        yield running


async def test_the_client_gives_up_what_is_silent_and_comes_back(
    quick: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "_OPEN_S", 0.3)
    monkeypatch.setattr(link, "_CLOSE_S", 0.1)
    run = await quick.start()
    hand = await quick.hold(run)
    with cable(quick.url) as line:
        async with Client(line.url, token()) as towline:
            stream = towline.events(run)
            seen = [(await anext(stream)).seq for _ in range(2)]
            line.silence()
            await hand.note(count=20)
            before = line.taken
            await wait_until(lambda: line.taken > before, "the client to try again")
            line.mend()
            await hand.complete()
            seen += [event.seq async for event in stream]
    assert seen == list(range(1, 24))


async def test_a_machine_that_slept_notices_by_the_clock(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    awake, slept_ms = link._now_ms, [0]
    monkeypatch.setattr(link, "_now_ms", lambda: awake() + slept_ms[0])
    monkeypatch.setattr(link, "_LOOK_S", 0.1)
    monkeypatch.setattr(link, "_CLOSE_S", 0.1)
    run = await gateway.start()
    hand = await gateway.hold(run)
    with cable(gateway.url) as line:
        async with Client(line.url, token()) as towline:
            is_live = asyncio.Event()
            reading = asyncio.create_task(_all(towline.events(run, on_live=is_live.set)))
            await is_live.wait()
            line.silence()
            await hand.note(count=20)
            line.mend()
            slept_ms[0] = 40 * 60_000
            await hand.complete()
            assert await asyncio.wait_for(reading, 20) == list(range(1, 24))


async def test_an_attempt_that_nobody_answers_ends(quick: RunningGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "_OPEN_S", 0.3)
    run = await quick.start()
    await (await quick.hold(run)).complete()
    with cable(quick.url) as line:
        line.silence()
        async with Client(line.url, token()) as towline:
            reading = asyncio.create_task(_all(towline.events(run)))
            await wait_until(lambda: line.taken >= 2, "a second attempt")
            line.mend()
            assert await reading == [1, 2, 3]


async def _all(stream: Any) -> list[int]:
    return [event.seq async for event in stream]


@pytest.mark.processes
@pytest.mark.parametrize("network", ["stays", "goes", "cuts"])
async def test_a_stopped_process_goes_on_where_it_was(quick: RunningGateway, network: str) -> None:
    run = await quick.start()
    hand = await quick.hold(run)
    with cable(quick.url) as line:
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", READER, line.url, token(), run, stdout=asyncio.subprocess.PIPE
        )
        try:
            assert child.stdout is not None
            seen = [int(await child.stdout.readline()) for _ in range(2)]
            os.kill(child.pid, signal.SIGSTOP)
            if network == "goes":
                line.silence()
            if network == "cuts":
                assert line.cut() >= 1
            await hand.note(count=20)
            line.mend()
            os.kill(child.pid, signal.SIGCONT)
            await hand.complete()
            seen += [int(text) for text in (await asyncio.wait_for(child.stdout.read(), 30)).split()]
            assert await child.wait() == 0
        finally:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
                await child.wait()
    assert seen == list(range(1, 24))
