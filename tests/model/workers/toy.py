"""Random small workflows, and a world that runs them badly: crashes, late results, a second writer.

`play(seed)` runs one program to its end on a `ToyLog` and returns the log. Between every two calls of the log a
second writer appends an input, until it has written its fill. Workers die at random points, with and without
having got the reply of a commit.
"""

import asyncio
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.support.toy_log import Changed, Fenced, ToyLog, Unseen
from towline.protocol import event_data as d
from towline.protocol import times
from towline.protocol.codec import Entry
from towline.protocol.values import Effect, ErrorInfo, Proposal, Vote
from towline.workers.commits import Attempt, AttemptFailed, AttemptFinished, Commit
from towline.workers.context import Context
from towline.workers.holding import Holding
from towline.workers.registry import Registry, Retry, Workflow
from towline.workers.replay import Replay
from towline.workers.values import ActivityError

Node = tuple[Any, ...]
SECOND_WRITER_FILL = 40
MOST_CALLS = 3_000


def _definitions() -> tuple[Registry, dict[str, Any]]:
    registry = Registry()
    made: dict[str, Any] = {}
    kinds: list[tuple[str, Effect, int]] = [("look", "read", 3), ("think", "none", 1), ("act", "write", 30)]
    for name, effect, attempts in kinds:

        def work(number: int) -> int:
            return number

        made[name] = registry.activity(
            work, name=name, effect=effect, idempotent=effect == "write", retry=Retry(attempts=attempts)
        )
    return registry, made


_registry, ACTIVITIES = _definitions()


def random_program(rng: random.Random, depth: int = 0) -> Node:
    """A tree of steps; most of its branches depend on time or on the order in which things happened."""
    kinds = ["run", "run", "run", "sleep", "signal", "approval", "note", "random", "by_time", "by_count"]
    if depth < 3:
        kinds += ["seq", "seq", "gather", "gather", "first", "timeout", "beside", "beside"]
    kind = "seq" if depth == 0 else rng.choice(kinds)

    def inner() -> Node:
        return random_program(rng, depth + 1)

    match kind:
        case "run":
            return ("run", rng.choice(list(ACTIVITIES)), rng.randrange(100))
        case "sleep":
            return ("sleep", rng.choice([1, 7, 40, 5_000, 60_000]))
        case "timeout":
            return ("timeout", rng.choice([3, 30, 4_000]), inner())
        case "seq" | "gather" | "first":
            return (kind, [inner() for _ in range(rng.randint(2, 4))])
        case "beside":  # a clock that strikes while something runs
            return ("gather", [("run", "look", rng.randrange(100)), ("sleep", rng.choice([3, 9])), inner()])
        case "by_time" | "by_count" if depth < 3:
            return (kind, inner(), inner())
        case _:
            return (kind if kind in ("signal", "approval", "note", "random") else "note",)


async def interpret(ctx: Context, node: Node) -> None:
    """Run one node; every completion is traced with its time."""
    match node:
        case ("run", name, number):
            try:
                value = await ctx.run(ACTIVITIES[name], number)
            except ActivityError as error:
                value = error.cause_type
            _trace(ctx, name, value)
        case ("sleep", ms):
            await asyncio.sleep(ms / 1000)
            _trace(ctx, "slept", ms)
        case ("signal",):
            _trace(ctx, "signal", await ctx.wait_signal("go"))
        case ("approval",):
            proposal = Proposal("toy", [], [], "none", "none")
            _trace(ctx, "approval", (await ctx.approval("May I?", proposal=proposal)).outcome)
        case ("note",):
            await ctx.note(f"{ctx.state.count} things by {times.to_wire(_now_ms(ctx))}")
        case ("random",):
            _trace(ctx, "random", [ctx.random().randrange(1000), str(ctx.uuid())])
        case ("by_time", even, odd):
            await interpret(ctx, even if _now_ms(ctx) % 2 == 0 else odd)
        case ("by_count", even, odd):
            await interpret(ctx, even if ctx.state.count % 2 == 0 else odd)
        case ("seq", nodes):
            for part in nodes:
                await interpret(ctx, part)
        case ("gather", nodes):
            await asyncio.gather(*(interpret(ctx, part) for part in nodes))
        case ("first", nodes):
            tasks = [asyncio.create_task(interpret(ctx, part)) for part in nodes]
            done, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in rest:
                task.cancel()
            await asyncio.gather(*rest, return_exceptions=True)
            for task in done:
                task.result()
        case ("timeout", ms, inner):
            try:
                async with asyncio.timeout(ms / 1000):
                    await interpret(ctx, inner)
            except TimeoutError:
                _trace(ctx, "timeout", ms)
        case _:
            raise AssertionError(node)


