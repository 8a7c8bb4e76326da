"""The socket as a peer meets it: greeting, many runs at once, heartbeats, credentials that end, and every close."""

import asyncio
import base64
import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateway import Hand, RunningGateway, running_gateway, token
from tests.support.waiting import wait_until
from towline.protocol.limits import CLIENT_FRAME_BYTES, EVENTS_FRAME_BYTES

pytestmark = pytest.mark.store


async def test_a_run_is_watched_from_its_beginning_to_its_end(gateway: RunningGateway) -> None:
    run = await gateway.start()
    hand = await gateway.hold(run)
    await hand.note(count=5)
    async with gateway.socket() as wire:
        subscribed = await wire.subscribe(run, after="0")
        assert subscribed["projection"]["role"] == "owner"
        assert subscribed["projection"]["worker"]["id"] == "tests"
        await wire.until("live")
        await hand.note("later", count=3)
        await hand.complete()
        end = await wire.until("end")
        assert end["status"] == "completed"
        assert [event["seq"] for event in wire.events()] == list(range(1, 12))
        live = [frame["op"] for frame in wire.frames].index("live")
        frames = [(i < live, frame["replay"]) for i, frame in enumerate(wire.frames) if frame["op"] == "events"]
        assert all(before == replay for before, replay in frames)
        await wire.subscribe(run)
        assert [(await wire.next())["op"] for _ in range(2)] == ["live", "end"]
    await wait_until(lambda: gateway.services.hub.followed == 0, "nothing to be followed any more")


async def test_the_bytes_of_an_event_are_those_of_the_log(gateway: RunningGateway) -> None:
    run = await gateway.start()
    hand = await gateway.hold(run)
    await hand.note("a text with   spaces, ü and \\u0041")
    (entry,) = await gateway.services.find_entries(run, frozenset({"progress.noted"}))
    async with gateway.socket() as wire:
        await wire.send(op="subscribe", id="s", run=run, after="0")
        texts = [await wire.connection.recv(decode=False) for _ in range(2)]
    page = await gateway.http.get(f"/v1/runs/{run}/events")
    assert entry.raw in texts[1]
    assert entry.raw in page.content


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        ({"op": "hello"}, 4501),
        ({"op": "hello", "token": "nope"}, 4501),
        ({"op": "ping"}, 4500),
        ({"x": 1}, 4500),
    ],
)
async def test_a_greeting_that_is_refused(gateway: RunningGateway, frame: dict[str, Any], code: int) -> None:
    async with gateway.socket(hello=False) as wire:
        await wire.send(**frame)
        assert await wire.closed() == code
        assert (wire.frames[-1]["op"], wire.frames[-1]["code"]) == ("bye", code)


async def test_without_our_subprotocol_there_is_no_socket(gateway: RunningGateway) -> None:
    for offered in (None, ["chat"]):
        async with gateway.socket(hello=False, subprotocols=offered) as wire:
            assert await wire.closed() == 4506


async def test_silence_is_closed(redis_url: str, tmp_path: Path) -> None:
    async with running_gateway(redis_url, tmp_path, hello_ms=50) as gateway, gateway.socket(hello=False) as wire:
        assert await wire.closed() == 4501


async def test_a_credential_in_the_upgrade_is_enough(gateway: RunningGateway) -> None:
    async with gateway.socket(hello=False, additional_headers={"Authorization": f"Bearer {token()}"}) as wire:
        welcome = await wire.until("welcome")
        assert welcome["protocol"] == 1
        assert welcome["limits"]["client_frame_bytes"] == CLIENT_FRAME_BYTES
    async with gateway.socket(hello=False, additional_headers={"Authorization": "Basic YTpi"}) as wire:
        assert await wire.closed() == 4501


