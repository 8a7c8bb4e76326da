"""HTTP: starting, listing, reading, cancelling; what each refusal says; and that strangers learn nothing."""

import asyncio
import os
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.gateway import RunningGateway, running_gateway, token
from towline.protocol.ids import is_run_id

pytestmark = pytest.mark.store


def refused(answer: httpx.Response, status: int, code: str, field: str | None = None) -> dict[str, Any]:
    """The problem of an answer, checked in all that every problem has."""
    body: dict[str, Any] = answer.json()
    assert (answer.status_code, body["code"], body.get("field")) == (status, code, field), body
    assert answer.headers["content-type"] == "application/problem+json"
    assert body["type"] == f"https://towline.dev/problems/{code}"
    assert body["status"] == status
    assert body["title"]
    assert body["detail"]
    assert body["request_id"] == answer.headers["towline-request-id"]
    return body


async def test_a_run_is_started(gateway: RunningGateway) -> None:
    await gateway.announce()
    answer = await gateway.http.post(
        "/v1/runs",
        json={
            "workflow": "toy",
            "input": {"n": 1},
            "labels": {"team": "red"},
            "headline": "One toy",
            "budget": {"usd_micros": 5},
            "from_the_future": True,
        },
    )
    run = answer.json()
    assert answer.status_code == 201
    assert answer.headers["location"] == f"/v1/runs/{run['id']}"
    assert is_run_id(run["id"])
    assert (run["status"], run["owner"], run["role"], run["last_seq"]) == ("queued", "ana", "owner", 1)
    assert run["labels"] == {"team": "red"}
    assert run["budget"]["usd_micros"] == 5
    assert run["cursor"].startswith("1-")
    assert {"type": "cancel"} in run["actions"]
    assert (await gateway.http.get(answer.headers["location"])).json() == run


@pytest.mark.parametrize(
    ("body", "code", "field"),
    [
        ({}, "bad_request", "workflow"),
        ({"workflow": 4}, "bad_request", "workflow"),
        ({"workflow": "nope"}, "bad_request", "workflow"),
        ({"workflow": "toy", "input": []}, "bad_request", "input"),
        ({"workflow": "toy", "input": {"source": {"path": 4}}}, "bad_request", "input.source.path"),
        ({"workflow": "toy", "input": {}, "id": "run_mine"}, "bad_request", "id"),
        ({"workflow": "toy", "input": {}, "id": "a b"}, "bad_request", "id"),
        ({"workflow": "toy", "input": {}, "id": 4}, "bad_request", "id"),
        ({"workflow": "toy", "input": {}, "headline": "h" * 81}, "bad_request", "headline"),
        ({"workflow": "toy", "input": {}, "labels": {"a": 1}}, "bad_request", "labels[...]"),
        ({"workflow": "toy", "input": {}, "budget": {"usd_micros": -1}}, "bad_request", "budget.usd_micros"),
        ({"workflow": "toy", "input": {}, "queue": "nowhere"}, "bad_request", "queue"),
        ({"workflow": "toy", "input": {}, "grants": {"bob": "viewer"}}, "bad_request", "grants"),
        ({"workflow": "toy", "input": {}, "grants": {"role:operator": "viewer"}}, "bad_request", "grants"),
        ({"workflow": "toy", "input": {}, "grants": {"user:bob": "operator"}}, "bad_request", "grants.user:bob"),
        ({"workflow": "toy", "input": {}, "grants": {"user:ana": "viewer"}}, "bad_request", "grants"),
    ],
)
async def test_a_start_that_is_refused_names_the_field(
    gateway: RunningGateway, body: dict[str, Any], code: str, field: str
) -> None:
    await gateway.announce()
    answer = await gateway.http.post("/v1/runs", json=body)
    refused(answer, {"bad_request": 400, "unsupported": 409, "too_large": 413}[code], code, field)
    assert (await gateway.http.get("/v1/runs")).json()["items"] == []


@pytest.mark.parametrize(
    ("content", "headers", "status", "code"),
    [
        (b"", {}, 400, "bad_request"),
        (b"{", {}, 400, "bad_request"),
        (b"[]", {}, 400, "bad_request"),
        (b"\xff\xfe", {}, 400, "bad_request"),
        (b"[" * 100_000, {}, 400, "bad_request"),
        (b'{"workflow":"toy","input":' + b"[" * 80 + b"]" * 80 + b"}", {}, 400, "bad_request"),
        (b'{"workflow":"toy","input":{"n":' + b"9" * 50 + b"}}", {}, 400, "bad_request"),
        (b'{"workflow":"toy","input":{"n":1e999}}', {}, 400, "bad_request"),
        (b"{" + b" " * 2**20 + b"}", {}, 413, "too_large"),
        (b"{}", {"Content-Type": "text/plain"}, 415, "unsupported_media"),
        (b"{}", {"Idempotency-Key": "a b"}, 400, "bad_request"),
        (b"{}", {"Idempotency-Key": "k" * 129}, 400, "bad_request"),
    ],
)
async def test_a_body_that_is_refused(
    gateway: RunningGateway, content: bytes, headers: dict[str, str], status: int, code: str
) -> None:
    await gateway.announce()
    answer = await gateway.http.post(
        "/v1/runs", content=content, headers={"Content-Type": "application/json", **headers}
    )
    body = answer.json()
    assert (answer.status_code, body["code"]) == (status, code)


