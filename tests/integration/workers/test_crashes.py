"""Workers that die, stall, are stopped or meet a changed world: the run goes on, each step is recorded once."""

import asyncio
import itertools
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support.server import StoreServer
from tests.support.soak import SOAK
from tests.support.waiting import wait_until
from tests.support.workers import Stage, stage
from towline.protocol.store.api import Claimed, StoreUnavailable
from towline.workers import Context, Proposal, activity
from towline.workers.registry import Registry, Retry

pytestmark = pytest.mark.store

UNCLOSED = pytest.mark.filterwarnings(
    # redis-py leaves the stream of a connection that the server closed to the garbage collector
    "ignore::pytest.PytestUnraisableExceptionWarning"
)


class Died(BaseException):
    """Thrown at a crash point; whoever dies there does nothing more."""


class Death:
    """A probe that kills at the n-th script call that a worker makes, and at every later one."""

    def __init__(self, at_call: int, side: str) -> None:
        self.died = asyncio.Event()
        self.hit = ""
        self._left = at_call
        self._side = side

    def __call__(self, point: str) -> None:
        side, _, script = point.partition(":")
        if script in ("renew_leases", "sweep_partition", "rehint_run", "fire_timer"):
            return
        if self.died.is_set():
            raise Died(point)
        if side == self._side:
            self._left -= 1
            if self._left == 0:
                self.hit = script
                self.died.set()
                raise Died(point)


def three_steps(registry: Registry) -> list[str]:
    """A workflow with activities, a sleep, a signal and an approval; the list of what its activities did."""
    done: list[str] = []

    async def work(name: str) -> str:
        done.append(f"{name} {activity.idempotency_key}")
        return name.upper()

    made = registry.activity(work, idempotent=True, retry=Retry(attempts=20, first=timedelta(0)))

    async def body(ctx: Context) -> list[Any]:
        first = await ctx.run(made, "a")
        both = await asyncio.gather(ctx.run(made, "b"), ctx.run(made, "c"))
        await ctx.sleep(timedelta(milliseconds=30))
        signal = await ctx.wait_signal("go")
        decision = await ctx.approval("Do it?", proposal=Proposal("i", [], [], "b", "r"))
        await ctx.artifact("r.txt", "report", "text/plain")
        return [first, *both, signal, decision.outcome, await ctx.run(made, "d")]

    registry.workflow(name="steps", signals={"go": int})(body)
    return done


async def drive(workers: Stage, run: str) -> Any:
    await workers.send(run, "signal", {"name": "go", "payload": 7}, command_id="s")
    await workers.approve(run)
    return await workers.result(run, timeout_s=40)


def points() -> Iterator[tuple[int, str]]:
    """Which call, and whether the worker dies before it or after it; all of them in the long form."""
    if SOAK:
        return itertools.product(range(1, 16), ("before", "after"))
    return zip((1, 2, 3, 4, 5, 7, 8, 10), itertools.cycle(("after", "before")), strict=False)


@pytest.mark.parametrize(("call", "side"), list(points()), ids=lambda value: str(value))
async def test_a_worker_that_dies_at_any_script_call_is_replaced(
    workers: Stage, registry: Registry, call: int, side: str
) -> None:
    three_steps(registry)
    death = Death(call, side)
    _, dying = await workers.worker(probe=death, lease_ms=600, renew_ms=150)
    run = await workers.start("steps")
    driving = asyncio.create_task(drive(workers, run))
    await wait_until(lambda: death.died.is_set() or driving.done(), "the worker to die", timeout_s=20)
    dying.cancel()
    await asyncio.gather(dying, return_exceptions=True)
    await workers.worker(lease_ms=600, renew_ms=150)
    assert await driving == ["A", "B", "C", 7, "approved", "D"]
    events = await workers.events(run)
    finished = Counter(event.data["step"] for event in events if event.type == "tool.finished")
    assert set(finished.values()) == {1}
    assert len(finished) == 4