async def test_what_is_too_large_or_no_text_closes(gateway: RunningGateway) -> None:
    async with gateway.socket() as wire:
        await wire.send(op="ping", id="p", pad="x" * (CLIENT_FRAME_BYTES - 100))
        assert (await wire.until("pong"))["id"] == "p"
        await wire.connection.send("x" * (CLIENT_FRAME_BYTES + 1))
        assert await wire.closed() == 1009
    async with gateway.socket() as wire:
        await wire.connection.send(b"{}")
        assert await wire.closed() == 4500
    async with gateway.socket() as wire:
        await wire.connection.send(b'{"op":"\xff"}', text=True)
        assert await wire.closed() == 1007
    async with gateway.socket() as wire:
        await wire.connection.send("not json")
        assert await wire.closed() == 4500


async def test_compression_is_not_negotiated(gateway: RunningGateway) -> None:
    async with gateway.socket(compression="deflate") as wire:
        assert wire.connection.protocol.extensions == []


async def test_problems_leave_the_socket_open(gateway: RunningGateway) -> None:
    async with gateway.socket() as wire:
        refused: list[tuple[dict[str, Any], str]] = [
            ({"op": "nope", "id": "1"}, "op"),
            ({"op": "subscribe", "id": "2", "run": "a b"}, "run"),
            ({"op": "subscribe", "id": "3", "run": "r", "limit": 0}, "limit"),
            ({"op": "command", "id": "4", "run": "r"}, "type"),
        ]
        for frame, field in refused:
            await wire.send(**frame)
            answer = await wire.until("problem", id=frame["id"])
            assert (answer["problem"]["code"], answer["problem"]["field"]) == ("bad_request", field)
        await wire.send(op="unsubscribe", id="u", run="never")
        assert await wire.until("unsubscribed") == {
            "op": "unsubscribed",
            "run": "never",
            "code": "requested",
            "id": "u",
        }
        await wire.send(op="ping")
        assert await wire.until("pong") == {"op": "pong"}


async def test_a_second_subscription_replaces_the_first(gateway: RunningGateway) -> None:
    run = await gateway.start()
    hand = await gateway.hold(run)
    async with gateway.socket() as wire:
        await wire.subscribe(run, after="0")
        await wire.until("live")
        await wire.send(op="subscribe", id="second", run=run, after="0")
        assert (await wire.next())["code"] == "replaced"
        assert (await wire.next())["id"] == "second"
        await wire.until("live")
        wire.frames.clear()
        await hand.note()
        await wire.until("events")
        await wire.send(op="unsubscribe", id="u", run=run)
        assert (await wire.until("unsubscribed"))["id"] == "u"
        await hand.note("unheard")
        await wire.send(op="ping")
        await wire.until("pong")
        assert [event["seq"] for event in wire.events()] == [3]
    assert gateway.services.hub.followed == 0


async def test_one_socket_carries_many_runs(gateway: RunningGateway) -> None:
    runs = [await gateway.start() for _ in range(12)]
    hands = [await gateway.hold(run) for run in runs]
    async with gateway.socket() as wire:
        for run in runs:
            await wire.send(op="subscribe", id=run, run=run, after="0")

        async def write(hand: Hand) -> None:
            for _ in range(10):
                await hand.note()
            await hand.complete()

        writing = asyncio.gather(*(write(hand) for hand in hands))
        for _ in runs:
            await wire.until("end")
        await writing
    for run in runs:
        mine = [f for f in wire.frames if f["op"] == "events" and f["run"] == run]
        assert [e["seq"] for f in mine for e in f["events"]] == list(range(1, 14))
        assert [f["op"] for f in wire.frames if f.get("run") == run and f["op"] != "events"] == [
            "subscribed",
            "live",
            "end",
        ]


async def test_quiet_subscriptions_beat(redis_url: str, tmp_path: Path) -> None:
    async with running_gateway(redis_url, tmp_path, heartbeat_ms=60) as gateway:
        run = await gateway.start()
        await gateway.hold(run)
        async with gateway.socket() as wire:
            await wire.subscribe(run)
            beat = await wire.until("heartbeat", heads={run: 2})
            assert set(beat["workers"]) == {run}


