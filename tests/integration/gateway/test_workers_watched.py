"""Workers over HTTP and the people at the other end: text as it is made, pauses, questions, what was given."""

import asyncio

from tests.support.gateway import RunningGateway
from tests.support.http_worker import DONE, NOTE, PROPOSAL, data_of, events_of, http_worker, offer_essay, start_essay


async def test_text_streams_to_who_watches(gateway: RunningGateway) -> None:
    await offer_essay(gateway)
    run = await start_essay(gateway)
    async with http_worker(gateway) as worker, gateway.socket() as wire:
        await worker.claim()
        await wire.subscribe(run, after="0", include=["delta"])
        await wire.until("live")
        pieces = [{"message": "m", "offset": 0, "text": "Ropes 🪢 "}, {"message": "m", "offset": 8, "text": "hold."}]
        for body in (pieces[0], {"deltas": pieces[1:]}):
            answer = await worker.call("POST", "deltas", json=body)
            assert answer.status_code == 204, answer.text
        shown = ""
        while len(shown) < 13:
            delta = await wire.until("delta")
            assert (delta["message"], delta["offset"]) == ("m", len(shown))
            shown += delta["text"]
        async with gateway.socket() as late:
            await late.subscribe(run, include=["delta"])
            assert (await late.until("delta"))["text"] == shown
        await worker.write(data_of("message.completed", message="m", text=shown), DONE)
        await wire.until("end")
    assert shown == "Ropes 🪢 hold."


async def test_a_pause_stops_what_would_start(gateway: RunningGateway) -> None:
    await offer_essay(gateway)
    run = await start_essay(gateway)
    async with http_worker(gateway) as worker:
        await worker.claim()
        paused = await gateway.http.post(
            f"/v1/runs/{run}/commands", json={"type": "pause", "data": {"reason": "lunch"}}
        )
        assert paused.json()["status"] == "applied", paused.text
        assert (await worker.call("POST", "lease")).json()["pausing"] is True
        started = data_of("tool.started", step="s", name="call", title="Call", effect="none")
        assert (await worker.append(started)).json()["code"] == "held"
        worker.number = 0
        assert (await worker.write(NOTE, release={}))["status"] == "paused"
        last = (await events_of(gateway, run))[-1]
        assert (last["type"], last["data"]) == ("run.paused", {"code": "user", "by": "user:ana", "text": "lunch"})
        await gateway.http.post(f"/v1/runs/{run}/commands", json={"type": "resume"})
        again = await worker.claim()
        assert again["run"]["status"] == "running"
        await worker.write(started, DONE)


async def test_who_asks_over_http_stands_in_the_inbox_of_those_it_asks(gateway: RunningGateway) -> None:
    await offer_essay(gateway)
    run = await start_essay(gateway)
    async with http_worker(gateway) as worker:
        await worker.claim()
        asked = data_of("approval.requested", request="q", title="?", proposal=PROPOSAL, deciders=["user:bob"])
        await worker.write(asked)
        shown = await gateway.http.get(f"/v1/runs/{run}", headers=gateway.as_("bob"))
        assert (shown.status_code, shown.json()["role"]) == (200, "viewer")
        digest = shown.json()["waiting_on"][0]["request"]["digest"]
        body = {"type": "approve", "data": {"request": "q", "digest": digest}}
        for who, status in (("eve", 404), ("bob", 200)):
            answer = await gateway.http.post(f"/v1/runs/{run}/commands", json=body, headers=gateway.as_(who))
            assert answer.status_code == status, answer.text
        assert [event["type"] for event in await worker.read_inputs()] == ["approval.resolved"]


async def test_a_run_of_ones_own_that_waits_comes_back_with_its_answer(gateway: RunningGateway) -> None:
    async with http_worker(gateway) as worker:
        made = await worker.http.post("/v1/runs", json={"workflow": "mine", "queue": None})
        worker.take(made.json())
        asked = data_of("approval.requested", request="q", title="?", proposal=PROPOSAL, deciders=["user:ana"])
        await worker.write(asked, release={"on": ["q"]})
        nothing = await worker.http.post(f"/v1/runs/{worker.run}/claim", json={})
        assert nothing.status_code == 204
        digest = (await gateway.http.get(f"/v1/runs/{worker.run}/requests/q")).json()["request"]["digest"]
        coming = asyncio.create_task(worker.http.post(f"/v1/runs/{worker.run}/claim", json={"wait_ms": 20_000}))
        body = {"type": "approve", "data": {"request": "q", "digest": digest}}
        await gateway.http.post(f"/v1/runs/{worker.run}/commands", json=body)
        worker.take((await coming).json())
        await worker.write(DONE)
    assert await gateway.store.read_hints("default", count=9, block_ms=1) == []


async def test_what_was_given_is_read_by_who_works_on_it(gateway: RunningGateway) -> None:
    await offer_essay(gateway)
    upload = (await gateway.http.post("/v1/uploads", content=b"source")).json()["ref"]
    await start_essay(gateway, input={"topic": "ropes", "source": {"upload": upload}})
    async with http_worker(gateway) as worker, http_worker(gateway, "w2", "other") as stranger:
        await worker.claim()
        assert (await worker.call("GET", f"payloads/{upload}")).content == b"source"
        stranger.run, stranger.lease = worker.run, worker.lease
        assert (await stranger.call("GET", f"payloads/{upload}")).json()["code"] == "fenced"
        assert (await worker.http.get(f"/v1/runs/{worker.run}/payloads/{upload}")).status_code == 404
        said = {"Content-Digest": "sha-256=:" + "A" * 43 + "=:"}
        refused = await worker.call("PUT", "artifacts/a", content=b"x", headers=said)
        assert (refused.status_code, refused.json()["field"]) == (400, "Content-Digest")


async def test_who_takes_one_run_keeps_no_other_from_others(gateway: RunningGateway) -> None:
    await offer_essay(gateway)
    runs = {await start_essay(gateway) for _ in range(6)}
    async with http_worker(gateway) as worker:
        await worker.claim()
        hints = await gateway.store.read_hints("default", count=9, block_ms=500)
        while len(hints) < 5 and (more := await gateway.store.read_hints("default", count=9, block_ms=500)):
            hints = [*hints, *more]
        assert {hint.run for hint in hints} == runs - {worker.run}
        assert [hint.returned for hint in hints] == [0] * 5
