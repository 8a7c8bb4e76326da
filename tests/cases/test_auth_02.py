"""A credential that has ended renews nothing, is not tried again, and one renewal is under way at a time.

The symptom: a refresh with an expired token set the session's end to never; a client went on connecting with a dead
token; and a refresh that was under way while the socket was made anew doubled itself.
"""

import asyncio
from typing import Any

import pytest

from tests.support.cable import cable
from tests.support.gateway import RunningGateway, token
from tests.support.waiting import wait_until
from towline.protocol.client import Client
from towline.protocol.errors import ProblemError


@pytest.mark.parametrize("bad", [token(ttl_s=-60), token(ttl_s=-3600 * 24), "nonsense", ""])
async def test_a_refresh_with_what_is_no_good_ends_the_socket(gateway: RunningGateway, bad: str) -> None:
    async with gateway.socket(token(ttl_s=600)) as wire:
        await wire.send(op="auth", id="a", token=bad)
        assert await wire.closed() == 4501
    assert "authenticated" not in {frame["op"] for frame in wire.frames}


async def test_a_refresh_that_is_none_costs_nothing_and_gives_nothing(gateway: RunningGateway) -> None:
    async with gateway.socket(token(ttl_s=2)) as wire:
        await wire.send(op="auth", id="a")
        assert (await wire.until("problem"))["problem"]["code"] == "bad_request"
        await wire.send(op="auth", id="b", token=token(ttl_s=1))  # good, and ends sooner
        told = await wire.until("authenticated")
        assert await wire.closed() == 4005
    assert told["expires_at"] <= wire.frames[0]["expires_at"]


async def test_a_token_that_ended_is_tried_no_more(gateway: RunningGateway) -> None:
    run = await gateway.start()
    with cable(gateway.url) as line:
        async with Client(line.url, token(ttl_s=1)) as towline:
            with pytest.raises(ProblemError) as ended:
                await _all(towline.events(run))
        assert ended.value.problem.code == "unauthenticated"
        assert line.taken == 1
        async with Client(line.url, token(ttl_s=-60)) as towline:
            with pytest.raises(ProblemError) as refused:
                await _all(towline.events(run))
        assert refused.value.problem.code == "unauthenticated"
        assert line.taken == 2


async def test_one_renewal_is_under_way_at_a_time(gateway: RunningGateway) -> None:
    run = await gateway.start()
    hand = await gateway.hold(run)
    sockets = gateway.server._app.state.sockets
    may_answer = asyncio.Event()
    calls: list[int] = []

    async def new_token() -> str:
        calls.append(len(calls))
        await may_answer.wait()
        return token()

    with cable(gateway.url) as line:
        async with Client(line.url, token(ttl_s=3), new_token=new_token) as towline:
            reading = asyncio.create_task(_all(towline.events(run)))
            await wait_until(lambda: calls, "the client to be asked for a new credential")
            line.cut()  # while the answer is awaited
            await wait_until(lambda: line.taken == 2 and len(sockets) == 1, "another socket, which is told the same")
            await wait_until(lambda: len(sockets) == 0, "the end of the credential")
            may_answer.set()
            await hand.complete()
            assert await reading == [1, 2, 3]
    assert calls == [0]


async def test_a_renewal_that_fails_in_time_is_tried_again_at_the_end(gateway: RunningGateway) -> None:
    run = await gateway.start()
    hand = await gateway.hold(run)
    calls: list[int] = []

    async def new_token() -> str:
        calls.append(len(calls))
        if len(calls) == 1:
            raise ConnectionError("the issuer is away")
        return token()

    async with Client(gateway.url, token(ttl_s=2), new_token=new_token) as towline:
        reading = asyncio.create_task(_all(towline.events(run)))
        await wait_until(lambda: len(calls) == 2, "the client to be asked again")
        await hand.complete()
        assert await reading == [1, 2, 3]


async def _all(stream: Any) -> list[int]:
    return [event.seq async for event in stream]
