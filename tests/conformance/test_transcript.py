"""The contract's own transcript, spoken to a gateway, as far as its commands are served.

A frame is compared whole: a member that is missing, of another form, or one too many, fails.
"""

import re
from typing import Any

import pytest

from tests.support.gateway import AGENT, RunningGateway
from towline.protocol import approvals, requests
from towline.protocol import event_data as d
from towline.protocol.codec import NewEntry
from towline.protocol.store.api import CommandOutcome
from towline.protocol.values import PlanItem, Proposal

pytestmark = pytest.mark.store

CURSOR = re.compile(r"[1-9][0-9]*-[0-9]+\Z")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z\Z")

RUN_FIELDS = {
    *("id", "workflow", "version", "queue", "thread", "labels", "scope", "permission_mode", "input_ref", "owner"),
    *("status", "status_detail", "stopping", "pausing", "headline", "summary", "plan", "waiting_on", "blockers"),
    *("checkpoint", "artifacts", "usage", "budget", "parent", "children", "forked_from", "outcome", "role", "actions"),
    *("worker", "created_at", "started_at", "updated_at", "ended_at", "first_seq", "last_seq", "cursor", "redacted"),
}
"""The Run's fields in the contract, section 1."""


def check_run(run: dict[str, Any]) -> None:
    assert set(run) == RUN_FIELDS
    assert CURSOR.match(run["cursor"])
    for name in ("created_at", "updated_at"):
        assert TIME.match(run[name])


