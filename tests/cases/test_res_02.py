"""A client that subscribed to a quiet run and heard nothing can still resume; what is no cursor is refused.

The symptoms: the first resume point came with the first message; and a malformed one was treated as "from now".
"""

from typing import Any

import pytest

from tests.support.gateway import RunningGateway
from tests.support.transports import TRANSPORTS, read

MALFORMED = [
    "abc",
    "-1",
    "3.5",
    "9007199254740992",
    "1-",
    "-",
    "01",
    "1-01",
    "1 ",
    "１",
    "1-4294967296",
    "1700000000000-0",
]


@pytest.mark.parametrize("notes", [0, 7])
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_the_first_answer_carries_a_cursor(gateway: RunningGateway, transport: str, notes: int) -> None:
    run = await gateway.start()
    hand = await gateway.hold(run)
    await hand.note(count=notes)
    head = (await gateway.store.heads([run]))[run]
    quiet = await read(gateway, transport, run, "latest")
    assert quiet.seqs == []
    assert quiet.cursor == str(head)
    await hand.note(count=3)
    back = await read(gateway, transport, run, quiet.cursor)
    assert back.seqs == [head.seq + 1, head.seq + 2, head.seq + 3]


@pytest.mark.parametrize("after", MALFORMED)
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_what_is_no_cursor_is_refused(gateway: RunningGateway, transport: str, after: str) -> None:
    run = await gateway.start()
    answer = await read(gateway, transport, run, after)
    if after == "1700000000000-0":  # another system's id is well-formed, and ahead of any log
        assert (answer.recovery, answer.code) == ("reset", "ahead")
        return
    assert answer.problem is not None
    assert answer.problem["code"] == "bad_request"
    assert answer.problem["field"] == "after"
    assert answer.events == []


@pytest.mark.parametrize("after", [123, 3.5, True, ["1"], {"seq": 1}])
async def test_a_cursor_is_a_string(gateway: RunningGateway, after: Any) -> None:
    run = await gateway.start()
    answer = await read(gateway, "socket", run, after)
    assert answer.problem is not None
    assert answer.problem["code"] == "bad_request"
