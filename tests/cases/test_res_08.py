"""A store that came back without its tail: a cursor beyond or beside the new history is told so.

The symptom: after a crash the numbers were given out again for other events, and a client at 100 got the new 101
joined to the old 100.
"""

from typing import Any

import msgspec
import pytest

from tests.cases.test_res_04 import Gap
from tests.support.gateway import RunningGateway
from tests.support.transports import TRANSPORTS, read
from tests.support.waiting import wait_until
from towline.protocol.cursor import START
from towline.protocol.store.keys import RunKeys


async def lose_the_tail(gateway: RunningGateway, run: str, keep: int) -> None:
    """What a store put back to an older state looks like to this run."""
    client: Any = gateway.store._client
    keys = RunKeys.of(run)
    entries = await client.xrange(keys.log)
    kept = entries[keep - 1][0].decode().split("-")
    await client.delete(keys.log)
    for entry_id, fields in entries[:keep]:
        await client.xadd(keys.log, fields, id=entry_id)
    await client.hset(keys.run, mapping={"last_seq": kept[0], "last_tag": kept[1]})


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_cursor_of_the_lost_tail(gateway: RunningGateway, transport: str) -> None:
    run = await gateway.start()
    hand = await gateway.hold(run)
    await hand.note("old", count=8)
    before = await read(gateway, transport, run, "0")
    await lose_the_tail(gateway, run, keep=5)
    ahead = await read(gateway, transport, run, before.cursor)
    assert (ahead.recovery, ahead.code) == ("reset", "ahead")
    assert ahead.seqs == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_cursor_beside_the_new_history(gateway: RunningGateway, transport: str) -> None:
    run = await gateway.start()
    hand = await gateway.hold(run)
    await hand.note("old", count=8)
    before = await read(gateway, transport, run, "0")
    await lose_the_tail(gateway, run, keep=5)
    await hand.note("new", count=10)
    diverged = await read(gateway, transport, run, before.cursor)
    assert (diverged.recovery, diverged.code) == ("reset", "diverged")
    assert diverged.seqs == list(range(1, 16))
    texts = [event["data"]["text"] for event in diverged.events if event["type"] == "progress.noted"]
    assert not any(text.startswith("old") for text in texts[3:])
    survived = (await gateway.store.read_log(run, START, limit=100)).entries
    assert diverged.events == [msgspec.json.decode(entry.raw) for entry in survived]
    assert diverged.cursor == str(survived[-1].cursor)


async def test_what_comes_first_after_the_loss_is_not_joined_to_what_was_before(gateway: RunningGateway) -> None:
    """The store came back without 6 to 10 and was given others, all while a live reader's gateway had lost it."""
    run = await gateway.start()
    hand = await gateway.hold(run)
    await hand.note("old", count=8)
    client: Any = gateway.store._client
    torn = list[bool]()
    async with gateway.socket() as wire:
        await wire.subscribe(run, after="0")
        await wire.until("live")
        with Gap(gateway, "before heads") as gap:
            await gap.hold(1)  # heads are compared later than entries are heard of
            gateway.services.hub.on_torn(lambda: torn.append(True))
            await client.client_kill_filter(_type="pubsub")
            await lose_the_tail(gateway, run, keep=5)
            await hand.note("new", count=5)
            await wait_until(lambda: torn, "notices to be heard again")
            await hand.note("new")
            gap.release.set()
            assert await wire.closed() == 4010
    assert [event["seq"] for event in wire.events()] == list(range(1, 11))
    assert "new" not in str(wire.events())
