"""Commands on both transports: one acceptance per id, outcomes waited for, decisions bound to what was shown."""

import asyncio
from typing import Any

import msgspec
import pytest

from tests.support.gateway import AGENT, Hand, RunningGateway, token
from towline.protocol import approvals, requests
from towline.protocol import event_data as d
from towline.protocol.codec import NewEntry
from towline.protocol.store.api import CommandOutcome
from towline.protocol.values import Proposal

pytestmark = pytest.mark.store


async def types(gateway: RunningGateway, run: str) -> list[str]:
    page = (await gateway.http.get(f"/v1/runs/{run}/events", params={"limit": 1000})).json()
    return [event["type"] for event in page["events"]]


def nudge(**more: Any) -> dict[str, Any]:
    return {"type": "signal", "data": {"name": "nudge", "payload": {"by": 1}}, **more}


async def ask(hand: Hand, request: str = "apr_1", **more: Any) -> str:
    """Opens an approval; its digest."""
    proposal = Proposal("Apply fixes", ["events 3"], ["the copy"], "one folder", "delete the copy")
    digest = approvals.digest_of(request, proposal, [])
    asked = d.ApprovalRequested(
        request=request,
        title="Apply?",
        proposal=proposal,
        digest=digest,
        questions=[],
        **{"deciders": ["role:owner"], "exclude": [], "quorum": 1, **more},
    )
    await hand.write(NewEntry("approval.requested", AGENT, asked), side=requests.side_fields(requests.opened(asked)))
    return digest


async def apply(hand: Hand, command_id: str, *, subject: str = "ana", seq: int) -> None:
    """The run applies a signal."""
    applied = d.CommandApplied(command_id=command_id, type="signal", effect="nudged")
    await hand.write(
        NewEntry("command.applied", AGENT, applied, cause=seq),
        outcomes=[CommandOutcome(subject, command_id, '{"status":"applied","effect":"nudged"}')],
        applied=1,
    )


async def test_one_id_sent_twenty_times_is_accepted_once(gateway: RunningGateway) -> None:
    run = await gateway.start()
    body = nudge(command_id="k1")
    answers = await asyncio.gather(*(gateway.http.post(f"/v1/runs/{run}/commands", json=body) for _ in range(20)))
    receipts = [answer.json() for answer in answers]
    assert {answer.status_code for answer in answers} == {202}
    assert sorted(receipt["duplicate"] for receipt in receipts) == [False] + [True] * 19
    assert {receipt["seq"] for receipt in receipts} == {2}
    assert sum(answer.headers.get("idempotency-replayed") == "true" for answer in answers) == 19
    async with gateway.socket() as wire:
        for _ in range(5):
            await wire.send(op="command", id="c", run=run, **body)
            assert (await wire.until("receipt"))["duplicate"] is True
    assert await types(gateway, run) == ["run.created", "command.received"]
    other = await gateway.http.post(
        f"/v1/runs/{run}/commands", json={**body, "data": {"name": "nudge", "payload": {"by": 2}}}
    )
    assert (other.status_code, other.json()["code"]) == (409, "idempotency_mismatch")
    key = await gateway.http.post(f"/v1/runs/{run}/commands", json=nudge(), headers={"Idempotency-Key": "k1"})
    assert key.json()["duplicate"] is True
    bobs = await gateway.http.post(
        f"/v1/runs/{run}/commands", json=body, headers=gateway.as_("root", roles=("operator",))
    )
    assert bobs.json()["duplicate"] is False


async def test_the_outcome_is_waited_for(gateway: RunningGateway) -> None:
    run = await gateway.start()
    hand = await gateway.hold(run)
    async with gateway.socket() as wire:
        await wire.send(op="command", id="c1", run=run, **nudge(command_id="k1", wait="applied"))
        first = await wire.until("receipt")
        assert (first["id"], first["status"], first["applies"], first["duplicate"]) == (
            "c1",
            "accepted",
            "next_step",
            False,
        )
        waiting = asyncio.create_task(
            gateway.http.post(f"/v1/runs/{run}/commands", json=nudge(command_id="k1", wait="applied"))
        )
        await apply(hand, "k1", seq=first["seq"])
        second = await wire.until("receipt")
        assert (second["status"], second["effect"], second["seq"]) == ("applied", "nudged", first["seq"])
        assert second["duplicate"] is False
    answer = await waiting
    assert (answer.status_code, answer.json()["status"]) == (200, "applied")
    again = (await gateway.http.get(f"/v1/runs/{run}/commands/k1")).json()
    assert (again["status"], again["duplicate"]) == ("applied", False)
    assert (await gateway.http.get(f"/v1/runs/{run}/commands/never")).json()["code"] == "not_found"