def _now_ms(ctx: Context) -> int:
    return round(ctx.now().timestamp() * 1000)


def _trace(ctx: Context, label: str, value: Any) -> None:
    ctx.state.count += 1
    ctx.state.trace.append([label, value, _now_ms(ctx)])


def workflow_for(seed: int) -> Workflow:
    """The program of a seed as a workflow; its result is its trace."""
    program = random_program(random.Random(f"program {seed}"))

    async def toy(ctx: Context) -> Any:
        ctx.state.count, ctx.state.trace = 0, []
        try:
            await interpret(ctx, program)
        finally:
            await ctx.note("cleaning up")
        await ctx.run(ACTIVITIES["think"], ctx.state.count)
        return ctx.state.trace

    return Registry().workflow(name="toy", signals={"go": int})(toy)


@dataclass
class Played:
    """What a game left behind."""

    log: ToyLog
    definition: Workflow
    crashes: int = 0
    replays: int = 0
    results: int = 0


@dataclass
class _World:
    rng: random.Random
    log: ToyLog
    pauses: bool = False
    written: int = 0
    commands: "itertools.count[int]" = field(default_factory=itertools.count)

    def between_calls(self) -> None:
        """The second writer: one input between every two calls, until it has had its fill."""
        self.log.tick(self.rng.randint(1, 9))
        if self.written < SECOND_WRITER_FILL:
            self.written += 1
            self.write_something()
        else:
            self.log.fire_due()

    def write_something(self) -> None:
        kinds = ["signal", "signal", "approval", "timer", "nothing", "other", "cancel"]
        match self.rng.choice([*kinds, "pause", "resume", "resume"] if self.pauses else kinds):
            case "pause":
                self.log.pause()
            case "resume":
                self.log.resume()
            case "signal":
                number = next(self.commands)
                signal = d.CommandReceived(command_id=f"c{number}", type="signal", payload=number, name="go")
                self.log.write_input("command.received", signal)
            case "approval" if self.log.open_approvals:
                request = self.rng.choice(self.log.open_approvals)
                vote = Vote("user:ana", "approve", times.to_wire(self.log.clock_ms))
                answer = d.ApprovalResolved(request=request, outcome="approved", decisions=[vote])
                self.log.write_input("approval.resolved", answer)
            case "cancel" if self.rng.random() < 0.1:
                if self.log.paused:
                    self.log.resume()
                deadline = times.to_wire(self.log.clock_ms)
                cancel = d.CancelRequested(command_id=f"c{next(self.commands)}", by="user:ana", deadline=deadline)
                self.log.write_input("cancel.requested", cancel)
            case "other":
                self.log.write_input("budget.changed", d.BudgetChanged(caps={}, by="user:ana"))
            case _:
                self.log.fire_due()

    def wake_released(self) -> None:
        """Nobody holds the run: what it waits for must come from outside."""
        if self.log.paused and self.rng.random() < 0.7:
            self.log.resume()
        if self.log.timers:
            self.log.clock_ms = max(self.log.clock_ms, min(self.log.timers.values()))
            self.log.fire_due()
        for _ in range(3):
            self.write_something()