async def test_a_credential_is_renewed_or_ends(gateway: RunningGateway) -> None:
    async with gateway.socket(token(ttl_s=2)) as wire:
        due = await wire.until("auth_required")
        assert due["deadline"].endswith("Z")
        await wire.send(op="auth", id="a", token=token(ttl_s=3600))
        assert (await wire.until("authenticated"))["subject"] == "ana"
        await wire.send(op="auth", id="b", token=token("bob"))
        assert await wire.closed() == 4501
    async with gateway.socket(token(ttl_s=1)) as wire:
        assert await wire.closed() == 4005


async def test_a_weaker_credential_loses_what_it_may_not_read(gateway: RunningGateway) -> None:
    run = await gateway.start()
    async with gateway.socket(token("root", roles=("operator",))) as wire:
        await wire.subscribe(run)
        await wire.until("live")
        await wire.send(op="auth", id="a", token=token("root"))
        assert (await wire.until("unsubscribed"))["code"] == "revoked"
        await wire.send(op="subscribe", id="s", run=run)
        assert (await wire.until("problem"))["problem"]["code"] == "not_found"


async def test_a_drain_says_goodbye(redis_url: str, tmp_path: Path) -> None:
    async with running_gateway(redis_url, tmp_path) as gateway:
        run = await gateway.start()
        async with gateway.socket() as wire:
            await wire.subscribe(run)
            waiting = asyncio.create_task(
                gateway.http.get(f"/v1/runs/{run}/events", params={"after": "latest", "wait_ms": 30_000})
            )
            await wait_until(lambda: len(gateway.services._leavers) == 1, "the page to wait")
            gateway.server.should_exit = True
            assert await wire.closed() == 4000
            bye = wire.frames[-1]
            assert (bye["op"], bye["code"]) == ("bye", 4000)
            assert 0 <= bye["retry_ms"] <= 1000
            assert (await waiting).json()["events"] == []


async def test_a_slow_reader_holds_nobody_up_and_misses_nothing(gateway: RunningGateway) -> None:
    run = await gateway.start()
    hand = await gateway.hold(run)
    async with gateway.socket(max_queue=1, ping_interval=None) as slow, gateway.socket() as quick:
        await slow.subscribe(run, after="0")
        await quick.subscribe(run, after="0")
        for _ in range(120):
            await hand.note("x" * 3500, count=20)
        head = str((await gateway.store.heads([run]))[run])
        await quick.until("events", cursor=head)
        protocols: Any = gateway.server.server_state.connections
        blocked = [p for p in protocols if hasattr(p, "writable") and not p.writable.is_set()]
        assert len(blocked) == 1, "the slow one was never slow"
        assert blocked[0].transport.get_write_buffer_size() < 4 * EVENTS_FRAME_BYTES
        await slow.until("events", cursor=head)
        assert [event["seq"] for event in slow.events()] == list(range(1, 2403))


async def test_who_takes_nothing_at_all_is_closed(gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("towline.gateway.outbound.STALL_S", 0.1)
    run = await gateway.start()
    hand = await gateway.hold(run)
    async with gateway.socket(max_queue=1, ping_interval=None) as stuck:
        await stuck.subscribe(run, after="0")
        for _ in range(120):
            await hand.note("x" * 3500, count=20)
        await wait_until(lambda: gateway.services.hub.followed == 0, "the stuck one to be given up")
        assert await stuck.closed() == 4008


async def test_the_handshake_speaks_http_to_strangers(gateway: RunningGateway) -> None:
    key = base64.b64encode(os.urandom(16)).decode()
    assert (await gateway.http.get("/v1/socket")).status_code == 404
    bad = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Key": key, "Sec-WebSocket-Version": "8"}
    assert (await gateway.http.get("/v1/socket", headers=bad)).status_code in (400, 426)
