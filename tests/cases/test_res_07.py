"""One form of cursor everywhere: what one transport gave, every other takes, and JSON does not bend it.

The symptom: two id spaces both travelled as "last event id", one of them as numbers that JavaScript rounds.
"""

import json

import pytest

from tests.support.gateway import RunningGateway
from tests.support.transports import TRANSPORTS, read


@pytest.mark.parametrize("later", TRANSPORTS)
@pytest.mark.parametrize("earlier", TRANSPORTS)
async def test_a_cursor_of_one_transport_resumes_another(gateway: RunningGateway, earlier: str, later: str) -> None:
    run = await gateway.start()
    hand = await gateway.hold(run)
    await hand.note(count=3)
    first = await read(gateway, earlier, run, "0")
    assert isinstance(first.cursor, str)
    cursor = json.loads(json.dumps(first.cursor))
    await hand.note(count=2)
    second = await read(gateway, later, run, cursor)
    assert second.recovery == "resumed"
    assert first.seqs + second.seqs == [1, 2, 3, 4, 5, 6, 7]
