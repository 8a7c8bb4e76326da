"""A double click, a retry and a resend decide once; another body under the same id is refused.

The symptom: the decision was sent twice and its effect ran twice, since it was marked only after the slow effect.
"""

import asyncio
from pathlib import Path
from typing import Any

from tests.support.gateway import RunningGateway, running_gateway
from towline.protocol import event_data as d
from towline.protocol import requests
from towline.protocol.approvals import digest_of
from towline.protocol.codec import NewEntry
from towline.protocol.events import Actor
from towline.protocol.values import Proposal

PROPOSAL = Proposal("Delete the table", [], ["db:write"], "All rows", "Cannot be undone")


async def ask(gateway: RunningGateway, run: str, request: str = "apr_1") -> str:
    """Asks for one approval as a workflow does; its digest."""
    digest = digest_of(request, PROPOSAL, [])
    data = d.ApprovalRequested(
        request=request, title="Delete?", proposal=PROPOSAL, digest=digest, questions=[], deciders=["role:owner"],
        exclude=[], quorum=1,
    )  # fmt: skip
    hand = await gateway.hold(run)
    entry = NewEntry("approval.requested", Actor("agent", "wf:toy"), data)
    await hand.write(entry, side=requests.side_fields(requests.opened(data)))
    return digest


async def send(gateway: RunningGateway, run: str, type_: str, command_id: str, data: Any) -> dict[str, Any]:
    body = {"type": type_, "command_id": command_id, "data": data}
    answer: dict[str, Any] = (await gateway.http.post(f"/v1/runs/{run}/commands", json=body)).json()
    return answer


async def test_one_effect_however_often(gateway: RunningGateway, redis_url: str, tmp_path: Path) -> None:
    async with running_gateway(redis_url, tmp_path) as other:
        run = await gateway.start()
        digest = await ask(gateway, run)
        data = {"request": "apr_1", "digest": digest}
        clicks = await asyncio.gather(
            *(send(each, run, "approve", f"click-{n}", data) for n, each in enumerate([gateway, other] * 5)),
            *(send(each, run, "approve", "same", data) for each in [gateway, other] * 5),
        )
        assert {answer["status"] for answer in clicks} == {"applied"}
        assert [answer["duplicate"] for answer in clicks].count(False) == 1
        page = (await other.http.get(f"/v1/runs/{run}/events", params={"after": "0"})).json()
        types = [event["type"] for event in page["events"]]
        assert types.count("approval.resolved") == types.count("approval.voted") == types.count("command.applied") == 1


async def test_the_same_id_over_another_transport(gateway: RunningGateway) -> None:
    run = await gateway.start()
    data = {"request": "apr_1", "digest": await ask(gateway, run)}
    async with gateway.socket() as wire:
        await wire.send(op="command", id="c", run=run, type="approve", command_id="K", data=data)
        wire.connection.transport.abort()  # cut right after the frame left
    first = await send(gateway, run, "approve", "K", data)
    assert first["status"] == "applied"
    again = await send(gateway, run, "approve", "K", data)
    assert again["duplicate"] is True
    assert again["seq"] == first["seq"]
    other = await send(gateway, run, "reject", "K", data)
    assert other["code"] == "idempotency_mismatch"
    assert other["status"] == 409
