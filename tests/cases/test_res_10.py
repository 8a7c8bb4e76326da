"""A cursor below what is kept is told what is missing; the first kept entry is never passed off as its successor.

The symptom: partial history as if it were complete.
"""

from typing import Any

import pytest

from tests.support.gateway import RunningGateway
from tests.support.transports import TRANSPORTS, read
from towline.protocol.store.keys import RunKeys
from towline.protocol.store.reading import encode_snapshot

FIRST = 6


async def trimmed(gateway: RunningGateway) -> str:
    """A run of which only seq 6 and later are kept."""
    run = await gateway.start()
    hand = await gateway.hold(run)
    await hand.note(count=8)
    client: Any = gateway.store._client
    keys = RunKeys.of(run)
    loaded = await gateway.store.load(run)
    snapshot = {"snapshot": encode_snapshot(loaded.run), "snapshot_seq": str(loaded.run.last_seq)}
    await client.hset(keys.run, mapping={"first_seq": str(FIRST), **snapshot})
    await client.xtrim(keys.log, minid=f"{FIRST}-0", approximate=False)
    return run


@pytest.mark.parametrize("after", ["0", "2", "4"])
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_below_what_is_kept(gateway: RunningGateway, transport: str, after: str) -> None:
    run = await trimmed(gateway)
    answer = await read(gateway, transport, run, after)
    assert (answer.recovery, answer.code) == ("snapshot", "trimmed")
    assert (answer.first_seq, answer.head) == (FIRST, 10)
    assert answer.lost == [int(after) + 1, FIRST - 1]
    assert answer.seqs == [6, 7, 8, 9, 10]
    shown = (await gateway.http.get(f"/v1/runs/{run}")).json()
    assert answer.projection in (None, shown)
    # All that the lost events set is in it: a client rebuilds from here and folds what is newer.
    assert (shown["first_seq"], shown["last_seq"], shown["cursor"]) == (FIRST, 10, answer.cursor)
    assert (shown["workflow"], shown["owner"], shown["status"]) == ("toy", "ana", "running")
    assert shown["started_at"] is not None
    assert shown["summary"] == answer.events[-1]["data"]["text"]


@pytest.mark.parametrize("after", ["5", "6", "9"])
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_at_or_above_its_edge(gateway: RunningGateway, transport: str, after: str) -> None:
    answer = await read(gateway, transport, await trimmed(gateway), after)
    assert answer.recovery == "resumed"
    assert answer.seqs == list(range(int(after) + 1, 11))
