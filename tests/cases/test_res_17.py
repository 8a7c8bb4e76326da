"""A long poll that ran out of time gives a position, and reading consumes nothing.

The symptom: an empty answer had no position, so what came between two polls was lost; a lost answer was, too.
"""

from tests.support.gateway import RunningGateway


async def test_an_empty_poll_has_a_position(gateway: RunningGateway) -> None:
    run = await gateway.start()
    hand = await gateway.hold(run)
    address = f"/v1/runs/{run}/events"
    empty = (await gateway.http.get(address, params={"after": "latest", "wait_ms": "50"})).json()
    assert empty["events"] == []
    assert empty["cursor"] == str((await gateway.store.heads([run]))[run])
    await hand.note(count=2)
    for _ in range(2):  # the first answer was lost on its way; asking again brings the same
        page = (await gateway.http.get(address, params={"after": empty["cursor"], "wait_ms": "50"})).json()
        assert [event["seq"] for event in page["events"]] == [3, 4]
