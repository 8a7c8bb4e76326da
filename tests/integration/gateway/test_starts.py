"""Starting runs over HTTP in every way but the plain one: later, with a command, and in a thread."""

import asyncio
from typing import Any

import httpx
import pytest

from tests.support.gateway import RunningGateway
from tests.support.waiting import wait_until
from towline.protocol import times

pytestmark = pytest.mark.store


async def post(gateway: RunningGateway, headers: dict[str, str] | None = None, **body: Any) -> httpx.Response:
    await gateway.announce()
    return await gateway.http.post("/v1/runs", json={"workflow": "toy", "input": {}, **body}, headers=headers)


async def events(gateway: RunningGateway, run: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await gateway.http.get(f"/v1/runs/{run}/events?after=0")).json()["events"]
    return found


REFUSED: list[tuple[dict[str, Any], int, str, str]] = [
    ({"command": {}}, 400, "bad_request", "command.type"),
    ({"command": {"type": "dance"}}, 400, "bad_request", "command.type"),
    ({"command": {"type": "signal"}}, 400, "bad_request", "command.data.name"),
    ({"command": {"type": "cancel", "command_id": ""}}, 400, "bad_request", "command.command_id"),
    ({"command": {"type": "signal", "data": {"name": "x"}}}, 409, "unsupported", "command.data.name"),
    ({"command": {"type": "signal", "data": {"name": "nudge"}}}, 400, "bad_request", "command.data.payload"),
    ({"command": {"type": "revise", "data": {"instruction": "x"}}}, 409, "unsupported", "command.type"),
    (
        {"command": {"type": "approve", "data": {"request": "a", "digest": "d"}}},
        404,
        "not_found",
        "command.data.request",
    ),
    ({"thread": ""}, 400, "bad_request", "thread"),
    ({"thread": "t" * 129}, 400, "bad_request", "thread"),
    ({"thread": "t", "id": "mine"}, 400, "bad_request", "id"),
    ({"thread": "t", "on_busy": "rollback"}, 400, "bad_request", "on_busy"),
    ({"on_busy": "reject"}, 400, "bad_request", "on_busy"),
    ({"start_at": "soon"}, 400, "bad_request", "start_at"),
    ({"start_at": 4}, 400, "bad_request", "start_at"),
    ({"retention": "P1D"}, 400, "bad_request", "retention"),
    ({"retention": {}}, 400, "bad_request", "retention.archive_after_ms"),
    ({"retention": {"archive_after_ms": -1}}, 400, "bad_request", "retention.archive_after_ms"),
]


@pytest.mark.parametrize(("body", "status", "code", "field"), REFUSED)
async def test_what_is_refused_names_the_field_and_makes_nothing(
    gateway: RunningGateway, body: dict[str, Any], status: int, code: str, field: str
) -> None:
    answer = await post(gateway, **body)
    told = answer.json()
    assert (answer.status_code, told["code"], told["field"]) == (status, code, field)
    assert (await gateway.http.get("/v1/runs")).json()["items"] == []


async def test_a_run_starts_at_its_time_and_says_until_then_what_it_waits_for(gateway: RunningGateway) -> None:
    worker = gateway.as_("w", roles=("worker",))
    due_ms = gateway.store.now_ms() + 1500
    answer = await post(gateway, start_at=times.to_wire(due_ms), retention={"archive_after_ms": 60_000})
    run = answer.json()
    assert answer.status_code == 201
    assert (run["status"], run["status_detail"]["code"], run["last_seq"]) == ("queued", "start_at", 1)
    assert times.to_wire(due_ms) in run["status_detail"]["text"]
    (created,) = await events(gateway, run["id"])
    assert (created["data"]["start_at"], created["data"]["retention"]) == (
        times.to_wire(due_ms), {"archive_after_ms": 60_000},
    )  # fmt: skip
    taken = await gateway.http.post(
        "/v1/queues/default/claims", json={"worker": "w1", "workflows": ["toy"], "wait_ms": 20_000}, headers=worker
    )
    assert taken.json()["run"]["id"] == run["id"]
    begun = {event["type"]: times.from_wire(event["ts"]) for event in await events(gateway, run["id"])}
    assert list(begun) == ["run.created", "timer.fired", "run.started"]
    assert begun["timer.fired"] >= due_ms