async def test_a_run_watched_left_and_found_again(gateway: RunningGateway) -> None:
    await gateway.announce()
    upload = (await gateway.http.post("/v1/uploads", content=b"bytes")).json()["ref"]
    answer = await gateway.http.post(
        "/v1/runs",
        headers={"Idempotency-Key": "7c1e"},
        json={"workflow": "toy", "input": {"source": {"upload": upload}}, "budget": {"usd_micros": 2_000_000}},
    )
    assert answer.status_code == 201
    started = answer.json()
    check_run(started)
    assert (started["status"], started["role"], started["last_seq"]) == ("queued", "owner", 1)
    run, created_at = started["id"], started["cursor"]
    hand = await gateway.hold(run)
    await hand.write(NewEntry("plan.proposed", AGENT, d.PlanProposed(items=[PlanItem("1", "Read")])))

    async with gateway.socket(hello=False) as wire:
        await wire.send(op="hello", token=answer.request.headers["authorization"].removeprefix("Bearer "))
        welcome = await wire.next()
        assert set(welcome) == {"op", "protocol", "connection", "heartbeat_ms", "limits", "expires_at"}
        assert (welcome["op"], welcome["protocol"], welcome["heartbeat_ms"]) == ("welcome", 1, 25_000)
        assert TIME.match(welcome["expires_at"])

        await wire.send(op="subscribe", id="s1", run=run, after=created_at, include=["delta"])
        subscribed = await wire.next()
        projection = subscribed.pop("projection")
        check_run(projection)
        assert projection["last_seq"] == 3
        assert subscribed == {
            "op": "subscribed",
            "id": "s1",
            "run": run,
            "recovery": "resumed",
            "cursor": created_at,
            "head": 3,
            "first_seq": 1,
        }
        events = await wire.next()
        assert set(events) == {"op", "run", "replay", "cursor", "events"}
        assert (events["op"], events["run"], events["replay"]) == ("events", run, True)
        assert [(e["seq"], e["type"]) for e in events["events"]] == [(2, "run.started"), (3, "plan.proposed")]
        for event in events["events"]:
            assert set(event) <= {"seq", "ts", "type", "actor", "data", "ref", "audience", "cause"}
            assert TIME.match(event["ts"])
            assert set(event["actor"]) == {"kind", "id"}
        assert await wire.next() == {"op": "live", "run": run, "cursor": events["cursor"]}

        command = {"type": "signal", "command_id": "k1", "data": {"name": "nudge", "payload": {"by": 2}}}
        await wire.send(op="command", id="c1", run=run, wait="applied", **command)
        frames = [await wire.next(), await wire.next()]
        (accepted,) = [frame for frame in frames if frame["op"] == "receipt"]
        (received,) = [frame for frame in frames if frame["op"] == "events"]
        assert accepted == {
            "op": "receipt",
            "id": "c1",
            "command_id": "k1",
            "type": "signal",
            "status": "accepted",
            "seq": 4,
            "applies": "next_step",
            "duplicate": False,
        }
        assert (received["replay"], received["events"][0]["type"]) == (False, "command.received")
        await hand.write(
            NewEntry(
                "command.applied", AGENT, d.CommandApplied(command_id="k1", type="signal", effect="nudged"), cause=4
            ),
            outcomes=[CommandOutcome("ana", "k1", '{"status":"applied","effect":"nudged"}')],
            applied=1,
        )
        frames = [await wire.next(), await wire.next()]
        (applied,) = [frame for frame in frames if frame["op"] == "receipt"]
        (outcome,) = [frame for frame in frames if frame["op"] == "events"]
        assert {name: applied[name] for name in ("id", "status", "seq", "effect", "duplicate")} == {
            "id": "c1",
            "status": "applied",
            "seq": 4,
            "effect": "nudged",
            "duplicate": False,
        }
        assert outcome["events"][0]["cause"] == 4
        left_at = outcome["cursor"]

    # Asleep; a colleague decides meanwhile.
    proposal = Proposal("Apply", ["events 3"], ["the copy"], "one folder", "cannot be undone")
    digest = approvals.digest_of("apr_1", proposal, [])
    asked = d.ApprovalRequested(
        request="apr_1",
        title="Apply?",
        proposal=proposal,
        digest=digest,
        questions=[],
        deciders=["role:owner", "role:operator"],
        exclude=[],
        quorum=1,
    )
    await hand.write(NewEntry("approval.requested", AGENT, asked), side=requests.side_fields(requests.opened(asked)))
    decided = await gateway.http.post(
        f"/v1/runs/{run}/commands",
        json={"type": "reject", "command_id": "kx", "data": {"request": "apr_1", "digest": digest}},
        headers=gateway.as_("bea", roles=("operator",)),
    )
    assert decided.status_code == 200
    for _ in range(10):
        await hand.note(count=50)
    head = (await gateway.store.facts(run)).head.seq

    async with gateway.socket() as wire:
        await wire.send(op="subscribe", id="s1", run=run, after=left_at, limit=200)
        subscribed = await wire.next()
        assert subscribed.pop("projection")["last_seq"] == head
        cursor = subscribed.pop("cursor")
        assert cursor.startswith(f"{head - 200}-")
        assert subscribed == {
            "op": "subscribed",
            "id": "s1",
            "run": run,
            "recovery": "snapshot",
            "recovery_code": "limited",
            "skipped": [6, head - 200],
            "head": head,
            "first_seq": 1,
        }
        await wire.until("live")
        assert [event["seq"] for event in wire.events()] == list(range(head - 199, head + 1))

        await wire.send(
            op="command", id="c2", run=run, type="approve", command_id="k2", data={"request": "apr_1", "digest": digest}
        )
        refused = await wire.until("receipt")
        problem = refused.pop("problem")
        assert refused == {
            "op": "receipt",
            "id": "c2",
            "command_id": "k2",
            "type": "approve",
            "status": "refused",
            "duplicate": False,
        }
        assert (problem["code"], problem["status"]) == ("already_decided", 409)
        (decision,) = problem["request"]["decisions"]
        assert TIME.match(decision.pop("at"))
        assert decision == {"by": "user:bea", "decision": "reject"}
        assert problem["request"]["outcome"] == "rejected"
        resolution = await gateway.http.get(
            f"/v1/runs/{run}/events", params={"after": str(problem["request"]["seq"] - 1), "limit": 1}
        )
        assert resolution.json()["events"][0]["type"] == "approval.resolved"

    # What was skipped is readable by pages.
    page = await gateway.http.get(f"/v1/runs/{run}/events", params={"after": left_at, "limit": head - 205})
    assert [event["seq"] for event in page.json()["events"]] == list(range(6, head - 199))
    assert page.json()["cursor"] == cursor
