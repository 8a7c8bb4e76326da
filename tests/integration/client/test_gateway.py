"""The client against a real gateway and a real store: resume, back-pressure, credentials, what a run ends with."""

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.gateway import Hand, RunningGateway, running_gateway, token
from tests.support.waiting import wait_until
from towline.protocol.client.actions import Placed
from towline.protocol.client.connect import Client
from towline.protocol.client.failures import PlaceLost
from towline.protocol.errors import ProblemError

SEED = 7


@pytest.fixture
async def gateway(redis_url: str, tmp_path: Path) -> AsyncIterator[RunningGateway]:
    async with running_gateway(redis_url, tmp_path) as running:
        yield running


@pytest.fixture
async def client(gateway: RunningGateway) -> AsyncIterator[Client]:
    async with Client(gateway.url, token()) as ana:
        yield ana


async def write(hand: Hand, notes: int, dice: random.Random) -> None:
    while notes > 0:
        count = min(notes, dice.randint(1, 5))
        await hand.note(count=count)
        notes -= count
        await asyncio.sleep(0)


async def test_cut_again_and_again_it_hands_out_every_event_once(gateway: RunningGateway, client: Client) -> None:
    dice = random.Random(SEED)
    run = await gateway.start()
    hand = await gateway.hold(run)
    seqs, cuts, next_cut = list[int](), 0, 5

    async def watch() -> None:
        nonlocal cuts, next_cut
        async for event in client.events(run):
            seqs.append(event.seq)
            if len(seqs) >= next_cut and cuts < 20:
                client.drop_link()
                cuts, next_cut = cuts + 1, len(seqs) + dice.randint(0, 20)

    watching = asyncio.create_task(watch())
    await write(hand, 300, dice)
    last = await hand.complete()
    await asyncio.wait_for(watching, 60)
    assert cuts > 10
    assert seqs == list(range(1, last.cursor.seq + 1))


async def test_a_slow_reader_is_held_and_goes_on_from_the_log(gateway: RunningGateway, client: Client) -> None:
    run = await gateway.start()
    hand = await gateway.hold(run)
    stream = client.events(run)
    seqs = [(await anext(stream)).seq]
    for _ in range(60):
        await hand.note(count=95)
    last = await hand.complete()
    await wait_until(lambda: stream._is_held, "the subscription to be held")
    assert len(stream._backlog) < 4_000
    seqs += [event.seq async for event in stream]
    assert seqs == list(range(1, last.cursor.seq + 1))


async def test_a_client_that_comes_back_goes_on_from_its_cursor(gateway: RunningGateway) -> None:
    run = await gateway.start()
    hand = await gateway.hold(run)
    await hand.note(count=10)
    async with Client(gateway.url, token()) as first:
        stream = first.events(run)
        seqs = [(await anext(stream)).seq for _ in range(7)]
        cursor = stream.cursor
    last = await hand.complete()
    async with Client(gateway.url, token()) as second:
        again = [event.seq async for event in second.events(run, cursor)]
    # Positions lie between batches, so a batch that was half taken comes again, whole: nothing is missing.
    assert again == list(range(again[0], last.cursor.seq + 1))
    assert again[0] <= seqs[-1] + 1


async def test_a_limit_is_told_or_raised(gateway: RunningGateway, client: Client) -> None:
    run = await gateway.start()
    hand = await gateway.hold(run)
    await hand.note(count=20)
    last = await hand.complete()
    with pytest.raises(PlaceLost, match="limited"):
        await anext(client.events(run, limit=5))
    placed = list[Placed]()
    seqs = [event.seq async for event in client.events(run, limit=5, on_place=placed.append)]
    assert seqs == list(range(last.cursor.seq - 4, last.cursor.seq + 1))
    assert placed[0].skipped == (1, last.cursor.seq - 5)


async def test_another_runs_cursor_is_a_reset(gateway: RunningGateway, client: Client) -> None:
    one, other = await gateway.start(), await gateway.start()
    foreign = (await client.get(other)).cursor
    with pytest.raises(PlaceLost, match="diverged"):
        await anext(client.events(one, foreign))


