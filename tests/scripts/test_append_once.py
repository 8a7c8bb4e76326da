"""append_once.lua: what a holder announces beside its numbered commits stands once, and only under its lease."""

import pytest

from tests.support.lab import Lab, ending, note
from towline.protocol.store import api


async def announce(lab: Lab, lease: api.Claimed, value: str = "first") -> str | None:
    told = await lab.store.append_once("r1", lease.fence, field="a|report", value=value, entries=[note()])
    return told.stored


async def test_a_name_is_announced_once_and_no_commit_number_is_used_up(lab: Lab) -> None:
    lease = await lab.held()
    assert await announce(lab, lease) is None
    async with lab.unwritten():
        assert await announce(lab, lease, "second") == "first"
        assert (await lab.again("append_once"))[0] == b"DUPLICATE"
    await lab.store.commit(lab.commit(lease, 1, note()))
    assert await lab.types() == ["run.created", "progress.noted", "progress.noted"]


async def test_the_next_holder_finds_what_stands(lab: Lab) -> None:
    lease = await lab.held()
    await announce(lab, lease)
    await lab.lapse()
    assert await announce(lab, await lab.claim(holder="w2")) == "first"


async def test_another_fence_writes_nothing(lab: Lab) -> None:
    lease = await lab.held()
    await lab.lapse()
    await lab.claim(holder="w2")
    async with lab.unwritten():
        with pytest.raises(api.Fenced):
            await announce(lab, lease)


async def test_a_lease_that_was_given_back_writes_nothing(lab: Lab) -> None:
    lease = await lab.held()
    await lab.store.release(lab.commit(lease), "hand_over")
    async with lab.unwritten():
        with pytest.raises(api.Fenced):
            await announce(lab, lease)


async def test_nothing_follows_the_end(lab: Lab) -> None:
    lease = await lab.held()
    await lab.store.close(lab.commit(lease, 1, ending()))
    async with lab.unwritten():
        with pytest.raises(api.RunClosed):
            await announce(lab, lease)


async def test_there_is_no_such_run(lab: Lab) -> None:
    lease = await lab.held()
    with pytest.raises(api.NoRun):
        await lab.store.append_once("other", lease.fence, field="a|x", value="", entries=[note()])


async def test_where_the_lease_stands(lab: Lab) -> None:
    assert await lab.store.lease_facts("r1") is None
    lease = await lab.held()
    await lab.store.commit(lab.commit(lease, 1, note()))
    facts = await lab.store.lease_facts("r1")
    assert facts is not None
    assert (facts.fence, facts.number, facts.is_given_back, facts.sealed) == (lease.fence, 1, False, False)
    await lab.store.close(lab.commit(lease, 2, ending()))
    facts = await lab.store.lease_facts("r1")
    assert facts is not None
    assert (facts.number, facts.is_given_back, facts.sealed) == (2, True, True)
