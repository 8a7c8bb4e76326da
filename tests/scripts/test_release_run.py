"""release_run.lua: giving a lease back, never between an input and its wake-up."""

from typing import Any

import pytest

from tests.support.lab import Lab, ending, note
from towline.protocol.store import api
from towline.protocol.store.keys import RunKeys


async def leases(lab: Lab) -> set[bytes]:
    client: Any = lab.raw
    return set(await client.zrange(RunKeys.of("r1").partition.leases, 0, -1)) - {b"-"}


async def test_a_run_that_waits_needs_nobody(lab: Lab) -> None:
    lease = await lab.held()
    await lab.store.read_hints("default", count=9, block_ms=1)
    done = await lab.store.release(lab.commit(lease, 1, note()), "waiting")
    assert done.cursor.seq == 2
    facts = await lab.store.facts("r1")
    assert (facts.lease_until_ms, facts.step) == (0, "")
    assert await leases(lab) == set()
    assert await lab.store.read_hints("default", count=9, block_ms=1) == []


async def test_an_input_behind_what_was_seen_keeps_it_awake(lab: Lab) -> None:
    lease = await lab.held()
    await lab.accept()
    async with lab.unwritten():
        with pytest.raises(api.Unseen):
            await lab.store.release(lab.commit(lease, 1, note()), "waiting")
    # The same number goes on as an ordinary commit, then the ending is offered with what was seen by then.
    await lab.store.commit(lab.commit(lease, 1, note()))
    await lab.store.release(lab.commit(lease, 2, seen=(await lab.log())[1].cursor), "waiting")


async def test_what_is_no_input_keeps_nobody_awake(lab: Lab) -> None:
    lease = await lab.held()
    await lab.accept(input_index=-1, counts=False)
    await lab.store.release(lab.commit(lease), "waiting")


async def test_a_blocked_run_is_parked_whatever_comes(lab: Lab) -> None:
    lease = await lab.held()
    await lab.accept()
    await lab.store.release(lab.commit(lease, 1, note()), "blocked")
    assert (await lab.store.facts("r1")).blocked
    assert await leases(lab) == set()


async def test_a_hand_over_is_hinted_at_once(lab: Lab) -> None:
    lease = await lab.held()
    await lab.store.read_hints("default", count=9, block_ms=1)
    await lab.accept()
    await lab.store.release(lab.commit(lease, 1, note()), "hand_over")
    assert [h.run for h in await lab.store.read_hints("default", count=9, block_ms=1)] == ["r1"]
    assert await leases(lab) == {b"r1"}


@pytest.mark.parametrize("to", ["waiting", "blocked", "hand_over"])
async def test_a_lost_reply_is_the_first_answer_again(lab: Lab, to: Any) -> None:
    lease = await lab.held()
    await lab.store.release(lab.commit(lease, 1, note()), to)
    first = lab.last("release_run")[2]
    async with lab.unwritten():
        assert await lab.again("release_run") == first


async def test_a_reply_lost_until_another_holds_it_is_fenced_and_harmless(lab: Lab) -> None:
    lease = await lab.held()
    await lab.store.release(lab.commit(lease, 1, note()), "hand_over")
    await lab.claim(holder="w2")
    async with lab.unwritten():
        assert (await lab.again("release_run"))[0] == b"FENCED"


@pytest.mark.parametrize("to", ["waiting", "blocked", "hand_over"])
async def test_each_refusal_writes_nothing(lab: Lab, to: Any) -> None:
    lease = await lab.held()
    release = lab.store.release
    async with lab.unwritten():
        with pytest.raises(api.Diverged):
            await release(lab.commit(lease, 2, note()), to)
    await lab.lapse()
    other = await lab.claim(holder="w2")
    async with lab.unwritten():
        with pytest.raises(api.Fenced):
            await release(lab.commit(lease, 1, note()), to)
    await lab.store.close(lab.commit(other, 1, ending()))
    async with lab.unwritten():
        with pytest.raises(api.RunClosed):
            await release(lab.commit(other, 2, note()), to)
        with pytest.raises(api.NoRun):
            await release(api.Commit(**{**_members(lab.commit(other, 2)), "run": "r2"}), to)


def _members(commit: api.Commit) -> dict[str, Any]:
    return {name: getattr(commit, name) for name in commit.__struct_fields__}
