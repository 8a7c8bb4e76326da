"""A pause in the scripts: starts are held where the log is written, the rest of a commit is not; nobody is lost."""

from typing import Any

import pytest

from tests.support.lab import QUEUE, Lab, approval, ending, note
from towline.protocol import commands
from towline.protocol import event_data as d
from towline.protocol.codec import NewEntry
from towline.protocol.commands import Receipt
from towline.protocol.errors import ProblemError
from towline.protocol.events import Actor
from towline.protocol.projection import Caller
from towline.protocol.store import api
from towline.protocol.store.acceptance import cancel_run, send_command
from towline.protocol.store.keys import RunKeys

OWNER = Caller("alice", "owner")


async def steer(lab: Lab, type_: str, caller: Caller = OWNER, run: str = "r1", **data: Any) -> Receipt:
    command = commands.decode(type_, data, f"{type_}-{len(await lab.log(run))}")
    return await send_command(lab.store, run, command, caller)


def started(step: str) -> NewEntry:
    data = d.ToolStarted(step=step, name="look", title="Look", attempt=1, effect="read")
    return NewEntry("tool.started", Actor("agent", "wf:review"), data, key=step)


def paused() -> NewEntry:
    return NewEntry("run.paused", Actor("worker", "w1"), d.RunPaused(code="user", by="user:alice"))


async def hints(lab: Lab) -> list[str]:
    return [hint.run for hint in await lab.store.read_hints(QUEUE, count=9, block_ms=1)]


async def index(lab: Lab) -> list[str]:
    members: Any = await lab.raw.zrange(RunKeys.of("r1").partition.index, 0, -1)
    return [member.decode() for member in members if member.startswith(b"i|")]


async def test_a_held_commit_is_cut_before_its_first_start_with_all_that_belongs_to_it(lab: Lab) -> None:
    lease = await lab.held()
    receipt = await steer(lab, "pause", reason="lunch")
    assert (receipt.status, receipt.effect) == ("applied", "The run pauses when its running steps have ended.")
    asked, side = approval("q1")
    commit = lab.commit(
        lease, 1, note(), started("s1"), asked,
        arm=[api.Timer("timer", "early", 9_999_999_999_998), api.Timer("timer", "late", 9_999_999_999_999)],
        side={"p|x": "1", **side},
        outcomes=[api.CommandOutcome("alice", "early", "{}"), api.CommandOutcome("alice", "late", "{}")],
        inbox_add={"q1": ["user:alice"]}, before_starts=api.Before(1, arm=1, side=1, outcomes=1),
    )  # fmt: skip
    done = await lab.store.commit(commit)
    assert (done.held, done.first_seq, done.cursor.seq) == (1, 4, 4)
    assert (await lab.types())[3:] == ["progress.noted"]
    timers: Any = await lab.raw.zrange(RunKeys.of("r1").partition.timers, 0, -1)
    assert [timer for timer in timers if timer != b"-"] == [b"timer|early|r1"]
    assert set(await lab.store.side_fields("r1", ["p|x", *side, "o|alice|early", "o|alice|late"])) == {
        "p|x", "o|alice|early",
    }  # fmt: skip
    assert await index(lab) == []
    assert await lab.again("commit") == lab.last("commit")[2], "its number is used up"
    assert (await lab.store.commit(lab.commit(lease, 2, note()))).held is None


async def test_results_are_never_held(lab: Lab) -> None:
    lease = await lab.held()
    await steer(lab, "pause")
    assert (await lab.store.commit(lab.commit(lease, 1, note(), recorded=True))).held is None


async def test_a_run_that_rests_is_nobodys_until_it_is_resumed(lab: Lab) -> None:
    lease = await lab.held()
    await hints(lab)
    await steer(lab, "pause")
    begun = NewEntry("run.started", Actor("worker", "w1"), d.RunStarted(worker="w1"))
    await lab.store.release(lab.commit(lease, 1, begun, paused()), "paused")
    assert (await lab.store.load("r1")).run.status == "paused"
    await lab.accept(command_id="signal")
    assert await hints(lab) == []
    assert await lab.try_claim() == api.NotClaimed("parked")
    await lab.pass_ms(60_000)
    assert await lab.try_claim() == api.NotClaimed("parked")
    assert (await steer(lab, "resume")).effect == "The run goes on."
    assert (await lab.types())[-3:] == ["command.received", "run.resumed", "command.applied"]
    run = (await lab.store.load("r1")).run
    assert (run.status, run.pausing) == ("running", False)
    assert await hints(lab) == ["r1"]
    assert (await lab.claim()).lapsed == ""


async def test_a_pause_that_was_taken_back_lets_nobody_rest(lab: Lab) -> None:
    lease = await lab.held()
    await steer(lab, "pause")
    assert (await lab.store.load("r1")).run.pausing
    assert (await steer(lab, "resume")).effect == "The pause is taken back."
    run = (await lab.store.load("r1")).run
    assert not run.pausing
    async with lab.unwritten():
        with pytest.raises(api.Changed):
            await lab.store.release(lab.commit(lease, 1, paused()), "paused")
    assert (await lab.store.commit(lab.commit(lease, 1, started("s1"), before_starts=api.Before(0)))).held is None


