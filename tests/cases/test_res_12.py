"""A cursor is bound to its run: another run's, or an invented one, never brings anything of another run.

The symptom: the id was looked up in a store shared by all streams, and what came later was sent whosever it was.
"""

from contextlib import aclosing
from typing import Any

import pytest

from tests.support.gateway import RunningGateway, token
from tests.support.transports import TRANSPORTS, follow, read

MARKER = "of another run"


async def start_as(gateway: RunningGateway, subject: str) -> str:
    """A run of somebody else."""
    await gateway.announce()
    body = {"workflow": "toy", "input": {}}
    answer = await gateway.http.post("/v1/runs", json=body, headers=gateway.as_(subject))
    return str(answer.json()["id"])


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_another_runs_cursor(gateway: RunningGateway, transport: str) -> None:
    """Two runs of two people, written in turn; one may read one of them and holds a cursor of the other."""
    mine, other = await gateway.start(), await start_as(gateway, "bob")
    hands = [(await gateway.hold(mine), "mine"), (await gateway.hold(other), MARKER)]
    for _ in range(5):
        for hand, text in hands:
            await hand.note(text)
    foreign = (await read(gateway, transport, other, "0", limit=4, credential=token("bob"))).cursor
    assert (await read(gateway, transport, other, foreign)).problem is not None
    for cursor in (foreign, "3-123456789"):
        came = list[dict[str, Any]]()
        async with aclosing(follow(gateway, transport, mine, cursor)) as frames:
            async for frame in frames:
                came.append(frame)
                if frame["op"] == "live":  # what comes live is of one run, too
                    for hand, text in reversed(hands):
                        await hand.note(text)
                elif frame["op"] == "events" and any(each["op"] == "live" for each in came):
                    break
        assert (came[0]["recovery"], came[0]["recovery_code"]) == ("reset", "diverged")
        seqs = [event["seq"] for frame in came for event in frame.get("events", ())]
        assert seqs == list(range(1, len(seqs) + 1))
        assert len(seqs) == (8 if cursor == foreign else 9)
        for strange in (MARKER, other, "bob"):
            assert strange not in str(came)


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
