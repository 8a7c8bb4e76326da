"""The store dies under a gateway and comes back: watchers go on where they were, callers are told to try again."""

import asyncio
from pathlib import Path

import pytest

from tests.support.gateway import running_gateway
from tests.support.server import StoreServer
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.store, pytest.mark.processes]


async def test_a_store_that_comes_back_is_waited_for(tmp_path: Path) -> None:
    with StoreServer(tmp_path / "store") as server:
        async with running_gateway(server.url, tmp_path) as gateway:
            run = await gateway.start()
            hand = await gateway.hold(run)
            async with gateway.socket() as wire:
                await wire.subscribe(run, after="0")
                await wire.until("live")
                for round_ in range(2):
                    await asyncio.to_thread(server.kill)
                    answer = await gateway.http.get("/readyz")
                    assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
                    assert answer.headers["retry-after"] == "1"
                    answer = await gateway.http.get(f"/v1/runs/{run}")
                    assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
                    await wire.send(op="command", id="c", run=run, type="cancel", command_id=f"k{round_}", data={})
                    receipt = await wire.until("receipt")
                    assert (receipt["status"], receipt["problem"]["code"]) == ("refused", "unavailable")
                    async with gateway.socket() as late:
                        await late.send(op="subscribe", id="s", run=run)
                        assert (await late.until("problem"))["problem"]["code"] == "unavailable"
                    await asyncio.to_thread(server.start)

                    async def is_ready() -> bool:
                        return (await gateway.http.get("/readyz")).status_code == 200

                    await wait_until(is_ready, "the gateway to be ready again")
                    await hand.note("after the outage", count=3)
                    await wire.until("events", cursor=str((await gateway.store.heads([run]))[run]))
                await hand.complete()
                await wire.until("end")
            assert [event["seq"] for event in wire.events()] == list(range(1, 10))
