"""Workers over HTTP: what each call does, and what it refuses."""

from typing import Any

import httpx
import pytest

from tests.support.gateway import RunningGateway
from tests.support.http_worker import (
    DONE,
    NOTE,
    PROPOSAL,
    HttpWorker,
    data_of,
    events_of,
    http_worker,
    offer_essay,
    start_essay,
)


async def types_of(gateway: RunningGateway, run: str) -> list[str]:
    return [event["type"] for event in await events_of(gateway, run)]


async def test_from_claim_to_end(gateway: RunningGateway) -> None:
    await offer_essay(gateway)
    run = await start_essay(gateway)
    async with http_worker(gateway) as worker:
        claim = await worker.claim()
        assert (claim["run"]["id"], claim["run"]["status"]) == (run, "running")
        assert (claim["input"], claim["head"], claim["commands"]) == ({"topic": "ropes"}, 2, [])
        assert claim["lease"]["ttl_ms"] == 6000
        wrote = await worker.write(data_of("plan.proposed", items=[{"id": "1", "title": "Write"}]), NOTE)
        assert (wrote["first_seq"], wrote["last_seq"], wrote["status"]) == (3, 4, "running")
        ended = await worker.write(DONE)
        assert ended["status"] == "completed"
        assert (await worker.append(NOTE)).json()["code"] == "run_closed"
    assert await types_of(gateway, run) == [
        "run.created", "run.started", "plan.proposed", "progress.noted", "run.completed",
    ]  # fmt: skip
    events = await events_of(gateway, run)
    assert [event["actor"] for event in events[1:3]] == [
        {"kind": "worker", "id": "w1"},
        {"kind": "agent", "id": "wf:essay"},
    ]


async def test_a_repeat_answers_the_same_and_writes_nothing(gateway: RunningGateway) -> None:
    await offer_essay(gateway)
    run = await start_essay(gateway)
    async with http_worker(gateway) as worker:
        await worker.claim()
        first = await worker.write(NOTE)
        worker.number = 0
        assert await worker.write(NOTE) == first
        ended = await worker.write(DONE)
        worker.number = 1
        assert await worker.write(DONE) == ended
    assert (await types_of(gateway, run)).count("progress.noted") == 1


async def test_numbers_and_cursors_that_do_not_fit(gateway: RunningGateway) -> None:
    await offer_essay(gateway)
    await start_essay(gateway)
    async with http_worker(gateway) as worker:
        await worker.claim()
        refused = await worker.append(NOTE, commit=5)
        assert (refused.status_code, refused.json()["field"], refused.json()["expected"]) == (409, "commit", 1)
        refused = await worker.append(NOTE, commit=1, seen="2-17")
        assert (refused.status_code, refused.json()["field"]) == (409, "seen")
        refused = await worker.append(NOTE, commit=1, seen="nonsense")
        assert (refused.status_code, refused.json()["field"]) == (400, "seen")
        await worker.write(NOTE, commit=1)


@pytest.mark.parametrize(
    ("event", "field"),
    [
        (data_of("approval.resolved", request="q", outcome="approved", decisions=[]), "events[0].type"),
        (data_of("command.received", command_id="c", type="signal", payload=1), "events[0].type"),
        (data_of("access.changed", subject="user:eve", role="owner", by="user:ana"), "events[0].type"),
        (data_of("artifact.created"), "events[0].type"),
        (data_of("no.such"), "events[0].type"),
        (data_of("progress.noted"), "events[0].data.text"),
        (data_of("plan.proposed", items=[{"id": "1", "title": ""}]), "events[0].data.items[0].title"),
        ({"type": "progress.noted", "data": {"text": "x"}, "cause": 99}, "events[0].cause"),
        ({"type": "progress.noted", "data": []}, "events[0].data"),
        (data_of("run.waiting", on=[]), "events[0].type"),
        (
            data_of("approval.requested", request="q", title="?", proposal=PROPOSAL, deciders=[]),
            "events[0].data.deciders",
        ),
        (
            data_of("approval.requested", request="q", title="?", proposal=PROPOSAL, exclude=["role:owner"]),
            "events[0].data.deciders",
        ),
        (data_of("approval.requested", request="q", title="?", proposal=None), "events[0].data.proposal"),
    ],
)  # fmt: skip
async def test_what_a_worker_does_not_append(gateway: RunningGateway, event: dict[str, Any], field: str) -> None:
    await offer_essay(gateway)
    run = await start_essay(gateway)
    async with http_worker(gateway) as worker:
        await worker.claim()
        refused = await worker.append(event)
        assert refused.status_code == 400, refused.text
        assert refused.json()["field"] == field
    assert await types_of(gateway, run) == ["run.created", "run.started"]