async def test_fifty_starts_with_one_key_make_one_run(gateway: RunningGateway) -> None:
    await gateway.announce()
    body = {"workflow": "toy", "input": {"n": 1}}

    async def start() -> httpx.Response:
        return await gateway.http.post("/v1/runs", json=body, headers={"Idempotency-Key": "k1"})

    answers = await asyncio.gather(*(start() for _ in range(50)))
    assert {answer.json()["id"] for answer in answers} == {answers[0].json()["id"]}
    assert sorted(answer.status_code for answer in answers) == [200] * 49 + [201]
    assert sum(answer.headers.get("idempotency-replayed") == "true" for answer in answers) == 49
    assert len((await gateway.http.get("/v1/runs")).json()["items"]) == 1
    other = await gateway.http.post("/v1/runs", json={**body, "headline": "other"}, headers={"Idempotency-Key": "k1"})
    refused(other, 409, "idempotency_mismatch")
    bobs = await gateway.http.post("/v1/runs", json=body, headers={"Idempotency-Key": "k1", **gateway.as_("bob")})
    assert bobs.status_code == 201
    assert bobs.json()["id"] != answers[0].json()["id"]


async def test_refusals_are_not_remembered_under_a_key(gateway: RunningGateway) -> None:
    body = {"workflow": "toy", "input": {}}
    refused(
        await gateway.http.post("/v1/runs", json=body, headers={"Idempotency-Key": "k"}), 400, "bad_request", "workflow"
    )
    await gateway.announce()
    assert (await gateway.http.post("/v1/runs", json=body, headers={"Idempotency-Key": "k"})).status_code == 201


async def test_an_id_of_ones_own(gateway: RunningGateway) -> None:
    run = await gateway.start(id="nightly-7")
    assert run == "nightly-7"
    again = await gateway.http.post("/v1/runs", json={"workflow": "toy", "input": {}, "id": run})
    assert (again.status_code, again.headers["towline-existing"]) == (200, "true")
    other = await gateway.http.post("/v1/runs", json={"workflow": "toy", "input": {"n": 2}, "id": run})
    refused(other, 409, "conflict", "id")
    bobs = await gateway.http.post(
        "/v1/runs", json={"workflow": "toy", "input": {}, "id": run}, headers=gateway.as_("bob")
    )
    assert "ana" not in refused(bobs, 409, "conflict", "id")["detail"]


async def test_lists_show_what_one_may_read_in_stable_pages(gateway: RunningGateway) -> None:
    mine = [await gateway.start(labels={"n": str(n)}) for n in range(7)]
    await gateway.http.post("/v1/runs", json={"workflow": "toy", "input": {}}, headers=gateway.as_("bob"))

    async def listed(headers: dict[str, str] | None = None, **params: Any) -> dict[str, Any]:
        answer = await gateway.http.get("/v1/runs", params=params, headers=headers)
        assert answer.status_code == 200, answer.text
        body: dict[str, Any] = answer.json()
        return body

    first = await listed(limit=3)
    new = await gateway.start()
    second = await listed(limit=3, page=first["next_page"])
    third = await listed(limit=3, page=second["next_page"])
    ids = [run["id"] for page in (first, second, third) for run in page["items"]]
    assert sorted(ids) == sorted(mine)
    assert new not in ids
    assert third["next_page"] is None
    assert len((await listed(gateway.as_("bob")))["items"]) == 1
    assert len((await listed(gateway.as_("root", roles=("operator",))))["items"]) == 9
    assert len((await listed(gateway.as_("root", roles=("operator",)), owner="bob"))["items"]) == 1
    assert (await listed(gateway.as_("bob"), owner="ana"))["items"] == []
    assert [run["id"] for run in (await listed(label="n:3"))["items"]] == [mine[3]]
    await gateway.http.post(f"/v1/runs/{mine[0]}/cancel")
    assert [run["id"] for run in (await listed(status="cancelled,failed"))["items"]] == [mine[0]]
    assert (await listed(workflow="other"))["items"] == []
    assert (await listed(waiting_on="approval"))["items"] == []
    only = await listed(gateway.as_("ana", runs=[mine[2]]))
    assert [run["id"] for run in only["items"]] == [mine[2]]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("limit=0", "limit"),
        ("limit=201", "limit"),
        ("limit=x", "limit"),
        ("limit=-1", "limit"),
        ("limit=1&limit=2", "limit"),
        ("limit=٣", "limit"),
        ("status=done", "status"),
        ("status=", "status"),
        ("label=nocolon", "label"),
        ("waiting_on=godot", "waiting_on"),
        ("page=!!", "page"),
        ("page=YWJj", "page"),
        ("owner=a%20b", "owner"),
    ],
)
async def test_a_query_that_is_refused_names_the_field(gateway: RunningGateway, query: str, field: str) -> None:
    refused(await gateway.http.get(f"/v1/runs?{query}"), 400, "bad_request", field)


