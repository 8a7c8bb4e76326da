"""A cursor is bound to its run: another run's, or an invented one, never brings anything of another run.

The symptom: the id was looked up in a store shared by all streams, and what came later was sent whosever it was.
"""

import pytest

from tests.support.gateway import RunningGateway, token
from tests.support.transports import TRANSPORTS, read


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_another_runs_cursor(gateway: RunningGateway, transport: str) -> None:
    mine, other = await gateway.start(), await gateway.start()
    for run, text in ((mine, "mine"), (other, "other")):
        await (await gateway.hold(run)).note(text, count=5)
    foreign = (await read(gateway, transport, other, "0", limit=4)).cursor
    invented = "3-123456789"
    for cursor in (foreign, invented):
        answer = await read(gateway, transport, mine, cursor)
        assert (answer.recovery, answer.code) == ("reset", "diverged")
        assert answer.seqs == [1, 2, 3, 4, 5, 6, 7]
        assert "other" not in str(answer.events)


async def test_the_header_wins_over_the_address(gateway: RunningGateway) -> None:
    run = await gateway.start()
    await (await gateway.hold(run)).note(count=5)
    at_four = (await read(gateway, "pages", run, "3", limit=1)).events
    assert [event["seq"] for event in at_four] == [4, 5, 6, 7]  # pages read on; the first page ended at 4
    page = (await gateway.http.get(f"/v1/runs/{run}/events", params={"after": "3", "limit": "1"})).json()
    gateway.http.headers["Last-Event-ID"] = page["cursor"]
    assert (await read(gateway, "sse", run, "0")).seqs == [5, 6, 7]


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_who_may_not_read_learns_nothing_from_a_cursor(gateway: RunningGateway, transport: str) -> None:
    run = await gateway.start()
    await (await gateway.hold(run)).note(count=5)
    good = (await read(gateway, transport, run, "0")).cursor
    answers = [
        (await read(gateway, transport, each, cursor, credential=token("eve"))).problem
        for each in (run, "run_" + "0" * 26)
        for cursor in ("0", good, "99", "3-1")
    ]
    without_id = [{k: v for k, v in (answer or {}).items() if k != "request_id"} for answer in answers]
    assert all(answer == without_id[0] for answer in without_id)
    assert without_id[0]["code"] == "not_found"
