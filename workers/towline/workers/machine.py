"""The workflow machine: history in, decisions out.

A workflow is an ordinary `async def`. It must be able to die with its worker at any instant and come back on
another machine as if nothing had happened. So its state is never stored. It is made again, by running the code
from its first line against what the log says happened. That works if the code is a function of its facts, and
this module is what makes it one.

**Feeds.** The machine takes one fact at a time (`feed`) and then runs the code until nothing is ready: *to
rest*. Between feeds time stands still. A fact is an input, which somebody else wrote into the log (a cancel, an
answer, a fired timer, a signal), or the result of an activity. Which fact comes when is not the machine's to
choose; the order in which they were fed is recorded by the commits (`replay`, `holding`). That order is the
whole secret: not where an input stands in the log, but after which results the holder fed it.

**Time.** `now_ms` is, before the first feed, the time of `run.created`; while an input is fed, that entry's
time; while a result is fed, the time of the commit that carries it. It never goes back. The caller passes it in.

**Decisions.** What the code asks for comes out of `take_decisions`: start an activity, arm a timer, ask for
approval, announce, record. Each has a step id, `<generation>:<scope>:<name>:<occurrence>`. The scope is the
path in the tree of tasks, so parallel branches count for themselves and it does not matter which of them runs
first. A decision becomes one entry of the log; the next replay finds it by that id.

    fact                     what it wakes                                       if nothing waits for it
    -----------------------  --------------------------------------------------  ------------------------------
    (start)                  the first line
    ActivityFinished/Failed  the `ctx.run` of that step                          ignored: its caller gave up
    TimerFired               the callback that `call_later` armed under that id  ignored: cancelled, or a retry
    ApprovalResolved         the `ctx.approval` of that request                  ignored
    SignalReceived           the oldest `ctx.wait_signal` of that name           kept, in log order, for the next
    CancelAsked              CancelledError in the main task, the first time     ignored
    OtherInput               nothing; only `now` moves

**Rest** has four faces. The code *ended* (`ending`): returned, raised, or let a cancel through. Something
*runs* (`running`): activities whose result will come. Something is *waited for* (`waits`): a timer, an
approval, a signal; then the run can be let go and needs no memory. Or nothing of these: then nothing can ever
wake it, and that is an error too, better said now than never (`Stuck`).

What is decided and taken back within one feed (a timer of a `wait_for` that was answered at once, an activity
whose task was cancelled before it could start) never leaves the machine: it did not happen.
"""

import asyncio
import re
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, assert_never

from msgspec import Struct

from towline.protocol.values import ErrorInfo, WaitRef
from towline.workers.decisions import (
    ActivityFailed,
    ActivityFinished,
    ApprovalResolved,
    Cancel,
    CancelAsked,
    ClaimDraft,
    Complete,
    Ending,
    Fact,
    Fail,
    Input,
    MachineDecision,
    OtherInput,
    Published,
    SignalReceived,
    StartActivity,
    StartTimer,
    TimerFired,
)
from towline.workers.loop import DurableTimer, Scope, WorkflowLoop
from towline.workers.registry import Workflow, encode_value, schema_of

MESSAGE_CHARS: Final = 2_000
SUMMARY_CHARS: Final = 300
_LAST_WORD: Final = re.compile(r"[\w.+/=~%@:-]*\Z")
"""What a text ends with that may be part of something longer."""


class RunFacts(Struct, frozen=True):
    """What `run.created` says to the machine. `input` is JSON, or None for a run without one."""

    run: str
    owner: str
    created_ms: int
    input: bytes | None
    generation: int = 1