@pytest.mark.parametrize(
    ("query", "field"),
    [("after=x", "after"), ("wait_ms=30001", "wait_ms"), ("wait_ms=1.5", "wait_ms"), ("limit=1001", "limit")],
)
async def test_a_page_that_is_refused_names_the_field(gateway: RunningGateway, query: str, field: str) -> None:
    run = await gateway.start()
    refused(await gateway.http.get(f"/v1/runs/{run}/events?{query}"), 400, "bad_request", field)


async def test_a_foreign_run_looks_like_a_missing_one(gateway: RunningGateway) -> None:
    run = await gateway.start()
    bob = gateway.as_("bob")
    missing = "run_" + "0" * 26
    for method, path, body in [
        ("GET", "", None),
        ("GET", "/events", None),
        ("GET", "/events?after=99-1", None),
        ("GET", "/artifacts", None),
        ("GET", "/artifacts/art_1", None),
        ("GET", "/requests/apr_1", None),
        ("GET", "/commands/k", None),
        ("GET", "/payloads/" + "0" * 64, None),
        ("POST", "/commands", {"type": "cancel"}),
        ("POST", "/commands", {"type": "nonsense"}),
        ("POST", "/cancel", {}),
    ]:
        answers = []
        for name in (run, missing):
            answer = await gateway.http.request(method, f"/v1/runs/{name}{path}", json=body, headers=bob)
            assert answer.status_code == 404, (method, path, answer.text)
            answers.append({k: v for k, v in answer.json().items() if k != "request_id"})
        assert answers[0] == answers[1]
    assert (await gateway.store.facts(run)).head.seq == 1
    async with gateway.socket(token("bob")) as wire:
        problems = []
        for name in (run, missing):
            await wire.send(op="subscribe", id=name[:20], run=name, after="1-1")
            frame = await wire.until("problem")
            problems.append({k: v for k, v in frame["problem"].items() if k != "request_id"})
            await wire.send(op="command", id="c", run=name, type="cancel", command_id="k", data={})
            receipt = await wire.until("receipt")
            assert (receipt["status"], receipt["problem"]["code"]) == ("refused", "not_found")
        assert problems[0] == problems[1]


@pytest.mark.parametrize("path", ["/v1/runs/{tl:07}", "/v1/runs/a%20b", "/v1/runs/run_short/events", "/v1/runs/%00"])
async def test_what_can_be_no_run_id_names_the_field(gateway: RunningGateway, path: str) -> None:
    refused(await gateway.http.get(path), 400, "bad_request", "run")


async def test_without_a_credential_nothing_is_told(gateway: RunningGateway) -> None:
    run = await gateway.start()
    for headers in (
        {"Authorization": ""},
        {"Authorization": "Basic YTpi"},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer nope"},
        {"Authorization": f"Bearer {token(ttl_s=-1)}"},
    ):
        for path in ("/v1/runs", f"/v1/runs/{run}", "/v1/workflows", "/v1/whoami", "/v1/inbox"):
            answer = await gateway.http.get(path, headers=headers)
            refused(answer, 401, "unauthenticated")
            assert answer.headers["www-authenticate"].startswith("Bearer")


async def test_verbs_narrow(gateway: RunningGateway) -> None:
    run = await gateway.start()
    auditor = gateway.as_("aud", roles=("operator",), verbs=["read"])
    assert (await gateway.http.get(f"/v1/runs/{run}", headers=auditor)).json()["role"] == "operator"
    start = await gateway.http.post("/v1/runs", json={"workflow": "toy", "input": {}}, headers=auditor)
    assert refused(start, 403, "forbidden")["needs"] == "start"
    cancel = await gateway.http.post(f"/v1/runs/{run}/cancel", headers=auditor)
    assert refused(cancel, 403, "forbidden")["needs"] == "command"