async def test_a_run_in_the_middle_of_an_activity_is_taken_over_within_the_lease(
    workers: Stage, registry: Registry
) -> None:
    started = asyncio.Event()

    async def slow() -> int:
        started.set()
        if activity.attempt == 1:
            await asyncio.Event().wait()
        return activity.attempt

    made = registry.activity(slow, effect="read")

    async def body(ctx: Context) -> int:
        return int(await ctx.run(made))

    registry.workflow(name="slow")(body)
    _, dying = await workers.worker()
    run = await workers.start("slow")
    await started.wait()
    await workers.worker()
    dying.cancel()
    await asyncio.gather(dying, return_exceptions=True)
    assert await workers.result(run) == 2
    taken = await workers.wait_for(run, "run.taken_over")
    assert taken.data == {"worker": "w2", "from": "w1"}


async def test_a_zombie_whose_lease_lapsed_writes_nothing_more(workers: Stage, registry: Registry) -> None:
    """As after SIGSTOP: the first worker's renewal stands still, then it wakes and wants to go on."""
    release = asyncio.Event()
    ran: list[str] = []

    async def work() -> str:
        ran.append(activity.fencing_token)
        if len(ran) == 1:
            await release.wait()
        return "done"

    made = registry.activity(work, effect="read")

    async def body(ctx: Context) -> str:
        return str(await ctx.run(made))

    registry.workflow(name="zombie")(body)
    zombie, _ = await workers.worker(lease_ms=600, renew_ms=150)
    run = await workers.start("zombie")
    await wait_until(lambda: ran, "the first attempt")
    held = zombie.held[run]
    zombie._renewal.let_go(held.lease)
    held.lease.ends_s += 3_600  # its clock stood still: it does not know
    await workers.worker(lease_ms=600, renew_ms=150)
    assert await workers.result(run) == "done"
    before = len(await workers.events(run))
    release.set()
    await wait_until(lambda: run not in zombie.held, "the zombie to notice")
    assert len(await workers.events(run)) == before
    first, second = ran
    assert int(second.split("-")[0]) > int(first.split("-")[0])


async def test_a_worker_that_cannot_renew_stops_before_its_lease_could_be_anothers(
    workers: Stage, registry: Registry
) -> None:
    left_ms: list[int] = []

    async def work() -> None:
        if activity.attempt == 1:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                facts = await workers.store.facts(run)
                left_ms.append(facts.lease_until_ms - await workers.store.sync_clock())
                raise

    made = registry.activity(work, effect="read")

    async def body(ctx: Context) -> None:
        await ctx.run(made)

    registry.workflow(name="cut_off")(body)
    worker, _ = await workers.worker(lease_ms=1_500, renew_ms=300)
    run = await workers.start("cut_off")
    await workers.wait_for(run, "tool.started")

    async def no_answer(*_: Any) -> None:
        raise StoreUnavailable("as cut off")

    worker._renewal._renew_all = no_answer  # type: ignore[method-assign, assignment]
    await wait_until(lambda: left_ms, "the attempt to be cancelled")
    assert left_ms[0] > 0
    await workers.ended(run)


async def test_changed_code_parks_the_run_and_changes_nothing(workers: Stage, registry: Registry) -> None:
    async def look() -> None: ...
    async def think() -> None: ...

    looking, thinking = registry.activity(look, effect="none"), registry.activity(think, effect="none")

    async def old(ctx: Context) -> None:
        await ctx.run(looking)
        await ctx.wait_signal("go")

    async def new(ctx: Context) -> None:
        await ctx.run(thinking)
        await ctx.wait_signal("go")

    registry.workflow(name="changes", signals={"go": int})(old)
    _, first = await workers.worker()
    run = await workers.start("changes")
    await workers.wait_for(run, "run.waiting")
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    changed = Registry()
    changed.workflow(name="changes", signals={"go": int})(new)
    worker, _ = await workers.worker(registry=changed)
    await workers.send(run, "signal", {"name": "go", "payload": 1})
    blocked = await workers.wait_for(run, "run.blocked")
    blocker = blocked.data["blocker"]
    assert (blocker["kind"], blocker["stops"]) == ("nondeterminism", True)
    assert blocker["detail"] == {
        "step": "1:0:look:1",
        "expected": "tool.started 1:0:look:1",
        "actual": "tool.started 1:0:think:1",
        "version": "1",
    }
    await wait_until(lambda: not worker.held, "the run to be let go")
    assert (await workers.status(run)).status == "blocked"
    # Its code cannot run: a cancel closes it at once.
    await workers.send(run, "cancel")
    assert (await workers.wait_for(run, "run.cancelled")).data["forced"] is True