async def test_a_run_that_nobody_holds_rests_at_once(lab: Lab) -> None:
    await lab.create()
    await hints(lab)
    assert (await steer(lab, "pause", reason="not yet")).effect == "The run is paused."
    run = (await lab.store.load("r1")).run
    assert (run.status, run.pausing) == ("paused", False)
    assert run.status_detail is not None
    assert (run.status_detail.code, run.status_detail.text, run.status_detail.by) == ("user", "not yet", "user:alice")
    assert await lab.try_claim() == api.NotClaimed("parked")
    assert (await steer(lab, "pause")).effect == "The run is paused already."
    await lab.pass_ms(60_000)
    assert await lab.store.rehint("r1", QUEUE) == "PARKED"
    await steer(lab, "resume")
    await lab.claim()


async def test_a_holder_that_died_before_it_rested_is_replaced(lab: Lab) -> None:
    await lab.held()
    await hints(lab)
    await steer(lab, "pause")
    await lab.lapse()
    assert await lab.store.rehint("r1", QUEUE) == "OK"
    assert (await lab.claim(holder="w2")).lapsed == "w1"


async def test_a_claim_that_slips_in_before_a_pause_is_not_overlooked(lab: Lab) -> None:
    """What was prepared for a run that nobody holds is not written to one that somebody holds by now."""
    await lab.create()
    entries = [NewEntry("run.paused", Actor("user", "alice"), d.RunPaused(code="user"))]
    await lab.claim()
    async with lab.unwritten():
        with pytest.raises(api.Changed):
            await lab.accept(entries=entries, paused="1", was_paused="", was_held=False)
        with pytest.raises(api.Changed):
            await lab.accept(entries=entries, paused="-", was_paused="1")


async def test_a_resume_of_a_run_that_is_not_paused_changes_nothing(lab: Lab) -> None:
    await lab.held()
    assert (await steer(lab, "resume")).effect == "The run was not paused."
    assert (await lab.store.load("r1")).run.status == "queued"


async def test_a_cancel_takes_the_pause_back_so_that_the_clean_up_runs(lab: Lab) -> None:
    lease = await lab.held()
    await hints(lab)
    await steer(lab, "pause")
    await lab.store.release(lab.commit(lease, 1, paused()), "paused")
    await cancel_run(lab.store, "r1", commands.Cancel(), OWNER)
    assert (await lab.types())[-2:] == ["cancel.requested", "run.resumed"]
    assert await hints(lab) == ["r1"]
    lease = await lab.claim()
    assert (await lab.store.commit(lab.commit(lease, 1, started("s1"), before_starts=api.Before(0)))).held is None


async def test_a_paused_run_that_never_started_is_cancelled_at_once(lab: Lab) -> None:
    await lab.create()
    await steer(lab, "pause")
    await cancel_run(lab.store, "r1", commands.Cancel(), OWNER)
    assert (await lab.store.load("r1")).run.status == "cancelled"


async def test_viewers_do_not_pause(lab: Lab) -> None:
    await lab.create()
    async with lab.unwritten():
        for type_ in ("pause", "resume"):
            with pytest.raises(ProblemError) as error:
                await steer(lab, type_, Caller("bob", "viewer"))
            assert error.value.problem.code == "forbidden"


async def test_what_waits_for_people_stands_in_the_index_until_it_ends(lab: Lab) -> None:
    lease = await lab.held()
    asked, side = approval("q1")
    await lab.store.commit(
        lab.commit(lease, 1, asked, side=side, inbox_add={"q1": ["user:a|b", "role:operator"], "q2": ["group:ops"]})
    )
    assert [member.split("|")[1] for member in await index(lab)] == ["group%3Aops", "role%3Aoperator", "user%3Aa%7Cb"]
    assert {member.split("|", 3)[3] for member in await index(lab)} == {"r1|q1", "r1|q2"}
    await lab.accept(inbox_remove=["q1"])
    assert [member.split("|")[1] for member in await index(lab)] == ["group%3Aops"]
    await lab.store.close(lab.commit(lease, 2, ending(), seen=await lab.head()))
    assert await index(lab) == []


async def test_each_append_is_told_on_the_channel_of_changes(lab: Lab) -> None:
    pubsub: Any = lab.raw.pubsub(ignore_subscribe_messages=True)
    await pubsub.ssubscribe(f"{RunKeys.of('r1').partition.tag}:changes")
    await pubsub.get_message(timeout=1)
    await lab.create()
    messages = [message for _ in range(3) if (message := await pubsub.get_message(timeout=1)) is not None]
    assert [message["data"] for message in messages] == [b"r1"]
    await pubsub.aclose()