async def test_a_run_of_somebody_else_is_not_found(gateway: RunningGateway, client: Client) -> None:
    run = await gateway.start()
    async with Client(gateway.url, token("bob")) as bob:
        for call in (bob.get(run), anext(bob.events(run)), bob.signal(run, "nudge", {"by": 1}), bob.cancel(run)):
            with pytest.raises(ProblemError, match="not_found"):
                await call


async def test_commands_and_their_refusals(gateway: RunningGateway, client: Client) -> None:
    run = await gateway.start()
    receipt = await client.send(run, "signal", {"name": "nudge", "payload": {"by": 1}}, command_id="k1")
    assert (receipt["status"], receipt["duplicate"]) == ("accepted", False)
    again = await client.send(run, "signal", {"name": "nudge", "payload": {"by": 1}}, command_id="k1")
    assert (again["seq"], again["duplicate"]) == (receipt["seq"], True)
    with pytest.raises(ProblemError, match="idempotency_mismatch"):
        await client.send(run, "signal", {"name": "nudge", "payload": {"by": 2}}, command_id="k1")
    with pytest.raises(ProblemError, match="unsupported"):
        await client.send(run, "revise", {"instruction": "x"})
    with pytest.raises(ProblemError, match="bad_request"):
        await client.send(run, "dance")


async def test_twenty_commands_at_once_over_a_link_that_is_cut(gateway: RunningGateway, client: Client) -> None:
    run = await gateway.start()
    hand = await gateway.hold(run)
    del hand
    sending = [
        asyncio.create_task(client.send(run, "signal", {"name": "nudge", "payload": {"by": n}}, command_id=f"k{n}"))
        for n in range(20)
    ]
    for _ in range(3):
        await asyncio.sleep(0)
        client.drop_link()
    receipts = await asyncio.gather(*sending)
    assert len({receipt["seq"] for receipt in receipts}) == 20
    facts = await gateway.store.facts(run)
    assert facts.head.seq == 2 + 20, "each was accepted once"


async def test_an_ended_run_has_a_result(gateway: RunningGateway, client: Client) -> None:
    run = await gateway.start()
    hand = await gateway.hold(run)
    waiting = asyncio.create_task(client.wait(run))
    await hand.note()
    await hand.complete()
    assert (await waiting).status == "completed"
    assert await client.result(run) is None
    stream = client.events(run, "latest")
    assert [event async for event in stream] == []
    assert stream.status == "completed"


async def test_a_credential_that_ends_is_renewed_in_time(gateway: RunningGateway) -> None:
    run = await gateway.start()
    hand = await gateway.hold(run)
    asked = 0

    async def new_token() -> str:
        nonlocal asked
        asked += 1
        return token(ttl_s=3600)

    async with Client(gateway.url, token(ttl_s=2), new_token=new_token) as client:
        stream = client.events(run)
        seqs = [(await anext(stream)).seq]
        await wait_until(lambda: asked, "the server to ask for a new credential")
        await hand.note()
        await hand.complete()
        seqs += [event.seq async for event in stream]
    assert seqs == [1, 2, 3, 4]


async def test_a_credential_that_ends_without_another_says_so(gateway: RunningGateway) -> None:
    run = await gateway.start()
    async with Client(gateway.url, token(ttl_s=1)) as client:
        stream = client.events(run)
        with pytest.raises(ProblemError, match="unauthenticated"):
            async for _ in stream:
                pass


async def test_runs_are_listed_over_pages(gateway: RunningGateway, client: Client) -> None:
    made = [await gateway.start(labels={"n": str(n)}) for n in range(7)]
    found = await client.runs(limit=5)
    assert [run.id for run in found] == made[::-1][:5]
    assert [run.id for run in await client.runs(label="n:3")] == [made[3]]
    assert await client.runs(status="failed") == []


async def test_a_start_with_the_same_key_is_the_same_run(gateway: RunningGateway, client: Client) -> None:
    await gateway.announce()
    first, second = await asyncio.gather(client.start("toy", {}, key="k"), client.start("toy", {}, key="k"))
    assert first.id == second.id
    assert (await client.start("toy", {}, id="my-own")).id == (await client.start("toy", {}, id="my-own")).id
    with pytest.raises(ProblemError, match="idempotency_mismatch"):
        await client.start("toy", {"more": 1}, key="k")