async def test_a_run_on_which_five_workers_died_is_parked_as_poison(workers: Stage, registry: Registry) -> None:
    async def body(ctx: Context) -> None: ...

    registry.workflow(name="kills")(body)
    _, first = await workers.worker()
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    run = await workers.start("kills")
    for n in range(5):

        async def claimed(n: int = n) -> bool:
            answer = await workers.store.claim(run, nonce=f"n{n}", holder=f"dead{n}", version="1", ttl_ms=30)
            return isinstance(answer, Claimed)

        await wait_until(claimed, f"claim {n}")
    await workers.worker()
    blocked = await workers.wait_for(run, "run.blocked")
    assert blocked.data["blocker"]["kind"] == "poison"
    assert "dead4" in blocked.data["blocker"]["title"]
    assert "run.started" not in await workers.types(run)


@UNCLOSED
async def test_the_store_goes_away_and_comes_back(tmp_path: Path, registry: Registry) -> None:
    three_steps(registry)
    with StoreServer(tmp_path / "store") as server:
        async with stage(server.url, tmp_path, registry) as workers:
            await workers.worker()
            run = await workers.start("steps")
            await workers.wait_for(run, "run.waiting")
            server.restart()
            assert await drive(workers, run) == ["A", "B", "C", 7, "approved", "D"]


@UNCLOSED
async def test_a_store_put_back_to_an_older_state_is_noticed_and_replayed(tmp_path: Path, registry: Registry) -> None:
    gate = asyncio.Event()

    async def work(n: int) -> int:
        if n == 2:
            await gate.wait()
        return n

    made = registry.activity(work, effect="read")

    async def body(ctx: Context) -> list[int]:
        return [await ctx.run(made, n) for n in (1, 2, 3)]

    registry.workflow(name="rolled_back")(body)
    with StoreServer(tmp_path / "store") as server:
        async with stage(server.url, tmp_path, registry) as workers:
            worker, _ = await workers.worker(lease_ms=2_000, renew_ms=400)
            run = await workers.start("rolled_back")
            await workers.wait_for(run, "tool.started", count=2)
            # Forget the holder's last commit, as a store restored from an older file would.
            await forget_last_commit(workers, run)
            gate.set()
            assert await workers.result(run) == [1, 2, 3]
            del worker


async def forget_last_commit(workers: Stage, run: str) -> None:
    """Put the log of `run` back to before the newest commit of its holder."""
    from typing import cast

    import msgspec

    from towline.protocol.store.keys import RunKeys

    entries = await workers.entries(run)
    last = max(entry.meta.commit or 0 for entry in entries)
    kept = [entry for entry in entries if (entry.meta.commit or 0) < last]
    head = kept[-1]
    keys = RunKeys.of(run)
    client = cast("Any", workers.store._client)
    await client.xtrim(keys.log, maxlen=0)
    await client.delete(keys.log)
    for entry in kept:
        await client.xadd(
            keys.log,
            {"e": entry.raw, "m": msgspec.json.encode(entry.meta)},
            id=str(entry.cursor),
        )
    await client.hset(
        keys.run,
        mapping={
            "last_seq": str(head.seq),
            "last_tag": str(head.tag),
            "commit_no": str(last - 1),
            "commit_reply": "",
        },
    )