class Machine:
    """One run's workflow code, between feeds. See the module.

    Call `start` once, then `feed` for each fact; after each, `take_decisions` and look at `ending`. `drop` lets
    the code go. Not safe for two threads at once; nothing in it blocks but the workflow's own code.
    """

    def __init__(self, definition: Workflow, facts: RunFacts, body: Callable[["Machine"], Coroutine[Any, Any, Any]]):
        self.definition = definition
        self.facts = facts
        self.replaying = False
        self.ending: Ending | None = None
        self.cancel: CancelAsked | None = None
        self.summary: str | None = None
        self.claims: list[ClaimDraft] = []
        self.markers: dict[str, bytes] = {}
        """Recorded values by step, known before the feed that asks for them."""
        self.finished_steps: dict[str, list[str]] = {}
        """Steps with a result so far, by activity name, in the order of their results."""
        self.abandoned: set[str] = set()
        """Steps that were started and whose caller gave up."""
        self.disarmed: list[str] = []
        """Timers that were given up after they had left the machine; the holder takes and clears them."""
        self.activities: dict[str, StartActivity] = {}
        """Every activity decided so far, by step."""
        self._published: dict[str, Published] = {}
        self.loop = WorkflowLoop(  # type: ignore[abstract]  # the methods it forbids come from a table
            facts.run,
            Scope(f"{facts.generation}:0"),
            on_arm=self._arm,
            on_disarm=self._disarm,
        )
        self.loop.now_ms = facts.created_ms
        self._body = body
        self._main: asyncio.Task[Any] | None = None
        self._decisions: list[MachineDecision] = []
        self._fresh: list[MachineDecision] = []
        """Decisions of the feed that runs now; only these can be taken back."""
        self._cause: int | None = None
        self._running: dict[str, asyncio.Future[bytes]] = {}
        self._timers: dict[str, DurableTimer] = {}
        self._approvals: dict[str, tuple[str, asyncio.Future[ApprovalResolved]]] = {}
        self._signals: dict[str, asyncio.Queue[SignalReceived]] = {}
        self._signal_waiters: dict[str, int] = {}
        self._conditions: list[tuple[Callable[[], Any], asyncio.Future[None]]] = []

    # --- feeds

    def start(self) -> None:
        """Run the first line and on, to rest."""
        self._main = self.loop.create_task(self._body(self), name="main")
        self._settle()

    def feed(self, fact: Fact, now_ms: int) -> None:
        """Hand over one fact and run to rest. After the ending it is a no-op."""
        self.loop.now_ms = max(self.loop.now_ms, now_ms)
        if self.ending is not None or self._main is None:
            return
        self._cause = fact.seq if isinstance(fact, Input) else None
        self._deliver(fact, self._main)
        self._settle()
        self._cause = None

    def take_decisions(self) -> list[MachineDecision]:
        """What was decided since the last call, in order."""
        taken, self._decisions = self._decisions, []
        return taken

    def publish(self, name: str, published: Published) -> None:
        """Keep a value for queries. In history replay it was written before, with the commit of that turn."""
        if not self.replaying:
            self._published[name] = published

    def take_published(self) -> dict[str, Published]:
        """What was published since the last call, the newest of each name."""
        taken, self._published = self._published, {}
        return taken

    def drop(self) -> None:
        """Let the workflow's code go. Nothing it still does can decide anything."""
        self.loop.drop()

    # --- what is at rest

    @property
    def now_ms(self) -> int:
        return self.loop.now_ms

    @property
    def running(self) -> frozenset[str]:
        """Steps whose result the code waits for."""
        return frozenset(self._running)

    @property
    def timers(self) -> Mapping[str, DurableTimer]:
        """Armed timers by step."""
        return self._timers

    def waits(self) -> list[WaitRef]:
        """What from outside could wake the code: open approvals, timers, signals."""
        refs = [WaitRef(request, "approval", title) for request, (title, _) in self._approvals.items()]
        refs += [WaitRef(step, "timer") for step in self._timers]
        for name, waiters in self._signal_waiters.items():
            if waiters:
                schema = schema_of(self.definition.signals[name]) or None
                refs.append(WaitRef(f"signal:{name}", "signal", name, schema))
        return refs

    # --- what context calls

    def decide(self, decision: MachineDecision) -> None:
        """Put out a decision."""
        self._fresh.append(decision)

    @property
    def cause(self) -> int | None:
        """The seq of the input that is being fed, if one is."""
        return self._cause

    async def run_activity(self, start: StartActivity) -> bytes:
        """Decide an activity and wait for its recorded result. Raises what `fail` of the step gives."""
        future: asyncio.Future[bytes] = self.loop.create_future()
        self._running[start.step] = future
        self.activities[start.step] = start
        self.decide(start)
        try:
            return await future
        except asyncio.CancelledError:
            if self._running.pop(start.step, None) is not None and not self._take_back(start.step):
                self.abandoned.add(start.step)
            raise

    async def wait_approval(self, request: str, title: str) -> ApprovalResolved:
        """Wait for the end of an approval that was asked for."""
        future: asyncio.Future[ApprovalResolved] = self.loop.create_future()
        self._approvals[request] = (title, future)
        try:
            return await future
        finally:
            self._approvals.pop(request, None)

    async def next_signal(self, name: str) -> SignalReceived:
        """The oldest unread signal of that name; it counts as read when this returns."""
        self._signal_waiters[name] = self._signal_waiters.get(name, 0) + 1
        try:
            return await self._box(name).get()
        finally:
            self._signal_waiters[name] -= 1

    async def wait_condition(self, holds: Callable[[], Any]) -> None:
        """Wait until `holds()` is true; it is asked at each rest."""
        if holds():
            return
        future: asyncio.Future[None] = self.loop.create_future()
        entry = (holds, future)
        self._conditions.append(entry)
        try:
            await future
        finally:
            if entry in self._conditions:
                self._conditions.remove(entry)

    # --- inside

    def _deliver(self, fact: Fact, main: asyncio.Task[Any]) -> None:
        match fact:
            case ActivityFinished(step=step, result=result):
                self._note_finished(step)
                if (future := self._running.pop(step, None)) is not None and not future.done():
                    future.set_result(result)
            case ActivityFailed(step=step, error=error):
                if (future := self._running.pop(step, None)) is not None and not future.done():
                    future.set_exception(StepFailed(error))
            case TimerFired(timer=timer):
                if (armed := self._timers.pop(timer, None)) is not None:
                    self.loop.fire(armed)
            case ApprovalResolved(request=request):
                if (known := self._approvals.get(request)) is not None and not known[1].done():
                    known[1].set_result(fact)
            case SignalReceived(name=name):
                self._box(name).put_nowait(fact)
            case CancelAsked():
                if self.cancel is None:
                    self.cancel = fact
                    main.cancel()
            case OtherInput():
                pass
            case _:
                assert_never(fact)

    def _settle(self) -> None:
        self._run_code()
        self._decisions += self._fresh
        self._fresh = []

    def _run_code(self) -> None:
        try:
            self.loop.run_to_rest()
            while any(not future.done() and holds() for holds, future in self._conditions):
                for holds, future in list(self._conditions):
                    if not future.done() and holds():
                        future.set_result(None)
                self.loop.run_to_rest()
        except Exception as error:  # Spinning, or a condition that raises
            self._end(Fail(summary=_summary_of(error), error=_error_info(error)))
            return
        assert self._main is not None
        if self._main.done():
            self._end(self._ending_of(self._main))
        elif not (self._running or self._timers or self._approvals or any(self._signal_waiters.values())):
            stuck = ErrorInfo(
                "Stuck",
                "The workflow waits for something that cannot come: no activity runs and no timer, approval or "
                "signal is waited for.",
            )
            self._end(Fail(summary="The workflow waits for nothing that could come.", error=stuck))

    def _end(self, ending: Ending) -> None:
        self.ending = ending
        self._fresh = [made for made in self._fresh if not isinstance(made, StartActivity | StartTimer)]
        self._timers.clear()
        self.abandoned.update(self._running)
        self._running.clear()

    def _ending_of(self, main: asyncio.Task[Any]) -> Ending:
        if main.cancelled():
            if self.cancel is not None:
                return Cancel(by=self.cancel.by, reason=self.cancel.reason)
            gave_up = ErrorInfo("CancelledError", "The workflow cancelled itself; nobody had asked for a cancel.")
            return Fail(summary=gave_up.message, error=gave_up)
        error = main.exception()
        if error is not None:
            return Fail(summary=_summary_of(error), error=_error_info(error))
        value = main.result()
        try:
            result = encode_value(value, f"the result of {self.definition.name}")
        except TypeError as unfit:
            return Fail(summary=_summary_of(unfit), error=_error_info(unfit))
        summary = self.summary or getattr(value, "summary", None)
        if not isinstance(summary, str) or not summary:
            summary = f"{self.definition.name} completed"
        return Complete(summary=summary, result=result, claims=tuple(self.claims))

    def _arm(self, timer: DurableTimer) -> None:
        self._timers[timer.step] = timer
        self.decide(StartTimer(step=timer.step, cause=self._cause, due_ms=timer.due_ms, why="sleep"))

    def _disarm(self, timer: DurableTimer) -> None:
        if self._timers.pop(timer.step, None) is not None and not self._take_back(timer.step):
            self.disarmed.append(timer.step)

    def _take_back(self, step: str) -> bool:
        """Remove a decision of the feed that runs now. False if it was made before."""
        before = len(self._fresh)
        self._fresh = [made for made in self._fresh if made.step != step]
        return len(self._fresh) < before

    def _box(self, name: str) -> "asyncio.Queue[SignalReceived]":
        return self._signals.setdefault(name, asyncio.Queue())

    def _note_finished(self, step: str) -> None:
        if (start := self.activities.get(step)) is not None:
            self.finished_steps.setdefault(start.activity.name, []).append(step)


class StepFailed(Exception):
    """Internal: carries the recorded error of a step to its `ctx.run`, which says it in the user's terms."""

    def __init__(self, error: ErrorInfo) -> None:
        super().__init__(error.message)
        self.error = error


def _error_info(error: BaseException) -> ErrorInfo:
    message = str(error)
    if isinstance(error, BaseExceptionGroup):
        parts = [f"{type(part).__name__}: {part}" for part in error.exceptions]
        message = f"{error.message}: " + "; ".join(parts)
    return ErrorInfo(type(error).__name__, cut_short(message))


def cut_short(text: str, at_most: int = MESSAGE_CHARS) -> str:
    """So much of a text as is recorded, and how long it was.

    Cut before what may be one name, number or key: half a secret is no secret to the scrubber.
    """
    if len(text) <= at_most:
        return text
    end = f" … ({len(text)} characters)"
    return _LAST_WORD.sub("", text[: at_most - len(end)]).rstrip() + end


def _summary_of(error: BaseException) -> str:
    info = _error_info(error)
    return cut_short(f"{info.type}: {info.message}", SUMMARY_CHARS)
