"""A run whose log was trimmed: the Run reads as before, what is missing is said, what it made is still there."""

import asyncio
from typing import Any

import httpx
import pytest

from tests.support.gateway import AGENT, RunningGateway, note, token
from tests.support.trimmed import begun_anew, trim_run
from tests.support.waiting import wait_until
from towline.protocol import approvals, requests
from towline.protocol import event_data as d
from towline.protocol.codec import NewEntry
from towline.protocol.cursor import Cursor, parse
from towline.protocol.store import api
from towline.protocol.values import Proposal

pytestmark = pytest.mark.store


async def test_the_run_and_what_it_made_read_as_before(gateway: RunningGateway) -> None:
    run, hand, at = await begun_anew(gateway, 7, 3)
    before = (await gateway.http.get(f"/v1/runs/{run}")).json()
    listed = (await gateway.http.get(f"/v1/runs/{run}/artifacts")).json()
    assert listed["items"][0]["seq"] == 7
    assert await trim_run(gateway, hand) == 8
    after = (await gateway.http.get(f"/v1/runs/{run}")).json()
    assert (before["first_seq"], after["first_seq"]) == (1, 8)
    assert after == before | {"first_seq": 8}
    assert (await gateway.http.get(f"/v1/runs/{run}/artifacts")).json() == listed
    assert (await gateway.http.get(f"/v1/runs/{run}/artifacts/old")).content == b"made"
    assert (await gateway.http.get(f"/v1/runs/{run}/artifacts?page=a7")).json()["items"] == []
    assert (await gateway.http.get(f"/v1/runs/{run}/artifacts?page=a999")).json()["items"] == []
    page = (await gateway.http.get(f"/v1/runs/{run}/events", params={"after": "0", "limit": 2})).json()
    assert (page["lost"], page["first_seq"]) == ([1, 7], 8)
    assert [event["seq"] for event in page["events"]] == [8, 9]
    assert page["cursor"] == at[9]
    # Whoever reads on, and whoever ends it, sees no difference.
    assert (await gateway.http.post(f"/v1/runs/{run}/cancel", json={"grace_ms": 0})).is_success

    async def is_over() -> bool:
        return bool((await gateway.http.get(f"/v1/runs/{run}")).json()["status"] == "cancelled")

    await wait_until(is_over, "the run to be closed from a trimmed log")


async def test_a_holder_over_http_goes_on_from_what_is_left(gateway: RunningGateway) -> None:
    run, hand, _ = await begun_anew(gateway, 5, 2)
    await trim_run(gateway, hand)
    await gateway.store.release(hand.commit(), "hand_over")
    headers = {"Authorization": f"Bearer {token('ana', roles=['worker'])}"}
    async with httpx.AsyncClient(base_url=f"{gateway.url}/v1/runs/{run}/", headers=headers, timeout=40) as http:
        claimed = (await http.post(f"{gateway.url}/v1/runs/{run}/claim", json={"version": "1"})).json()
        assert claimed["input"] == 2
        http.headers["Towline-Lease"] = claimed["lease"]["token"]
        history = (await http.get("history")).json()
        assert [event["seq"] for event in history["events"][:3]] == [6, 7, 8]
        assert (history["first_seq"], history["events"][0]["private"]) == (6, {"input": 2})
        body = {"commit": 1, "seen": history["cursor"], "events": [{"type": "progress.noted", "data": {"text": "on"}}]}
        wrote = await http.post("events", json=body)
        assert wrote.status_code == 200, wrote.text


