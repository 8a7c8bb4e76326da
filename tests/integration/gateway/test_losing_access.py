"""Who loses access loses it within a second on every transport, and nobody else does; no log tells a credential."""

import asyncio
import logging
from pathlib import Path

import httpx
import pytest

from tests.integration.gateway.test_commands import ask
from tests.integration.gateway.test_sse import Stream
from tests.support.gateway import RunningGateway, running_gateway, token
from tests.support.sharing import bearer, share_of, ticket_of
from tests.support.waiting import wait_until
from towline.gateway.guard import Guard

pytestmark = pytest.mark.store


async def test_a_grant_that_is_taken_ends_the_right_subscriptions_and_no_others(redis_url: str, tmp_path: Path) -> None:
    async with running_gateway(redis_url, tmp_path) as gateway, running_gateway(redis_url, tmp_path) as second:
        grants = {"user:vic": "viewer", "group:ops": "viewer"}
        run, other = await gateway.start(grants=grants), await gateway.start(grants=grants)
        hand = await gateway.hold(run)
        async with (
            second.socket(token("vic")) as vic,
            second.socket(token("vic", groups=["ops"])) as both,
            second.socket() as ana,
        ):
            for wire in (vic, both, ana):
                await wire.subscribe(run)
                await wire.until("live", run=run)
                await wire.subscribe(other)
                await wire.until("live", run=other)
            assert (await gateway.http.delete(f"/v1/runs/{run}/grants/user:vic")).status_code == 204
            assert await vic.until("unsubscribed") == {"op": "unsubscribed", "run": run, "code": "revoked"}
            await hand.note("after")
            for wire in (both, ana):
                while (await wire.until("events", run=run))["events"][-1]["type"] != "progress.noted":
                    pass
                assert "unsubscribed" not in [frame["op"] for frame in wire.frames]
            await vic.send(op="ping", id="still here")
            await vic.until("pong")
            assert not any(event["type"] == "progress.noted" for event in vic.events())
            await vic.send(op="subscribe", id="s2", run=run)
            assert (await vic.until("problem"))["problem"]["code"] == "not_found"
            await vic.send(op="command", id="c", run=run, type="cancel", command_id="k")
            assert (await vic.until("receipt"))["problem"]["code"] == "not_found"
            await (await gateway.hold(other)).note("other")
            await vic.until("events", run=other)


async def test_a_share_that_is_revoked_ends_sockets_and_streams(gateway: RunningGateway) -> None:
    run = await gateway.start()
    kept, revoked = await share_of(gateway, run), await share_of(gateway, run)
    events = await ticket_of(gateway, bearer(revoked["token"]), run=run, **{"for": "events"})
    async with gateway.socket(revoked["token"]) as ends, gateway.socket(kept["token"]) as stays:
        for wire in (ends, stays):
            await wire.subscribe(run)
            await wire.until("live")
        async with httpx.AsyncClient(base_url=gateway.url, timeout=30) as bare:
            accept = {"Accept": "text/event-stream"}
            async with bare.stream("GET", f"/v1/runs/{run}/events?ticket={events}", headers=accept) as answer:
                stream = Stream(answer)
                await stream.until("live")
                assert (await gateway.http.delete(f"/v1/runs/{run}/shares/{revoked['share']}")).status_code == 204
                assert (await stream.until("unsubscribed"))[-1][2]["code"] == "revoked"
                assert await stream.next() is None
            assert (await bare.get(f"/v1/runs/{run}/events?ticket={events}")).status_code == 404
        await ends.until("unsubscribed", code="revoked")
        await (await gateway.hold(run)).note()
        await stays.until("events")
        assert "unsubscribed" not in [frame["op"] for frame in stays.frames]


async def test_a_lower_role_is_shown_less_from_then_on(gateway: RunningGateway) -> None:
    run = await gateway.start(grants={"user:cor": "collaborator"})
    hand = await gateway.hold(run)
    async with gateway.socket(token("cor")) as wire:
        await wire.subscribe(run)
        await wire.until("live")
        await ask(hand, "apr_1")
        assert (await wire.until("events"))["events"][-1]["data"]["request"] == "apr_1"
        await gateway.http.put(f"/v1/runs/{run}/grants/user:cor", json={"role": "viewer"})
        watching = [w for watchers in gateway.services.guard._watchers.values() for w in watchers]
        await wait_until(lambda: all(w.access_version == "1" for w in watching), "the new role to be known")
        await ask(hand, "apr_2")
        while (event := (await wire.until("events"))["events"][-1])["type"] != "approval.requested":
            pass
        assert (event["data"], event["redacted"]) == (None, True)


