"""Grants and shares as those see them who get access by them."""

from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from tests.integration.gateway.test_commands import ask
from tests.support.gateway import RunningGateway
from tests.support.sharing import bearer, share_of

pytestmark = pytest.mark.store


async def test_a_grant_opens_the_run_lists_it_and_shows_what_its_role_shows(gateway: RunningGateway) -> None:
    run = await gateway.start(grants={"user:vic": "viewer"}, scope={"folder": "x"})
    other = await gateway.start()
    seen = (await gateway.http.get(f"/v1/runs/{run}", headers=gateway.as_("vic"))).json()
    assert (seen["role"], seen["actions"], seen["owner"]) == ("viewer", [], "ana")
    put = await gateway.http.put(f"/v1/runs/{run}/grants/group:ops", json={"role": "collaborator"})
    assert (put.status_code, put.json()) == (200, {"subject": "group:ops", "role": "collaborator"})
    ops = gateway.as_("olga", groups=["ops", "dev"])
    seen = (await gateway.http.get(f"/v1/runs/{run}", headers=ops)).json()
    assert (seen["role"], seen["actions"][0]["type"]) == ("collaborator", "signal")
    for headers in (ops, gateway.as_("vic")):
        items = (await gateway.http.get("/v1/runs", headers=headers)).json()["items"]
        assert [item["id"] for item in items] == [run]
        assert (await gateway.http.get("/v1/runs?owner=vic", headers=headers)).json()["items"] == []
        assert len((await gateway.http.get("/v1/runs?owner=ana", headers=headers)).json()["items"]) == 1
        assert (await gateway.http.get(f"/v1/runs/{other}", headers=headers)).status_code == 404
    listed = (await gateway.http.get(f"/v1/runs/{run}/grants")).json()["items"]
    assert [(g["subject"], g["role"]) for g in listed] == [
        ("group:ops", "collaborator"), ("user:ana", "owner"), ("user:vic", "viewer"),
    ]  # fmt: skip
    created = (await gateway.http.get(f"/v1/runs/{run}/events")).json()["events"][0]
    assert created["data"]["grants"] == {"user:vic": "viewer"}
    public = (await gateway.http.get(f"/v1/runs/{run}/events", headers=gateway.as_("vic"))).json()["events"]
    assert ("grants" in public[0]["data"], public[1]["data"]) == (False, None)


async def test_what_is_granted_and_taken_is_said_plainly(gateway: RunningGateway) -> None:
    run = await gateway.start()
    path = f"/v1/runs/{run}/grants"
    for subject in ("user:a%2Fb", "user:caf%C3%A9", "group:x%7Cy", "user:c:d"):
        assert (await gateway.http.put(f"{path}/{subject}", json={"role": "viewer"})).status_code == 200, subject
    assert (await gateway.http.get(f"/v1/runs/{run}", headers=gateway.as_("a/b"))).status_code == 200
    for subject in ("bob", "role:owner", "user:", "user:a%20b"):
        answer = await gateway.http.put(f"{path}/{subject}", json={"role": "viewer"})
        assert (answer.status_code, answer.json().get("field")) == (400, "subject"), subject
    assert (await gateway.http.put(f"{path}/user:bob", json={"role": "operator"})).json()["field"] == "role"
    assert (await gateway.http.delete(f"{path}/user:nobody")).status_code == 204
    assert (await gateway.http.delete(f"{path}/user:ana")).json()["code"] == "conflict"
    assert (await gateway.http.put(f"{path}/user:bob", json={"role": "owner"})).status_code == 200
    assert (await gateway.http.delete(f"{path}/user:ana")).status_code == 204
    assert (await gateway.http.get(f"/v1/runs/{run}")).status_code == 404
    assert (await gateway.http.get("/v1/runs")).json()["items"] == []


async def test_the_subject_is_the_credentials_alone(gateway: RunningGateway) -> None:
    bob = gateway.as_("bob")
    await gateway.announce()
    key = {"Idempotency-Key": "same"}
    body = {"workflow": "toy", "input": {}, "owner": "ana", "subject": "ana"}
    runs = [
        (await gateway.http.post("/v1/runs?owner=ana", json=body, headers={**headers, **key, "X-User": "ana"})).json()
        for headers in (bob, gateway.as_("ana"))
    ]
    assert [run["owner"] for run in runs] == ["bob", "ana"]
    assert runs[0]["id"] != runs[1]["id"]


async def test_a_named_decider_reads_the_run_as_a_viewer_and_the_request_in_full(gateway: RunningGateway) -> None:
    run = await gateway.start()
    hand = await gateway.hold(run)
    dan = gateway.as_("dan", groups=["deciders"])
    assert (await gateway.http.get(f"/v1/runs/{run}", headers=dan)).status_code == 404
    digest = await ask(hand, deciders=["group:deciders"])
    seen = (await gateway.http.get(f"/v1/runs/{run}", headers=dan)).json()
    (wait,) = seen["waiting_on"]
    assert (seen["role"], wait["may_answer"], wait["request"]["digest"]) == ("viewer", True, digest)
    events = (await gateway.http.get(f"/v1/runs/{run}/events", headers=dan)).json()["events"]
    assert events[-1]["data"] is None
    asked = (await gateway.http.get(f"/v1/runs/{run}/requests/apr_1", headers=dan)).json()
    assert asked["request"]["proposal"]["intent"] == "Apply fixes"
    body = {"type": "approve", "data": {"request": "apr_1", "digest": digest}}
    for credential in (dan, gateway.as_("dan", groups=["deciders"], roles=["worker"])):
        answer = await gateway.http.post(f"/v1/runs/{run}/commands", json=body, headers=credential)
        assert answer.status_code == (200 if credential is dan else 403), answer.text
    after = (await gateway.http.get(f"/v1/runs/{run}/requests/apr_1", headers=dan)).json()
    assert (after["outcome"], after["decisions"][0]["by"]) == ("approved", "user:dan")