async def test_what_may_not_go_yet_stays(gateway: RunningGateway) -> None:
    queued = await gateway.hold(await gateway.start())
    await queued.write(NewEntry("run.continued", AGENT, d.RunContinued(generation=1)))
    with pytest.raises(api.Changed, match="history replay"):
        await trim_run(gateway, queued)
    run, hand, _ = await begun_anew(gateway, 5, 2)
    proposal = Proposal("Do it", [], ["fs:write"], "Little", "Undo it")
    asked = d.ApprovalRequested(
        request="q1", title="May I?", proposal=proposal, digest=approvals.digest_of("q1", proposal, []), questions=[],
        deciders=["role:owner"], exclude=[], quorum=1,
    )  # fmt: skip
    again = NewEntry("run.continued", AGENT, d.RunContinued(generation=2))
    side = requests.side_fields(requests.opened(asked))
    await hand.write(NewEntry("approval.requested", AGENT, asked), again, side=side)
    with pytest.raises(api.Changed, match="still open"):
        await trim_run(gateway, hand)
    body = {"type": "reject", "data": {"request": "q1", "digest": asked.digest}}
    assert (await gateway.http.post(f"/v1/runs/{run}/commands", json=body)).status_code == 200
    assert await trim_run(gateway, hand) == 10
    known = (await gateway.http.get(f"/v1/runs/{run}/requests/q1")).json()
    assert known["outcome"] == "rejected"


async def test_readers_in_the_middle_are_told_and_none_crosses_the_hole(gateway: RunningGateway) -> None:
    """Pages, replays and folds race with a log that is trimmed again and again."""
    run, hand, _ = await begun_anew(gateway, 5, 2)
    stop = asyncio.Event()
    told: set[str] = set()

    async def reads() -> None:
        after = "0"
        while not stop.is_set():
            page: dict[str, Any] = (
                await gateway.http.get(f"/v1/runs/{run}/events", params={"after": after, "limit": 3})
            ).json()
            told.add(page["recovery"])
            seqs = [event["seq"] for event in page["events"]]
            expected = int(after.partition("-")[0]) + 1 if page["recovery"] == "resumed" else page["first_seq"]
            assert seqs == list(range(expected, expected + len(seqs))), page
            after = page["cursor"] if seqs else "0"
            loaded = await gateway.store.load(run)
            assert loaded.run.last_seq == loaded.cursor.seq

    async def replays() -> None:
        async with gateway.socket() as wire:
            while not stop.is_set():
                await wire.send(op="subscribe", id="s", run=run, after="0")
                while (subscribed := await wire.next())["op"] not in ("subscribed", "problem"):
                    pass
                if subscribed["op"] == "problem":
                    # The log was trimmed under each of its looks: it is told so, and asks again.
                    assert subscribed["problem"]["code"] == "overloaded", subscribed
                    continue
                wire.frames.clear()  # what came of the subscription before
                await wire.until("live")
                seqs = [event["seq"] for event in wire.events()]
                start = Cursor(int(subscribed["cursor"].partition("-")[0])).seq + 1
                assert seqs == list(range(start, start + len(seqs)))
                assert (subscribed["lost"][1] if "lost" in subscribed else 0) == start - 1

    readers = [asyncio.create_task(each()) for each in (reads, reads, replays)]
    for generation in range(2, 40):
        notes = [note(f"{generation} {number}") for number in range(5)]
        await hand.write(*notes, NewEntry("run.continued", AGENT, d.RunContinued(generation=generation)))
        await trim_run(gateway, hand)
    stop.set()
    await asyncio.gather(*readers)
    assert told == {"resumed", "snapshot"}


async def test_who_comes_just_after_is_placed_and_not_refused(gateway: RunningGateway) -> None:
    """A trim moves no head, so what was read for the first may serve the second for a moment; but not all of it."""
    run, hand, at = await begun_anew(gateway, 7, 3)
    await hand.write(NewEntry("run.continued", AGENT, d.RunContinued(generation=2)))
    for _ in range(3):
        await hand.write(*[note("large" * 600)] * 40)  # in all more than is kept of an answer
    loaded = await gateway.store.load(run)
    hand.seen = loaded.cursor
    async with gateway.socket() as wire:
        assert await gateway.store.trim_log(run, hand.fence, parse(at[8]), loaded, side={}) == (8, 0)
        assert (await wire.subscribe(run, after="0"))["lost"] == [1, 7]
        await wire.until("live")
        assert await trim_run(gateway, hand) == 12
        await wire.send(op="subscribe", id="again", run=run, after="0")
        while (frame := await wire.next())["op"] not in ("subscribed", "problem"):
            pass
        assert frame.get("lost") == [1, 11], frame
        # Who had come to a place that is gone by now comes back, and is told.
        assert (await wire.subscribe(run, after=at[3]))["lost"] == [4, 11]
