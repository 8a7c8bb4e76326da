"""Replayed frames carry the cursor that a live one would, so a second and third return from it bring nothing.

The symptom: what was replayed after a reconnect had no resume point of its own; who went offline twice in a row
got the same batch again.
"""

import pytest

from tests.support.gateway import RunningGateway
from tests.support.transports import TRANSPORTS, read


@pytest.mark.parametrize("second", TRANSPORTS)
@pytest.mark.parametrize("first", TRANSPORTS)
async def test_what_was_replayed_is_not_replayed_again(gateway: RunningGateway, first: str, second: str) -> None:
    run = await gateway.start()
    hand = await gateway.hold(run)
    await hand.note(count=8)
    head = (await gateway.store.heads([run]))[run]
    replayed = await read(gateway, first, run, "4")
    assert replayed.seqs == [5, 6, 7, 8, 9, 10]
    assert replayed.cursor == str(head)
    for _ in range(2):
        again = await read(gateway, second, run, replayed.cursor)
        assert again.recovery == "resumed"
        assert again.seqs == []
        assert again.cursor == str(head)
