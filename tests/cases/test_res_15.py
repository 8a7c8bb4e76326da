"""A run that was reset under its address is new for every reader on every gateway: nothing of before is expected.

The symptom: a gateway kept the next number it expected of a run in its memory, and threw away what a run that had
begun anew counted from 1; or it served what it had kept of the old one.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from tests.cases.test_res_08 import lose_the_tail
from tests.support.gateway import Hand, RunningGateway, running_gateway
from tests.support.transports import TRANSPORTS, Answer, follow, read
from tests.support.waiting import wait_until
from towline.protocol.limits import STORE_PAGE_EVENTS as PAGE

ADDRESS = "again"
OLD = 545


@pytest.fixture
async def other(gateway: RunningGateway, tmp_path: Path) -> AsyncIterator[RunningGateway]:
    """Another gateway over the same store."""
    async with running_gateway(gateway.services.settings.store_url, tmp_path / "other") as other:
        yield other


async def write(hand: Hand, text: str, upto: int) -> None:
    """Notes until the run has `upto` events."""
    seq = (await hand.note(text)).cursor.seq
    while seq < upto:
        seq = (await hand.note(text, count=min(95, upto - seq))).cursor.seq


async def begin(gateway: RunningGateway, text: str, upto: int) -> Hand:
    """The run with this address, from its first event."""
    await gateway.start(id=ADDRESS)
    hand = await gateway.hold(ADDRESS)
    await write(hand, text, upto)
    return hand


async def reset(gateway: RunningGateway) -> None:
    """What the store held is gone, and nobody's connection was lost."""
    client: Any = gateway.store._client
    await client.flushall()


def told(answer: Answer, text: str) -> bool:
    """Whether the notes that came all say `text`."""
    said = [event["data"]["text"] for event in answer.events if event["type"] == "progress.noted"]
    return bool(said) and all(each.startswith(text) for each in said)


@pytest.mark.parametrize("length", [12, OLD, 700])
async def test_a_reset_run_reaches_old_and_new_readers(
    gateway: RunningGateway, other: RunningGateway, length: int
) -> None:
    await begin(gateway, "old", OLD)
    before = {transport: await read(other, transport, ADDRESS, "0") for transport in TRANSPORTS}
    assert all(answer.seqs == list(range(1, OLD + 1)) and told(answer, "old") for answer in before.values())
    await reset(gateway)
    await begin(gateway, "new", length)
    head = str((await gateway.store.heads([ADDRESS]))[ADDRESS])
    for transport in TRANSPORTS:
        fresh = await read(other, transport, ADDRESS, "0")
        assert (fresh.recovery, fresh.seqs, fresh.cursor) == ("resumed", list(range(1, length + 1)), head)
        assert told(fresh, "new")
        old = await read(other, transport, ADDRESS, before[transport].cursor)
        assert (old.recovery, old.code) == ("reset", "ahead" if length < OLD else "diverged")
        assert (old.seqs, old.cursor) == (list(range(1, length + 1)), head)
        assert told(old, "new")


async def test_a_tail_that_was_lost_is_not_served_from_memory(gateway: RunningGateway, other: RunningGateway) -> None:
    hand = await begin(gateway, "old", OLD)
    before = {transport: await read(other, transport, ADDRESS, "0") for transport in TRANSPORTS}
    await lose_the_tail(gateway, ADDRESS, keep=PAGE - 100)
    await write(hand, "new", 600)
    for transport in TRANSPORTS:
        old = await read(other, transport, ADDRESS, before[transport].cursor)
        assert (old.recovery, old.code, old.seqs) == ("reset", "diverged", list(range(1, 601)))
        texts = [event["data"]["text"] for event in old.events if event["seq"] > PAGE - 100]
        assert all(text.startswith("new") for text in texts)


async def test_who_watches_while_it_is_reset_is_told(gateway: RunningGateway, other: RunningGateway) -> None:
    """A socket and a stream are sent away to come back with their cursors; a page that waits answers."""
    await begin(gateway, "old", OLD)

    is_live = asyncio.Event()

    async def watch_stream() -> dict[str, Any]:
        last = dict[str, Any]()
        async with aclosing(follow(other, "sse", ADDRESS, "0")) as frames:
            async for last in frames:
                if last["op"] == "live":
                    is_live.set()
        return last

    async with other.socket() as wire:
        await wire.subscribe(ADDRESS, after="0")
        cursor = (await wire.until("live"))["cursor"]
        streaming = asyncio.create_task(watch_stream())
        await is_live.wait()
        query = {"after": cursor, "wait_ms": "20000"}
        waiting = asyncio.create_task(other.http.get(f"/v1/runs/{ADDRESS}/events", params=query))
        followers = other.services.hub._followers
        await wait_until(lambda: len(followers[ADDRESS]) == 3, "all three to watch")
        await reset(gateway)
        await begin(gateway, "new", 12)
        assert await wire.closed() == 4010
        assert wire.frames[-1]["op"] == "bye"
    bye = await streaming
    assert (bye["op"], bye["code"]) == ("bye", 4010), bye
    page = (await waiting).json()
    if page.get("code") != "not_found":  # it may have asked in between
        assert (page["recovery"], page["recovery_code"]) == ("reset", "ahead")
    for transport in TRANSPORTS:
        again = await read(other, transport, ADDRESS, cursor)
        assert (again.recovery, again.code, again.seqs) == ("reset", "ahead", list(range(1, 13)))
        assert told(again, "new")
