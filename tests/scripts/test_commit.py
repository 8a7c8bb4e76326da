"""commit.lua: all that a holder decided, once, in its fence, on the log it knows."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.support.lab import Lab, ending, note
from towline.protocol.codec import TooLarge
from towline.protocol.cursor import Cursor
from towline.protocol.errors import ProblemError
from towline.protocol.store import api
from towline.protocol.store.keys import RunKeys


async def test_everything_of_a_commit_stands_at_once(lab: Lab) -> None:
    lease = await lab.held()
    await lab.accept()
    commit = lab.commit(
        lease, 1, note("a", key="s1", private=b'{"r":1}'), note("b", cause_index=0), note("c", cause=1),
        arm=[api.Timer("timer", "t|1", 9_999_999_999_999)], side={"x|1": "y"}, applied=1,
        outcomes=[api.CommandOutcome("alice", "c1", '{"status":"applied"}')],
    )  # fmt: skip
    done = await lab.store.commit(commit)
    assert (done.first_seq, done.cursor.seq, done.input_seq) == (3, 5, 2)
    a, b, c = (await lab.log())[2:]
    assert (a.private, b.private) == (b'{"r":1}', None)
    assert [e.event().cause for e in (a, b, c)] == [None, 3, 1]
    assert (a.meta.epoch, a.meta.commit, a.meta.seen, a.meta.now_ms, a.meta.key) == (
        1, 1, str(lease.cursor), commit.now_ms, "s1",
    )  # fmt: skip
    keys = RunKeys.of("r1")
    client: Any = lab.raw
    assert await client.zscore(keys.partition.timers, "timer|t%7C1|r1") == 9_999_999_999_999
    assert await lab.store.side_fields("r1", ["x|1"]) == {"x|1": "y"}
    assert (await lab.store.command_outcome("r1", "alice", "c1")) == api.Repeated(
        2, "f", "signal", '{"status":"applied"}'
    )
    assert await lab.field("unapplied") == "0"
    await lab.store.commit(lab.commit(lease, 2, disarm=[api.Timer("timer", "t|1")]))
    assert await client.zscore(keys.partition.timers, "timer|t%7C1|r1") is None


async def test_a_lost_reply_is_the_first_answer_again_and_writes_nothing(lab: Lab) -> None:
    lease = await lab.held()
    await lab.store.commit(lab.commit(lease, 1, note(), applied=1))
    first = lab.last("commit")[2]
    await lab.accept()
    async with lab.unwritten():
        assert await lab.again("commit") == first
    await lab.store.commit(lab.commit(lease, 2, note()))


async def test_a_commit_of_nothing_says_where_the_log_stands(lab: Lab) -> None:
    lease = await lab.held()
    done = await lab.store.commit(lab.commit(lease))
    assert (done.first_seq, done.cursor) == (2, lease.cursor)


async def test_a_stale_fence_writes_nothing(lab: Lab) -> None:
    lease = await lab.held()
    await lab.lapse()
    await lab.claim(holder="w2")
    async with lab.unwritten():
        for fence in (lease.fence, api.Fence(2, lease.fence.nonce), api.Fence(2, "0" * 16), api.Fence(0, "")):
            with pytest.raises(api.Fenced):
                await lab.store.commit(replace(lab.commit(lease, 1, note()), fence=fence))


async def test_the_fence_of_a_run_nobody_ever_claimed_fits_nothing(lab: Lab) -> None:
    await lab.create()
    lease = await lab.held("r2")
    async with lab.unwritten():
        for number in (0, 1):
            with pytest.raises(api.Fenced):
                await lab.store.commit(replace(lab.commit(lease, number, note()), run="r1", fence=api.Fence(0, "")))


async def test_a_lease_that_was_given_back_writes_nothing(lab: Lab) -> None:
    lease = await lab.held()
    await lab.store.release(lab.commit(lease), "waiting")
    async with lab.unwritten():
        with pytest.raises(api.Fenced):
            await lab.store.commit(lab.commit(lease, 2, note()))


async def test_a_lease_that_ended_untaken_still_writes(lab: Lab) -> None:
    lease = await lab.held()
    await lab.lapse()
    assert (await lab.store.commit(lab.commit(lease, 1, note()))).cursor.seq == 2


@pytest.mark.parametrize("number", [0, 1, 4, 17])
async def test_a_number_that_is_not_the_next_means_another_history(lab: Lab, number: int) -> None:
    lease = await lab.held()
    for n in (1, 2):
        await lab.store.commit(lab.commit(lease, n, note()))
    async with lab.unwritten():
        with pytest.raises(api.Diverged):
            await lab.store.commit(lab.commit(lease, number, note()))


async def test_what_was_seen_must_be_in_the_log_with_its_tag(lab: Lab) -> None:
    lease = await lab.held()
    other = (lease.cursor.tag or 0) ^ 1
    async with lab.unwritten():
        for seen in (Cursor(1, other), Cursor(2, 5), Cursor(99, lease.cursor.tag)):
            with pytest.raises(api.Diverged):
                await lab.store.commit(lab.commit(lease, 1, note(), seen=seen))


async def test_a_closed_or_unknown_run_takes_nothing(lab: Lab) -> None:
    lease = await lab.held()
    await lab.store.close(lab.commit(lease, 1, ending()))
    async with lab.unwritten():
        with pytest.raises(api.RunClosed):
            await lab.store.commit(lab.commit(lease, 2, note()))
        with pytest.raises(api.NoRun):
            await lab.store.commit(replace(lab.commit(lease, 1, note()), run="r2"))


async def test_a_snapshot_goes_only_forward(lab: Lab) -> None:
    lease = await lab.held()
    await lab.store.commit(lab.commit(lease, 1, note("a"), note("b")))
    newer = (await lab.store.load("r1")).run
    older = replace(newer, last_seq=2, summary="a")
    await lab.store.commit(lab.commit(lease, 2, note("c"), snapshot=newer))
    await lab.store.commit(lab.commit(lease, 3, snapshot=older))
    assert await lab.field("snapshot_seq") == "3"
    loaded = await lab.store.load("r1")
    assert (loaded.run.summary, loaded.run.last_seq, loaded.cursor) == ("c", 4, await lab.head())


async def test_too_much_for_one_step_is_refused_before_it_is_sent(lab: Lab) -> None:
    lease = await lab.held()
    async with lab.unwritten():
        for entries in ([note()] * 101, [note("x" * 30_000)] * 9, [note(private=b"x" * 65_537)]):
            with pytest.raises(ProblemError, match="too_large"):
                await lab.store.commit(lab.commit(lease, 1, *entries))
        with pytest.raises(TooLarge):
            await lab.store.commit(lab.commit(lease, 1, note("x" * 40_000)))
        with pytest.raises(ProblemError):
            await lab.store.commit(lab.commit(lease, 1, note(), note("\ud800")))
    assert (await lab.store.commit(lab.commit(lease, 1, *[note()] * 100))).cursor.seq == 101


async def test_each_entry_is_published_byte_for_byte(lab: Lab) -> None:
    lease = await lab.held()
    keys = RunKeys.of("r1")
    pubsub = lab.raw.pubsub(ignore_subscribe_messages=True)
    await pubsub.ssubscribe(keys.channel)
    await pubsub.get_message(timeout=5)
    await lab.store.commit(lab.commit(lease, 1, note("line\nbreak"), note("ü")))
    message: Any = None
    while message is None:
        message = await pubsub.get_message(timeout=5)
    lines = message["data"].split(b"\n")
    stored = (await lab.log())[1:]
    assert [lines[0], lines[3]] == [str(e.cursor).encode() for e in stored]
    assert [lines[2], lines[5]] == [e.raw for e in stored]
    await pubsub.aclose()
