"""Limits in a running gateway: one more than allowed gets the defined answer, and a neighbour does not notice."""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed

from tests.support.gateway import RunningGateway, running_gateway, token
from tests.support.waiting import wait_until
from towline.gateway import admission
from towline.gateway.limits import BURST_S, Allowances
from towline.gateway.pressure import Level
from towline.protocol.limits import CLIENT_FRAME_BYTES

pytestmark = pytest.mark.store


def limited(redis_url: str, folder: Path, **limits: int) -> Any:
    return running_gateway(redis_url, folder, limits=Allowances(**limits))


async def said(gateway: RunningGateway, **frames: Any) -> tuple[int, dict[str, Any]]:
    """With what a new socket is closed: the code and the `bye`."""
    async with gateway.socket(hello=False) as wire:
        code = await wire.closed()
        assert wire.frames[-1]["op"] == "bye"
        return code, wire.frames[-1]


async def pings(gateway: RunningGateway, subject: str = "ben") -> None:
    """Somebody else, served as ever."""
    async with gateway.socket(token(subject)) as wire:
        await wire.send(op="ping", id="p")
        await wire.until("pong")


def press(gateway: RunningGateway, level: Level, monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on the gateway is pressed to this level, whatever is measured."""
    pressure = gateway.services.pressure
    monkeypatch.setattr(pressure, "receive", lambda sample: pressure.level)
    pressure.level = level


async def test_too_many_sockets_of_a_subject(redis_url: str, tmp_path: Path) -> None:
    async with limited(redis_url, tmp_path, sockets_per_subject=2) as gateway:
        async with gateway.socket(), gateway.socket() as second:
            async with gateway.socket(hello=False) as third:
                await third.send(op="hello", token=token())
                assert await third.closed() == 4505
                assert [frame["op"] for frame in third.frames] == ["bye"]
            await pings(gateway)
            await second.send(op="ping", id="p")
            await second.until("pong")
        await wait_until(lambda: gateway.services.admission.open_sockets == 0, "the sockets to have gone")
        async with gateway.socket():
            pass


async def test_too_many_sockets_at_all(redis_url: str, tmp_path: Path) -> None:
    async with limited(redis_url, tmp_path, sockets=1) as gateway, gateway.socket() as first:
        code, bye = await said(gateway)
        assert (code, bye["code"]) == (4013, 4013)
        assert bye["retry_ms"] > 0
        await first.send(op="ping", id="p")
        await first.until("pong")


async def test_silent_sockets_end_and_are_few_per_address(redis_url: str, tmp_path: Path) -> None:
    limits = Allowances(handshakes_per_address=20)
    async with (
        running_gateway(redis_url, tmp_path, limits=limits, hello_ms=3000) as gateway,
        gateway.socket() as good,
        AsyncExitStack() as stack,
    ):
        silent = [await stack.enter_async_context(gateway.socket(hello=False)) for _ in range(60)]
        codes = await asyncio.gather(*(wire.closed() for wire in silent))
        assert sorted(set(codes)) == [4029, 4501]
        assert codes.count(4501) >= 20
        await good.send(op="ping", id="p")
        await good.until("pong")
        await wait_until(lambda: gateway.services.admission._handshakes == 0, "the places to be free")


async def test_too_many_frames(redis_url: str, tmp_path: Path) -> None:
    async with limited(redis_url, tmp_path, frames_per_s=5) as gateway, gateway.socket() as wire:
        for n in range(5 * int(BURST_S) + 5):
            await wire.send(op="ping", id=str(n))
        assert await wire.closed() == 4029
        assert wire.frames[-1]["retry_ms"] > 0
        await pings(gateway)


async def test_too_many_subscriptions(redis_url: str, tmp_path: Path) -> None:
    async with limited(redis_url, tmp_path, subscriptions_per_s=1) as gateway:
        run = await gateway.start()
        async with gateway.socket() as wire:
            for _ in range(int(BURST_S)):
                await wire.subscribe(run)
            await wire.send(op="subscribe", id="more", run=run)
            why = (await wire.until("problem", id="more"))["problem"]
            assert (why["code"], why["status"]) == ("rate_limited", 429)
            assert why["retry_after_ms"] > 0
        async with gateway.socket(token("root", roles=("operator",))) as other:
            await other.subscribe(run)


async def test_a_stream_over_the_limit_heals(redis_url: str, tmp_path: Path) -> None:
    async with limited(redis_url, tmp_path, sockets_per_subject=1) as gateway:
        run = await gateway.start()
        async with gateway.socket():
            answer = await gateway.http.get(f"/v1/runs/{run}/events", headers={"Accept": "text/event-stream"})
            assert answer.status_code == 200
            assert answer.text.startswith("retry: ")
            assert '"code":4029' in answer.text


async def test_too_many_commands(redis_url: str, tmp_path: Path) -> None:
    async with limited(redis_url, tmp_path, commands_per_s=1) as gateway:
        run = await gateway.start()
        signal = {"type": "signal", "data": {"name": "nudge", "payload": {"by": 1}}}
        for _ in range(int(BURST_S)):
            assert (await gateway.http.post(f"/v1/runs/{run}/commands", json=signal)).status_code == 202
        refused = await gateway.http.post(f"/v1/runs/{run}/commands", json=signal)
        assert (refused.status_code, refused.json()["code"]) == (429, "rate_limited")
        assert int(refused.headers["retry-after"]) >= 1
        async with gateway.socket() as wire:
            await wire.send(op="command", id="c", run=run, command_id="k", **signal)
            receipt = await wire.until("receipt")
            assert (receipt["status"], receipt["problem"]["code"]) == ("refused", "rate_limited")
        root = gateway.as_("root", roles=("operator",))
        assert (await gateway.http.post(f"/v1/runs/{run}/commands", json=signal, headers=root)).status_code == 202


async def test_too_many_new_runs(redis_url: str, tmp_path: Path) -> None:
    async with limited(redis_url, tmp_path, creates_per_s=1) as gateway:
        for _ in range(int(BURST_S)):
            await gateway.start()
        body = {"workflow": "toy", "input": {}}
        refused = await gateway.http.post("/v1/runs", json=body)
        assert (refused.status_code, refused.json()["code"]) == (429, "rate_limited")
        assert refused.json()["retry_after_ms"] > 0
        assert (await gateway.http.post("/v1/runs", json=body, headers=gateway.as_("ben"))).status_code == 201
        text = (await gateway.http.get("/metrics")).text
        assert 'towline_refusals_total{code="rate_limited"} 1.0' in text


async def test_replay_beyond_the_rate_is_slowed_not_cut(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    sleep = asyncio.sleep

    async def shorter(delay_s: float) -> None:
        waited.append(delay_s)
        await sleep(0)

    async with limited(redis_url, tmp_path, replay_bytes_per_s=1000) as gateway:
        run = await gateway.start()
        hand = await gateway.hold(run)
        for _ in range(12):
            await hand.note(count=100)
        monkeypatch.setattr(admission, "_sleep", shorter)
        async with gateway.socket() as wire, gateway.socket(token("root", roles=("operator",))) as other:
            await wire.subscribe(run, after="0")
            await wire.until("live")
            assert [event["seq"] for event in wire.events()] == list(range(1, 1203))
            assert max(waited) > 1
            del waited[:]
            await other.subscribe(run, after="latest")
            await other.until("live")
            assert waited == []


@pytest.mark.parametrize("level", list(Level))
async def test_pressure_sheds_in_order(
    redis_url: str, tmp_path: Path, level: Level, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_gateway(redis_url, tmp_path) as gateway:
        run = await gateway.start()
        hand = await gateway.hold(run)
        async with gateway.socket() as wire:
            await wire.subscribe(run, after="0")
            await wire.until("live")
            press(gateway, level, monkeypatch)
            creates = await gateway.http.post("/v1/runs", json={"workflow": "toy", "input": {}})
            assert (creates.status_code == 503) is (level >= Level.CREATES)
            signal = {"type": "signal", "data": {"name": "nudge", "payload": {"by": 1}}}
            commands = await gateway.http.post(f"/v1/runs/{run}/commands", json=signal)
            assert (commands.status_code == 503) is (level >= Level.COMMANDS)
            for shed in (answer for answer in (creates, commands) if answer.status_code == 503):
                assert shed.json()["code"] == "overloaded"
                assert shed.headers["retry-after"]
            assert gateway.services.sheds_text() is (level >= Level.DELTAS)
            # What was subscribed goes on to the end, whatever presses; and ending a run is never refused.
            assert (await gateway.http.post(f"/v1/runs/{run}/cancel")).status_code == 200
            await hand.complete()
            await wire.until("end")
            await wire.send(op="subscribe", id="again", run=run)
            answer = await wire.until("problem" if level >= Level.SUBSCRIPTIONS else "subscribed", id="again")
            assert level < Level.SUBSCRIPTIONS or answer["problem"]["code"] == "overloaded"


async def test_a_replay_that_waits_too_long_is_shed_and_comes_back(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await gateway.start()
    hand = await gateway.hold(run)
    for _ in range(12):
        await hand.note(count=100)
    monkeypatch.setattr(admission, "PATIENCE_S", 0.0)
    press(gateway, Level.REPLAYS, monkeypatch)
    async with gateway.socket() as wire:
        start = await wire.subscribe(run, after="0")
        shed = await wire.until("unsubscribed")
        assert (shed["code"], shed["run"]) == ("shed", run)
        assert shed["retry_ms"] > 0
        await wire.send(op="ping", id="p")
        await wire.until("pong")  # the socket lives on
        gateway.services.pressure.level = Level.NOTHING
        cursor = next((f["cursor"] for f in reversed(wire.frames) if f["op"] == "events"), start["cursor"])
        await wire.subscribe(run, after=cursor)
        await wire.until("live")
        assert [event["seq"] for event in wire.events()] == list(range(1, 1203))


async def test_what_a_worker_needs_is_never_refused(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with limited(redis_url, tmp_path, requests=1) as gateway:
        press(gateway, Level.COMMANDS, monkeypatch)
        with gateway.services.admission.request():
            shed = await gateway.http.get("/v1/whoami")
            assert (shed.status_code, shed.json()["code"]) == (503, "overloaded")
            worker = gateway.as_("w", roles=("worker",))
            assert (await gateway.http.get("/v1/whoami", headers=worker)).status_code == 200
        assert (await gateway.http.get("/v1/whoami")).status_code == 200


async def test_two_gateways_allow_together_what_one_would(redis_url: str, tmp_path: Path) -> None:
    async with (
        limited(redis_url, tmp_path / "a", creates_per_s=1) as one,
        limited(redis_url, tmp_path / "b", creates_per_s=1) as other,
    ):
        await one.announce()
        body = {"workflow": "toy", "input": {}}
        began_s = time.monotonic()
        asked = [gateway.http.post("/v1/runs", json=body) for gateway in (one, other) for _ in range(10)]
        codes = [answer.status_code for answer in await asyncio.gather(*asked)]
        earned = time.monotonic() - began_s
        assert set(codes) == {201, 429}
        assert BURST_S <= codes.count(201) <= BURST_S + earned + 1
        for gateway in (one, other):
            answer = await gateway.http.post("/v1/runs", json=body, headers=gateway.as_("ben"))
            assert answer.status_code == 201


@pytest.mark.parametrize("proxies", [(), ("127.0.0.0/8",)])
async def test_an_address_is_the_callers_where_a_trusted_proxy_names_it(
    redis_url: str, tmp_path: Path, proxies: tuple[str, ...]
) -> None:
    limits = Allowances(creates_per_s=1, handshakes_per_address=1, address_factor=1)
    async with running_gateway(redis_url, tmp_path, limits=limits, trusted_proxies=proxies) as gateway:
        await gateway.announce()

        async def start(name: str, address: str) -> int:
            headers = {**gateway.as_(name), "X-Forwarded-For": f"192.0.2.99, {address}"}
            answer = await gateway.http.post("/v1/runs", json={"workflow": "toy", "input": {}}, headers=headers)
            return answer.status_code

        spent = await asyncio.gather(*(start(f"subject-{n}", "192.0.2.1") for n in range(int(BURST_S))))
        assert spent == [201] * int(BURST_S)
        assert await start("another", "192.0.2.2") == (201 if proxies else 429)
        async with gateway.socket(hello=False, additional_headers={"X-Forwarded-For": "192.0.2.1"}) as first:
            async with gateway.socket(hello=False, additional_headers={"X-Forwarded-For": "192.0.2.2"}) as second:
                if proxies:
                    await second.hello()
                else:
                    assert await second.closed() == 4029
            await first.hello()


async def test_metrics_tell_nothing_of_anyone(gateway: RunningGateway) -> None:
    run = await gateway.start(labels={"canary": "canary-label"})
    hand = await gateway.hold(run)
    await gateway.http.get("/v1/runs/run_canary", headers=gateway.as_("canary-subject"))
    async with gateway.socket() as wire:
        await wire.subscribe(run, after="0")
        await wire.until("live")
        await hand.note()
        await wire.until("events", replay=False)
        async with httpx.AsyncClient(base_url=gateway.url) as anyone:
            text = (await anyone.get("/metrics")).text
    lines = text.splitlines()
    for line in ("towline_sockets 1.0", "towline_subscriptions 1.0", "towline_runs_followed 1.0"):
        assert line in lines
    for line in ('towline_events_sent_total{kind="replay"} 2.0', 'towline_events_sent_total{kind="live"} 1.0'):
        assert line in lines
    (handed_on,) = [line for line in lines if line.startswith("towline_hub_lag_seconds_count ")]
    assert float(handed_on.split()[1]) >= 1
    assert not any(word in text for word in (run, "canary", "ana", "127.0.0.1"))


async def test_metrics_move_to_another_bind(redis_url: str, tmp_path: Path) -> None:
    with httpx.Client() as http:
        async with running_gateway(redis_url, tmp_path, metrics_bind=("127.0.0.1", _free_port())) as gateway:
            assert (await gateway.http.get("/metrics")).status_code == 404
            host, port = gateway.services.settings.metrics_bind or ("", 0)
            assert "towline_sockets 0.0" in (await asyncio.to_thread(http.get, f"http://{host}:{port}/metrics")).text


def _free_port() -> int:

    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


async def test_a_message_that_never_ends_and_pings_without_end(gateway: RunningGateway) -> None:
    async def fragments() -> AsyncIterator[str]:
        for _ in range(CLIENT_FRAME_BYTES // 64 + 2):
            yield "x" * 64

    async with gateway.socket() as neighbour, gateway.socket(ping_interval=None) as pinging:
        async with gateway.socket() as endless:
            with contextlib.suppress(ConnectionClosed):
                await endless.connection.send(fragments())
            assert await endless.closed() == 1009
        for _ in range(10_000):
            await pinging.connection.ping()
        await neighbour.send(op="ping", id="p")
        await neighbour.until("pong")
        await pinging.send(op="ping", id="p")
        await pinging.until("pong")  # its pings are answered by the connection and cost nobody else
