"""Inbox, watch feeds and published values: what waits for whom, told once a second, and to nobody else."""

import asyncio
import base64
from typing import Any

import msgspec
import pytest

from tests.integration.gateway.test_commands import ask
from tests.support.gateway import Hand, RunningGateway
from tests.support.waiting import wait_until
from towline.protocol import queries
from towline.protocol.events import Audience
from towline.protocol.inbox import blocked, whom
from towline.protocol.store.parking import park
from towline.protocol.values import Blocker

pytestmark = pytest.mark.store

OPERATOR: Any = {"roles": ("user", "operator")}


async def ask_in_inbox(hand: Hand, run: str, request: str = "apr_1", **more: Any) -> str:
    """Asks, and puts the question into the inboxes of those it asks."""
    digest = await ask(hand, request, **more)
    await hand.write(inbox_add={request: whom(more.get("deciders", ["role:owner"]), "ana")})
    return digest


async def items(gateway: RunningGateway, subject: str = "ana", query: str = "", **claims: Any) -> list[dict[str, Any]]:
    answer = await gateway.http.get(f"/v1/inbox{query}", headers=gateway.as_(subject, **claims))
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["items"]
    return found


async def test_a_question_waits_for_whom_it_asks_until_it_is_decided(gateway: RunningGateway) -> None:
    run = await gateway.start(headline="Check it")
    hand = await gateway.hold(run)
    digest = await ask_in_inbox(hand, run, deciders=["user:bob", "group:ops", "role:owner"], quorum=2)
    (item,) = await items(gateway)
    assert item["kind"] == "approval"
    assert item["run"] == {
        "id": run, "headline": "Check it", "workflow": "toy", "thread": None, "owner": "ana", "status": "running",
    }  # fmt: skip
    assert item["request"]["request"]["digest"] == digest
    assert (item["request"]["id"], item["since"], item["expires_at"]) == ("apr_1", item["request"]["since"], None)
    others: list[tuple[str, dict[str, Any]]] = [("bob", {}), ("carol", {"groups": ["ops"]})]
    for subject, claims in others:
        (theirs,) = await items(gateway, subject, **claims)
        assert theirs["request"]["request"]["digest"] == digest
    assert await items(gateway, "carol") == []
    assert await items(gateway, "dora", groups=["other"]) == []
    assert await items(gateway, "root", **OPERATOR) == [], "they may read it, but are not asked"
    for subject in ("ana", "bob"):
        decided = await gateway.http.post(
            f"/v1/runs/{run}/commands",
            json={"type": "approve", "data": {"request": "apr_1", "digest": digest}},
            headers=gateway.as_(subject),
        )
        assert decided.status_code == 200, decided.text
    assert await items(gateway) == []


async def test_who_is_excluded_or_may_not_decide_finds_nothing(gateway: RunningGateway) -> None:
    run = await gateway.start()
    await ask_in_inbox(await gateway.hold(run), run, deciders=["role:owner", "role:operator"], exclude=["role:owner"])
    assert await items(gateway) == []
    assert len(await items(gateway, "root", **OPERATOR)) == 1
    assert await items(gateway, "root", roles=("operator", "worker")) == []
    assert await items(gateway, "root", **OPERATOR, runs=["other-*"]) == []


async def test_a_blocked_run_waits_for_its_owner_and_the_operators(gateway: RunningGateway) -> None:
    run = await gateway.start()
    store = gateway.store
    claimed: Any = await store.claim(run, nonce="0" * 16, holder="w", version="1", ttl_ms=6_000)
    blocker = Blocker(
        id="poison:x", kind="poison", title="It dies", since="2026-01-01T00:00:00.000Z", by="w", stops=True,
        remedies=[{"type": "cancel"}], detail={"crashes": 5},
    )  # fmt: skip
    await park(store, claimed, "default", blocker, seen=claimed.cursor)
    (item,) = await items(gateway)
    assert (item["kind"], item["request"], item["blocker"]["id"]) == ("blocker", None, "poison:x")
    assert item["blocker"]["detail"] is None
    (seen,) = await items(gateway, "root", **OPERATOR)
    assert seen["blocker"]["detail"] == {"crashes": 5}
    assert blocked("poison:x", "ana") == {"blocker:poison:x": ["user:ana", "role:operator"]}
    await gateway.http.post(f"/v1/runs/{run}/cancel")
    assert await items(gateway) == []


