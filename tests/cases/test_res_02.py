"""A client that subscribed to a quiet run and heard nothing can still resume; what is no cursor is refused.

The symptoms: the first resume point came with the first message; and a malformed one was treated as "from now".
"""

import pytest

from tests.support.gateway import RunningGateway
from tests.support.transports import TRANSPORTS, read

MALFORMED = [
    "",
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


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_what_is_no_cursor_is_refused(gateway: RunningGateway, transport: str) -> None:
    run = await gateway.start()
    for after in MALFORMED:
        answer = await read(gateway, transport, run, after)
        assert answer.problem is not None, after
        assert (answer.problem["code"], answer.problem["field"]) == ("bad_request", "after"), after
        assert (answer.events, answer.recovery, answer.cursor) == ([], None, None), after
    foreign = await read(gateway, transport, run, "1700000000000-0")
    # Another system's id has the form of one, and stands ahead of any log: neither very old nor very new.
    assert (foreign.recovery, foreign.code, foreign.seqs) == ("reset", "ahead", [1])


async def test_what_a_browser_brings_back_is_judged_alike(gateway: RunningGateway) -> None:
    run = await gateway.start()
    for after in set(MALFORMED) - {"", "1 "}:  # a header has neither
        headers = {"Accept": "text/event-stream", "Last-Event-ID": after.encode()}
        answer = await gateway.http.get(f"/v1/runs/{run}/events", params={"after": "0"}, headers=headers)  # type: ignore[arg-type]
        assert (answer.status_code, answer.json()["field"]) == (400, "after"), after


async def test_a_cursor_is_a_string(gateway: RunningGateway) -> None:
    run = await gateway.start()
    for after in (123, 3.5, True, ["1"], {"seq": 1}, None):
        answer = await read(gateway, "socket", run, after)
        assert answer.problem is not None
        assert (answer.problem["code"], answer.problem["field"]) == ("bad_request", "after"), after
        assert answer.events == []