async def test_the_wait_ends_in_time(gateway: RunningGateway) -> None:
    run = await gateway.start()
    answer = await gateway.http.post(f"/v1/runs/{run}/commands", json=nudge(wait="applied", timeout_ms=1))
    assert (answer.status_code, answer.json()["timed_out"], answer.json()["status"]) == (202, True, "accepted")
    async with gateway.socket() as wire:
        await wire.send(op="command", id="c", run=run, **nudge(command_id="k", wait="applied", timeout_ms=0))
        assert "timed_out" not in await wire.until("receipt")
        assert (await wire.until("receipt"))["timed_out"] is True


async def test_a_cancel_is_waited_for_to_the_end_of_the_run(gateway: RunningGateway) -> None:
    run = await gateway.start()
    hand = await gateway.hold(run)
    async with gateway.socket() as wire:
        await wire.send(op="command", id="c", run=run, type="cancel", command_id="k", data={}, wait="applied")
        assert (await wire.until("receipt"))["status"] == "accepted"
        hand.seen = (await gateway.store.facts(run)).head
        cancelled = d.RunCancelled(by="user:ana", forced=False, abandoned=[])
        await gateway.store.close(hand.commit(NewEntry("run.cancelled", AGENT, cancelled)))
        assert (await wire.until("receipt"))["effect"] == "The run is cancelled."
        await wire.send(op="command", id="d", run=run, **nudge(command_id="k2"))
        assert (await wire.until("receipt"))["problem"]["code"] == "run_closed"
        await wire.send(op="command", id="e", run=run, type="cancel", command_id="k3", data={})
        assert (await wire.until("receipt"))["status"] == "applied"


@pytest.mark.parametrize(
    ("command", "code", "field"),
    [
        ({"type": "explode"}, "bad_request", "type"),
        ({"type": "signal"}, "bad_request", "data.name"),
        ({"type": "signal", "data": []}, "bad_request", "data"),
        ({"type": "signal", "data": {"name": "a b"}}, "bad_request", "data.name"),
        ({"type": "signal", "data": {"name": "other"}}, "unsupported", "data.name"),
        ({"type": "signal", "data": {"name": "nudge", "payload": {"by": "x"}}}, "bad_request", "data.payload.by"),
        ({"type": "signal", "data": {"name": "nudge", "payload": {}}}, "bad_request", "data.payload.by"),
        ({"type": "approve", "data": {"request": "nope", "digest": "x"}}, "not_found", "data.request"),
        ({"type": "approve", "data": {"request": 4, "digest": "x"}}, "bad_request", "data.request"),
        ({"type": "cancel", "data": {"grace_ms": -4}}, "bad_request", "data.grace_ms"),
        ({"type": "revise", "data": {"instruction": "x"}}, "unsupported", "type"),
        ({"type": "pause", "data": {"reason": 4}}, "bad_request", "data.reason"),
        ({"type": "cancel", "not_after": "yesterday"}, "bad_request", "not_after"),
        ({"type": "cancel", "not_after": "2020-01-01T00:00:00.000Z"}, "expired", None),
        ({"type": "cancel", "command_id": "a b"}, "bad_request", "command_id"),
    ],
)
async def test_a_refused_command_leaves_no_trace(
    gateway: RunningGateway, command: dict[str, Any], code: str, field: str | None
) -> None:
    run = await gateway.start()
    answer = await gateway.http.post(f"/v1/runs/{run}/commands", json=command)
    assert (answer.json()["code"], answer.json().get("field")) == (code, field), answer.text
    async with gateway.socket() as wire:
        await wire.send(op="command", id="c", run=run, **{"command_id": "k", "data": {}, **command})
        receipt = await wire.until("receipt")
        assert (receipt["id"], receipt["status"], receipt["duplicate"]) == ("c", "refused", False)
        problem = receipt["problem"]
        if "data" in command or field != "data.name":
            assert (problem["code"], problem.get("field")) == (code, field)
        assert problem["request_id"]
    assert await types(gateway, run) == ["run.created"]


async def test_an_ended_run_says_so_before_anything_else(gateway: RunningGateway) -> None:
    run = await gateway.start()
    await gateway.http.post(f"/v1/runs/{run}/cancel")
    before = await types(gateway, run)
    for command in ({"type": "explode"}, {"type": "signal"}, {"type": "pause"}, nudge(), nudge(not_after="never")):
        answer = await gateway.http.post(f"/v1/runs/{run}/commands", json=command)
        assert (answer.status_code, answer.json()["code"]) == (409, "run_closed")
    cancel = await gateway.http.post(f"/v1/runs/{run}/commands", json={"type": "cancel", "data": {"grace_ms": -1}})
    assert cancel.json()["code"] == "bad_request"
    assert await types(gateway, run) == before


