"""What is too large for the log goes around it, or fails once and says what was too large, how large, and the limit.

The symptom: a result over the limit was sent again for ever, or its error named nothing; large arguments hung.
"""

import contextlib
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed

from tests.support.gateway import RunningGateway
from tests.support.soak import SOAK
from tests.support.workers import Stage, stage
from towline.protocol.events import Event
from towline.protocol.limits import EVENT_BYTES, PAYLOAD_BYTES, PRIVATE_BYTES
from towline.protocol.store.keys import RunKeys
from towline.workers import Context
from towline.workers.registry import Registry, Retry

QUICK = Retry(attempts=2, first=timedelta(milliseconds=20))
SIZES = [1_000_000, 1_100_000, PAYLOAD_BYTES + 1, 50_000_000]


async def largest_values(workers: Stage, run: str) -> tuple[int, int]:
    """The largest entry of the log, and the largest value beside it, in bytes."""
    client: Any = workers.store._client
    keys = RunKeys.of(run)
    entries = [sum(map(len, fields.values())) for _, fields in await client.xrange(keys.log)]
    beside = [len(value) for key in (keys.private, keys.side) for value in (await client.hgetall(key)).values()]
    return max(entries), max(beside)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("what", ["result", "arguments", "error"])
async def test_a_large_value(redis_url: str, tmp_path: Path, what: str, size: int) -> None:
    registry, attempts = Registry(), list[str]()

    async def work(text: str) -> str:
        attempts.append(what)
        if what == "error":
            raise ValueError("x" * size)
        return "x" * size if what == "result" else str(len(text))

    made = registry.activity(work, effect="none", name="work", retry=QUICK)

    async def body(ctx: Context) -> int:
        return len(await ctx.run(made, "x" * size if what == "arguments" else ""))

    registry.workflow(name="large")(body)
    async with stage(redis_url, tmp_path, registry) as workers:
        await workers.worker()
        run = await workers.start("large")
        terminal = await workers.ended(run)
        said = next((e.data["error"]["message"] for e in await workers.events(run) if e.type == "tool.failed"), "")
        log_bytes, beside_bytes = await largest_values(workers, run)
    assert log_bytes <= EVENT_BYTES + 1024
    assert beside_bytes <= PRIVATE_BYTES
    if what == "error":
        assert (terminal.type, attempts) == ("run.failed", ["error", "error"])
        assert 0 < len(terminal.data["error"]["message"]) < 3_000
        assert said.endswith(f"… ({size} characters)"), "it says that there was more"
    elif size < PAYLOAD_BYTES:
        assert (terminal.type, attempts) == ("run.completed", [what])
    else:
        assert terminal.type == "run.failed"
        assert attempts == (["result"] if what == "result" else [])  # tried once; what cannot be recorded not at all
        message = terminal.data["error"]["message"]
        for part in ("1:0:work:1", str(PAYLOAD_BYTES), str(size)[:3]):
            assert part in message


async def test_bytes_go_the_same_way_as_text(redis_url: str, tmp_path: Path) -> None:
    registry, attempts = Registry(), list[int]()

    async def work(size: int) -> bytes:
        attempts.append(size)
        return b"\xff" * size

    made = registry.activity(work, effect="none", name="work", retry=QUICK)

    async def body(ctx: Context, size: int) -> int:
        return len(await ctx.run(made, size))

    registry.workflow(name="large")(body)
    async with stage(redis_url, tmp_path, registry) as workers:
        await workers.worker(lease_ms=6_000, renew_ms=2_000)  # as in earnest: 50 MB keep a loaded machine busy
        assert await workers.result(await workers.start("large", 1_000_000)) == 1_000_000
        run = await workers.start("large", 50_000_000)
        terminal = await workers.ended(run)
        log_bytes, beside_bytes = await largest_values(workers, run)
    assert (terminal.type, attempts) == ("run.failed", [1_000_000, 50_000_000])
    assert str(PAYLOAD_BYTES) in terminal.data["error"]["message"]
    assert (log_bytes <= EVENT_BYTES, beside_bytes <= PRIVATE_BYTES) == (True, True)


async def test_what_a_workflow_says_itself_is_bounded_too(redis_url: str, tmp_path: Path) -> None:
    """Its result and a side effect go around the log; a note and a published value fail it, saying why."""
    registry, large = Registry(), "x" * 5_000_000

    async def returned(ctx: Context) -> str:
        return large

    async def side_effect(ctx: Context) -> int:
        return len(await ctx.side_effect(lambda: large))

    async def noted(ctx: Context) -> None:
        await ctx.note(large)

    async def published(ctx: Context) -> None:
        await ctx.publish("value", large)

    async def small(ctx: Context) -> None:
        for number in range(10_000 if SOAK else 1_000):
            await ctx.note(f"{number}")

    bodies = (returned, side_effect, noted, published, small)
    for each in bodies:
        registry.workflow(name=each.__name__)(each)
    ends = dict[str, Event]()
    async with stage(redis_url, tmp_path, registry) as workers:
        await workers.worker()
        for each in bodies:
            run = await workers.start(each.__name__)
            ends[each.__name__] = await workers.ended(run)
            log_bytes, beside_bytes = await largest_values(workers, run)
            assert (log_bytes <= EVENT_BYTES + 1024, beside_bytes <= PRIVATE_BYTES) == (True, True), each.__name__
    assert {name for name, end in ends.items() if end.type == "run.completed"} == {"returned", "side_effect", "small"}
    assert ends["returned"].ref is not None
    for name in ("noted", "published"):
        assert "bytes, the limit is" in ends[name].data["error"]["message"]


async def test_a_command_that_is_too_large_is_refused_and_leaves_no_trace(gateway: RunningGateway) -> None:
    run = await gateway.start()
    data = {"name": "nudge", "payload": {"by": 1, "more": "x" * 5_000_000}}
    body = {"type": "signal", "data": data, "command_id": "c"}
    refused = await gateway.http.post(f"/v1/runs/{run}/commands", json=body)
    assert (refused.status_code, refused.json()["code"]) == (413, "too_large")
    assert refused.json()["limit"] > 0
    async with gateway.socket() as wire:
        with contextlib.suppress(ConnectionClosed):  # before all of it was written, perhaps
            await wire.send(op="command", id="c", run=run, **body)
        assert await wire.closed() == 1009
    assert (await gateway.store.heads([run]))[run].seq == 1
