"""close_run.lua: one terminal entry, the last, and nothing of the run left among what is due."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.support.lab import Lab, ending, note
from towline.protocol.store import api
from towline.protocol.store.keys import RunKeys


async def test_closing_seals_the_log_and_clears_what_was_due(lab: Lab) -> None:
    lease = await lab.held()
    await lab.accept(counts=False, deadline_ms=lab.store.now_ms() + 5000)
    armed = [api.Timer("timer", "t", 9_999_999_999_999)]
    await lab.store.commit(lab.commit(lease, 1, arm=armed))
    done = await lab.store.close(lab.commit(lease, 2, note(), ending(), seen=await lab.head(), disarm=armed))
    assert (await lab.types())[-2:] == ["progress.noted", "run.completed"]
    facts = await lab.store.facts("r1")
    assert (facts.sealed, facts.stopping_ms, facts.lease_until_ms, facts.head) == (True, 0, 0, done.cursor)
    keys = RunKeys.of("r1").partition
    client: Any = lab.raw
    for left in (keys.leases, keys.timers):
        assert await client.zrange(left, 0, -1) == [b"-"]
    assert await client.zrange(keys.done, 0, -1) == [b"r1", b"-"]


async def test_a_lost_reply_is_the_first_answer_again_also_on_the_sealed_run(lab: Lab) -> None:
    lease = await lab.held()
    await lab.store.close(lab.commit(lease, 1, ending()))
    first = lab.last("close_run")[2]
    async with lab.unwritten():
        assert await lab.again("close_run") == first
        with pytest.raises(api.RunClosed):
            await lab.store.close(lab.commit(lease, 2, ending()))


async def test_a_run_with_an_unseen_input_does_not_end(lab: Lab) -> None:
    lease = await lab.held()
    await lab.accept()
    async with lab.unwritten():
        with pytest.raises(api.Unseen):
            await lab.store.close(lab.commit(lease, 1, ending()))
    await lab.store.close(lab.commit(lease, 1, ending(), seen=await lab.head()))


async def test_a_forced_close_ends_what_it_read_and_nothing_newer(lab: Lab) -> None:
    await lab.held()
    await lab.accept()
    closer = await lab.claim(holder="sweep", closing=True)
    await lab.accept(command_id="c2")
    async with lab.unwritten():
        with pytest.raises(api.Changed):
            await lab.store.close(lab.commit(closer, 1, ending()), prepared_at=2)
    await lab.store.close(lab.commit(closer, 1, ending()), prepared_at=3)
    assert await lab.field("closing") is None


async def test_each_refusal_writes_nothing(lab: Lab) -> None:
    lease = await lab.held()
    async with lab.unwritten():
        with pytest.raises(api.Diverged):
            await lab.store.close(lab.commit(lease, 2, ending()))
        with pytest.raises(api.NoRun):
            await lab.store.close(replace(lab.commit(lease, 1, ending()), run="r2"))
    await lab.claim(holder="sweep", closing=True)
    async with lab.unwritten():
        with pytest.raises(api.Fenced):
            await lab.store.close(lab.commit(lease, 1, ending()))


async def test_a_sealed_run_is_not_woken_hinted_or_claimed(lab: Lab) -> None:
    lease = await lab.held()
    await lab.store.read_hints("default", count=9, block_ms=1)
    await lab.store.close(lab.commit(lease, 1, ending()))
    async with lab.unwritten():
        with pytest.raises(api.RunClosed):
            await lab.accept()
        assert await lab.store.rehint("r1", "default") == "PARKED"
        assert await lab.store.read_hints("default", count=9, block_ms=1) == []
