"""What was done and whose answer was lost is not done again: events, commands, leases, new runs, steps of a worker.

The symptom: the client of the store sent a command again after a lost answer. Counters and appends happened twice,
and a worker was kept out by the lease that it had itself taken.
"""

import asyncio
import secrets
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.protocol.test_lossy_store import until_answered
from tests.support.gateway import Hand, RunningGateway, note, running_gateway
from tests.support.lab import open_lab
from tests.support.line import Line
from tests.support.waiting import wait_until
from tests.support.workers import stage
from towline.protocol.cursor import START
from towline.protocol.store.api import Claimed
from towline.workers import Context
from towline.workers.registry import Registry

LOSS = 0.2


@pytest.fixture
async def line(redis_url: str, tmp_path: Path) -> AsyncIterator[Line]:
    async with Line(tmp_path / "line", redis_url).open() as line:
        yield line


@pytest.fixture
async def gateway(line: Line, tmp_path: Path) -> AsyncIterator[RunningGateway]:
    """A gateway that reaches the store over the line."""
    async with running_gateway(line.url, tmp_path) as running:
        yield running


async def post(gateway: RunningGateway, path: str, body: dict[str, Any], **headers: str) -> dict[str, Any]:
    """As a client does that is told to try again."""
    while True:
        answer = await gateway.http.post(path, json=body, headers=headers)
        if answer.status_code != 503:
            assert answer.is_success, answer.text
            found: dict[str, Any] = answer.json()
            return found


async def test_a_thousand_events(line: Line) -> None:
    async with open_lab(line.url) as lab:
        lease, seqs = await lab.held(), list[int]()
        line.loss = LOSS
        for number in range(1, 101):
            commit = lab.commit(lease, number, *[note(f"{number - 1}/{n}") for n in range(10)])
            done = await until_answered(lambda commit=commit: lab.store.commit(commit))
            seqs += range(done.first_seq, done.cursor.seq + 1)
        assert line.lost > 10
        line.loss = 0.0
        log = await lab.log()
    assert seqs == list(range(2, 1_002))
    assert [entry.seq for entry in log] == list(range(1, 1_002))
    assert [entry.event().data["text"] for entry in log[1:]] == [f"{n // 10}/{n % 10}" for n in range(1_000)]


async def test_commands_and_new_runs(gateway: RunningGateway, line: Line) -> None:
    await gateway.announce()
    line.loss = LOSS

    async def start(number: int) -> str:
        body = {"workflow": "toy", "input": {"number": number}}
        return str((await post(gateway, "/v1/runs", body, **{"Idempotency-Key": f"key-{number}"}))["id"])

    runs = await asyncio.gather(*(start(number) for number in range(8)))
    receipts = dict[tuple[str, str], dict[str, Any]]()

    async def nudge(run: str, command_id: str) -> None:
        data = {"name": "nudge", "payload": {"by": 1}}
        body = {"type": "signal", "data": data, "command_id": command_id}
        receipts[run, command_id] = await post(gateway, f"/v1/runs/{run}/commands", body)

    await asyncio.gather(*(nudge(run, f"c{number}") for run in runs for number in range(5)))
    assert line.lost > 5
    line.loss = 0.0
    listed = (await gateway.http.get("/v1/runs", params={"limit": 200})).json()["items"]
    assert sorted(run["id"] for run in listed) == sorted(runs)
    for run in runs:
        log = [entry.event() for entry in (await gateway.store.read_log(run, START, limit=100)).entries]
        assert [event.seq for event in log] == list(range(1, 7))
        received = {event.data["command_id"]: event.seq for event in log[1:]}
        assert Counter(event.type for event in log) == {"run.created": 1, "command.received": 5}
        assert received == {f"c{number}": receipts[run, f"c{number}"]["seq"] for number in range(5)}


async def test_leases(gateway: RunningGateway, line: Line) -> None:
    runs = [await gateway.start() for _ in range(20)]
    line.loss = LOSS

    async def take(run: str) -> None:
        nonce = secrets.token_hex(8)
        claimed = await until_answered(
            lambda: gateway.store.claim(run, nonce=nonce, holder="w", version="1", ttl_ms=60_000)
        )
        assert isinstance(claimed, Claimed), "kept out by its own lease"
        hand = Hand(gateway.store, claimed, claimed.cursor)
        commit = hand.commit(note("mine"))
        await until_answered(lambda: gateway.store.commit(commit))

    for run in runs:  # one after the other, so that each call may lose an answer of its own
        await take(run)
    assert line.lost > 5
    line.loss = 0.0
    for run in runs:
        assert (await gateway.store.heads([run]))[run].seq == 2


async def test_the_steps_of_a_worker(line: Line, tmp_path: Path) -> None:
    registry, executed = Registry(), list[int]()

    async def step(number: int) -> int:
        executed.append(number)
        return number

    made = registry.activity(step, effect="write", idempotent=True, name="step")

    async def body(ctx: Context) -> list[int]:
        return [await ctx.run(made, number) for number in range(20)]

    registry.workflow(name="steps")(body)
    async with stage(line.url, tmp_path, registry) as workers:
        await workers.worker()
        line.loss = LOSS / 2
        run = await until_answered(lambda: workers.start("steps"))
        await wait_until(lambda: len(executed) > 10, "half of the steps")
        line.loss = 0.0
        assert await workers.result(run) == list(range(20))
        assert line.lost > 2
    assert sorted(set(executed)) == list(range(20))