async def test_an_ending_waits_until_every_input_was_seen(gateway: RunningGateway) -> None:
    await offer_essay(gateway)
    run = await start_essay(gateway)
    async with http_worker(gateway) as worker:
        await worker.claim()
        await gateway.http.post(f"/v1/runs/{run}/cancel", json={"reason": "enough"})
        refused = await worker.append(DONE)
        assert (refused.status_code, refused.json()["code"], refused.json()["field"]) == (409, "conflict", "seen")
        renewed = (await worker.call("POST", "lease", json={"step": "writing"})).json()
        assert renewed["stopping"]["reason"] == "enough"
        assert (renewed["head"], renewed["pausing"]) == (3, False)
        assert [event["type"] for event in await worker.read_inputs()] == ["cancel.requested"]
        worker.number = 0
        ended = await worker.write(data_of("run.cancelled"))
        assert ended["status"] == "cancelled"
    last = (await events_of(gateway, run))[-1]
    assert (last["data"]["by"], last["data"]["reason"], last["cause"]) == ("user:ana", "enough", 3)


async def test_commands_get_their_outcomes(gateway: RunningGateway) -> None:
    await offer_essay(gateway)
    async with http_worker(gateway) as worker:
        offer = {"name": "poem", "signals": {"nudge": {"type": "object"}}}
        body = {"worker": "w1", "workflows": [offer], "wait_ms": 0}
        assert (await worker.http.post("/v1/queues/default/claims", json=body)).status_code == 204
        run = await start_essay(gateway, workflow="poem")
        for command_id in ("c1", "c2", "c3"):
            sent = {"type": "signal", "command_id": command_id, "data": {"name": "nudge", "payload": {}}}
            assert (await gateway.http.post(f"/v1/runs/{run}/commands", json=sent)).status_code == 202
        claim = await worker.claim(workflows=[offer])
        assert [command["data"]["command_id"] for command in claim["commands"]] == ["c1", "c2", "c3"]
        applied = {"command_id": "c1", "status": "applied", "effect": "nudged"}
        rejected = {"command_id": "c2", "status": "rejected", "code": "busy", "text": "Not now"}
        await worker.write(NOTE, outcomes=[applied, rejected])
        refused = await worker.append(outcomes=[applied])
        assert (refused.status_code, refused.json()["field"]) == (409, "outcomes[0].command_id")
        worker.number = 1
        await worker.write(DONE)
        found = [(await gateway.http.get(f"/v1/runs/{run}/commands/{name}")).json() for name in ("c1", "c2", "c3")]
    assert [receipt["status"] for receipt in found] == ["applied", "rejected", "rejected"]
    assert found[0]["effect"] == "nudged"
    assert found[2]["problem"]["code"] == "unconsumed"


async def test_a_wait_gives_the_lease_back_and_an_answer_brings_the_run_again(gateway: RunningGateway) -> None:
    await offer_essay(gateway)
    run = await start_essay(gateway)
    async with http_worker(gateway) as worker:
        await worker.claim()
        asked = data_of("approval.requested", request="q", title="Hand it in?", proposal=PROPOSAL)
        assert (await worker.write(asked, release={"on": ["q"]}))["status"] == "waiting"
        assert (await worker.append(NOTE)).json()["code"] == "fenced"
        shown = (await gateway.http.get(f"/v1/runs/{run}")).json()
        assert [(wait["id"], wait["kind"], wait["may_answer"]) for wait in shown["waiting_on"]] == [
            ("q", "approval", True)
        ]
        data = {"request": "q", "digest": shown["waiting_on"][0]["request"]["digest"]}
        for who, status in ((worker.http, 404), (gateway.http, 200)):
            answer = await who.post(f"/v1/runs/{run}/commands", json={"type": "approve", "data": data})
            assert answer.status_code == status, answer.text
        again = await worker.claim()
        assert again["run"]["status"] == "running"
        await worker.write(DONE)
    assert (await types_of(gateway, run))[-3:] == ["command.applied", "run.resumed", "run.completed"]


async def test_a_wait_until_a_time_ends_by_itself(gateway: RunningGateway) -> None:
    await offer_essay(gateway)
    run = await start_essay(gateway)
    async with http_worker(gateway) as worker:
        await worker.claim()
        assert (await worker.write(release={"until": "2020-01-01T00:00:00.000Z"}))["status"] == "waiting"
        again = await worker.claim(wait_ms=20_000)
        assert again["run"]["id"] == run
        assert "timer.fired" in await types_of(gateway, run)


