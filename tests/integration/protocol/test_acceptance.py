"""Commands against a real store: decided once, applied once, bounded, and cancelled in every state, nobody living."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from tests.support.lab import PROPOSAL, Lab, approval, ending, note
from towline.protocol import commands as c
from towline.protocol import event_data as d
from towline.protocol import values as v
from towline.protocol.approvals import digest_of
from towline.protocol.codec import NewEntry
from towline.protocol.errors import Problem, ProblemError
from towline.protocol.events import Actor
from towline.protocol.limits import GRACE_DEFAULT_MS, UNAPPLIED_COMMANDS
from towline.protocol.projection import Caller
from towline.protocol.requests import opened, side_fields
from towline.protocol.store.acceptance import cancel_run, receipt_of, send_command
from towline.protocol.store.api import Claimed, CommandOutcome
from towline.protocol.store.deciding import request_state
from towline.protocol.store.sweep import Sweeper

OWNER = Caller("alice", "owner")
SIGNALS = {"go": {"type": "integer"}}
DIGEST = digest_of("q1", PROPOSAL, [])
AGENT = Actor("agent", "wf:review")


async def send(
    lab: Lab, type_: str, data: Any, command_id: str = "c1", caller: Caller = OWNER, **more: Any
) -> c.Receipt:
    command = c.decode(type_, data, command_id)
    return await send_command(lab.store, "r1", command, caller, signals=SIGNALS, **more)


async def refused(lab: Lab, *args: Any, **more: Any) -> Problem:
    async with lab.unwritten():
        with pytest.raises(ProblemError) as caught:
            await send(lab, *args, **more)
    return caught.value.problem


async def asking(lab: Lab, quorum: int = 1, **members: Any) -> Claimed:
    """A run that waits for the approval q1."""
    lease = await lab.held()
    entry, side = approval("q1", **members)
    if quorum > 1:
        asked: Any = entry.data
        asked = replace(asked, quorum=quorum, deciders=["role:owner", "role:collaborator"])
        entry, side = NewEntry("approval.requested", AGENT, asked), side_fields(opened(asked))
    waiting = NewEntry("run.waiting", AGENT, d.RunWaiting(on=[v.WaitRef("q1", "approval")]))
    await lab.store.release(lab.commit(lease, 1, entry, waiting, side=side), "waiting")
    return lease


async def test_a_hundred_decisions_at_once_are_one(lab: Lab) -> None:
    await asking(lab)

    async def decide(n: int) -> str:
        try:
            receipt = await send(lab, "approve" if n % 2 else "reject", {"request": "q1", "digest": DIGEST}, f"c{n}")
        except ProblemError as error:
            return error.problem.code
        return "duplicate" if receipt.duplicate else f"{receipt.status}:{receipt.effect}"

    answers = await asyncio.gather(*(decide(n) for n in range(100)))
    (won,) = [a for a in answers if a.startswith("applied")]
    assert set(answers) - {won} <= {"already_decided", "overloaded", "duplicate"}
    types = await lab.types()
    assert types.count("approval.resolved") == types.count("approval.voted") == types.count("command.applied") == 1
    state, seq = await request_state(lab.store, "r1", "q1")
    assert won == f"applied:{state.outcome}"
    assert seq is not None
    assert types[seq - 1] == "approval.resolved"
    other = "reject" if state.outcome == "approved" else "approve"
    loser = await refused(lab, other, {"request": "q1", "digest": DIGEST}, "late")
    assert loser.request == {"outcome": state.outcome, "decisions": loser.request["decisions"], "seq": seq}


async def test_the_decision_wakes_the_run_and_stands_in_the_run(lab: Lab) -> None:
    await asking(lab)
    await lab.store.read_hints("default", count=9, block_ms=1)
    receipt = await send(lab, "approve", {"request": "q1", "digest": DIGEST, "comment": "fine"})
    assert (receipt.status, receipt.applies, receipt.effect, receipt.seq) == ("applied", "now", "approved", 4)
    assert [h.run for h in await lab.store.read_hints("default", count=9, block_ms=1)] == ["r1"]
    assert (await lab.store.load("r1")).run.waiting_on == []
    assert (await lab.store.facts("r1")).input_seq == 6
    repeat = await send(lab, "approve", {"request": "q1", "digest": DIGEST, "comment": "fine"})
    assert (repeat.status, repeat.duplicate, repeat.seq) == ("applied", True, 4)
    other = await send(lab, "approve", {"request": "q1", "digest": DIGEST}, "c2")
    assert (other.status, other.duplicate) == ("applied", True)


async def test_a_quorum_of_two_is_two_people_also_at_once(lab: Lab) -> None:
    await asking(lab, quorum=2)
    data = {"request": "q1", "digest": DIGEST}
    callers = [Caller("bob", "collaborator"), Caller("carol", "collaborator"), OWNER]
    answers = await asyncio.gather(
        *(send(lab, "approve", data, "c1", caller) for caller in callers), return_exceptions=True
    )
    effects = sorted(a.effect or "" for a in answers if isinstance(a, c.Receipt))
    assert effects == ["1 of 2 approved", "approved"]
    assert (await lab.types()).count("approval.resolved") == 1


async def test_decisions_are_refused_in_the_order_of_the_contract(lab: Lab) -> None:
    await asking(lab, expires_at="2000-01-01T00:00:00.000Z")
    data = {"request": "q1", "digest": "sha256:0"}
    assert (await refused(lab, "approve", data, caller=Caller("v", "viewer"))).code == "forbidden"
    assert (await refused(lab, "approve", data)).code == "expired"
    assert (await refused(lab, "approve", {**data, "request": "q2"})).code == "not_found"


async def test_a_digest_of_something_else_decides_nothing(lab: Lab) -> None:
    await asking(lab)
    problem = await refused(lab, "approve", {"request": "q1", "digest": "sha256:0"})
    assert (problem.code, problem.expected) == ("digest_mismatch", DIGEST)


async def test_the_same_id_twenty_times_applies_once(lab: Lab) -> None:
    await asking(lab)
    data = {"request": "q1", "digest": DIGEST}
    answers = await asyncio.gather(*(send(lab, "approve", data) for _ in range(20)))
    assert {a.status for a in answers} == {"applied"}
    assert sum(not a.duplicate for a in answers) == 1
    assert (await refused(lab, "reject", data)).code == "idempotency_mismatch"
    assert (await lab.types()).count("command.applied") == 1


async def test_a_flood_of_signals_is_limited_and_nothing_else_is(lab: Lab) -> None:
    await asking(lab)
    answers = await asyncio.gather(
        *(send(lab, "signal", {"name": "go", "payload": n}, f"c{n}") for n in range(UNAPPLIED_COMMANDS + 10)),
        return_exceptions=True,
    )
    receipts = [a for a in answers if isinstance(a, c.Receipt)]
    problems = [a.problem for a in answers if isinstance(a, ProblemError)]
    assert len(receipts) == UNAPPLIED_COMMANDS
    assert {p.code for p in problems} == {"rate_limited"}
    assert all(p.retry_after_ms for p in problems)
    assert (await send(lab, "approve", {"request": "q1", "digest": DIGEST}, "decide")).status == "applied"
    await cancel_run(lab.store, "r1", c.Cancel(), OWNER)
    assert (await lab.store.facts("r1")).stopping_ms > 0


async def test_a_signal_is_checked_against_what_the_workflow_declares(lab: Lab) -> None:
    await lab.create()
    problem = await refused(lab, "signal", {"name": "stop", "payload": 1})
    assert (problem.code, problem.field, problem.known) == ("unsupported", "data.name", ["go"])
    problem = await refused(lab, "signal", {"name": "go", "payload": "x"})
    assert (problem.code, problem.field) == ("bad_request", "data.payload")
    assert (
        await refused(lab, "signal", {"name": "go", "payload": 1}, caller=Caller("v", "viewer"))
    ).code == "forbidden"
    assert (await refused(lab, "revise", {"instruction": "x"})).code == "unsupported"
    late = await refused(lab, "signal", {"name": "go", "payload": 1}, not_after_ms=lab.store.now_ms() - 1)
    assert late.code == "expired"
    receipt = await send(lab, "signal", {"name": "go", "payload": 1})
    assert (receipt.status, receipt.applies, receipt.duplicate) == ("accepted", "next_step", False)
    assert (await receipt_of(lab.store, "r1", "alice", "c1")).status == "accepted"
    with pytest.raises(ProblemError, match="not_found"):
        await receipt_of(lab.store, "r1", "bob", "c1")


async def test_what_is_too_large_for_the_log_is_refused(lab: Lab) -> None:
    await lab.create()
    command = c.decode("signal", {"name": "go", "payload": "x" * 40_000}, "c1")
    async with lab.unwritten():
        with pytest.raises(ProblemError, match="too_large"):
            await send_command(lab.store, "r1", command, OWNER, signals={"go": {}})


async def test_an_ended_run_says_so_before_anything_else_and_repeats_their_outcome(lab: Lab) -> None:
    lease = await lab.held()
    await send(lab, "signal", {"name": "go", "payload": 1})
    outcome = CommandOutcome("alice", "c1", '{"status":"rejected","code":"unconsumed","text":"Ended before."}')
    await lab.store.close(lab.commit(lease, 1, ending(), seen=await lab.head(), outcomes=[outcome], applied=1))
    for args in (("signal", {"name": "nope"}, "c2"), ("approve", {"request": "q", "digest": "d"}, "c3")):
        assert (await refused(lab, *args, caller=Caller("v", "viewer"))).code == "run_closed"
    assert (await refused(lab, "signal", {"name": "go", "payload": 2})).code == "run_closed"
    repeat = await send(lab, "signal", {"name": "go", "payload": 1})
    assert (repeat.status, repeat.problem) == ("rejected", {"code": "unconsumed", "detail": "Ended before."})
    receipt = await send(lab, "cancel", {}, "c4")
    assert (receipt.status, receipt.duplicate) == ("applied", False)


STATES = ["queued", "running", "waiting", "blocked", "stopping", "completed", "dead"]


async def bring_to(lab: Lab, state: str) -> None:
    if state == "queued":
        await lab.create()
        return
    if state == "waiting":
        await asking(lab)
        return
    lease = await lab.held()
    await lab.store.commit(lab.commit(lease, 1, NewEntry("run.started", AGENT, d.RunStarted(worker="w1"))))
    match state:
        case "blocked":
            blocker = v.Blocker(id="b", kind="poison", title="t", since="", by="system", stops=True, remedies=[])
            blocked = NewEntry("run.blocked", AGENT, d.RunBlocked(blocker=blocker))
            await lab.store.release(lab.commit(lease, 2, blocked), "blocked")
        case "stopping":
            await cancel_run(lab.store, "r1", c.Cancel(grace_ms=60_000), OWNER)
        case "completed":
            await lab.store.close(lab.commit(lease, 2, ending()))
        case "dead":
            await lab.lapse()
        case _:
            pass


@pytest.mark.parametrize("state", STATES)
async def test_a_cancel_twice_in_every_state_ends_the_run_with_nobody_alive(lab: Lab, state: str) -> None:
    await bring_to(lab, state)
    sweeper = Sweeper(lab.store, "s")
    for n in range(2):
        await cancel_run(lab.store, "r1", c.Cancel(reason="enough"), OWNER, command_id="same")
        await cancel_run(lab.store, "r1", c.Cancel(reason="enough"), OWNER)
        run = (await lab.store.load("r1")).run
        assert run.is_terminal == (n == 1 or state in ("queued", "blocked", "completed"))
        assert run.stopping is not None or run.is_terminal
        await lab.pass_ms(GRACE_DEFAULT_MS + 10)
        await sweeper.run_once()
    run = (await lab.store.load("r1")).run
    assert run.status == ("completed" if state == "completed" else "cancelled")
    types = await lab.types()
    assert types[-1] == f"run.{run.status}"
    if state == "waiting":
        assert types[-2] == "approval.resolved"
        assert (await request_state(lab.store, "r1", "q1"))[0].outcome == "withdrawn"
    if state not in ("completed",):
        last = (await lab.log())[-1].event()
        assert (last.data["by"], last.data["forced"]) == ("user:alice", True)
        receipt = await receipt_of(lab.store, "r1", "alice", "same")
        assert (receipt.status, receipt.effect) == ("applied", "The run is cancelled.")


async def test_a_cancel_brings_the_deadline_only_nearer(lab: Lab) -> None:
    await lab.held()
    await cancel_run(lab.store, "r1", c.Cancel(grace_ms=10_000), OWNER)
    first = (await lab.store.facts("r1")).stopping_ms
    async with lab.unwritten():
        await cancel_run(lab.store, "r1", c.Cancel(grace_ms=60_000), OWNER)
    await cancel_run(lab.store, "r1", c.Cancel(grace_ms=60_000), OWNER, command_id="later")
    assert (await lab.store.facts("r1")).stopping_ms == first
    await cancel_run(lab.store, "r1", c.Cancel(grace_ms=0), OWNER)
    assert (await lab.store.facts("r1")).stopping_ms < first
    with pytest.raises(ProblemError, match="forbidden"):
        await cancel_run(lab.store, "r1", c.Cancel(), Caller("bob", "collaborator"))


async def test_a_holder_that_is_stopping_may_still_end_in_its_own_words(lab: Lab) -> None:
    lease = await lab.held()
    await cancel_run(lab.store, "r1", c.Cancel(), OWNER)
    await lab.store.commit(lab.commit(lease, 1, note("cleaning up"), seen=await lab.head()))
    cancelled = d.RunCancelled(by="user:alice", forced=False, abandoned=[])
    close = lab.commit(lease, 2, NewEntry("run.cancelled", AGENT, cancelled), seen=(await lab.log())[1].cursor)
    await lab.store.close(close)
    await lab.pass_ms(GRACE_DEFAULT_MS + 10)
    assert await Sweeper(lab.store, "s").run_once() == 0
    assert (await lab.types()).count("run.cancelled") == 1