async def test_pages_are_stable_and_bad_ones_are_refused(gateway: RunningGateway) -> None:
    run = await gateway.start()
    hand = await gateway.hold(run)
    for n in range(5):
        await ask_in_inbox(hand, run, f"apr_{n}")
    seen: list[str] = []
    page = ""
    while True:
        answer = (await gateway.http.get(f"/v1/inbox?limit=2{page}")).json()
        seen += [item["request"]["id"] for item in answer["items"]]
        if answer["next_page"] is None:
            break
        page = f"&page={answer['next_page']}"
        if len(seen) == 2:
            await ask_in_inbox(hand, run, "apr_new")
    assert sorted(seen) == [f"apr_{n}" for n in range(5)]
    for bad in ("page=x", "page=%20", "limit=0", "limit=201", "wait_ms=-1", "wait_ms=30001"):
        refused = await gateway.http.get(f"/v1/inbox?{bad}")
        assert (refused.status_code, refused.json()["code"]) == (400, "bad_request")
    narrow = await gateway.http.get("/v1/inbox", headers=gateway.as_("ana", verbs=["command"]))
    assert narrow.json()["code"] == "forbidden"


async def test_who_waits_hears_at_once_and_only_of_what_changed(gateway: RunningGateway) -> None:
    run = await gateway.start()
    hand = await gateway.hold(run)
    waiting = asyncio.create_task(gateway.http.get("/v1/inbox?wait_ms=20000"))
    await wait_until(lambda: bool(gateway.services.feeds._listeners), "somebody to listen")
    await ask_in_inbox(hand, run)
    first = await waiting
    assert [item["request"]["id"] for item in first.json()["items"]] == ["apr_1"]
    again = await gateway.http.get("/v1/inbox?wait_ms=1", headers={"If-None-Match": first.headers["etag"]})
    assert again.status_code == 304
    assert (await gateway.http.get("/v1/inbox?wait_ms=20000")).json() == first.json()


async def test_a_feed_of_runs_hints_at_what_the_listener_may_read(gateway: RunningGateway) -> None:
    async with gateway.socket() as mine, gateway.socket() as filtered:
        await mine.send(op="watch", id="w", feed="runs")
        assert set(await mine.until("watching")) == {"op", "id", "cursor"}
        await filtered.send(op="watch", id="f", feed="runs", filter={"status": "completed"})
        await filtered.until("watching")
        await gateway.announce()
        foreign = await gateway.http.post("/v1/runs", json={"workflow": "toy", "input": {}}, headers=gateway.as_("bob"))
        assert foreign.status_code == 201
        run = await gateway.start()
        hint = await mine.until("changed")
        assert (hint["id"], hint["run"], hint["status"], hint["open_requests"]) == ("w", run, "queued", 0)
        hand = await gateway.hold(run)
        await ask(hand)
        await hand.note(count=5)
        while (hint := await mine.until("changed", run=run))["last_seq"] < 8:
            pass
        assert (hint["status"], hint["open_requests"]) == ("running", 1)
        hints = [frame for frame in mine.frames if frame["op"] == "changed"]
        assert {frame["run"] for frame in hints} == {run}
        assert len(hints) <= 4, "several changes within a second are one hint"
        await hand.complete()
        assert (await filtered.until("changed"))["status"] == "completed"
        assert [frame["run"] for frame in filtered.frames if frame["op"] == "changed"] == [run]
        for bad in ({"colour": "red"}, {"status": "sleepy"}, {"status": 4}, "x"):
            await mine.send(op="watch", id="bad", feed="runs", filter=bad)
            assert (await mine.until("problem", id="bad"))["problem"]["code"] == "bad_request"


async def test_a_feed_of_the_inbox_hints_when_something_waits_and_when_it_is_gone(gateway: RunningGateway) -> None:
    async with gateway.socket() as mine:
        await mine.send(op="watch", id="i", feed="inbox")
        await mine.until("watching")
        quiet = await gateway.start()
        await (await gateway.hold(quiet)).note()
        run = await gateway.start()
        digest = await ask(await gateway.hold(run))
        assert (await mine.until("changed"))["open_requests"] == 1
        await gateway.http.post(
            f"/v1/runs/{run}/commands", json={"type": "approve", "data": {"request": "apr_1", "digest": digest}}
        )
        assert (await mine.until("changed"))["open_requests"] == 0
        assert {frame["run"] for frame in mine.frames if frame["op"] == "changed"} == {run}
    await wait_until(lambda: not gateway.services.feeds._listeners, "nobody to listen")


async def test_a_second_watch_of_a_feed_replaces_the_first(gateway: RunningGateway) -> None:
    async with gateway.socket() as mine:
        for name in ("one", "two"):
            await mine.send(op="watch", id=name, feed="runs")
            await mine.until("watching")
        await wait_until(lambda: len(gateway.services.feeds._listeners) == 1, "one to listen")
        await gateway.start()
        assert (await mine.until("changed"))["id"] == "two"