def play(
    seed: int,
    *,
    crash: float = 0.05,
    pauses: bool = False,
    records_seen: bool = True,
    make_replay: Callable[[Workflow, str], Replay] = Replay,
    make_holding: Callable[..., Holding] = Holding,
) -> Played:
    """One run to its end. Raises `Divergence` when a history replay on the way goes wrong."""
    rng = random.Random(f"world {seed}")
    log = ToyLog(workflow="toy", records_seen=records_seen)
    world = _World(rng, log, pauses)
    played = Played(log, workflow_for(seed))
    lapsed = ""
    calls = itertools.count()
    while not log.is_sealed:
        if log.paused == "1":  # nobody may hold it
            world.wake_released()
            continue
        epoch = log.claim()
        replay = make_replay(played.definition, f"run-{seed}")
        read_up_to = log.entries[-1].seq
        played.replays += 1
        try:
            for entry in log.read(0):
                replay.receive(entry)
            replay.finish()
            holding = make_holding(replay, worker=f"w{epoch}", now_ms=log.clock_ms, lapsed=lapsed, linger_ms=50)
            lapsed = _hold(world, played, holding, epoch, read_up_to, crash, calls)
        finally:
            replay.machine.drop()
        if not lapsed and not log.is_sealed:
            world.wake_released()
    return played


def _hold(
    world: _World,
    played: Played,
    holding: Holding,
    epoch: int,
    read_up_to: int,
    crash: float,
    calls: "itertools.count[int]",
) -> str:
    """Hold the run until it is let go (''), or the holder dies (its name)."""
    rng, log = world.rng, world.log
    numbers = itertools.count(1)
    running: list[Attempt] = []

    def read_inputs() -> None:
        nonlocal read_up_to
        fresh = log.read(read_up_to)
        read_up_to += len(fresh)
        holding.receive_inputs([entry for entry in fresh if entry.meta.is_input])

    while True:
        assert next(calls) < MOST_CALLS, "the run does not end"
        if rng.random() < crash:
            played.crashes += 1
            return f"w{epoch}"
        running = [attempt for attempt in running if attempt.step in holding.running]
        for attempt in running:
            if attempt.step in holding.unwanted() or rng.random() < 0.2:
                holding.receive_outcome(_outcome_of(attempt, rng, attempt.step in holding.unwanted()))
                played.results += 1
        action = holding.next(log.clock_ms)
        world.between_calls()
        if not isinstance(action, Commit):
            if action.reads_inputs or rng.random() < 0.7:
                read_inputs()
            if action.until_ms is not None and not holding.running:
                log.clock_ms = max(log.clock_ms, action.until_ms)
                log.fire_due()
            continue
        try:
            first_seq = log.commit(epoch, next(numbers), action)
        except (Unseen, Changed):
            numbers = itertools.count(next(numbers) - 1)
            holding.unseen()
            read_inputs()
            continue
        except Fenced:
            return f"w{epoch}"
        held = log.held
        if rng.random() < crash:
            played.crashes += 1
            return f"w{epoch}" if action.ending is None else ""
        world.between_calls()
        running += holding.committed(first_seq, held=held)
        if held is not None:
            read_inputs()
        if holding.ended is not None:
            return ""
        if rng.random() < 0.5:
            read_inputs()


def _outcome_of(attempt: Attempt, rng: random.Random, is_cancelled: bool) -> AttemptFinished | AttemptFailed:
    if is_cancelled:
        return AttemptFailed(step=attempt.step, attempt=attempt.number, error=ErrorInfo("Cancelled", "", False))
    if rng.random() < 0.3:
        error = ErrorInfo("ValueError", "toy trouble", rng.random() < 0.8)
        return AttemptFailed(step=attempt.step, attempt=attempt.number, error=error)
    return AttemptFinished(
        step=attempt.step,
        attempt=attempt.number,
        result=str(rng.randrange(1000)).encode(),
        summary="done",
        duration_ms=1,
    )


def read_all(played: Played, entries: list[Entry], make_replay: Callable[[Workflow, str], Replay], seed: int) -> Replay:
    """A history replay of a whole log, finished and with its ending verified."""
    replay = make_replay(played.definition, f"run-{seed}")
    try:
        for entry in entries:
            replay.receive(entry)
        replay.finish()
        replay.verify_ending()
    finally:
        replay.machine.drop()
    return replay