async def test_a_cancel_before_its_time_is_its_end(gateway: RunningGateway) -> None:
    run = (await post(gateway, start_at="2999-12-31T00:00:00+01:00")).json()["id"]
    assert (await gateway.http.post(f"/v1/runs/{run}/cancel")).json()["status"] == "cancelled"


async def test_a_worker_takes_a_run_of_its_own_at_its_time_and_not_before(gateway: RunningGateway) -> None:
    worker = gateway.as_("w", roles=("worker",))
    due_ms = gateway.store.now_ms() + 1200
    answer = await post(gateway, worker, queue=None, workflow="own", start_at=times.to_wire(due_ms))
    held = answer.json()
    assert (answer.status_code, held["lease"], held["run"]["status_detail"]["code"]) == (201, None, "start_at")

    async def is_taken() -> bool:
        answer = await gateway.http.post(f"/v1/runs/{held['run']['id']}/claim", headers=worker)
        return answer.status_code == 200

    await wait_until(is_taken, "the run to be taken")
    assert gateway.store.now_ms() >= due_ms


async def test_a_paused_run_rests_beyond_its_time(gateway: RunningGateway) -> None:
    due_ms = gateway.store.now_ms() + 800
    run = (await post(gateway, start_at=times.to_wire(due_ms))).json()["id"]
    await gateway.http.post(f"/v1/runs/{run}/commands", json={"type": "pause"})

    async def has_come() -> bool:
        return "timer.fired" in [event["type"] for event in await events(gateway, run)]

    await wait_until(has_come, "its time to come")
    assert (await gateway.http.get(f"/v1/runs/{run}")).json()["status"] == "paused"
    hints = await gateway.store.read_hints("default", count=9, block_ms=1)
    assert [hint.run for hint in hints] == []
    await gateway.http.post(f"/v1/runs/{run}/commands", json={"type": "resume"})
    assert (await gateway.http.get(f"/v1/runs/{run}")).json()["status"] == "queued"
    await asyncio.wait_for(gateway.hold(run), 10)


async def test_a_run_starts_with_its_command_in_one_step(gateway: RunningGateway) -> None:
    nudge = {"type": "signal", "data": {"name": "nudge", "payload": {"by": 3}}, "command_id": "n1"}
    answer = await post(gateway, id="nightly", command=nudge)
    assert (answer.status_code, answer.json()["last_seq"]) == (201, 2)
    assert [event["type"] for event in await events(gateway, "nightly")] == ["run.created", "command.received"]
    receipt = (await gateway.http.get("/v1/runs/nightly/commands/n1")).json()
    assert (receipt["status"], receipt["seq"]) == ("accepted", 2)
    again = await post(gateway, id="nightly", command=nudge)
    assert (again.status_code, again.headers["towline-existing"], again.json()["last_seq"]) == (200, "true", 2)
    other = await post(gateway, id="nightly", command={**nudge, "command_id": "n2"})
    assert (other.status_code, other.json()["last_seq"]) == (200, 3)
    mismatch = await post(gateway, id="nightly", command={**nudge, "data": {"name": "nudge", "payload": {"by": 4}}})
    assert (mismatch.status_code, mismatch.json()["code"]) == (409, "idempotency_mismatch")


async def test_a_command_needs_its_own_right(gateway: RunningGateway) -> None:
    starter = gateway.as_("ana", verbs=["read", "start"])
    answer = await post(gateway, starter, command={"type": "pause"})
    assert (answer.status_code, answer.json()["needs"]) == (403, "command")
    assert (await post(gateway, starter)).status_code == 201
    paused = await post(gateway, command={"type": "pause", "data": {"reason": "first I look"}})
    assert (paused.status_code, paused.json()["status"]) == (201, "paused")
    assert paused.json()["status_detail"]["text"] == "first I look"
    ended = await post(gateway, command={"type": "cancel"})
    assert (ended.status_code, ended.json()["status"]) == (201, "cancelled")