async def test_a_refresh_that_no_longer_covers_a_run_ends_its_subscription(gateway: RunningGateway) -> None:
    one, two = await gateway.start(id="one"), await gateway.start(id="two")
    async with gateway.socket() as wire:
        for run in (one, two):
            await wire.subscribe(run)
            await wire.until("live", run=run)
        await wire.send(op="auth", id="a", token=token(runs=["on*"]))
        seen = {(await wire.next())["op"] for _ in range(2)}
        assert seen == {"authenticated", "unsubscribed"}
        assert [f["run"] for f in wire.frames if f["op"] == "unsubscribed"] == [two]
        await (await gateway.hold(one)).note()
        await wire.until("events", run=one)


async def test_a_long_poll_that_outlives_its_access_shows_nothing(gateway: RunningGateway) -> None:
    run = await gateway.start(grants={"user:vic": "viewer"})
    head = (await gateway.http.get(f"/v1/runs/{run}")).json()["cursor"]
    waiting = [
        asyncio.create_task(gateway.http.get(path, headers=gateway.as_("vic")))
        for path in (
            f"/v1/runs/{run}/events?after={head}&wait_ms=20000",
            f"/v1/runs/{run}?after={head}&wait_ms=20000",
        )
    ]
    await wait_until(lambda: gateway.services.hub.followed == 1, "both to wait")
    await gateway.http.delete(f"/v1/runs/{run}/grants/user:vic")
    assert [answer.status_code for answer in await asyncio.gather(*waiting)] == [404, 404]


async def test_a_watcher_that_could_not_be_judged_is_judged_again(gateway: RunningGateway) -> None:
    run = await gateway.start()
    tries = []

    class Watcher:
        access_version = "old"

        async def judge_again(self) -> None:
            tries.append(1)
            if len(tries) < 3:
                raise RuntimeError("the store is away")
            self.access_version = ""

    guard = Guard(gateway.store, every_s=0.001)
    watcher = Watcher()
    guard.add(run, watcher)
    for _ in range(5):
        await guard.look()
    guard.remove(run, watcher)
    assert len(tries) == 3
    await guard.look()
    assert guard._watchers == {}


async def test_no_credential_stands_in_a_log_line(gateway: RunningGateway, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    logging.getLogger("httpx").setLevel(logging.WARNING)  # the client's own words
    logging.getLogger("httpcore").setLevel(logging.WARNING)
    logging.getLogger("websockets.client").setLevel(logging.WARNING)
    run = await gateway.start()
    shared = await share_of(gateway, run)
    events = await ticket_of(gateway, run=run, **{"for": "events"})
    socket = await ticket_of(gateway, **{"for": "socket"})
    bad = token("mallory") + "broken"
    secrets = [token(), shared["token"].rpartition("~")[2], events, socket, bad, "canary-query"]
    async with httpx.AsyncClient(base_url=gateway.url) as bare:
        for text in (events, socket, bad, shared["token"]):
            await bare.get(f"/v1/runs/{run}/events", params={"ticket": text, "x": "canary-query"})
            await bare.get(f"/v1/runs/{run}", headers=bearer(text))
            async with gateway.socket(hello=False, additional_headers=bearer(text)) as wire:
                if text == shared["token"]:
                    await wire.send(op="auth", id="a", token=bad)
                assert await wire.closed() == 4501
    for text in (events, bad):
        async with gateway.socket(hello=False) as wire:
            await wire.send(op="hello", ticket=text)
            assert await wire.closed() == 4501
    await gateway.http.get(f"/v1/runs/{run}", headers=gateway.as_("eve"))
    lines = [record.getMessage() + str(record.exc_text or "") for record in caplog.records]
    assert any("denied" in line and "eve" in line for line in lines)
    assert [line for line in lines for secret in secrets if secret in line] == []