async def test_the_tag_of_a_run_changes_with_it(gateway: RunningGateway) -> None:
    run = await gateway.start()
    tag = (await gateway.http.get(f"/v1/runs/{run}")).headers["etag"]
    assert tag.startswith('W/"')
    assert (await gateway.http.get(f"/v1/runs/{run}", headers={"If-None-Match": tag})).status_code == 304
    await gateway.http.post(f"/v1/runs/{run}/cancel")
    assert (await gateway.http.get(f"/v1/runs/{run}", headers={"If-None-Match": tag})).status_code == 200


async def test_cancel_answers_the_run_in_every_state(gateway: RunningGateway) -> None:
    run = await gateway.start()
    for _ in range(2):
        answer = await gateway.http.post(f"/v1/runs/{run}/cancel", json={"reason": "enough"})
        assert answer.status_code == 200
        assert answer.json()["status"] == "cancelled"
    held = await gateway.start()
    await gateway.hold(held)
    stopping = (await gateway.http.post(f"/v1/runs/{held}/cancel", json={"grace_ms": 600_000})).json()
    again = (await gateway.http.post(f"/v1/runs/{held}/cancel", json={"grace_ms": 600_000})).json()
    assert (stopping["status"], stopping["stopping"]["reason"]) == ("running", None)
    assert again["last_seq"] == stopping["last_seq"]
    refused(await gateway.http.post(f"/v1/runs/{held}/cancel", json={"grace_ms": -1}), 400, "bad_request", "grace_ms")
    refused(
        await gateway.http.post(f"/v1/runs/{held}/cancel", json={"command_id": "a b"}), 400, "bad_request", "command_id"
    )


async def test_a_source_must_lie_below_an_allowed_root(redis_url: str, tmp_path: Path) -> None:
    allowed = tmp_path / "allowed"
    (allowed / "project").mkdir(parents=True)
    (tmp_path / "secret").mkdir()
    os.symlink(tmp_path / "secret", allowed / "way-out")
    async with running_gateway(redis_url, tmp_path, allow_paths=(str(allowed),)) as gateway:
        await gateway.announce()

        async def start(path: str) -> httpx.Response:
            return await gateway.http.post("/v1/runs", json={"workflow": "toy", "input": {"source": {"path": path}}})

        assert (await start(str(allowed / "project"))).status_code == 201
        details = set()
        for path in (tmp_path / "secret", tmp_path / "nowhere", allowed / "way-out"):
            details.add(refused(await start(str(path)), 400, "bad_request", "input.source.path")["detail"])
        assert len(details) == 1
        refused(await start("relative"), 400, "bad_request", "input.source.path")
        refused(await start(f"{allowed}/../secret"), 400, "bad_request", "input.source.path")


async def test_what_there_is_to_know_about_a_gateway(gateway: RunningGateway) -> None:
    await gateway.announce()
    (workflow,) = (await gateway.http.get("/v1/workflows")).json()["items"]
    assert (workflow["name"], workflow["versions"], workflow["on_busy"]) == ("toy", ["1"], "enqueue")
    who = (await gateway.http.get("/v1/whoami")).json()
    assert (who["subject"], who["roles"]) == ("ana", ["user"])
    async with httpx.AsyncClient(base_url=gateway.url) as anyone:
        assert (await anyone.get("/healthz")).json() == {"status": "ok"}
        assert (await anyone.get("/readyz")).status_code == 200
        refused(await anyone.get("/nowhere"), 404, "not_found")
        refused(await anyone.put("/healthz"), 404, "not_found")
        refused(await anyone.get("/v1/nowhere"), 404, "not_found")
        for path in ("/../settings.py", "/__init__.py", "/console/../app.py", "/console/%2e%2e%2fapp.py"):
            assert (await anyone.get(path)).status_code == 404
    for path in ("/v1/runs/r/export", "/v1/holds/all", "/v1/runs/r/audit"):
        refused(await gateway.http.get(path), 409, "unsupported")


async def test_only_listed_origins_are_shared_with(redis_url: str, tmp_path: Path) -> None:
    good = "https://app.example.com"
    async with running_gateway(redis_url, tmp_path, origins=(good,)) as gateway:
        await gateway.announce()
        answer = await gateway.http.get("/v1/workflows", headers={"Origin": good})
        assert answer.headers["access-control-allow-origin"] == good
        assert "Towline-Request-Id" in answer.headers["access-control-expose-headers"]
        assert "access-control-allow-credentials" not in answer.headers
        bad = ["https://evil", "null", good + ".evil", "http://app.example.com", good + ":444", good + "/"]
        for origin in bad:
            answer = await gateway.http.get("/v1/workflows", headers={"Origin": origin})
            assert "access-control-allow-origin" not in answer.headers
            async with gateway.socket(hello=False, origin=origin) as wire:
                assert await wire.closed() == 4503
        async with gateway.socket(origin=good):
            pass