async def test_a_run_given_back_is_another_workers_at_once(gateway: RunningGateway) -> None:
    await offer_essay(gateway)
    await start_essay(gateway)
    async with http_worker(gateway) as first, http_worker(gateway, "w2", "other") as second:
        await first.claim()
        await first.write(data_of("progress.noted", text="half"))
        for _ in range(2):
            assert (await first.call("DELETE", "lease")).status_code == 204
        await second.claim()
        for method, path in (
            ("POST", "lease"), ("DELETE", "lease"), ("GET", "history"), ("GET", "inputs"), ("POST", "deltas"),
            ("POST", "payloads"), ("PUT", "artifacts/a"),
        ):  # fmt: skip
            refused = await first.call(method, path)
            assert (refused.status_code, refused.json()["code"]) == (409, "fenced"), path
        assert (await first.append(NOTE)).json()["code"] == "fenced"
        first.lease = second.lease  # another subject's token
        assert (await first.append(NOTE)).json()["code"] == "fenced"
        await second.write(DONE)
        assert (await second.call("POST", "lease")).json()["code"] == "run_closed"


async def test_history_keeps_what_an_earlier_holder_stored(gateway: RunningGateway) -> None:
    await offer_essay(gateway)
    await start_essay(gateway)
    async with http_worker(gateway) as worker:
        await worker.claim()
        large = "x" * 100_000
        await worker.write({**NOTE, "private": {"kept": 1}}, {**NOTE, "private": large})
        page = (await worker.call("GET", "history", params={"after": "0"})).json()
        assert [event.get("private") for event in page["events"]] == [
            {"input": {"topic": "ropes"}}, None, {"kept": 1}, large,
        ]  # fmt: skip
        rest = (await worker.call("GET", "history", params={"after": page["cursor"]})).json()
        assert (rest["events"], rest["cursor"]) == ([], page["cursor"])
        shown = await worker.http.get(f"/v1/runs/{worker.run}/events")
        assert shown.status_code == 404  # a worker reads by its lease, not by its credential


async def test_bytes(gateway: RunningGateway) -> None:
    await offer_essay(gateway)
    run = await start_essay(gateway)
    async with http_worker(gateway) as worker:
        await worker.claim()
        kept = (await worker.call("POST", "payloads", content=b"bytes")).json()
        assert kept["ref"] == f"pay_{kept['sha256']}"
        sent: dict[str, Any] = {
            "params": {"name": "essay.md"}, "content": b"# Ropes", "headers": {"Content-Type": "text/markdown"}
        }  # fmt: skip
        made = await worker.call("PUT", "artifacts/essay", **sent)
        assert made.status_code == 201, made.text
        assert (made.json()["size"], made.json()["media_type"]) == (7, "text/markdown")
        assert (await worker.call("PUT", "artifacts/essay", **sent)).status_code == 200
        assert (await worker.call("PUT", "artifacts/essay", content=b"other")).json()["code"] == "conflict"
        claims = [{"text": "It is there", "evidence": [{"artifact": "essay"}]}]
        await worker.write(data_of("run.completed", summary="done", claims=claims, verified=True))
    assert (await types_of(gateway, run)).count("artifact.created") == 1
    assert (await gateway.http.get(f"/v1/runs/{run}/artifacts/essay")).content == b"# Ropes"
    assert (await gateway.http.get(f"/v1/runs/{run}")).json()["outcome"]["verified"] is True


async def test_what_rests_on_nothing_is_not_verified(gateway: RunningGateway) -> None:
    await offer_essay(gateway)
    run = await start_essay(gateway)
    async with http_worker(gateway) as worker:
        await worker.claim()
        claims = [{"text": "It is there", "evidence": [{"artifact": "none"}]}]
        await worker.write(data_of("run.completed", summary="done", claims=claims, verified=True))
    assert (await gateway.http.get(f"/v1/runs/{run}")).json()["outcome"]["verified"] is False


