"""Each reader of a run goes on from its own place, however far others of the same process have come meanwhile.

The symptom: the hub kept one last number for each run. Who had read up to an older one and then joined was begun at
the shared one, and what lay between was skipped.
"""

import asyncio

import pytest

from tests.cases.test_res_04 import Gap, watch
from tests.support.gateway import RunningGateway
from tests.support.transports import TRANSPORTS
from towline.protocol.cursor import START, parse

JOINERS = 21


@pytest.mark.parametrize("where", ["before follow", "after read_log"])
async def test_who_joins_late_begins_where_it_stood(gateway: RunningGateway, where: str) -> None:
    run = await gateway.start()
    hand = await gateway.hold(run)
    await hand.note(count=48)
    at = [str(entry.cursor) for entry in (await gateway.store.read_log(run, START, limit=50)).entries]
    async with gateway.socket() as first:
        await first.subscribe(run)
        await first.until("live")
        with Gap(gateway, where) as gap:
            joining = {
                (transport, after): asyncio.create_task(watch(gateway, transport, run, after, upto=56))
                for number in range(JOINERS)
                for transport, after in [(TRANSPORTS[number % 3], at[48 - 2 * number])]
            }
            await gap.hold(JOINERS)
            done = await hand.note(count=5)
            await first.until("events", cursor=str(done.cursor))
            gap.release.set()
            await gap.passed.wait()
            await hand.note()
            async with asyncio.timeout(20):
                came = dict(zip(joining, await asyncio.gather(*joining.values()), strict=True))
    for (transport, after), events in came.items():
        assert [event["seq"] for event in events] == list(range(parse(after).seq + 1, 57)), (transport, after)
