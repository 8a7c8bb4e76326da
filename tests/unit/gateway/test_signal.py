"""The small event and mailbox: as asyncio's are, for several who wait and for one who gives up."""

import asyncio

import pytest

from towline.gateway.signal import Mailbox, Signal


async def test_everyone_who_waits_goes_on_also_if_it_is_cleared_at_once() -> None:
    signal = Signal()
    waiting = [asyncio.create_task(signal.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    signal.set()
    signal.clear()
    await asyncio.gather(*waiting)
    assert not signal.is_set()
    signal.set()
    await signal.wait()


async def test_who_gives_up_takes_nobody_along_and_leaves_nothing() -> None:
    signal = Signal()
    first, second = asyncio.create_task(signal.wait()), asyncio.create_task(signal.wait())
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert signal._waiting is not None
    assert len(signal._waiting) == 1
    signal.set()
    await second


async def test_a_mailbox_keeps_the_order_and_waits_when_empty() -> None:
    mailbox = Mailbox[int]()
    reader = asyncio.create_task(mailbox.get())
    await asyncio.sleep(0)
    assert not reader.done()
    for n in range(3):
        mailbox.put_nowait(n)
    assert [await reader, await mailbox.get(), await mailbox.get()] == [0, 1, 2]
    assert mailbox.empty()