async def test_a_decision_is_bound_to_what_was_shown(gateway: RunningGateway) -> None:
    run = await gateway.start()
    hand = await gateway.hold(run)
    digest = await ask(hand)
    shown = (await gateway.http.get(f"/v1/runs/{run}")).json()
    (wait,) = shown["waiting_on"]
    assert wait["may_answer"] is True
    assert wait["request"]["digest"] == digest
    assert [a for a in shown["actions"] if a["type"] == "approve"] == [{"type": "approve", "request": "apr_1"}]
    asked = (await gateway.http.get(f"/v1/runs/{run}/requests/apr_1")).json()
    assert {name: asked[name] for name in ("id", "kind", "title", "seq", "since", "expires_at", "may_answer")} == {
        name: wait[name] for name in ("id", "kind", "title", "seq", "since", "expires_at", "may_answer")
    }
    assert asked["request"] == wait["request"]
    assert asked["outcome"] is None

    async def decide(kind: str, given: str = digest, **more: Any) -> dict[str, Any]:
        answer = await gateway.http.post(
            f"/v1/runs/{run}/commands", json={"type": kind, "data": {"request": "apr_1", "digest": given}}, **more
        )
        body: dict[str, Any] = answer.json()
        return body

    assert (await decide("approve", "sha256:" + "0" * 64))["code"] == "digest_mismatch"
    assert (await decide("approve", headers=gateway.as_("root", roles=("operator",))))["code"] == "forbidden"
    assert (await decide("approve", headers=gateway.as_("ana", roles=("user", "worker"))))["code"] == "forbidden"
    assert (await decide("approve", headers=gateway.as_("ana", runs=["*"])))["code"] == "forbidden"
    receipt = await decide("approve")
    assert (receipt["status"], receipt["effect"], receipt["duplicate"]) == ("applied", "approved", False)
    assert (await decide("approve"))["duplicate"] is True
    late = await decide("reject")
    assert late["code"] == "already_decided"
    assert late["request"]["outcome"] == "approved"
    assert late["request"]["decisions"][0]["by"] == "user:ana"
    resolved = (await gateway.http.get(f"/v1/runs/{run}/requests/apr_1")).json()
    assert (resolved["outcome"], resolved["may_answer"]) == ("approved", False)
    assert resolved["decisions"] == late["request"]["decisions"]
    log = await types(gateway, run)
    assert log.count("approval.voted") == log.count("approval.resolved") == 1


async def test_commands_of_one_socket_are_accepted_in_order(gateway: RunningGateway) -> None:
    run = await gateway.start()
    async with gateway.socket() as wire:
        for n in range(15):
            await wire.send(op="command", id=str(n), run=run, **nudge(command_id=f"k{n}"))
        receipts = [await wire.until("receipt") for _ in range(15)]
    assert [receipt["id"] for receipt in receipts] == [str(n) for n in range(15)]
    assert [receipt["seq"] for receipt in receipts] == list(range(2, 17))


async def test_too_many_unapplied_signals_are_refused_but_never_a_cancel(gateway: RunningGateway) -> None:
    run = await gateway.start()
    await gateway.hold(run)
    codes = []
    for _ in range(21):
        codes.append((await gateway.http.post(f"/v1/runs/{run}/commands", json=nudge())).json().get("code"))
    assert codes == [None] * 20 + ["rate_limited"]
    last = await gateway.http.post(f"/v1/runs/{run}/commands", json=nudge())
    assert last.status_code == 429
    assert last.headers["retry-after"] == "1"
    assert (await gateway.http.post(f"/v1/runs/{run}/cancel")).json()["stopping"] is not None


async def test_events_of_a_command_name_who_sent_it(gateway: RunningGateway) -> None:
    run = await gateway.start()
    async with gateway.socket(token("root", roles=("operator",))) as wire:
        await wire.subscribe(run, after="0")
        await wire.send(op="command", id="c", run=run, **nudge(command_id="k"))
        await wire.until("receipt")
        await wire.until("events", replay=False)
        received = wire.events()[-1]
        assert received["actor"] == {"kind": "user", "id": "root"}
        assert received["data"] == {"command_id": "k", "type": "signal", "name": "nudge", "payload": {"by": 1}}
        assert msgspec.json.encode(received)