async def test_what_is_open_ends_with_the_run(gateway: RunningGateway) -> None:
    await offer_essay(gateway)
    run = await start_essay(gateway)
    async with http_worker(gateway) as worker:
        await worker.claim()
        started = data_of("tool.started", step="s", name="call", title="Call", effect="write")
        asked = data_of("approval.requested", request="q", title="?", proposal=PROPOSAL)
        await worker.write(started, asked)
        assert (await worker.append(asked)).json()["code"] == "conflict"
        error = {"type": "Broken", "message": "It broke"}
        worker.number = 1
        await worker.write(data_of("run.failed", summary="It broke", error=error))
    events = await events_of(gateway, run)
    assert [event["type"] for event in events[-2:]] == ["approval.resolved", "run.failed"]
    assert events[-2]["data"]["outcome"] == "withdrawn"
    assert [step["step"] for step in events[-1]["data"]["abandoned"]] == ["s"]
    resolved = (await gateway.http.get(f"/v1/runs/{run}/requests/q")).json()
    assert resolved["outcome"] == "withdrawn"


async def test_a_run_of_ones_own(gateway: RunningGateway) -> None:
    async with http_worker(gateway) as worker, http_worker(gateway, "w2", "other") as stranger:
        body = {"workflow": "anything", "queue": None, "input": {"n": 1}}
        made = await worker.http.post("/v1/runs", json=body, headers={"Idempotency-Key": "k1"})
        assert made.status_code == 201, made.text
        assert set(made.json()) == {"run", "lease"}
        assert (made.json()["run"]["queue"], made.json()["run"]["status"]) == (None, "running")
        worker.take(made.json())
        await worker.write(NOTE)
        replayed = await worker.http.post("/v1/runs", json=body, headers={"Idempotency-Key": "k1"})
        assert (replayed.status_code, replayed.json()["run"]["id"], replayed.json()["lease"]) == (200, worker.run, None)
        held = await worker.http.post(f"/v1/runs/{worker.run}/claim", json={})
        assert (held.status_code, held.json()["code"]) == (409, "conflict")
        assert (await stranger.http.post(f"/v1/runs/{worker.run}/claim", json={})).status_code == 404
        await worker.call("DELETE", "lease")
        old = worker.lease
        again = await worker.http.post(f"/v1/runs/{worker.run}/claim", json={"worker": "w3"})
        assert again.status_code == 200, again.text
        worker.take(again.json())
        await worker.write(DONE)
        worker.lease = old
        assert (await worker.append(NOTE)).json()["code"] == "fenced"
        closed = await worker.http.post(f"/v1/runs/{worker.run}/claim", json={})
        assert closed.json()["code"] == "run_closed"


async def test_who_went_away_takes_nothing(gateway: RunningGateway) -> None:
    await offer_essay(gateway)
    async with http_worker(gateway) as gone, http_worker(gateway, "w2") as present:
        with pytest.raises(httpx.ReadTimeout):
            await gone.http.post(
                "/v1/queues/default/claims",
                json={"worker": "gone", "workflows": ["essay"], "wait_ms": 20_000},
                timeout=0.5,
            )
        run = await start_essay(gateway)
        claim = await present.claim()
        assert (claim["run"]["id"], claim["run"]["worker"]["id"]) == (run, "w2")


async def refused(worker: HttpWorker, path: str, body: Any = None, **more: Any) -> tuple[int, str, str | None]:
    answer = await worker.http.post(path, json=body, **more)
    return answer.status_code, answer.json()["code"], answer.json().get("field")


async def test_refusals_of_claims(gateway: RunningGateway) -> None:
    run = await gateway.start()
    claims = {"worker": "w", "workflows": ["essay"]}
    async with http_worker(gateway) as worker:
        assert await refused(worker, "/v1/queues/no queue/claims", claims) == (400, "bad_request", "queue")
        assert (await refused(worker, "/v1/queues/q/claims", {**claims, "workflows": []}))[2] == "workflows"
        assert (await refused(worker, "/v1/queues/q/claims", {**claims, "workflows": ["no name"]}))[2] == "workflows[0]"
        assert (await refused(worker, "/v1/queues/q/claims", {**claims, "worker": "no name"}))[2] == "worker"
        assert (await refused(worker, "/v1/queues/q/claims", {**claims, "wait_ms": 30_001}))[2] == "wait_ms"
        assert (await refused(worker, f"/v1/runs/{run}/events", {}))[2] == "Towline-Lease"
        for token in ("", "x", "1.0123456789abcdef.0." + "0" * 32):
            lease = {"Towline-Lease": token}
            assert (await refused(worker, f"/v1/runs/{run}/events", {}, headers=lease))[1] == "fenced"
            assert (await refused(worker, "/v1/runs/missing/events", {}, headers=lease))[1] == "fenced"
    plain = await gateway.http.post("/v1/queues/default/claims", json=claims)
    assert (plain.status_code, plain.json()["needs"]) == (403, "worker")
