"""A run that was deleted: gone for who could read it, nothing for anybody else, on every transport and for good."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.gateway.test_matrix import HOLDS, ROLES, ROWS, Cast, cast_on
from tests.integration.gateway.test_sse import ACCEPT, Stream
from tests.support.gateway import AGENT, RunningGateway, running_gateway, token
from tests.support.waiting import wait_until
from towline.protocol import event_data as d
from towline.protocol.codec import NewEntry

pytestmark = pytest.mark.store

FOREIGN = ("foreign", "worker")
LATER = ("/audit", "/export", "/fork")


async def ended(gateway: RunningGateway, notes: int = 3, **body: Any) -> str:
    run = await gateway.start(**body)
    hand = await gateway.hold(run)
    for _ in range(-(-notes // 100)):
        await hand.note("content", count=min(notes, 100))
    await hand.complete()
    return run


async def delete(gateway: RunningGateway, run: str, subject: str = "root", **claims: Any) -> httpx.Response:
    headers = gateway.as_(subject, **{"roles": ["operator"], **claims})
    return await gateway.http.delete(f"/v1/runs/{run}", headers=headers)


async def test_operators_delete_what_has_ended_and_may_repeat_it(gateway: RunningGateway) -> None:
    run = await gateway.start()
    refused = await delete(gateway, run)
    assert (refused.status_code, refused.json()["code"], refused.json()["field"]) == (409, "conflict", "status")
    assert "cancel it" in refused.json()["detail"]
    await (await gateway.hold(run)).complete()
    assert (await gateway.http.delete(f"/v1/runs/{run}")).json()["needs"] == "operator"
    assert (await delete(gateway, run, verbs=["read", "command"])).json()["needs"] == "admin"
    assert (await delete(gateway, run, runs=["other-*"])).status_code == 404
    assert (await gateway.http.get(f"/v1/runs/{run}")).status_code == 200
    for _ in range(2):
        answer = await delete(gateway, run)
        assert (answer.status_code, answer.content) == (204, b"")
    assert (await gateway.http.delete(f"/v1/runs/{run}")).json()["code"] == "gone"
    assert (await delete(gateway, run, verbs=["read"])).json()["code"] == "gone"
    assert (await delete(gateway, "run_" + "0" * 26)).json()["code"] == "not_found"
    for who in (gateway.as_("root", roles=["operator"]), gateway.as_("ana")):
        assert (await gateway.http.get("/v1/runs", headers=who)).json()["items"] == []


async def gone_cast(gateway: RunningGateway) -> Cast:
    """A deleted run, with a caller of each role that it had."""
    cast = await cast_on(gateway)
    assert (await gateway.http.post(f"/v1/runs/{cast.run}/cancel", json={"grace_ms": 0})).is_success

    async def is_over() -> bool:
        return bool((await gateway.http.get(f"/v1/runs/{cast.run}")).json()["ended_at"])

    await wait_until(is_over, "the run to be cancelled")
    assert (await delete(gateway, cast.run)).status_code == 204
    return cast


async def test_every_call_says_gone_to_who_could_read_it_and_to_others_what_a_missing_run_says(
    gateway: RunningGateway,
) -> None:
    cast = await gone_cast(gateway)
    nowhere = Cast(gateway, "run_" + "0" * 26, "", "")
    asked, wrong = 0, []
    for call, (policy, body) in ROWS.items():
        if "{run}" not in call or policy is HOLDS or call.endswith(LATER):
            continue
        for role in ROLES:
            answer = await cast.ask(role, call, body)
            if role == "nobody":
                expected = {401}
            elif role in FOREIGN:
                expected = {404}
                missing = await nowhere.ask(role, call, body)
                assert missing.json() | {"request_id": ""} == answer.json() | {"request_id": ""}, call
            else:
                expected = {204 if (call, role) == ("DELETE /v1/runs/{run}", "operator") else 410}
            if policy.get(role) == 403 and answer.status_code == 403:
                continue  # whatever the run is: this credential may not
            asked += 1
            if answer.status_code not in expected or (answer.status_code == 410 and answer.json()["code"] != "gone"):
                wrong.append((call, role, answer.status_code, answer.text))
    assert wrong == []
    assert asked > 100


async def test_every_transport_says_so(gateway: RunningGateway) -> None:
    cast = await gone_cast(gateway)
    url = f"/v1/runs/{cast.run}/events"
    for after in ("0", "latest", "2-77", "9", "9-1", "x"):
        for role in ROLES[3:]:
            credential = cast.credential(role)
            headers = {"Authorization": f"Bearer {credential}"}
            for more in ({}, {"wait_ms": "30000"}):
                page = await gateway.http.get(url, params={"after": after, **more}, headers=headers)
                assert page.json()["code"] == "gone", (after, role)
            stream = await gateway.http.get(url, headers={**headers, **ACCEPT, "Last-Event-ID": after})
            assert (stream.status_code, stream.json()["code"]) == (410, "gone"), (after, role)
    for role in ROLES[1:]:
        async with gateway.socket(cast.credential(role)) as wire:
            code = "not_found" if role in FOREIGN else "gone"
            await wire.send(op="subscribe", id="s", run=cast.run, after="x")
            assert (await wire.until("problem", id="s"))["problem"]["code"] == code, role
            await wire.send(op="command", id="c", run=cast.run, type="cancel", command_id="k", data={})
            assert (await wire.until("receipt"))["problem"]["code"] in (code, "forbidden"), role


async def test_its_id_is_never_another_runs(gateway: RunningGateway) -> None:
    await ended(gateway, id="mine")
    headers = {"Idempotency-Key": "key-1"}
    keyed = (await gateway.http.post("/v1/runs", json={"workflow": "toy", "input": {}}, headers=headers)).json()["id"]
    await (await gateway.hold(keyed)).complete()
    theirs = await gateway.start(id="theirs")
    for run in ("mine", keyed):
        assert (await delete(gateway, run)).status_code == 204
    for value in ({}, {"x": 1}):
        again = await gateway.http.post("/v1/runs", json={"workflow": "toy", "input": value, "id": "mine"})
        assert (again.json()["code"], again.json()["field"]) == ("gone", "id")
        assert "choose another id" in again.json()["detail"]
    again = await gateway.http.post("/v1/runs", json={"workflow": "toy", "input": {}}, headers=headers)
    assert again.json()["code"] == "gone"
    # Another learns of a deleted run what it learns of any run that is not its own.
    bob = gateway.as_("bob")
    taken = [
        (await gateway.http.post("/v1/runs", json={"workflow": "toy", "input": {}, "id": run}, headers=bob)).json()
        for run in ("mine", theirs)
    ]
    assert [answer.pop("request_id") for answer in taken]
    assert taken[0] == taken[1]
    assert taken[0]["code"] == "conflict"


async def test_who_is_being_sent_it_is_told_and_sent_no_more(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_gateway(redis_url, tmp_path) as gateway, running_gateway(redis_url, tmp_path) as second:
        run, other = await ended(gateway, 1300), await ended(gateway)
        reads, may_go = asyncio.Event(), asyncio.Event()
        for each in (gateway, second):
            async with each.socket() as wire:  # from here on its pages are kept
                await wire.subscribe(run, after="0")
                await wire.until("end")
            assert any(run in key for key in each.services.logs._pages)

        async def replay(*_: Any) -> None:
            reads.set()
            await may_go.wait()

        monkeypatch.setattr(second.services.admission, "replay", replay)
        headers = {"Authorization": f"Bearer {token()}", **ACCEPT}
        async with (
            second.socket() as wire,
            httpx.AsyncClient(base_url=second.url, headers=headers, timeout=30) as bare,
            bare.stream("GET", f"/v1/runs/{run}/events?after=0") as answer,
        ):
            stream = Stream(answer)
            await wire.subscribe(run, after="0")
            await stream.until("subscribed")
            await reads.wait()
            await wire.subscribe(other)
            await wire.until("end", run=other)
            assert (await delete(gateway, run)).status_code == 204
            await second.services.guard.look()  # as it does twice a second
            may_go.set()
            gone = await wire.until("unsubscribed")
            assert gone == {"op": "unsubscribed", "run": run, "code": "purged"}
            assert not any(frame["op"] == "events" and frame["run"] == run for frame in wire.frames)
            events = await stream.until("unsubscribed")
            assert events[-1][1:] == (None, {"op": "unsubscribed", "run": run, "code": "purged"})
            assert await stream.next() is None
            await wire.send(op="ping", id="p")
            await wire.until("pong")
            again = await bare.get(f"/v1/runs/{run}/events", headers={"Last-Event-ID": "3"})
            assert (again.status_code, again.json()["code"]) == (410, "gone")
        for each in (gateway, second):
            assert not any(run in key for key in each.services.logs._pages)


async def test_its_bytes_go_and_the_same_bytes_of_another_run_stay(gateway: RunningGateway, tmp_path: Path) -> None:
    runs = []
    for _ in range(2):
        run = await gateway.start(input={"text": "x" * 100_000})
        hand = await gateway.hold(run)
        sha256 = await gateway.services.payloads.of(run).put(b"made")
        made = d.ArtifactCreated(artifact="a", name="a.txt", media_type="text/plain", size=4, sha256=sha256)
        await hand.write(NewEntry("artifact.created", AGENT, made))
        await hand.complete()
        runs.append(run)
    await delete(gateway, runs[0])
    assert (await gateway.http.get(f"/v1/runs/{runs[0]}/artifacts/a")).json()["code"] == "gone"
    assert (await gateway.http.get(f"/v1/runs/{runs[1]}/artifacts/a")).content == b"made"
    ref = (await gateway.http.get(f"/v1/runs/{runs[1]}")).json()["input_ref"]
    assert (await gateway.http.get(f"/v1/runs/{runs[1]}/payloads/{ref}")).status_code == 200
    assert [path.name[9:] for path in (tmp_path / "payloads").iterdir()] == [runs[1]]