async def test_a_published_value_is_read_by_its_audience(gateway: RunningGateway) -> None:
    run = await gateway.start()
    hand = await gateway.hold(run)
    at = "2026-01-01T00:00:00.000Z"
    audiences: dict[str, Audience] = {"all": "viewer", "few": "collaborator", "ours": "operator"}
    values = {
        queries.field_of(name): queries.encode(queries.PublishedValue(msgspec.Raw(b'{"n":1}'), audience, at))
        for name, audience in audiences.items()
    }
    await hand.write(side=values)
    before = (await gateway.store.facts(run)).head
    viewer = await gateway.http.put(f"/v1/runs/{run}/grants/user:vera", json={"role": "viewer"})
    assert viewer.status_code < 300, viewer.text
    for subject, claims, readable in (
        ("vera", {}, {"all"}),
        ("ana", {}, {"all", "few"}),
        ("root", OPERATOR, {"all", "few", "ours"}),
    ):
        for name in ("all", "few", "ours", "never"):
            answer = await gateway.http.get(f"/v1/runs/{run}/queries/{name}", headers=gateway.as_(subject, **claims))
            if name in readable:
                assert answer.json()["value"] == {"n": 1}
                assert (answer.json()["name"], answer.json()["published_at"]) == (name, at)
            else:
                assert (answer.status_code, answer.json()["code"]) == (404, "not_found"), (subject, name)
    foreign = await gateway.http.get(f"/v1/runs/{run}/queries/all", headers=gateway.as_("eve"))
    assert foreign.json()["code"] == "not_found"
    assert (await gateway.http.get(f"/v1/runs/{run}/queries/a%20b")).json()["code"] == "bad_request"
    assert (await gateway.store.facts(run)).head.seq == before.seq + 1, "only the grant: a query writes nothing"


async def test_pause_and_resume_through_the_gateway(gateway: RunningGateway) -> None:
    run = await gateway.start()
    hand = await gateway.hold(run)
    shown = (await gateway.http.get(f"/v1/runs/{run}")).json()
    assert {"type": "pause"} in shown["actions"]
    receipt = await gateway.http.post(
        f"/v1/runs/{run}/commands", json={"type": "pause", "data": {"reason": "lunch"}, "command_id": "p"}
    )
    assert (receipt.status_code, receipt.json()["status"], receipt.json()["applies"]) == (200, "applied", "now")
    shown = (await gateway.http.get(f"/v1/runs/{run}")).json()
    assert (shown["status"], shown["pausing"]) == ("running", True)
    assert {"type": "resume"} in shown["actions"]
    again = await gateway.http.get(f"/v1/runs/{run}/commands/p")
    assert again.json()["status"] == "applied"
    await gateway.http.post(f"/v1/runs/{run}/commands", json={"type": "resume"})
    assert (await gateway.http.get(f"/v1/runs/{run}")).json()["pausing"] is False
    viewer = await gateway.http.put(f"/v1/runs/{run}/grants/user:vera", json={"role": "viewer"})
    assert viewer.status_code < 300
    refused = await gateway.http.post(f"/v1/runs/{run}/commands", json={"type": "pause"}, headers=gateway.as_("vera"))
    assert refused.json()["code"] == "forbidden"
    await hand.complete()
    late = await gateway.http.post(f"/v1/runs/{run}/commands", json={"type": "resume"})
    assert late.json()["code"] == "run_closed"


async def test_who_owns_by_grant_is_asked_as_the_starter_is(gateway: RunningGateway) -> None:
    run = await gateway.start(grants={"user:olga": "owner", "user:vic": "viewer"})
    other = await gateway.start()
    await ask_in_inbox(await gateway.hold(run), run)
    await ask_in_inbox(await gateway.hold(other), other)
    assert [item["run"]["id"] for item in await items(gateway, "olga")] == [run]
    assert await items(gateway, "vic") == []
    await gateway.http.put(f"/v1/runs/{run}/grants/group:ops", json={"role": "owner"})
    assert [item["run"]["id"] for item in await items(gateway, "otto", groups=["ops"])] == [run]
    await gateway.http.delete(f"/v1/runs/{run}/grants/user:olga")
    assert await items(gateway, "olga") == []


async def test_a_page_tells_nothing_of_runs_that_are_not_the_callers(gateway: RunningGateway) -> None:
    for _ in range(6):
        run = await gateway.start()
        await ask_in_inbox(await gateway.hold(run), run, deciders=["role:collaborator"])
    answer = await gateway.http.get("/v1/inbox?limit=1", headers=gateway.as_("eve"))
    page = answer.json()["next_page"]
    assert answer.json()["items"] == []
    assert page is not None
    assert b"run_" not in base64.urlsafe_b64decode(page + "=" * (-len(page) % 4))
    assert (await gateway.http.get(f"/v1/inbox?page={page}", headers=gateway.as_("eve"))).json()["items"] == []
    for forged in (page[:-4], page[::-1], base64.urlsafe_b64encode(b"1|run|apr").decode(), "x", "%00", "%C3%A9"):
        answer = await gateway.http.get(f"/v1/inbox?page={forged}", headers=gateway.as_("eve"))
        assert (answer.status_code, answer.json()["field"]) == (400, "page"), forged