@pytest.mark.parametrize("more", [{"roles": ["worker"]}, {"roles": ["user", "worker"]}, {"runs": ["run_*"]}])
async def test_what_may_work_or_is_minted_for_runs_never_decides(gateway: RunningGateway, more: Any) -> None:
    run = await gateway.start()
    digest = await ask(await gateway.hold(run), deciders=["role:owner", "user:ana"])
    body = {"type": "approve", "data": {"request": "apr_1", "digest": digest}}
    answer = await gateway.http.post(f"/v1/runs/{run}/commands", json=body, headers=gateway.as_("ana", **more))
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")


async def test_verbs_narrow_what_a_role_may(gateway: RunningGateway) -> None:
    run = await gateway.start()
    nudge = {"type": "signal", "data": {"name": "nudge", "payload": {"by": 1}}}
    calls: dict[str, Callable[[Any], Awaitable[httpx.Response]]] = {
        "read": lambda h: gateway.http.get(f"/v1/runs/{run}", headers=h),
        "command": lambda h: gateway.http.post(f"/v1/runs/{run}/commands", json=nudge, headers=h),
        "start": lambda h: gateway.http.post("/v1/runs", json={"workflow": "toy", "input": {}}, headers=h),
        "admin": lambda h: gateway.http.get(f"/v1/runs/{run}/grants", headers=h),
    }
    for verb in calls:
        headers = gateway.as_("ana", verbs=["read", verb] if verb == "admin" else [verb])
        for name, call in calls.items():
            is_let_in = name == verb or (verb == "admin" and name == "read")
            assert (await call(headers)).is_success == is_let_in, (verb, name)


async def test_a_share_reads_this_run_and_nothing_else(gateway: RunningGateway) -> None:
    run, other = await gateway.start(), await gateway.start()
    hand = await gateway.hold(run)
    await ask(hand)
    shared = await share_of(gateway, run)
    assert shared["url"] == f"{gateway.url}/#token={shared['token']}&run={run}"
    assert "?" not in shared["url"]
    headers = bearer(shared["token"])
    seen = (await gateway.http.get(f"/v1/runs/{run}", headers=headers)).json()
    assert (seen["role"], seen["owner"], seen["actions"], seen["worker"]) == ("viewer", None, [], None)
    events = (await gateway.http.get(f"/v1/runs/{run}/events", headers=headers)).json()["events"]
    assert all(e["actor"]["id"] is None or e["actor"]["kind"] == "system" for e in events)
    assert "ana" not in str(seen) + str(events)
    assert (await gateway.http.get(f"/v1/runs/{other}", headers=headers)).status_code == 404
    assert (await gateway.http.get("/v1/runs", headers=headers)).json()["items"] == []
    for method, path, body in (
        ("POST", "/v1/runs", {"workflow": "toy", "input": {}}),
        ("POST", f"/v1/runs/{run}/cancel", {}),
        ("POST", f"/v1/runs/{run}/shares", {"expires_in_ms": 1}),
        ("PUT", f"/v1/runs/{run}/grants/user:eve", {"role": "owner"}),
    ):
        assert (await gateway.http.request(method, path, json=body, headers=headers)).status_code == 403, path
    listed = (await gateway.http.get(f"/v1/runs/{run}/shares")).json()["items"]
    assert [set(share) & {"token", "url", "secret_hash"} for share in listed] == [set()]
    assert listed[0]["share"] == shared["share"]


async def test_only_the_token_of_a_share_that_stands_opens(gateway: RunningGateway) -> None:
    run = await gateway.start()
    shared = await share_of(gateway, run)
    other = await share_of(gateway, await gateway.start())
    prefix, _, secret = shared["token"].rpartition("~")
    forged = [
        prefix + "~" + secret[::-1],
        prefix + "~",
        shared["token"] + "A",
        shared["token"].replace(run, "run_" + "0" * 26),
        other["token"].rpartition("~")[0] + "~" + secret,
        f"share~{run}~{other['share']}~{secret}",
        f"share~*~{shared['share']}~{secret}",
        "share~",
    ]
    bodies = set()
    for text in forged:
        answer = await gateway.http.get(f"/v1/runs/{run}", headers=bearer(text))
        assert answer.status_code == 401, text
        bodies.add(answer.json()["detail"])
        async with gateway.socket(hello=False) as wire:
            await wire.send(op="hello", token=text)
            assert await wire.closed() == 4501
    assert len(bodies) == 1
    assert (await gateway.http.delete(f"/v1/runs/{run}/shares/{shared['share']}")).status_code == 204
    assert (await gateway.http.delete(f"/v1/runs/{run}/shares/{shared['share']}")).status_code == 204
    gone = await gateway.http.get(f"/v1/runs/{run}", headers=bearer(shared["token"]))
    assert (gone.status_code, {gone.json()["detail"]}) == (401, bodies)


async def test_a_share_ends(gateway: RunningGateway) -> None:
    run = await gateway.start()
    shared = await share_of(gateway, run, expires_in_ms=700)
    async with gateway.socket(shared["token"]) as wire:
        await wire.subscribe(run)
        assert await wire.closed() == 4005
    assert (await gateway.http.get(f"/v1/runs/{run}", headers=bearer(shared["token"]))).status_code == 401
    assert (await gateway.http.get(f"/v1/runs/{run}/shares")).json()["items"] == []
    for bad in (0, -1, 10**15, "1", None, 1.5):
        answer = await gateway.http.post(f"/v1/runs/{run}/shares", json={"expires_in_ms": bad})
        assert answer.json()["field"] == "expires_in_ms", bad