async def test_runs_of_a_thread_go_one_after_the_other(gateway: RunningGateway) -> None:
    worker = gateway.as_("w", roles=("worker",))

    async def take() -> httpx.Response:
        body = {"worker": "w1", "workflows": ["toy"], "wait_ms": 300}
        return await gateway.http.post("/v1/queues/default/claims", json=body, headers=worker)

    runs = [(await post(gateway, thread="chat")).json() for _ in range(3)]
    first, second, third = [run["id"] for run in runs]
    assert [run["thread"] for run in runs] == ["chat"] * 3
    assert runs[0]["status_detail"] is None
    for run, before in ((runs[1], first), (runs[2], second)):
        assert (run["status"], run["status_detail"]["code"]) == ("queued", "thread")
        assert before in run["status_detail"]["text"]
    await post(gateway, gateway.as_("bob"), thread="chat")
    listed = (await gateway.http.get("/v1/runs?thread=chat")).json()["items"]
    assert [run["id"] for run in listed] == [third, second, first]
    assert (await gateway.http.get("/v1/runs?thread=other")).json()["items"] == []
    taken = {(await take()).json()["run"]["id"] for _ in range(2)}
    assert first in taken, "and the one of bob"
    assert (await take()).status_code == 204
    await gateway.http.post(f"/v1/runs/{second}/cancel")
    await gateway.http.post(f"/v1/runs/{first}/cancel", json={"grace_ms": 0})

    async def is_free() -> bool:
        answer = await take()
        return answer.status_code == 200 and answer.json()["run"]["id"] == third

    await wait_until(is_free, "the third to go")
    assert (await gateway.http.get(f"/v1/runs/{third}")).json()["status_detail"] is None


async def test_a_busy_thread_is_told_and_can_be_interrupted(gateway: RunningGateway) -> None:
    first = (await post(gateway, thread="chat")).json()["id"]
    hand = await gateway.hold(first)
    told = await post(gateway, thread="chat", on_busy="reject")
    assert (told.status_code, told.json()["code"], told.json()["field"]) == (409, "conflict", "thread")
    starter = gateway.as_("ana", verbs=["read", "start"])
    forbidden = await post(gateway, starter, thread="chat", on_busy="interrupt")
    assert (forbidden.status_code, forbidden.json()["needs"]) == (403, "command")
    key = {"Idempotency-Key": "k1"}
    second = await post(gateway, key, thread="chat", on_busy="interrupt")
    assert (second.status_code, second.json()["status_detail"]["code"]) == (201, "thread")
    again = await post(gateway, key, thread="chat", on_busy="interrupt")
    assert (again.status_code, again.json()["id"]) == (200, second.json()["id"])
    assert (again.headers["idempotency-replayed"], again.headers.get("towline-existing")) == ("true", None)
    stopped = (await gateway.http.get(f"/v1/runs/{first}")).json()
    assert (stopped["status"], stopped["stopping"]["by"]) == ("running", "user:ana")
    await hand.complete()
    await gateway.hold(second.json()["id"])


async def test_a_worker_takes_a_run_of_its_own_thread_when_the_one_before_has_ended(gateway: RunningGateway) -> None:
    worker = gateway.as_("w", roles=("worker",))
    first = (await post(gateway, worker, queue=None, workflow="own", thread="chat")).json()
    second = (await post(gateway, worker, queue=None, workflow="own", thread="chat")).json()
    assert first["lease"]
    assert (second["lease"], second["run"]["status_detail"]["code"]) == (None, "thread")
    claim = f"/v1/runs/{second['run']['id']}/claim"
    assert (await gateway.http.post(claim, headers=worker)).status_code == 204
    ended = await gateway.http.post(f"/v1/runs/{first['run']['id']}/cancel", json={"grace_ms": 0}, headers=worker)
    assert ended.status_code == 200

    async def is_taken() -> bool:
        return (await gateway.http.post(claim, headers=worker)).status_code == 200

    await wait_until(is_taken, "the second to be taken")


async def test_workflows_say_what_they_do_in_a_busy_thread(gateway: RunningGateway) -> None:
    worker = gateway.as_("w", roles=("worker",))
    offers = [{"name": "strict", "on_busy": "reject"}, {"name": "plain"}]
    body = {"worker": "w1", "workflows": offers}
    assert (await gateway.http.post("/v1/queues/default/claims", json=body, headers=worker)).status_code == 204

    async def are_told() -> bool:  # what workers announce is read once a second
        items = (await gateway.http.get("/v1/workflows")).json()["items"]
        return {each["name"]: each["on_busy"] for each in items} == {"strict": "reject", "plain": "enqueue"}

    await wait_until(are_told, "both to be told of")
    await post(gateway, workflow="strict", thread="chat")
    assert (await post(gateway, workflow="strict", thread="chat")).status_code == 409
    wrong = {"worker": "w1", "workflows": [{"name": "odd", "on_busy": "dance"}]}
    answer = await gateway.http.post("/v1/queues/default/claims", json=wrong, headers=worker)
    assert answer.status_code == 400
