"""What is too large for the log goes around it, or fails once and says what was too large, how large, and the limit.

The symptom: a result over the limit was sent again for ever, or its error named nothing; large arguments hung.
"""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support.workers import Stage, stage
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
        log_bytes, beside_bytes = await largest_values(workers, run)
    assert log_bytes <= EVENT_BYTES + 1024
    assert beside_bytes <= PRIVATE_BYTES
    if what == "error":
        assert (terminal.type, attempts) == ("run.failed", ["error", "error"])
        assert 0 < len(terminal.data["error"]["message"]) < 3_000
    elif size < PAYLOAD_BYTES:
        assert (terminal.type, attempts) == ("run.completed", [what])
    else:
        assert terminal.type == "run.failed"
        assert attempts == (["result"] if what == "result" else [])  # tried once; what cannot be recorded not at all
        message = terminal.data["error"]["message"]
        for said in ("1:0:work:1", str(PAYLOAD_BYTES), str(size)[:3]):
            assert said in message
