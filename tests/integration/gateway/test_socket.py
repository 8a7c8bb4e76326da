"""The socket: hello, the cursor table, events live and stored, commands, closes."""

import pytest

from tests.support.gateway import RunningGateway, token

pytestmark = pytest.mark.store


async def test_a_run_is_watched_from_its_beginning_to_its_end(gateway: RunningGateway) -> None:
    run = await gateway.start()
    hand = await gateway.hold(run)
    await hand.note(count=5)
    async with gateway.socket() as wire:
        subscribed = await wire.subscribe(run, after="0")
        assert subscribed["recovery"] == "resumed"
        assert subscribed["cursor"] == "0"
        assert subscribed["head"] == subscribed["projection"]["last_seq"] == 7
        assert subscribed["projection"]["role"] == "owner"
        await wire.until("live")
        await hand.note("later", count=3)
        await hand.complete()
        end = await wire.until("end")
        assert end["status"] == "completed"
        assert [event["seq"] for event in wire.events()] == list(range(1, 12))
        live = [frame["op"] for frame in wire.frames].index("live")
        frames = [(i < live, frame["replay"]) for i, frame in enumerate(wire.frames) if frame["op"] == "events"]
        assert all(before == replay for before, replay in frames)


async def test_an_expired_token_does_not_greet(gateway: RunningGateway) -> None:
    async with gateway.socket(hello=False) as wire:
        await wire.send(op="hello", token=token(ttl_s=-5))
        assert await wire.closed() == 4501
        assert wire.frames[-1]["op"] == "bye"
