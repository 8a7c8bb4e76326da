"""publish_delta.lua: unfinished text reaches who follows the run; only its holder publishes; nothing is appended."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace

from tests.support.lab import AGENT, Lab, ending, note
from tests.support.waiting import wait_until
from towline.protocol import event_data as d
from towline.protocol.codec import NewEntry
from towline.protocol.deltas import Piece
from towline.protocol.store import api
from towline.protocol.store.keys import RunKeys
from towline.protocol.store.texts import TEXT_EXPIRES_MS

HELLO = Piece("m1", 1, 0, "Hello 👋\n", step="s1")


def completed(message: str = "m1") -> NewEntry:
    data = d.MessageCompleted(
        message=message, attempt=1, role="assistant", kind="text", text="Hello", partial=False, step="s1"
    )
    return NewEntry("message.completed", AGENT, data)


@asynccontextmanager
async def following(lab: Lab, run: str = "r1") -> AsyncIterator[list[api.Notice]]:
    """The notices of a run, as they come."""
    heard: list[api.Notice] = []
    notices = lab.store.notices()
    await notices.follow(run)
    subscribed = asyncio.Event()

    async def read() -> None:
        async for notice in notices:
            if notice is None:
                subscribed.set()
            else:
                heard.append(notice)

    task = asyncio.create_task(read())
    await subscribed.wait()

    async def is_followed() -> bool:
        channel = RunKeys.of(run).channel
        return bool((await lab.raw.execute_command("PUBSUB", "SHARDNUMSUB", channel))[1])

    await wait_until(is_followed, "the channel to be followed")
    try:
        yield heard
    finally:
        await notices.aclose()
        task.cancel()


async def test_pieces_reach_who_follows_and_leave_no_trace_in_the_log(lab: Lab) -> None:
    lease = await lab.held()
    more = replace(HELLO, offset=8, text="more")
    async with following(lab) as heard, lab.unwritten():
        await lab.store.publish_pieces("r1", lease.fence, [HELLO, more])
        await wait_until(lambda: heard, "the notice")
    assert heard == [api.Notice("r1", (), [HELLO, more])]
    assert not await lab.raw.exists(RunKeys.of("r1").text)


async def test_entries_and_pieces_come_in_the_order_they_were_written(lab: Lab) -> None:
    lease = await lab.held()
    async with following(lab) as heard:
        await lab.store.publish_pieces("r1", lease.fence, [HELLO])
        await lab.store.commit(lab.commit(lease, 1, note()))
        await lab.store.publish_pieces("r1", lease.fence, [HELLO])
        await wait_until(lambda: len(heard) == 3, "the notices")
    assert [(len(n.entries), len(n.pieces)) for n in heard] == [(0, 1), (1, 0), (0, 1)]


async def test_kept_texts_are_read_back_until_they_expire_or_are_forgotten(lab: Lab) -> None:
    lease = await lab.held()
    other = Piece("m2", 3, 40, "the end only", kind="reasoning", audience="operator")
    await lab.store.publish_pieces("r1", lease.fence, [], [HELLO, other])
    longer = replace(HELLO, text="Hello, and more")
    await lab.store.publish_pieces("r1", lease.fence, [], [longer])
    assert sorted(await lab.store.unfinished("r1"), key=lambda p: p.message) == [longer, other]
    assert 0 < await lab.raw.pttl(RunKeys.of("r1").text) <= TEXT_EXPIRES_MS
    await lab.store.forget_texts("r1", ["m1"])
    assert await lab.store.unfinished("r1") == [other]
    await lab.store.forget_texts("r1", ["m2", "never"])
    assert await lab.store.unfinished("r1") == []


@pytest.mark.parametrize("finished_by", ["message", "step", "run"])
async def test_a_text_that_the_log_shows_as_finished_is_left_out_although_it_is_kept(
    lab: Lab, finished_by: str
) -> None:
    lease = await lab.held()
    await lab.store.publish_pieces("r1", lease.fence, [], [HELLO, replace(HELLO, message="m2", step="s2")])
    finished = d.ToolFinished(step="s1", attempt=1, summary="x", duration_ms=1)
    entries = {"message": completed(), "step": NewEntry("tool.finished", AGENT, finished), "run": note()}
    await lab.store.commit(lab.commit(lease, 1, *[note() for _ in range(20)], entries[finished_by]))
    if finished_by == "run":
        await lab.store.close(lab.commit(lease, 2, ending()))
    assert [p.message for p in await lab.store.unfinished("r1")] == ([] if finished_by == "run" else ["m2"])


async def test_only_the_holder_publishes(lab: Lab) -> None:
    lease = await lab.held()
    await lab.lapse()
    newer = await lab.claim(holder="w2")
    async with following(lab) as heard, lab.unwritten():
        with pytest.raises(api.Fenced):
            await lab.store.publish_pieces("r1", lease.fence, [HELLO], [HELLO])
        with pytest.raises(api.Fenced):
            await lab.store.publish_pieces("r1", api.Fence(newer.fence.epoch, "0" * 16), [HELLO], [HELLO])
        with pytest.raises(api.NoRun):
            await lab.store.publish_pieces("nobody", lease.fence, [HELLO], [HELLO])
    await lab.store.release(lab.commit(newer), "hand_over")
    with pytest.raises(api.Fenced):
        await lab.store.publish_pieces("r1", newer.fence, [HELLO], [HELLO])
    newest = await lab.claim(holder="w3")
    await lab.store.close(lab.commit(newest, 1, ending()))
    with pytest.raises(api.RunClosed):
        await lab.store.publish_pieces("r1", newest.fence, [HELLO], [HELLO])
    assert heard == []
    assert not await lab.raw.exists(RunKeys.of("r1").text)
